#include "pool.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#if defined(__linux__)
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__APPLE__)
#include <pthread.h>
#endif

namespace jackfield {

constexpr double SPIN_SECONDS = 20e-6;  // longer than most gaps between two steps, shorter than a time slice
constexpr double TURN_SECONDS = 2e-3;   // see Turn
constexpr int SKIP = 15;                // parts without a look at the clock
constexpr int QUICK_LOOKS = 100;        // before the first pause: a meeting of workers that all run takes fewer

static inline int64_t ticks() {
#if defined(__x86_64__)
    return int64_t(__builtin_ia32_rdtsc());
#elif defined(__aarch64__)
    int64_t now;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(now));
    return now;
#else
    return std::chrono::steady_clock::now().time_since_epoch().count();
#endif
}

static inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static double ticks_a_second() {
    static const double rate = [] {
        const auto began = std::chrono::steady_clock::now();
        const int64_t from = ticks();
        std::chrono::duration<double> passed{};
        while (passed.count() < 20e-6) passed = std::chrono::steady_clock::now() - began;
        return double(ticks() - from) / passed.count();
    }();
    return rate;
}

// How long to look before going to sleep. With more workers than CPUs, the one that is waited for may need this very
// CPU: no looking then.
static int64_t spin_ticks(int workers) {
    const unsigned cpus = std::thread::hardware_concurrency();  // those this process may use; 0: unknown
    return cpus && unsigned(workers) > cpus ? 0 : int64_t(SPIN_SECONDS * ticks_a_second());
}

namespace {

class Watch {  // says when one has looked long enough
public:
    explicit Watch(int64_t spin) : spin_(spin) {}
    bool passed() {
        relax();
        const int64_t now = ticks();
        if (!began_) began_ = now;
        return now - began_ >= spin_;
    }

private:
    int64_t spin_, began_ = 0;
};

// A worker's turn on its CPU. Who is taken off its CPU by the system in the middle of a part holds up all others until
// it is back, some milliseconds later. So after a part that ends 2 ms after its last turn began a worker leaves the CPU
// by itself, holding nothing, to whoever waits for it; where nobody does, that takes 0.2 us. 2 ms are more than the
// slice of Linux (1.4 ms with two CPUs, 2.8 with eight and more), so no share of the CPU is given up, and less than the
// 4 ms of its clock, at which it would be taken away. One thread has one turn, whatever pool it works for.
struct Turn {
    int64_t began = 0, looked = 0;
    int parts = 0, skip = 0;  // made since the clock was looked at; how many to make before it is looked at again

    void begin() { began = looked = ticks(), parts = skip = 0; }
    // After each part. The clock takes a tenth of a meeting: it is left alone while parts are short.
    bool over(int64_t most) {
        if (++parts <= skip) return false;
        const int64_t now = ticks(), left = began + most - now;
        skip = int(std::clamp<int64_t>(left * parts / (now - looked + 1) / 2, 0, SKIP));
        looked = now, parts = 0;
        return left < 0;
    }
};
thread_local Turn turn;

void leave_cpu() {
#if defined(__linux__)
    sched_yield();
#endif
    turn.begin();
}

}  // namespace

void Signal::wake() {
#if defined(JF_SLEEP_ON_FUTEXES)
    syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#else
    {
        std::lock_guard<std::mutex> lock(mutex_);
    }
    changed_.notify_all();
#endif
}

void Signal::sleep(uint64_t seen) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
#if defined(JF_SLEEP_ON_FUTEXES)
    static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a futex is the first 32 bits");
    if (value_.load(std::memory_order_seq_cst) == seen)
        syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value_), FUTEX_WAIT_PRIVATE, uint32_t(seen), nullptr, nullptr,
                0);
#else
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return value_.load(std::memory_order_seq_cst) != seen; });
#endif
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

static std::atomic<uint64_t> fork_generation{0};

static void watch_forks() {
#if defined(__linux__) || defined(__APPLE__)
    static const int once = pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1); });
    (void)once;
#endif
}

#if defined(__linux__)
static void pin(std::thread& thread, int cpu) {
    const size_t nbytes = CPU_ALLOC_SIZE(cpu + 1);
    cpu_set_t* set = CPU_ALLOC(cpu + 1);
    if (!set) throw std::bad_alloc();
    CPU_ZERO_S(nbytes, set);
    CPU_SET_S(cpu, nbytes, set);
    const int failed = pthread_setaffinity_np(thread.native_handle(), nbytes, set);
    CPU_FREE(set);
    if (failed) throw std::system_error(failed, std::generic_category(), "CPU " + std::to_string(cpu));
}
#endif

Pool::Pool(int workers, const std::vector<int>& cpus)
    : size_(workers < 1 ? 1 : workers),
      spin_(spin_ticks(size_)),
      turn_(int64_t(TURN_SECONDS * ticks_a_second())),
      quick_looks_(spin_ ? QUICK_LOOKS : 0),
      born_((watch_forks(), fork_generation.load())),
      words_(size_t(size_)),
      meetings_(size_t(size_) + 1) {
    for (Signal& each : words_) each.set(word(0, END, AWAY));
    threads_.reserve(size_t(size_ - 1));
    try {
        for (int i = 1; i < size_; ++i) {
            threads_.emplace_back([this, i] { loop(i); });
#if defined(__linux__)
            if (!cpus.empty()) pin(threads_.back(), cpus[size_t(i - 1) % cpus.size()]);
#else
            (void)cpus;
#endif
        }
    } catch (...) {  // a limit on threads or memory: those that started must end before the vector goes
        stop();
        throw;
    }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
    for (Signal& each : words_) each.set(word(0, END, STOPPED));
    for (std::thread& t : threads_) t.join();
    threads_.clear();
}

bool Pool::forked() const { return fork_generation.load(std::memory_order_relaxed) != born_; }

namespace {

struct Calls : Job {
    const int team;
    const std::function<void(int)>& work;
    Calls(int t, const std::function<void(int)>& w) : team(t), work(w) { segments = 1, parts = &team; }
    void make(size_t, int part) const override { work(part); }
};

}  // namespace

void Pool::run(int team, const std::function<void(int)>& work) {
    team = std::clamp(team, 1, size_);
    run(team, Calls(team, work));
}

void Pool::run(int team, const Job& job) {
    if (forked()) throw std::runtime_error("forked");
    std::lock_guard<std::mutex> caller(callers_);
    for (Counter& counter : counters_) counter.value.store(0, std::memory_order_relaxed);
    if (team <= 1) {
        for (size_t s = 0; s < job.segments; ++s) job.make(s, 0);
        return;
    }
    job_ = &job;
    team_ = team;
    ++number_;
    for (int i = 0; i < team; ++i) words_[size_t(i)].set(word_from(0, i));
    Watch watch(spin_);
    for (;;) {
        const uint64_t mine = words_[0].value();
        if (segment_of(mine) != END && state_of(mine) == AWAY && change(0, mine, HERE)) {
            work(0);
            watch = Watch(spin_);
            continue;
        }
        Held held{};
        const Found found = help(0, job.segments, &held);
        if (found == Found::READY) return;
        if (found == Found::MADE)
            watch = Watch(spin_);
        else if (watch.passed())
            words_[size_t(held.worker)].sleep(held.seen);
    }
}

// A worker beside the caller: it waits for a part of its own and claims it, until the pool ends.
void Pool::loop(int index) {
    Signal& mine = words_[size_t(index)];
    for (Watch watch(spin_);;) {
        const uint64_t seen = mine.value();
        if (state_of(seen) == STOPPED) return;
        if (segment_of(seen) != END && state_of(seen) == AWAY) {
            if (change(index, seen, HERE)) {
                work(index);
                watch = Watch(spin_);
            }
        } else if (watch.passed()) {
            mine.sleep(seen);
            turn.begin();
        }
    }
}

// One part of its own after another, from the one it has claimed on, until there are no more or it goes away. From then
// on the job may be gone.
void Pool::work(int index) {
    Signal& mine = words_[size_t(index)];
    for (size_t segment = segment_of(mine.value());;) {
        if (!await(index, segment)) return;
        job_->make(segment, index);
        const uint64_t next = word_from(segment + 1, index);
        segment = segment_of(next);
        if (segment == END) return mine.set(next);
        mine.set(next | HERE);
        if (!turn.over(turn_)) continue;
        mine.set(next);
        return leave_cpu();
    }
}

// Until a segment can begin, making what is left of those before. False: it took long, the worker has gone away and
// slept.
bool Pool::await(int index, size_t segment) {
    if (!segment) return true;
    const uint64_t least = word(number_, segment, AWAY);
    const int parts = job_->parts[segment - 1];
    for (int looks = 0; looks < quick_looks_; ++looks) {
        bool all = true;
        for (int i = 0; i < parts; ++i)
            if (i != index) all &= reached(words_[size_t(i)].value(), least);
        if (all) return true;
    }
    Held held{};
    for (Watch watch(spin_);;) {
        const Found found = help(index, segment, &held);
        if (found == Found::READY) return true;
        if (found == Found::MADE) {
            watch = Watch(spin_);
        } else if (watch.passed()) {
            change(index, word(number_, segment, HERE), AWAY);
            words_[size_t(held.worker)].sleep(held.seen);
            turn.begin();
            return false;
        }
    }
}

// Can a segment begin? If not: who is not done with what is before it, one that is away if there is any.
bool Pool::ready(size_t segment, Held* held) const {
    if (!segment) return true;
    const int parts = job_->parts[segment - 1];
    bool all = true;
    for (int i = 0; i < parts; ++i) {
        const uint64_t seen = words_[size_t(i)].value();
        if (reached(seen, word(number_, segment, AWAY))) continue;
        if (all || state_of(seen) == AWAY) *held = {i, seen};
        all = false;
    }
    return all;
}

// Makes one part that a segment waits for and whose worker is away, or says who is at one. index: who asks. Its own
// part comes first: parts of one segment may meet, and who waits in a meeting can't begin another.
Pool::Found Pool::help(int index, size_t segment, Held* held) {
    if (ready(segment, held)) return Found::READY;
    for (Held before{};; *held = before) {
        if (state_of(held->seen) != AWAY || uint32_t(held->seen >> 32) != number_) return Found::HELD;
        const size_t at = segment_of(held->seen);
        if (!ready(at, &before)) continue;
        if (held->worker != index && words_[size_t(index)].value() == word(number_, at, AWAY)) return Found::MADE;
        if (change(held->worker, held->seen, TAKEN)) make_for(held->worker, at);
        return Found::MADE;  // or begun by its worker just now
    }
}

void Pool::make_for(int worker, size_t segment) {
    job_->make(segment, worker);
    words_[size_t(worker)].set(word_from(segment + 1, worker));
}

// The word of a worker that is away, from a segment on.
uint64_t Pool::word_from(size_t segment, int worker) const {
    while (segment < job_->segments && worker >= job_->parts[segment]) ++segment;
    return word(number_, segment < job_->segments ? segment : END, AWAY);
}

void Pool::meet(size_t segment, int count, bool last) {
    Meeting& meeting = meetings_[size_t(count)];
    const uint64_t before = meeting.phase.value();
    if (meeting.arrived.fetch_add(1, std::memory_order_acq_rel) + 1 == count) {
        meeting.arrived.store(0, std::memory_order_relaxed);
        meeting.phase.set(before + 1);
        return;
    }
    for (Watch watch(spin_); meeting.phase.value() == before;)
        if (watch.passed() && !(last && make_one_of(segment, count))) meeting.phase.sleep(before);
}

// A part of a segment whose worker is away.
bool Pool::make_one_of(size_t segment, int count) {
    for (int i = 0; i < count; ++i) {
        const uint64_t unmade = word(number_, segment, AWAY);
        if (words_[size_t(i)].value() != unmade || !change(i, unmade, TAKEN)) continue;
        make_for(i, segment);
        return true;
    }
    return false;
}

}  // namespace jackfield

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

// How many times to look before going to sleep. One pause takes 10 to 150 cycles, by the make of the CPU, so it is
// timed. With more workers than CPUs, the one that is waited for may need this very CPU: no looking then.
static int spins(int workers) {
    const unsigned cpus = std::thread::hardware_concurrency();  // those this process may use; 0: unknown
    if (cpus && unsigned(workers) > cpus) return 0;
    static const int count = [] {
        constexpr int TRIES = 500;
        const auto began = std::chrono::steady_clock::now();
        for (int i = 0; i < TRIES; ++i) relax();
        const std::chrono::duration<double> each = (std::chrono::steady_clock::now() - began) / TRIES;
        return each.count() > 0 ? int(std::clamp(SPIN_SECONDS / each.count(), 50.0, 20000.0)) : 1000;
    }();
    return count;
}

void Flag::raise(uint32_t value) {
    value_.store(value, std::memory_order_seq_cst);
#if defined(__linux__)
    if (sleepers_.load(std::memory_order_seq_cst))
        syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value_), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
#endif
}

void Flag::sleep(uint32_t value) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    for (uint32_t seen; int32_t((seen = value_.load(std::memory_order_seq_cst)) - value) < 0;) {
#if defined(__linux__)
        syscall(SYS_futex, reinterpret_cast<uint32_t*>(&value_), FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
#else
        (void)seen;
        std::this_thread::yield();
#endif
    }
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
      spins_(spins(size_)),
      born_((watch_forks(), fork_generation.load())),
      done_(size_t(size_)) {
    for (int n = 0; n <= size_; ++n) barriers_.push_back(std::make_unique<Barrier>(n < 1 ? 1 : n));
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
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
        round_.fetch_add(1);
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
    threads_.clear();
}

bool Pool::forked() const { return fork_generation.load(std::memory_order_relaxed) != born_; }

void Pool::run(int team, const std::function<void(int)>& work) {
    if (forked()) throw std::runtime_error("forked");
    std::lock_guard<std::mutex> caller(callers_);
    if (team > size_) team = size_;
    for (Counter& counter : counters_) counter.value.store(0, std::memory_order_relaxed);
    for (Flag& flag : done_) flag.clear();
    if (team > 1) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            work_ = &work;
            team_ = team;
            running_.store(team - 1, std::memory_order_relaxed);
            round_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
    }
    work(0);
    for (int i = 0; i < spins_ && running_.load(std::memory_order_acquire); ++i) relax();
    if (running_.load(std::memory_order_acquire)) {
        std::unique_lock<std::mutex> lock(mutex_);
        finished_.wait(lock, [this] { return running_.load(std::memory_order_acquire) == 0; });
    }
}

void Pool::loop(int index) {
    uint64_t seen = 0;
    while (true) {
        for (int i = 0; i < spins_ && round_.load(std::memory_order_acquire) == seen; ++i) relax();
        const std::function<void(int)>* work;
        {
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [&] { return round_.load(std::memory_order_acquire) != seen; });
            seen = round_.load(std::memory_order_acquire);
            if (stop_) return;
            if (index >= team_) continue;
            work = work_;
        }
        (*work)(index);
        if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            std::lock_guard<std::mutex> lock(mutex_);
            finished_.notify_one();
        }
    }
}

}  // namespace jackfield

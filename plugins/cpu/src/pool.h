// Workers of one device: created once, woken for a job. A job is a list of segments, each of as many parts as workers
// make it; a segment begins when all parts of the one before are done. A part belongs to the worker of its number, but
// while that one is away (asleep, or off its CPU of its own will) another makes it: nobody waits for a worker that
// holds nothing. What is made does not depend on who makes it.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

// How workers sleep: on a futex, or, elsewhere and where a test asks for it, on a condition.
#if defined(__linux__) && !defined(JF_SLEEP_ON_CONDITIONS)
#define JF_SLEEP_ON_FUTEXES
#else
#include <condition_variable>
#endif

namespace jackfield {

// What the workers make. The pool no longer looks at it once its last part is done.
class Job {
public:
    virtual ~Job() = default;
    virtual void make(size_t segment, int part) const = 0;

    size_t segments = 0;
    const int* parts = nullptr;  // by segment: at least 1, at most the size of the pool
};

// A word on cache lines of its own that one can sleep on.
class alignas(128) Signal {
public:
    uint64_t value() const { return value_.load(std::memory_order_acquire); }
    void set(uint64_t value) {
        value_.store(value, std::memory_order_seq_cst);
        if (sleepers_.load(std::memory_order_seq_cst)) wake();
    }
    bool swap(uint64_t seen, uint64_t value) {  // nobody is woken
        return value_.compare_exchange_strong(seen, value, std::memory_order_seq_cst);
    }
    void sleep(uint64_t seen);  // while it is `seen`; may return early. Only the lower half is compared.

private:
    void wake();

    std::atomic<uint64_t> value_{0};
    std::atomic<int> sleepers_{0};
#if !defined(JF_SLEEP_ON_FUTEXES)
    std::mutex mutex_;
    std::condition_variable changed_;
#endif
};

class Pool {
public:
    // cpus: where the workers beside the caller run, in turn; none: anywhere. Throws std::system_error when the system
    // starts no more threads or has no such CPU.
    explicit Pool(int workers, const std::vector<int>& cpus = {});
    ~Pool();  // never in a forked child: see make_pool in native.cpp
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return size_; }
    // Make a job with the first `team` workers, the caller being worker 0; returns when all is done. Calls are serial:
    // a second caller waits. Throws std::runtime_error in a forked child, where the workers do not exist.
    void run(int team, const Job& job);
    // The same for one segment: work(i) once for each i in 0 .. team-1.
    void run(int team, const std::function<void(int)>& work);
    // Within a part of a segment of `count` parts: wait until all of them are here. last: see Team::barrier.
    void meet(size_t segment, int count, bool last);
    // Pieces of work, counted for segments with an even and with an odd number, so that one can be set to 0 while the
    // other is in use.
    std::atomic<int64_t>& counter(size_t segment) { return counters_[segment % 2].value; }
    bool forked() const;

private:
    // A worker's word says which job, which part it makes next (the segment) and who is at it. While it is HERE only
    // its worker changes it, while it is TAKEN only who took the part; AWAY it can be claimed or taken.
    enum State : uint32_t { AWAY, HERE, TAKEN, STOPPED };
    static constexpr uint32_t END = ~uint32_t(0) >> 2;  // no part is left
    static uint64_t word(uint32_t job, size_t segment, State state) {
        return uint64_t(job) << 32 | uint64_t(segment) << 2 | state;
    }
    static bool reached(uint64_t word, uint64_t least) { return int64_t(word - least) >= 0; }
    static size_t segment_of(uint64_t word) { return uint32_t(word) >> 2; }
    static State state_of(uint64_t word) { return State(word & 3); }

    struct Held {  // whose part is waited for, and its word
        int worker;
        uint64_t seen;
    };
    enum class Found { READY, MADE, HELD };
    struct Meeting {
        alignas(128) std::atomic<int> arrived{0};
        Signal phase;
    };
    struct alignas(128) Counter {
        std::atomic<int64_t> value{0};
    };

    void loop(int index);
    void stop();
    void work(int index);
    bool await(int index, size_t segment);
    bool ready(size_t segment, Held* held) const;
    Found help(int index, size_t segment, Held* held);
    bool change(int index, uint64_t seen, State state) {
        return words_[size_t(index)].swap(seen, (seen & ~uint64_t(3)) | state);
    }
    void make_for(int worker, size_t segment);
    bool make_one_of(size_t segment, int count);
    uint64_t word_from(size_t segment, int worker) const;

    const int size_;
    const int64_t spin_, turn_;  // ticks: to look before sleeping, to stay on a CPU
    const int quick_looks_;      // before ticks are counted
    const uint64_t born_;        // fork generation
    std::mutex callers_;
    const Job* job_ = nullptr;  // of the run, as the next two
    uint32_t number_ = 0;
    int team_ = 0;
    std::vector<Signal> words_;      // by worker
    std::vector<Meeting> meetings_;  // by number of parts
    Counter counters_[2];
    std::vector<std::thread> threads_;
};

}  // namespace jackfield

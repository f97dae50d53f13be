// Workers of one device: created once, woken for a run, meeting at barriers between its steps.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace jackfield {

static inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// A number that one worker raises and others wait for. Who waits spins a little and then sleeps, so that a preempted
// worker does not burn the other cores. On a cache line of its own.
class alignas(64) Flag {
public:
    void clear() { value_.store(0, std::memory_order_relaxed); }  // nobody waits
    uint32_t value() const { return value_.load(std::memory_order_acquire); }
    void raise(uint32_t value);
    // Until the number is `value` or beyond it; `spins`: how often to look before sleeping.
    void await(uint32_t value, int spins) {
        for (int i = 0; i < spins; ++i) {
            if (reached(value)) return;
            relax();
        }
        if (!reached(value)) sleep(value);
    }

private:
    bool reached(uint32_t value) const { return int32_t(this->value() - value) >= 0; }  // also past 2^32
    void sleep(uint32_t value);

    std::atomic<uint32_t> value_{0};
    std::atomic<int> sleepers_{0};
};

class Barrier {
public:
    explicit Barrier(int count) : count_(count) {}
    void wait(int spins) {
        const uint32_t next = phase_.value() + 1;
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
            arrived_.store(0, std::memory_order_relaxed);
            phase_.raise(next);
        } else {
            phase_.await(next, spins);
        }
    }

private:
    const int count_;
    alignas(64) std::atomic<int> arrived_{0};
    Flag phase_;
};

// A counter on a cache line of its own.
struct alignas(64) Counter {
    std::atomic<int64_t> value{0};
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
    // Call work(i) for i in 0 .. team-1, worker 0 on the caller's thread; returns when all are done. Calls are serial:
    // a second caller waits. Throws std::runtime_error in a forked child, where the workers do not exist.
    void run(int team, const std::function<void(int)>& work);
    // Within a run. Workers 0 to count-1 meet; a worker says how many segments it has done; pieces of work, counted
    // for segments with an even and with an odd number, so that one can be set to 0 while the other is in use.
    void meet(int count) { barriers_[size_t(count)]->wait(spins_); }
    void say_done(int index, uint32_t segments) { done_[size_t(index)].raise(segments); }
    void await_done(int index, uint32_t segments) { done_[size_t(index)].await(segments, spins_); }
    std::atomic<int64_t>& counter(size_t segment) { return counters_[segment % 2].value; }
    bool forked() const;

private:
    void loop(int index);
    void stop();

    const int size_, spins_;
    const uint64_t born_;  // fork generation
    std::mutex callers_, mutex_;
    std::condition_variable wake_, finished_;
    const std::function<void(int)>* work_ = nullptr;
    std::atomic<uint64_t> round_{0};
    int team_ = 0;
    std::atomic<int> running_{0};
    bool stop_ = false;
    std::vector<std::unique_ptr<Barrier>> barriers_;
    std::vector<Flag> done_;  // by worker
    Counter counters_[2];
    std::vector<std::thread> threads_;
};

}  // namespace jackfield

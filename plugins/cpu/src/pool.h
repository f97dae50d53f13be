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

// A barrier that spins a little and then sleeps, so that a preempted worker does not burn the other cores.
class Barrier {
public:
    explicit Barrier(int count) : count_(count) {}
    // `last` runs once, by the worker that arrives last, before anyone leaves.
    template <class Last>
    void wait(Last last) {
        const uint32_t phase = phase_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
            last();
            arrived_.store(0, std::memory_order_relaxed);
            release(phase);
        } else {
            await(phase);
        }
    }
    void wait() {
        wait([] {});
    }

private:
    void release(uint32_t phase);
    void await(uint32_t phase);

    const int count_;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> phase_{0};
    std::atomic<int> sleepers_{0};
};

class Pool {
public:
    explicit Pool(int workers);  // throws std::system_error when the system starts no more threads
    ~Pool();                     // never in a forked child: see make_pool in native.cpp
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int size() const { return size_; }
    // Call work(i) for i in 0 .. team-1, worker 0 on the caller's thread; returns when all are done. Calls are serial:
    // a second caller waits. Throws std::runtime_error in a forked child, where the workers do not exist.
    void run(int team, const std::function<void(int)>& work);
    Barrier& barrier(int count) { return *barriers_[size_t(count)]; }
    std::atomic<int64_t>& counter() { return counter_; }
    bool forked() const;

private:
    void loop(int index);
    void stop();

    const int size_;
    const uint64_t born_;  // fork generation
    std::mutex callers_, mutex_;
    std::condition_variable wake_, done_;
    const std::function<void(int)>* work_ = nullptr;
    std::atomic<uint64_t> round_{0};
    int team_ = 0;
    std::atomic<int> running_{0};
    bool stop_ = false;
    std::vector<std::unique_ptr<Barrier>> barriers_;
    alignas(64) std::atomic<int64_t> counter_{0};
    std::vector<std::thread> threads_;
};

}  // namespace jackfield

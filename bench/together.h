// Workers that begin together, each timed by its own clock.
#pragma once
#include <time.h>

#include <atomic>
#include <thread>
#include <vector>

// The thread's own clock: what the machine can do does not depend on who else runs, unless they share its memory.
inline double now() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// Seconds of the slowest of `threads` workers that begin together; `work` gets the worker's number.
template <class Work>
double together(int threads, Work work) {
    std::atomic<int> waiting{threads};
    std::vector<std::thread> others;
    std::vector<double> taken((size_t)threads);
    auto one = [&](int i) {
        waiting--;
        while (waiting) std::this_thread::yield();
        const double start = now();
        work(i);
        taken[(size_t)i] = now() - start;
    };
    for (int i = 1; i < threads; i++) others.emplace_back(one, i);
    one(0);
    for (auto& t : others) t.join();
    double most = 0;
    for (double t : taken) most = t > most ? t : most;
    return most;
}

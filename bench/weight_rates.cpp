// At what rate the tiles for one row of x read cold packed weights, with nothing else in the loop: a line a type and
// thread count. Built by weight_rates.py with the wheel's own headers, level vnni.
//
//     weight_rates THREADS MEGABYTES
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <type_traits>
#include <vector>

#include "products_blocks.h"
#include "products_floats.h"

using namespace jackfield;

namespace {

double now() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

// Median GB/s of five passes; `work(begin, end)` reads those groups.
template <class Work>
double rate(int threads, int64_t groups, int64_t nbytes, Work work) {
    std::vector<double> rates;
    for (int pass = 0; pass < 5; pass++) {
        std::atomic<int> waiting{threads};
        std::vector<double> taken((size_t)threads);
        std::vector<std::thread> others;
        auto one = [&](int i) {
            waiting--;
            while (waiting) std::this_thread::yield();
            const double start = now();
            work(groups * i / threads, groups * (i + 1) / threads);
            taken[(size_t)i] = now() - start;
        };
        for (int i = 1; i < threads; i++) others.emplace_back(one, i);
        one(0);
        for (auto& t : others) t.join();
        rates.push_back(double(groups * nbytes) / *std::max_element(taken.begin(), taken.end()) / 1e9);
    }
    std::sort(rates.begin(), rates.end());
    return rates[2];
}

template <int32_t D>
void measure(const char* name, int64_t columns, int threads, int64_t nbytes) {
    const int64_t size = group_nbytes(D, columns), groups = nbytes / size, all = groups * size + size;
    char* p = (char*)mmap(nullptr, size_t(all), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) exit(1);
    madvise(p, size_t(all), MADV_HUGEPAGE);
    memset(p, 0, size_t(all));
    const std::vector<float> x(size_t(2 * columns + 64));  // zeros, rounded or not
    const double found = rate(threads, groups, size, [&](int64_t begin, int64_t end) {
        alignas(64) float out[GROUP] = {};
        for (int64_t g = begin; g < end; g++) {
            const char* group = p + g * size;
            if constexpr (is_block(D))
                weights_of(D).tile(1)((const uint8_t*)group, (const char*)x.data(), columns / block_length(D), out);
            else
                find_narrow_tile<std::conditional_t<D == BF16, PairInstruction, Singles<DType(D)>>>(1)(group, x.data(),
                                                                                                       columns, out);
            asm volatile("" : : "r"(out) : "memory");
        }
    });
    printf("%s %d %d %.1f\n", name, int(columns), threads, found);
    munmap(p, size_t(all));
}

}  // namespace

int main(int count, char** words) {
    if (count != 3) return 2;
    const int most = atoi(words[1]);
    const int64_t nbytes = int64_t(atoi(words[2])) << 20;
    for (int threads = 1; threads <= most; threads++) {
        measure<Q4_1>("q4_1", 576, threads, nbytes);
        measure<Q8_0>("q8_0", 576, threads, nbytes);
        measure<Q4_1>("q4_1", 4096, threads, nbytes);
        measure<Q4_K>("q4_K", 4096, threads, nbytes);
        measure<Q6_K>("q6_K", 4096, threads, nbytes);
        measure<BF16>("bf16", 4096, threads, nbytes);
        measure<F16>("f16", 4096, threads, nbytes);
    }
}

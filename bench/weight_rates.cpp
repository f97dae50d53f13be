// At what rate the tiles for one row of x read cold packed weights, with nothing else in the loop: a line a type and
// thread count. Built by weight_rates.py with the wheel's own headers, level vnni.
//
//     weight_rates THREADS MEGABYTES
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "products_blocks.h"
#include "products_floats.h"
#include "together.h"

using namespace jackfield;

bool jackfield::iq_panels = true;  // levels.cpp has it in the wheel

namespace {

// Median GB/s of five passes; `work(begin, end)` reads those groups.
template <class Work>
double rate(int threads, int64_t groups, int64_t nbytes, Work work) {
    std::vector<double> rates;
    for (int pass = 0; pass < 5; pass++) {
        const double taken = together(threads, [&](int i) { work(groups * i / threads, groups * (i + 1) / threads); });
        rates.push_back(double(groups * nbytes) / taken / 1e9);
    }
    std::sort(rates.begin(), rates.end());
    return rates[2];
}

// The tile of a float type for one row of x; of bf16 the one this CPU takes.
template <int32_t D>
FloatTile float_tile() {
    if constexpr (D != BF16) return find_narrow_tile<Singles<DType(D)>>(1);
    return __builtin_cpu_supports("avx512bf16") ? find_narrow_tile<PairInstruction>(1)
                                                : find_narrow_tile<PartedPairs>(1);
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

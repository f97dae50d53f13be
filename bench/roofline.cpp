// What one machine can do at most, measured with nothing else in the loops: bytes read from memory and copied, int8,
// f32 and bf16 multiply-adds. Prints one line a figure: name, threads, value. Built natively by roofline.py.
//
//     roofline THREADS [BYTES [ROUNDS]]    1 to THREADS threads; bytes read, rounds of each arithmetic loop
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <vector>

#include "together.h"

namespace {

volatile int64_t sink;

#if defined(__AVX512F__)
typedef __m512i vec;
vec load(const char* p) { return _mm512_load_si512((const void*)p); }
#elif defined(__AVX2__)
typedef __m256i vec;
vec load(const char* p) { return _mm256_load_si256((const __m256i*)p); }
#else
typedef __m128i vec;
vec load(const char* p) { return _mm_load_si128((const __m128i*)p); }
#endif

// ahead: bytes between what is read and what is asked for; 0 leaves that to the hardware.
int64_t read_all(const char* p, int64_t n, int64_t ahead) {
    typedef long long lanes __attribute__((vector_size(sizeof(vec))));
    lanes a{}, b{}, c{}, d{};
    for (int64_t i = 0; i < n; i += 4 * (int64_t)sizeof(vec)) {
        for (int64_t line = 0; ahead && line < 4 * (int64_t)sizeof(vec); line += 64)
            _mm_prefetch(p + i + ahead + line, _MM_HINT_T1);  // more fit on their way to L2 than to L1
        a ^= (lanes)load(p + i);
        b ^= (lanes)load(p + i + (int64_t)sizeof(vec));
        c ^= (lanes)load(p + i + 2 * (int64_t)sizeof(vec));
        d ^= (lanes)load(p + i + 3 * (int64_t)sizeof(vec));
    }
    a ^= b ^ c ^ d;
    return a[0] ^ a[1];
}

// Bytes a second of the best of three ways to read; each worker reads its own part of `nbytes`.
double read_rate(int threads, int64_t nbytes, bool huge) {
    char* p = (char*)mmap(nullptr, (size_t)nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return 0;
    madvise(p, (size_t)nbytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    memset(p, 1, (size_t)nbytes);
    const int64_t part = nbytes / threads / 4096 * 4096;
    double best = 1e9;
    for (int k = 0; k < 9; k++) {
        constexpr int64_t ahead[3] = {0, 2048, 8192};
        const double t = together(threads, [&](int i) { sink = read_all(p + i * part, part, ahead[k % 3]); });
        best = t < best ? t : best;
    }
    munmap(p, (size_t)nbytes);
    return double(part * threads) / best;
}

// Bytes copied a second: each is read once and written once, and counts once.
double copy_rate(int threads, int64_t nbytes) {
    std::vector<char> from((size_t)nbytes, 1), to((size_t)nbytes, 1);
    char *p = from.data(), *q = to.data();
    const int64_t part = nbytes / threads / 4096 * 4096;
    double best = 1e9;
    for (int k = 0; k < 9; k++) {
        const double t = together(threads, [&](int i) { memcpy(q + i * part, p + i * part, (size_t)part); });
        best = t < best ? t : best;
    }
    return double(part * threads) / best;
}

constexpr int CHAINS = 10;  // sums that do not wait for each other

// Operations a second of a loop whose body does `ops` of them in each of CHAINS registers.
template <class Body>
double arithmetic(int threads, int64_t rounds, double ops, Body body) {
    double best = 1e9;
    for (int k = 0; k < 3; k++) {
        const double t = together(threads, [&](int) { body(rounds); });
        best = t < best ? t : best;
    }
    return ops * CHAINS * double(rounds) * threads / best;
}

// Each sum is a variable of its own: the compiler keeps an array in memory, and its loop is half as fast.
template <class Vec, class Step>
inline void loop(int64_t n, Vec zero, Step step) {
    Vec s0 = zero, s1 = zero, s2 = zero, s3 = zero, s4 = zero, s5 = zero, s6 = zero, s7 = zero, s8 = zero, s9 = zero;
    for (int64_t i = 0; i < n; i++)
        step(s0), step(s1), step(s2), step(s3), step(s4), step(s5), step(s6), step(s7), step(s8), step(s9);
}

#if defined(__AVX512F__)
constexpr double F32_OPS = 2 * 16;
void f32_loop(int64_t n) {
    const __m512 a = _mm512_set1_ps(1.0f);
    loop(n, _mm512_setzero_ps(), [a](__m512& s) { asm volatile("vfmadd231ps %1, %1, %0" : "+v"(s) : "v"(a)); });
}
#elif defined(__AVX2__)
constexpr double F32_OPS = 2 * 8;
void f32_loop(int64_t n) {
    const __m256 a = _mm256_set1_ps(1.0f);
    loop(n, _mm256_setzero_ps(), [a](__m256& s) { asm volatile("vfmadd231ps %1, %1, %0" : "+x"(s) : "x"(a)); });
}
#else
constexpr double F32_OPS = 2 * 4;
void f32_loop(int64_t n) {
    const __m128 a = _mm_set1_ps(1.0f);
    loop(n, _mm_setzero_ps(), [a](__m128& s) {
        __m128 t = a;
        asm volatile("mulps %1, %0" : "+x"(t) : "x"(a));
        asm volatile("addps %1, %0" : "+x"(s) : "x"(t));
    });
}
#endif

#if defined(__AVX512VNNI__)
constexpr double INT8_OPS = 2 * 64;
void int8_loop(int64_t n) {
    const __m512i a = _mm512_set1_epi32(0x01010101);
    loop(n, _mm512_setzero_si512(), [a](__m512i& s) { asm volatile("vpdpbusd %1, %1, %0" : "+v"(s) : "v"(a)); });
}
#elif defined(__AVX2__)
constexpr double INT8_OPS = 2 * 32;
void int8_loop(int64_t n) {  // maddubs, madd, add: what AVX2 has for it
    const __m256i a = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(1);
    loop(n, _mm256_setzero_si256(), [a, ones](__m256i& s) {
        __m256i t;
        asm volatile("vpmaddubsw %1, %1, %0" : "=x"(t) : "x"(a));
        asm volatile("vpmaddwd %1, %0, %0" : "+x"(t) : "x"(ones));
        asm volatile("vpaddd %1, %0, %0" : "+x"(s) : "x"(t));
    });
}
#endif

#if defined(__AVX512BF16__)
constexpr double BF16_OPS = 2 * 32;
void bf16_loop(int64_t n) {
    const __m512i a = _mm512_set1_epi32(0x3f803f80);
    loop(n, _mm512_setzero_ps(), [a](__m512& s) { asm volatile("vdpbf16ps %1, %1, %0" : "+v"(s) : "v"(a)); });
}
#endif

void tell(const char* name, int threads, double value) { printf("%s %d %.6g\n", name, threads, value); }

}  // namespace

int main(int argc, char** argv) {
    const int most = argc > 1 ? atoi(argv[1]) : 1;
    const int64_t nbytes = argc > 2 ? atoll(argv[2]) : 512LL << 20;
    const int64_t rounds = argc > 3 ? atoll(argv[3]) : 20'000'000;
    for (int t = 1; t <= most; t++) {
        tell("read", t, read_rate(t, nbytes, false));
        tell("read_huge", t, read_rate(t, nbytes, true));
        tell("copy_16MiB", t, copy_rate(t, 16LL << 20));
        tell("f32", t, arithmetic(t, rounds, F32_OPS, f32_loop));
#if defined(__AVX512VNNI__) || defined(__AVX2__)
        tell("int8", t, arithmetic(t, rounds, INT8_OPS, int8_loop));
#endif
#if defined(__AVX512BF16__)
        tell("bf16", t, arithmetic(t, rounds, BF16_OPS, bf16_loop));
#endif
    }
    return 0;
}

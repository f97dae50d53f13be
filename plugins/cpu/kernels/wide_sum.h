// Sums in f64: vectors of f32 come in, the running totals are twice as wide.
#pragma once
#include "simd.h"

namespace jackfield {
namespace {

struct WideSum {
#if defined(__AVX512F__)
    __m512d low = {}, high = {};
    JF_INLINE void add(vf x) {
        low += _mm512_cvtps_pd(_mm512_castps512_ps256(x));
        high += _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    }
#elif defined(__AVX2__)
    __m256d low = {}, high = {};
    JF_INLINE void add(vf x) {
        low += _mm256_cvtps_pd(_mm256_castps256_ps128(x));
        high += _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    }
#elif defined(__ARM_NEON)
    typedef double vd __attribute__((vector_size(16)));
    vd low = {}, high = {};
    JF_INLINE void add(vf x) {
        low += (vd)vcvt_f64_f32(vget_low_f32(x));
        high += (vd)vcvt_high_f64_f32(x);
    }
#else
    __m128d low = {}, high = {};
    JF_INLINE void add(vf x) {
        low += _mm_cvtps_pd(x);
        high += _mm_cvtps_pd(_mm_movehl_ps(x, x));
    }
#endif
    JF_INLINE double total() const {
        double t[W / 2], all = 0;
        const auto both = low + high;
        memcpy(t, &both, sizeof t);
        for (double x : t) all += x;
        return all;
    }
};

// The sum of a dense line.
template <DType D>
JF_INLINE double wide_sum(const char* x, int64_t n) {
    WideSum a, b;
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W) {
        a.add(load<D>(x + i * bytes_of<D>));
        b.add(load<D>(x + (i + W) * bytes_of<D>));
    }
    for (; i + W <= n; i += W) a.add(load<D>(x + i * bytes_of<D>));
    if (i < n) b.add(load_part<D>(x + i * bytes_of<D>, n - i));
    a.low += b.low;
    a.high += b.high;
    return a.total();
}

}  // namespace
}  // namespace jackfield

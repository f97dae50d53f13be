// Vectors of f32 as wide as the level allows, loads and stores that convert, and the functions kernels share.
// One source for all levels: GCC's vector arithmetic, with intrinsics only where the language has no word for it.
// All is in an unnamed namespace: each kernel file has its own copy, compiled for its own level.
#pragma once
#include <stdint.h>
#include <string.h>
#if defined(__ARM_NEON)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

#include "jackfield/kernel.h"

#if !defined(__clang__)
// GCC 12 takes its own header's "undefined" vectors for a mistake of ours.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

namespace jackfield {
namespace {

#if defined(__AVX512F__)
typedef __m512 vf;
#elif defined(__AVX2__)
typedef __m256 vf;
#elif defined(__ARM_NEON)
typedef float vf __attribute__((vector_size(16)));
#else
typedef __m128 vf;
#endif
constexpr int W = sizeof(vf) / 4;
typedef int32_t vi __attribute__((vector_size(sizeof(vf))));
typedef uint16_t vh __attribute__((vector_size(sizeof(vf) / 2)));

JF_INLINE vf splat(float x) { return x - vf{}; }
JF_INLINE vi bits_of(vf x) { return (vi)x; }
JF_INLINE vf of_bits(vi x) { return (vf)x; }

// a*b + c; one rounding where the level has it
JF_INLINE vf fma(vf a, vf b, vf c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, c);
#elif defined(__ARM_NEON)
    return vfmaq_f32(c, a, b);
#else
    return a * b + c;
#endif
}

// The second operand where either is NaN: put the value that must survive second.
JF_INLINE vf max(vf a, vf b) {
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_max_ps(a, b);
#elif defined(__ARM_NEON)
    return a > b ? a : b;  // fmax would give NaN
#else
    return _mm_max_ps(a, b);
#endif
}
JF_INLINE vf min(vf a, vf b) {
#if defined(__AVX512F__)
    return _mm512_min_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_min_ps(a, b);
#elif defined(__ARM_NEON)
    return a < b ? a : b;
#else
    return _mm_min_ps(a, b);
#endif
}

JF_INLINE vf abs(vf x) { return of_bits(bits_of(x) & 0x7fffffff); }

// Toward zero; the caller keeps x within int32.
JF_INLINE vi truncate(vf x) {
#if defined(__AVX512F__)
    return (vi)_mm512_cvttps_epi32(x);
#elif defined(__AVX2__)
    return (vi)_mm256_cvttps_epi32(x);
#elif defined(__ARM_NEON)
    return (vi)vcvtq_s32_f32(x);
#else
    return (vi)_mm_cvttps_epi32(x);
#endif
}

JF_INLINE float sum(vf x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps(x);
#else
    float t[W];
    memcpy(t, &x, sizeof t);
    for (int half = W / 2; half; half /= 2)
        for (int i = 0; i < half; i++) t[i] += t[i + half];
    return t[0];
#endif
}

// The largest lane; NaN lanes may be lost.
JF_INLINE float largest(vf x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps(x);
#else
    float t[W];
    memcpy(t, &x, sizeof t);
    for (int half = W / 2; half; half /= 2)
        for (int i = 0; i < half; i++) t[i] = t[i] > t[i + half] ? t[i] : t[i + half];
    return t[0];
#endif
}

// Whether a lane has a bit set.
JF_INLINE bool any(vi x) {
#if defined(__AVX512F__)
    return _mm512_test_epi32_mask((__m512i)x, (__m512i)x) != 0;
#elif defined(__AVX2__)
    return !_mm256_testz_si256((__m256i)x, (__m256i)x);
#else
    uint64_t t[W / 2], all = 0;
    memcpy(t, &x, sizeof t);
    for (uint64_t part : t) all |= part;
    return all != 0;
#endif
}

// ---- elements -------------------------------------------------------------------------------------------------------

// f16 in the low 16 bits of each lane.
JF_INLINE vf widen_half(vi wide) {
    const vi rest = (wide & 0x7fff) << 13;
    // The exponent is 112 too small; the product also makes subnormal halves normal. Exponent 31 becomes 255.
    const vf value = of_bits(rest) * 0x1p112f;
    const vi special = (rest >= 0x0f800000) & 0x7f800000;
    return of_bits(bits_of(value) | special | (wide & 0x8000) << 16);
}

template <DType D>
constexpr int bytes_of = D == F32 ? 4 : 2;  // of the float types a vector is loaded from

template <DType D>
JF_INLINE vf load(const char* p) {
    if constexpr (D == F32) {
        vf x;
        memcpy(&x, p, sizeof x);
        return x;
    } else if constexpr (D == BF16) {
        vh h;
        memcpy(&h, p, sizeof h);
        return of_bits(__builtin_convertvector(h, vi) << 16);
    } else {
#if defined(__AVX512F__)
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p));
#elif defined(__AVX2__)
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p));
#elif defined(__ARM_NEON)
        return (vf)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8((const uint8_t*)p)));
#else
        vh h;
        memcpy(&h, p, sizeof h);
        return widen_half(__builtin_convertvector(h, vi));
#endif
    }
}

template <DType D>
JF_INLINE void store(char* p, vf x) {
    if constexpr (D == F32) {
        memcpy(p, &x, sizeof x);
    } else if constexpr (D == BF16) {
        const vi b = bits_of(x), even = b + 0x7fff + ((b >> 16) & 1), quiet = b | 0x400000;
        const vh h = __builtin_convertvector((vi)((x != x) ? quiet : even) >> 16, vh);
        memcpy(p, &h, sizeof h);
    } else {
#if defined(__AVX512F__)
        _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
        _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__ARM_NEON)
        vst1_u8((uint8_t*)p, vreinterpret_u8_f16(vcvt_f16_f32(x)));
#else
        const vi b = bits_of(x), a = b & 0x7fffffff;
        const vi normal = (a + (int32_t(0xc8000000) + 0xfff) + ((a >> 13) & 1)) >> 13;
        const vi small = bits_of(of_bits(a) + 0.5f) - 0x3f000000;  // the addition rounds to a multiple of 2^-24
        vi h = a < 0x38800000 ? small : normal;
        h = a >= 0x47800000 ? (a > 0x7f800000 ? vi{} + 0x7e00 : vi{} + 0x7c00) : h;
        const vh packed = __builtin_convertvector(h | ((b >> 16) & 0x8000), vh);
        memcpy(p, &packed, sizeof packed);
#endif
    }
}

// The first n < W elements; lanes beyond are 0 and nothing outside is touched.
template <DType D>
JF_INLINE vf load_part(const char* p, int64_t n) {
#if defined(__AVX512F__)
    if constexpr (D == F32) return _mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p);
    if constexpr (D == F16) return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(__mmask16((1u << n) - 1), p));
#endif
    char part[W * bytes_of<D>] = {};
    memcpy(part, p, size_t(n) * bytes_of<D>);
    return load<D>(part);
}
template <DType D>
JF_INLINE void store_part(char* p, vf x, int64_t n) {
#if defined(__AVX512F__)
    if constexpr (D == F32) return _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), x);
#endif
    char part[W * bytes_of<D>];
    store<D>(part, x);
    memcpy(p, part, size_t(n) * bytes_of<D>);
}

template <DType D>
JF_INLINE float load_one(const char* p) {
    if constexpr (D == F32) {
        float x;
        memcpy(&x, p, 4);
        return x;
    } else {
        return load_part<D>(p, 1)[0];
    }
}

// ---- functions ------------------------------------------------------------------------------------------------------

// e^x within 2 units of the last place; overflow is inf, -inf gives 0, NaN stays. Below `least` it is e^least: what is
// added to 1 need not go down to subnormal numbers, which take a CPU a hundred times as long.
JF_INLINE vf exp(vf x, float least = -104.0f) {
    x = min(splat(89.0f), x);
    x = max(splat(least), x);
    const vf n = (x * 1.44269504f + 12582912.0f) - 12582912.0f;  // nearest whole number
    vf r = fma(n, splat(-0.693145752f), x);                      // ln 2 in two parts, the first exact in n's range
    r = fma(n, splat(-1.42860677e-6f), r);
    vf p = fma(splat(1.98756911e-4f), r, splat(1.39819994e-3f));
    p = fma(p, r, splat(8.33345205e-3f));
    p = fma(p, r, splat(4.16657963e-2f));
    p = fma(p, r, splat(1.66666657e-1f));
    p = fma(p, r, splat(0.5f));
    p = fma(p * r, r, r + 1.0f);
#if defined(__AVX512F__)
    return _mm512_scalef_ps(p, n);
#else
    const vi whole = truncate(n), half = whole >> 1;  // two factors, for 2^128 and 2^-149 are no normal floats
    return p * of_bits((half + 127) << 23) * of_bits((whole - half + 127) << 23);
#endif
}

constexpr float BESIDE_ONE = -80.0f;

JF_INLINE vf sigmoid(vf x) { return 1.0f / (1.0f + exp(-x, BESIDE_ONE)); }

JF_INLINE vf silu(vf x) { return x / (1.0f + exp(-x, BESIDE_ONE)); }

// The tanh form, written by 0.5*(1 + tanh u) = 1/(1 + e^-2u).
JF_INLINE vf gelu(vf x) {
    const vf u = x * fma(x * x, splat(0.0356774081f * 2), splat(0.797884561f * 2));
    return x / (1.0f + exp(-u, BESIDE_ONE));
}

// By e^2x, and near 0 by an odd polynomial (Cephes, tanhf), because 1 - 2/(e^2x + 1) cancels there.
JF_INLINE vf tanh(vf x) {
    const vf z = x * x;
    vf p = fma(splat(-5.70498873e-3f), z, splat(2.06390888e-2f));
    p = fma(p, z, splat(-5.37397156e-2f));
    p = fma(p, z, splat(1.33314422e-1f));
    p = fma(p, z, splat(-3.33332819e-1f));
    const vf small = fma(p * z, x, x), wide = 1.0f - 2.0f / (exp(x + x, BESIDE_ONE) + 1.0f);
    return abs(x) < 0.625f ? small : wide;
}

// Abramowitz and Stegun 7.1.26: within 1.5e-7.
JF_INLINE vf erf(vf x) {
    const vf a = abs(x), t = 1.0f / fma(a, splat(0.3275911f), splat(1.0f));
    vf p = fma(splat(1.061405429f), t, splat(-1.453152027f));
    p = fma(p, t, splat(1.421413741f));
    p = fma(p, t, splat(-0.284496736f));
    p = fma(p, t, splat(0.254829592f));
    const vf e = 1.0f - p * t * exp(-a * a, BESIDE_ONE);
    return of_bits(bits_of(e) | (bits_of(x) & int32_t(0x80000000)));
}

// The sigmoid form.
JF_INLINE vf gelu_quick(vf x) { return x / (1.0f + exp(x * -1.702f, BESIDE_ONE)); }

JF_INLINE vf gelu_erf(vf x) { return 0.5f * x * (1.0f + erf(x * 0.707106781f)); }

}  // namespace
}  // namespace jackfield

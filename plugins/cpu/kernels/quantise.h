// Activations rounded to int8 for integer products, in the order the tiles read them. The integers are those of the
// core's quantise_q8_0 and quantise_q8_K, ties included; scales stay in f32.
//
// Rows of x that go through the tiles together are a panel of `width` rows. For each 32 columns (a unit) it holds
//   quants   32 bytes a row; or 64 (see `wide`)
//   scales   f32 a row
//   sums     a row: f32 scale * sum(q), or int32 -offset * sum(q) for weights stored with an offset;
//            for scales of 16 columns two int32 (one a half, each `width` long)
// A row that holds inf or NaN gets the scale NaN there, which makes its whole row of the product NaN.
#pragma once
#include "blocks.h"
#include "simd.h"

namespace jackfield { namespace {

// What the tiles of a weight dtype ask of x.
struct Activation {
    bool super;   // blocks of 256, halves to even (q8_K); else of 32, halves away from zero (q8_0)
    bool wide;    // quants as i16, of each four columns 0 2 1 3: for products of 16-bit pairs
    bool affine;  // sums in f32
    int offset, halves;

    constexpr int64_t quant_nbytes() const { return wide ? 64 : 32; }
    constexpr int64_t unit_nbytes() const { return quant_nbytes() + 4 + 4 * halves; }  // of one row
    constexpr int64_t row_nbytes(int64_t k) const { return k / 32 * unit_nbytes(); }
};

// The largest |x| of n (a multiple of 32) as bits: magnitudes order like integers, inf and NaN come out on top.
JF_INLINE int32_t magnitude(const float* x, int n) {
    vi top{};
    for (int i = 0; i < n; i += W) {
        const vi m = bits_of(load<F32>((const char*)(x + i))) & 0x7fffffff;
        top = m > top ? m : top;
    }
#if defined(__AVX512F__)
    return _mm512_reduce_max_epi32((__m512i)top);
#else
    int32_t t[W], most = 0;
    memcpy(t, &top, sizeof t);
    for (int i = 0; i < W; i++) most = t[i] > most ? t[i] : most;
    return most;
#endif
}

JF_INLINE vi nearest_even(vf x) {
#if defined(__AVX512F__)
    return (vi)_mm512_cvtps_epi32(x);
#elif defined(__AVX2__)
    return (vi)_mm256_cvtps_epi32(x);
#else
    return (vi)_mm_cvtps_epi32(x);
#endif
}

// Halves away from zero: the largest float below 0.5 moves every half, and nothing below it, over the edge.
JF_INLINE vi nearest_away(vf x) {
    const vi half = (bits_of(x) & int32_t(0x80000000)) | 0x3effffff;
    return truncate(x + of_bits(half));
}

template <bool SUPER> JF_INLINE vi round_lanes(const float* x, float f) {
    const vf y = load<F32>((const char*)x) * splat(f);
    return SUPER ? nearest_even(y) : nearest_away(y);
}

// Sixteen quants of x * f. They lie within -127..127, give or take a rounding that saturation takes back.
template <bool SUPER> JF_INLINE __m128i round_half(const float* x, float f) {
#if defined(__AVX512F__)
    return _mm512_cvtsepi32_epi8((__m512i)round_lanes<SUPER>(x, f));
#else
    __m128i words[4], pairs[2];
    for (int i = 0; i < 16; i += W) {
        const vi r = round_lanes<SUPER>(x + i, f);
        memcpy(words + i / 4, &r, sizeof r);
    }
    for (int i = 0; i < 2; i++) pairs[i] = _mm_packs_epi32(words[2 * i], words[2 * i + 1]);
    return _mm_packs_epi16(pairs[0], pairs[1]);
#endif
}

JF_INLINE int32_t sum_quants(__m128i q) {
    const __m128i s = _mm_sad_epu8(_mm_xor_si128(q, _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(s) + _mm_cvtsi128_si32(_mm_unpackhi_epi64(s, s)) - 16 * 128;
}

// Quants, scale and sums of a unit of row m.
JF_INLINE void store_unit(const Activation& a, const __m128i* q, float d, char* unit, int64_t width, int64_t m) {
    char* quants = unit + m * a.quant_nbytes();
    for (int half = 0; half < 2; half++) {
        if (a.wide) {
            const __m128i even = _mm_srai_epi16(_mm_slli_epi16(q[half], 8), 8), odd = _mm_srai_epi16(q[half], 8);
            _mm_storeu_si128((__m128i*)(quants + 32 * half), _mm_unpacklo_epi32(even, odd));
            _mm_storeu_si128((__m128i*)(quants + 32 * half + 16), _mm_unpackhi_epi32(even, odd));
        } else {
            _mm_storeu_si128((__m128i*)(quants + 16 * half), q[half]);
        }
    }
    const int32_t sums[2] = {sum_quants(q[0]), sum_quants(q[1])};
    char* scale = unit + width * a.quant_nbytes() + 4 * m;
    memcpy(scale, &d, 4);
    if (a.affine) {
        const float s = d * float(sums[0] + sums[1]);
        memcpy(scale + 4 * width, &s, 4);
    } else {
        const int32_t first = -a.offset * (a.halves == 2 ? sums[0] : sums[0] + sums[1]), second = -a.offset * sums[1];
        memcpy(scale + 4 * width, &first, 4);
        if (a.halves == 2) memcpy(scale + 8 * width, &second, 4);
    }
}

// One row x (k f32) becomes row m of a panel.
inline void quantise_row(const Activation& a, const float* x, int64_t k, char* panel, int64_t width, int64_t m) {
    const int block = a.super ? 256 : 32;
    const int64_t step = width * a.unit_nbytes();
    for (int64_t at = 0; at < k; at += block) {
        const int32_t top = magnitude(x + at, block);
        const bool finite = top < 0x7f800000;
        float f, d;
        if (a.super) {  // q8_K: the first element of largest magnitude becomes -127
            int i = 0;
            while (finite && float_of(uint32_t(top)) != __builtin_fabsf(x[at + i])) i++;
            f = -127 / x[at + i];
            d = 1 / f;
        } else {
            d = float_of(uint32_t(top)) / 127;
            f = 1 / d;
        }
        if (!(f - f == 0)) f = d = 0;  // a block of zeros, or so small that the inverse overflows
        if (!finite) {
            f = 0;
            d = __builtin_nanf("");
        }
        for (int u = 0; u < block; u += 32) {
            __m128i q[2] = {};
            for (int half = 0; finite && half < 2; half++) {
                const float* from = x + at + u + 16 * half;
                q[half] = a.super ? round_half<true>(from, f) : round_half<false>(from, f);
            }
            store_unit(a, q, d, panel + (at + u) / 32 * step, width, m);
        }
    }
}

}}  // namespace jackfield::(unnamed)

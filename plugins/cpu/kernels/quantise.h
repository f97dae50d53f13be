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

// W whole numbers of -128..127 as bytes.
JF_INLINE void store_bytes(int8_t* to, vi v) {
#if defined(__AVX512F__)
    _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8((__m512i)v));
#elif defined(__AVX2__)
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    _mm_storel_epi64((__m128i*)to, _mm_packs_epi16(words, words));
#else
    const __m128i words = _mm_packs_epi32((__m128i)v, (__m128i)v), bytes = _mm_packs_epi16(words, words);
    memcpy(to, &bytes, W);
#endif
}

JF_INLINE int32_t sum_lanes(vi v) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_epi32((__m512i)v);
#else
    int32_t t[W], total = 0;
    memcpy(t, &v, sizeof t);
    for (int i = 0; i < W; i++) total += t[i];
    return total;
#endif
}

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

// 32 quants and the sums of both halves.
template <bool SUPER> JF_INLINE void round_unit(const float* x, float f, int8_t* q, int32_t* sums) {
    for (int half = 0; half < 2; half++) {
        vi total{};
        for (int i = 16 * half; i < 16 * half + 16; i += W) {
            const vf y = load<F32>((const char*)(x + i)) * splat(f);
            vi r = SUPER ? nearest_even(y) : nearest_away(y);
            if (SUPER) r = r > 127 ? vi{} + 127 : r;
            total += r;
            store_bytes(q + i, r);
        }
        sums[half] = sum_lanes(total);
    }
}

JF_INLINE void store_unit(const Activation& a, const int8_t* q, float d, const int32_t* sums, char* unit, int64_t width,
                          int64_t m) {
    char* quants = unit + m * a.quant_nbytes();
    if (a.wide) {
        int16_t wide[32];
        for (int i = 0; i < 32; i += 4) {
            wide[i] = q[i];
            wide[i + 1] = q[i + 2];
            wide[i + 2] = q[i + 1];
            wide[i + 3] = q[i + 3];
        }
        memcpy(quants, wide, 64);
    } else {
        memcpy(quants, q, 32);
    }
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
            int8_t q[32] = {};
            int32_t sums[2] = {};
            if (finite) a.super ? round_unit<true>(x + at + u, f, q, sums) : round_unit<false>(x + at + u, f, q, sums);
            store_unit(a, q, d, sums, panel + (at + u) / 32 * step, width, m);
        }
    }
}

}}  // namespace jackfield::(unnamed)

// Activations rounded to int8 for integer products, in the order the tiles read them. The integers are those of the
// core's quantise_q8_0 and quantise_q8_K, ties included; scales stay in f32.
//
// Rows of x that go through the tiles together are a panel of `width` rows. For each 32 columns (a unit) it holds
//   quants   32 bytes a row; or 64 (see `wide`)
//   scales   f32 a row
//   sums     a row: f32 scale * sum(q), or int32 -offset * sum(q) for weights stored with an offset;
//            for scales of 16 columns two of them (one a half, each `width` long)
// A row that holds inf or NaN gets the scale NaN there, which makes its whole row of the product NaN.
#pragma once
#include "blocks.h"
#include "simd.h"
#if defined(__ARM_NEON)
#include "quantise_neon.h"
#endif

namespace jackfield {
namespace {

// What the tiles of a weight dtype ask of x.
struct Activation {
    bool super;   // blocks of 256, halves to even (q8_K); else of 32, halves away from zero (q8_0)
    bool wide;    // quants as i16, of each four columns 0 2 1 3: for products of 16-bit pairs
    bool affine;  // sums in f32
    int shift;    // the offset of the weights is 2^shift (0 where they have none)
    int halves;

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

#if !defined(__ARM_NEON)
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

template <bool SUPER>
JF_INLINE vi round_lanes(const float* x, float f) {
    const vf y = load<F32>((const char*)x) * splat(f);
    return SUPER ? nearest_even(y) : nearest_away(y);
}

// Sixteen quants of x * f. They lie within -127..127, give or take a rounding that saturation takes back.
template <bool SUPER>
JF_INLINE __m128i round_half(const float* x, float f) {
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

// The sum of sixteen quants, in lane 0.
JF_INLINE __m128i sum_quants(__m128i q) {
    const __m128i s = _mm_sad_epu8(_mm_xor_si128(q, _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_sub_epi32(_mm_add_epi32(s, _mm_unpackhi_epi64(s, s)), _mm_set1_epi32(16 * 128));
}

JF_INLINE void store_lane(char* to, __m128i v) { _mm_store_ss((float*)to, _mm_castsi128_ps(v)); }

// Quants, scale and sums of a unit of row m, for weights whose offset is 2^shift.
template <bool WIDE_QUANTS, bool AFFINE, int HALVES>
JF_INLINE void store_unit(__m128i low, __m128i high, float d, char* unit, int64_t width, int64_t m, int shift) {
    constexpr int quant_nbytes = WIDE_QUANTS ? 64 : 32;
    const __m128i q[2] = {low, high}, by = _mm_cvtsi32_si128(shift);
    char *quants = unit + m * quant_nbytes, *scale = unit + width * quant_nbytes + 4 * m;
    for (int half = 0; half < 2; half++) {
        if (WIDE_QUANTS) {
            const __m128i even = _mm_srai_epi16(_mm_slli_epi16(q[half], 8), 8), odd = _mm_srai_epi16(q[half], 8);
            _mm_storeu_si128((__m128i*)(quants + 32 * half), _mm_unpacklo_epi32(even, odd));
            _mm_storeu_si128((__m128i*)(quants + 32 * half + 16), _mm_unpackhi_epi32(even, odd));
        } else {
            _mm_storeu_si128((__m128i*)(quants + 16 * half), q[half]);
        }
    }
    memcpy(scale, &d, 4);
    __m128i sums[2] = {sum_quants(low), sum_quants(high)};
    if (HALVES == 1) sums[0] = _mm_add_epi32(sums[0], sums[1]);
    for (int half = 0; half < HALVES; half++) {
        char* to = scale + 4 * width * (half + 1);
        if (AFFINE)
            _mm_store_ss((float*)to, _mm_mul_ss(_mm_cvtepi32_ps(sums[half]), _mm_set_ss(d)));
        else
            store_lane(to, _mm_sub_epi32(_mm_setzero_si128(), _mm_sll_epi32(sums[half], by)));
    }
}
#endif

constexpr int64_t SCALED = 16;  // blocks whose scales are worked out side by side: divisions are slow one by one

// What `count` blocks are multiplied by before rounding, and their scales: both 0 for a block of zeros, or one so small
// that the inverse of its scale overflows; the scale NaN for a block that holds inf or NaN (its quants do not matter).
template <bool SUPER>
JF_INLINE void find_scales(const float* x, int64_t count, float* factors, float* scales) {
    constexpr int block = SUPER ? 256 : 32;
    alignas(64) float extremes[SCALED] = {};
    for (int64_t b = 0; b < count; b++) {
        const float* from = x + b * block;
        const uint32_t top = uint32_t(magnitude(from, block));
        int first = 0;  // q8_K: the first element of largest magnitude, with its sign
        while (SUPER && (bits_of_float(from[first]) & 0x7fffffff) != top) first++;
        extremes[b] = SUPER ? from[first] : float_of(top);
    }
    for (int64_t b = 0; b < SCALED; b += W) {
        const vf v = load<F32>((const char*)(extremes + b));
        const vf by = SUPER ? -127.0f / v : v / 127.0f, inverse = 1.0f / by;
        vf factor = SUPER ? by : inverse, scale = SUPER ? inverse : by;
        const vi alive = factor - factor == 0;
        factor = of_bits(bits_of(factor) & alive);
        scale = of_bits(bits_of(scale) & alive) + (v - v);
        store<F32>((char*)(factors + b), factor);
        store<F32>((char*)(scales + b), scale);
    }
}

// One row x (k f32) becomes row m of a panel.
template <bool SUPER, bool WIDE_QUANTS, bool AFFINE, int HALVES>
void quantise_row(const float* x, int64_t k, char* panel, int64_t width, int64_t m, int shift) {
    constexpr int64_t block = SUPER ? 256 : 32, most = SCALED * block;
    constexpr int64_t unit_nbytes = Activation{SUPER, WIDE_QUANTS, AFFINE, 0, HALVES}.unit_nbytes();
    for (int64_t at = 0; at < k; at += most) {
        const int64_t n = k - at < most ? k - at : most;
        alignas(64) float factors[SCALED], scales[SCALED];
        find_scales<SUPER>(x + at, n / block, factors, scales);
        for (int64_t u = 0; u < n; u += 32, panel += width * unit_nbytes) {
            const float *from = x + at + u, f = factors[u / block], d = scales[u / block];
            const auto low = round_half<SUPER>(from, f), high = round_half<SUPER>(from + 16, f);
            store_unit<WIDE_QUANTS, AFFINE, HALVES>(low, high, d, panel, width, m, shift);
        }
    }
}

}  // namespace
}  // namespace jackfield

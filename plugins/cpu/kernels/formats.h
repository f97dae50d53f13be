// How the tiles read packed weights of each block dtype: 32 columns of sixteen rows become eight vectors of unsigned
// bytes, four columns of a row in each lane, and the factors that go with them. See packing.h for the layout.
#pragma once
#include "packing.h"
#include "quantise.h"
#include "simd.h"

namespace jackfield {
namespace {

// How four unsigned bytes times four signed ones are summed into a lane.
enum Products { VNNI, PAIRS, WIDE };  // one instruction; 8-bit pairs to 16 bits; widened to 16 bits first

// Pairs saturate beyond 15 bits, so 8-bit weights are widened; without SSSE3 there are no pairs.
constexpr Products products_of(int bits) {
#if defined(__AVX512VNNI__)
    return bits > 0 ? VNNI : WIDE;
#elif defined(__AVX2__)
    return bits < 8 ? PAIRS : WIDE;
#else
    return bits > 0 ? WIDE : VNNI;
#endif
}

// Value = factor * (quant - OFFSET), or factor * quant + least for the affine ones.
template <int32_t D>
struct Format {
    static constexpr Fields fields = fields_of(D);
    static constexpr bool SUPER = is_super(D), AFFINE = D == Q4_1 || D == Q5_1 || D == Q4_K || D == Q5_K;
    static constexpr int BITS = D == Q8_0 ? 8 : D == Q6_K ? 6 : D == Q5_0 || D == Q5_1 || D == Q5_K ? 5 : 4;
    static constexpr int OFFSET = AFFINE ? 0 : 1 << (BITS - 1);
    static constexpr int HALVES = D == Q6_K ? 2 : 1;  // factors a unit
    static constexpr int UNITS = SUPER ? 8 : 1;       // of 32 columns in a block
    static constexpr Products PRODUCTS = products_of(BITS);
    static constexpr Activation activation{SUPER, PRODUCTS == WIDE, AFFINE, OFFSET, HALVES};
};

JF_INLINE vi bytes_at(const uint8_t* p) {
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}
JF_INLINE vi every_byte(int b) { return vi{} + b * 0x01010101; }

// W bytes, each widened to a lane. (GCC 12 makes scalar code of the vector conversion.)
JF_INLINE vi unsigned_lanes(const uint8_t* p) {
#if defined(__AVX512F__)
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
    return vi{p[0], p[1], p[2], p[3]};
#endif
}
JF_INLINE vi signed_lanes(const uint8_t* p) {
    const vi wide = unsigned_lanes(p);
    return (wide ^ 128) - 128;
}
JF_INLINE vf to_float(vi v) { return __builtin_convertvector(v, vf); }

// Quants of unit `u` of a block for the W rows from row `row`: w[j] holds columns 4j..4j+3.
template <int32_t D>
JF_INLINE void load_quants(const uint8_t* q, int u, int row, vi* w) {
    q += 4 * row;
    if constexpr (D == Q8_0) {
        for (int j = 0; j < 8; j++) w[j] = bytes_at(q + 64 * j);
    } else if constexpr (!is_super(D)) {
        constexpr bool fifth = D == Q5_0 || D == Q5_1;
        const uint8_t* nibbles = fifth ? q + 64 : q;
        for (int j = 0; j < 4; j++) {
            const vi v = bytes_at(nibbles + 64 * j);
            w[j] = v & every_byte(15);
            w[j + 4] = (v >> 4) & every_byte(15);
        }
        if constexpr (fifth) {
            const vi bits = bytes_at(q);  // bit j of a byte belongs to w[j]
            for (int j = 0; j < 4; j++) {
                w[j] |= (bits << (4 - j)) & every_byte(16);
                w[j + 4] |= (bits >> j) & every_byte(16);
            }
        }
    } else if constexpr (D == Q6_K) {
        const int n = u / 4, quarter = u % 4;
        const uint8_t *low = q + 64 * (16 * n + 8 * (quarter & 1)), *high = q + 2048 + 64 * 8 * n;
        for (int j = 0; j < 8; j++) {
            const vi v = bytes_at(low + 64 * j) >> (quarter & 2 ? 4 : 0), h = bytes_at(high + 64 * j) >> 2 * quarter;
            w[j] = (v & every_byte(15)) | ((h << 4) & every_byte(48));
        }
    } else {
        const uint8_t* nibbles = (D == Q5_K ? q + 512 : q) + 512 * (u / 2);
        for (int j = 0; j < 8; j++) {
            w[j] = (bytes_at(nibbles + 64 * j) >> 4 * (u & 1)) & every_byte(15);
            if constexpr (D == Q5_K) w[j] |= ((bytes_at(q + 64 * j) >> u) << 4) & every_byte(16);
        }
    }
}

// Factors of unit `u` (one, or one a half) and what is added for each column.
template <int32_t D>
JF_INLINE void load_factors(const uint8_t* s, int u, int row, vf* factor, vf& least) {
    factor[0] = load<F16>((const char*)s + 2 * row);
    if constexpr (D == Q4_1 || D == Q5_1) least = load<F16>((const char*)s + 32 + 2 * row);
    if constexpr (D == Q6_K) {
        factor[1] = factor[0] * to_float(signed_lanes(s + 32 + 32 * u + 16 + row));
        factor[0] *= to_float(signed_lanes(s + 32 + 32 * u + row));
    }
    if constexpr (D == Q4_K || D == Q5_K) {
        const vi low = unsigned_lanes(s + 64 + 16 * u + row);
        const vi high = unsigned_lanes(s + 64 + 128 + 16 * (u % 4) + row) >> 4 * (u / 4);
        factor[0] *= to_float((low & 15) | (high & 3) << 4);
        least = load<F16>((const char*)s + 32 + 2 * row) * to_float(vi{} - (low >> 4 | (high & 12) << 2));
    }
}

}  // namespace
}  // namespace jackfield

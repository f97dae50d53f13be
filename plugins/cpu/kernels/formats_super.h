// Formats of the types with 256 columns and coded scales: the K types and iq4_xs.
#pragma once
#include "formats.h"

namespace jackfield {
namespace {

// Coded scales of the K types of 16 columns, as 32-bit lanes: byte 2u or 2u + 1 of words from `first` on.
JF_INLINE vi coded(const uint8_t* q, int first, int byte, int row) {
    return (word(q, first + byte / 4, row) >> 8 * (byte % 4)) & 255;
}

template <>
struct Format<Q2_K> : Form<Q2_K, 2, AFFINE, 2> {
    JF_INLINE static void quants(const uint8_t* q, int u, int row, vi* w) {
        for (int j = 0; j < 8; j++) w[j] = two_bits(q + 4 * 64, u, j, row);
    }
    JF_INLINE static void factors(const uint8_t* s, const uint8_t* q, int u, int row, vf* factor, vf* least) {
        const vf d = halves_at(s, row), dmin = halves_at(s + 32, row);
        for (int half = 0; half < 2; half++) {
            const vi code = coded(q, 0, 2 * u + half, row);
            factor[half] = d * to_float(code & 15);
            least[half] = dmin * to_float(vi{} - (code >> 4));
        }
    }
};

template <>
struct Format<Q3_K> : Form<Q3_K, 3, 2, 2> {
    JF_INLINE static void quants(const uint8_t* q, int u, int row, vi* w) {
        for (int j = 0; j < 8; j++)
            w[j] = two_bits(q + 8 * 64, u, j, row) | (((word(q, j, row) >> u) & every_byte(1)) << 2);
    }
    // Six bits: a nibble of bytes 0..7 (low ones first), two bits of bytes 8..11.
    JF_INLINE static void factors(const uint8_t* s, const uint8_t* q, int u, int row, vf* factor, vf*) {
        const vf d = halves_at(s, row);
        for (int half = 0; half < 2; half++) {
            const int k = 2 * u + half;
            const vi low = coded(q, 24, k % 8, row) >> k / 8 * 4, high = coded(q, 26, k % 4, row) >> k / 4 * 2;
            factor[half] = d * to_float(((low & 15) | (high & 3) << 4) - 32);
        }
    }
};

// Of unit u: lower four bits of scale and minimum, and the upper two of both of this and of its neighbour.
JF_INLINE void six_bit_scales(const uint8_t* s, const uint8_t* lower, const uint8_t* upper, int u, int row, vf* factor,
                              vf* least) {
    const vi low = unsigned_lanes(lower + row), high = unsigned_lanes(upper + row) >> 4 * (u & 1);
    factor[0] = halves_at(s, row) * to_float((low & 15) | (high & 3) << 4);
    least[0] = halves_at(s + 32, row) * to_float(vi{} - (low >> 4 | (high & 12) << 2));
}

template <>
struct Format<Q4_K> : Form<Q4_K, 4, AFFINE> {
    static constexpr int ALIKE = 2;  // three bytes of coded scales and eight words for two units

    JF_INLINE static const uint8_t* pair(const uint8_t* q, int u) { return q + u / 2 * 35 * GROUP; }
    JF_INLINE static void quants(const uint8_t* q, int u, int row, vi* w) {
        for (int j = 0; j < 8; j++) w[j] = (word(pair(q, u) + 3 * GROUP, j, row) >> 4 * (u & 1)) & every_byte(15);
    }
    JF_INLINE static void factors(const uint8_t* s, const uint8_t* q, int u, int row, vf* factor, vf* least) {
        const uint8_t* const codes = pair(q, u);
        six_bit_scales(s, codes + GROUP * (u & 1), codes + 2 * GROUP, u, row, factor, least);
    }
};

template <>
struct Format<Q5_K> : Form<Q5_K, 5, AFFINE> {
    JF_INLINE static void quants(const uint8_t* q, int u, int row, vi* w) {
        for (int j = 0; j < 8; j++) {
            const vi four = (word(q + 8 * 64, u / 2 * 8 + j, row) >> 4 * (u & 1)) & every_byte(15);
            w[j] = four | (((word(q, j, row) >> u) << 4) & every_byte(16));
        }
    }
    JF_INLINE static void factors(const uint8_t* s, const uint8_t*, int u, int row, vf* factor, vf* least) {
        six_bit_scales(s, s + 64 + GROUP * u, s + 64 + 128 + GROUP * (u / 2), u, row, factor, least);
    }
};

template <>
struct Format<Q6_K> : Form<Q6_K, 6, 5, 2> {
    static constexpr int ALIKE = 1;  // two scales of 16 columns and six words for each unit

    JF_INLINE static const uint8_t* unit(const uint8_t* q, int u) { return q + u * 26 * GROUP; }
    JF_INLINE static void quants(const uint8_t* q, int u, int row, vi* w) {
        const uint8_t* const words = unit(q, u) + 2 * GROUP;
        for (int j = 0; j < 8; j++) {
            const vi low = word(words, j % 4, row) >> j / 4 * 4, high = word(words, 4 + j % 2, row) >> j / 2 * 2;
            w[j] = (low & every_byte(15)) | ((high << 4) & every_byte(48));
        }
    }
    JF_INLINE static void factors(const uint8_t* s, const uint8_t* q, int u, int row, vf* factor, vf*) {
        const vf d = halves_at(s, row);
        for (int half = 0; half < 2; half++) factor[half] = d * to_float(signed_lanes(unit(q, u) + GROUP * half + row));
    }
};

template <>
struct Format<IQ4_XS> : Form<IQ4_XS, 8, 7> {
    JF_INLINE static void quants(const uint8_t* q, int u, int row, vi* w) {
        Format<IQ4_NL>::quants(q + 4 * 64 * u, 0, row, w);
    }
    JF_INLINE static void factors(const uint8_t* s, const uint8_t*, int u, int row, vf* factor, vf*) {
        const vi high = unsigned_lanes(s + 32 + 16 * (u / 4) + row) >> 2 * (u % 4);
        const vi low = unsigned_lanes(s + 64 + 16 * (u / 2) + row) >> 4 * (u % 2);
        factor[0] = halves_at(s, row) * to_float(((low & 15) | (high & 3) << 4) - 32);
    }
};

}  // namespace
}  // namespace jackfield

// Formats of the types whose columns are rows of a codebook: eight columns by an index (iq1, iq2), or four (iq3).
#pragma once
#include "formats.h"

namespace jackfield {
namespace {

// 32 bits of each lane's row of a table with rows of SIZE bytes.
template <int SIZE>
JF_INLINE vi gather(const void* table, vi index) {
#if defined(__AVX512F__)
    return (vi)_mm512_i32gather_epi32((__m512i)index, table, SIZE);
#elif defined(__AVX2__)
    return (vi)_mm256_i32gather_epi32((const int*)table, (__m256i)index, SIZE);
#else
    int32_t at[4], found[4];
    memcpy(at, &index, 16);
    for (int i = 0; i < 4; i++) memcpy(found + i, (const char*)table + int64_t(at[i]) * SIZE, 4);
    return bytes_at((const uint8_t*)found);
#endif
}

// Rows of eight bytes: columns 0..3 to w[0], 4..7 to w[1].
JF_INLINE void gather_rows(const uint64_t* table, vi index, vi* w) {
#if defined(__AVX512F__)
    const __m512i half = (__m512i)index;  // whole rows: half as many loads as two gathers of four bytes
    const __m512i low = _mm512_i32gather_epi64(_mm512_castsi512_si256(half), table, 8);
    const __m512i high = _mm512_i32gather_epi64(_mm512_extracti64x4_epi64(half, 1), table, 8);
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    w[0] = (vi)_mm512_permutex2var_epi32(low, even, high);
    w[1] = (vi)_mm512_permutex2var_epi32(low, _mm512_add_epi32(even, _mm512_set1_epi32(1)), high);
#else
    w[0] = gather<8>(table, index);
    w[1] = gather<8>((const char*)table + 4, index);
#endif
}

// Byte masks from the low four bits of a lane (further bits are ignored).
JF_INLINE vi sign_masks(vi bits) {
#if defined(__AVX512F__)
    const __m512i table = _mm512_setr_epi32(0, 0xff, 0xff00, 0xffff, 0xff0000, 0xff00ff, 0xffff00, 0xffffff, 0xff000000,
                                            0xff0000ff, 0xff00ff00, 0xff00ffff, 0xffff0000, 0xffff00ff, 0xffffff00, -1);
    return (vi)_mm512_permutexvar_epi32((__m512i)bits, table);
#else
    const vi one = ((bits & 15) * 0x00204081) & every_byte(1);  // bit j to byte j
    return (one << 8) - one;
#endif
}

// 64 plus or minus each byte, which is below 64; `by` 16: plus or minus bytes below 16. Sums of bytes that end in
// 0..255 are right as sums of words, whatever is borrowed on the way.
JF_INLINE vi with_signs(vi bytes, vi bits, int by) {
    const vi mask = sign_masks(bits);
    return (bytes ^ mask) - mask + every_byte(by);
}
// The two words of eight columns; bit j of `signs` is the sign of column j.
JF_INLINE void give_signs(vi signs, int by, vi* w) {
    w[0] = with_signs(w[0], signs, by);
    w[1] = with_signs(w[1], signs >> 4, by);
}

// Bit i of a lane becomes the parity of its bits i..i+6.
JF_INLINE vi parities_of_7(vi v) {
    const vi two = v ^ v >> 1;
    return two ^ two >> 2 ^ two >> 4 ^ v >> 6;
}
// Sign bytes from codes of seven bits at bit `at`: the eighth makes the number of set bits even.
JF_INLINE vi even_signs(vi codes, vi parities, int at) { return ((codes >> at) & 127) | ((parities >> at) & 1) << 7; }

JF_INLINE vi odd(vi n) { return n + n + 1; }

// ---- iq2: rows of eight, 8, 25 or 43
// ---------------------------------------------------------------------------------

template <>
struct Format<IQ2_XXS> : Form<IQ2_XXS, 7, 6, 1, STAGED> {
    JF_INLINE static void quants(const uint8_t* q, int u, int row, vi* w) {
        const vi indices = word(q, 2 * u, row), codes = word(q, 2 * u + 1, row), parities = parities_of_7(codes);
        for (int o = 0; o < 4; o++) {
            gather_rows(codebook::IQ2_XXS_ROWS, (indices >> 8 * o) & 255, w + 2 * o);
            give_signs(even_signs(codes, parities, 7 * o), 64, w + 2 * o);
        }
    }
    JF_INLINE static void factors(const uint8_t* s, const uint8_t* q, int u, int row, vf* factor, vf*) {
        factor[0] = halves_at(s, row) * 0.125f * to_float(odd((word(q, 2 * u + 1, row) >> 28) & 15));
    }
};

// Factors of 16 columns from the nibbles of byte u of the words from FIRST on.
template <int FIRST>
struct NibbleFactors {
    JF_INLINE static void factors(const uint8_t* s, const uint8_t* q, int u, int row, vf* factor, vf*) {
        const vf d = halves_at(s, row) * 0.125f;
        const vi code = word(q, FIRST + u / 4, row) >> 8 * (u % 4);
        factor[0] = d * to_float(odd(code & 15));
        factor[1] = d * to_float(odd((code >> 4) & 15));
    }
};

template <>
struct Format<IQ2_XS> : Form<IQ2_XS, 7, 6, 2, STAGED>, NibbleFactors<16> {
    JF_INLINE static void quants(const uint8_t* q, int u, int row, vi* w) {
        for (int o = 0; o < 4; o++) {  // an index of nine bits, a code of seven
            const vi both = word(q, 2 * u + o / 2, row), parities = parities_of_7(both);
            gather_rows(codebook::IQ2_XS_ROWS, (both >> 16 * (o % 2)) & 511, w + 2 * o);
            give_signs(even_signs(both, parities, 16 * (o % 2) + 9), 64, w + 2 * o);
        }
    }
};

template <>
struct Format<IQ2_S> : Form<IQ2_S, 7, 6, 2, STAGED>, NibbleFactors<18> {
    JF_INLINE static void quants(const uint8_t* q, int u, int row, vi* w) {
        const vi low = word(q, u, row), signs = word(q, 8 + u, row), high = word(q, 16 + u / 4, row) >> 8 * (u % 4);
        for (int o = 0; o < 4; o++) {
            gather_rows(codebook::IQ2_S_ROWS, ((low >> 8 * o) & 255) | ((high >> 2 * o) & 3) << 8, w + 2 * o);
            give_signs(signs >> 8 * o, 64, w + 2 * o);
        }
    }
};

// ---- iq3: rows of four
// ------------------------------------------------------------------------------------------------

template <>
struct Format<IQ3_XXS> : Form<IQ3_XXS, 7, 6, 1, STAGED> {
    JF_INLINE static void quants(const uint8_t* q, int u, int row, vi* w) {
        const vi codes = word(q, 16 + u, row), parities = parities_of_7(codes);
        for (int j = 0; j < 8; j++)
            w[j] = gather<4>(codebook::IQ3_XXS_ROWS, (word(q, 2 * u + j / 4, row) >> 8 * (j % 4)) & 255);
        for (int o = 0; o < 4; o++) give_signs(even_signs(codes, parities, 7 * o), 64, w + 2 * o);
    }
    JF_INLINE static void factors(const uint8_t* s, const uint8_t* q, int u, int row, vf* factor, vf*) {
        factor[0] = halves_at(s, row) * 0.25f * to_float(odd((word(q, 16 + u, row) >> 28) & 15));
    }
};

template <>
struct Format<IQ3_S> : Form<IQ3_S, 5, 4, 1, STAGED> {
    JF_INLINE static void quants(const uint8_t* q, int u, int row, vi* w) {
        const vi high = word(q, 16 + u / 4, row) >> 8 * (u % 4), signs = word(q, 18 + u, row);
        for (int j = 0; j < 8; j++) {
            const vi low = (word(q, 2 * u + j / 4, row) >> 8 * (j % 4)) & 255;
            w[j] = gather<4>(codebook::IQ3_S_ROWS, low | ((high >> j) & 1) << 8);
        }
        for (int o = 0; o < 4; o++) give_signs(signs >> 8 * o, 16, w + 2 * o);
    }
    JF_INLINE static void factors(const uint8_t* s, const uint8_t* q, int u, int row, vf* factor, vf*) {
        factor[0] = halves_at(s, row) * to_float(odd((word(q, 26, row) >> 4 * u) & 15));
    }
};

// ---- iq1: rows of eight, -1, 0 or 1, and a shift of 1/8 up or down --------------------------------------------------

// 16 + 8 G + 1, or - 1 where `down` is 1. The bytes 8 G are taken with the top bit flipped: none is borrowed from.
JF_INLINE void shifted_rows(vi index, vi down, vi* w) {
    gather_rows(codebook::IQ1_ROWS, index, w);
    const vi by = every_byte(128 - 17) + (down & 1) * 0x02020202;
    for (int i = 0; i < 2; i++) w[i] = (((w[i] << 3) & every_byte(0xf8)) ^ every_byte(0x80)) - by;
}

template <>
struct Format<IQ1_S> : Form<IQ1_S, 5, 4, 1, STAGED> {
    JF_INLINE static vi high(const uint8_t* q, int u, int row) { return word(q, 8 + u / 2, row) >> 16 * (u % 2); }
    JF_INLINE static void quants(const uint8_t* q, int u, int row, vi* w) {
        const vi low = word(q, u, row), h = high(q, u, row);
        for (int o = 0; o < 4; o++) shifted_rows(((low >> 8 * o) & 255) | ((h >> 3 * o) & 7) << 8, h >> 15, w + 2 * o);
    }
    JF_INLINE static void factors(const uint8_t* s, const uint8_t* q, int u, int row, vf* factor, vf*) {
        factor[0] = halves_at(s, row) * 0.125f * to_float(odd((high(q, u, row) >> 12) & 7));
    }
};

template <>
struct Format<IQ1_M> : Form<IQ1_M, 5, 4, 2, STAGED> {
    JF_INLINE static void quants(const uint8_t* q, int u, int row, vi* w) {
        const vi low = word(q, u, row), high = word(q, 8 + u / 2, row) >> 16 * (u % 2);
        for (int o = 0; o < 4; o++) {
            const vi h = high >> 4 * o;
            shifted_rows(((low >> 8 * o) & 255) | (h & 7) << 8, h >> 3, w + 2 * o);
        }
    }
    // The bits of d are the upper four of the four words of scales.
    JF_INLINE static void factors(const uint8_t*, const uint8_t* q, int u, int row, vf* factor, vf*) {
        const vi first = word(q, 12, row), last = word(q, 13, row);
        const vi bits = ((first >> 12) & 15) | ((first >> 24) & 0xf0) | ((last >> 4) & 0xf00) | ((last >> 16) & 0xf000);
        const vf d = widen_half(bits) * 0.125f;
        const vi code = (u < 4 ? first : last) >> (16 * (u / 2 % 2) + 6 * (u % 2));
        factor[0] = d * to_float(odd(code & 7));
        factor[1] = d * to_float(odd((code >> 3) & 7));
    }
};

}  // namespace
}  // namespace jackfield

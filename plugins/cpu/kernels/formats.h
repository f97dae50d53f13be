// How the tiles read packed weights of each block dtype: 32 columns of sixteen rows (a unit) become eight vectors of
// unsigned bytes, four columns of a row in each lane, and the factors that go with them. See packing.h for the layout.
// Here: what all have in common, and the types without coded scales. formats_super.h and formats_codebook.h: the
// others.
#pragma once
#include "jackfield/codebooks.h"
#include "packing.h"
#include "quantise.h"
#include "simd.h"

#if defined(__AVX512F__)
#define JF_WIDE(name, ...) (vi) _mm512_##name(__VA_ARGS__)
#elif defined(__AVX2__)
#define JF_WIDE(name, ...) (vi) _mm256_##name(__VA_ARGS__)
#elif !defined(__ARM_NEON)
#define JF_WIDE(name, ...) (vi) _mm_##name(__VA_ARGS__)
#endif

namespace jackfield {
namespace {

#if defined(__AVX512F__)
typedef __m512i vraw;
#elif defined(__AVX2__)
typedef __m256i vraw;
#elif !defined(__ARM_NEON)
typedef __m128i vraw;
#endif

// How four unsigned bytes times four signed ones are summed into a lane.
enum Products {
    VNNI,    // by one instruction (on aarch64: i8mm)
    PAIRS,   // 8-bit pairs to 16 bits
    WIDE,    // widened to 16 bits first
    SIGNED,  // by one instruction for signed bytes: those of 8-bit weights are made signed first
    LONG,    // signed bytes one by one to 16 bits
};

// Pairs saturate beyond 15 bits, so 8-bit weights are widened; without SSSE3 there are no pairs.
constexpr Products products_of(int bits) {
#if defined(__AVX512VNNI__) || defined(__ARM_FEATURE_MATMUL_INT8)
    return bits > 0 ? VNNI : WIDE;
#elif defined(__ARM_FEATURE_DOTPROD)
    return bits > 0 ? SIGNED : LONG;
#elif defined(__ARM_NEON)
    return bits > 0 ? LONG : SIGNED;
#elif defined(__AVX2__)
    return bits < 8 ? PAIRS : WIDE;
#else
    return bits > 0 ? WIDE : VNNI;
#endif
}

// A type is DIRECT if tiles have code of their own for it. Blocks of STAGED ones, less common or slow to decode, are
// decoded to memory first and multiplied by tiles that all of them share.
enum Way { DIRECT, STAGED };

// A value is factor * (quant - 2^OFFSET), or factor * quant + minimum where OFFSET is AFFINE.
enum Offset { AFFINE = -1 };

template <int32_t D, int BITS_, int OFFSET_, int HALVES_ = 1, Way WAY_ = DIRECT>
struct Form {
    static constexpr Fields fields = fields_of(D);
    static constexpr Way WAY = WAY_;
    static constexpr bool IS_AFFINE = OFFSET_ == AFFINE;
    static constexpr int BITS = WAY_ == STAGED ? 7 : BITS_;  // quants are below 2^BITS
    static constexpr int HALVES = HALVES_;                   // factors a unit
    static constexpr int UNITS = int(block_length(D) / 32);  // of a block
    static constexpr int ALIKE = UNITS;                      // so many lie together, behind others of the same form
    static constexpr Products PRODUCTS = products_of(BITS);
    static constexpr Activation activation{is_super(D), PRODUCTS == WIDE, IS_AFFINE, IS_AFFINE ? 0 : OFFSET_, HALVES};
};

// Of each weight dtype a Form with two functions, for the W rows from row `row`:
//   quants(q, u, row, w)                      unit u of a block: w[j] = columns 4j..4j+3
//   factors(s, q, u, row, factor, least)      its factors, and what is added for each column (affine types)
// s and q point at the block in the scales and the quants of its group.
template <int32_t D>
struct Format;

JF_INLINE vi bytes_at(const uint8_t* p) {
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}
// Word `i` of a block's quants.
JF_INLINE vi word(const uint8_t* q, int i, int row) { return bytes_at(q + 4 * (GROUP * i + row)); }
JF_INLINE vi every_byte(int b) { return vi{} + b * 0x01010101; }

// W bytes, each widened to a lane. (GCC 12 makes scalar code of the vector conversion.)
JF_INLINE vi unsigned_lanes(const uint8_t* p) {
#if defined(__AVX512F__)
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
#elif defined(__ARM_NEON)
    uint32_t four;
    memcpy(&four, p, 4);
    return (vi)vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four))));
#else
    return vi{p[0], p[1], p[2], p[3]};
#endif
}
JF_INLINE vi signed_lanes(const uint8_t* p) {
#if defined(__AVX512F__)
    return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
    return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p));
#elif defined(__ARM_NEON)
    uint32_t four;
    memcpy(&four, p, 4);
    return vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four))));
#else
    const int8_t* const q = (const int8_t*)p;
    return vi{q[0], q[1], q[2], q[3]};
#endif
}
JF_INLINE vf to_float(vi v) { return __builtin_convertvector(v, vf); }
JF_INLINE vf halves_at(const uint8_t* s, int row) { return load<F16>((const char*)s + 2 * row); }

// Sixteen bytes that nibbles stand for.
struct Table {
    uint8_t byte[16];
};
constexpr Table raised(const int8_t (&values)[16], int by) {
    Table table{};
    for (int i = 0; i < 16; i++) table.byte[i] = uint8_t(values[i] + by);
    return table;
}
JF_INLINE vi look_up(const Table& table, vi nibbles) {
#if defined(__AVX512F__)
    const __m128i t = _mm_loadu_si128((const __m128i*)table.byte);
    return (vi)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), (vraw)nibbles);
#elif defined(__AVX2__)
    const __m128i t = _mm_loadu_si128((const __m128i*)table.byte);
    return (vi)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), (vraw)nibbles);
#elif defined(__ARM_NEON)
    return (vi)vqtbl1q_u8(vld1q_u8(table.byte), (uint8x16_t)nibbles);
#else
    uint8_t bytes[16];
    memcpy(bytes, &nibbles, 16);
    for (int i = 0; i < 16; i++) bytes[i] = table.byte[bytes[i]];
    return bytes_at(bytes);
#endif
}

// Low nibbles of four words, then their high ones.
JF_INLINE void nibbles(const uint8_t* q, int row, vi* w) {
    for (int j = 0; j < 4; j++) {
        const vi v = word(q, j, row);
        w[j] = v & every_byte(15);
#if defined(__ARM_NEON)
        w[j + 4] = (vi)vshrq_n_u8((uint8x16_t)v, 4);
#else
        w[j + 4] = (v >> 4) & every_byte(15);
#endif
    }
}

// ---- types of 32 columns --------------------------------------------------------------------------------------------

struct OneScale {
    JF_INLINE static void factors(const uint8_t* s, const uint8_t*, int, int row, vf* factor, vf*) {
        factor[0] = halves_at(s, row);
    }
};
struct ScaleAndMinimum {
    JF_INLINE static void factors(const uint8_t* s, const uint8_t*, int, int row, vf* factor, vf* least) {
        factor[0] = halves_at(s, row);
        least[0] = halves_at(s + 32, row);
    }
};
struct Nibbles {
    JF_INLINE static void quants(const uint8_t* q, int, int row, vi* w) { nibbles(q, row, w); }
};
struct NibblesAndFifth {
    JF_INLINE static void quants(const uint8_t* q, int, int row, vi* w) {
        nibbles(q + 64, row, w);
        const vi bits = word(q, 0, row);  // bit j of a byte belongs to w[j]
        for (int j = 0; j < 4; j++) {
            w[j] |= (bits << (4 - j)) & every_byte(16);
            w[j + 4] |= (bits >> j) & every_byte(16);
        }
    }
};
struct Bytes {
    JF_INLINE static void quants(const uint8_t* q, int, int row, vi* w) {
        for (int j = 0; j < 8; j++) w[j] = word(q, j, row);
    }
};

template <>
struct Format<Q4_0> : Form<Q4_0, 4, 3>, Nibbles, OneScale {};
template <>
struct Format<Q4_1> : Form<Q4_1, 4, AFFINE>, Nibbles, ScaleAndMinimum {};
template <>
struct Format<Q5_0> : Form<Q5_0, 5, 4>, NibblesAndFifth, OneScale {};
template <>
struct Format<Q5_1> : Form<Q5_1, 5, AFFINE>, NibblesAndFifth, ScaleAndMinimum {};
template <>
struct Format<Q8_0> : Form<Q8_0, 8, 7>, Bytes, OneScale {};

constexpr Table IQ4_BYTES = raised(codebook::IQ4_VALUES, 128), E2M1_BYTES = raised(codebook::E2M1_VALUES, 16);

template <>
struct Format<IQ4_NL> : Form<IQ4_NL, 8, 7>, OneScale {
    JF_INLINE static void quants(const uint8_t* q, int, int row, vi* w) {
        nibbles(q, row, w);
        for (int j = 0; j < 8; j++) w[j] = look_up(IQ4_BYTES, w[j]);
    }
};

template <>
struct Format<MXFP4> : Form<MXFP4, 5, 4> {
    JF_INLINE static void quants(const uint8_t* q, int, int row, vi* w) {
        nibbles(q, row, w);
        for (int j = 0; j < 8; j++) w[j] = look_up(E2M1_BYTES, w[j]);
    }
    JF_INLINE static void factors(const uint8_t* s, const uint8_t*, int, int row, vf* factor, vf*) {
        const vi e = unsigned_lanes(s + row), small = (vi{} + 0x200000) << (e & 1);  // 2^-128 and 2^-127: subnormal
        factor[0] = of_bits(e < 2 ? small : (e - 1) << 23);
    }
};

// ---- types of more columns and one scale ----------------------------------------------------------------------------

template <>
struct Format<Q1_0> : Form<Q1_0, 2, 0, 1, STAGED>, OneScale {
    JF_INLINE static void quants(const uint8_t* q, int u, int row, vi* w) {
        const vi bits = word(q, u, row);  // bit j of a byte belongs to w[j]; 0 and 2 for -1 and 1
        w[0] = (bits << 1) & every_byte(2);
        for (int j = 1; j < 8; j++) w[j] = (bits >> (j - 1)) & every_byte(2);
    }
};

template <>
struct Format<Q2_0> : Form<Q2_0, 2, 0, 1, STAGED>, OneScale {
    JF_INLINE static void quants(const uint8_t* q, int u, int row, vi* w) {
        for (int j = 0; j < 8; j++) w[j] = (word(q, 2 * u + j / 4, row) >> 2 * (j % 4)) & every_byte(3);
    }
};

// Two bits a column: byte i of 32 holds columns i, i + 32, i + 64, i + 96.
JF_INLINE vi two_bits(const uint8_t* q, int u, int j, int row) {
    return (word(q, u / 4 * 8 + j, row) >> 2 * (u % 4)) & every_byte(3);
}

template <>
struct Format<TQ2_0> : Form<TQ2_0, 2, 0, 1, STAGED>, OneScale {
    JF_INLINE static void quants(const uint8_t* q, int u, int row, vi* w) {
        for (int j = 0; j < 8; j++) w[j] = two_bits(q, u, j, row);
    }
};

typedef uint16_t vwords __attribute__((vector_size(sizeof(vf))));

// Digit k (the first is the most significant) of the five base-3 digits in each byte, which is a fraction of 256.
JF_INLINE vi trits(vi bytes, int k) {
    static constexpr int16_t POWERS[] = {1, 3, 9, 27, 81};
    const vi power = vi{} + POWERS[k] * 0x00010001, low = vi{} + 0x00ff00ff;
    const vi even = (vi)((vwords)(bytes & low) * (vwords)power) & low;
    const vi odd = (vi)((vwords)((bytes >> 8) & low) * (vwords)power) & low;
    return (((even + (even << 1)) >> 8) & 0x00030003) | ((odd + (odd << 1)) & 0x03000300);
}

template <>
struct Format<TQ1_0> : Form<TQ1_0, 2, 0, 1, STAGED>, OneScale {
    JF_INLINE static void quants(const uint8_t* q, int u, int row, vi* w) {
        if (u < 5) {
            for (int j = 0; j < 8; j++) w[j] = trits(word(q, j, row), u);
            return;
        }
        const int k = 2 * (u - 5);  // 16 columns in words 8..11; the last 16 of the block in word 12
        for (int j = 0; j < 4; j++) {
            w[j] = trits(word(q, 8 + j, row), k);
            w[j + 4] = k < 4 ? trits(word(q, 8 + j, row), k + 1) : trits(word(q, 12, row), j);
        }
    }
};

// Unsigned E4M3: exponent and fraction are those of an f32 after a shift, but for the bias. 0x7F stands for 0.
// Subnormal ones are made by a subtraction, for an f32 that is subnormal on the way would cost a hundred cycles.
JF_INLINE vf e4m3(vi byte) {
    const vi bits = (byte & 127) << 20;
    const vf normal = of_bits(bits + (120 << 23)), small = of_bits(bits + (121 << 23)) - 0x1p-6f;
    return of_bits(bits_of((byte & 127) < 8 ? small : normal) & (byte != 0x7f));
}

template <>
struct Format<NVFP4> : Form<NVFP4, 5, 4, 2, STAGED> {
    JF_INLINE static void quants(const uint8_t* q, int u, int row, vi* w) {
        for (int j = 0; j < 8; j++) {  // eight low nibbles, eight high ones, of each 16 columns
            const vi v = word(q, 1 + 4 * u + j / 4 * 2 + j % 2, row) >> (j % 4 / 2 * 4);
            w[j] = look_up(E2M1_BYTES, v & every_byte(15));
        }
    }
    JF_INLINE static void factors(const uint8_t*, const uint8_t* q, int u, int row, vf* factor, vf*) {
        const vi v = word(q, 0, row) >> 16 * u;
        factor[0] = 0.5f * e4m3(v & 255);
        factor[1] = 0.5f * e4m3((v >> 8) & 255);
    }
};

}  // namespace
}  // namespace jackfield

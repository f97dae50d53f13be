// Rows of K and V in blocks of 32 elements, as they lie in a cache. Of each dtype there is one function: W values of a
// block from its scale. Its products d * q are exact in f32, so the result is that of a decoded cache.
#pragma once
#include "attention_cache.h"
#include "blocks.h"
#include "jackfield/codebooks.h"

namespace jackfield {
namespace {

// W quants of eight bits. GCC 12 takes vectors of bytes apart element by element when it converts them.
JF_INLINE vf load_quants(const char* p) {
#if defined(__AVX512F__)
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
    typedef int8_t bytes __attribute__((vector_size(16)));
    typedef int16_t pairs __attribute__((vector_size(16)));
    bytes q{};
    memcpy(&q, p, W);
    q = __builtin_shufflevector(q, q, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const pairs twice = __builtin_shufflevector((pairs)q, (pairs)q, 0, 0, 1, 1, 2, 2, 3, 3);
    return __builtin_convertvector((vi)twice >> 24, vf);
#endif
}

// W bytes, each in a lane.
JF_INLINE vi load_bytes(const char* p) {
#if defined(__AVX512F__)
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
#elif defined(__AVX2__)
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p));
#else
    typedef uint8_t bytes __attribute__((vector_size(16)));
    typedef uint16_t pairs __attribute__((vector_size(16)));
    bytes q{};
    memcpy(&q, p, W);
    q = __builtin_shufflevector(q, bytes{}, 0, 16, 1, 16, 2, 16, 3, 16, 4, 16, 5, 16, 6, 16, 7, 16);
    return (vi)__builtin_shufflevector((pairs)q, pairs{}, 0, 8, 1, 8, 2, 8, 3, 8);
#endif
}

JF_INLINE vf to_floats(vi v) {
#if defined(__AVX512F__)
    return _mm512_cvtepi32_ps((__m512i)v);
#else
    return __builtin_convertvector(v, vf);
#endif
}

// Elements e .. e+W-1 of 32 whose low four bits are nibbles: byte j holds those of j and, above, of j + 16.
JF_INLINE vi load_nibbles(const char* q, int64_t e) {
    const vi both = load_bytes(q + e % 16);
    return e < 16 ? both & 15 : both >> 4;
}

// The same with their fifth bits, one an element, which lie apart.
JF_INLINE vi load_fives(const char* fifth, const char* q, int64_t e) {
    uint32_t word;
    memcpy(&word, fifth, 4);
    vi lane_bit;
    for (int i = 0; i < W; i++) lane_bit[i] = 1 << i;
    const vi set = ((vi{} + int32_t(word >> e)) & lane_bit) == lane_bit;
    return load_nibbles(q, e) | (set & 16);
}

// What nibbles stand for, as floats.
struct Meanings {
    float of[16];
};
constexpr Meanings counted_from(int first) {
    Meanings m{};
    for (int i = 0; i < 16; i++) m.of[i] = float(first + i);
    return m;
}
constexpr Meanings meanings(const int8_t (&values)[16]) {
    Meanings m{};
    for (int i = 0; i < 16; i++) m.of[i] = values[i];
    return m;
}
constexpr Meanings IQ4 = meanings(codebook::IQ4_VALUES);

#if defined(__AVX512F__)
// With sixteen lanes a register holds the values of all nibbles of a block, and a permutation, which reads the low four
// bits of a lane, is all that is left to do. `values` are the same for both halves of a block.
JF_INLINE __m512i nibbles_and_more(const char* q, int64_t e) {
    const __m512i both = (__m512i)load_bytes(q + e % 16);
    return e < 16 ? both : _mm512_srli_epi32(both, 4);
}
JF_INLINE vf permuted(const char* q, int64_t e, vf values) {
    return _mm512_permutexvar_ps(nibbles_and_more(q, e), values);
}
// Of five bits: `low` are the values of those whose fifth bit is not set.
JF_INLINE vf permuted(const char* fifth, const char* q, int64_t e, vf low, vf high) {
    uint32_t word;
    memcpy(&word, fifth, 4);
    const __m512i at = nibbles_and_more(q, e);
    return _mm512_mask_permutexvar_ps(_mm512_permutexvar_ps(at, low), __mmask16(word >> e), at, high);
}
template <int FIRST>
JF_INLINE vf counted() {
    static constexpr Meanings m = counted_from(FIRST);
    return load<F32>((const char*)m.of);
}
#endif

// The values of the nibbles e .. e+W-1: scale * meaning.
JF_INLINE vf load_meant(const char* q, int64_t e, const Meanings& m, vf scale) {
#if defined(__AVX512F__)
    return permuted(q, e, load<F32>((const char*)m.of) * scale);
#elif defined(__AVX2__)
    const __m256i at = (__m256i)load_nibbles(q, e);
    const vf low = _mm256_permutevar8x32_ps(load<F32>((const char*)m.of), at);
    const vf high = _mm256_permutevar8x32_ps(load<F32>((const char*)(m.of + 8)), at);
    return _mm256_blendv_ps(low, high, (vf)_mm256_slli_epi32(at, 28)) * scale;
#else
    const vi at = load_nibbles(q, e);
    return vf{m.of[at[0]], m.of[at[1]], m.of[at[2]], m.of[at[3]]} * scale;
#endif
}

// Of each dtype: whether a minimum is added, and the values of elements e .. e+W-1 of a block. The scale is its first
// two bytes, the minimum the next two.
template <DType D>
struct Coded;

template <>
struct Coded<Q8_0> {
    static constexpr bool AFFINE = false;
    JF_INLINE static vf values(const char* block, int64_t e, vf scale, vf) {
        return load_quants(block + 2 + e) * scale;
    }
};

template <>
struct Coded<Q4_0> {
    static constexpr bool AFFINE = false;
    JF_INLINE static vf values(const char* block, int64_t e, vf scale, vf) {
#if defined(__AVX512F__)
        return permuted(block + 2, e, counted<-8>() * scale);
#else
        return to_floats(load_nibbles(block + 2, e) - 8) * scale;
#endif
    }
};

template <>
struct Coded<Q4_1> {
    static constexpr bool AFFINE = true;
    JF_INLINE static vf values(const char* block, int64_t e, vf scale, vf least) {
#if defined(__AVX512F__)
        return permuted(block + 4, e, fma(counted<0>(), scale, least));
#else
        return fma(to_floats(load_nibbles(block + 4, e)), scale, least);
#endif
    }
};

template <>
struct Coded<Q5_0> {
    static constexpr bool AFFINE = false;
    JF_INLINE static vf values(const char* block, int64_t e, vf scale, vf) {
#if defined(__AVX512F__)
        return permuted(block + 2, block + 6, e, counted<-16>() * scale, counted<0>() * scale);
#else
        return to_floats(load_fives(block + 2, block + 6, e) - 16) * scale;
#endif
    }
};

template <>
struct Coded<Q5_1> {
    static constexpr bool AFFINE = true;
    JF_INLINE static vf values(const char* block, int64_t e, vf scale, vf least) {
#if defined(__AVX512F__)
        const vf low = fma(counted<0>(), scale, least), high = fma(counted<16>(), scale, least);
        return permuted(block + 4, block + 8, e, low, high);
#else
        return fma(to_floats(load_fives(block + 4, block + 8, e)), scale, least);
#endif
    }
};

template <>
struct Coded<IQ4_NL> {
    static constexpr bool AFFINE = false;
    JF_INLINE static vf values(const char* block, int64_t e, vf scale, vf) {
        return load_meant(block + 2, e, IQ4, scale);
    }
};

constexpr uint64_t CODED = bit(Q8_0) | bit(Q4_0) | bit(Q4_1) | bit(Q5_0) | bit(Q5_1) | bit(IQ4_NL);

// f(Type<D>()) for the dtype D of blocks: the one switch over them.
template <class F>
JF_INLINE auto with_coded(DType d, F f) {
    switch (d) {
        case Q4_0:
            return f(Type<Q4_0>());
        case Q4_1:
            return f(Type<Q4_1>());
        case Q5_0:
            return f(Type<Q5_0>());
        case Q5_1:
            return f(Type<Q5_1>());
        case IQ4_NL:
            return f(Type<IQ4_NL>());
        default:
            return f(Type<Q8_0>());
    }
}

JF_INLINE bool is_affine(DType d) { return d == Q4_1 || d == Q5_1; }

// Scales and minimums of a row of so many elements, in floats.
JF_INLINE int64_t factors_of(DType d, int64_t elements) {
    return is_block(d) ? elements / 32 * (is_affine(d) ? 2 : 1) : 0;
}

// The halves at `at` of the blocks of n rows `step` bytes apart, in f32: that of block b of row i comes to
// to[b * to_step + i]. Up to a vector behind a block's last is written.
inline void read_halves(const char* rows, int64_t step, int64_t n, int64_t blocks, int64_t nbytes, float* to,
                        int64_t to_step) {
    for (int64_t i = 0; i < n; i += W) {
        const int64_t some = n - i < W ? n - i : W;
        const char* const first = rows + i * step;
        for (int64_t b = 0; b < blocks; b++) {
            uint16_t halves[W] = {};
            for (int64_t c = 0; c < some; c++) memcpy(halves + c, first + c * step + b * nbytes, 2);
            store<F32>((char*)(to + b * to_step + i), load<F16>((const char*)halves));
        }
    }
}

// The scales of n rows of so many blocks, and behind all of them the minimums. Reading them for a whole piece of rows
// beforehand costs little, for all these loads are under way at once.
inline void read_factors(DType d, const char* rows, int64_t step, int64_t n, int64_t blocks, float* to,
                         int64_t to_step) {
    if (!is_block(d)) return;
    read_halves(rows, step, n, blocks, block_nbytes(d), to, to_step);
    if (is_affine(d)) read_halves(rows + 2, step, n, blocks, block_nbytes(d), to + blocks * to_step, to_step);
}

// Rows of a dtype of blocks. Scales: f32, of block b of a row at scales[b * scales_step + row]; minimums alike.
template <DType D>
struct CodedRows {
    static constexpr int64_t UNIT = 32, NBYTES = block_nbytes(D);
    const char* data;
    int64_t step;
    const float *scales, *minimums;
    int64_t scales_step;
    Following following;

    struct Place {
        const char* at;
        int64_t step;
        const float *scale, *minimum;

        JF_INLINE vf load(int64_t rows, int64_t e) const {
            return Coded<D>::values(at + rows * step, e, splat(scale[rows]),
                                    Coded<D>::AFFINE ? splat(minimum[rows]) : vf{});
        }
    };
    JF_INLINE Place place(int64_t row, int64_t d) const {
        const int64_t block = d / 32, at = block * scales_step + row;
        return {data + row * step + block * NBYTES, step, scales + at, minimums + at};
    }
    JF_INLINE vf one(int64_t row, int64_t d) const { return place(row, d).load(0, d % 32); }
    JF_INLINE vf part(int64_t, int64_t, int64_t) const { return vf{}; }  // never: there are whole blocks only
    JF_INLINE void fetch(int64_t row, int64_t d, int64_t n) const {
        following.fetch(row, step, d / 32 * NBYTES, (n + 31) / 32 * NBYTES);
    }
};

// A row of n elements to f32; true if a scale or a minimum is inf or NaN.
template <DType D>
JF_INLINE bool widen_blocks(const char* from, float* to, int64_t n) {
    bool bad = false;
    for (int64_t d = 0; d < n; d += 32, from += block_nbytes(D)) {
        const float scale = load_one<F16>(from), least = Coded<D>::AFFINE ? load_one<F16>(from + 2) : 0;
        bad |= scale - scale != 0 || least - least != 0;
        for (int64_t e = 0; e < 32; e += W)
            store<F32>((char*)(to + d + e), Coded<D>::values(from, e, splat(scale), splat(least)));
    }
    return bad;
}

}  // namespace
}  // namespace jackfield

// Products in f32: sixteen columns of the result (rows of a weight) times a panel of x, both laid out column by column.
// A stretch of 128 lanes is two sums from zero, of the even lanes and of the odd ones (64 or less at the end are one);
// sums are then added up in order: a row of x gives the same bits whatever else is in its panel, and long sums keep
// their digits.
//
// A lane holds one column in f32, or a pair of columns in bf16 (the first in the low half), whose two products an
// instruction adds to an f32 sum. What differs is a Terms class: COLUMNS of a lane, the weight's lanes, `add`.
#pragma once
#include "packing.h"
#include "simd.h"

namespace jackfield {
namespace {

constexpr int64_t STRETCH = 128;        // lanes
constexpr int64_t DEPTH = 2 * STRETCH;  // columns of the weight decoded at a time
constexpr int WIDEST_FLOAT = W == 16 ? 16 : 4;

JF_INLINE vf load_lanes(const float* p) { return load<F32>((const char*)p); }

// Columns of a float weight as they lie in memory.
template <DType D>
struct Singles {
    static constexpr int64_t COLUMNS = 1, NBYTES = bytes_of<D>;  // of a lane
    static JF_INLINE vf weight(const char* w, int64_t lane) { return load<D>(w + lane * NBYTES); }
    static JF_INLINE vf add(vf sum, vf w, const float& x) { return fma(w, splat(x), sum); }
};

// Pairs, in words every level has. A product of two bf16 is exact in f32.
struct Pairs {
    static constexpr int64_t COLUMNS = 2, NBYTES = 4;
    static JF_INLINE vf weight(const char* w, int64_t lane) { return load<F32>(w + lane * NBYTES); }
    static JF_INLINE vf low(vi pair) { return of_bits(pair << 16); }
    static JF_INLINE vf high(vi pair) { return of_bits(pair & int32_t(0xffff0000)); }
    static JF_INLINE vf add(vf sum, vf w, const float& x) {
        int32_t bits;
        memcpy(&bits, &x, 4);  // never as a float: a pair may look like a NaN, and be changed
        const vi pair = vi{} + bits;
        return fma(low(bits_of(w)), low(pair), fma(high(bits_of(w)), high(pair), sum));
    }
};

#if defined(JF_LEVEL_vnni)
// The same by the instruction of AVX512-BF16, which takes subnormal numbers for 0. As text, so that the level need not
// be compiled for CPUs that have it; whoever calls has asked the CPU.
struct PairInstruction : Pairs {
    static JF_INLINE vf add(vf sum, vf w, const float& x) {
        __asm__("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(x));
        return sum;
    }
};
#endif

// Columns of packed bf16 one by one, for x that is not rounded.
struct PartedPairs {
    static constexpr int64_t COLUMNS = 1, NBYTES = 2;
    static JF_INLINE vf weight(const char* w, int64_t lane) {
        const int64_t k = lane / GROUP;
        const vi pair = bits_of(load<F32>(w + element_at(BF16, lane % GROUP, k / 2 * 2)));
        return Pairs::high(pair << (k % 2 ? 0 : 16));
    }
    static JF_INLINE vf add(vf sum, vf w, const float& x) { return fma(w, splat(x), sum); }
};

// total[m][r] += x[k][m] * w[k][r] over a stretch of `n` lanes. A narrow panel makes all sums at once, which keeps the
// units busy and reads the weight in order.
template <class Terms, int WIDTH, int SUMS>
JF_INLINE void add_stretch(const char* w, const float* x, int64_t n, float* total) {
    constexpr int PARTS = GROUP / W, COUNT = WIDTH * PARTS <= 4 ? SUMS : 1;
    for (int first = 0; first < SUMS; first += COUNT) {
        vf acc[COUNT][PARTS][WIDTH] = {};
        auto lane = [&](int64_t k, vf(&sum)[PARTS][WIDTH]) __attribute__((always_inline)) {
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; part++) {
                const vf weight = Terms::weight(w, k * GROUP + W * part);
#pragma GCC unroll 16
                for (int m = 0; m < WIDTH; m++) sum[part][m] = Terms::add(sum[part][m], weight, x[k * WIDTH + m]);
            }
        };
        int64_t k = first;
        for (; k + COUNT <= n; k += SUMS) {
#pragma GCC unroll 2
            for (int s = 0; s < COUNT; s++) lane(k + s, acc[s]);
        }
        if (k < n) lane(k, acc[0]);
#pragma GCC unroll 16
        for (int m = 0; m < WIDTH; m++)
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; part++) {
                float* t = total + GROUP * m + W * part;
                vf sum = load_lanes(t);
                for (int s = 0; s < COUNT; s++) sum = sum + acc[s][part][m];
                store<F32>((char*)t, sum);
            }
    }
}

// total[m][r] += x[k][m] * w[k][r] over n columns.
template <class Terms, int WIDTH>
void tile_floats(const char* w, const float* x, int64_t n, float* total) {
    const int64_t all = (n + Terms::COLUMNS - 1) / Terms::COLUMNS;
    for (int64_t k = 0; k < all; k += STRETCH) {
        const int64_t rest = all - k < STRETCH ? all - k : STRETCH;
        const char* const lanes = w + k * GROUP * Terms::NBYTES;
        if (rest > STRETCH / 2)
            add_stretch<Terms, WIDTH, 2>(lanes, x + k * WIDTH, rest, total);
        else
            add_stretch<Terms, WIDTH, 1>(lanes, x + k * WIDTH, rest, total);
    }
}

typedef void (*FloatTile)(const char* w, const float* x, int64_t n, float* total);

// For 1 to 4 rows of x.
template <class Terms>
FloatTile find_narrow_tile(int64_t width) {
    switch (width) {
        case 1:
            return tile_floats<Terms, 1>;
        case 2:
            return tile_floats<Terms, 2>;
        case 3:
            return tile_floats<Terms, 3>;
        default:
            return tile_floats<Terms, 4>;
    }
}

template <class Terms>
FloatTile find_float_tile(int64_t width) {
    if constexpr (WIDEST_FLOAT == 16) {
        if (width == 16) return tile_floats<Terms, 16>;
        if (width == 8) return tile_floats<Terms, 8>;
    }
    return find_narrow_tile<Terms>(width);
}

// ---- weights, column by column --------------------------------------------------------------------------------------

constexpr int64_t LINE = DEPTH + 4;  // floats between decoded rows: lines of one column in different cache sets

// A square of 4 x 4 transposed; rows so many floats apart. Bits stay as they are.
JF_INLINE void turn_square(const float* from, int64_t from_row, float* to, int64_t to_row) {
#if defined(__ARM_NEON)
    const float32x4_t a = vld1q_f32(from), b = vld1q_f32(from + from_row);
    const float32x4_t c = vld1q_f32(from + 2 * from_row), d = vld1q_f32(from + 3 * from_row);
    const float32x4x2_t ab = vtrnq_f32(a, b), cd = vtrnq_f32(c, d);
    vst1q_f32(to, vcombine_f32(vget_low_f32(ab.val[0]), vget_low_f32(cd.val[0])));
    vst1q_f32(to + to_row, vcombine_f32(vget_low_f32(ab.val[1]), vget_low_f32(cd.val[1])));
    vst1q_f32(to + 2 * to_row, vcombine_f32(vget_high_f32(ab.val[0]), vget_high_f32(cd.val[0])));
    vst1q_f32(to + 3 * to_row, vcombine_f32(vget_high_f32(ab.val[1]), vget_high_f32(cd.val[1])));
#else
    __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + from_row);
    __m128 c = _mm_loadu_ps(from + 2 * from_row), d = _mm_loadu_ps(from + 3 * from_row);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(to, a);
    _mm_storeu_ps(to + to_row, b);
    _mm_storeu_ps(to + 2 * to_row, c);
    _mm_storeu_ps(to + 3 * to_row, d);
#endif
}

// Decoded rows [16][LINE] to columns [n][16]; n may be any number up to DEPTH.
inline void turn_lines(const float* lines, int64_t n, float* columns) {
    int64_t k = 0;
    for (; k + 4 <= n; k += 4)
        for (int64_t r = 0; r < GROUP; r += 4) turn_square(lines + r * LINE + k, LINE, columns + k * GROUP + r, GROUP);
    for (; k < n; k++)
        for (int64_t r = 0; r < GROUP; r++) columns[k * GROUP + r] = lines[r * LINE + k];
}

// Float elements of a dense line, widened.
template <DType D>
JF_INLINE void widen_line(const char* from, int64_t n, float* to) {
    int64_t i = 0;
    for (; i + W <= n; i += W) store<F32>((char*)(to + i), load<D>(from + i * bytes_of<D>));
    if (i < n) store_part<F32>((char*)(to + i), load_part<D>(from + i * bytes_of<D>, n - i), n - i);
}
inline void widen_dense(int32_t dtype, const char* from, int64_t n, float* to) {
    if (dtype == F32)
        widen_line<F32>(from, n, to);
    else if (dtype == F16)
        widen_line<F16>(from, n, to);
    else
        widen_line<BF16>(from, n, to);
}

// Pairs of packed columns to n columns [16] of f32.
inline void part_columns(const char* from, int64_t n, float* columns) {
    for (int64_t k = 0; k < n; k++)
        for (int r = 0; r < GROUP; r += W)
            store<F32>((char*)(columns + k * GROUP + r), PartedPairs::weight(from, k * GROUP + r));
}

// Columns [n][16] of f32 that hold bf16 exactly to pairs of columns, in place; a last one without a partner gets 0.
inline void pair_floats(float* columns, int64_t n) {
    for (int64_t k = 0; k < n; k += 2)
        for (int r = 0; r < GROUP; r++) {
            const char* from = (const char*)(columns + k * GROUP + r);
            uint32_t low, high = 0;
            memcpy(&low, from, 4);
            if (k + 1 < n) memcpy(&high, from + 4 * GROUP, 4);
            const uint32_t pair = low >> 16 | (high & 0xffff0000);
            memcpy((char*)columns + 4 * (k / 2 * GROUP + r), &pair, 4);
        }
}

// Columns [k, k + n) of a plain row; k is a multiple of DEPTH, so of every block.
inline void decode_line(int32_t dtype, const char* row, int64_t k, int64_t n, float* to) {
    if (!is_block(dtype)) return widen_dense(dtype, row + k * block_nbytes(dtype), n, to);
    const int64_t length = block_length(dtype), size = block_nbytes(dtype);
    for (int64_t b = 0; b < n / length; b++)
        decode_block(dtype, (const uint8_t*)row + (k / length + b) * size, to + b * length);
}

}  // namespace
}  // namespace jackfield

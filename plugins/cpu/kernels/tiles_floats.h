// Products in f32: sixteen columns of the result (rows of a weight) times a panel of x, both laid out column by column.
// Sums run over stretches of 64 columns, each from zero, which are then added up in order: a row of x gives the same
// bits whatever else is in its panel, and long sums keep their digits.
#pragma once
#include "packing.h"
#include "simd.h"

namespace jackfield {
namespace {

constexpr int64_t STRETCH = 64;         // columns summed from zero
constexpr int64_t DEPTH = 4 * STRETCH;  // columns of the weight decoded at a time
constexpr int WIDEST_FLOAT = W == 16 ? 16 : 4;

JF_INLINE vf load_lanes(const float* p) { return load<F32>((const char*)p); }

// acc[s] += sum over k < n of x[(s*STRETCH + k), m] * w[...], for COUNT stretches side by side.
template <int WIDTH, int COUNT>
JF_INLINE void stretches(const float* w, const float* x, int64_t n, float* total) {
    constexpr int PARTS = GROUP / W;
    vf acc[COUNT][PARTS][WIDTH] = {};
    for (int64_t k = 0; k < n; k++) {
#pragma GCC unroll 4
        for (int s = 0; s < COUNT; s++) {
            const float *wk = w + (s * STRETCH + k) * GROUP, *xk = x + (s * STRETCH + k) * WIDTH;
            vf lanes[PARTS];
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; part++) lanes[part] = load_lanes(wk + W * part);
#pragma GCC unroll 16
            for (int m = 0; m < WIDTH; m++)
#pragma GCC unroll 4
                for (int part = 0; part < PARTS; part++)
                    acc[s][part][m] = fma(lanes[part], splat(xk[m]), acc[s][part][m]);
        }
    }
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

// total[m][r] += x[k][m] * w[k][r] over n columns.
template <int WIDTH>
void tile_floats(const float* w, const float* x, int64_t n, float* total) {
    constexpr int COUNT = WIDTH <= 2 ? 4 : 1;  // narrow panels keep the units busy with several stretches at once
    int64_t k = 0;
    for (; k + COUNT * STRETCH <= n; k += COUNT * STRETCH)
        stretches<WIDTH, COUNT>(w + k * GROUP, x + k * WIDTH, STRETCH, total);
    for (; k < n; k += STRETCH)
        stretches<WIDTH, 1>(w + k * GROUP, x + k * WIDTH, n - k < STRETCH ? n - k : STRETCH, total);
}

typedef void (*FloatTile)(const float* w, const float* x, int64_t n, float* total);

inline FloatTile find_float_tile(int64_t width) {
    switch (width) {
        case 1:
            return tile_floats<1>;
        case 2:
            return tile_floats<2>;
        case 3:
            return tile_floats<3>;
        case 4:
            return tile_floats<4>;
        case 8:
            if constexpr (WIDEST_FLOAT >= 8)
                return tile_floats<8>;
            else
                return nullptr;
        case 16:
            if constexpr (WIDEST_FLOAT >= 16)
                return tile_floats<16>;
            else
                return nullptr;
        default:
            return nullptr;
    }
}

// ---- weights, column by column --------------------------------------------------------------------------------------

constexpr int64_t LINE = DEPTH + 4;  // floats between decoded rows: lines of one column in different cache sets

// Decoded rows [16][LINE] to columns [n][16]; n may be any number up to DEPTH.
inline void turn_lines(const float* lines, int64_t n, float* columns) {
    int64_t k = 0;
    for (; k + 4 <= n; k += 4)
        for (int64_t r = 0; r < GROUP; r += 4) {
            const float* from = lines + r * LINE + k;
            float* to = columns + k * GROUP + r;
#if defined(__ARM_NEON)
            const float32x4_t a = vld1q_f32(from), b = vld1q_f32(from + LINE);
            const float32x4_t c = vld1q_f32(from + 2 * LINE), d = vld1q_f32(from + 3 * LINE);
            const float32x4x2_t ab = vtrnq_f32(a, b), cd = vtrnq_f32(c, d);
            vst1q_f32(to, vcombine_f32(vget_low_f32(ab.val[0]), vget_low_f32(cd.val[0])));
            vst1q_f32(to + GROUP, vcombine_f32(vget_low_f32(ab.val[1]), vget_low_f32(cd.val[1])));
            vst1q_f32(to + 2 * GROUP, vcombine_f32(vget_high_f32(ab.val[0]), vget_high_f32(cd.val[0])));
            vst1q_f32(to + 3 * GROUP, vcombine_f32(vget_high_f32(ab.val[1]), vget_high_f32(cd.val[1])));
#else
            __m128 a = _mm_loadu_ps(from), b = _mm_loadu_ps(from + LINE);
            __m128 c = _mm_loadu_ps(from + 2 * LINE), d = _mm_loadu_ps(from + 3 * LINE);
            _MM_TRANSPOSE4_PS(a, b, c, d);
            _mm_storeu_ps(to, a);
            _mm_storeu_ps(to + GROUP, b);
            _mm_storeu_ps(to + 2 * GROUP, c);
            _mm_storeu_ps(to + 3 * GROUP, d);
#endif
        }
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

// Columns [k, k + n) of a plain row; k is a multiple of DEPTH, so of every block.
inline void decode_line(int32_t dtype, const char* row, int64_t k, int64_t n, float* to) {
    if (!is_block(dtype)) return widen_dense(dtype, row + k * block_nbytes(dtype), n, to);
    const int64_t length = block_length(dtype), size = block_nbytes(dtype);
    for (int64_t b = 0; b < n / length; b++)
        decode_block(dtype, (const uint8_t*)row + (k / length + b) * size, to + b * length);
}

}  // namespace
}  // namespace jackfield

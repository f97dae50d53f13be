// What encoders of several block dtypes do, every step one f32 operation in the core's order.
#pragma once
#include <math.h>

#include "../kernels/blocks.h"
#include "jackfield/codebooks.h"

namespace jackfield {

// Block dtypes of 256 elements whose scales are fitted here. b is all zero; false: a scale overflows f16.
constexpr bool is_fitted(int32_t d) { return d == Q2_K || d == Q3_K || d == IQ4_XS; }
bool encode_fitted(int32_t dtype, const float* x, uint8_t* b);

// Those made of rows of a codebook, likewise.
constexpr bool is_grid(int32_t d) { return d >= IQ1_S && d <= IQ3_S; }
bool encode_grid(int32_t dtype, const float* x, uint8_t* b);

namespace {

// Sums in the core's order: eight running sums, then pairs of neighbours.
template <class F>
float total(int n, F term) {
    float sums[8];
    for (int i = 0; i < 8; i++) sums[i] = term(i);
    for (int i = 8; i < n; i++) sums[i % 8] += term(i);
    for (int half = 4; half; half /= 2)
        for (int i = 0; i < half; i++) sums[i] = sums[2 * i] + sums[2 * i + 1];
    return sums[0];
}

inline float magnitude(const float* x, int n) { return fabsf(largest_of(x, n)); }
inline bool write_scale(uint8_t* p, float d) {
    write_half(p, d);
    return fabsf(d) < 65520;  // else it is no finite f16
}

inline void write_nibbles(const uint8_t* q, int n, uint8_t* to) {
    for (int i = 0; i < n; i++) to[i] = uint8_t(q[i] | q[i + n] << 4);
}

// Halfway between two values the larger one is taken.
inline uint8_t nearest_value(float y) {
    int code = 0;
    for (int i = 0; i < 15; i++) code += 2 * y >= float(codebook::IQ4_VALUES[i] + codebook::IQ4_VALUES[i + 1]);
    return uint8_t(code);
}

}  // namespace
}  // namespace jackfield

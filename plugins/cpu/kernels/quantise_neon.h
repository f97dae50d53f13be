// Activations rounded to int8 with NEON: the machine's part of quantise.h, which says what is made and why.
#pragma once
#include "simd.h"

namespace jackfield {
namespace {

// Halves to even, or away from zero.
template <bool SUPER>
JF_INLINE int32x4_t round_lanes(const float* x, float f) {
    const float32x4_t y = vmulq_n_f32(vld1q_f32(x), f);
    return SUPER ? vcvtnq_s32_f32(y) : vcvtaq_s32_f32(y);
}

// Sixteen quants of x * f.
template <bool SUPER>
JF_INLINE int8x16_t round_half(const float* x, float f) {
    int8x8_t eight[2];
    for (int i = 0; i < 2; i++) {
        const int16x4_t low = vqmovn_s32(round_lanes<SUPER>(x + 8 * i, f));
        eight[i] = vqmovn_s16(vqmovn_high_s32(low, round_lanes<SUPER>(x + 8 * i + 4, f)));
    }
    return vcombine_s8(eight[0], eight[1]);
}

// Quants, scale and sums of a unit of row m, for weights whose offset is 2^shift.
template <bool WIDE_QUANTS, bool AFFINE, int HALVES>
JF_INLINE void store_unit(int8x16_t low, int8x16_t high, float d, char* unit, int64_t width, int64_t m, int shift) {
    static_assert(!WIDE_QUANTS, "no product on this machine reads quants of 16 bits");
    char* const scale = unit + width * 32 + 4 * m;
    vst1q_s8((int8_t*)unit + 32 * m, low);
    vst1q_s8((int8_t*)unit + 32 * m + 16, high);
    memcpy(scale, &d, 4);
    int32_t sums[2] = {vaddlvq_s8(low), vaddlvq_s8(high)};
    if (HALVES == 1) sums[0] += sums[1];
    for (int half = 0; half < HALVES; half++) {
        char* const to = scale + 4 * width * (half + 1);
        const float affine = float(sums[half]) * d;
        const int32_t offset = -sums[half] * (1 << shift);
        memcpy(to, AFFINE ? (const void*)&affine : (const void*)&offset, 4);
    }
}

}  // namespace
}  // namespace jackfield

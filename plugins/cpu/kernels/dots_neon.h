// Integer products with NEON: the machine's part of tiles_blocks.h. A vector of weights holds four rows, four columns
// of each in a lane; the four bytes of x that go with them are the same for all.
#pragma once
#include "formats.h"

namespace jackfield {
namespace {

#if defined(__ARM_FEATURE_DOTPROD)
// sum += w times the four bytes of lane LANE of x, by one instruction. w: unsigned for VNNI, else signed.
template <Products P, int LANE>
JF_INLINE vi dot_lane(vi sum, vi w, int8x16_t x) {
#if defined(__ARM_FEATURE_MATMUL_INT8)
    if constexpr (P == VNNI) return (vi)vusdotq_laneq_s32((int32x4_t)sum, (uint8x16_t)w, x, LANE);
#endif
    return (vi)vdotq_laneq_s32((int32x4_t)sum, (int8x16_t)w, x, LANE);
}

template <Products P, int COUNT>
JF_INLINE void dots_by_lane(vi* sum, const vi* w, const char* q, int first, int last) {
#pragma GCC unroll 2
    for (int j = first; j < last; j += 4) {
        int8x16_t x[COUNT];
        for (int i = 0; i < COUNT; i++) x[i] = vld1q_s8((const int8_t*)q + 32 * i + 4 * j);
        for (int i = 0; i < COUNT; i++) sum[i] = dot_lane<P, 0>(sum[i], w[j], x[i]);
        for (int i = 0; i < COUNT; i++) sum[i] = dot_lane<P, 1>(sum[i], w[j + 1], x[i]);
        for (int i = 0; i < COUNT; i++) sum[i] = dot_lane<P, 2>(sum[i], w[j + 2], x[i]);
        for (int i = 0; i < COUNT; i++) sum[i] = dot_lane<P, 3>(sum[i], w[j + 3], x[i]);
    }
}
#endif

// Byte products of rows 0, 1 and of rows 2, 3 are summed in 16 bits as long as they fit: of (2^BITS - 1) * 127, or of
// 128 * 127 for eight bits made signed.
template <int BITS>
JF_INLINE vi dot_long(vi sum, const vi* w, const char* q, int first, int last) {
    constexpr int most = BITS <= 5 ? 8 : BITS == 6 ? 4 : 2;
    int32x4_t low{}, high{};
    for (int j = first; j < last; j += most) {
        int16x8_t front{}, back{};
        for (int i = j; i < j + most && i < last; i++) {
            const int8x16_t x = vreinterpretq_s8_s32(vld1q_dup_s32((const int32_t*)(q + 4 * i))), v = (int8x16_t)w[i];
            front = i == j ? vmull_s8(vget_low_s8(v), vget_low_s8(x)) : vmlal_s8(front, vget_low_s8(v), vget_low_s8(x));
            back = i == j ? vmull_high_s8(v, x) : vmlal_high_s8(back, v, x);
        }
        low = vpadalq_s16(low, front);
        high = vpadalq_s16(high, back);
    }
    return sum + (vi)vpaddq_s32(low, high);
}

// sum[i] += w[first..last) times the quants of row i, for COUNT rows that follow each other at q. first and last:
// multiples of four.
template <Products P, int BITS, int COUNT>
JF_INLINE void dots(vi* sum, const vi* w, const char* q, int first, int last) {
#if defined(__ARM_FEATURE_DOTPROD)
    if constexpr (P != LONG) dots_by_lane<P, COUNT>(sum, w, q, first, last);
#endif
    if constexpr (P == LONG)
        for (int i = 0; i < COUNT; i++) sum[i] = dot_long<BITS>(sum[i], w, q + 32 * i, first, last);
}

}  // namespace
}  // namespace jackfield

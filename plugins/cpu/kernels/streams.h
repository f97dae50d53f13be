// Sums of residual streams, a weight each.
#pragma once
#include "simd.h"
#include "views.h"

namespace jackfield {
namespace {

// What is summed: `count` lines of n f32, `step` bytes apart, with weights `weight_step` apart; and one line more, if
// any.
struct Mixture {
    const char* lines;
    int64_t count, step;
    const char* weights;
    int64_t weight_step;
    const char* more;
    float more_weight;

    JF_INLINE vf part(int64_t i, int64_t n) const {
        const bool whole = i + W <= n;
        vf total{};
        if (more) total = (whole ? load<F32>(more + i * 4) : load_part<F32>(more + i * 4, n - i)) * more_weight;
        for (int64_t c = 0; c < count; c++) {
            const char* from = lines + c * step + i * 4;
            const float weight = load_one<F32>(weights + c * weight_step);
            total = fma(whole ? load<F32>(from) : load_part<F32>(from, n - i), splat(weight), total);
        }
        return total;
    }
    JF_INLINE void write(char* out, int64_t stride, int64_t n) const {
        for (int64_t i = 0; i < n; i += W) {
            const vf y = part(i, n);
            const int64_t m = n - i < W ? n - i : W;
            if (stride == 4 && m == W)
                store<F32>(out + i * 4, y);
            else
                for (int64_t j = 0; j < m; j++) {
                    const float value = y[j];
                    memcpy(out + (i + j) * stride, &value, 4);
                }
        }
    }
};

}  // namespace
}  // namespace jackfield

// rms_norm of f32 rows and the multiplication by its weights, in one pass.
#pragma once
#include "rms.h"

namespace jackfield {
namespace {

// The row that the norm's result `made` is multiplied by.
JF_INLINE const char* norm_weights(const Step& multiply, const View& made) {
    return multiply.in[multiply.in[0].data == made.data ? 1 : 0].data;
}

// x and weights: n f32 without gaps.
JF_INLINE void scale_norm(const char* x, const char* weights, double eps, int64_t n, char* out) {
    const Line line = Rms::of<F32>(x, n, eps);
    int64_t i = 0;
    for (; i + W <= n; i += W) store<F32>(out + 4 * i, line(load<F32>(x + 4 * i)) * load<F32>(weights + 4 * i));
    if (i == n) return;
    const vf y = line(load_part<F32>(x + 4 * i, n - i)) * load_part<F32>(weights + 4 * i, n - i);
    store_part<F32>(out + 4 * i, y, n - i);
}

}  // namespace
}  // namespace jackfield

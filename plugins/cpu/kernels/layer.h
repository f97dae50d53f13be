// The line that takes a mean off and brings the spread to one.
#pragma once
#include "norms.h"

namespace jackfield {
namespace {

// From the sums of x - shift and of its square over n elements; what is missing from shift to the mean is put right in
// the variance and in the offset.
JF_INLINE Line centred(const Moments& all, int64_t n, float shift, double eps) {
    const double gap = all.first / double(n), variance = all.second / double(n) - gap * gap;
    const double factor = 1 / __builtin_sqrt((variance < 0 ? 0 : variance) + eps);
    return {shift, float(factor), float(-gap * factor)};
}

}  // namespace
}  // namespace jackfield

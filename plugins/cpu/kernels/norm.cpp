#include "norms.h"

namespace jackfield {
namespace {

struct Layer {
    template <DType D>
    JF_INLINE static Line of(const char* x, int64_t n, double eps) {
        // Rows are shifted by a rough mean; what is missing to the mean is put right in the variance and in the offset.
        const float shift = rough_mean<D>(x, n);
        const Moments all = safe_moments<D, true>(x, n, shift);
        const double gap = all.first / double(n), variance = all.second / double(n) - gap * gap;
        const double factor = 1 / __builtin_sqrt((variance < 0 ? 0 : variance) + eps);
        return {shift, float(factor), float(-gap * factor)};
    }
};

}  // namespace
}  // namespace jackfield

JF_NORM(norm, Layer)

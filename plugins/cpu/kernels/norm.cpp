#include "norms.h"

namespace jackfield {
namespace {

struct Layer {
    template <DType D>
    JF_INLINE static Line of(const char* x, int64_t n, double eps) {
        const double mean = wide_sum<D>(x, n) / double(n), gap = mean - double(float(mean));
        // Rows are shifted by an f32; what is missing to the mean is put right in the variance and in the offset.
        const double variance = sum_of_squares<D>(x, n, double(float(mean))) / double(n) - gap * gap;
        const double factor = 1 / __builtin_sqrt((variance < 0 ? 0 : variance) + eps);
        return {float(mean), float(factor), float(-gap * factor)};
    }
};

}  // namespace
}  // namespace jackfield

JF_NORM(norm, Layer)

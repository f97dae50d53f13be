#include "layer.h"

namespace jackfield {
namespace {

struct Layer {
    template <DType D>
    JF_INLINE static Line of(const char* x, int64_t n, double eps) {
        const float shift = rough_mean<D>(x, n);
        return centred(safe_moments<D, true>(x, n, shift), n, shift, eps);
    }
};

}  // namespace
}  // namespace jackfield

JF_NORM(norm, Layer)

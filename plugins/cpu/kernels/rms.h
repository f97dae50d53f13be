// The line that a root mean square norm draws through a row.
#pragma once
#include "norms.h"

namespace jackfield {
namespace {

struct Rms {
    template <DType D>
    JF_INLINE static Line of(const char* x, int64_t n, double eps) {
        return {0, float(1 / __builtin_sqrt(sum_of_squares<D>(x, n) / double(n) + eps)), 0};
    }
};

}  // namespace
}  // namespace jackfield

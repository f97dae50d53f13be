// The axis that a reduction takes away, and where what it makes of each line lies.
#pragma once
#include "views.h"

namespace jackfield {
namespace {

// The reduced axis among the four of a View, or -1 for all. `axis` is the kernel's first attribute.
JF_INLINE int reduced_axis(const Step& s) {
    const Attr& axis = s.attr[0];
    if (axis.absent) return -1;
    return int(axis.integer < 0 ? RANK + axis.integer : RANK - s.in[0].rank + axis.integer);
}

// Where the result of a line of x lies: strides of `out` by the axes of x, 0 for the reduced one.
struct Landing {
    int64_t stride[RANK];

    JF_INLINE Landing(const Step& s, int axis) {
        const bool kept = s.out.rank == s.in[0].rank;
        for (int j = 0; j < RANK; j++)
            stride[j] = j == axis ? 0 : kept || j > axis ? s.out.stride[j] : s.out.stride[j + 1];
    }
    JF_INLINE char* at(const Step& s, int64_t i0, int64_t i1, int64_t i2) const {
        return s.out.data + i0 * stride[0] + i1 * stride[1] + i2 * stride[2];
    }
};

}  // namespace
}  // namespace jackfield

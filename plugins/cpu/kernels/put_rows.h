// Where a row goes that is put into others, and how it gets there.
#pragma once
#include "convert.h"

namespace jackfield {
namespace {

// Rows of one pair of leading indices, from element `first` of the last axis on.
struct Column {
    const Step& s;
    const char* list;
    char* to;
    int64_t before, blocks, at;  // before: rows of x that come before this column's; blocks: of a row

    JF_INLINE Column(const Step& step, int64_t b3, int64_t b2, int64_t first) : s(step) {
        const View &x = s.in[1], &rows = s.in[2], &out = s.out;
        list = rows.data + b3 % rows.shape[1] * rows.stride[1] + b2 % rows.shape[2] * rows.stride[2];
        at = first / block_length(out.dtype);
        blocks = x.last() / block_length(out.dtype);
        to = out.data + b3 * out.stride[0] + b2 * out.stride[1] + at * out.stride[3];
        before = (b3 * x.shape[1] + b2) * x.shape[2];
    }

    // Row i of x, n elements at `source`, in the dtype of x.
    JF_INLINE void put(int64_t i, const char* source, int64_t stride, int64_t n) const {
        const View &x = s.in[1], &rows = s.in[2], &out = s.out;
        const int64_t row = read_int(rows.dtype, list + i * rows.stride[3]);
        if (row == -1) return;  // padding writes to no slot
        if (row < 0 || row >= out.shape[2]) return set_fault(s, FAULT_INDEX, 2, row);
        char* target = to + row * out.stride[2];
        const int64_t bad = convert_line(x.dtype, source, stride, out.dtype, target, out.stride[3], n);
        if (bad >= 0) set_fault(s, FAULT_NONFINITE, 1, (before + i) * blocks + at + bad);
    }
};

}  // namespace
}  // namespace jackfield

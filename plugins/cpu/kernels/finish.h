// What is done to the results of a product before they are stored, sixteen at a time: activated and gated, addends
// added. The same operations on each element, in the same order, as in the kernels of those ops.
#pragma once
#include "products.h"
#include "simd.h"

namespace jackfield::JF_LEVEL {
namespace {

// Where the results of a row of x lie, and its addends.
struct Row {
    char* to;
    const char* addend[MOST_ADDENDS];
};

JF_INLINE Row row_of(const Product& p, int64_t t) {
    Row row{p.y(p, t), {}};
    for (int i = 0; i < p.addends; i++) row.addend[i] = Batches(*p.step).row(p.addend[i], t);
    return row;
}

template <class Unit>
JF_INLINE void gate(float* y, const float* up, Unit unit) {
    for (int i = 0; i < GROUP; i += W)
        store<F32>((char*)(y + i), unit(load<F32>((const char*)(y + i))) * load<F32>((const char*)(up + i)));
}

JF_INLINE void add_row(float* y, const char* from, int64_t stride, int64_t valid) {
    if (stride == 4 && valid == GROUP) {
        for (int i = 0; i < GROUP; i += W)
            store<F32>((char*)(y + i), load<F32>((const char*)(y + i)) + load<F32>(from + 4 * i));
    } else {
        for (int64_t i = 0; i < valid; i++) y[i] += load_one<F32>(from + i * stride);
    }
}

// `valid` results of a row, from column n on; y and up hold sixteen.
JF_INLINE void finish(const Product& p, const Row& row, int64_t n, int64_t valid, float* y, const float* up) {
    if (p.unit == SILU) gate(y, up, [](vf x) { return silu(x); });
    if (p.unit == GELU) gate(y, up, [](vf x) { return gelu(x); });
    if (p.unit == GELU_ERF) gate(y, up, [](vf x) { return gelu_erf(x); });
    for (int i = 0; i < p.addends; i++) {
        const int64_t stride = p.addend[i].stride[RANK - 1];
        add_row(y, row.addend[i] + n * stride, stride, valid);
    }
    char* to = row.to + n * p.y_stride;
    if (p.y_stride == 4 && valid == GROUP) {
        memcpy(to, y, 4 * GROUP);
    } else {
        for (int64_t i = 0; i < valid; i++) memcpy(to + i * p.y_stride, y + i, 4);
    }
}

}  // namespace
}  // namespace jackfield::JF_LEVEL

// Arithmetic on views: sizes of elements, density, the walk over rows.
#pragma once
#include "blocks.h"
#include "jackfield/kernel.h"

namespace jackfield {
namespace {

constexpr uint64_t EVERY = (uint64_t(1) << DTYPES) - 1;  // the set of all dtypes

JF_INLINE bool same_shape(const View& a, const View& b) {
    return a.shape[0] == b.shape[0] && a.shape[1] == b.shape[1] && a.shape[2] == b.shape[2] && a.shape[3] == b.shape[3];
}

// No gaps from axis `from` on, in row-major order.
JF_INLINE bool dense(const View& v, int from = 0) {
    int64_t expected = block_nbytes(v.dtype);
    for (int axis = RANK - 1; axis >= from; axis--) {
        const int64_t n = axis == RANK - 1 ? v.shape[axis] / block_length(v.dtype) : v.shape[axis];
        if (n != 1 && v.stride[axis] != expected) return false;
        expected *= n;
    }
    return true;
}

JF_INLINE bool dense_rows(const View& v) { return dense(v, RANK - 1); }

// Steps through the rows of a shape in row-major order; `row` gives where a view's row starts.
struct RowWalk {
    int64_t at[3];
    const int64_t* shape;

    JF_INLINE RowWalk(const int64_t* shape_, int64_t row) : at{0, 0, 0}, shape(shape_) {
        if (row == 0) return;  // also where an extent is 0
        at[2] = row % shape[2];
        at[1] = row / shape[2] % shape[1];
        at[0] = row / shape[2] / shape[1];
    }
    JF_INLINE void next() {
        if (++at[2] < shape[2]) return;
        at[2] = 0;
        if (++at[1] < shape[1]) return;
        at[1] = 0;
        at[0]++;
    }
    JF_INLINE char* row(const View& v) const {
        return v.data + at[0] * v.stride[0] + at[1] * v.stride[1] + at[2] * v.stride[2];
    }
};

// Elements of `size` bytes between a dense buffer and a strided line.
template <class T>
inline void gather_as(const char* from, int64_t stride, char* to, int64_t n) {
    for (int64_t i = 0; i < n; i++) memcpy(to + i * int64_t(sizeof(T)), from + i * stride, sizeof(T));
}
template <class T>
inline void scatter_as(const char* from, char* to, int64_t stride, int64_t n) {
    for (int64_t i = 0; i < n; i++) memcpy(to + i * stride, from + i * int64_t(sizeof(T)), sizeof(T));
}
inline void gather(const char* from, int64_t stride, char* to, int64_t n, int64_t size) {
    if (size == 4) return gather_as<uint32_t>(from, stride, to, n);
    if (size == 2) return gather_as<uint16_t>(from, stride, to, n);
    for (int64_t i = 0; i < n; i++) memcpy(to + i * size, from + i * stride, size_t(size));
}
inline void scatter(const char* from, char* to, int64_t stride, int64_t n, int64_t size) {
    if (size == 4) return scatter_as<uint32_t>(from, to, stride, n);
    if (size == 2) return scatter_as<uint16_t>(from, to, stride, n);
    for (int64_t i = 0; i < n; i++) memcpy(to + i * stride, from + i * size, size_t(size));
}

// A share of n elements in pieces of whole cache lines.
JF_INLINE Share share_lines(int64_t n, const Team& team) {
    if (team.count == 1) return {0, n};
    const Share s = share((n + 63) / 64, team);
    return {s.begin * 64, s.end * 64 < n ? s.end * 64 : n};
}

// Workers for `work` elements: one below 64 Ki, as the default, but counted by what is really done.
JF_INLINE int32_t workers_for(int64_t work, int32_t most) { return work < 65536 ? 1 : most; }

}  // namespace
}  // namespace jackfield

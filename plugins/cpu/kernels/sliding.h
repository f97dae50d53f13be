// Windows that slide over the last axes of a tensor. All is seen with three such axes; missing ones come first and have
// one window of one element.
#pragma once
#include "simd.h"
#include "views.h"

namespace jackfield {
namespace {

constexpr int AXES = 3;

// A tensor as pictures [batch][channel] of up to three axes.
struct Pictures {
    char* data;
    DType dtype;
    int64_t batch, channel, axis[AXES], extent[AXES];  // the first ones are strides in bytes

    // axes: how many slide; the two before them are batch and channels, or pairs of both on one axis where pairs is the
    // number of channels.
    JF_INLINE Pictures(const View& v, int axes, int64_t pairs = 0) : data(v.data), dtype(v.dtype) {
        for (int i = 0; i < AXES; i++) {
            const int at = RANK - AXES + i;
            const bool there = i >= AXES - axes;
            axis[i] = there ? v.stride[at] : 0;
            extent[i] = there ? v.shape[at] : 1;
        }
        const int last = RANK - axes - 1;
        channel = last >= 0 ? v.stride[last] : 0;
        batch = pairs ? channel * pairs : last >= 1 ? v.stride[last - 1] : 0;
    }
    JF_INLINE char* row(int64_t n, int64_t c, int64_t i, int64_t j) const {
        return data + n * batch + c * channel + i * axis[0] + j * axis[1];
    }
};

// What the attribute says of sliding axis i of `axes`.
JF_INLINE int64_t of_axis(const Attr& attr, int i, int axes) {
    const int at = i - (AXES - axes);
    return !attr.is_tuple ? attr.integer : at < attr.count ? attr.integers[at] : 0;
}

struct Slide {
    int64_t kernel[AXES], stride[AXES], padding[AXES], dilation[AXES];

    JF_INLINE explicit Slide(int) {
        for (int i = 0; i < AXES; i++) kernel[i] = stride[i] = dilation[i] = 1, padding[i] = 0;
    }
    JF_INLINE void read(const Attr& attr, int64_t (&into)[AXES], int axes) {
        for (int i = AXES - axes; i < AXES; i++) into[i] = of_axis(attr, i, axes);
    }
    // Where element k of window o lies on axis i; it may lie outside.
    JF_INLINE int64_t place(int i, int64_t o, int64_t k) const { return o * stride[i] - padding[i] + k * dilation[i]; }
};

// Element k of every window along the last axis, as f32: n of them, `fill` for those outside of the row, or for all
// where there is no row.
template <DType D>
JF_INLINE void take_line(const Slide& slide, const Pictures& x, const char* row, int64_t k, float fill, float* to,
                         int64_t n) {
    const int64_t extent = x.extent[2], step = slide.stride[2], first = slide.place(2, 0, k), size = x.axis[2];
    int64_t begin = first < 0 ? (step - 1 - first) / step : 0;
    int64_t end = first < extent ? (extent - 1 - first) / step + 1 : 0;
    if (!row || begin >= n || end <= begin) begin = end = 0;
    end = end < n ? end : n;
    for (int64_t i = 0; i < begin; i++) to[i] = fill;
    const char* from = row + (first + begin * step) * size;
    int64_t i = begin;
    if (step == 1 && size == bytes_of<D>)
        for (; i + W <= end; i += W, from += W * bytes_of<D>) store<F32>((char*)(to + i), load<D>(from));
    for (; i < end; i++, from += step * size) to[i] = load_one<D>(from);
    for (; i < n; i++) to[i] = fill;
}

JF_INLINE void take_line(const Slide& slide, const Pictures& x, const char* row, int64_t k, float fill, float* to,
                         int64_t n) {
    if (x.dtype == F32) return take_line<F32>(slide, x, row, k, fill, to, n);
    if (x.dtype == F16) return take_line<F16>(slide, x, row, k, fill, to, n);
    take_line<BF16>(slide, x, row, k, fill, to, n);
}

// The row of x that element (i, j) of window row (o0, o1) needs; null outside.
JF_INLINE const char* row_of(const Slide& slide, const Pictures& x, int64_t n, int64_t c, const int64_t (&o)[2],
                             const int64_t (&k)[2]) {
    const int64_t i = slide.place(0, o[0], k[0]), j = slide.place(1, o[1], k[1]);
    if (i < 0 || i >= x.extent[0] || j < 0 || j >= x.extent[1]) return nullptr;
    return x.row(n, c, i, j);
}

// to[i] += weight * from[i]
JF_INLINE void add_line(const float* from, float weight, float* to, int64_t n) {
    int64_t i = 0;
    for (; i + W <= n; i += W) {
        const vf x = load<F32>((const char*)(from + i)), y = load<F32>((const char*)(to + i));
        store<F32>((char*)(to + i), fma(x, splat(weight), y));
    }
    for (; i < n; i++) to[i] += from[i] * weight;
}

// A finished line into a result of f32, f16 or bf16.
JF_INLINE void put_line(const View& out, const float* from, char* to, int64_t n) {
    const int64_t stride = out.stride[3];
    for (int64_t i = 0; i < n; i += W) {
        const int64_t m = n - i < W ? n - i : W;
        const char* const here = (const char*)(from + i);
        const vf whole = m == W ? load<F32>(here) : load_part<F32>(here, m);
        char lanes[W * 4];
        if (out.dtype == F32)
            store<F32>(lanes, whole);
        else if (out.dtype == F16)
            store<F16>(lanes, whole);
        else
            store<BF16>(lanes, whole);
        scatter(lanes, to + i * stride, stride, m, block_nbytes(out.dtype));
    }
}

JF_INLINE float one_of(const View& v, const char* p) {
    return v.dtype == F32 ? load_one<F32>(p) : v.dtype == F16 ? load_one<F16>(p) : load_one<BF16>(p);
}

JF_INLINE int64_t line_nbytes(int64_t n) { return (n * 4 + 63) / 64 * 64; }

}  // namespace
}  // namespace jackfield

// Norms: one pass or two over a row, then y = (x - shift) * factor + offset. A norm is a struct with a static
// Line of(row, n, eps), which works on f32, f16 and bf16 rows.
#pragma once
#include "simd.h"
#include "views.h"
#include "wide_sum.h"

namespace jackfield {
namespace {

constexpr Operand norm_operands[] = {{"x", ROWS, FLOATS}};
constexpr const char* const norm_attributes[] = {"eps", nullptr};

struct Line {
    float shift, factor, offset;
    JF_INLINE vf operator()(vf x) const { return fma(x - splat(shift), splat(factor), splat(offset)); }
};

// Sum of (x - shift)^2. In f32 by four vectors, a partial total of at most 4096 elements at a time; where that leaves
// f32's range, again in f64.
template <DType D>
JF_INLINE double squares(const char* x, int64_t n, float shift) {
    constexpr int size = bytes_of<D>;
    const vf c = splat(shift);
    double total = 0;
    int64_t i = 0;
    while (i + 4 * W <= n) {
        vf s0{}, s1{}, s2{}, s3{};
        const int64_t stop = n - i < 4096 ? n : i + 4096;
        for (; i + 4 * W <= stop; i += 4 * W) {
            const vf a = load<D>(x + i * size) - c, b = load<D>(x + (i + W) * size) - c;
            const vf d = load<D>(x + (i + 2 * W) * size) - c, e = load<D>(x + (i + 3 * W) * size) - c;
            s0 = fma(a, a, s0), s1 = fma(b, b, s1), s2 = fma(d, d, s2), s3 = fma(e, e, s3);
        }
        total += sum((s0 + s1) + (s2 + s3));
    }
    vf rest{};
    for (; i + W <= n; i += W) {
        const vf a = load<D>(x + i * size) - c;
        rest = fma(a, a, rest);
    }
    total += sum(rest);
    for (; i < n; i++) {
        const double a = double(load_one<D>(x + i * size)) - double(shift);
        total += a * a;
    }
    return total;
}

template <DType D>
inline double squares_wide(const char* x, int64_t n, double shift) {
    double total = 0;
    for (int64_t i = 0; i < n; i++) {
        const double a = double(load_one<D>(x + i * bytes_of<D>)) - shift;
        total += a * a;
    }
    return total;
}

template <DType D>
JF_INLINE double sum_of_squares(const char* x, int64_t n, double shift = 0) {
    const double total = squares<D>(x, n, float(shift));
    if (total > 1e-25 && total < 3e38) return total;
    return squares_wide<D>(x, n, shift);
}

template <class Norm>
struct Norms {
    template <DType D>
    JF_INLINE static void apply(const Line& line, const char* x, char* out, int64_t n) {
        constexpr int size = bytes_of<D>;
        int64_t i = 0;
        for (; i + W <= n; i += W) store<D>(out + i * size, line(load<D>(x + i * size)));
        if (i < n) store_part<D>(out + i * size, line(load_part<D>(x + i * size, n - i)), n - i);
    }

    template <DType D>
    static void scattered(const Line& line, const char* x, char* out, int64_t stride, int64_t n) {
        constexpr int64_t size = bytes_of<D>, most = 256;
        char buffer[most * size];
        for (int64_t i = 0; i < n; i += most) {
            const int64_t m = n - i < most ? n - i : most;
            apply<D>(line, x + i * size, buffer, m);
            scatter(buffer, out + i * stride, stride, m, size);
        }
    }

    template <DType D>
    static void rows(const Step& s, const Team& team) {
        const View &x = s.in[0], &out = s.out;
        const double eps = s.attr[0].number;
        const int64_t n = out.last();
        const bool lines = dense_rows(out);
        const Share part = share(out.rows(), team);
        RowWalk walk(out.shape, part.begin);
        for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
            const char* from = walk.row(x);
            const Line line = Norm::template of<D>(from, n, eps);
            if (lines)
                apply<D>(line, from, walk.row(out), n);
            else
                scattered<D>(line, from, walk.row(out), out.stride[3], n);
        }
    }

    static void run(const Step& s, const Team& team) {
        if (s.in[0].dtype == F32) return rows<F32>(s, team);
        if (s.in[0].dtype == F16) return rows<F16>(s, team);
        rows<BF16>(s, team);
    }
};

}  // namespace
}  // namespace jackfield

#define JF_NORM(name, Type) \
    JF_KERNEL(name, norm_operands, norm_attributes, FLOATS, nullptr, Norms<Type>::run, nullptr, nullptr, nullptr)

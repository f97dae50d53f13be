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

// Sums of x - shift (where asked for) and of its square.
struct Moments {
    double first, second;
};

// In f32 by four vectors, a partial total of at most 4096 elements at a time.
template <DType D, bool FIRST>
JF_INLINE Moments moments(const char* x, int64_t n, float shift) {
    constexpr int size = bytes_of<D>;
    const vf c = splat(shift);
    Moments all{0, 0};
    int64_t i = 0;
    while (i + 4 * W <= n) {
        vf s0{}, s1{}, s2{}, s3{}, f0{}, f1{};
        const int64_t stop = n - i < 4096 ? n : i + 4096;
        for (; i + 4 * W <= stop; i += 4 * W) {
            const vf a = load<D>(x + i * size) - c, b = load<D>(x + (i + W) * size) - c;
            const vf d = load<D>(x + (i + 2 * W) * size) - c, e = load<D>(x + (i + 3 * W) * size) - c;
            s0 = fma(a, a, s0), s1 = fma(b, b, s1), s2 = fma(d, d, s2), s3 = fma(e, e, s3);
            if (FIRST) f0 += a + b, f1 += d + e;
        }
        all.second += sum((s0 + s1) + (s2 + s3));
        if (FIRST) all.first += sum(f0 + f1);
    }
    vf rest{}, first{};
    for (; i + W <= n; i += W) {
        const vf a = load<D>(x + i * size) - c;
        rest = fma(a, a, rest);
        first += a;
    }
    all.second += sum(rest);
    if (FIRST) all.first += sum(first);
    for (; i < n; i++) {
        const double a = double(load_one<D>(x + i * size)) - double(shift);
        all.second += a * a;
        all.first += a;
    }
    return all;
}

template <DType D>
inline Moments moments_wide(const char* x, int64_t n, double shift) {
    Moments all{0, 0};
    for (int64_t i = 0; i < n; i++) {
        const double a = double(load_one<D>(x + i * bytes_of<D>)) - shift;
        all.first += a;
        all.second += a * a;
    }
    return all;
}

// Where f32's range does not do, in f64.
template <DType D, bool FIRST>
JF_INLINE Moments safe_moments(const char* x, int64_t n, float shift) {
    const Moments all = moments<D, FIRST>(x, n, shift);
    if (all.second > 1e-25 && all.second < 3e38) return all;
    return moments_wide<D>(x, n, shift);
}

template <DType D>
JF_INLINE double sum_of_squares(const char* x, int64_t n) {
    return safe_moments<D, false>(x, n, 0).second;
}

// Near the mean: a sum in f32, or in f64 where that leaves its range.
template <DType D>
JF_INLINE float rough_mean(const char* x, int64_t n) {
    constexpr int size = bytes_of<D>;
    vf a{}, b{}, c{}, d{};
    int64_t i = 0;
    for (; i + 4 * W <= n; i += 4 * W) {
        a += load<D>(x + i * size), b += load<D>(x + (i + W) * size);
        c += load<D>(x + (i + 2 * W) * size), d += load<D>(x + (i + 3 * W) * size);
    }
    for (; i + W <= n; i += W) a += load<D>(x + i * size);
    if (i < n) b += load_part<D>(x + i * size, n - i);
    const float total = sum((a + b) + (c + d));
    if (total > -3e38f && total < 3e38f) return total / float(n);
    return float(wide_sum<D>(x, n) / double(n));
}

template <class Norm>
struct Norms {
    template <DType D>
    JF_INLINE static void apply(const Line& line, const char* x, char* out, int64_t n, int64_t ahead = 0) {
        constexpr int size = bytes_of<D>;
        int64_t i = 0;
        if (ahead)  // the next row is fetched while this one is written
            for (; i + W <= n; i += W) {
                __builtin_prefetch(x + i * size + ahead);
                store<D>(out + i * size, line(load<D>(x + i * size)));
            }
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
                apply<D>(line, from, walk.row(out), n, r + 1 < part.end ? x.stride[2] : 0);
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

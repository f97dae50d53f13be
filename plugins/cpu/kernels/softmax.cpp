#include "simd.h"
#include "slopes.h"
#include "views.h"
#include "wide_sum.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"x", ROWS, bit(F32)}, {"mask", ROWS, bit(F32) | bit(F16)}, {"sinks", ANY, bit(F32)}};
constexpr const char* const attributes[] = {"scale", "max_bias", nullptr};

// What one row needs beside its data. mask: null for none. sink: -inf for none.
struct Row {
    const char* mask;
    float scale, slope, sink;
};

// z = scale*x + slope*mask. Keeps z's maximum, and whether a NaN was met, in `top` and `bad`.
template <DType M>
JF_INLINE void logits(const Row& row, const char* x, char* z, int64_t n, vf& top, vi& bad) {
    const vf scale = splat(row.scale), slope = splat(row.slope);
    int64_t i = 0;
    for (; i + W <= n; i += W) {
        vf v = load<F32>(x + i * 4) * scale;
        if (row.mask) v = v + slope * load<M>(row.mask + i * bytes_of<M>);
        store<F32>(z + i * 4, v);
        top = max(v, top);
        bad |= (vi)(v != v);
    }
    if (i == n) return;
    vf v = load_part<F32>(x + i * 4, n - i) * scale;
    if (row.mask) v = v + slope * load_part<M>(row.mask + i * bytes_of<M>, n - i);
    store_part<F32>(z + i * 4, v, n - i);
    for (int64_t j = i; j < n; j++) {
        const vf one = splat(load_one<F32>(z + j * 4));
        top = max(one, top);
        bad |= (vi)(one != one);
    }
}

JF_INLINE void fill(char* to, float value, int64_t n) {
    int64_t i = 0;
    for (; i + W <= n; i += W) store<F32>(to + i * 4, splat(value));
    if (i < n) store_part<F32>(to + i * 4, splat(value), n - i);
}

// e^(z - m) in place; its sum.
JF_INLINE double exponentials(char* z, int64_t n, float m) {
    const vf shift = splat(m);
    WideSum total;
    int64_t i = 0;
    for (; i + W <= n; i += W) {
        const vf e = exp(load<F32>(z + i * 4) - shift);
        store<F32>(z + i * 4, e);
        total.add(e);
    }
    if (i < n) {
        store_part<F32>(z + i * 4, exp(load_part<F32>(z + i * 4, n - i) - shift), n - i);
        total.add(load_part<F32>(z + i * 4, n - i));
    }
    return total.total();
}

template <DType M>
inline void softmax_row(const Row& row, const char* x, char* z, int64_t n) {
    vf top = splat(-__builtin_inff());
    vi bad{};
    logits<M>(row, x, z, n, top, bad);
    float m = largest(top);
    if (row.sink > m) m = row.sink;
    if (m == -__builtin_inff()) return fill(z, any(bad) ? __builtin_nanf("") : 0.0f, n);  // nothing kept, or only NaN
    double total = exponentials(z, n, m);
    if (row.sink != -__builtin_inff()) total += double(exp(splat(row.sink - m))[0]);
    const vf factor = splat(float(1 / total));
    int64_t i = 0;
    for (; i + W <= n; i += W) store<F32>(z + i * 4, load<F32>(z + i * 4) * factor);
    if (i < n) store_part<F32>(z + i * 4, load_part<F32>(z + i * 4, n - i) * factor, n - i);
}

void run(const Step& s, const Team& team) {
    const View &x = s.in[0], &mask = s.in[1], &sinks = s.in[2], &out = s.out;
    const int64_t n = out.last();
    const bool lines = dense_rows(out);
    Row row{nullptr, float(s.attr[0].number), 1, -__builtin_inff()};
    const Share part = share(out.rows(), team);
    RowWalk walk(out.shape, part.begin);
    for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
        const int64_t head = walk.at[1];
        if (mask) {
            row.mask = mask.data + walk.at[0] % mask.shape[0] * mask.stride[0] + head % mask.shape[1] * mask.stride[1] +
                       walk.at[2] * mask.stride[2];
            row.slope = slope(head, x.shape[1], s.attr[1].number);
        }
        if (sinks) row.sink = load_one<F32>(sinks.data + head * sinks.stride[3]);
        char* to = lines ? walk.row(out) : team.scratch + team.index * n * 4;
        if (mask && mask.dtype == F16)
            softmax_row<F16>(row, walk.row(x), to, n);
        else
            softmax_row<F32>(row, walk.row(x), to, n);
        if (!lines) scatter(to, walk.row(out), out.stride[3], n, 4);
    }
}

// A result whose last axis has gaps is made in work memory first.
int64_t scratch(const Step& s, int32_t workers) { return dense_rows(s.out) ? 0 : s.out.last() * 4 * workers; }

}  // namespace
}  // namespace jackfield

JF_KERNEL(softmax, operands, attributes, bit(F32), nullptr, run, nullptr, scratch, nullptr)

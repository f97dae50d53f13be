#include "simd.h"
#include "slopes.h"
#include "views.h"
#include "wide_sum.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"x", ROWS, bit(F32)}, {"mask", ROWS, bit(F32) | bit(F16)}, {"sinks", ANY, bit(F32)}};
constexpr const char* const attributes[] = {"scale", "max_bias", nullptr};

constexpr int UNROLL = 4;

// What one row needs beside its data. mask: null for none. sink: -inf for none.
struct Row {
    const char* mask;
    float scale, slope, sink;
};

// W logits from element i on: scale*x + slope*mask.
template <DType M, bool MASKED>
JF_INLINE vf logits(Row row, const char* x, int64_t i) {
    const vf v = load<F32>(x + i * 4) * splat(row.scale);
    return MASKED ? v + splat(row.slope) * load<M>(row.mask + i * bytes_of<M>) : v;
}
template <DType M, bool MASKED>
JF_INLINE vf last_logits(Row row, const char* x, int64_t i, int64_t n) {
    const vf v = load_part<F32>(x + i * 4, n - i) * splat(row.scale);
    return MASKED ? v + splat(row.slope) * load_part<M>(row.mask + i * bytes_of<M>, n - i) : v;
}

// The largest logit; NaNs are passed over.
template <DType M, bool MASKED>
JF_INLINE float largest_logit(Row row, const char* x, int64_t n) {
    const vf least = splat(-__builtin_inff());
    vf top[UNROLL];
    for (vf& t : top) t = least;
    int64_t i = 0;
    for (; i + UNROLL * W <= n; i += UNROLL * W)
        for (int k = 0; k < UNROLL; k++) {
            top[k] = max(logits<M, MASKED>(row, x, i + k * W), top[k]);
        }
    for (; i + W <= n; i += W) top[0] = max(logits<M, MASKED>(row, x, i), top[0]);
    float m = largest(max(max(top[0], top[1]), max(top[2], top[3])));
    if (i == n) return m;
    const vf rest = last_logits<M, MASKED>(row, x, i, n);
    for (int64_t j = 0; j < n - i; j++) m = rest[j] > m ? rest[j] : m;
    return m;
}

template <DType M, bool MASKED>
inline bool holds_nan(Row row, const char* x, int64_t n) {
    vi bad{};
    int64_t i = 0;
    for (; i + W <= n; i += W) {
        const vf v = logits<M, MASKED>(row, x, i);
        bad |= (vi)(v != v);
    }
    const vf rest = i < n ? last_logits<M, MASKED>(row, x, i, n) : vf{};
    return any(bad | (vi)(rest != rest));
}

JF_INLINE void fill(char* to, float value, int64_t n) {
    int64_t i = 0;
    for (; i + W <= n; i += W) store<F32>(to + i * 4, splat(value));
    if (i < n) store_part<F32>(to + i * 4, splat(value), n - i);
}

// e^(logit - m), and its sum: four vectors are added up before they are widened. The row `ahead` bytes further is asked
// for on the way: a row of x is too short for the hardware to foresee the next.
template <DType M, bool MASKED>
JF_INLINE double exponentials(Row row, const char* x, char* z, int64_t n, float m, int64_t ahead) {
    const vf shift = splat(m);
    WideSum total;
    int64_t i = 0;
    for (; i + UNROLL * W <= n; i += UNROLL * W) {
        vf e[UNROLL];
        for (int k = 0; k < UNROLL; k++) {
            if (k * W % 16 == 0) __builtin_prefetch(x + ahead + (i + k * W) * 4);
            e[k] = exp(logits<M, MASKED>(row, x, i + k * W) - shift);
            store<F32>(z + (i + k * W) * 4, e[k]);
        }
        total.add((e[0] + e[1]) + (e[2] + e[3]));
    }
    for (; i + W <= n; i += W) {
        const vf e = exp(logits<M, MASKED>(row, x, i) - shift);
        store<F32>(z + i * 4, e);
        total.add(e);
    }
    if (i < n) {
        store_part<F32>(z + i * 4, exp(last_logits<M, MASKED>(row, x, i, n) - shift), n - i);
        total.add(load_part<F32>(z + i * 4, n - i));
    }
    return total.total();
}

// ahead: bytes from x to the next row of it.
template <DType M, bool MASKED>
inline void softmax_row(Row row, const char* x, char* z, int64_t n, int64_t ahead) {
    float m = largest_logit<M, MASKED>(row, x, n);
    if (row.sink > m) m = row.sink;
    if (m == -__builtin_inff())  // nothing kept, or only NaN
        return fill(z, holds_nan<M, MASKED>(row, x, n) ? __builtin_nanf("") : 0.0f, n);
    double total = exponentials<M, MASKED>(row, x, z, n, m, ahead);
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
        if (!mask)
            softmax_row<F32, false>(row, walk.row(x), to, n, x.stride[2]);
        else if (mask.dtype == F16)
            softmax_row<F16, true>(row, walk.row(x), to, n, x.stride[2]);
        else
            softmax_row<F32, true>(row, walk.row(x), to, n, x.stride[2]);
        if (!lines) scatter(to, walk.row(out), out.stride[3], n, 4);
    }
}

// A result whose last axis has gaps is made in work memory first.
int64_t scratch(const Step& s, int32_t workers) { return dense_rows(s.out) ? 0 : s.out.last() * 4 * workers; }

}  // namespace
}  // namespace jackfield

JF_KERNEL(softmax, operands, attributes, bit(F32), nullptr, run, nullptr, scratch, nullptr)

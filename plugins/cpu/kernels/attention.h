// What both ways of attention share: extents, the columns a query may see, masks, work memory, the result's rows.
#pragma once
#include "simd.h"
#include "slopes.h"
#include "views.h"

namespace jackfield {
namespace {

enum { Q_, K_, V_, MASK_, SINKS_, KV_ROWS_, KV_LEN_ };
enum { SCALE_, CAUSAL_, WINDOW_, MAX_BIAS_, SOFTCAP_ };

// A column that is not kept has this weight. It is no result of exp, so "weight 0" and "must not be read" differ.
constexpr float NOT_KEPT = -0.0f;
constexpr float INFINITE = __builtin_inff();

JF_INLINE bool not_kept(float p) {
    uint32_t b;
    memcpy(&b, &p, 4);
    return b == 0x80000000u;
}

struct Range {
    int64_t low, high;  // columns low .. high-1
    JF_INLINE int64_t count() const { return high > low ? high - low : 0; }
};

JF_INLINE int64_t rounded(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

struct Extents {
    int64_t S, H, T, N, DK, DV, groups, share;  // N: columns; groups: K/V heads; share: query heads of each
    int64_t window;
    float scale, softcap;
    bool causal;

    JF_INLINE explicit Extents(const Step& s) {
        const View &q = s.in[Q_], &k = s.in[K_];
        S = q.shape[0], H = q.shape[1], T = q.shape[2], DK = q.shape[3];
        groups = k.shape[1], N = s.in[KV_ROWS_] ? s.in[KV_ROWS_].shape[3] : k.shape[2], DV = s.in[V_].shape[3];
        share = H / groups;
        scale = float(s.attr[SCALE_].number);
        softcap = float(s.attr[SOFTCAP_].number);
        causal = s.attr[CAUSAL_].integer != 0;
        window = s.attr[WINDOW_].integer;
    }

    // What query t sees where `length` columns are valid.
    JF_INLINE Range range(int64_t length, int64_t t) const {
        const int64_t position = length - T + t;
        Range r{0, length};
        if (window > 0 && position - window + 1 > 0) r.low = position - window + 1;
        if (causal && position + 1 < length) r.high = position + 1;
        return r;
    }

    // The valid columns of stream s; a bad count is a fault and counts as 0.
    JF_INLINE int64_t length(const Step& step, int64_t s) const {
        const View& kv_len = step.in[KV_LEN_];
        if (!kv_len) return N;
        int32_t n;
        memcpy(&n, kv_len.data + s * kv_len.stride[3], 4);
        if (n >= 0 && n <= N) return n;
        set_fault(step, FAULT_INDEX, KV_LEN_, n);
        return 0;
    }
};

// The mask's row of a query, or null.
JF_INLINE const char* mask_row(const Step& step, int64_t s, int64_t h, int64_t t) {
    const View& mask = step.in[MASK_];
    if (!mask) return nullptr;
    return mask.data + s % mask.shape[0] * mask.stride[0] + h % mask.shape[1] * mask.stride[1] + t * mask.stride[2];
}

JF_INLINE float mask_entry(DType d, const char* row, int64_t i) {
    return d == F16 ? load_one<F16>(row + i * 2) : load_one<F32>(row + i * 4);
}

JF_INLINE float head_slope(const Step& step, const Extents& x, int64_t h) {
    return slope(h, x.H, step.attr[MAX_BIAS_].number);
}

JF_INLINE vf capped(vf z, float softcap) { return softcap * tanh(z / softcap); }

// What the sink adds to a sum of weights relative to the maximum m; m and what was summed so far are rescaled.
struct Total {
    float factor;  // of what was summed
    float all;     // the sum of all weights
};
JF_INLINE Total with_sink(const Step& step, int64_t h, float m, float total) {
    const View& sinks = step.in[SINKS_];
    if (!sinks) return {1, total};
    const float sink = load_one<F32>(sinks.data + h * sinks.stride[3]);
    const float top = sink > m ? sink : m;
    if (top == -INFINITE) return {1, total};
    const float factor = m == -INFINITE ? 0 : exp(splat(m - top))[0];
    return {factor, total * factor + exp(splat(sink - top))[0]};
}

// The result's row: sums of weighted values, `step` floats apart, divided by the sum of weights; 0 where that is 0.
inline void store_result(const Step& s, int64_t stream, int64_t t, int64_t h, const float* sums, int64_t step,
                         Total total) {
    const View& out = s.out;
    char* const to = out.data + stream * out.stride[0] + t * out.stride[1] + h * out.stride[2];
    const float f = total.all == 0 ? 0 : total.factor / total.all;
    for (int64_t i = 0; i < out.shape[3]; i++) {
        const float y = total.all == 0 ? 0 : sums[i * step] * f;
        memcpy(to + i * out.stride[3], &y, 4);
    }
}

}  // namespace
}  // namespace jackfield

// Attention for many queries (prompts): tiles of 64 query rows by 64 columns. A query row is (token, head of the K/V
// head's group), token first, so that a tile's rows see nearly the same columns. All is kept transposed, query rows in
// the lanes: products need no transposed K, and the softmax over columns runs lane by lane without any reduction.
#pragma once
#include "attention.h"
#include "attention_blocks.h"

namespace jackfield {
namespace {

constexpr int64_t TILE = 64;
constexpr int STRIP = W == 16 ? 4 : 2;  // vectors of lanes a product keeps in registers, times 6 rows

// c[r][lane] = factor[lane]*c[r][lane] + sum over k of a[r, k]*b[k][lane], rows TILE floats apart; without `factor`
// c starts at 0. a: element (r, k) at r*a_row + k*a_k.
template <int R, int V>
JF_INLINE void product(const float* a, int64_t a_row, int64_t a_k, const float* b, int64_t n, float* c,
                       const float* factor) {
    vf acc[R][V];
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) {
            acc[r][v] = vf{};
            if (factor)
                acc[r][v] = load<F32>((const char*)(factor + v * W)) * load<F32>((const char*)(c + r * TILE + v * W));
        }
    for (int64_t k = 0; k < n; k++) {
        vf lanes[V];
        for (int v = 0; v < V; v++) lanes[v] = load<F32>((const char*)(b + k * TILE + v * W));
        for (int r = 0; r < R; r++) {
            const vf one = splat(a[r * a_row + k * a_k]);
            for (int v = 0; v < V; v++) acc[r][v] = fma(one, lanes[v], acc[r][v]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int v = 0; v < V; v++) store<F32>((char*)(c + r * TILE + v * W), acc[r][v]);
}

template <int V>
inline void product_rows(const float* a, int64_t a_row, int64_t a_k, const float* b, int64_t n, int64_t rows, float* c,
                         const float* factor) {
    int64_t r = 0;
    for (; r + 6 <= rows; r += 6) product<6, V>(a + r * a_row, a_row, a_k, b, n, c + r * TILE, factor);
    a += r * a_row;
    c += r * TILE;
    switch (rows - r) {
        case 5:
            return product<5, V>(a, a_row, a_k, b, n, c, factor);
        case 4:
            return product<4, V>(a, a_row, a_k, b, n, c, factor);
        case 3:
            return product<3, V>(a, a_row, a_k, b, n, c, factor);
        case 2:
            return product<2, V>(a, a_row, a_k, b, n, c, factor);
        case 1:
            return product<1, V>(a, a_row, a_k, b, n, c, factor);
    }
}

// As product, over `vectors` vectors of lanes.
inline void product_tile(const float* a, int64_t a_row, int64_t a_k, const float* b, int64_t n, int64_t rows, float* c,
                         const float* factor, int64_t vectors) {
    int64_t v = 0;
    for (; v + STRIP <= vectors; v += STRIP)
        product_rows<STRIP>(a, a_row, a_k, b + v * W, n, rows, c + v * W, factor ? factor + v * W : nullptr);
    for (; v < vectors; v++)
        product_rows<1>(a, a_row, a_k, b + v * W, n, rows, c + v * W, factor ? factor + v * W : nullptr);
}

// n elements to f32; true if one is inf or NaN.
template <DType D>
JF_INLINE bool widen_row(const char* from, float* to, int64_t n) {
    vi bad{};
    for (int64_t i = 0; i < n; i += W) {
        const vf v = n - i >= W ? load<D>(from + i * bytes_of<D>) : load_part<D>(from + i * bytes_of<D>, n - i);
        bad |= (vi)((bits_of(v) & 0x7f800000) == 0x7f800000);
        store<F32>((char*)(to + i), v);  // rows are padded to whole vectors
    }
    int32_t any = 0;
    for (int i = 0; i < W; i++) any |= bad[i];
    return any != 0;
}

JF_INLINE bool widen_row(DType d, const char* from, float* to, int64_t n) {
    if (d == F16) return widen_row<F16>(from, to, n);
    if (d == F32) return widen_row<F32>(from, to, n);
    if (d == BF16) return widen_row<BF16>(from, to, n);
    return with_coded(d, [&](auto type) { return widen_blocks<DType(type.dtype)>(from, to, n); });
}

struct Tiles {
    const Step& s;
    const Extents x;
    int64_t k_step, v_step;  // floats from one row to the next

    explicit Tiles(const Step& step)
        : s(step), x(step), k_step(rounded(step.in[K_].shape[3], W)), v_step(rounded(step.in[V_].shape[3], W)) {}

    // Work memory of one worker, in floats: queries, sums, logits, K, V; maximum, total, factor and bounds by lane.
    int64_t own_floats() const { return TILE * (x.DK + v_step + TILE + k_step + v_step) + 5 * TILE; }
    int64_t nbytes(int32_t workers) const { return own_floats() * 4 * workers; }

    struct Memory {
        float *queries, *sums, *logits, *keys, *values, *top, *total, *factor;
        int32_t *low, *high;
    };
    Memory memory(const Team& team) const {
        float* at = (float*)team.scratch + own_floats() * team.index;
        Memory m;
        m.queries = at, at += TILE * x.DK;
        m.sums = at, at += TILE * v_step;
        m.logits = at, at += TILE * TILE;
        m.keys = at, at += TILE * k_step;
        m.values = at, at += TILE * v_step;
        m.top = at, m.total = at + TILE, m.factor = at + 2 * TILE;
        m.low = (int32_t*)(at + 3 * TILE), m.high = (int32_t*)(at + 4 * TILE);
        return m;
    }

    // One tile of query rows.
    struct Block {
        int64_t stream, group, first, rows, vectors;  // vectors of lanes in use
        Range all, common;                            // columns any row sees, columns all rows see
    };

    void run(const Team& team) const {
        const Memory m = memory(team);
        const int64_t rows = x.T * x.share, blocks = (rows + TILE - 1) / TILE, count = x.S * x.groups * blocks;
        // The last tiles of a causal prompt see most columns: they go first, so that the end is even.
        for (int64_t i = next(team, -1); i < count; i = next(team, i)) {
            const int64_t block = blocks - 1 - i / (x.S * x.groups), head = i % (x.S * x.groups);
            run_block(head / x.groups, head % x.groups, block * TILE, m);
        }
    }
    static int64_t next(const Team& team, int64_t before) { return team.count > 1 ? team.next() : before + 1; }

    void run_block(int64_t stream, int64_t group, int64_t first, const Memory& m) const {
        Block b{stream, group, first, x.T * x.share - first < TILE ? x.T * x.share - first : TILE, 0, {}, {}};
        b.vectors = (b.rows + W - 1) / W;
        set_bounds(b, m);
        load_queries(b, m);
        for (int64_t i = 0; i < TILE; i++) m.top[i] = -INFINITE, m.total[i] = 0;
        for (int64_t i = 0; i < TILE * v_step; i++) m.sums[i] = 0;
        for (int64_t c = b.all.low; c < b.all.high; c += TILE)
            run_tile(b, c, b.all.high - c < TILE ? b.all.high - c : TILE, m);
        for (int64_t lane = 0; lane < b.rows; lane++) {
            const int64_t row = first + lane, h = group * x.share + row % x.share;
            store_result(s, stream, row / x.share, h, m.sums + lane, TILE, with_sink(s, h, m.top[lane], m.total[lane]));
        }
    }

    void set_bounds(Block& b, const Memory& m) const {
        const int64_t length = x.length(s, b.stream);
        b.all = {x.N, 0};
        b.common = {0, x.N};
        for (int64_t lane = 0; lane < TILE; lane++) {
            const Range r = lane < b.rows ? x.range(length, (b.first + lane) / x.share) : Range{0, 0};
            m.low[lane] = int32_t(r.low);
            m.high[lane] = int32_t(r.high > r.low ? r.high : r.low);
            if (lane >= b.rows) continue;
            if (r.count()) {
                b.all.low = r.low < b.all.low ? r.low : b.all.low;
                b.all.high = r.high > b.all.high ? r.high : b.all.high;
            }
            b.common.low = r.low > b.common.low ? r.low : b.common.low;
            b.common.high = r.high < b.common.high ? r.high : b.common.high;
        }
    }

    // queries[d][lane], scaled.
    void load_queries(const Block& b, const Memory& m) const {
        const View& q = s.in[Q_];
        for (int64_t lane = 0; lane < b.vectors * W; lane++) {
            const int64_t row = b.first + lane;
            const char* from = q.data + b.stream * q.stride[0] + (b.group * x.share + row % x.share) * q.stride[1] +
                               row / x.share * q.stride[2];
            for (int64_t d = 0; d < x.DK; d++)
                m.queries[d * TILE + lane] = lane < b.rows ? load_one<F32>(from + d * 4) * x.scale : 0;
        }
    }

    void run_tile(const Block& b, int64_t column, int64_t n, const Memory& m) const {
        bool dropped[TILE] = {};
        const bool special = load_tile(b, column, n, m, dropped);
        product_tile(m.keys, k_step, 1, m.queries, x.DK, n, m.logits, nullptr, b.vectors);
        if (x.softcap != 0) cap(n, b.vectors, m);
        if (s.in[MASK_]) add_mask(b, column, n, m);
        if (s.in[KV_ROWS_]) drop(n, m, dropped);
        const bool edge = s.in[MASK_] || s.in[KV_ROWS_] || column < b.common.low || column + n > b.common.high;
        for (int64_t v = 0; v < b.vectors; v++) softmax_lanes(column, n, v * W, edge, m);
        if (special && edge)
            weigh_kept(b, n, m);
        else
            product_tile(m.values, 1, v_step, m.logits, n, x.DV, m.sums, m.factor, b.vectors);
    }

    // K and V of a tile in f32; true if V holds inf or NaN. A column that a list leaves out is not read: zeros.
    bool load_tile(const Block& b, int64_t column, int64_t n, const Memory& m, bool* dropped) const {
        const View &k = s.in[K_], &v = s.in[V_], &list = s.in[KV_ROWS_];
        const int64_t stream = list ? 0 : b.stream;
        const char* const keys = k.data + stream * k.stride[0] + b.group * k.stride[1];
        const char* const values = v.data + stream * v.stride[0] + b.group * v.stride[1];
        bool special = false;
        for (int64_t i = 0; i < n; i++) {
            float *const key = m.keys + i * k_step, *const value = m.values + i * v_step;
            const int64_t row = list ? listed(b.stream, column + i) : column + i;
            if (row < 0) {
                dropped[i] = true;
                memset(key, 0, size_t(k_step) * 4);
                memset(value, 0, size_t(v_step) * 4);
                continue;
            }
            widen_row(k.dtype, keys + row * k.stride[2], key, x.DK);
            special |= widen_row(v.dtype, values + row * v.stride[2], value, x.DV);
        }
        return special;
    }

    // The cache row of a column, negative for padding. One beyond the cache is a fault and left out.
    int64_t listed(int64_t stream, int64_t column) const {
        const View& list = s.in[KV_ROWS_];
        int32_t row;
        memcpy(&row, list.data + stream * list.stride[2] + column * list.stride[3], 4);
        if (row < s.in[K_].shape[2]) return row;
        set_fault(s, FAULT_INDEX, KV_ROWS_, row);
        return -1;
    }

    static void drop(int64_t n, const Memory& m, const bool* dropped) {
        for (int64_t i = 0; i < n; i++)
            for (int64_t lane = 0; dropped[i] && lane < TILE; lane++) m.logits[i * TILE + lane] = -INFINITE;
    }

    void cap(int64_t n, int64_t vectors, const Memory& m) const {
        for (int64_t i = 0; i < n; i++)
            for (int64_t v = 0; v < vectors; v++) {
                char* at = (char*)(m.logits + i * TILE + v * W);
                store<F32>(at, capped(load<F32>(at), x.softcap));
            }
    }

    // An entry of -inf makes the logit -inf, whatever K holds.
    void add_mask(const Block& b, int64_t column, int64_t n, const Memory& m) const {
        const DType dtype = s.in[MASK_].dtype;
        for (int64_t lane = 0; lane < b.rows; lane++) {
            const int64_t row = b.first + lane, h = b.group * x.share + row % x.share;
            const char* mask = mask_row(s, b.stream, h, row / x.share);
            const float slope_ = head_slope(s, x, h);
            for (int64_t i = 0; i < n; i++) {
                const float entry = mask_entry(dtype, mask, column + i);
                float& z = m.logits[i * TILE + lane];
                z = entry == -INFINITE ? entry : z + slope_ * entry;
            }
        }
    }

    // One vector of lanes: logits become weights, the running maximum and total move on, `factor` rescales the past.
    void softmax_lanes(int64_t column, int64_t n, int64_t lane, bool edge, const Memory& m) const {
        vi low, high;
        memcpy(&low, m.low + lane, sizeof low);
        memcpy(&high, m.high + lane, sizeof high);
        float* const z = m.logits + lane;
        const vf before = load<F32>((char*)(m.top + lane));
        vf top = before;
        for (int64_t i = 0; i < n; i++) {
            vf v = load<F32>((char*)(z + i * TILE));
            if (edge) {
                const int32_t at = int32_t(column + i);
                v = ((low <= at) & (high > at)) ? v : splat(-INFINITE);
                store<F32>((char*)(z + i * TILE), v);
            }
            top = max(v, top);
        }
        const vf shift = top == -INFINITE ? vf{} : top;
        vf total{};
        for (int64_t i = 0; i < n; i++) {
            char* const at = (char*)(z + i * TILE);
            const vf v = load<F32>(at);
            vf e = exp(v - shift);
            total += e;
            if (edge) e = v == -INFINITE ? splat(NOT_KEPT) : e;
            store<F32>(at, e);
        }
        const vf factor = exp(before - shift);
        store<F32>((char*)(m.factor + lane), factor);
        store<F32>((char*)(m.total + lane), fma(load<F32>((char*)(m.total + lane)), factor, total));
        store<F32>((char*)(m.top + lane), top);
    }

    // As the second product, but a column that a lane does not keep is left out there: it may hold NaN.
    void weigh_kept(const Block& b, int64_t n, const Memory& m) const {
        for (int64_t lane = 0; lane < b.vectors * W; lane += W)
            for (int64_t d = 0; d < x.DV; d++) {
                char* const at = (char*)(m.sums + d * TILE + lane);
                vf acc = load<F32>(at) * load<F32>((char*)(m.factor + lane));
                for (int64_t i = 0; i < n; i++) {
                    const vf p = load<F32>((char*)(m.logits + i * TILE + lane));
                    const vf added = fma(p, splat(m.values[i * v_step + d]), acc);
                    acc = bits_of(p) == int32_t(0x80000000) ? acc : added;
                }
                store<F32>(at, acc);
            }
    }
};

}  // namespace
}  // namespace jackfield

// Attention for a few queries (decoding): for each K/V head, all its query heads go over the rows of K and V together.
// The columns are cut in pieces of a size that depends on the capacity alone; the parts (maximum, sum, vector) of the
// pieces are merged in order, so the bits do not depend on the number of workers.
#pragma once
#include "attention.h"
#include "attention_blocks.h"

namespace jackfield {
namespace {

constexpr int HEADS = W == 16 ? 4 : 2;  // query heads at a time: accumulators fit the registers

template <int... L>
struct Lanes {};
#if defined(__AVX512F__)
typedef Lanes<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15> AllLanes;
#elif defined(__AVX2__)
typedef Lanes<0, 1, 2, 3, 4, 5, 6, 7> AllLanes;
#else
typedef Lanes<0, 1, 2, 3> AllLanes;
#endif

// A step of summing two vectors over their lanes: a lane without the bit S holds a[lane] + a[lane ^ S], one with it the
// like of b. After all bits, from the highest on, lane i holds the sum of vector i.
template <int S, int... L>
JF_INLINE vf halved(vf a, vf b, Lanes<L...>) {
    return __builtin_shufflevector(a, b, ((L & S) ? L + W : L)...) +
           __builtin_shufflevector(a, b, ((L ^ S) + ((L & S) ? W : 0))...);
}
template <int S>
JF_INLINE vf halved(vf a, vf b) {
    return halved<S>(a, b, AllLanes());
}

constexpr int GROUPS = W / 4;

// The first two steps, for vectors GROUPS apart; then the rest, for what has become of vectors 0 .. GROUPS-1.
JF_INLINE vf begin_sums(const vf* x) { return halved<W / 4>(halved<W / 2>(x[0], x[2]), halved<W / 2>(x[1], x[3])); }
JF_INLINE vf end_sums(const vf* x) {
    if constexpr (W == 16) return halved<1>(halved<2>(x[0], x[2]), halved<2>(x[1], x[3]));
    if constexpr (W == 8) return halved<1>(x[0], x[1]);
    return x[0];
}

// z[h][i] = q[h] . k[i] for W rows from `row` on, in groups of four, so that their sums are made together. Heads lie
// `q_step` floats apart, padded with zeros to whole vectors.
template <class Keys, int N>
JF_INLINE void dots_of_vector(const float* q, int64_t q_step, Keys k, int64_t dk, int64_t row, float* z,
                              int64_t z_step) {
    const int64_t full = dk / W * W;
    vf sums[N][GROUPS];
    for (int64_t g = 0; g < GROUPS; g++) {
        vf acc[N][4] = {};
        for (int c = 0; c < 4; c++) k.fetch(row + g + c * GROUPS, 0, dk);
        for (int64_t d = 0; d < full; d += Keys::UNIT) {
            const auto place = k.place(row + g, d);
            for (int64_t e = 0; e < Keys::UNIT; e += W) {
                vf keys[4];
                for (int c = 0; c < 4; c++) keys[c] = place.load(c * GROUPS, e);
                for (int h = 0; h < N; h++) {
                    const vf v = load<F32>((const char*)(q + h * q_step + d + e));
                    for (int c = 0; c < 4; c++) acc[h][c] = fma(v, keys[c], acc[h][c]);
                }
            }
        }
        if (full < dk)
            for (int c = 0; c < 4; c++) {
                const vf key = k.part(row + g + c * GROUPS, full, dk - full);
                for (int h = 0; h < N; h++)
                    acc[h][c] = fma(load<F32>((const char*)(q + h * q_step + full)), key, acc[h][c]);
            }
        for (int h = 0; h < N; h++) sums[h][g] = begin_sums(acc[h]);
    }
    for (int h = 0; h < N; h++) store<F32>((char*)(z + h * z_step + row), end_sums(sums[h]));
}

// The same for one row.
template <class Keys, int N>
JF_INLINE void dots_of_one(const float* q, int64_t q_step, Keys k, int64_t dk, int64_t row, float* z, int64_t z_step) {
    const int64_t full = dk / W * W;
    for (int h = 0; h < N; h++) {
        const float* const one = q + h * q_step;
        vf acc{};
        for (int64_t d = 0; d < full; d += W) acc = fma(load<F32>((const char*)(one + d)), k.one(row, d), acc);
        if (full < dk) acc = fma(load<F32>((const char*)(one + full)), k.part(row, full, dk - full), acc);
        z[h * z_step + row] = sum(acc);
    }
}

template <class Keys, int N>
JF_INLINE void dots(const float* q, int64_t q_step, Keys k, int64_t dk, int64_t n, float* z, int64_t z_step) {
    if (n < W) {
        for (int64_t i = 0; i < n; i++) dots_of_one<Keys, N>(q, q_step, k, dk, i, z, z_step);
        return;
    }
    for (int64_t i = 0; i < n; i += W)  // at the end some of them once more: the bits are the same
        dots_of_vector<Keys, N>(q, q_step, k, dk, i + W <= n ? i : n - W, z, z_step);
}

// sums[h] = sum over n rows of weight * value, for `B` vectors of columns from d on. part: elements of the last vector.
template <class Values, int N, int B, bool CHECKED>
JF_INLINE void weigh(const float* p, int64_t p_step, Values v, int64_t d, int64_t n, int64_t part, float* sums,
                     int64_t step) {
    vf acc[N][B] = {};
    for (int64_t i = 0; i < n; i++) {
        vf values[B];
        v.fetch(i, d, B * W);
        if (part < W) {
            values[0] = v.part(i, d, part);
        } else if constexpr (B * W % Values::UNIT == 0) {
            for (int64_t u = 0; u < B * W; u += Values::UNIT) {
                const auto place = v.place(i, d + u);
                for (int64_t e = 0; e < Values::UNIT; e += W) values[(u + e) / W] = place.load(0, e);
            }
        } else {
            for (int b = 0; b < B; b++) values[b] = v.one(i, d + b * W);
        }
        for (int h = 0; h < N; h++) {
            const float one = p[h * p_step + i];
            if (CHECKED && not_kept(one)) continue;
            for (int b = 0; b < B; b++) acc[h][b] = fma(splat(one), values[b], acc[h][b]);
        }
    }
    for (int h = 0; h < N; h++)
        for (int b = 0; b < B; b++) store<F32>((char*)(sums + h * step + d + b * W), acc[h][b]);
}

template <class Values, int N, bool CHECKED>
JF_INLINE void weigh_all(const float* p, int64_t p_step, Values v, int64_t dv, int64_t n, float* sums, int64_t step) {
    int64_t d = 0;
    for (; d + 4 * W <= dv; d += 4 * W) weigh<Values, N, 4, CHECKED>(p, p_step, v, d, n, W, sums, step);
    for (; d < dv; d += W) weigh<Values, N, 1, CHECKED>(p, p_step, v, d, n, dv - d < W ? dv - d : W, sums, step);
}

// A part of one head: what a piece of columns adds.
struct Part {
    float top, total;
};

struct Rows {
    const Step& s;
    const Extents x;
    int64_t piece, most_pieces, q_step, v_step;  // floats

    explicit Rows(const Step& step) : s(step), x(step) {
        piece = rounded((x.N + 63) / 64, 32);
        if (piece < 128) piece = 128;
        most_pieces = x.N ? (x.N + piece - 1) / piece : 1;
        q_step = rounded(x.DK, W);
        v_step = rounded(x.DV, W);
    }

    // Work memory of one worker, in floats: queries, logits, scales and minimums of the keys, of the values.
    int64_t own_floats() const {
        return rounded(x.share * (q_step + piece) + factors(s.in[K_]) + factors(s.in[V_]), 16);
    }
    int64_t factors(const View& rows) const { return factors_of(rows.dtype, rows.last()) * piece; }
    int64_t parts() const { return x.S * x.groups * x.T * most_pieces * x.share; }
    int64_t nbytes(int32_t workers) const { return (own_floats() * workers + parts() * (v_step + 2)) * 4; }

    // A unit is (stream, K/V head, query).
    struct Unit {
        int64_t stream, group, t;
    };
    Unit unit(int64_t u) const { return {u / x.T / x.groups, u / x.T % x.groups, u % x.T}; }
    int64_t pieces(Range r) const { return (r.count() + piece - 1) / piece; }

    // Neighbouring rows of K and V of one head.
    struct Piece {
        const char *keys, *values;
        int64_t low, rows;
    };
    // The i-th piece of a unit that sees these columns; it may be empty.
    Piece piece_of(Unit u, Range r, int64_t i) const {
        const View &k = s.in[K_], &v = s.in[V_];
        const int64_t low = r.low + i * piece, rest = r.high - low;
        return {k.data + u.stream * k.stride[0] + u.group * k.stride[1] + low * k.stride[2],
                v.data + u.stream * v.stride[0] + u.group * v.stride[1] + low * v.stride[2], low,
                rest < piece ? rest : piece};
    }

    void run(const Team& team) const {
        float* const own = (float*)team.scratch + own_floats() * team.index;
        float* const sums = (float*)team.scratch + own_floats() * team.count;
        Part* const parts_ = (Part*)(sums + parts() * v_step);
        const int64_t units = x.S * x.groups * x.T;
        int64_t all = 0;
        for (int64_t u = 0; u < units; u++) all += pieces(range_of(u));
        const Share mine = share(all, team);
        int64_t first = 0;
        for (int64_t u = 0; u < units && first < mine.end; u++) {
            const Range r = range_of(u);
            const int64_t n = pieces(r), from = mine.begin > first ? mine.begin - first : 0;
            const int64_t to = mine.end - first < n ? mine.end - first : n;
            if (from < to) load_queries(unit(u), own);
            for (int64_t i = from; i < to; i++) {
                const int64_t at = (u * most_pieces + i) * x.share;
                const bool more = i + 1 < n, last = first + i + 1 == mine.end || (!more && u + 1 == units);
                const Piece next = last   ? Piece{nullptr, nullptr, 0, 0}
                                   : more ? piece_of(unit(u), r, i + 1)
                                          : piece_of(unit(u + 1), range_of(u + 1), 0);
                make_piece(unit(u), piece_of(unit(u), r, i), next, own, sums + at * v_step, parts_ + at);
            }
            first += n;
        }
        team.barrier();
        const Share heads = share(units * x.share, team);
        for (int64_t i = heads.begin; i < heads.end; i++) merge(i / x.share, i % x.share, sums, parts_);
    }

    Range range_of(int64_t u) const {
        const Unit at = unit(u);
        return x.range(x.length(s, at.stream), at.t);
    }

    // The queries of a unit in f32, scaled.
    void load_queries(Unit u, float* q) const {
        for (int64_t j = 0; j < x.share; j++) {
            const View& from = s.in[Q_];
            const char* row =
                from.data + u.stream * from.stride[0] + (u.group * x.share + j) * from.stride[1] + u.t * from.stride[2];
            for (int64_t d = 0; d < x.DK; d += W) {
                const vf v = x.DK - d >= W ? load<F32>(row + d * 4) : load_part<F32>(row + d * 4, x.DK - d);
                store<F32>((char*)(q + j * q_step + d), v * x.scale);
            }
        }
    }

    // next: what this worker goes on with; it is asked for while the first heads are worked on.
    void make_piece(Unit u, Piece p, Piece next, float* own, float* sums, Part* parts) const {
        const View &k = s.in[K_], &v = s.in[V_];
        float *const z = own + x.share * q_step, *const k_factors = z + x.share * piece;
        float* const v_factors = k_factors + factors(k);
        read_factors(k.dtype, p.keys, k.stride[2], p.rows, x.DK / 32, k_factors, piece);
        read_factors(v.dtype, p.values, v.stride[2], p.rows, x.DV / 32, v_factors, piece);
        for (int64_t j = 0; j < x.share; j += HEADS)
            with_rows(k, p.keys, k_factors, {next.keys, j ? 0 : next.rows},
                      [&](auto rows) { dots_of(rows, j, own, p.rows, z); });
        for (int64_t j = 0; j < x.share; j++)
            parts[j] = weights(u, u.group * x.share + j, p.low, p.rows, z + j * piece);
        for (int64_t j = 0; j < x.share; j += HEADS)
            with_rows(v, p.values, v_factors, {next.values, j ? 0 : next.rows},
                      [&](auto rows) { weigh_of(rows, j, z, p.rows, sums); });
    }

    // f(rows of K or V from `data` on): the one switch over their dtypes.
    template <class F>
    JF_INLINE void with_rows(const View& view, const char* data, const float* factors_, Following following,
                             F f) const {
        const int64_t step = view.stride[2];
        if (view.dtype == F16) return f(FloatRows<F16>{data, step, following});
        if (view.dtype == F32) return f(FloatRows<F32>{data, step, following});
        if (view.dtype == BF16) return f(FloatRows<BF16>{data, step, following});
        with_coded(view.dtype, [&](auto type) {
            const float* const minimums = factors_ + view.last() / 32 * piece;
            f(CodedRows<DType(type.dtype)>{data, step, factors_, minimums, piece, following});
        });
    }

    // Heads j .. j+HEADS-1 of a unit, as far as there are so many.
    template <class Keys>
    JF_INLINE void dots_of(Keys k, int64_t j, const float* queries, int64_t n, float* logits) const {
        const float* const q = queries + j * q_step;
        float* const z = logits + j * piece;
        const int64_t heads = x.share - j;
        if constexpr (HEADS == 4) {
            if (heads >= 4) return dots<Keys, 4>(q, q_step, k, x.DK, n, z, piece);
            if (heads == 3) return dots<Keys, 3>(q, q_step, k, x.DK, n, z, piece);
        }
        if (heads >= 2) return dots<Keys, 2>(q, q_step, k, x.DK, n, z, piece);
        dots<Keys, 1>(q, q_step, k, x.DK, n, z, piece);
    }

    template <class Values>
    JF_INLINE void weigh_of(Values v, int64_t j, const float* weights, int64_t n, float* all) const {
        const float* const p = weights + j * piece;
        float* const sums = all + j * v_step;
        const int64_t heads = x.share - j;
        if (s.in[MASK_]) {  // columns may be shut for one head only
            for (int64_t h = 0; h < heads && h < HEADS; h++)
                weigh_all<Values, 1, true>(p + h * piece, piece, v, x.DV, n, sums + h * v_step, v_step);
            return;
        }
        if constexpr (HEADS == 4) {
            if (heads >= 4) return weigh_all<Values, 4, false>(p, piece, v, x.DV, n, sums, v_step);
            if (heads == 3) return weigh_all<Values, 3, false>(p, piece, v, x.DV, n, sums, v_step);
        }
        if (heads >= 2) return weigh_all<Values, 2, false>(p, piece, v, x.DV, n, sums, v_step);
        weigh_all<Values, 1, false>(p, piece, v, x.DV, n, sums, v_step);
    }

    // Logits become weights relative to their maximum, in place.
    Part weights(Unit u, int64_t h, int64_t low, int64_t n, float* z) const {
        const char* mask = mask_row(s, u.stream, h, u.t);
        const float slope_ = mask ? head_slope(s, x, h) : 0;
        const DType dtype = s.in[MASK_].dtype;
        for (int64_t i = n; i < rounded(n, W); i++) z[i] = -INFINITE;  // the last vector
        if (x.softcap != 0)
            for (int64_t i = 0; i < n; i += W) {
                char* at = (char*)(z + i);
                store_part_or_whole(at, capped(load<F32>(at), x.softcap), n - i);
            }
        if (mask)
            for (int64_t i = 0; i < n; i++) {
                const float m = mask_entry(dtype, mask, low + i);
                z[i] = m == -INFINITE ? m : z[i] + slope_ * m;
            }
        vf top = splat(-INFINITE), total{};
        for (int64_t i = 0; i < n; i += W) top = max(load<F32>((char*)(z + i)), top);
        const float m = largest(top);
        const vf shift = splat(m == -INFINITE ? 0 : m);
        for (int64_t i = 0; i < n; i += W) {
            const vf e = exp(load<F32>((char*)(z + i)) - shift);
            total += e;
            store<F32>((char*)(z + i), e);
        }
        if (mask)
            for (int64_t i = 0; i < n; i++)
                if (mask_entry(dtype, mask, low + i) == -INFINITE) z[i] = NOT_KEPT;
        return {m, sum(total)};
    }

    static void store_part_or_whole(char* at, vf v, int64_t n) {
        if (n >= W)
            store<F32>(at, v);
        else
            store_part<F32>(at, v, n);
    }

    // Adds up the pieces of head j of a unit in the first one's place and writes the row.
    void merge(int64_t u, int64_t j, float* sums, const Part* parts) const {
        const Unit at = unit(u);
        const int64_t n = pieces(range_of(u)), first = u * most_pieces * x.share + j, h = at.group * x.share + j;
        float top = -INFINITE, total = 0;
        for (int64_t i = 0; i < n; i++) {
            const float t = parts[first + i * x.share].top;
            top = t > top ? t : top;
        }
        float* const into = sums + first * v_step;
        if (n == 0) memset(into, 0, size_t(v_step) * 4);
        for (int64_t i = 0; i < n; i++) {
            const Part& part = parts[first + i * x.share];
            const float f = part.top == top                            ? 1
                            : part.top == -INFINITE && part.total == 0 ? 0
                                                                       : exp(splat(part.top - top))[0];
            total += f * part.total;
            const float* from = into + i * x.share * v_step;
            for (int64_t d = 0; d < v_step; d += W) {
                const vf add = f == 0 ? vf{} : splat(f) * load<F32>((const char*)(from + d));
                const vf before = i == 0 ? vf{} : load<F32>((const char*)(into + d));
                store<F32>((char*)(into + d), before + add);
            }
        }
        store_result(s, at.stream, at.t, h, into, 1, with_sink(s, h, top, total));
    }
};

}  // namespace
}  // namespace jackfield

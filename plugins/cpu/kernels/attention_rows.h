// Attention for a few queries (decoding): for each K/V head, all its query heads go over the rows of K and V together.
// The columns are cut in pieces of a size that depends on the capacity alone; the parts (maximum, sum, vector) of the
// pieces are merged in order, so the bits do not depend on the number of workers.
#pragma once
#include "attention.h"

namespace jackfield {
namespace {

constexpr int HEADS = W == 16 ? 4 : 2;  // query heads at a time: accumulators fit the registers

#if !defined(__ARM_NEON)
JF_INLINE __m128 folded(vf x) {
#if defined(__AVX512F__)
    const __m256 y = _mm512_castps512_ps256(x) + _mm512_extractf32x8_ps(x, 1);
    return _mm256_castps256_ps128(y) + _mm256_extractf128_ps(y, 1);
#elif defined(__AVX2__)
    return _mm256_castps256_ps128(x) + _mm256_extractf128_ps(x, 1);
#else
    return x;
#endif
}
#endif

// Rows of one head lie far apart in a cache that is kept by token: the hardware does not see them coming.
constexpr int64_t AHEAD = 12;
JF_INLINE void fetch(const char* row, int64_t nbytes) {
    for (int64_t i = 0; i < nbytes; i += 64) __builtin_prefetch(row + i);
}

JF_INLINE void store_sums(const vf* x, float* to) {
#if defined(__ARM_NEON)
    vst1q_f32(to, vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3])));
#else
    __m128 a = folded(x[0]), b = folded(x[1]), c = folded(x[2]), d = folded(x[3]);
    _MM_TRANSPOSE4_PS(a, b, c, d);
    _mm_storeu_ps(to, (a + b) + (c + d));
#endif
}

// One query position: its heads lie `q_step` floats apart, padded with zeros to whole vectors.
template <DType D, int N>
JF_INLINE void dots(const float* q, int64_t q_step, const char* k, int64_t row, int64_t dk, int64_t n, float* z,
                    int64_t z_step) {
    const int64_t full = dk / W * W;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        vf acc[N][4] = {};
        const char* at = k + i * row;
        for (int c = 0; c < 4; c++) fetch(at + (c + AHEAD) * row, dk * bytes_of<D>);
        for (int64_t d = 0; d < full; d += W) {
            vf keys[4];
            for (int c = 0; c < 4; c++) keys[c] = load<D>(at + c * row + d * bytes_of<D>);
            for (int h = 0; h < N; h++) {
                const vf v = load<F32>((const char*)(q + h * q_step + d));
                for (int c = 0; c < 4; c++) acc[h][c] = fma(v, keys[c], acc[h][c]);
            }
        }
        if (full < dk)
            for (int c = 0; c < 4; c++) {
                const vf key = load_part<D>(at + c * row + full * bytes_of<D>, dk - full);
                for (int h = 0; h < N; h++)
                    acc[h][c] = fma(load<F32>((const char*)(q + h * q_step + full)), key, acc[h][c]);
            }
        for (int h = 0; h < N; h++) store_sums(acc[h], z + h * z_step + i);
    }
    for (; i < n; i++)
        for (int h = 0; h < N; h++) {
            vf acc{};
            for (int64_t d = 0; d < dk; d += W) {
                const char* at = k + i * row + d * bytes_of<D>;
                const vf key = d < full ? load<D>(at) : load_part<D>(at, dk - d);
                acc = fma(load<F32>((const char*)(q + h * q_step + d)), key, acc);
            }
            z[h * z_step + i] = sum(acc);
        }
}

// sums[h] = sum over n rows of weight * value, for `B` vectors of columns from d on. part: elements of the last vector.
template <DType D, int N, int B, bool CHECKED>
JF_INLINE void weigh(const float* p, int64_t p_step, const char* v, int64_t row, int64_t n, int64_t part, float* sums,
                     int64_t step) {
    vf acc[N][B] = {};
    for (int64_t i = 0; i < n; i++) {
        vf values[B];
        fetch(v + (i + AHEAD) * row, B * W * bytes_of<D>);
        for (int b = 0; b < B; b++) {
            const char* at = v + i * row + b * W * bytes_of<D>;
            values[b] = part == W ? load<D>(at) : load_part<D>(at, part);
        }
        for (int h = 0; h < N; h++) {
            const float one = p[h * p_step + i];
            if (CHECKED && not_kept(one)) continue;
            for (int b = 0; b < B; b++) acc[h][b] = fma(splat(one), values[b], acc[h][b]);
        }
    }
    for (int h = 0; h < N; h++)
        for (int b = 0; b < B; b++) store<F32>((char*)(sums + h * step + b * W), acc[h][b]);
}

template <DType D, int N, bool CHECKED>
JF_INLINE void weigh_all(const float* p, int64_t p_step, const char* v, int64_t row, int64_t n, int64_t dv, float* sums,
                         int64_t step) {
    int64_t d = 0;
    for (; d + 4 * W <= dv; d += 4 * W)
        weigh<D, N, 4, CHECKED>(p, p_step, v + d * bytes_of<D>, row, n, W, sums + d, step);
    for (; d < dv; d += W)
        weigh<D, N, 1, CHECKED>(p, p_step, v + d * bytes_of<D>, row, n, dv - d < W ? dv - d : W, sums + d, step);
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

    int64_t own_floats() const { return rounded(x.share * (q_step + piece), 16); }
    int64_t parts() const { return x.S * x.groups * x.T * most_pieces * x.share; }
    int64_t nbytes(int32_t workers) const { return (own_floats() * workers + parts() * (v_step + 2)) * 4; }

    // A unit is (stream, K/V head, query).
    struct Unit {
        int64_t stream, group, t;
    };
    Unit unit(int64_t u) const { return {u / x.T / x.groups, u / x.T % x.groups, u % x.T}; }
    int64_t pieces(Range r) const { return (r.count() + piece - 1) / piece; }

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
                const int64_t low = r.low + i * piece, count = r.high - low < piece ? r.high - low : piece;
                make_piece(unit(u), low, count, own, sums + at * v_step, parts_ + at);
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

    void make_piece(Unit u, int64_t low, int64_t n, float* own, float* sums, Part* parts) const {
        const View &k = s.in[K_], &v = s.in[V_];
        const char* keys = k.data + u.stream * k.stride[0] + u.group * k.stride[1] + low * k.stride[2];
        const char* values = v.data + u.stream * v.stride[0] + u.group * v.stride[1] + low * v.stride[2];
        float* const z = own + x.share * q_step;
        for (int64_t j = 0; j < x.share; j += HEADS) {
            const int heads = int(x.share - j < HEADS ? x.share - j : HEADS);
            by_dtype(k.dtype, heads, own + j * q_step, keys, n, z + j * piece);
        }
        for (int64_t j = 0; j < x.share; j++) parts[j] = weights(u, u.group * x.share + j, low, n, z + j * piece);
        for (int64_t j = 0; j < x.share; j += HEADS) {
            const int heads = int(x.share - j < HEADS ? x.share - j : HEADS);
            weigh_by_dtype(v.dtype, heads, z + j * piece, values, n, sums + j * v_step);
        }
    }

    template <int N>
    void by_dtype_n(DType d, const float* q, const char* keys, int64_t n, float* z) const {
        const int64_t row = s.in[K_].stride[2];
        if (d == F16) return dots<F16, N>(q, q_step, keys, row, x.DK, n, z, piece);
        if (d == F32) return dots<F32, N>(q, q_step, keys, row, x.DK, n, z, piece);
        dots<BF16, N>(q, q_step, keys, row, x.DK, n, z, piece);
    }
    void by_dtype(DType d, int heads, const float* q, const char* keys, int64_t n, float* z) const {
        if constexpr (HEADS == 4) {
            if (heads == 4) return by_dtype_n<4>(d, q, keys, n, z);
            if (heads == 3) return by_dtype_n<3>(d, q, keys, n, z);
        }
        if (heads == 2) return by_dtype_n<2>(d, q, keys, n, z);
        by_dtype_n<1>(d, q, keys, n, z);
    }

    template <int N, bool CHECKED>
    void weigh_n(DType d, const float* p, const char* values, int64_t n, float* sums) const {
        const int64_t row = s.in[V_].stride[2];
        if (d == F16) return weigh_all<F16, N, CHECKED>(p, piece, values, row, n, x.DV, sums, v_step);
        if (d == F32) return weigh_all<F32, N, CHECKED>(p, piece, values, row, n, x.DV, sums, v_step);
        weigh_all<BF16, N, CHECKED>(p, piece, values, row, n, x.DV, sums, v_step);
    }
    void weigh_by_dtype(DType d, int heads, const float* p, const char* values, int64_t n, float* sums) const {
        if (s.in[MASK_]) {  // columns may be shut for one head only
            for (int h = 0; h < heads; h++) weigh_n<1, true>(d, p + h * piece, values, n, sums + h * v_step);
            return;
        }
        if constexpr (HEADS == 4) {
            if (heads == 4) return weigh_n<4, false>(d, p, values, n, sums);
            if (heads == 3) return weigh_n<3, false>(d, p, values, n, sums);
        }
        if (heads == 2) return weigh_n<2, false>(d, p, values, n, sums);
        weigh_n<1, false>(d, p, values, n, sums);
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

// A part of the states of ssm_scan that shares no sum with the rest: up to a few vectors of elements of one head, or of
// heads where these have one element each. Elements are lanes, so that nothing is summed across lanes.
#pragma once
#include "functions.h"
#include "transpose.h"
#include "views.h"

namespace jackfield {
namespace {

enum { STATE, X, DT, A, B, C, IDS };

#if defined(__AVX512F__) || defined(__ARM_NEON)
constexpr int FULL = 4;  // vectors of lanes; four numbers of each are in registers while tokens pass
#else
constexpr int FULL = 2;
#endif
constexpr int64_t CHUNK = 32;  // tokens that pass before the next numbers of the state have their turn
constexpr int64_t FEW = 4;     // fewer tokens are not worth turning the state twice

JF_INLINE vf at(const float* p) { return load<F32>((const char*)p); }
JF_INLINE void put(float* p, vf x) { store<F32>((char*)p, x); }

// The first `count` elements of a line, zeros behind them.
JF_INLINE vf spaced(const char* p, int64_t step, int64_t count) {
    if (step == 4 && count >= W) return load<F32>(p);
    if (count <= 0) return vf{};
    const int64_t n = count < W ? count : W;
    if (step == 4) return load_part<F32>(p, n);
    float lanes[W] = {};
    gather(p, step, (char*)lanes, n, 4);
    return at(lanes);
}
JF_INLINE void store_first(char* p, vf x, int64_t count) {
    if (count >= W)
        store<F32>(p, x);
    else if (count > 0)
        store_part<F32>(p, x, count);
}
JF_INLINE vf within(vf x, int64_t count) {
    float lanes[W];
    memcpy(lanes, &x, sizeof lanes);
    for (int64_t i = count; i < W; i++) lanes[i] = 0;
    return at(lanes);
}

// Where the rows of numbers of some lanes lie.
struct Rows {
    char* data;
    int64_t step;  // bytes from one lane to the next

    JF_INLINE char* row(int64_t lane) const { return data + lane * step; }
};

// How the lanes of a scan are divided.
struct Division {
    bool by_heads;     // heads are lanes
    int64_t lanes;     // of a part, at most
    int64_t together;  // lanes that read the same b and c
    int64_t parts, groups;

    JF_INLINE explicit Division(const Step& s) {
        const View &x = s.in[X], &b = s.in[B];
        by_heads = x.last() == 1;
        together = by_heads ? (b.shape[2] ? x.shape[2] / b.shape[2] : 0) : x.last();
        lanes = by_heads || together <= W ? W : FULL * W;
        parts = (together + lanes - 1) / lanes;
        groups = by_heads ? b.shape[2] : x.shape[2];
    }
    JF_INLINE int64_t pieces(const Step& s) const { return s.in[X].shape[0] * groups * parts; }
};

// Work memory of one worker.
struct Memory {
    float *state, *rates, *fade, *input, *y, *steps;

    JF_INLINE static int64_t floats(const Step& s) {
        const int64_t n = s.in[STATE].last(), lanes = Division(s).lanes;
        return n * (lanes + W) + CHUNK * (W + 2 * lanes + 2);
    }
    JF_INLINE static int64_t nbytes(const Step& s) { return (floats(s) * 4 + 63) / 64 * 64; }
    JF_INLINE Memory(const Step& s, char* memory) {
        const int64_t n = s.in[STATE].last(), lanes = Division(s).lanes;
        state = (float*)memory;
        rates = state + n * lanes;
        fade = rates + n * W;
        input = fade + CHUNK * W;
        y = input + CHUNK * lanes;
        steps = y + CHUNK * lanes;
    }
};

struct Lanes {
    const Step& s;
    const Memory& memory;
    char* result;  // y, then the states, without gaps
    int64_t tokens, heads, elements, n, snapshots;
    bool by_heads, wide;  // wide: a rate of decay for each number
    int64_t sequence, head, first, count;

    JF_INLINE Lanes(const Step& step, const Division& d, int64_t piece, const Memory& m, char* to)
        : s(step), memory(m), result(to), snapshots(step.attr[0].integer), by_heads(d.by_heads) {
        const View& x = s.in[X];
        tokens = x.shape[1], heads = x.shape[2], elements = x.last(), n = s.in[STATE].last();
        wide = s.in[A].last() != 1;
        const int64_t part = piece % d.parts * d.lanes, group = piece / d.parts % d.groups;
        sequence = piece / d.parts / d.groups;
        count = d.together - part < d.lanes ? d.together - part : d.lanes;
        head = by_heads ? group * d.together + part : group;
        first = by_heads ? 0 : part;
    }

    JF_INLINE int64_t number() const { return head * elements + first; }  // of the first lane among all
    JF_INLINE char* output(int64_t t) const {
        return result + ((sequence * tokens + t) * heads * elements + number()) * 4;
    }
    JF_INLINE Rows snapshot(int64_t i) const {
        const int64_t count_of_y = s.in[X].size(), each = heads * elements;
        return {result + (count_of_y + ((i * s.in[X].shape[0] + sequence) * each + number()) * n) * 4, n * 4};
    }
    JF_INLINE Rows slot(int64_t i) const {
        const View& v = s.in[STATE];
        return {v.data + i * v.stride[0] + head * v.stride[1] + first * v.stride[2], v.stride[by_heads ? 1 : 2]};
    }
    JF_INLINE const char* grouped(int operand, int64_t t) const {
        const View& v = s.in[operand];
        return v.data + sequence * v.stride[0] + t * v.stride[1] + head / (heads / v.shape[2]) * v.stride[2];
    }
    JF_INLINE const char* taken(int64_t t) const {
        const View& dt = s.in[DT];
        return dt.data + sequence * dt.stride[1] + t * dt.stride[2] + head * dt.stride[3];
    }
    JF_INLINE Rows rates() const { return {s.in[A].data + head * s.in[A].stride[2], by_heads ? s.in[A].stride[2] : 0}; }
    JF_INLINE Rows inputs(int64_t t) const {
        const View& x = s.in[X];
        return {x.data + sequence * x.stride[0] + t * x.stride[1] + head * x.stride[2] + first * 4,
                by_heads ? x.stride[2] : 4};
    }

    JF_INLINE void copy(Rows from, Rows to) const {
        for (int64_t lane = 0; lane < count; lane++) memcpy(to.row(lane), from.row(lane), size_t(n) * 4);
    }
    JF_INLINE void clear() const {
        for (int64_t t = 0; t < tokens; t++) memset(output(t), 0, size_t(count) * 4);
        for (int64_t i = 0; i < snapshots; i++) memset(snapshot(i).data, 0, size_t(count * n) * 4);
    }

    // ---- one token, the numbers of a row side by side --------------------------------------------------------------

    // One row: gives y.
    template <bool WIDE>
    JF_INLINE float advance(const char* from, char* to, const char* rate, float d, float decay, float input,
                            const char* b, const char* c) const {
        const vf in = splat(input);
        vf y{};
        for (int64_t i = 0; i < n; i += W) {
            const int64_t rest = n - i;
            const vf fading = WIDE ? exp(spaced(rate + i * 4, 4, rest) * d) : splat(decay);
            const vf now = fma(spaced(b + i * 4, 4, rest), in, spaced(from + i * 4, 4, rest) * fading);
            store_first(to + i * 4, now, rest);
            y = rest >= W ? fma(now, load<F32>(c + i * 4), y) : y + within(now * spaced(c + i * 4, 4, rest), rest);
        }
        return sum(y);
    }
    template <bool WIDE>
    void token(int64_t t, Rows from, Rows to) const {
        const char *b = grouped(B, t), *c = grouped(C, t);
        const Rows rate = rates(), x = inputs(t);
        const int64_t gap = by_heads ? s.in[DT].stride[3] : 0;
        for (int64_t first_lane = 0; first_lane < count; first_lane += W) {
            const int64_t here = count - first_lane < W ? count - first_lane : W;
            float d[W], decay[W], input[W], y[W];
            const vf step = softplus(spaced(taken(t) + first_lane * gap, gap, here));
            put(d, step);
            if (!WIDE) put(decay, exp(spaced(rate.row(first_lane), rate.step, here) * step));
            put(input, spaced(x.row(first_lane), x.step, here) * step);
            for (int64_t i = 0; i < here; i++) {
                const int64_t lane = first_lane + i;
                y[i] = advance<WIDE>(from.row(lane), to.row(lane), rate.row(lane), d[i], WIDE ? 0 : decay[i], input[i],
                                     b, c);
            }
            memcpy(output(t) + first_lane * 4, y, size_t(here) * 4);
        }
    }

    // ---- many tokens -----------------------------------------------------------------------------------------------

    // What `size` tokens bring: step sizes where every number has a rate of its own and else what the state fades by,
    // the same in all vectors of lanes; and inputs times step sizes.
    template <int Q, bool WIDE>
    JF_INLINE void prepare(int64_t t, int64_t size) const {
        const View& dt = s.in[DT];
        const Rows rate = rates();
        if (by_heads) {
            const vf falling = WIDE ? vf{} : spaced(rate.data, rate.step, count);
            for (int64_t i = 0; i < size; i++) {
                const vf d = softplus(spaced(taken(t + i), dt.stride[3], count));
                const Rows x = inputs(t + i);
                put(memory.fade + i * W, WIDE ? d : exp(falling * d));
                put(memory.input + i * W, spaced(x.data, x.step, count) * d);
            }
            return;
        }
        float *steps = memory.steps, *decays = steps + CHUNK;
        const vf falling = WIDE ? vf{} : splat(load_one<F32>(rate.data));
        for (int64_t i = 0; i < size; i += W) {
            const vf d = softplus(spaced(taken(t + i), dt.stride[2], size - i));
            put(steps + i, d);
            put(decays + i, WIDE ? d : exp(falling * d));
        }
        for (int64_t i = 0; i < size; i++) {
            const char* x = inputs(t + i).data;
            put(memory.fade + i * W, splat(decays[i]));
            for (int q = 0; q < Q; q++)
                put(memory.input + (i * Q + q) * W, spaced(x + q * W * 4, 4, count - q * W) * steps[i]);
        }
    }

    // NB numbers of the state from `number` on, past `size` tokens.
    template <int NB, int Q, bool WIDE>
    JF_INLINE void pass(const char* b, const char* c, int64_t size, int64_t number_) const {
        float* const cells = memory.state + number_ * Q * W;
        const float *rate = memory.rates + number_ * W, *fade = memory.fade, *input = memory.input;
        const int64_t b_step = s.in[B].stride[1], c_step = s.in[C].stride[1];
        float* y = memory.y;
        vf state[NB][Q];
        for (int i = 0; i < NB; i++)
            for (int q = 0; q < Q; q++) state[i][q] = at(cells + (i * Q + q) * W);
        b += number_ * 4, c += number_ * 4;
        for (int64_t t = 0; t < size; t++, b += b_step, c += c_step, fade += W, input += Q * W, y += Q * W) {
            const vf fading = at(fade);
            vf in[Q], out[Q];
            for (int q = 0; q < Q; q++) in[q] = at(input + q * W), out[q] = at(y + q * W);
            for (int i = 0; i < NB; i++) {
                const vf taking = splat(load_one<F32>(b + i * 4)), reading = splat(load_one<F32>(c + i * 4));
                const vf falling = WIDE ? exp(at(rate + i * W) * fading) : fading;
                for (int q = 0; q < Q; q++) {
                    state[i][q] = fma(taking, in[q], state[i][q] * falling);
                    out[q] = fma(state[i][q], reading, out[q]);
                }
            }
            for (int q = 0; q < Q; q++) put(y + q * W, out[q]);
        }
        for (int i = 0; i < NB; i++)
            for (int q = 0; q < Q; q++) put(cells + (i * Q + q) * W, state[i][q]);
    }

    template <int Q, bool WIDE>
    void chunks(int64_t end) const {
        constexpr int NB = Q == 1 ? 8 : 4;
        for (int64_t t = 0; t < end; t += CHUNK) {
            const int64_t size = end - t < CHUNK ? end - t : CHUNK;
            prepare<Q, WIDE>(t, size);
            memset(memory.y, 0, size_t(size * Q * W) * 4);
            const char *b = grouped(B, t), *c = grouped(C, t);
            int64_t i = 0;
            for (; i + NB <= n; i += NB) pass<NB, Q, WIDE>(b, c, size, i);
            for (; i < n; i++) pass<1, Q, WIDE>(b, c, size, i);
            for (int64_t k = 0; k < size; k++)
                for (int q = 0; q < Q; q++)
                    store_first(output(t + k) + q * W * 4, at(memory.y + (k * Q + q) * W), count - q * W);
        }
    }

    // The first `end` tokens, with lanes for elements.
    template <int Q, bool WIDE>
    JF_INLINE void turned(int64_t end, Rows from, Rows to) const {
        constexpr int64_t across = Q * W * 4;
        if (count < Q * W) {  // else the lanes to spare may hold subnormal numbers, which are slow
            memset(memory.state, 0, size_t(n * across));
            memset(memory.rates, 0, size_t(n * W) * 4);
        }
        turn<4, false>({from.data, from.step, 4, (char*)memory.state, 4, across}, count, n);
        const Rows rate = rates();
        if (WIDE && by_heads) turn<4, false>({rate.data, rate.step, 4, (char*)memory.rates, 4, W * 4}, count, n);
        if (WIDE && !by_heads)
            for (int64_t i = 0; i < n; i++) put(memory.rates + i * W, splat(load_one<F32>(rate.data + i * 4)));
        chunks<Q, WIDE>(end);
        turn<4, false>({(const char*)memory.state, across, 4, to.data, 4, to.step}, n, count);
    }

    template <bool WIDE>
    JF_INLINE void run(Rows from) const {
        // Snapshot number j is the state before the last j tokens; those further back are what it began with.
        for (int64_t i = tokens; i < snapshots; i++) copy(from, snapshot(i));
        int64_t t = tokens < snapshots ? 0 : tokens - snapshots + 1;
        if (t >= FEW) {
            const Rows to = snapshot(tokens - t);
            if (count <= W)
                turned<1, WIDE>(t, from, to);
            else
                turned<FULL, WIDE>(t, from, to);
            from = to;
        } else
            t = 0;
        for (; t < tokens; t++) {
            const int64_t left = tokens - 1 - t;
            const Rows to = snapshot(left < snapshots ? left : snapshots - 1);
            token<WIDE>(t, from, to);
            from = to;
        }
    }
};

}  // namespace
}  // namespace jackfield

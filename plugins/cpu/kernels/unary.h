// Elementwise ops of one operand. An op is a struct made from the Step, with vf operator()(vf) const.
#pragma once
#include "simd.h"
#include "turned.h"
#include "views.h"

namespace jackfield {
namespace {

constexpr Operand unary_operands[] = {{"x", ANY, FLOATS}};

template <class Op, DType D>
JF_INLINE void unary_line(const Op& op, const char* x, char* out, int64_t n) {
    constexpr int size = bytes_of<D>;
    int64_t i = 0;
    for (; i + W <= n; i += W) store<D>(out + i * size, op(load<D>(x + i * size)));
    if (i < n) store_part<D>(out + i * size, op(load_part<D>(x + i * size, n - i)), n - i);
}

template <class Op>
struct Unary {
    template <DType D>
    static void strided_line(const Op& op, const char* x, int64_t xs, char* out, int64_t os, int64_t n) {
        constexpr int64_t size = bytes_of<D>, most = 256;
        char buffer[most * size];
        for (int64_t i = 0; i < n; i += most) {
            const int64_t m = n - i < most ? n - i : most;
            gather(x + i * xs, xs, buffer, m, size);
            unary_line<Op, D>(op, buffer, buffer, m);
            scatter(buffer, out + i * os, os, m, size);
        }
    }

    template <DType D>
    static void rows(const Op& op, const Step& s, const Team& team) {
        const View &x = s.in[0], &out = s.out;
        const bool lines = dense_rows(x) && dense_rows(out);
        constexpr int size = bytes_of<D>;
        const int of_x = turned_axis<size>(x), of_out = turned_axis<size>(out);
        if (of_x >= 0 && of_out < 0) return blocks<D>(op, exchanged(x, of_x), exchanged(out, of_x), of_x, team);
        if (of_x >= 0 || of_out >= 0) return blocks<D>(op, x, out, of_x >= 0 ? of_x : of_out, team);
        const Share part = share(out.rows(), team);
        RowWalk walk(out.shape, part.begin);
        for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
            if (lines)
                unary_line<Op, D>(op, walk.row(x), walk.row(out), out.last());
            else
                strided_line<D>(op, walk.row(x), x.stride[3], walk.row(out), out.stride[3], out.last());
        }
    }

    template <DType D>
    static void blocks(const Op& op, const View& whole_x, const View& whole_out, int axis, const Team& team) {
        constexpr int size = bytes_of<D>;
        const Blocks all(whole_out.shape, axis, size);
        const bool past = whole_out.size() * size >= PAST_CACHES;
        alignas(CACHE_LINE) char buffer[Blocks::NBYTES], made[Blocks::NBYTES];
        const Share part = share(all.count(), team);
        for (int64_t i = part.begin; i < part.end; i++) {
            const View out = all.of(whole_out, i), x = as_lines<size>(all.of(whole_x, i), buffer);
            const View next = all.of(whole_x, i + 1 < part.end ? i + 1 : i);
            const Target<size> target(out, past, made);
            if (target.past_turned && x.data != buffer && out.last() % SQUARE<size> == 0) {
                squares<D>(op, x, out, next);
                continue;
            }
            for (int64_t r = 0; r < out.shape[2]; r++) {
                unary_line<Op, D>(op, x.data + r * x.stride[2], target.made.data + r * target.made.stride[2],
                                  out.last());
                ask_for<size>(next, r);
            }
            target.store();
        }
        if (past) settle();
    }

    // A block whose result is turned, past the caches: one square is turned while the arithmetic of the next goes on.
    template <DType D>
    JF_INLINE static void squares(const Op& op, const View& x, const View& out, const View& next) {
        constexpr int size = bytes_of<D>;
        constexpr int64_t N = SQUARE<size>;
        alignas(CACHE_LINE) char made[N * CACHE_LINE];
        for (int64_t c = 0; c < out.last(); c += N)
            for (int64_t r = 0; r < out.shape[2]; r += N) {
                for (int64_t k = 0; k < N; k++) {
                    unary_line<Op, D>(op, x.data + (r + k) * x.stride[2] + c * size, made + k * CACHE_LINE, N);
                    __builtin_prefetch(next.data + (r + k) * next.stride[2] + c * size, 0, 2);  // L1 has no room
                }
                turn_square<size, true>(made, out.data + r * size + c * out.stride[3], out.stride[3], N, N);
            }
    }

    template <DType D>
    JF_INLINE static void any(const Step& s, const Team& team) {
        const Op op(s);
        if (!s.note[0]) return rows<D>(op, s, team);
        const Share part = share_lines(s.note[1], team);
        const int64_t at = part.begin * bytes_of<D>;
        if (part.begin < part.end) unary_line<Op, D>(op, s.in[0].data + at, s.out.data + at, part.end - part.begin);
    }

    static void run(const Step& s, const Team& team) {
        if (s.in[0].dtype == F32) return any<F32>(s, team);
        if (s.in[0].dtype == F16) return any<F16>(s, team);
        any<BF16>(s, team);
    }

    // note[0]: one dense line; note[1]: its elements.
    static void bind(Step& s) {
        s.note[0] = dense(s.in[0]) && dense(s.out);
        s.note[1] = s.out.size();
    }
};

}  // namespace
}  // namespace jackfield

// An op without attributes: JF_UNARY(silu, silu(x))
#define JF_UNARY(name, formula)                                                                            \
    namespace jackfield {                                                                                  \
    namespace {                                                                                            \
    struct Formula {                                                                                       \
        JF_INLINE explicit Formula(const Step&) {}                                                         \
        JF_INLINE vf operator()(vf x) const { return formula; }                                            \
    };                                                                                                     \
    constexpr const char* const no_attributes[] = {nullptr};                                               \
    }                                                                                                      \
    }                                                                                                      \
    JF_KERNEL(name, unary_operands, no_attributes, FLOATS, nullptr, Unary<Formula>::run, nullptr, nullptr, \
              Unary<Formula>::bind)

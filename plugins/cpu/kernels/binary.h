// Elementwise ops of two operands with numpy's broadcasting. An op is a struct with static vf of(vf, vf).
#pragma once
#include "simd.h"
#include "turned.h"
#include "views.h"

namespace jackfield {
namespace {

constexpr Operand binary_operands[] = {{"a", ANY, FLOATS}, {"b", ANY, FLOATS}};
constexpr const char* const binary_attributes[] = {nullptr};

// One of two operands may be f32 beside a half type; else they agree. The result has the dtype of a.
inline bool binary_why_not(const Step& s, Words& words) {
    const DType a = s.in[0].dtype, b = s.in[1].dtype;
    if (a == b || a == F32 || b == F32) return false;
    words << "a and b differ in dtype and neither is f32";
    return true;
}

// How an operand runs along the last axis.
enum Along { LINE, ONE };

template <class Op, DType A, DType B, Along AX, Along BX>
JF_INLINE void binary_line(const char* a, const char* b, char* out, int64_t n) {
    const vf a1 = splat(AX == ONE ? load_one<A>(a) : 0), b1 = splat(BX == ONE ? load_one<B>(b) : 0);
    int64_t i = 0;
    for (; i + W <= n; i += W) {
        const vf x = AX == ONE ? a1 : load<A>(a + i * bytes_of<A>), y = BX == ONE ? b1 : load<B>(b + i * bytes_of<B>);
        store<A>(out + i * bytes_of<A>, Op::of(x, y));
    }
    if (i == n) return;
    const vf x = AX == ONE ? a1 : load_part<A>(a + i * bytes_of<A>, n - i);
    const vf y = BX == ONE ? b1 : load_part<B>(b + i * bytes_of<B>, n - i);
    store_part<A>(out + i * bytes_of<A>, Op::of(x, y), n - i);
}

template <class Op>
struct Binary {
    // Ways of the f32 fast paths, chosen by bind.
    enum Way { GENERAL, FLAT, ROW, SCALAR };

    template <DType A, DType B>
    static void line(const char* a, int64_t as, const char* b, int64_t bs, char* out, int64_t n) {
        if (as && bs)
            binary_line<Op, A, B, LINE, LINE>(a, b, out, n);
        else if (as)
            binary_line<Op, A, B, LINE, ONE>(a, b, out, n);
        else if (bs)
            binary_line<Op, A, B, ONE, LINE>(a, b, out, n);
        else
            binary_line<Op, A, B, ONE, ONE>(a, b, out, n);
    }

    // Any strides on the last axis, by way of dense pieces.
    template <DType A, DType B>
    static void strided_line(const char* a, int64_t as, const char* b, int64_t bs, char* out, int64_t os, int64_t n) {
        constexpr int64_t most = 256;
        char abuf[most * bytes_of<A>], bbuf[most * bytes_of<B>], obuf[most * bytes_of<A>];
        for (int64_t i = 0; i < n; i += most) {
            const int64_t m = n - i < most ? n - i : most;
            gather(a + i * as, as, abuf, as ? m : 1, bytes_of<A>);
            gather(b + i * bs, bs, bbuf, bs ? m : 1, bytes_of<B>);
            line<A, B>(abuf, as, bbuf, bs, obuf, m);
            scatter(obuf, out + i * os, os, m, bytes_of<A>);
        }
    }

    static View stretched(View v, const View& to) {
        for (int axis = 0; axis < RANK; axis++)
            if (v.shape[axis] != to.shape[axis]) v.stride[axis] = 0;
        return v;
    }

    template <DType A, DType B>
    static void general(const Step& s, const Team& team) {
        const View &out = s.out, a = stretched(s.in[0], out), b = stretched(s.in[1], out);
        const int64_t n = out.last(), as = n == 1 ? 0 : a.stride[3], bs = n == 1 ? 0 : b.stride[3], os = out.stride[3];
        const int of_a = turned_axis<bytes_of<A>>(a), of_b = turned_axis<bytes_of<B>>(b),
                  of_out = turned_axis<bytes_of<A>>(out);
        if (of_a >= 0 && of_a == of_b && of_out < 0)  // turned once, when they are made one
            return blocks<A, B>(exchanged(a, of_a), exchanged(b, of_a), exchanged(out, of_a), of_a, team);
        const int turned = of_a >= 0 ? of_a : of_b >= 0 ? of_b : of_out;
        if (turned >= 0) return blocks<A, B>(a, b, out, turned, team);
        const bool lines =
            (as == 0 || as == bytes_of<A>) && (bs == 0 || bs == bytes_of<B>) && (n == 1 || os == bytes_of<A>);
        const Share part = share(out.rows(), team);
        RowWalk walk(out.shape, part.begin);
        for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
            if (lines)
                line<A, B>(walk.row(a), as, walk.row(b), bs, walk.row(out), n);
            else
                strided_line<A, B>(walk.row(a), as, walk.row(b), bs, walk.row(out), os, n);
        }
    }

    template <DType A, DType B>
    static void blocks(const View& whole_a, const View& whole_b, const View& whole_out, int axis, const Team& team) {
        constexpr int size = bytes_of<A> > bytes_of<B> ? bytes_of<A> : bytes_of<B>;
        const Blocks all(whole_out.shape, axis, size);
        const bool past = whole_out.size() * bytes_of<A> >= PAST_CACHES;
        alignas(CACHE_LINE) char of_a[Blocks::NBYTES], of_b[Blocks::NBYTES], made[Blocks::NBYTES];
        const Share part = share(all.count(), team);
        for (int64_t i = part.begin; i < part.end; i++) {
            const View out = all.of(whole_out, i);
            const View a = as_lines<bytes_of<A>>(all.of(whole_a, i), of_a);
            const View b = as_lines<bytes_of<B>>(all.of(whole_b, i), of_b);
            const int64_t after = i + 1 < part.end ? i + 1 : i;
            const View next_a = all.of(whole_a, after), next_b = all.of(whole_b, after);
            const Target<bytes_of<A>> target(out, past, made);
            for (int64_t r = 0; r < out.shape[2]; r++) {
                line<A, B>(a.data + r * a.stride[2], a.stride[3], b.data + r * b.stride[2], b.stride[3],
                           target.made.data + r * target.made.stride[2], out.last());
                ask_for<bytes_of<A>>(next_a, r);
                ask_for<bytes_of<B>>(next_b, r);
            }
            target.store();
        }
        if (past) settle();
    }

    JF_INLINE static void fast(const Step& s, const Team& team) {
        const char *a = s.in[0].data, *b = s.in[1].data;
        char* out = s.out.data;
        if (s.note[0] == ROW) {
            const int64_t n = s.note[1], bytes = n * 4;
            const Share part = share(s.note[2], team);
            for (int64_t r = part.begin; r < part.end; r++)
                binary_line<Op, F32, F32, LINE, LINE>(a + r * bytes, b, out + r * bytes, n);
            return;
        }
        const Share part = share_lines(s.note[1], team);
        const int64_t at = part.begin * 4, n = part.end - part.begin;
        if (n <= 0) return;
        if (s.note[0] == FLAT)
            binary_line<Op, F32, F32, LINE, LINE>(a + at, b + at, out + at, n);
        else
            binary_line<Op, F32, F32, LINE, ONE>(a + at, b, out + at, n);
    }

    static void run(const Step& s, const Team& team) {
        if (s.note[0] != GENERAL) return fast(s, team);
        const DType a = s.in[0].dtype, b = s.in[1].dtype;
        if (a == F32 && b == F32) return general<F32, F32>(s, team);
        if (a == F32 && b == F16) return general<F32, F16>(s, team);
        if (a == F32) return general<F32, BF16>(s, team);
        if (a == F16 && b == F16) return general<F16, F16>(s, team);
        if (a == F16) return general<F16, F32>(s, team);
        if (b == F32) return general<BF16, F32>(s, team);
        general<BF16, BF16>(s, team);
    }

    // note[0]: the way; note[1]: elements of a line; note[2]: how many lines.
    static void bind(Step& s) {
        const View &a = s.in[0], &b = s.in[1], &out = s.out;
        s.note[0] = GENERAL;
        if (a.dtype != F32 || b.dtype != F32 || !dense(a) || !dense(b) || !dense(out) || !same_shape(a, out)) return;
        s.note[1] = out.size();
        if (same_shape(b, out))
            s.note[0] = FLAT;
        else if (b.size() == 1)
            s.note[0] = SCALAR;
        else if (repeats_as_rows(b, out)) {
            s.note[0] = ROW;
            s.note[1] = b.size();
            s.note[2] = out.size() / b.size();
        }
    }

    // b has the last extents of out, and 1 on all axes before.
    static bool repeats_as_rows(const View& b, const View& out) {
        int axis = 0;
        while (axis < RANK && b.shape[axis] == 1) axis++;
        for (; axis < RANK; axis++)
            if (b.shape[axis] != out.shape[axis]) return false;
        return b.size() > 0;
    }
};

}  // namespace
}  // namespace jackfield

#define JF_BINARY(name, formula)                                                                               \
    namespace jackfield {                                                                                      \
    namespace {                                                                                                \
    struct Formula {                                                                                           \
        JF_INLINE static vf of(vf a, vf b) { return formula; }                                                 \
    };                                                                                                         \
    }                                                                                                          \
    }                                                                                                          \
    JF_KERNEL(name, binary_operands, binary_attributes, FLOATS, binary_why_not, Binary<Formula>::run, nullptr, \
              nullptr, Binary<Formula>::bind)

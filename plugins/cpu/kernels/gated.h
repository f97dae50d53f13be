// Gated units: an activated half times a linear half, split (gate, up) or fused in one row of gate. A unit is a struct
// made from the Step, with vf operator()(vf gate, vf up) const.
#pragma once
#include "simd.h"
#include "views.h"

namespace jackfield {
namespace {

constexpr Operand gated_operands[] = {{"gate", ROWS, FLOATS}, {"up", ROWS, FLOATS}};
constexpr const char* const gated_attributes[] = {"swapped", nullptr};

template <class Op, DType D>
JF_INLINE void gated_line(const Op& op, const char* g, const char* u, char* out, int64_t n) {
    constexpr int size = bytes_of<D>;
    int64_t i = 0;
    for (; i + W <= n; i += W) store<D>(out + i * size, op(load<D>(g + i * size), load<D>(u + i * size)));
    if (i == n) return;
    const vf y = op(load_part<D>(g + i * size, n - i), load_part<D>(u + i * size, n - i));
    store_part<D>(out + i * size, y, n - i);
}

template <class Op>
struct Gated {
    template <DType D>
    static void rows(const Op& op, const Step& s, const Team& team) {
        const View &gate = s.in[0], &up = s.in[1], &out = s.out;
        const int64_t n = out.last(), size = bytes_of<D>, half = n * size;
        const bool fused = !up, swapped = s.attr[0].integer != 0;
        const Share part = share(out.rows(), team);
        RowWalk walk(out.shape, part.begin);
        for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
            const char* row = walk.row(gate);
            const char* g = fused && swapped ? row + half : row;
            const char* u = !fused ? walk.row(up) : swapped ? row : row + half;
            line<D>(op, g, u, walk.row(out), out.stride[3], n);
        }
    }

    template <DType D>
    static void line(const Op& op, const char* g, const char* u, char* out, int64_t stride, int64_t n) {
        constexpr int64_t size = bytes_of<D>, most = 256;
        if (stride == size || n == 1) return gated_line<Op, D>(op, g, u, out, n);
        char buffer[most * size];
        for (int64_t i = 0; i < n; i += most) {
            const int64_t m = n - i < most ? n - i : most;
            gated_line<Op, D>(op, g + i * size, u + i * size, buffer, m);
            scatter(buffer, out + i * stride, stride, m, size);
        }
    }

    template <DType D>
    JF_INLINE static void any(const Step& s, const Team& team) {
        const Op op(s);
        if (!s.note[0]) return rows<D>(op, s, team);
        const Share part = share_lines(s.note[1], team);
        const int64_t at = part.begin * bytes_of<D>;
        if (part.begin < part.end)
            gated_line<Op, D>(op, s.in[0].data + at, s.in[1].data + at, s.out.data + at, part.end - part.begin);
    }

    static void run(const Step& s, const Team& team) {
        if (s.in[0].dtype == F32) return any<F32>(s, team);
        if (s.in[0].dtype == F16) return any<F16>(s, team);
        any<BF16>(s, team);
    }

    // note[0]: split form in one dense line; note[1]: its elements.
    static void bind(Step& s) {
        s.note[0] = s.in[1].present && dense(s.in[0]) && dense(s.in[1]) && dense(s.out);
        s.note[1] = s.out.size();
    }
};

}  // namespace
}  // namespace jackfield

#define JF_GATED(name, formula)                                                                               \
    namespace jackfield {                                                                                     \
    namespace {                                                                                               \
    struct Formula {                                                                                          \
        JF_INLINE explicit Formula(const Step&) {}                                                            \
        JF_INLINE vf operator()(vf g, vf u) const { return (formula) * u; }                                   \
    };                                                                                                        \
    }                                                                                                         \
    }                                                                                                         \
    JF_KERNEL(name, gated_operands, gated_attributes, FLOATS, nullptr, Gated<Formula>::run, nullptr, nullptr, \
              Gated<Formula>::bind)

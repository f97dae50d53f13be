#include "copies.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"x", ANY, bit(F32) | bit(F16)}};
constexpr const char* const attributes[] = {"widths", "mode", nullptr};
enum Mode { CONSTANT, WRAP, REFLECT };

struct Widths {
    int64_t before[RANK] = {};
    Mode mode;

    JF_INLINE explicit Widths(const Step& s) {
        const char* const text = s.attr[1].text;
        mode = text[0] == 'c' ? CONSTANT : text[0] == 'w' ? WRAP : REFLECT;
        for (int axis = 0; axis < s.out.rank; axis++) before[RANK - s.out.rank + axis] = s.attr[0].integers[2 * axis];
    }
    // Which of n elements stands at place i; -1: none, a zero.
    JF_INLINE int64_t source(int axis, int64_t i, int64_t n) const {
        const int64_t at = i - before[axis];
        if (at >= 0 && at < n) return at;
        if (mode == CONSTANT) return -1;
        if (mode == WRAP) return at < 0 ? at + n : at - n;
        return at < 0 ? -at : 2 * n - 2 - at;
    }
};

void run(const Step& s, const Team& team) {
    const View &x = s.in[0], &out = s.out;
    const Widths widths(s);
    const int64_t size = block_nbytes(x.dtype), n = x.last(), xs = x.stride[3], os = out.stride[3];
    const int64_t before = widths.before[3];
    const bool lines = dense_rows(x) && dense_rows(out);
    const uint32_t zero = 0;
    const Share part = share(out.rows(), team);
    RowWalk walk(out.shape, part.begin);
    for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
        const char* from = x.data;
        bool inside = n > 0;
        for (int axis = 0; axis < 3; axis++) {
            const int64_t at = widths.source(axis, walk.at[axis], x.shape[axis]);
            inside &= at >= 0;
            from += at * x.stride[axis];
        }
        char* const to = walk.row(out);
        if (inside && lines) memcpy(to + before * size, from, size_t(n * size));
        for (int64_t i = 0; i < out.last(); i++) {
            if (inside && lines && i == before) i += n;
            if (i == out.last()) break;
            const int64_t at = inside ? widths.source(3, i, n) : -1;
            memcpy(to + i * os, at < 0 ? (const char*)&zero : from + at * xs, size_t(size));
        }
    }
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(pad, operands, attributes, bit(F32) | bit(F16), nullptr, run, nullptr, nullptr, nullptr)

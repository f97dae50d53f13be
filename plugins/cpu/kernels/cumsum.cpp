#include "simd.h"
#include "views.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"x", ANY, bit(F32)}};
constexpr const char* const attributes[] = {"axis", nullptr};
constexpr int64_t ABREAST = 64;  // lines whose totals run side by side

// Totals in f64. Lines lie along the axis; neighbours on the last axis go together, so that memory is read in order.
struct Lines {
    int axis;
    int64_t across, pieces;  // neighbours there are, and pieces of ABREAST they make
    int64_t rest[RANK];      // the other extents

    JF_INLINE explicit Lines(const Step& s) {
        const Attr& given = s.attr[0];
        axis = int(given.integer < 0 ? RANK + given.integer : RANK - s.out.rank + given.integer);
        across = axis == RANK - 1 ? 1 : s.out.shape[RANK - 1];
        pieces = (across + ABREAST - 1) / ABREAST;
        for (int i = 0; i < RANK; i++) rest[i] = i == axis || i == RANK - 1 ? 1 : s.out.shape[i];
    }
};

void run_lines(const Step& s, const Lines& lines, const char* from, char* to, int64_t m) {
    const View &x = s.in[0], &out = s.out;
    double total[ABREAST] = {};
    const int64_t xs = x.stride[lines.axis], os = out.stride[lines.axis], xn = x.stride[3], on = out.stride[3];
    for (int64_t i = 0; i < out.shape[lines.axis]; i++, from += xs, to += os)
        for (int64_t j = 0; j < m; j++) {
            float value;
            memcpy(&value, from + j * xn, 4);
            total[j] += double(value);
            value = float(total[j]);
            memcpy(to + j * on, &value, 4);
        }
}

void run(const Step& s, const Team& team) {
    const Lines lines(s);
    const int64_t* rest = lines.rest;
    const Share part = share(rest[0] * rest[1] * rest[2] * lines.pieces, team);
    for (int64_t p = part.begin; p < part.end; p++) {
        const RowWalk walk(rest, p / lines.pieces);
        const int64_t first = p % lines.pieces * ABREAST, left = lines.across - first;
        run_lines(s, lines, walk.row(s.in[0]) + first * s.in[0].stride[3], walk.row(s.out) + first * s.out.stride[3],
                  left < ABREAST ? left : ABREAST);
    }
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(cumsum, operands, attributes, bit(F32), nullptr, run, nullptr, nullptr, nullptr)

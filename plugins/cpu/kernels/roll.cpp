#include "copies.h"

namespace jackfield {
namespace {

constexpr uint64_t PLAIN = (uint64_t(1) << PLAIN_DTYPES) - 1;
constexpr Operand operands[] = {{"x", ANY, PLAIN}};
constexpr const char* const attributes[] = {"shift", "axis", nullptr};

// How far each axis of the View is rolled, 0 up to its extent.
struct Shifts {
    int64_t by[RANK] = {};

    JF_INLINE explicit Shifts(const Step& s) {
        const Attr &shift = s.attr[0], &axis = s.attr[1];
        const int64_t many = shift.is_tuple ? shift.count : 1;
        for (int64_t i = 0; i < many; i++) {
            const int64_t given = axis.is_tuple ? axis.integers[i] : axis.integer;
            const int64_t at = given < 0 ? RANK + given : RANK - s.out.rank + given, n = s.out.shape[at];
            if (!n) continue;
            const int64_t places = (shift.is_tuple ? shift.integers[i] : shift.integer) % n;
            by[at] = (by[at] + places + n) % n;
        }
    }
};

void run(const Step& s, const Team& team) {
    const View &x = s.in[0], &out = s.out;
    const Shifts shifts(s);
    const int64_t size = block_nbytes(x.dtype), n = out.last(), turn = shifts.by[3], xs = x.stride[3];
    const bool lines = dense_rows(x) && dense_rows(out);
    const Share part = share(out.rows(), team);
    RowWalk walk(out.shape, part.begin);
    for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
        const char* from = x.data;
        for (int axis = 0; axis < 3; axis++)
            from += (walk.at[axis] + x.shape[axis] - shifts.by[axis]) % x.shape[axis] * x.stride[axis];
        char* const to = walk.row(out);
        if (lines) {
            memcpy(to + turn * size, from, size_t((n - turn) * size));
            memcpy(to, from + (n - turn) * size, size_t(turn * size));
            continue;
        }
        for (int64_t i = 0; i < n; i++)
            memcpy(to + (i + turn < n ? i + turn : i + turn - n) * out.stride[3], from + i * xs, size_t(size));
    }
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(roll, operands, attributes, PLAIN, nullptr, run, nullptr, nullptr, nullptr)

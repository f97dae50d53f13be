#include "copies.h"

namespace jackfield {
namespace {

constexpr uint64_t NUMBERS = FLOATS | bit(I8) | bit(I16) | bit(I32) | bit(I64);
constexpr Operand operands[] = {{"x", ROWS, NUMBERS}};
constexpr const char* const attributes[] = {"repeats", nullptr};

// n bytes from x, again and again until `total` are there: what is there already is copied, so the pieces double.
JF_INLINE void repeat(const char* x, int64_t n, char* out, int64_t total) {
    copy_run(out, x, n);
    for (int64_t done = n; done < total;) {
        const int64_t more = total - done < done ? total - done : done;
        copy_run(out + done, out, more);
        done += more;
    }
}

void run(const Step& s, const Team& team) {
    const View &x = s.in[0], &out = s.out;
    const int64_t size = block_nbytes(x.dtype), n = x.last(), stride = out.stride[3];
    const Share part = share(out.rows(), team);
    RowWalk walk(out.shape, part.begin);
    for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
        const char* from = x.data;
        for (int axis = 0; axis < 3; axis++) {
            const int64_t i = walk.at[axis], most = x.shape[axis];
            from += (i < most    ? i
                     : most == 1 ? 0
                                 : i % most) *
                    x.stride[axis];  // divisions would take longer than short rows
        }
        if (stride == size || out.last() == 1)
            repeat(from, n * size, walk.row(out), out.last() * size);
        else
            for (int64_t i = 0; i < out.last(); i += n) scatter(from, walk.row(out) + i * stride, stride, n, size);
    }
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(tile, operands, attributes, NUMBERS, nullptr, run, nullptr, nullptr, nullptr)

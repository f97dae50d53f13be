#include "bands.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"x", ANY, bit(F32)}};
constexpr const char* const attributes[] = {nullptr};

// Row r of a matrix has element r of its row of x, and zeros.
void run(const Step& s, const Team& team) {
    const View &x = s.in[0], &out = s.out;
    const int64_t n = out.last(), stride = out.stride[3];
    const Share part = share(out.rows(), team);
    RowWalk walk(out.shape, part.begin);
    for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
        char* const to = walk.row(out);
        const int64_t i = walk.at[2];
        fill_places(to, stride, 0, 0, n);
        memcpy(to + i * stride, x.data + walk.at[0] * x.stride[0] + walk.at[1] * x.stride[1] + i * x.stride[3], 4);
    }
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(diag, operands, attributes, bit(F32), nullptr, run, nullptr, nullptr, nullptr)

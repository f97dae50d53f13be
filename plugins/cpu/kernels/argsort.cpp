#include "order.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"x", ROWS, bit(F32)}};
constexpr const char* const attributes[] = {"descending", nullptr};

void run(const Step& s, const Team& team) {
    const View &x = s.in[0], &out = s.out;
    uint64_t* const keys = own_keys(s, team);
    const Share part = share(x.rows(), team);
    RowWalk walk(x.shape, part.begin);
    for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
        const uint64_t* sorted = sorted_line(walk.row(x), x.last(), s.attr[0].integer != 0, keys);
        store_indices(sorted, walk.row(out), out.stride[3], x.last());
    }
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(argsort, operands, attributes, bit(I32), nullptr, run, order_workers, order_scratch, nullptr)

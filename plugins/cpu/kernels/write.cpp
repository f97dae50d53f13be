#include "convert.h"
#include "copies.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"target", ANY, EVERY}, {"x", ANY, EVERY}};
constexpr const char* const attributes[] = {"start", nullptr};

bool why_not(const Step& s, Words& words) { return cannot_convert(s.in[1].dtype, s.out.dtype, words); }

// The result lies where the target lies: only the region is written.
View region(const Step& s) {
    View to = s.out;
    memcpy(to.shape, s.in[1].shape, sizeof to.shape);
    const int missing = RANK - s.out.rank;
    for (int axis = 0; axis < s.out.rank; axis++) {
        const int64_t start = int64_t(s.attr[0].numbers[axis]);
        to.data += start / (axis == s.out.rank - 1 ? block_length(to.dtype) : 1) * to.stride[missing + axis];
    }
    return to;
}

void run(const Step& s, const Team& team) {
    const View &x = s.in[1], to = region(s);
    if (x.dtype == to.dtype) return copy_view(x, to, team);
    if (x.size() == 0) return;
    const int64_t blocks = to.last() / block_length(to.dtype);
    const Share part = share(x.rows(), team);
    RowWalk walk(x.shape, part.begin);
    for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
        const int64_t bad =
            convert_line(x.dtype, walk.row(x), x.stride[3], to.dtype, walk.row(to), to.stride[3], to.last());
        if (bad >= 0) set_fault(s, FAULT_NONFINITE, 1, r * blocks + bad);
    }
}

int32_t workers(const Step& s, int32_t most) { return workers_for(s.in[1].size(), most); }

}  // namespace
}  // namespace jackfield

JF_KERNEL(write, operands, attributes, EVERY, why_not, run, workers, nullptr, nullptr)

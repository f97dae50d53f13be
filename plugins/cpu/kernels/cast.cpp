#include "convert.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"x", ANY, FLOATS | INTS | BLOCKS}};
constexpr const char* const attributes[] = {"dtype", nullptr};

bool why_not(const Step& s, Words& words) { return cannot_convert(s.in[0].dtype, s.out.dtype, words); }

void run(const Step& s, const Team& team) {
    const View &x = s.in[0], &out = s.out;
    const int64_t blocks = out.last() / block_length(out.dtype);
    const bool line = s.note[0];
    const Share part = share(line ? s.note[1] : out.rows(), team);
    if (line) {  // dense: pieces of 256 elements are shared, rows do not matter
        const int64_t begin = part.begin * PIECE, end = part.end * PIECE < out.size() ? part.end * PIECE : out.size();
        const int64_t xu = block_nbytes(x.dtype), ou = block_nbytes(out.dtype);
        const char* from = x.data + begin / block_length(x.dtype) * xu;
        const int64_t first = begin / block_length(out.dtype);
        const int64_t bad = convert_line(x.dtype, from, xu, out.dtype, out.data + first * ou, ou, end - begin);
        if (bad >= 0) set_fault(s, FAULT_NONFINITE, 0, first + bad);
        return;
    }
    RowWalk walk(out.shape, part.begin);
    for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
        const int64_t bad =
            convert_line(x.dtype, walk.row(x), x.stride[3], out.dtype, walk.row(out), out.stride[3], out.last());
        if (bad >= 0) set_fault(s, FAULT_NONFINITE, 0, r * blocks + bad);
    }
}

// note[0]: one dense line; note[1]: its pieces.
void bind(Step& s) {
    s.note[0] = dense(s.in[0]) && dense(s.out);
    s.note[1] = (s.out.size() + PIECE - 1) / PIECE;
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(cast, operands, attributes, FLOATS | INTS | BLOCKS, why_not, run, nullptr, nullptr, bind)

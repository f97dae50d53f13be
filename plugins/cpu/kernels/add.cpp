#include "binary.h"
#include "convert.h"

namespace jackfield {
namespace {

constexpr Operand add_operands[] = {{"a", ANY, FLOATS | BLOCKS}, {"b", ANY, FLOATS}};

struct Sum {
    JF_INLINE static vf of(vf a, vf b) { return a + b; }
};

bool why_not(const Step& s, Words& words) {
    const DType a = s.in[0].dtype, b = s.in[1].dtype;
    if (!is_block(a)) return binary_why_not(s, words);
    if (b != F32) {
        words << "what is added to a block dtype must be f32";
        return true;
    }
    return cannot_convert(b, a, words);
}

// A row of blocks: in pieces that are decoded, added to in f32 and coded again. -1, or the first block that could not.
int64_t add_coded(const Step& s, const char* a, const char* b, char* out) {
    const DType dtype = s.out.dtype;
    const int64_t n = s.out.last(), length = block_length(dtype), nbytes = block_nbytes(dtype);
    alignas(64) char in_blocks[PIECE * 8], out_blocks[PIECE * 8];
    alignas(64) float sum[PIECE], addend[PIECE];
    int64_t bad = -1;
    for (int64_t i = 0; i < n; i += PIECE) {
        const int64_t m = n - i < PIECE ? n - i : PIECE, blocks = m / length;
        gather(a + i / length * s.in[0].stride[3], s.in[0].stride[3], in_blocks, blocks, nbytes);
        gather(b + i * s.in[1].stride[3], s.in[1].stride[3], (char*)addend, m, 4);
        widen(dtype, in_blocks, sum, m, F32);
        binary_line<Sum, F32, F32, LINE, LINE>((const char*)sum, (const char*)addend, (char*)sum, m);
        const int64_t at = narrow(dtype, sum, out_blocks, m);
        if (at >= 0 && bad < 0) bad = i / length + at;
        scatter(out_blocks, out + i / length * s.out.stride[3], s.out.stride[3], blocks, nbytes);
    }
    return bad;
}

void run(const Step& s, const Team& team) {
    if (!is_block(s.in[0].dtype)) return Binary<Sum>::run(s, team);
    const int64_t blocks = s.out.last() / block_length(s.out.dtype);
    const Share part = share(s.out.rows(), team);
    RowWalk walk(s.out.shape, part.begin);
    for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
        const int64_t bad = add_coded(s, walk.row(s.in[0]), walk.row(s.in[1]), walk.row(s.out));
        if (bad >= 0) set_fault(s, FAULT_NONFINITE, 1, r * blocks + bad);  // blocks are finite: b made it so
    }
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(add, add_operands, binary_attributes, FLOATS | BLOCKS, why_not, run, nullptr, nullptr, Binary<Sum>::bind)

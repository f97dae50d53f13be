#include "put_rows.h"

namespace jackfield {
namespace {

constexpr uint64_t TARGETS = FLOATS | BLOCKS;
constexpr Operand operands[] = {
    {"target", ANY, TARGETS}, {"x", ANY, bit(F32) | bit(F16)}, {"rows", ANY, bit(I32) | bit(I64)}};
constexpr const char* const attributes[] = {nullptr};

bool why_not(const Step& s, Words& words) { return cannot_convert(s.in[1].dtype, s.out.dtype, words); }

// The result lies where the target lies. Workers share (leading index, columns), never the rows of one column, so that
// of a row written twice the last one wins whole.
struct Split {
    int64_t batches, columns, units;  // units: of 32 elements or whole blocks, whatever is larger

    JF_INLINE Split(const View& x, DType target, int32_t workers) {
        batches = x.shape[0] * x.shape[1];
        units = block_length(target) > 32 ? block_length(target) : 32;
        const int64_t most = (x.last() + units - 1) / units;
        columns = batches >= workers ? 1 : (workers + batches - 1) / batches;
        columns = columns > most ? most : columns;
    }
};

void put(const Step& s, int64_t b3, int64_t b2, int64_t first, int64_t n) {
    const View& x = s.in[1];
    const Column column(s, b3, b2, first);
    const char* from = x.data + b3 * x.stride[0] + b2 * x.stride[1] + first * x.stride[3];
    for (int64_t i = 0; i < x.shape[2]; i++) column.put(i, from + i * x.stride[2], x.stride[3], n);
}

void run(const Step& s, const Team& team) {
    const View& x = s.in[1];
    if (x.size() == 0) return;
    const Split split(x, s.out.dtype, team.count);
    const Share part = share(split.batches * split.columns, team);
    for (int64_t p = part.begin; p < part.end; p++) {
        const int64_t batch = p / split.columns, column = p % split.columns;
        const int64_t most = (x.last() + split.units - 1) / split.units;
        const int64_t begin = most * column / split.columns * split.units;
        const int64_t stop = most * (column + 1) / split.columns * split.units;
        const int64_t end = stop < x.last() ? stop : x.last();
        put(s, batch / x.shape[1], batch % x.shape[1], begin, end - begin);
    }
}

int32_t workers(const Step& s, int32_t most) { return workers_for(s.in[1].size(), most); }

}  // namespace
}  // namespace jackfield

JF_KERNEL(put_rows, operands, attributes, TARGETS, why_not, run, workers, nullptr, nullptr)

#include "simd.h"
#include "views.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"x", ROWS, bit(F32)}, {"table", ROWS, bit(F32)}, {"ids", ANY, bit(I32)}};
constexpr const char* const attributes[] = {nullptr};

JF_INLINE void add_line(const char* x, const char* row, char* out, int64_t n) {
    int64_t i = 0;
    for (; i + W <= n; i += W) store<F32>(out + i * 4, load<F32>(x + i * 4) + load<F32>(row + i * 4));
    if (i < n)
        store_part<F32>(out + i * 4, load_part<F32>(x + i * 4, n - i) + load_part<F32>(row + i * 4, n - i), n - i);
}

// x, with the row that the slot's id names; -1 names none, a bad one makes zeros.
void run(const Step& s, const Team& team) {
    const View &x = s.in[0], &table = s.in[1], &ids = s.in[2], &out = s.out;
    const int64_t n = out.last(), stride = out.stride[3];
    const Share part = share(out.rows(), team);
    RowWalk walk(out.shape, part.begin);
    for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
        int32_t id;
        memcpy(&id, ids.data + walk.at[1] * ids.stride[2] + walk.at[2] * ids.stride[3], 4);
        const bool known = id >= 0 && id < table.shape[2];
        if (!known && id != -1) set_fault(s, FAULT_INDEX, 2, id);
        const char *from = walk.row(x), *row = table.data + (known ? id : 0) * table.stride[2];
        char* const to = walk.row(out);
        if (known && (stride == 4 || n == 1)) {
            add_line(from, row, to, n);
            continue;
        }
        for (int64_t i = 0; i < n; i++) {
            float value = 0, more = 0;
            if (known || id == -1) memcpy(&value, from + i * 4, 4);
            if (known) memcpy(&more, row + i * 4, 4);
            const float sum = known ? value + more : value;
            memcpy(to + i * stride, &sum, 4);
        }
    }
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(add_rows, operands, attributes, bit(F32), nullptr, run, nullptr, nullptr, nullptr)

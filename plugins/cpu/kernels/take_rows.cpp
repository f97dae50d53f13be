// take_rows(x, rows): rows of a table by index, decoded to f32. Reads plain tables and packed ones, so that an
// embedding and the output head can share one copy.
#include "tiles_floats.h"

namespace jackfield::JF_LEVEL {
namespace {

constexpr Operand operands[] = {{"x", ROWS, FLOATS | BLOCKS | bit(I32), 1 << ROWS16},
                                {"rows", ANY, bit(I32) | bit(I64)}};
constexpr const char* attributes[] = {nullptr};

// Columns [k, k + n) of a row as f32; k is a multiple of DEPTH.
void read_columns(const View& x, const char* table, int64_t row, int64_t k, int64_t n, float* to) {
    const int64_t length = block_length(x.dtype), size = block_nbytes(x.dtype);
    if (x.layout != ROWS16) {
        decode_line(x.dtype, table + row * x.stride[2], k, n, to);
        return;
    }
    const char* group = table + row / GROUP * group_nbytes(x.dtype, x.last());
    if (!is_block(x.dtype)) {
        read_floats(x.dtype, group + (k * GROUP + row % GROUP) * size, GROUP * size, n, to);
        return;
    }
    for (int64_t b = 0; b < n / length; b++) {
        uint8_t block[256];
        unpack_block(x.dtype, group, x.last(), row % GROUP, k / length + b, block);
        decode_block(x.dtype, block, to + b * length);
    }
}

// One row of the result. `row` < 0: zeros.
void take(const View& x, const char* table, int64_t row, char* out, int64_t stride) {
    float line[DEPTH];
    for (int64_t k = 0; k < x.last(); k += DEPTH) {
        const int64_t n = x.last() - k < DEPTH ? x.last() - k : DEPTH;
        const char* values = (const char*)line;
        if (row < 0)
            memset(line, 0, size_t(n) * 4);
        else if (x.dtype == I32)
            values = table + row * x.stride[2] + k * 4;
        else
            read_columns(x, table, row, k, n, line);
        if (stride == 4)
            memcpy(out + k * 4, values, size_t(n) * 4);
        else
            for (int64_t i = 0; i < n; i++) memcpy(out + (k + i) * stride, values + i * 4, 4);
    }
}

void run(const Step& s, const Team& team) {
    const View &x = s.in[0], &rows = s.in[1], &out = s.out;
    const int64_t count = rows.shape[3], inner = rows.shape[2];
    const Share part = share(rows.size(), team);
    for (int64_t i = part.begin; i < part.end; i++) {
        const int64_t outer = i / count / inner, batch = i / count % inner, at = i % count;
        const char* index = rows.data + outer * rows.stride[1] + batch * rows.stride[2] + at * rows.stride[3];
        int64_t row;
        if (rows.dtype == I64) {
            memcpy(&row, index, 8);
        } else {
            int32_t narrow;
            memcpy(&narrow, index, 4);
            row = narrow;
        }
        if (row < 0 || row >= x.shape[2]) {
            set_fault(s, FAULT_INDEX, 1, row);
            row = -1;
        }
        const char* table = x.layout == ROWS16
                                ? x.data + (outer * x.shape[1] + batch) * packed_nbytes(x.dtype, x.shape[2], x.last())
                                : x.data + outer * x.stride[0] + batch * x.stride[1];
        take(x, table, row, out.data + outer * out.stride[0] + batch * out.stride[1] + at * out.stride[2],
             out.stride[3]);
    }
}

}  // namespace
}  // namespace jackfield::JF_LEVEL

JF_KERNEL(take_rows, operands, attributes, bit(F32) | bit(I32), nullptr, run, nullptr, nullptr, nullptr)

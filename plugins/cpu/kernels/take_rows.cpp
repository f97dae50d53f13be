// take_rows(x, rows): rows of a table by index, decoded to f32. Reads plain tables and packed ones, so that an
// embedding and the output head can share one copy.
#include "tiles_floats.h"
#include "views.h"

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
        const int64_t together = columns_together(x.dtype), unit = together * size;
        const char* at = group + element_at(x.dtype, row % GROUP, k);
        if (together == 1) return read_floats(x.dtype, at, GROUP * size, n, to);
        char line[DEPTH * 2];
        for (int64_t i = 0; i < n; i += together, at += GROUP * unit) memcpy(line + i * size, at, size_t(unit));
        return widen_dense(x.dtype, line, n, to);
    }
    for (int64_t b = 0; b < n / length; b++) {
        uint8_t block[256];
        unpack_block(x.dtype, group, row % GROUP, k / length + b, block);
        decode_block(x.dtype, block, to + b * length);
    }
}

// One row of the result. `row` < 0: zeros.
void take(const View& x, const char* table, int64_t row, char* out, int64_t stride) {
    const bool together = stride == 4 || x.last() == 1;
    if (together && row >= 0 && x.layout != ROWS16 && (x.dtype == F32 || x.dtype == I32)) {
        memcpy(out, table + row * x.stride[2], size_t(x.last()) * 4);
        return;
    }
    float line[DEPTH];
    for (int64_t k = 0; k < x.last(); k += DEPTH) {
        const int64_t n = x.last() - k < DEPTH ? x.last() - k : DEPTH;
        float* const to = together ? (float*)(out + k * 4) : line;
        if (row < 0)
            memset(to, 0, size_t(n) * 4);
        else if (x.dtype == I32)
            memcpy(to, table + row * x.stride[2] + k * 4, size_t(n) * 4);
        else
            read_columns(x, table, row, k, n, to);
        if (!together)
            for (int64_t i = 0; i < n; i++) memcpy(out + (k + i) * stride, line + i, 4);
    }
}

JF_INLINE int64_t row_at(const View& rows, const RowWalk& walk, int64_t i) {
    const char* index = rows.data + walk.at[1] * rows.stride[1] + walk.at[2] * rows.stride[2] + i * rows.stride[3];
    if (rows.dtype == I64) {
        int64_t row;
        memcpy(&row, index, 8);
        return row;
    }
    int32_t row;
    memcpy(&row, index, 4);
    return row;
}

// The beginning of a row that will be wanted soon; the hardware goes on from there.
JF_INLINE void fetch(const View& x, const char* table, int64_t row) {
    if (x.layout == ROWS16 || row < 0 || row >= x.shape[2]) return;
    const int64_t nbytes = x.last() / block_length(x.dtype) * block_nbytes(x.dtype), n = nbytes < 512 ? nbytes : 512;
    for (int64_t k = 0; k < n; k += 64) __builtin_prefetch(table + row * x.stride[2] + k);
}

void run(const Step& s, const Team& team) {
    constexpr int64_t AHEAD = 4;
    const View &x = s.in[0], &rows = s.in[1], &out = s.out;
    const int64_t count = rows.shape[3];
    const Share part = share(rows.size(), team);
    if (part.begin >= part.end) return;
    const int64_t batches[3] = {1, rows.shape[1], rows.shape[2]};
    RowWalk walk(batches, part.begin / count);
    int64_t at = part.begin % count;
    for (int64_t i = part.begin; i < part.end; i++) {
        const int64_t outer = walk.at[1], batch = walk.at[2];
        const char* table = x.layout == ROWS16
                                ? x.data + (outer * x.shape[1] + batch) * packed_nbytes(x.dtype, x.shape[2], x.last())
                                : x.data + outer * x.stride[0] + batch * x.stride[1];
        if (at + AHEAD < count) fetch(x, table, row_at(rows, walk, at + AHEAD));
        int64_t row = row_at(rows, walk, at);
        if (row < 0 || row >= x.shape[2]) {
            set_fault(s, FAULT_INDEX, 1, row);
            row = -1;
        }
        take(x, table, row, out.data + outer * out.stride[0] + batch * out.stride[1] + at * out.stride[2],
             out.stride[3]);
        if (++at == count) at = 0, walk.next();
    }
}

}  // namespace
}  // namespace jackfield::JF_LEVEL

JF_KERNEL(take_rows, operands, attributes, bit(F32) | bit(I32), nullptr, run, nullptr, nullptr, nullptr)

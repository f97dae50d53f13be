// Copies of whole views: bytes only, so blocks travel like elements.
#pragma once
#include "blocks.h"
#include "views.h"

namespace jackfield {
namespace {

template <class T>
JF_INLINE void copy_tile(const char* x, int64_t x2, int64_t x3, char* out, int64_t o2, int64_t o3, int64_t rows,
                         int64_t columns) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++) memcpy(out + r * o2 + c * o3, x + r * x2 + c * x3, sizeof(T));
}

// Sixteen rows of the last two axes; where the last is strided, in tiles, so that a transposed source is read in lines.
inline void copy_rows(const char* x, const View& from, char* out, const View& to, int64_t rows, int64_t units,
                      int64_t size) {
    const int64_t x2 = from.stride[2], x3 = from.stride[3], o2 = to.stride[2], o3 = to.stride[3];
    if ((x3 == size && o3 == size) || units == 1) {
        for (int64_t r = 0; r < rows; r++) memcpy(out + r * o2, x + r * x2, size_t(units * size));
        return;
    }
    for (int64_t c = 0; c < units; c += 16) {
        const int64_t n = units - c < 16 ? units - c : 16;
        const char* source = x + c * x3;
        char* target = out + c * o3;
        if (size == 4)
            copy_tile<uint32_t>(source, x2, x3, target, o2, o3, rows, n);
        else if (size == 2)
            copy_tile<uint16_t>(source, x2, x3, target, o2, o3, rows, n);
        else if (size == 8)
            copy_tile<uint64_t>(source, x2, x3, target, o2, o3, rows, n);
        else
            for (int64_t r = 0; r < rows; r++)
                for (int64_t i = 0; i < n; i++)
                    memcpy(target + r * o2 + i * o3, source + r * x2 + i * x3, size_t(size));
    }
}

// `to` has the shape of `from` and its dtype. The work is shared in groups of sixteen rows.
inline void copy_view(const View& from, const View& to, const Team& team) {
    const int64_t size = block_nbytes(from.dtype), units = from.last() / block_length(from.dtype);
    if (from.size() == 0) return;
    if (dense(from) && dense(to)) {
        const int64_t bytes = from.rows() * units * size;
        const Share part = share_lines(bytes, team);
        if (from.data != to.data && part.begin < part.end)
            memcpy(to.data + part.begin, from.data + part.begin, size_t(part.end - part.begin));
        return;
    }
    const int64_t n2 = from.shape[2], groups = (n2 + 15) / 16;
    const int64_t shape[3] = {from.shape[0], from.shape[1], groups};
    const Share part = share(shape[0] * shape[1] * groups, team);
    RowWalk walk(shape, part.begin);
    for (int64_t g = part.begin; g < part.end; g++, walk.next()) {
        const int64_t first = walk.at[2] * 16, rows = n2 - first < 16 ? n2 - first : 16;
        const char* x = from.data + walk.at[0] * from.stride[0] + walk.at[1] * from.stride[1] + first * from.stride[2];
        char* out = to.data + walk.at[0] * to.stride[0] + walk.at[1] * to.stride[1] + first * to.stride[2];
        copy_rows(x, from, out, to, rows, units, size);
    }
}

}  // namespace
}  // namespace jackfield

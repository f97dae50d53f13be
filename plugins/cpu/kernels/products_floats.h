// Products in f32 over all rows and matrices of a Product: float weights, and block weights when x must not be rounded.
// A bf16 weight may meet x rounded to bf16, in pairs of columns: see Terms in tiles_floats.h.
#pragma once
#include "products.h"
#include "products_blocks.h"
#include "tiles_floats.h"

namespace jackfield::JF_LEVEL {
namespace {

constexpr int64_t ROWS_SPREAD = 4;     // rows of x that are laid into a panel together
constexpr int64_t ROWS_AT_ONCE = 512;  // rows of x whose sums a worker keeps while it decodes the weight once

struct FloatScratch {
    int64_t x, columns, lines, sums;
    int units;  // sums that are needed at a time: two where a gated unit joins them
    bool own_x;

    JF_INLINE FloatScratch(const Product* p, int count, int32_t workers) : units(1) {
        x = up_to(p->most_rows * p->k * 4, 64);
        columns = DEPTH * GROUP * 4;
        const int64_t spread = ROWS_SPREAD * (p->k + 4);
        lines = up_to((GROUP * LINE > spread ? GROUP * LINE : spread) * 4, 64);
        sums = (p->most_rows < ROWS_AT_ONCE ? p->most_rows : ROWS_AT_ONCE) * GROUP * 4;
        for (int i = 0; i < count; i++)
            if (p[i].unit) units = 2;
        own_x = workers > 1 && (p->most_rows * p->k <= 4096 || p->most_rows < workers);
    }
    JF_INLINE int64_t own() const { return columns + lines + units * sums; }
    JF_INLINE int64_t nbytes(int32_t workers) const { return x * (own_x ? workers : 1) + workers * own(); }
    JF_INLINE char* x_at(char* scratch, const Team& t) const { return scratch + (own_x ? x * t.index : 0); }
    JF_INLINE char* own_at(char* scratch, const Team& t) const {
        return scratch + x * (own_x ? t.count : 1) + t.index * own();
    }
};

template <class Terms>
JF_INLINE int64_t lanes_of(int64_t columns) {
    return (columns + Terms::COLUMNS - 1) / Terms::COLUMNS;
}

// n floats to lanes of four bytes, in place: rounded pairs where a lane holds two.
template <class Terms>
JF_INLINE void to_lanes(float* line, int64_t n) {
    if constexpr (Terms::COLUMNS == 2) {
        if (n & 1) line[n] = 0;  // a line has room for it
        int64_t i = 0;
        for (char* to = (char*)line; i < n; i += W, to += 2 * W) store<BF16>(to, load_lanes(line + i));
    }
}

// Rows of x into panels of lanes, four at a time where they are in one panel. lines: ROWS_SPREAD of p.k and four more.
template <class Terms>
void spread_rows(const Product& p, float* x, float* lines, int64_t from, int64_t to) {
    const int64_t lanes = lanes_of<Terms>(p.k), line = p.k + 4;
    int64_t segment = 0, count;
    for (int64_t t = from; t < to; t += count) {
        while (t >= p.end(segment)) segment++;
        const int64_t begin = p.begin(segment);
        const Panel panel = panel_of(t - begin, p.end(segment) - begin, WIDEST_FLOAT);
        const int64_t m = t - begin - panel.start, in_panel = panel.width - m;
        count = to - t < in_panel ? to - t : in_panel;
        if (count > ROWS_SPREAD) count = ROWS_SPREAD;
        for (int64_t i = 0; i < count; i++) {
            float* const at = lines + i * line;
            if (p.prepare)
                p.prepare(p, p.x(p, t + i), at);
            else
                read_floats(p.x_dtype, p.x(p, t + i), p.x_stride, p.k, at);
            to_lanes<Terms>(at, p.k);
        }
        float* const out = x + (begin + panel.start) * lanes + m;
        int64_t k = 0;
        for (; count == ROWS_SPREAD && k + 4 <= lanes; k += 4)
            turn_square(lines + k, line, out + k * panel.width, panel.width);
        for (; k < lanes; k++)
            for (int64_t i = 0; i < count; i++) memcpy(out + k * panel.width + i, lines + i * line + k, 4);
    }
}

// Columns [k, k + n) of group g as [n][16] floats: in place, or in `columns` (`lines` is work memory).
inline const float* weight_columns(const Product& p, const char* matrix, int64_t g, int64_t k, int64_t n,
                                   float* columns, float* lines) {
    const int64_t size = block_nbytes(p.dtype), rest = p.n - g * GROUP, rows = rest < GROUP ? rest : GROUP;
    const char* packed = matrix + g * group_nbytes(p.dtype, p.k);
    if (p.columns) {
        const char* from = matrix + g * GROUP * p.row_stride + k * p.column_stride;
        if (rows < GROUP) memset(columns, 0, size_t(n * GROUP * 4));
        for (int64_t i = 0; i < n; i++) {
            if (p.row_stride == size)
                widen_dense(p.dtype, from + i * p.column_stride, rows, columns + i * GROUP);
            else
                read_floats(p.dtype, from + i * p.column_stride, p.row_stride, rows, columns + i * GROUP);
        }
        return columns;
    }
    if (p.layout == ROWS16 && p.dtype == F32) return (const float*)packed + k * GROUP;
    if (p.layout == ROWS16 && !is_block(p.dtype)) {
        if (p.dtype == BF16)
            part_columns(packed + k * GROUP * size, n, columns);
        else
            widen_dense(p.dtype, packed + k * GROUP * size, n * GROUP, columns);
        return columns;
    }
    for (int64_t r = 0; r < GROUP; r++) {
        float* line = lines + r * LINE;
        if (r >= rows) {
            memset(line, 0, size_t(n) * 4);
        } else if (p.layout == ROWS16) {
            const int64_t length = block_length(p.dtype);
            for (int64_t b = 0; b < n / length; b++) {
                uint8_t block[256];
                unpack_block(p.dtype, packed, r, k / length + b, block);
                decode_block(p.dtype, block, line + b * length);
            }
        } else {
            decode_line(p.dtype, matrix + (g * GROUP + r) * p.row_stride, k, n, line);
        }
    }
    turn_lines(lines, n, columns);
    return columns;
}

// The same as lanes of a Terms.
template <class Terms>
const char* weight_lanes(const Product& p, const char* matrix, int64_t g, int64_t k, int64_t n, float* columns,
                         float* lines) {
    if constexpr (Terms::COLUMNS == 1) {
        return (const char*)weight_columns(p, matrix, g, k, n, columns, lines);
    } else {
        if (p.layout == ROWS16) return matrix + g * group_nbytes(p.dtype, p.k) + k * 2 * GROUP;
        weight_columns(p, matrix, g, k, n, columns, lines);
        pair_floats(columns, n);
        return (const char*)columns;
    }
}

// Packed floats for a narrow panel are widened on the way, since none is read twice.
template <class Terms>
FloatTile find_direct_tile(const Product& p, int64_t rows) {
    if (p.layout != ROWS16 || is_block(p.dtype) || rows > 4) return nullptr;
    if (Terms::COLUMNS == 2) return find_narrow_tile<Terms>(rows);
    if (p.dtype == F16) return find_narrow_tile<Singles<F16>>(rows);
    if (p.dtype == BF16) return find_narrow_tile<PartedPairs>(rows);
    return find_narrow_tile<Singles<F32>>(rows);
}

// Column k of a group of packed floats; beyond the last column the next group begins.
inline const char* packed_at(const Product& p, int64_t segment, int64_t g, int64_t k) {
    return p.matrix(p, segment) + g * group_nbytes(p.dtype, p.k) + k * GROUP * block_nbytes(p.dtype);
}

// Asks for the part of `nbytes` at `data` that `width` of `rows` rows from `row` on are: while many rows are multiplied
// with some columns, the next ones come to the second cache.
JF_INLINE void ask_share(const char* data, int64_t nbytes, int64_t row, int64_t width, int64_t rows) {
    const int64_t end = nbytes * (row + width) / rows;
    for (int64_t i = nbytes * row / rows; i < end; i += 64) __builtin_prefetch(data + i, 0, 2);
}

// Rows [from, to) of a segment times one group, to sums; no more than ROWS_AT_ONCE, from a multiple of it.
template <class Terms>
void multiply_rows(const Product& p, const float* x, int64_t segment, int64_t from, int64_t to, int64_t g,
                   float* columns, float* lines, float* sums) {
    const int64_t begin = p.begin(segment);
    memset(sums, 0, size_t((to - from) * GROUP * 4));
    const int64_t lanes = lanes_of<Terms>(p.k);
    const FloatTile direct = find_direct_tile<Terms>(p, to - from);
    if (direct) direct(packed_at(p, segment, g, 0), x + (begin + from) * lanes, p.k, sums);
    for (int64_t k = direct ? p.k : 0; k < p.k; k += DEPTH) {
        const int64_t n = p.k - k < DEPTH ? p.k - k : DEPTH;
        const char* w = weight_lanes<Terms>(p, p.matrix(p, segment), g, k, n, columns, lines);
        const char* const later = p.layout == ROWS16 && !is_block(p.dtype) ? packed_at(p, segment, g, k + n) : nullptr;
        for (int64_t start = from, width; start < to; start += width) {
            width = panel_width(p.end(segment) - begin - start, WIDEST_FLOAT);
            if (later) ask_share(later, n * GROUP * block_nbytes(p.dtype), start - from, width, to - from);
            const float* panel = x + (begin + start) * lanes + k / Terms::COLUMNS * width;
            find_float_tile<Terms>(width)(w, panel, n, sums + (start - from) * GROUP);
        }
    }
}

// All rows of a segment times one group, and that of the next product where a unit joins them.
template <class Terms>
void multiply_group(const Product* p, const FloatScratch& s, const float* x, int64_t segment, int64_t g, char* own) {
    float *columns = (float*)own, *lines = (float*)(own + s.columns), *sums = (float*)(own + s.columns + s.lines);
    float* others = sums + (s.units - 1) * s.sums / 4;
    const int64_t begin = p->begin(segment), rows = p->end(segment) - begin;
    const int64_t n = g * GROUP, valid = p->n - n < GROUP ? p->n - n : GROUP;
    for (int64_t from = 0; from < rows; from += ROWS_AT_ONCE) {
        const int64_t to = rows - from < ROWS_AT_ONCE ? rows : from + ROWS_AT_ONCE;
        multiply_rows<Terms>(*p, x, segment, from, to, g, columns, lines, sums);
        if (p->unit) multiply_rows<Terms>(p[1], x, segment, from, to, g, columns, lines, others);
        for (int64_t m = from; m < to; m++) {
            float *y = sums + (m - from) * GROUP, *up = others + (m - from) * GROUP;
            finish(*p, row_of(*p, begin + m), n, valid, y, up);
        }
    }
}

template <class Terms>
void multiply_floats(const Product* p, int count, const Team& team, char* scratch) {
    const FloatScratch s(p, count, team.count);
    float* x = (float*)s.x_at(scratch, team);
    char* own = s.own_at(scratch, team);
    const Share rows = s.own_x ? Share{0, p->rows} : share(p->rows, team);
    spread_rows<Terms>(*p, x, (float*)own, rows.begin, rows.end);
    if (!s.own_x) team.barrier();

    int64_t groups = 0;
    for (int i = 0; i < count; i++) groups += groups_of(p[i].n) * p[i].segments;
    Pieces pieces(p, count, [&](const Product& q) -> int64_t {
        const int64_t once = groups / (8 * int64_t(team.count));
        return few_rows(q) && once > 1 ? once : 1;
    });
    each_piece(pieces, team, [&] {
        const int64_t first = pieces.piece % pieces.each * pieces.once;
        for (int64_t g = first; g < pieces.groups() && g < first + pieces.once; g++)
            multiply_group<Terms>(p + pieces.at, s, x, pieces.piece / pieces.each, g, own);
    });
}

}  // namespace
}  // namespace jackfield::JF_LEVEL

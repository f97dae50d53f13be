// Block weights times rounded activations, over all rows and matrices of a Product.
#pragma once
#include "products.h"
#include "tiles_blocks.h"

namespace jackfield::JF_LEVEL {
namespace {

// Groups that are decoded to memory once for all panels of x: they and a panel fit in a core's second cache.
constexpr int64_t STAGED_GROUPS = 4;

JF_INLINE bool staged_ahead(const Weights& weights, int64_t rows) { return weights.stage && rows > WIDEST; }
// Bytes of so many decoded columns of a group.
JF_INLINE int64_t staged_nbytes(const Weights& weights, int64_t columns) {
    return columns / 32 * (STAGED_QUANTS + staged_scales(weights.activation));
}

// Work memory: rounded x (one copy, or one a worker), then for each worker a widened row, a packed group, and decoded
// weights: whole groups for many panels of x; else one block of a type that has no tile of its own.
struct BlockScratch {
    int64_t x_row, x, line, group, staged;  // bytes
    bool own_x;                             // every worker rounds all of x: cheaper than meeting at a barrier

    JF_INLINE BlockScratch(const Product& p, int32_t workers) {
        const Weights weights = weights_of(p.dtype);
        x_row = weights.activation.row_nbytes(p.k);
        x = up_to(p.most_rows * x_row, 64);
        line = up_to(4 * p.k, 64);
        group = p.layout == ROWS16 ? 0 : group_nbytes(p.dtype, p.k);
        staged = staged_ahead(weights, p.most_rows) ? STAGED_GROUPS * staged_nbytes(weights, p.k)
                 : weights.tile                     ? 0
                                                    : staged_nbytes(weights, block_length(p.dtype));
        own_x = workers > 1 && (p.most_rows * p.k <= 8192 || p.most_rows < workers);
    }
    JF_INLINE int64_t own() const { return line + group + staged; }
    JF_INLINE int64_t nbytes(int32_t workers) const { return x * (own_x ? workers : 1) + workers * own(); }
    JF_INLINE char* x_at(char* scratch, const Team& t) const { return scratch + (own_x ? x * t.index : 0); }
    JF_INLINE char* line_at(char* scratch, const Team& t) const {
        return scratch + x * (own_x ? t.count : 1) + t.index * own();
    }
    JF_INLINE char* group_at(char* scratch, const Team& t) const { return line_at(scratch, t) + line; }
    JF_INLINE char* staged_at(char* scratch, const Team& t) const { return group_at(scratch, t) + group; }
};

// Calls f(segment, row, rows of the segment before it) for rows [from, to).
template <class F>
JF_INLINE void each_row(const Product& p, int64_t from, int64_t to, F f) {
    int64_t segment = 0;
    for (int64_t t = from; t < to; t++) {
        while (t >= p.end(segment)) segment++;
        f(segment, t, p.begin(segment));
    }
}

inline void round_rows(const Product& p, char* x, float* line, int64_t from, int64_t to) {
    const Weights weights = weights_of(p.dtype);
    const int64_t row_nbytes = weights.activation.row_nbytes(p.k);
    const bool dense = p.x_dtype == F32 && p.x_stride == 4;
    each_row(p, from, to, [&](int64_t segment, int64_t t, int64_t begin) {
        const Panel panel = panel_of(t - begin, p.end(segment) - begin, WIDEST);
        const char* row = p.x(p, t);
        if (!dense) read_floats(p.x_dtype, row, p.x_stride, p.k, line);
        weights.round(dense ? (const float*)row : line, p.k, x + (begin + panel.start) * row_nbytes, panel.width,
                      t - begin - panel.start, weights.activation.shift);
    });
}

// `valid` results of a row, from column n on. `row` is where the row starts.
JF_INLINE void store_results(const Product& p, char* row, int64_t n, int64_t valid, const float* from) {
    char* to = row + n * p.y_stride;
    if (p.y_stride == 4 && valid == GROUP) {
        memcpy(to, from, 4 * GROUP);
    } else {
        for (int64_t i = 0; i < valid; i++) memcpy(to + i * p.y_stride, from + i, 4);
    }
}

// Packed groups that follow each other; the first is group `first` of its matrix.
struct Groups {
    const char* packed;
    int64_t first, count;
};

// One panel of x times a group of a type that has no tile of its own, block by block: what is decoded stays in the
// first cache.
JF_INLINE void multiply_staged(const Product& p, const Weights& weights, const uint8_t* group, const char* panel,
                               int64_t width, char* staged, float* out) {
    const Tile tile = weights.staged_tile(width);
    const Fields fields = fields_of(p.dtype);
    const int64_t units = block_length(p.dtype) / 32, step = units * width * weights.activation.unit_nbytes();
    const uint8_t* quants = group + quants_at(p.dtype, p.k);
    uint8_t *bytes = (uint8_t*)staged, *factors = bytes + units * STAGED_QUANTS;
    for (int64_t b = 0; b < p.k / block_length(p.dtype); b++) {
        weights.stage(group + b * fields.scale_nbytes, quants + b * fields.quant_nbytes, 1, factors, bytes);
        tile(factors, bytes, panel + b * step, units, out);
    }
}

// All rows of a segment times some groups.
inline void multiply_groups(const Product& p, const char* x, int64_t segment, const Groups& groups, char* staged) {
    const Weights weights = weights_of(p.dtype);
    const int64_t begin = p.begin(segment), rows = p.end(segment) - begin, size = group_nbytes(p.dtype, p.k);
    const int64_t row_nbytes = weights.activation.row_nbytes(p.k), quants = quants_at(p.dtype, p.k);
    const int64_t blocks = p.k / block_length(p.dtype), staged_size = staged_nbytes(weights, p.k);
    const int64_t factors = p.k / 32 * STAGED_QUANTS;  // behind the decoded bytes of a group
    const bool ahead = staged_ahead(weights, rows);
    for (int64_t i = 0; ahead && i < groups.count; i++) {
        const uint8_t* group = (const uint8_t*)groups.packed + i * size;
        uint8_t* to = (uint8_t*)staged + i * staged_size;
        weights.stage(group, group + quants, blocks, to + factors, to);
    }
    alignas(64) float out[WIDEST * GROUP];
    for (int64_t start = 0, width; start < rows; start += width) {
        width = panel_width(rows - start, WIDEST);
        const char* panel = x + (begin + start) * row_nbytes;
        char* to[WIDEST];
        for (int64_t m = 0; m < width; m++) to[m] = p.y(p, begin + start + m);
        for (int64_t i = 0; i < groups.count; i++) {
            const uint8_t* group = (const uint8_t*)groups.packed + i * size;
            const uint8_t* decoded = (const uint8_t*)staged + i * staged_size;
            memset(out, 0, size_t(width * GROUP * 4));
            if (ahead)
                weights.staged_tile(width)(decoded + factors, decoded, panel, p.k / 32, out);
            else if (weights.tile)
                weights.tile(width)(group, group + quants, panel, blocks, out);
            else
                multiply_staged(p, weights, group, panel, width, staged, out);
            const int64_t n = (groups.first + i) * GROUP, valid = p.n - n < GROUP ? p.n - n : GROUP;
            for (int64_t m = 0; m < width; m++) store_results(p, to[m], n, valid, out + m * GROUP);
        }
    }
}

// Groups a worker takes at once: few for many rows (they stay in the first cache), some four pieces a worker for few
// rows; if it can be a number that comes out even.
JF_INLINE int64_t groups_at_once(const Product& p, int32_t workers) {
    const int64_t groups = groups_of(p.n), share = groups * p.segments / (4 * int64_t(workers));
    int64_t most = p.rows >= 64 * p.segments && share > 4 ? 4 : share;
    if (staged_ahead(weights_of(p.dtype), p.most_rows) && most > STAGED_GROUPS) most = STAGED_GROUPS;
    if (most < 1) most = 1;
    for (int64_t c = most; 2 * c > most; c--)
        if (groups % (c * workers) == 0) return c;
    return most;
}

inline void multiply_blocks(const Product& p, const Team& team, char* scratch) {
    const BlockScratch s(p, team.count);
    char *x = s.x_at(scratch, team), *line = s.line_at(scratch, team), *own = s.group_at(scratch, team);
    char* staged = s.staged_at(scratch, team);
    const Share part = s.own_x ? Share{0, p.rows} : share(p.rows, team);
    round_rows(p, x, (float*)line, part.begin, part.end);
    if (!s.own_x) team.barrier();

    const int64_t groups = groups_of(p.n), once = groups_at_once(p, team.count);
    const int64_t pieces = (groups + once - 1) / once, size = group_nbytes(p.dtype, p.k);
    for (int64_t i = team.index; (i = team.count > 1 ? team.next() : i) < pieces * p.segments; i++) {
        const int64_t segment = i / pieces, first = i % pieces * once;
        const int64_t last = first + once < groups ? first + once : groups;
        const char* matrix = p.matrix(p, segment);
        if (p.layout == ROWS16) {
            multiply_groups(p, x, segment, {matrix + first * size, first, last - first}, staged);
            continue;
        }
        for (int64_t g = first; g < last; g++) {
            const int64_t rest = p.n - g * GROUP;
            pack_group(p.dtype, matrix + g * GROUP * p.row_stride, p.row_stride, rest < GROUP ? rest : GROUP, p.k, own);
            multiply_groups(p, x, segment, {own, g, 1}, staged);
        }
    }
}

}  // namespace
}  // namespace jackfield::JF_LEVEL

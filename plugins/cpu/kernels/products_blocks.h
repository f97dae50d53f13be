// Block weights times rounded activations, over all rows and matrices of a Product.
#pragma once
#include "finish.h"
#include "tiles_blocks.h"

namespace jackfield::JF_LEVEL {
namespace {

// Groups that are decoded to memory once for all panels of x: they and a panel fit in a core's second cache.
constexpr int64_t STAGED_GROUPS = 4;

JF_INLINE bool staged_ahead(const Weights& weights, int64_t rows) { return weights.ahead && rows > WIDEST; }
// Bytes of so many decoded columns of a group.
JF_INLINE int64_t staged_nbytes(const Weights& weights, int64_t columns) {
    return columns / 32 * (STAGED_QUANTS + staged_scales(weights.activation));
}

JF_INLINE bool rounds_alike(const Activation& a, const Activation& b) {
    return a.super == b.super && a.wide == b.wide && a.affine == b.affine && a.shift == b.shift && a.halves == b.halves;
}

// Work memory: x rounded in every way a product wants it (one copy, or one a worker), then for each worker a widened
// row, a packed group, and decoded weights: whole groups for many panels of x; else one block of a type that has no
// tile of its own. Where gated units are made, the last two are there twice.
struct BlockScratch {
    int64_t x, line, group, staged;  // bytes
    int64_t rounded[MOST_PRODUCTS];  // where the x of each product begins
    bool rounds[MOST_PRODUCTS];      // no product before has the same
    bool own_x;                      // every worker rounds all of x: cheaper than meeting at a barrier

    JF_INLINE BlockScratch(const Product* p, int count, int32_t workers) : x(0), group(0), staged(0) {
        bool paired = false;
        for (int i = 0; i < count; i++) {
            const Weights weights = weights_of(p[i].dtype);
            int like = 0;
            while (!rounds_alike(weights_of(p[like].dtype).activation, weights.activation)) like++;
            rounds[i] = like == i;
            rounded[i] = rounds[i] ? x : rounded[like];
            if (rounds[i]) x += up_to(p[i].most_rows * weights.activation.row_nbytes(p[i].k), 64);
            const int64_t packed = p[i].layout == ROWS16 ? 0 : group_nbytes(p[i].dtype, p[i].k);
            const int64_t decoded = staged_ahead(weights, p[i].most_rows)
                                        ? STAGED_GROUPS * staged_nbytes(weights, p[i].k)
                                    : weights.tile ? 0
                                                   : staged_nbytes(weights, block_length(p[i].dtype));
            if (packed > group) group = packed;
            if (decoded > staged) staged = decoded;
            paired |= p[i].unit != NO_UNIT;
        }
        if (paired) group *= 2, staged *= 2;
        line = up_to(4 * p->k, 64);
        own_x = workers > 1 && (p->most_rows * p->k <= 8192 || p->most_rows < workers);
    }
    JF_INLINE int64_t own() const { return line + group + staged; }
    JF_INLINE int64_t nbytes(int32_t workers) const { return x * (own_x ? workers : 1) + workers * own(); }
    JF_INLINE char* x_at(char* scratch, const Team& t) const { return scratch + (own_x ? x * t.index : 0); }
    JF_INLINE char* line_at(char* scratch, const Team& t) const {
        return scratch + x * (own_x ? t.count : 1) + t.index * own();
    }
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
    const bool dense = p.x_dtype == F32 && p.x_stride == 4 && !p.prepare;
    each_row(p, from, to, [&](int64_t segment, int64_t t, int64_t begin) {
        const Panel panel = panel_of(t - begin, p.end(segment) - begin, WIDEST);
        const char* row = p.x(p, t);
        if (p.prepare)
            p.prepare(p, row, line);
        else if (!dense)
            read_floats(p.x_dtype, row, p.x_stride, p.k, line);
        weights.round(dense ? (const float*)row : line, p.k, x + (begin + panel.start) * row_nbytes, panel.width,
                      t - begin - panel.start, weights.activation.shift);
    });
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
    for (int64_t b = 0; b < p.k / block_length(p.dtype); b++) {
        weights.stage(group + b * fields.nbytes(), 1, (uint8_t*)staged);
        tile((const uint8_t*)staged, panel + b * step, units, out);
    }
}

// One product's part in a piece of work: some groups, and x as it wants it.
struct Part {
    const Product* p;
    Weights weights;
    Groups groups;
    const char* x;
    char* staged;
    int64_t size, blocks, x_row, staged_size;  // bytes, but for `blocks` of a row
    bool ahead;

    JF_INLINE Part(const Product& product, const char* rounded, int64_t rows, const Groups& some, char* decoded)
        : p(&product),
          weights(weights_of(product.dtype)),
          groups(some),
          x(rounded),
          staged(decoded),
          size(group_nbytes(product.dtype, product.k)),
          blocks(product.k / block_length(product.dtype)),
          x_row(weights.activation.row_nbytes(product.k)),
          staged_size(staged_nbytes(weights, product.k)),
          ahead(staged_ahead(weights, rows)) {
        for (int64_t i = 0; ahead && i < groups.count; i++) {
            const uint8_t* group = (const uint8_t*)groups.packed + i * size;
            weights.stage(group, blocks, (uint8_t*)staged + i * staged_size);
        }
    }

    // Group i times the panel that begins with row t.
    JF_INLINE void multiply(int64_t i, int64_t t, int64_t width, float* out) const {
        const uint8_t* group = (const uint8_t*)groups.packed + i * size;
        const uint8_t* decoded = (const uint8_t*)staged + i * staged_size;
        const char* panel = x + t * x_row;
        memset(out, 0, size_t(width * GROUP * 4));
        if (ahead)
            weights.staged_tile(width)(decoded, panel, p->k / 32, out);
        else if (weights.tile)
            weights.tile(width)(group, panel, blocks, out);
        else
            multiply_staged(*p, weights, group, panel, width, staged, out);
    }
};

// All rows of a segment times some groups of a product; `up` is the other half of a gated unit, or null.
inline void multiply_groups(const Part& part, const Part* up, int64_t segment) {
    const Product& p = *part.p;
    const int64_t begin = p.begin(segment), rows = p.end(segment) - begin;
    alignas(64) float out[WIDEST * GROUP], other[WIDEST * GROUP];
    for (int64_t start = 0, width; start < rows; start += width) {
        width = panel_width(rows - start, WIDEST);
        Row to[WIDEST];
        for (int64_t m = 0; m < width; m++) to[m] = row_of(p, begin + start + m);
        for (int64_t i = 0; i < part.groups.count; i++) {
            part.multiply(i, begin + start, width, out);
            if (up) up->multiply(i, begin + start, width, other);
            const int64_t n = (part.groups.first + i) * GROUP, valid = p.n - n < GROUP ? p.n - n : GROUP;
            for (int64_t m = 0; m < width; m++) finish(p, to[m], n, valid, out + m * GROUP, other + m * GROUP);
        }
    }
}

// Groups a worker takes at once: few for many rows (they stay in the first cache), some four pieces a worker for few
// rows; if it can be a number that comes out even. all: groups of all products that are made together. Where a unit
// joins two products, a piece holds as many groups of both together, and either may be decoded ahead. p: in its list.
JF_INLINE int64_t groups_at_once(const Product& p, int64_t all, int32_t workers) {
    const int64_t units = p.unit ? 2 : 1, groups = groups_of(p.n), share = all / (4 * int64_t(workers) * units);
    int64_t most = p.rows >= 64 * p.segments && share > 4 / units ? 4 / units : share;
    for (const Product* q = &p; q < &p + units; q++)
        if (staged_ahead(weights_of(q->dtype), q->most_rows) && most > STAGED_GROUPS) most = STAGED_GROUPS;
    if (most < 1) most = 1;
    for (int64_t c = most; 2 * c > most; c--)
        if (groups % (c * workers) == 0) return c;
    return most;
}

// Where a worker's memory lies, and rounded x.
struct Held {
    const BlockScratch& s;
    char *x, *group, *staged;
    int64_t units;  // products of a piece: two where a unit joins them

    // Product i of the piece: `count` groups from `first` on, packed already or, one at a time, here.
    JF_INLINE Part part(const Product* p, int i, int64_t at, int64_t segment, int64_t first, int64_t count) const {
        const Product& q = p[i];
        const int64_t size = group_nbytes(q.dtype, q.k), rest = q.n - first * GROUP;
        const char* matrix = q.matrix(q, segment);
        const char* packed = matrix + first * size;
        if (q.layout != ROWS16) {
            char* to = group + i * (s.group / units);
            pack_group(q.dtype, matrix + first * GROUP * q.row_stride, q.row_stride, rest < GROUP ? rest : GROUP, q.k,
                       to);
            packed = to;
        }
        return Part(q, x + s.rounded[at + i], q.end(segment) - q.begin(segment), {packed, first, count},
                    staged + i * (s.staged / units));
    }
};

// Groups [first, last) of a matrix of product `at`, and of the next one where a unit joins them.
inline void multiply_piece(const Product* all, int64_t at, const Held& held, int64_t segment, int64_t first,
                           int64_t last) {
    const Product* p = all + at;
    const bool packed = p->layout == ROWS16 && (!p->unit || p[1].layout == ROWS16);
    for (int64_t g = first, count = packed ? last - first : 1; g < last; g += count) {
        const Part part = held.part(p, 0, at, segment, g, count);
        if (p->unit) {
            const Part up = held.part(p, 1, at, segment, g, count);
            multiply_groups(part, &up, segment);
        } else {
            multiply_groups(part, nullptr, segment);
        }
    }
}

inline void multiply_blocks(const Product* p, int count, const Team& team, char* scratch) {
    const BlockScratch s(p, count, team.count);
    char *x = s.x_at(scratch, team), *line = s.line_at(scratch, team);
    const Share rows = s.own_x ? Share{0, p->rows} : share(p->rows, team);
    int64_t groups = 0, units = 1;
    for (int i = 0; i < count; i++) {
        if (s.rounds[i]) round_rows(p[i], x + s.rounded[i], (float*)line, rows.begin, rows.end);
        groups += groups_of(p[i].n) * p[i].segments;
        if (p[i].unit) units = 2;
    }
    const Held held{s, x, line + s.line, line + s.line + s.group, units};
    if (!s.own_x) team.barrier();

    Pieces pieces(p, count, [&](const Product& q) { return groups_at_once(q, groups, team.count); });
    each_piece(pieces, team, [&] {
        const int64_t in = pieces.groups(), first = pieces.piece % pieces.each * pieces.once;
        const int64_t last = first + pieces.once < in ? first + pieces.once : in;
        multiply_piece(p, pieces.at, held, pieces.piece / pieces.each, first, last);
    });
}

}  // namespace
}  // namespace jackfield::JF_LEVEL

// The engine behind linear, linear_experts and matmul: rows of x times the rows of one or more weight matrices.
// linear.cpp defines it, once for each instruction-set level.
#pragma once
#include "choices.h"
#include "packing.h"

namespace jackfield::JF_LEVEL {

constexpr int MOST_ADDENDS = 2;    // a bias and a residual
constexpr int MOST_PRODUCTS = 16;  // that are made together
enum GatedUnit : int32_t { NO_UNIT, SILU, GELU, GELU_ERF };

// Rows of x are numbered so that those of one matrix lie together (a segment). Filled from shapes alone; the data of
// a step is reached through the functions, which get the Product back.
struct Product {
    const Step* step;
    int64_t n, k;            // rows of a weight matrix and its columns
    int64_t segments, rows;  // matrices in use; rows of x in all
    int64_t most_rows;       // of any call of this step: what work memory is laid out for
    int64_t each;            // rows of a segment, if all are equal; else
    const int32_t* bounds;   // segment s holds rows bounds[s] to bounds[s + 1]
    int32_t dtype, layout;   // of the weight
    int32_t x_dtype;
    bool exact;                                             // x must not be rounded
    bool columns;                                           // the matrix is (k, n): matmul
    int64_t row_stride, column_stride, x_stride, y_stride;  // bytes: weight rows, weight columns, along x and y
    const char* (*matrix)(const Product&, int64_t segment);
    const char* (*x)(const Product&, int64_t row);
    char* (*y)(const Product&, int64_t row);
    const int32_t* order;  // free for x, y and matrix
    const int32_t* chosen;
    // What else is done to x before the product: k floats of a row to `line`. Null: nothing.
    void (*prepare)(const Product&, const char* row, float* line);
    double eps;           // free for prepare
    const char* weights;  // likewise
    // And to its results, in this order, before they are stored: with a unit, this product is the gate and the next one
    // of the list, of the same size, is multiplied to it; then f32 addends, shaped as the result.
    int32_t unit, addends;
    const View *x_view, *y_view;  // free for x and y
    View addend[MOST_ADDENDS];

    JF_INLINE int64_t begin(int64_t s) const { return bounds ? bounds[s] : s * each; }
    JF_INLINE int64_t end(int64_t s) const { return bounds ? bounds[s + 1] : (s + 1) * each; }
};

// Products that are made together have the same rows of x, and are all of block weights or all multiplied in f32.
int64_t products_scratch(const Product* p, int count, int32_t workers);
// All workers call it; `scratch` is of products_scratch bytes and 64-byte aligned.
void multiply_all(const Product* p, int count, const Team& team, char* scratch);
int32_t products_workers(const Product* p, int count, int32_t most);

static inline int64_t product_scratch(const Product& p, int32_t workers) { return products_scratch(&p, 1, workers); }
static inline void multiply(const Product& p, const Team& team, char* scratch) { multiply_all(&p, 1, team, scratch); }
static inline int32_t product_workers(const Product& p, int32_t most) { return products_workers(&p, 1, most); }

static JF_INLINE bool is_exact(const Attr& precision) {  // "f32"; the other value is "default"
    return precision.text && precision.text[0] == 'f';
}

// The groups of all matrices of several products as one list of pieces, of which workers take one after the other.
// OfOnce: of a product, how many groups make a piece.
template <class OfOnce>
struct Pieces {
    const Product* p;
    int count;
    OfOnce of_once;
    int at = 0;                    // the product that a piece was found in
    int64_t piece = 0, first = 0;  // which of its pieces; and what is the number of its first
    int64_t once = 0, each = 0;    // groups of a piece, pieces of a matrix

    JF_INLINE Pieces(const Product* products, int n, OfOnce f) : p(products), count(n), of_once(f) { measure(); }
    // False: there are less than i + 1 pieces. Numbers asked for must grow.
    JF_INLINE bool find(int64_t i) {
        while (at < count && i - first >= each * p[at].segments) {
            first += each * p[at].segments;
            at += p[at].unit ? 2 : 1;
            measure();
        }
        piece = i - first;
        return at < count;
    }
    JF_INLINE int64_t groups() const { return groups_of(p[at].n); }
    JF_INLINE int64_t all() const {
        int64_t found = 0;
        for (int i = 0; i < count; i += p[i].unit ? 2 : 1) {
            const int64_t of_piece = of_once(p[i]);
            found += (groups_of(p[i].n) + of_piece - 1) / of_piece * p[i].segments;
        }
        return found;
    }

private:
    JF_INLINE void measure() {
        if (at >= count) return;
        once = of_once(p[at]);
        each = (groups() + once - 1) / once;
    }
};

// So few rows of x that the weights' way from memory takes longer than the products.
static JF_INLINE bool few_rows(const Product& p) { return p.rows <= 4 * p.segments; }

// Calls f for every piece that this worker gets. Of few rows, half of the pieces are shared out from the start, each
// worker's side by side, so that what it reads is one stream; a worker that is held up leaves others the rest.
template <class Pieces, class F>
JF_INLINE void each_piece(Pieces& pieces, const Team& team, F f) {
    const int64_t own = team.count > 1 && few_rows(*pieces.p) ? pieces.all() / (2 * team.count) : 0;
    for (int64_t i = own * team.index; i < own * (team.index + 1) && pieces.find(i); i++) f();
    for (int64_t i = 0; pieces.find(own * team.count + (i = team.count > 1 ? team.next() : i)); i++) f();
}

// x (.., M, K) and weights with batch axes that divide those of x: segment s is weight (s / inner, s % inner), its rows
// are those of the x batches that share it, batch by batch.
struct Batches {
    int64_t inner, outer_share, inner_share, rows;  // inner weight batches; x batches a matrix serves; rows of a batch

    JF_INLINE explicit Batches(const Step& s)
        : inner(s.in[1].shape[1]),
          outer_share(s.in[0].shape[0] / s.in[1].shape[0]),
          inner_share(s.in[0].shape[1] / s.in[1].shape[1]),
          rows(s.in[0].shape[2]) {}

    JF_INLINE char* row(const View& v, int64_t t) const {
        if (v.rows() == rows) return v.data + t * v.stride[2];  // one batch: no division, which costs as much as a tile
        const int64_t each = outer_share * inner_share * rows, segment = t / each, rest = t % each;
        const int64_t outer = segment / inner * outer_share + rest / (inner_share * rows);
        const int64_t batch = segment % inner * inner_share + rest / rows % inner_share;
        return v.data + outer * v.stride[0] + batch * v.stride[1] + rest % rows * v.stride[2];
    }
};

// What linear and matmul have in common; n, k and the strides of the weight are still to be filled in.
static inline Product batched_product(const Step& s) {
    const View &x = s.in[0], &w = s.in[1];
    Product p{};
    p.step = &s;
    p.segments = w.shape[0] * w.shape[1];
    p.rows = p.most_rows = x.rows();
    p.each = p.segments ? p.rows / p.segments : 0;
    p.dtype = w.dtype;
    p.layout = w.layout;
    p.x_view = &x;
    p.y_view = &s.out;
    p.x_dtype = x.dtype;
    p.x_stride = x.stride[3];
    p.y_stride = s.out.stride[3];
    p.matrix = [](const Product& q, int64_t segment) -> const char* {
        const View& m = q.step->in[1];
        if (q.layout == ROWS16) return m.data + segment * packed_nbytes(m.dtype, m.shape[2], m.shape[3]);
        return m.data + segment / m.shape[1] * m.stride[0] + segment % m.shape[1] * m.stride[1];
    };
    p.x = [](const Product& q, int64_t t) -> const char* { return Batches(*q.step).row(*q.x_view, t); };
    p.y = [](const Product& q, int64_t t) { return Batches(*q.step).row(*q.y_view, t); };
    return p;
}

static inline Product linear_product(const Step& s) {
    Product p = batched_product(s);
    p.n = s.in[1].shape[2];
    p.k = s.in[1].shape[3];
    p.row_stride = s.in[1].stride[2];
    p.exact = is_exact(s.attr[0]);
    return p;
}

}  // namespace jackfield::JF_LEVEL

// The engine behind linear, linear_experts and matmul: rows of x times the rows of one or more weight matrices.
// linear.cpp defines it, once for each instruction-set level.
#pragma once
#include "bf16_products.h"
#include "packing.h"

namespace jackfield::JF_LEVEL {

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

    JF_INLINE int64_t begin(int64_t s) const { return bounds ? bounds[s] : s * each; }
    JF_INLINE int64_t end(int64_t s) const { return bounds ? bounds[s + 1] : (s + 1) * each; }
};

int64_t product_scratch(const Product& p, int32_t workers);
// All workers call it; `scratch` is of product_scratch bytes and 64-byte aligned.
void multiply(const Product& p, const Team& team, char* scratch);
int32_t product_workers(const Product& p, int32_t most);

static JF_INLINE bool is_exact(const Attr& precision) {  // "f32"; the other value is "default"
    return precision.text && precision.text[0] == 'f';
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
    p.x_dtype = x.dtype;
    p.x_stride = x.stride[3];
    p.y_stride = s.out.stride[3];
    p.matrix = [](const Product& q, int64_t segment) -> const char* {
        const View& m = q.step->in[1];
        if (q.layout == ROWS16) return m.data + segment * packed_nbytes(m.dtype, m.shape[2], m.shape[3]);
        return m.data + segment / m.shape[1] * m.stride[0] + segment % m.shape[1] * m.stride[1];
    };
    p.x = [](const Product& q, int64_t t) -> const char* { return Batches(*q.step).row(q.step->in[0], t); };
    p.y = [](const Product& q, int64_t t) { return Batches(*q.step).row(q.step->out, t); };
    return p;
}

}  // namespace jackfield::JF_LEVEL

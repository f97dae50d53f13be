// Elementwise ops on views whose elements lie together along another axis than the last: block by block, so that each
// cache line is read once and written once.
#pragma once
#include "transpose.h"
#include "views.h"

namespace jackfield {
namespace {

// Blocks of all views of a step, which have one shape: rows of some cache lines along the axis that lies together, as
// many pages as the CPU keeps track of.
struct Blocks {
    static constexpr int64_t COLUMNS = 64, LINES = 4, NBYTES = COLUMNS * LINES * CACHE_LINE;

    const int64_t* shape;
    int axis, outer, inner;  // rows run along `axis`; the other two
    int64_t rows;            // of a block
    int64_t down, across;

    // size: bytes of the widest element.
    Blocks(const int64_t* shape_, int axis_, int64_t size)
        : shape(shape_),
          axis(axis_),
          outer(axis_ == 0 ? 1 : 0),
          inner(axis_ == 2 ? 1 : 2),
          rows(LINES * CACHE_LINE / size),
          down((shape[axis] + rows - 1) / rows),
          across((shape[3] + COLUMNS - 1) / COLUMNS) {}

    int64_t count() const { return shape[outer] * shape[inner] * down * across; }

    // Block i of a view, as one of two axes.
    JF_INLINE View of(const View& v, int64_t i) const {
        const int64_t c = i % across * COLUMNS, r = i / across % down * rows, rest = i / across / down;
        View block = v;
        block.data += rest / shape[inner] * v.stride[outer] + rest % shape[inner] * v.stride[inner] +
                      r * v.stride[axis] + c * v.stride[3];
        block.shape[0] = block.shape[1] = 1;
        block.shape[2] = shape[axis] - r < rows ? shape[axis] - r : rows;
        block.shape[3] = shape[3] - c < COLUMNS ? shape[3] - c : COLUMNS;
        block.stride[2] = v.stride[axis];
        return block;
    }
};

// The same block without gaps in a buffer of Blocks::NBYTES. SIZE, here and below: bytes of an element.
template <int SIZE>
JF_INLINE View dense_in(char* buffer, const View& block) {
    View v = block;
    v.data = buffer;
    v.stride[3] = SIZE;
    v.stride[2] = v.shape[3] * SIZE;
    return v;
}

// The axis along which a view lies together, if that is not the last one, nor as good as it; else -1.
template <int SIZE>
JF_INLINE int turned_axis(const View& v) {
    if (v.last() == 1 || v.stride[3] == SIZE || v.stride[3] == 0) return -1;
    int best = -1;
    for (int axis = 0; axis < 3; axis++)
        if (v.shape[axis] >= 4 && v.stride[axis] == SIZE) best = axis;
    return best;
}

template <int SIZE>
JF_INLINE bool has_lines(const View& block) {
    return block.last() == 1 || block.stride[3] == 0 || block.stride[3] == SIZE;
}

// A block as lines without gaps on the last axis: where it lies, or copied to the buffer.
template <int SIZE>
JF_INLINE View as_lines(const View& block, char* buffer) {
    if (has_lines<SIZE>(block)) return block;
    const View to = dense_in<SIZE>(buffer, block);
    turn<SIZE, false>({block.data, block.stride[3], block.stride[2], buffer, SIZE, to.stride[2]}, block.shape[3],
                      block.shape[2]);
    return to;
}

// Lines without gaps to where a block lies.
template <int SIZE>
JF_INLINE void store_lines(const View& lines, const View& block) {
    turn<SIZE, false>({lines.data, lines.stride[2], SIZE, block.data, block.stride[2], block.stride[3]}, block.shape[2],
                      block.shape[3]);
}

}  // namespace
}  // namespace jackfield

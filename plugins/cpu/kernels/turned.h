// Elementwise ops on views whose elements lie together along another axis than the last: block by block, so that each
// cache line is read once and written once.
#pragma once
#include "transpose.h"
#include "views.h"

namespace jackfield {

// Functions of which the linker keeps one for all kernels of a level, and none of another level's: names in a
// namespace of the level. What they call becomes part of them, and no clones are made: else each kernel has a copy.
#if defined(__clang__)
#define JF_SHARED __attribute__((noinline, flatten)) inline
#else
#define JF_SHARED __attribute__((noinline, noclone, flatten)) inline
#endif

namespace JF_LEVEL::shared {

// `turn` of a block for all elementwise kernels: it knows nothing of their arithmetic, and a call is nothing to it.
template <int SIZE, bool PAST, bool ASK>
JF_SHARED void turn_block(const char* from, int64_t from_row, int64_t from_column, char* to, int64_t to_row,
                          int64_t to_column, int64_t rows, int64_t columns) {
    turn<SIZE, PAST, ASK>({from, from_row, from_column, to, to_row, to_column}, rows, columns);
}

}  // namespace JF_LEVEL::shared

namespace {

using namespace JF_LEVEL::shared;

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
    turn_block<SIZE, false, false>(block.data, block.stride[3], block.stride[2], buffer, SIZE, to.stride[2],
                                   block.shape[3], block.shape[2]);
    return to;
}

// Asks for piece i of a block, which is needed soon: a row, or where its columns lie together a column.
template <int SIZE>
JF_INLINE void ask_for(const View& block, int64_t i) {
    const bool lines = has_lines<SIZE>(block);
    const int along = lines ? 3 : 2, other = lines ? 2 : 3;
    if (i >= block.shape[other] || block.stride[other] == 0) return;
    const char* const piece = block.data + i * block.stride[other];
    const int64_t nbytes = block.stride[along] == SIZE ? block.shape[along] * SIZE : SIZE;
    for (int64_t at = 0; at < nbytes; at += CACHE_LINE) __builtin_prefetch(piece + at);
    __builtin_prefetch(piece + nbytes - 1);
}

// The same view with its last axis and another one exchanged.
JF_INLINE View exchanged(View v, int axis) {
    const int64_t n = v.shape[axis], stride = v.stride[axis];
    v.shape[axis] = v.shape[3], v.stride[axis] = v.stride[3];
    v.shape[3] = n, v.stride[3] = stride;
    return v;
}

// Whether a block's lines, which run along an axis, are whole cache lines.
template <int SIZE>
JF_INLINE bool whole_lines(const View& block, int along) {
    return block.stride[along] == SIZE && uintptr_t(block.data) % CACHE_LINE == 0 &&
           block.stride[5 - along] % CACHE_LINE == 0 && block.shape[along] * SIZE % CACHE_LINE == 0;
}

// Lines without gaps to where a block with whole lines lies, past the caches.
template <int SIZE>
JF_INLINE void copy_past_caches(const View& lines, const View& block) {
    const int64_t nbytes = block.shape[3] * SIZE;
    for (int64_t r = 0; r < block.shape[2]; r++)
        for (int64_t i = 0; i < nbytes; i += int64_t(sizeof(vb))) {
            vb v;
            memcpy(&v, lines.data + r * lines.stride[2] + i, sizeof v);
            store_past_caches(block.data + r * block.stride[2] + i, v);
        }
}

// Where the lines of a block's result are made, and how they come to where the block lies.
template <int SIZE>
struct Target {
    View block, made;
    bool past_lines, past_turned;

    // past: the result is too large for the caches. buffer: Blocks::NBYTES.
    JF_INLINE Target(const View& out, bool past, char* buffer)
        : block(out),
          made(out),
          past_lines(past && whole_lines<SIZE>(out, 3)),
          past_turned(past && whole_lines<SIZE>(out, 2)) {
        if (past_lines || !has_lines<SIZE>(out)) made = dense_in<SIZE>(buffer, out);
    }
    JF_INLINE void store() const {
        if (past_lines) return copy_past_caches<SIZE>(made, block);
        if (made.data == block.data) return;
        if (past_turned)
            turn_block<SIZE, true, false>(made.data, made.stride[2], SIZE, block.data, block.stride[2], block.stride[3],
                                          block.shape[2], block.shape[3]);
        else
            turn_block<SIZE, false, true>(made.data, made.stride[2], SIZE, block.data, block.stride[2], block.stride[3],
                                          block.shape[2], block.shape[3]);
    }
};

}  // namespace
}  // namespace jackfield

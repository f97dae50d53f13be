// Rows of K and V as they lie in a cache, of floats; attention_blocks.h has those of blocks.
#pragma once
#include "simd.h"

namespace jackfield {
namespace {

// Rows of K or V that are read after these: while the first ones are worked on they are asked for, row by row. A cache
// that was last read a token ago is in no near cache, and rows of one head may lie far apart.
struct Following {
    const char* data;
    int64_t rows;

    JF_INLINE void fetch(int64_t row, int64_t step, int64_t from, int64_t nbytes) const {
        if (row >= rows) return;
        const char* const at = data + row * step + from;
        for (int64_t i = 0; i < nbytes; i += 64) __builtin_prefetch(at + i, 0, 2);
    }
};

// Rows of K or V in a float dtype, `step` bytes apart.
template <DType D>
struct FloatRows {
    static constexpr int64_t UNIT = W;  // elements that are read from one place, which begins at a multiple of them
    const char* data;
    int64_t step;
    Following following;

    // Where element d of a row and the UNIT - 1 behind it lie.
    struct Place {
        const char* at;
        int64_t step;

        // W elements from the e-th on, of the row that lies `rows` further.
        JF_INLINE vf load(int64_t rows, int64_t) const { return jackfield::load<D>(at + rows * step); }
    };
    JF_INLINE Place place(int64_t row, int64_t d) const { return {data + row * step + d * bytes_of<D>, step}; }
    // W elements from the d-th on, a multiple of W; the last n, which are fewer.
    JF_INLINE vf one(int64_t row, int64_t d) const { return place(row, d).load(0, 0); }
    JF_INLINE vf part(int64_t row, int64_t d, int64_t n) const { return load_part<D>(place(row, d).at, n); }
    JF_INLINE void fetch(int64_t row, int64_t d, int64_t n) const {
        following.fetch(row, step, d * bytes_of<D>, n * bytes_of<D>);
    }
};

}  // namespace
}  // namespace jackfield

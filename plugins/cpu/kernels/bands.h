// Copies of matrices of which each row keeps one run of columns; what lies outside gets one value.
#pragma once
#include "copies.h"

namespace jackfield {
namespace {

constexpr Operand band_operands[] = {{"x", ROWS, bit(F32)}};

struct Kept {
    int64_t begin, end;
};

JF_INLINE int64_t within(int64_t i, int64_t n) { return i < 0 ? 0 : i > n ? n : i; }
// Far enough to keep or cut all, near enough to be added to.
JF_INLINE int64_t near_enough(int64_t k) {
    constexpr int64_t far = int64_t(1) << 60;
    return k < -far ? -far : k > far ? far : k;
}

JF_INLINE void fill_places(char* out, int64_t stride, float value, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) memcpy(out + i * stride, &value, 4);
}

// kept(row of the matrix, columns): what stays.
template <class Keeps>
JF_INLINE void copy_band(const Step& s, const Team& team, float value, const Keeps& kept) {
    const View &x = s.in[0], &out = s.out;
    const int64_t n = out.last(), stride = out.stride[3];
    const Share part = share(out.rows(), team);
    RowWalk walk(out.shape, part.begin);
    for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
        const Kept here = kept(walk.at[2], n);
        const char* const from = walk.row(x);
        char* const to = walk.row(out);
        fill_places(to, stride, value, 0, here.begin);
        if (from != to || stride != 4) {  // the result may lie where x lies
            if (stride == 4)
                copy_run(to + here.begin * 4, from + here.begin * 4, (here.end - here.begin) * 4);
            else
                scatter(from + here.begin * 4, to + here.begin * stride, stride, here.end - here.begin, 4);
        }
        fill_places(to, stride, value, here.end, n);
    }
}

}  // namespace
}  // namespace jackfield

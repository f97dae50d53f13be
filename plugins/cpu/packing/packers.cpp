// The packings of this wheel, for every machine: byte moves only, so one build at the plain instruction set.
#include "../kernels/packing.h"

namespace jackfield {
namespace {

constexpr int64_t MOST_PADDING_NBYTES = 1 << 18;  // rows filled up to 16 may cost this much, or 1/16 of the constant

int64_t matrices(const View& w) { return w.shape[0] * w.shape[1]; }

int64_t nbytes(const View& w) { return matrices(w) * packed_nbytes(w.dtype, w.shape[2], w.shape[3]); }

bool takes(const View& w) {
    if (!((WEIGHTS | FLOATS) & bit(w.dtype)) || w.rank < 2 || !w.size() || w.last() % block_length(w.dtype))
        return false;
    const int64_t plain = w.rows() * row_nbytes(w.dtype, w.last()), more = nbytes(w) - plain;
    return more <= MOST_PADDING_NBYTES || more <= plain / 16;
}

struct Sizes {
    int64_t row, group, matrix;
    explicit Sizes(const View& w)
        : row(row_nbytes(w.dtype, w.last())), group(group_nbytes(w.dtype, w.last())), matrix(w.shape[2] * row) {}
};

// Groups of no two matrices: then all rows can be taken as those of one.
bool is_one_matrix(const View& w) { return matrices(w) == 1 || w.shape[2] % GROUP == 0; }

Packer::Part part(const View& w) {
    const Sizes size(w);
    if (is_one_matrix(w)) return {GROUP * size.row, size.group};
    return {size.matrix, groups_of(w.shape[2]) * size.group};
}

// Calls `f(its first row, how many rows it has, where it lies packed)` for each group of `rows` plain rows.
template <class F>
void each_group(const View& w, int64_t rows, F f) {
    const Sizes size(w);
    const int64_t height = is_one_matrix(w) ? rows : w.shape[2];
    int64_t at = 0;
    for (int64_t matrix = 0; matrix < rows; matrix += height)
        for (int64_t r = 0; r < height; r += GROUP, at += size.group)
            f(matrix + r, height - r < GROUP ? height - r : GROUP, at);
}

// Number of the first bad block among plain rows; they hold one.
int64_t first_bad_block(int32_t dtype, const char* rows) {
    int64_t b = 0;
    while (!is_bad_block(dtype, (const uint8_t*)rows + b * block_nbytes(dtype))) b++;
    return b;
}

int64_t pack(const View& w, const char* from, int64_t nbytes, char* to) {
    const int64_t row = Sizes(w).row, row_blocks = w.last() / block_length(w.dtype);
    int64_t bad = -1;
    each_group(w, nbytes / row, [&](int64_t first, int64_t rows, int64_t at) {
        const char* plain = from + first * row;
        if (pack_group(w.dtype, plain, row, rows, w.last(), to + at) && bad < 0)
            bad = first * row_blocks + first_bad_block(w.dtype, plain);
    });
    return bad;
}

void unpack(const View& w, const char* from, char* to) {
    const int64_t row = Sizes(w).row;
    each_group(w, w.rows(), [&](int64_t first, int64_t rows, int64_t at) {
        for (int64_t r = 0; r < rows; r++) unpack_row(w.dtype, from + at, w.last(), r, to + (first + r) * row);
    });
}

constexpr Packer rows16{"rows16", takes, nbytes, part, pack, unpack};

}  // namespace

extern const Packer* const packers[];
const Packer* const packers[] = {&rows16, nullptr};

}  // namespace jackfield

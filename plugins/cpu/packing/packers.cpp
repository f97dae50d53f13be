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

// Groups are numbered over all matrices; calls `f(matrix, group of it)` for a part of them.
template <class F>
void each_group(const View& w, int64_t part, int64_t parts, F f) {
    const int64_t groups = groups_of(w.shape[2]), all = matrices(w) * groups;
    for (int64_t i = all * part / parts; i < all * (part + 1) / parts; i++) f(i / groups, i % groups);
}

struct Sizes {
    int64_t row, group, matrix;
    explicit Sizes(const View& w)
        : row(row_nbytes(w.dtype, w.last())), group(group_nbytes(w.dtype, w.last())), matrix(w.shape[2] * row) {}
};

int64_t rows_in(const View& w, int64_t group) {
    const int64_t rest = w.shape[2] - group * GROUP;
    return rest < GROUP ? rest : GROUP;
}

void pack(const View& w, const char* from, char* to, int64_t part, int64_t parts) {
    const Sizes size(w);
    each_group(w, part, parts, [&](int64_t m, int64_t g) {
        const char* rows = from + m * size.matrix + g * GROUP * size.row;
        char* group = to + (m * groups_of(w.shape[2]) + g) * size.group;
        pack_group(w.dtype, rows, size.row, rows_in(w, g), w.last(), group);
    });
}

void unpack(const View& w, const char* from, char* to, int64_t part, int64_t parts) {
    const Sizes size(w);
    each_group(w, part, parts, [&](int64_t m, int64_t g) {
        const char* group = from + (m * groups_of(w.shape[2]) + g) * size.group;
        char* rows = to + m * size.matrix + g * GROUP * size.row;
        for (int64_t r = 0; r < rows_in(w, g); r++) unpack_row(w.dtype, group, w.last(), r, rows + r * size.row);
    });
}

constexpr Packer rows16{"rows16", takes, nbytes, pack, unpack};

}  // namespace

extern const Packer* const packers[];
const Packer* const packers[] = {&rows16, nullptr};

}  // namespace jackfield

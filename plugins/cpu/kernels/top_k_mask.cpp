#include "views.h"
#include "simd.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"mask", ANY, bit(F16) | bit(F32)},
                                {"picks", ANY, bit(I32)},
                                {"score", ANY, bit(F32)},
                                {"blocks", ANY, bit(I32)},
                                {"extra", ANY, bit(I32)}};
constexpr const char* const attributes[] = {nullptr};
enum { MASK, PICKS, SCORE, BLOCKS, EXTRA };

template <class T>
JF_INLINE T element(const char* row, int64_t stride, int64_t i) {
    T value;
    memcpy(&value, row + i * stride, sizeof value);
    return value;
}

// One row of the mask, opened at the columns asked for. Entries are copied as whole numbers, bit by bit.
template <class T>
struct Opening {
    const char* mask;
    char* out;
    int64_t from, to, columns;  // strides

    JF_INLINE void open(int64_t c) const {
        if (c >= 0 && c < columns) memcpy(out + c * to, mask + c * from, sizeof(T));
    }
};

template <class T>
JF_INLINE void pick_all(const Step& s, const RowWalk& walk, const Opening<T>& row) {
    const View &picks = s.in[PICKS], &score = s.in[SCORE], &blocks = s.in[BLOCKS];
    const int64_t places = blocks ? blocks.shape[2] : score ? score.last() : row.columns;
    const char* const wanted = walk.row(picks);
    const char* const scores = score ? walk.row(score) : nullptr;
    for (int64_t i = 0; i < picks.last(); i++) {
        const int64_t p = element<int32_t>(wanted, picks.stride[3], i);
        if (p < 0 || p >= places) continue;
        if (scores && !(element<float>(scores, score.stride[3], p) > -__builtin_inff())) continue;
        if (!blocks) {
            row.open(p);
            continue;
        }
        const char* const cells = blocks.data + p * blocks.stride[2];
        for (int64_t c = 0; c < blocks.last(); c++) row.open(element<int32_t>(cells, blocks.stride[3], c));
    }
}

template <class T>
void open_rows(const Step& s, const Team& team, T closed) {
    const View &mask = s.in[MASK], &extra = s.in[EXTRA], &out = s.out;
    const Share part = share(out.rows(), team);
    RowWalk walk(out.shape, part.begin);
    for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
        const char* from = mask.data;
        for (int axis = 0; axis < 3; axis++) from += walk.at[axis] % mask.shape[axis] * mask.stride[axis];
        const Opening<T> row{from, walk.row(out), mask.stride[3], out.stride[3], out.last()};
        for (int64_t c = 0; c < row.columns; c++) memcpy(row.out + c * row.to, &closed, sizeof(T));
        pick_all(s, walk, row);
        if (!extra) continue;
        const char* const more = walk.row(extra);
        for (int64_t i = 0; i < extra.last(); i++) row.open(element<int32_t>(more, extra.stride[3], i));
    }
}

void run(const Step& s, const Team& team) {
    if (s.out.dtype == F32) return open_rows<uint32_t>(s, team, 0xff800000);
    open_rows<uint16_t>(s, team, 0xfc00);
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(top_k_mask, operands, attributes, bit(F16) | bit(F32), nullptr, run, nullptr, nullptr, nullptr)

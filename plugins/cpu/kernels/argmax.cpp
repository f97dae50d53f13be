#include "simd.h"
#include "views.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"x", ROWS, FLOATS}};
constexpr const char* const attributes[] = {"axis", nullptr};

bool why_not(const Step& s, Words& words) {
    const int64_t axis = s.attr[0].integer;
    if (axis == -1 || axis == s.in[0].rank - 1) return false;
    words << "only the last axis is searched, axis is " << axis;
    return true;
}

// Where a line's winner is known to be: one piece of it.
struct Best {
    float value = -__builtin_inff();
    int64_t piece = 0;
    bool nan = false;
};

// The largest of n elements, and whether one is NaN.
template <DType D>
JF_INLINE float look(const char* x, int64_t n, bool& nan) {
    constexpr int size = bytes_of<D>;
    vf top = splat(-__builtin_inff());
    vi bad{};
    int64_t i = 0;
    for (; i + W <= n; i += W) {
        const vf v = load<D>(x + i * size);
        top = max(v, top);
        bad |= (vi)(v != v);
    }
    float most = largest(top);
    nan = any(bad);
    for (; i < n; i++) {
        const float v = load_one<D>(x + i * size);
        if (v > most) most = v;
        nan |= v != v;
    }
    return most;
}

// The first NaN, else the first of the largest. In pieces, so that only one of them is read twice.
template <DType D>
JF_INLINE int32_t first_largest(const char* x, int64_t n) {
    constexpr int64_t size = bytes_of<D>, PIECE = 1024;
    Best best;
    for (int64_t i = 0; i < n && !best.nan; i += PIECE) {
        const float most = look<D>(x + i * size, n - i < PIECE ? n - i : PIECE, best.nan);
        if (best.nan || most > best.value) best.value = most, best.piece = i;
    }
    const vf wanted = splat(best.value);
    int64_t at = best.piece;
    for (; at + W <= n; at += W) {  // past the vectors that do not hold it
        const vf v = load<D>(x + at * size);
        if (any(best.nan ? (vi)(v != v) : (vi)(v == wanted))) break;
    }
    for (; at < n; at++) {
        const float v = load_one<D>(x + at * size);
        if (best.nan ? v != v : v == best.value) return int32_t(at);
    }
    return 0;
}

void run(const Step& s, const Team& team) {
    const View &x = s.in[0], &out = s.out;
    const Share part = share(x.rows(), team);
    RowWalk walk(x.shape, part.begin);
    for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
        const char* row = walk.row(x);
        const int32_t best = x.dtype == F32   ? first_largest<F32>(row, x.last())
                             : x.dtype == F16 ? first_largest<F16>(row, x.last())
                                              : first_largest<BF16>(row, x.last());
        // The result has lost the last axis: its axes 1 to 3 are axes 0 to 2 of x.
        memcpy(out.data + walk.at[0] * out.stride[1] + walk.at[1] * out.stride[2] + walk.at[2] * out.stride[3], &best,
               4);
    }
}

int32_t workers(const Step& s, int32_t most) { return workers_for(s.in[0].size(), most); }

}  // namespace
}  // namespace jackfield

JF_KERNEL(argmax, operands, attributes, bit(I32), why_not, run, workers, nullptr, nullptr)

#include "landing.h"
#include "simd.h"
#include "views.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"x", ANY, FLOATS}};
constexpr const char* const attributes[] = {"axis", nullptr};

// x and the result with their axes in another order. The result has those of x, stride 0 along the searched one.
struct Turned {
    View x, out;

    // `back` (or -1) and `last` come to the end; the other axes keep their order.
    JF_INLINE Turned(const Step& s, int axis, int back, int last) : x(s.in[0]), out(s.out) {
        const Landing landing(s, axis);
        int order[RANK], n = 0;
        for (int j = 0; j < RANK; j++)
            if (j != back && j != last) order[n++] = j;
        if (back >= 0) order[n++] = back;
        order[n] = last;
        for (int j = 0; j < RANK; j++) {
            x.shape[j] = out.shape[j] = s.in[0].shape[order[j]];
            x.stride[j] = s.in[0].stride[order[j]];
            out.stride[j] = landing.stride[order[j]];
        }
    }
};

// Bytes ahead of what is read that are asked for: where a page ends, the hardware stops looking ahead.
constexpr int64_t AHEAD = 2048;

// ---- one line after the other -----------------------------------------------------------------------------------

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
        __builtin_prefetch(x + i * size + AHEAD);
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

// The first of n elements that is what `best` says; one is.
template <DType D>
JF_INLINE int64_t find(const char* x, int64_t n, const Best& best) {
    constexpr int size = bytes_of<D>;
    const vf wanted = splat(best.value);
    int64_t at = 0;
    for (; at + W <= n; at += W) {  // past the vectors that do not hold it
        const vf v = load<D>(x + at * size);
        if (any(best.nan ? (vi)(v != v) : (vi)(v == wanted))) break;
    }
    for (; at < n; at++) {
        const float v = load_one<D>(x + at * size);
        if (best.nan ? v != v : v == best.value) break;
    }
    return at;
}

// The first NaN, else the first of the largest. In pieces, so that only one of them is read twice.
template <DType D>
JF_INLINE int32_t first_largest(const char* x, int64_t stride, int64_t n) {
    constexpr int64_t PIECE = 1024;
    char close[PIECE * bytes_of<D>];
    const auto piece = [&](int64_t i) {
        if (stride == bytes_of<D>) return x + i * stride;
        gather(x + i * stride, stride, close, n - i < PIECE ? n - i : PIECE, bytes_of<D>);
        return (const char*)close;
    };
    Best best;
    for (int64_t i = 0; i < n && !best.nan; i += PIECE) {
        const float most = look<D>(piece(i), n - i < PIECE ? n - i : PIECE, best.nan);
        if (best.nan || most > best.value) best.value = most, best.piece = i;
    }
    return int32_t(best.piece + find<D>(piece(best.piece), n - best.piece, best));
}

template <DType D>
void lines(const Turned& at, const Team& team) {
    const Share part = share(at.x.rows(), team);
    RowWalk walk(at.x.shape, part.begin);
    for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
        const int32_t best = first_largest<D>(walk.row(at.x), at.x.stride[3], at.x.last());
        memcpy(walk.row(at.out), &best, 4);
    }
}

// ---- many lines side by side --------------------------------------------------------------------------------------

// Neighbouring columns whose winners so far stay in the first cache.
constexpr int64_t ABREAST = 1024;
struct Winners {
    alignas(64) float value[ABREAST];
    alignas(64) int32_t row[ABREAST];
};

// W columns: what lies in row `i` wins if it is larger, or the first NaN.
JF_INLINE void challenge(Winners& best, int64_t column, vf v, int32_t i) {
    vf value;
    vi row;
    memcpy(&value, best.value + column, sizeof value);
    memcpy(&row, best.row + column, sizeof row);
    const vi wins = ~(vi)(v <= value) & (vi)(value == value);
    value = wins ? v : value;
    row = wins ? vi{} + i : row;
    memcpy(best.value + column, &value, sizeof value);
    memcpy(best.row + column, &row, sizeof row);
}

// The first row of the largest, or of the first NaN, of m neighbouring columns.
template <DType D>
JF_INLINE void first_largest_rows(const char* x, int64_t down, int64_t rows, int64_t m, Winners& best) {
    for (int64_t c = 0; c < ABREAST; c++) best.value[c] = -__builtin_inff(), best.row[c] = 0;
    const int64_t whole = m / W * W, left = m % W;
    const int64_t ahead = down * (1 + AHEAD / (m * bytes_of<D>));
    for (int64_t i = 0; i < rows; i++, x += down) {
        for (int64_t c = 0; c < whole; c += W) {
            __builtin_prefetch(x + c * bytes_of<D> + ahead);
            challenge(best, c, load<D>(x + c * bytes_of<D>), int32_t(i));
        }
        if (left) challenge(best, whole, load_part<D>(x + whole * bytes_of<D>, left), int32_t(i));
    }
}

template <DType D>
void columns(const Turned& at, const Team& team) {
    const View &x = at.x, &out = at.out;
    const int64_t rest[RANK] = {x.shape[0], x.shape[1], 1, 1};
    int64_t abreast = ABREAST;  // fewer where workers would have none
    while (abreast > 64 && rest[0] * rest[1] * ((x.last() + abreast - 1) / abreast) < 2 * team.count) abreast /= 2;
    const int64_t pieces = (x.last() + abreast - 1) / abreast;
    const Share part = share(rest[0] * rest[1] * pieces, team);
    Winners best;
    for (int64_t p = part.begin; p < part.end; p++) {
        const RowWalk walk(rest, p / pieces);
        const int64_t c = p % pieces * abreast, m = x.last() - c < abreast ? x.last() - c : abreast;
        first_largest_rows<D>(walk.row(x) + c * bytes_of<D>, x.stride[2], x.shape[2], m, best);
        scatter((const char*)best.row, walk.row(out) + c * out.stride[3], out.stride[3], m, 4);
    }
}

// ---- which of the two ---------------------------------------------------------------------------------------------

// An axis other than `axis` without gaps, or -1.
JF_INLINE int dense_axis(const View& x, int axis) {
    for (int j = RANK - 1; j >= 0; j--)
        if (j != axis && x.shape[j] > 1 && x.stride[j] == block_nbytes(x.dtype)) return j;
    return -1;
}

template <DType D>
void search(const Step& s, const Team& team) {
    const int axis = reduced_axis(s), across = dense_axis(s.in[0], axis);
    if (across == -1 || s.in[0].stride[axis] == bytes_of<D>) return lines<D>(Turned(s, axis, -1, axis), team);
    columns<D>(Turned(s, axis, axis, across), team);
}

void run(const Step& s, const Team& team) {
    if (s.in[0].dtype == F32) return search<F32>(s, team);
    if (s.in[0].dtype == F16) return search<F16>(s, team);
    search<BF16>(s, team);
}

int32_t workers(const Step& s, int32_t most) { return workers_for(s.in[0].size(), most); }

}  // namespace
}  // namespace jackfield

JF_KERNEL(argmax, operands, attributes, bit(I32), nullptr, run, workers, nullptr, nullptr)

#include "simd.h"
#include "views.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"x", ROWS, bit(F32)}};
constexpr const char* const attributes[] = {nullptr};

// Sums and differences of pairs 1, 2, 4, ... apart, in place; then all divided by the root of n.
JF_INLINE void transform(float* row, int64_t n, float factor) {
    for (int64_t gap = 1; gap < n; gap *= 2)
        for (int64_t i = 0; i < n; i += 2 * gap) {
            int64_t j = i;
            for (; j + W <= i + gap; j += W) {
                char *low = (char*)(row + j), *high = (char*)(row + j + gap);
                const vf u = load<F32>(low), v = load<F32>(high);
                store<F32>(low, u + v);
                store<F32>(high, u - v);
            }
            for (; j < i + gap; j++) {
                const float u = row[j], v = row[j + gap];
                row[j] = u + v;
                row[j + gap] = u - v;
            }
        }
    for (int64_t i = 0; i < n; i++) row[i] *= factor;
}

int64_t row_nbytes(const Step& s) { return (s.out.last() * 4 + 63) / 64 * 64; }

void run(const Step& s, const Team& team) {
    const View &x = s.in[0], &out = s.out;
    const int64_t n = out.last();
    float* const row = (float*)(team.scratch + team.index * row_nbytes(s));
    const float factor = float(1 / __builtin_sqrt(double(n)));
    const Share part = share(out.rows(), team);
    RowWalk walk(out.shape, part.begin);
    for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
        memcpy(row, walk.row(x), size_t(n) * 4);
        transform(row, n, factor);
        scatter((const char*)row, walk.row(out), out.stride[3], n, 4);
    }
}

int64_t scratch(const Step& s, int32_t workers) { return row_nbytes(s) * workers; }

}  // namespace
}  // namespace jackfield

JF_KERNEL(hadamard, operands, attributes, bit(F32), nullptr, run, nullptr, scratch, nullptr)

#include "simd.h"
#include "turned.h"
#include "views.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"a", ANY, bit(F32)}, {"b", ANY, bit(F32)}};
constexpr const char* const attributes[] = {"lower", "unit_diagonal", "left", nullptr};
enum { LOWER, UNIT_DIAGONAL, LEFT };
constexpr int64_t COLUMNS = 64;  // of b at a time: they stay in the first cache

// X a = b is a' X' = b': the views turned, and the other triangle.
JF_INLINE View as_left(const Step& s, const View& v) { return s.attr[LEFT].integer ? v : exchanged(v, 2); }

// Columns of b are independent. Some of them go through all rows, in work memory without gaps.
struct Solver {
    const Step& s;
    const View& a_view;
    float* x;

    JF_INLINE float factor(const char* a, int64_t i, int64_t k) const {
        return load_one<F32>(a + i * a_view.stride[2] + k * a_view.stride[3]);
    }
    JF_INLINE float* row(int64_t i) const { return x + i * COLUMNS; }

    JF_INLINE void subtract(int64_t i, int64_t k, float weight) const {
        for (int64_t c = 0; c < COLUMNS; c += W) {
            const vf from = load<F32>((const char*)(row(k) + c)), to = load<F32>((const char*)(row(i) + c));
            store<F32>((char*)(row(i) + c), fma(from, splat(-weight), to));
        }
    }
    JF_INLINE void solve(const char* a, int64_t n) const {
        const bool lower = (s.attr[LOWER].integer != 0) == (s.attr[LEFT].integer != 0);
        const bool unit = s.attr[UNIT_DIAGONAL].integer != 0;
        for (int64_t step = 0; step < n; step++) {
            const int64_t i = lower ? step : n - 1 - step;
            for (int64_t done = 0; done < step; done++) {
                const int64_t k = lower ? done : n - 1 - done;
                subtract(i, k, factor(a, i, k));
            }
            if (unit) continue;
            const float d = factor(a, i, i);
            for (int64_t c = 0; c < COLUMNS; c++) row(i)[c] /= d;
        }
    }
};

int64_t nbytes(const Step& s) { return (as_left(s, s.out).shape[2] * COLUMNS * 4 + 63) / 64 * 64; }

void run(const Step& s, const Team& team) {
    const View a = as_left(s, s.in[0]), b = as_left(s, s.in[1]), out = as_left(s, s.out);
    const int64_t n = out.shape[2], m = out.last(), across = (m + COLUMNS - 1) / COLUMNS;
    const Solver solver{s, a, (float*)(team.scratch + team.index * nbytes(s))};
    const Share part = share(out.shape[0] * out.shape[1] * across, team);
    if (part.begin < part.end) memset(solver.x, 0, size_t(nbytes(s)));
    for (int64_t p = part.begin; p < part.end; p++) {
        const int64_t i = p / across, first = p % across * COLUMNS, left = m - first;
        const int64_t count = left < COLUMNS ? left : COLUMNS, i0 = i / out.shape[1], i1 = i % out.shape[1];
        const char* const from = b.data + i0 * b.stride[0] + i1 * b.stride[1] + first * b.stride[3];
        for (int64_t r = 0; r < n; r++) gather(from + r * b.stride[2], b.stride[3], (char*)solver.row(r), count, 4);
        solver.solve(a.data + i0 * a.stride[0] + i1 * a.stride[1], n);
        char* const to = out.data + i0 * out.stride[0] + i1 * out.stride[1] + first * out.stride[3];
        for (int64_t r = 0; r < n; r++)
            scatter((const char*)solver.row(r), to + r * out.stride[2], out.stride[3], count, 4);
    }
}

int32_t workers(const Step& s, int32_t most) { return workers_for(s.out.size() * s.in[0].last(), most); }
int64_t scratch(const Step& s, int32_t workers) { return nbytes(s) * workers; }

}  // namespace
}  // namespace jackfield

JF_KERNEL(solve_triangular, operands, attributes, bit(F32), nullptr, run, workers, scratch, nullptr)

#include "state_matrix.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"r", ROWS, bit(F32)},    {"w", ROWS, bit(F32)}, {"k", ROWS, bit(F32)},
                                {"v", ROWS, bit(F32)},    {"a", ROWS, bit(F32)}, {"b", ROWS, bit(F32)},
                                {"state", ROWS, bit(F32)}};
constexpr const char* const attributes[] = {nullptr};
enum { R, DECAY, K, V, A, B, STATE };
enum { READ, FADING, KEY, REMOVED, ADDED, RESULT, VECTORS };

// Rows are independent: each is read twice, once for what `a` finds in it.
void run(const Step& s, const Team& team) {
    const Sequences all(s, STATE);
    all.run(team, VECTORS, [&](int64_t begin, int64_t h, const Matrix& m, const Rows& rows) {
        for (int64_t t = begin; t < begin + all.each; t++) {
            const float *r = m.fetch(READ, all.vector(R, t, h)), *w = m.fetch(FADING, all.vector(DECAY, t, h));
            const float *k = m.fetch(KEY, all.vector(K, t, h)), *a = m.fetch(REMOVED, all.vector(A, t, h));
            const float *b = m.fetch(ADDED, all.vector(B, t, h)), *v = (const float*)all.vector(V, t, h);
            for (int64_t i = 0; i < m.n; i++) {
                float* const row = m.row(i);
                const vf value = splat(v[i]), found = splat(dot_padded(a, row, m.width));
                vf y{};
                for (int64_t j = 0; j < m.width; j += W) {
                    const vf now = fma(found, at(b + j), fma(at(row + j), at(w + j), value * at(k + j)));
                    const vf kept = m.within(j, now);
                    y = fma(kept, at(r + j), y);
                    put(row + j, kept);
                }
                m.vector(RESULT)[i] = sum(y);
            }
            rows.put(t * all.heads + h, m.vector(RESULT));
        }
    });
}

int64_t scratch(const Step& s, int32_t workers) { return Matrix::nbytes(s.in[R].last(), VECTORS) * workers; }

}  // namespace
}  // namespace jackfield

JF_KERNEL(rwkv_wkv7, operands, attributes, bit(F32), nullptr, run, workers_for_states, scratch, nullptr)

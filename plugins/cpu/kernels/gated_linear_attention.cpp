#include "state_matrix.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"k", ROWS, bit(F32)},
                                {"v", ROWS, bit(F32)},
                                {"q", ROWS, bit(F32)},
                                {"g", ROWS, bit(F32)},
                                {"state", ROWS, bit(F32)}};
constexpr const char* const attributes[] = {"scale", nullptr};
enum { K, V, Q, G, STATE };
enum { VALUES, RESULT, VECTORS };

// Columns are independent: a vector of them goes down all rows.
void run(const Step& s, const Team& team) {
    const Sequences all(s, STATE);
    const float scale = float(s.attr[0].number);
    all.run(team, VECTORS, [&](int64_t begin, int64_t h, const Matrix& m, const Rows& rows) {
        for (int64_t t = begin; t < begin + all.each; t++) {
            const float *k = (const float*)all.vector(K, t, h), *q = (const float*)all.vector(Q, t, h);
            const float* const g = (const float*)all.vector(G, t, h);
            const float* const v = m.fetch(VALUES, all.vector(V, t, h));
            for (int64_t j = 0; j < m.width; j += W) {
                vf y{};
                for (int64_t i = 0; i < m.n; i++) {
                    const vf now = fma(at(m.row(i) + j), splat(g[i]), at(v + j) * k[i]);
                    y = fma(now, splat(q[i]), y);
                    put(m.row(i) + j, now);
                }
                put(m.vector(RESULT) + j, y * scale);
            }
            rows.put(t * all.heads + h, m.vector(RESULT));
        }
    });
}

int64_t scratch(const Step& s, int32_t workers) { return Matrix::nbytes(s.in[K].last(), VECTORS) * workers; }

}  // namespace
}  // namespace jackfield

JF_KERNEL(gated_linear_attention, operands, attributes, bit(F32), nullptr, run, workers_for_states, scratch, nullptr)

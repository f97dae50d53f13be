#include "state_matrix.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"k", ROWS, bit(F32)},     {"v", ROWS, bit(F32)},     {"r", ROWS, bit(F32)},
                                {"first", ROWS, bit(F32)}, {"decay", ROWS, bit(F32)}, {"state", ROWS, bit(F32)}};
constexpr const char* const attributes[] = {nullptr};
enum { K, V, R, FIRST, DECAY, STATE };
enum { VALUES, RESULT, VECTORS };

// Columns are independent: a vector of them goes down all rows.
void run(const Step& s, const Team& team) {
    const Sequences all(s, STATE);
    all.run(team, VECTORS, [&](int64_t begin, int64_t h, const Matrix& m, const Rows& rows) {
        const float* const first = (const float*)all.vector(FIRST, 0, h);
        for (int64_t t = begin; t < begin + all.each; t++) {
            const float *k = (const float*)all.vector(K, t, h), *r = (const float*)all.vector(R, t, h);
            const float* const decay = (const float*)all.vector(DECAY, t, h);
            const float* const v = m.fetch(VALUES, all.vector(V, t, h));
            for (int64_t j = 0; j < m.width; j += W) {
                vf y{};
                for (int64_t i = 0; i < m.n; i++) {
                    const vf kv = at(v + j) * k[i], old = at(m.row(i) + j);
                    y = fma(fma(kv, splat(first[i]), old), splat(r[i]), y);
                    put(m.row(i) + j, fma(old, splat(decay[i]), kv));
                }
                put(m.vector(RESULT) + j, y);
            }
            rows.put(t * all.heads + h, m.vector(RESULT));
        }
    });
}

int64_t scratch(const Step& s, int32_t workers) { return Matrix::nbytes(s.in[K].last(), VECTORS) * workers; }

}  // namespace
}  // namespace jackfield

JF_KERNEL(rwkv_wkv6, operands, attributes, bit(F32), nullptr, run, workers_for_states, scratch, nullptr)

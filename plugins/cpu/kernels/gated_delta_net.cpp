#include "state_matrix.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"q", ROWS, bit(F32)}, {"k", ROWS, bit(F32)},    {"v", ROWS, bit(F32)},
                                {"g", ROWS, bit(F32)}, {"beta", ROWS, bit(F32)}, {"state", ROWS, bit(F32)}};
constexpr const char* const attributes[] = {"snapshots", nullptr};
enum { Q, K, V, G, BETA, STATE };
enum { QUERY, KEY, FADING, RESULT, VECTORS };

struct Delta {
    const Step& s;
    const View& v;
    int64_t n, heads, tokens, count, snapshots;
    float root;

    JF_INLINE explicit Delta(const Step& step) : s(step), v(step.in[V]) {
        count = v.shape[0], tokens = v.shape[1], heads = v.shape[2], n = v.shape[3];
        snapshots = s.attr[0].integer;
        root = float(1 / __builtin_sqrt(double(n)));
    }
    // q and k have sequences in groups and heads in turn.
    JF_INLINE const char* shared(int operand, int64_t i, int64_t t, int64_t h) const {
        const View& x = s.in[operand];
        return x.data + i / (count / x.shape[0]) * x.stride[0] + t * x.stride[1] + h % x.shape[2] * x.stride[2];
    }
    JF_INLINE const char* own(int operand, int64_t i, int64_t t, int64_t h) const {
        const View& x = s.in[operand];
        return x.data + i * x.stride[0] + t * x.stride[1] + h * x.stride[2];
    }

    JF_INLINE void fade(const Matrix& m, int64_t i, int64_t t, int64_t h) const {
        float* const fading = m.vector(FADING);
        const char* g = own(G, i, t, h);
        const bool one = s.in[G].last() == 1;
        for (int64_t j = 0; j < m.width; j += W) {
            const vf power = one            ? splat(load_one<F32>(g))
                             : j + W <= m.n ? load<F32>(g + j * 4)
                                            : load_part<F32>(g + j * 4, m.n - j);
            put(fading + j, m.within(j, exp(power)));
        }
    }

    // Rows are independent: each fades, is asked for the key, and moves towards the value.
    JF_INLINE void token(const Matrix& m, int64_t i, int64_t t, int64_t h) const {
        const float *q = m.fetch(QUERY, shared(Q, i, t, h)), *k = m.fetch(KEY, shared(K, i, t, h));
        const float *value = (const float*)own(V, i, t, h), beta = load_one<F32>(own(BETA, i, t, h));
        const float* const fading = m.vector(FADING);
        fade(m, i, t, h);
        for (int64_t r = 0; r < m.n; r++) {
            float* const row = m.row(r);
            vf found{}, y{};
            for (int64_t j = 0; j < m.width; j += W) {
                const vf faded = at(row + j) * at(fading + j);
                put(row + j, faded);
                found = fma(faded, at(k + j), found);
            }
            const vf delta = splat(beta * (value[r] - sum(found)));
            for (int64_t j = 0; j < m.width; j += W) {
                const vf now = fma(delta, at(k + j), at(row + j)), kept = m.within(j, now);
                put(row + j, kept);
                y = fma(kept, at(q + j), y);
            }
            m.vector(RESULT)[r] = sum(y) * root;
        }
    }
};

// State number j is the one before the last j tokens; those further back than the first token are what it began with.
void run(const Step& s, const Team& team) {
    const Delta d(s);
    const int64_t nbytes = Matrix::nbytes(d.n, VECTORS);
    float* const memory = (float*)(team.scratch + team.index * nbytes);
    const Share part = share(d.count * d.heads, team);
    if (part.begin < part.end) memset(memory, 0, size_t(nbytes));
    const Rows rows{s.out, d.heads, d.n};
    for (int64_t p = part.begin; p < part.end; p++) {
        const int64_t i = p / d.heads, h = p % d.heads, states = d.count * d.tokens * d.heads;
        const Matrix m(d.n, memory);
        const View& state = s.in[STATE];
        for (int64_t r = 0; r < d.n; r++)
            memcpy(m.row(r), state.data + i * state.stride[0] + h * state.stride[1] + r * state.stride[2],
                   size_t(d.n) * 4);
        const auto keep = [&](int64_t number) { rows.put(states + ((number * d.count + i) * d.heads + h) * d.n, m); };
        for (int64_t number = d.tokens; number < d.snapshots; number++) keep(number);
        for (int64_t t = 0; t < d.tokens; t++) {
            d.token(m, i, t, h);
            rows.put((i * d.tokens + t) * d.heads + h, m.vector(RESULT));
            if (d.tokens - 1 - t < d.snapshots) keep(d.tokens - 1 - t);
        }
    }
}

int32_t workers(const Step& s, int32_t most) { return workers_for(s.in[V].size() * s.in[V].last(), most); }
int64_t scratch(const Step& s, int32_t workers) { return Matrix::nbytes(s.in[V].last(), VECTORS) * workers; }

}  // namespace
}  // namespace jackfield

JF_KERNEL(gated_delta_net, operands, attributes, bit(F32), nullptr, run, workers, scratch, nullptr)

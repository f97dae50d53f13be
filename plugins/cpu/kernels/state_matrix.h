// A matrix a head that tokens read and change one after the other: what the kernels of linear attention share. Rows are
// padded to whole vectors; what lies in the padding is kept at 0 wherever it would reach a sum.
#pragma once
#include "simd.h"
#include "views.h"

namespace jackfield {
namespace {

JF_INLINE int64_t padded_to_vectors(int64_t n) { return (n + W - 1) / W * W; }

JF_INLINE vf at(const float* p) { return load<F32>((const char*)p); }
JF_INLINE void put(float* p, vf x) { store<F32>((char*)p, x); }

// Work memory of one worker: a matrix of n rows of n, and some vectors.
struct Matrix {
    int64_t n, width;
    float* cells;
    vi last;  // all bits of those lanes of a row's last vector that are elements

    JF_INLINE Matrix(int64_t size, float* memory) : n(size), width(padded_to_vectors(size)), cells(memory) {
        for (int i = 0; i < W; i++) last[i] = width - W + i < n ? -1 : 0;
    }
    // x as the vector at column j: 0 in the padding.
    JF_INLINE vf within(int64_t j, vf x) const { return j + W < width ? x : of_bits(bits_of(x) & last); }
    JF_INLINE static int64_t nbytes(int64_t n, int vectors) {
        return ((n + vectors) * padded_to_vectors(n) * 4 + 63) / 64 * 64;
    }
    JF_INLINE float* row(int64_t i) const { return cells + i * width; }
    JF_INLINE float* vector(int i) const { return cells + (n + i) * width; }

    // From n rows of n without gaps.
    JF_INLINE void read(const char* from) const {
        for (int64_t i = 0; i < n; i++) memcpy(row(i), from + i * n * 4, size_t(n) * 4);
    }
    JF_INLINE const float* fetch(int i, const char* from) const {
        memcpy(vector(i), from, size_t(n) * 4);
        return vector(i);
    }
};

// Products of two padded vectors, summed.
JF_INLINE float dot_padded(const float* a, const float* b, int64_t width) {
    vf total{};
    for (int64_t j = 0; j < width; j += W) total = fma(at(a + j), at(b + j), total);
    return sum(total);
}

// The result of tokens and states in one tensor of two axes: rows of H * D numbers, which `number` counts in pieces of
// D.
struct Rows {
    const View& out;
    int64_t heads, n;

    JF_INLINE void put(int64_t number, const float* from) const {
        char* const to = out.data + number / heads * out.stride[2] + number % heads * n * out.stride[3];
        scatter((const char*)from, to, out.stride[3], n, 4);
    }
    // A whole matrix, n pieces from `number` on.
    JF_INLINE void put(int64_t number, const Matrix& m) const {
        for (int64_t i = 0; i < n; i++) put(number + i, m.row(i));
    }
};

// Tokens of S sequences one after the other, (T, H, D) each, with states (S, H * D * D).
struct Sequences {
    const Step& s;
    const View &token, &state;
    int64_t n, heads, tokens, count, each;

    JF_INLINE Sequences(const Step& step, int state_operand)
        : s(step), token(step.in[0]), state(step.in[state_operand]) {
        n = token.last();
        heads = token.shape[2];
        tokens = token.shape[1];
        count = state.shape[2];
        each = count ? tokens / count : 0;
    }
    JF_INLINE const char* vector(int operand, int64_t t, int64_t h) const {
        const View& v = s.in[operand];
        return v.data + t * v.stride[1] + h * v.stride[2];
    }

    // make(first token, head, matrix): all tokens of a sequence, from the state it begins with.
    template <class Make>
    JF_INLINE void run(const Team& team, int vectors, const Make& make) const {
        const int64_t nbytes = Matrix::nbytes(n, vectors);
        float* const memory = (float*)(team.scratch + team.index * nbytes);
        const Share part = share(count * heads, team);
        if (part.begin < part.end) memset(memory, 0, size_t(nbytes));
        const Rows rows{s.out, heads, n};
        for (int64_t p = part.begin; p < part.end; p++) {
            const Matrix m(n, memory);
            m.read(state.data + p / heads * state.stride[2] + p % heads * n * n * 4);
            make(p / heads * each, p % heads, m, rows);
            rows.put(tokens * heads + p * n, m);
        }
    }
};

JF_INLINE int32_t workers_for_states(const Step& s, int32_t most) {
    return workers_for(s.in[0].size() * s.in[0].last(), most);
}

}  // namespace
}  // namespace jackfield

// Rows of K and V as they lie in a cache: floats, or q8_0, blocks of 32 int8 behind an f16 scale. Its d * q is exact in
// f32, so the result is that of a decoded cache.
#pragma once
#include "simd.h"

namespace jackfield {
namespace {

// W quants. GCC 12 takes int8 vectors apart element by element when it converts them.
JF_INLINE vf load_quants(const char* p) {
#if defined(__AVX512F__)
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)));
#elif defined(__AVX2__)
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)));
#else
    typedef int8_t bytes __attribute__((vector_size(16)));
    typedef int16_t pairs __attribute__((vector_size(16)));
    bytes q{};
    memcpy(&q, p, W);
    q = __builtin_shufflevector(q, q, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const pairs twice = __builtin_shufflevector((pairs)q, (pairs)q, 0, 0, 1, 1, 2, 2, 3, 3);
    return __builtin_convertvector((vi)twice >> 24, vf);
#endif
}

// The scales of n rows `step` bytes apart, in f32: that of block b of row i comes to scales[b * scales_step + i]. Up to
// a vector of scales behind a block's last is written.
inline void read_scales(const char* rows, int64_t step, int64_t n, int64_t blocks, float* scales, int64_t scales_step) {
    for (int64_t i = 0; i < n; i += W) {
        const int64_t some = n - i < W ? n - i : W;
        const char* const first = rows + i * step;
        for (int64_t b = 0; b < blocks; b++) {
            uint16_t halves[W] = {};
            for (int64_t c = 0; c < some; c++) memcpy(halves + c, first + c * step + b * 34, 2);
            store<F32>((char*)(scales + b * scales_step + i), load<F16>((const char*)halves));
        }
    }
}

// Rows of K or V that are read after these: while the first ones are worked on they are asked for, row by row. A cache
// that was last read a token ago is in no near cache, and rows of one head may lie far apart.
struct Following {
    const char* data;
    int64_t rows;

    JF_INLINE void fetch(int64_t row, int64_t step, int64_t from, int64_t nbytes) const {
        if (row >= rows) return;
        const char* const at = data + row * step + from;
        for (int64_t i = 0; i < nbytes; i += 64) __builtin_prefetch(at + i, 0, 2);
    }
};

// Rows of K or V in a float dtype, `step` bytes apart.
template <DType D>
struct FloatRows {
    static constexpr int64_t UNIT = W;  // elements that are read from one place
    const char* data;
    int64_t step;
    Following following;

    // Where element d of a row and the UNIT - 1 behind it lie.
    struct Place {
        const char* at;
        int64_t step;

        // W elements from the e-th on, of the row that lies `rows` further.
        JF_INLINE vf load(int64_t rows, int64_t) const { return jackfield::load<D>(at + rows * step); }
    };
    JF_INLINE Place place(int64_t row, int64_t d) const { return {data + row * step + d * bytes_of<D>, step}; }
    JF_INLINE vf part(int64_t row, int64_t d, int64_t n) const { return load_part<D>(place(row, d).at, n); }
    JF_INLINE void fetch(int64_t row, int64_t d, int64_t n) const {
        following.fetch(row, step, d * bytes_of<D>, n * bytes_of<D>);
    }
};

// Rows of q8_0. Scales: f32, of block b of a row at scales[b * scales_step + row]. Reading them for a whole piece of
// rows beforehand costs little, for all these loads are under way at once.
struct QuantRows {
    static constexpr int64_t UNIT = 32;
    const char* data;
    int64_t step;
    const float* scales;
    int64_t scales_step;
    Following following;

    struct Place {
        const char* at;
        int64_t step;
        const float* scale;

        JF_INLINE vf load(int64_t rows, int64_t e) const {
            return load_quants(at + rows * step + e) * splat(scale[rows]);
        }
    };
    JF_INLINE Place place(int64_t row, int64_t d) const {
        const int64_t block = d / 32;
        return {data + row * step + block * 34 + 2 + d % 32, step, scales + block * scales_step + row};
    }
    JF_INLINE vf part(int64_t, int64_t, int64_t) const { return vf{}; }  // never: there are whole blocks only
    JF_INLINE void fetch(int64_t row, int64_t d, int64_t n) const {
        following.fetch(row, step, d / 32 * 34, (n + 31) / 32 * 34);
    }
};

}  // namespace
}  // namespace jackfield

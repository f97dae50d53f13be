// Squares of elements turned about their diagonal: what a copy does where the axis that lies together in the source is
// another one than in the target. A square is one cache line wide, so each line is read once and written once.
#pragma once
#include "simd.h"

namespace jackfield {
namespace {

constexpr int64_t CACHE_LINE = 64;
constexpr int64_t PAST_CACHES = 8 << 20;  // bytes of a result from which on it would not stay in caches anyway

typedef uint8_t vb __attribute__((vector_size(sizeof(vf))));

// Elements of SIZE bytes of a and b in turn, within each 16 bytes: of their first halves, of their second halves.
template <int SIZE>
JF_INLINE vb zip_low(vb a, vb b);
template <int SIZE>
JF_INLINE vb zip_high(vb a, vb b);

#if defined(__SSE2__)
#if defined(__AVX512F__)
#define JF_ZIP(half, bits) return (vb)_mm512_unpack##half##_epi##bits((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
#define JF_ZIP(half, bits) return (vb)_mm256_unpack##half##_epi##bits((__m256i)a, (__m256i)b);
#else
#define JF_ZIP(half, bits) return (vb)_mm_unpack##half##_epi##bits((__m128i)a, (__m128i)b);
#endif
#define JF_ZIPS(size, bits, ...)              \
    template <>                               \
    JF_INLINE vb zip_low<size>(vb a, vb b) {  \
        JF_ZIP(lo, bits)                      \
    }                                         \
    template <>                               \
    JF_INLINE vb zip_high<size>(vb a, vb b) { \
        JF_ZIP(hi, bits)                      \
    }
JF_ZIPS(1, 8)
JF_ZIPS(2, 16)
JF_ZIPS(4, 32)
JF_ZIPS(8, 64)
#undef JF_ZIP
#else  // vectors of 16 bytes
#define JF_ZIPS(size, type, low, high)                                \
    template <>                                                       \
    JF_INLINE vb zip_low<size>(vb a, vb b) {                          \
        typedef type v __attribute__((vector_size(16)));              \
        return (vb)__builtin_shufflevector((v)a, (v)b, JF_LIST low);  \
    }                                                                 \
    template <>                                                       \
    JF_INLINE vb zip_high<size>(vb a, vb b) {                         \
        typedef type v __attribute__((vector_size(16)));              \
        return (vb)__builtin_shufflevector((v)a, (v)b, JF_LIST high); \
    }
#define JF_LIST(...) __VA_ARGS__
JF_ZIPS(1, uint8_t, (0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23),
        (8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31))
JF_ZIPS(2, uint16_t, (0, 8, 1, 9, 2, 10, 3, 11), (4, 12, 5, 13, 6, 14, 7, 15))
JF_ZIPS(4, uint32_t, (0, 4, 1, 5), (2, 6, 3, 7))
JF_ZIPS(8, uint64_t, (0, 2), (1, 3))
#undef JF_LIST
#endif
#undef JF_ZIPS

// 16 bytes from each of as many places, `gap` bytes apart, as a vector holds.
JF_INLINE vb gather_lanes(const char* p, int64_t gap) {
#if defined(__AVX512F__)
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i*)p));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i*)(p + gap)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i*)(p + 2 * gap)), 2);
    return (vb)_mm512_inserti32x4(v, _mm_loadu_si128((const __m128i*)(p + 3 * gap)), 3);
#elif defined(__AVX2__)
    const __m256i v = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i*)p));
    return (vb)_mm256_inserti128_si256(v, _mm_loadu_si128((const __m128i*)(p + gap)), 1);
#else
    vb v;
    memcpy(&v, p, sizeof v);
    (void)gap;
    return v;
#endif
}

// Past the caches, where the level has a word for it; `to` is a multiple of the vector.
JF_INLINE void store_past_caches(char* to, vb v) {
#if defined(__AVX512F__)
    _mm512_stream_si512((__m512i*)to, (__m512i)v);
#elif defined(__AVX2__)
    _mm256_stream_si256((__m256i*)to, (__m256i)v);
#elif defined(__SSE2__)
    _mm_stream_si128((__m128i*)to, (__m128i)v);
#else
    memcpy(to, &v, sizeof v);
#endif
}
// Before another thread may read what was stored so.
JF_INLINE void settle() {
#if defined(__SSE2__)
    _mm_sfence();
#endif
}

// Few bytes, without a call. The last piece overlaps the one before.
JF_INLINE void copy_short(char* to, const char* from, int64_t n) {
    if (n >= 16) {
        for (int64_t i = 0; i + 16 < n; i += 16) memcpy(to + i, from + i, 16);
        memcpy(to + n - 16, from + n - 16, 16);
    } else if (n >= 8) {
        uint64_t a, b;
        memcpy(&a, from, 8), memcpy(&b, from + n - 8, 8);
        memcpy(to, &a, 8), memcpy(to + n - 8, &b, 8);
    } else if (n >= 4) {
        uint32_t a, b;
        memcpy(&a, from, 4), memcpy(&b, from + n - 4, 4);
        memcpy(to, &a, 4), memcpy(to + n - 4, &b, 4);
    } else {
        for (int64_t i = 0; i < n; i++) to[i] = from[i];
    }
}

// n elements of SIZE bytes at any strides.
template <int SIZE>
JF_INLINE void copy_line(const char* from, int64_t fs, char* to, int64_t ts, int64_t n) {
    if (fs == SIZE && ts == SIZE) return copy_short(to, from, n * SIZE);
    for (; n >= 4; n -= 4, from += 4 * fs, to += 4 * ts) {
        __asm__("" : "+r"(from));  // no gathering by vectors, which is slower and begins with many questions
        memcpy(to, from, SIZE), memcpy(to + ts, from + fs, SIZE);
        memcpy(to + 2 * ts, from + 2 * fs, SIZE), memcpy(to + 3 * ts, from + 3 * fs, SIZE);
    }
    for (; n > 0; n--, from += fs, to += ts) memcpy(to, from, SIZE);
}

template <int SIZE>
constexpr int64_t SQUARE = CACHE_LINE / SIZE;  // rows and columns of one

// The first n columns of a square of m rows become lines of m elements, os bytes apart. x: rows of a line each.
template <int SIZE, bool PAST = false>
JF_INLINE void turn_square(const char* x, char* out, int64_t os, int64_t m, int64_t n) {
    constexpr int E = 16 / SIZE, V = sizeof(vb), lanes = V / 16, parts = int(CACHE_LINE) / V;
    for (int64_t c = 0; c < n; c += E) {
        [[maybe_unused]] vb made[E][parts];  // past the caches a line goes in one go: few may be under way at a time
        for (int64_t g = 0; g * V < m * SIZE; g++) {
            [[maybe_unused]] vb v[E], w[E];
            for (int j = 0; j < E; j++)
                v[j] = gather_lanes(x + (g * lanes * E + j) * CACHE_LINE + c * SIZE, E * CACHE_LINE);
            if constexpr (E > 1)
                for (int step = 1; step < E; step *= 2) {  // each time the number of a row gives a bit to the column's
                    for (int j = 0; j < E / 2; j++) {
                        w[2 * j] = zip_low<SIZE>(v[j], v[j + E / 2]);
                        w[2 * j + 1] = zip_high<SIZE>(v[j], v[j + E / 2]);
                    }
                    for (int j = 0; j < E; j++) v[j] = w[j];
                }
            char* const to = out + c * os + g * V;
            for (int j = 0; j < E; j++) {
                if (c + j == n) break;
                if (PAST && parts > 1)
                    made[j][g] = v[j];
                else if (PAST)
                    store_past_caches(to + j * os, v[j]);
                else
                    memcpy(to + j * os, &v[j], V);
            }
        }
        if (PAST && parts > 1)
            for (int64_t j = 0; j < E && c + j < n; j++)
                for (int g = 0; g < parts; g++) store_past_caches(out + (c + j) * os + g * V, made[j][g]);
    }
}

// Where elements lie: strides in bytes, by the axis that lies together in the target, and by that of the source.
struct Turn {
    const char* from;
    int64_t from_row, from_column;
    char* to;
    int64_t to_row, to_column;
};

// A square, or a part of one, with any strides.
template <int SIZE>
inline void turn_part(const Turn& t, int64_t m, int64_t n) {
    alignas(CACHE_LINE) char x[SQUARE<SIZE> * CACHE_LINE], out[SQUARE<SIZE> * CACHE_LINE];
    for (int64_t r = 0; r < m; r++)
        copy_line<SIZE>(t.from + r * t.from_row, t.from_column, x + r * CACHE_LINE, SIZE, n);
    turn_square<SIZE>(x, out, CACHE_LINE, m, n);
    for (int64_t c = 0; c < n; c++) copy_line<SIZE>(out + c * CACHE_LINE, SIZE, t.to + c * t.to_column, t.to_row, m);
}

// Squares side by side in the target that are made before the next columns: neighbouring lines meet soon, and the pages
// of the source are few at a time. Past the caches lines do not meet.
template <bool PAST>
constexpr int64_t ABREAST = PAST ? 2 : 4;

// ASK: the lines of the next square are asked for while one is turned.
template <int SIZE, bool PAST, bool ASK = true>
inline void turn(const Turn& t, int64_t rows, int64_t columns) {
    constexpr int64_t N = SQUARE<SIZE>, width = ABREAST<PAST> * N;
    alignas(CACHE_LINE) char x[N * CACHE_LINE];
    const bool lines = t.from_column == SIZE && t.to_row == SIZE;
    const bool ragged = (uintptr_t(t.from) | uintptr_t(t.from_row)) % CACHE_LINE;
    for (int64_t first = 0; first < rows; first += width) {
        const int64_t end = rows - first < width ? rows : first + width;
        for (int64_t c = 0; c < columns; c += N)
            for (int64_t r = first; r < end; r += N) {
                const int64_t m = end - r < N ? end - r : N, n = columns - c < N ? columns - c : N;
                const char* from = t.from + r * t.from_row + c * t.from_column;
                char* const to = t.to + r * t.to_row + c * t.to_column;
                if (!lines || m < N) {
                    turn_part<SIZE>({from, t.from_row, t.from_column, to, t.to_row, t.to_column}, m, n);
                    continue;
                }
                const bool across = r + N < end;
                const int64_t ahead = across ? N * t.from_row : N * SIZE - (r - first) * t.from_row;
                const bool more = ASK && (across || c + N < columns);
                for (int64_t i = 0; i < N; i++) {
                    const char* line = from + i * t.from_row;
                    if (n == N)
                        memcpy(x + i * CACHE_LINE, line, CACHE_LINE);
                    else
                        copy_short(x + i * CACHE_LINE, line, n * SIZE);
                    if (more) __builtin_prefetch(line + ahead);
                    if (more && ragged) __builtin_prefetch(line + ahead + CACHE_LINE - 1);
                }
                if (!PAST && more) {
                    const int64_t next = across ? N * SIZE : N * t.to_column - (r - first) * SIZE;
                    for (int64_t j = 0; j < n; j++) {  // a line that is not whole here reaches into a second one
                        __builtin_prefetch(to + next + j * t.to_column + CACHE_LINE - 1, 1);
                        if (!across) __builtin_prefetch(to + next + j * t.to_column, 1);
                    }
                }
                turn_square<SIZE, PAST>(x, to, t.to_column, N, n);
            }
    }
}

}  // namespace
}  // namespace jackfield

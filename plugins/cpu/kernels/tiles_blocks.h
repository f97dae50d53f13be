// Integer products of packed block weights with int8 activations: sixteen rows of the weight times a panel of x.
// The integer sum of 32 columns is exact; f32 sums run over the blocks in order, so a row of x gives the same bits
// whatever else is in its panel.
#pragma once
#include "formats.h"

namespace jackfield { namespace {

JF_INLINE vi spread(const char* p) {  // four bytes to every lane
    int32_t x;
    memcpy(&x, p, 4);
    return vi{} + x;
}
JF_INLINE vf spread_float(const char* p) {
    float x;
    memcpy(&x, p, 4);
    return splat(x);
}

#if defined(__AVX512F__)
#define JF_WIDE(name, ...) (vi)_mm512_##name(__VA_ARGS__)
typedef __m512i vraw;
#elif defined(__AVX2__)
#define JF_WIDE(name, ...) (vi)_mm256_##name(__VA_ARGS__)
typedef __m256i vraw;
#else
#define JF_WIDE(name, ...) (vi)_mm_##name(__VA_ARGS__)
typedef __m128i vraw;
#endif

// sum + w[first..last) times the row's quants at q. w holds what `prepare` made of the eight vectors.
template <Products P, int BITS> JF_INLINE vi dot(vi sum, const vi* w, const char* q, int first, int last) {
    if constexpr (P == WIDE) {
        for (int j = first; j < last; j++) {
            sum += JF_WIDE(madd_epi16, (vraw)w[2 * j], (vraw)spread(q + 8 * j));
            sum += JF_WIDE(madd_epi16, (vraw)w[2 * j + 1], (vraw)spread(q + 8 * j + 4));
        }
    }
#if defined(__AVX512VNNI__)
    if constexpr (P == VNNI)
        for (int j = first; j < last; j++)
            sum = (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w[j], (__m512i)spread(q + 4 * j));
#endif
#if defined(__AVX2__)
    if constexpr (P == PAIRS) {
        constexpr int most = BITS == 4 ? 8 : BITS == 5 ? 4 : 2;  // pairs of (2^BITS - 1) * 127 that fit 15 bits
        for (int j = first; j < last; j += most) {
            vraw pairs = (vraw)JF_WIDE(maddubs_epi16, (vraw)w[j], (vraw)spread(q + 4 * j));
            for (int i = j + 1; i < j + most && i < last; i++)
                pairs = (vraw)JF_WIDE(add_epi16, pairs, (vraw)JF_WIDE(maddubs_epi16, (vraw)w[i], (vraw)spread(q + 4 * i)));
            sum += JF_WIDE(madd_epi16, pairs, (vraw)(vi{} + 0x00010001));
        }
    }
#endif
    return sum;
}

// Columns 0, 2 and 1, 3 of each lane as 16 bits.
JF_INLINE void widen(vi* w) {
    for (int j = 7; j >= 0; j--) {
        w[2 * j + 1] = JF_WIDE(srli_epi16, (vraw)w[j], 8);
        w[2 * j] = w[j] & 0x00ff00ff;
    }
}

// out[m][r] = row r of the group times row m of the panel, over all blocks.
template <int32_t D, int WIDTH>
void tile(const uint8_t* scales, const uint8_t* quants, const char* panel, int64_t blocks, float* out) {
    using T = Format<D>;
    constexpr Activation a = T::activation;
    constexpr int PARTS = GROUP / W, HALVES = T::HALVES;
    vf acc[PARTS][WIDTH] = {};
    for (int64_t b = 0; b < blocks; b++) {
        for (int u = 0; u < T::UNITS; u++) {
            const char *scale = panel + WIDTH * a.quant_nbytes(), *sums = scale + 4 * WIDTH;
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; part++) {
                vi w[T::PRODUCTS == WIDE ? 16 : 8];
                vf factor[HALVES], least;
                load_quants<D>(quants, u, part * W, w);
                load_factors<D>(scales, u, part * W, factor, least);
                if constexpr (T::PRODUCTS == WIDE) widen(w);
#pragma GCC unroll 16
                for (int m = 0; m < WIDTH; m++) {
                    const char* q = panel + m * a.quant_nbytes();
                    const vf d = spread_float(scale + 4 * m);
#pragma GCC unroll 2
                    for (int half = 0; half < HALVES; half++) {
                        const vi start = T::AFFINE ? vi{} : spread(sums + 4 * (WIDTH * half + m));
                        const vi total = dot<T::PRODUCTS, T::BITS>(start, w, q, 8 / HALVES * half, 8 / HALVES * (half + 1));
                        acc[part][m] = fma(to_float(total), factor[half] * d, acc[part][m]);
                    }
                    if constexpr (T::AFFINE) acc[part][m] = fma(least, spread_float(sums + 4 * m), acc[part][m]);
                }
            }
            panel += WIDTH * a.unit_nbytes();
        }
        scales += T::fields.scale_nbytes;
        quants += T::fields.quant_nbytes;
    }
#pragma GCC unroll 16
    for (int m = 0; m < WIDTH; m++)
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++) store<F32>((char*)(out + GROUP * m + W * part), acc[part][m]);
}

// ---- panels ---------------------------------------------------------------------------------------------------------

constexpr int WIDEST = W == 16 ? 16 : W == 8 ? 8 : 4;  // rows of x in a panel

// `rows` rows of x are cut into panels of at most `widest`: as many full ones as there are, then 8, 4 and the rest.
constexpr int64_t panel_width(int64_t rest, int64_t widest) {
    int64_t width = widest;
    while (width > rest && width > 4) width /= 2;
    return width > rest ? rest : width;
}
// Start and width of the panel that holds row t.
struct Panel {
    int64_t start, width;
};
inline Panel panel_of(int64_t t, int64_t rows, int64_t widest) {
    int64_t start = t / widest * widest;
    int64_t width = panel_width(rows - start, widest);
    while (t >= start + width) {
        start += width;
        width = panel_width(rows - start, widest);
    }
    return {start, width};
}

typedef void (*Tile)(const uint8_t* scales, const uint8_t* quants, const char* panel, int64_t blocks, float* out);

template <int32_t D> Tile tile_of_width(int64_t width) {
    switch (width) {
        case 1: return tile<D, 1>;
        case 2: return tile<D, 2>;
        case 3: return tile<D, 3>;
        case 4: return tile<D, 4>;
        case 8: if constexpr (WIDEST >= 8) return tile<D, 8>; else return nullptr;
        case 16: if constexpr (WIDEST >= 16) return tile<D, 16>; else return nullptr;
        default: return nullptr;
    }
}

inline Tile find_tile(int32_t dtype, int64_t width) {
    switch (dtype) {
        case Q4_0: return tile_of_width<Q4_0>(width);
        case Q4_1: return tile_of_width<Q4_1>(width);
        case Q5_0: return tile_of_width<Q5_0>(width);
        case Q5_1: return tile_of_width<Q5_1>(width);
        case Q8_0: return tile_of_width<Q8_0>(width);
        case Q4_K: return tile_of_width<Q4_K>(width);
        case Q5_K: return tile_of_width<Q5_K>(width);
        case Q6_K: return tile_of_width<Q6_K>(width);
        default: return nullptr;
    }
}

inline Activation activation_of(int32_t dtype) {
    switch (dtype) {
        case Q4_0: return Format<Q4_0>::activation;
        case Q4_1: return Format<Q4_1>::activation;
        case Q5_0: return Format<Q5_0>::activation;
        case Q5_1: return Format<Q5_1>::activation;
        case Q8_0: return Format<Q8_0>::activation;
        case Q4_K: return Format<Q4_K>::activation;
        case Q5_K: return Format<Q5_K>::activation;
        default: return Format<Q6_K>::activation;
    }
}

}}  // namespace jackfield::(unnamed)

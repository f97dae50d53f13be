// Integer products of packed block weights with int8 activations: sixteen rows of the weight times a panel of x.
// The integer sum of 32 columns is exact; f32 sums run over the blocks in order, so a row of x gives the same bits
// whatever else is in its panel.
#pragma once
#include "choices.h"
#include "formats_codebook.h"
#include "formats_super.h"
#if defined(__ARM_NEON)
#include "dots_neon.h"
#endif

namespace jackfield {
namespace {

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

#if !defined(__ARM_NEON)
#if defined(__AVX512VNNI__)
// Rows side by side, because each instruction waits five cycles for the sum before it. Written out, because GCC 12
// loads the four bytes by an instruction of their own: with one instruction less for each, 512 rows took 10 % less
// time.
template <int COUNT>
JF_INLINE void dots_vnni(vi* sum, const vi* w, const char* q, int first, int last) {
    typedef int32_t __attribute__((may_alias)) four_bytes;
#pragma GCC unroll 8
    for (int j = first; j < last; j++)
#pragma GCC unroll 4
        for (int i = 0; i < COUNT; i++)
            asm("vpdpbusd %2%{1to16%}, %1, %0"
                : "+v"(sum[i])
                : "v"(w[j]), "m"(*(const four_bytes*)(q + 32 * i + 4 * j)));
}
#endif

// Pairs of (2^BITS - 1) * 127 are summed in 16 bits as long as they fit.
#if defined(__AVX2__)
template <int BITS>
JF_INLINE vi dot_pairs(vi sum, const vi* w, const char* q, int first, int last) {
    constexpr int most = BITS <= 4 ? 8 : BITS == 5 ? 4 : BITS == 6 ? 2 : 1;
    for (int j = first; j < last; j += most) {
        vraw pairs = (vraw)JF_WIDE(maddubs_epi16, (vraw)w[j], (vraw)spread(q + 4 * j));
        for (int i = j + 1; i < j + most && i < last; i++)
            pairs = (vraw)JF_WIDE(add_epi16, pairs, (vraw)JF_WIDE(maddubs_epi16, (vraw)w[i], (vraw)spread(q + 4 * i)));
        sum += JF_WIDE(madd_epi16, pairs, (vraw)(vi{} + 0x00010001));
    }
    return sum;
}
#endif

// w holds 16-bit columns 0, 2 and 1, 3 by turns.
JF_INLINE vi dot_wide(vi sum, const vi* w, const char* q, int first, int last) {
    for (int j = first; j < last; j++) {
        sum += JF_WIDE(madd_epi16, (vraw)w[2 * j], (vraw)spread(q + 8 * j));
        sum += JF_WIDE(madd_epi16, (vraw)w[2 * j + 1], (vraw)spread(q + 8 * j + 4));
    }
    return sum;
}

// sum[i] += w[first..last) times the quants of row i, for COUNT rows that follow each other at q.
template <Products P, int BITS, int COUNT>
JF_INLINE void dots(vi* sum, const vi* w, const char* q, int first, int last) {
#if defined(__AVX512VNNI__)
    if constexpr (P == VNNI) dots_vnni<COUNT>(sum, w, q, first, last);
#endif
#if defined(__AVX2__)
    if constexpr (P == PAIRS)
        for (int i = 0; i < COUNT; i++) sum[i] = dot_pairs<BITS>(sum[i], w, q + 32 * i, first, last);
#endif
    if constexpr (P == WIDE)
        for (int i = 0; i < COUNT; i++) sum[i] = dot_wide(sum[i], w, q + 64 * i, first, last);
}

// Columns 0, 2 and 1, 3 of each lane as 16 bits.
JF_INLINE void widen(vi* w) {
    for (int j = 7; j >= 0; j--) {
        w[2 * j + 1] = JF_WIDE(srli_epi16, (vraw)w[j], 8);
        w[2 * j] = w[j] & 0x00ff00ff;
    }
}
#endif

// Products of signed bytes want those of 8-bit weights signed: 128 less, which leaves no offset.
constexpr bool made_signed(Products products, int bits) {
    return (products == SIGNED || products == LONG) && bits == 8;
}

// Products of several rows of x side by side, because each instruction waits for the sum before it.
constexpr bool side_by_side(Products products) { return products == VNNI || products == SIGNED; }

// Units in memory, decoded: in the place of scales f32[16] of factors for each half, then of minima for the affine
// types; and the bytes of 32 columns.
constexpr int64_t STAGED_QUANTS = 32 * GROUP;
constexpr int64_t staged_scales(const Activation& a) { return 4 * GROUP * a.halves * (a.affine ? 2 : 1); }

// Numbers of these forms, beyond those of the dtypes.
constexpr int32_t staged_form(int halves, bool affine) { return DTYPES + 2 * (halves - 1) + affine; }

template <int HALVES_, bool AFFINE_>
struct StagedFormat : Bytes {
    static constexpr Way WAY = STAGED;
    static constexpr bool IS_AFFINE = AFFINE_;
    static constexpr int BITS = 7, HALVES = HALVES_, UNITS = 1, ALIKE = 1;
    static constexpr Products PRODUCTS = products_of(BITS);
    static constexpr Activation activation{false, PRODUCTS == WIDE, IS_AFFINE, 0, HALVES};  // as the tiles see it
    static constexpr Fields fields{0, int(staged_scales(activation)), int(STAGED_QUANTS), {}};
    JF_INLINE static void factors(const uint8_t* s, const uint8_t*, int, int row, vf* factor, vf* least) {
        const float* from = (const float*)s + row;
        for (int half = 0; half < HALVES; half++) {
            factor[half] = load<F32>((const char*)(from + GROUP * half));
            if (IS_AFFINE) least[half] = load<F32>((const char*)(from + GROUP * (HALVES + half)));
        }
    }
};
template <>
struct Format<staged_form(1, false)> : StagedFormat<1, false> {};
template <>
struct Format<staged_form(1, true)> : StagedFormat<1, true> {};
template <>
struct Format<staged_form(2, false)> : StagedFormat<2, false> {};
template <>
struct Format<staged_form(2, true)> : StagedFormat<2, true> {};

// `blocks` blocks of a group, decoded.
template <int32_t D>
void stage(const uint8_t* block, int64_t blocks, uint8_t* to) {
    using T = Format<D>;
    for (int64_t b = 0; b < blocks; b++) {
        const uint8_t* quants = block + T::fields.scale_nbytes;
        for (int u = 0; u < T::UNITS; u++) {
            uint8_t *factors = to, *bytes = to + staged_scales(T::activation);
#pragma GCC unroll 4
            for (int row = 0; row < GROUP; row += W) {
                vi w[8];
                vf factor[T::HALVES], least[T::HALVES];
                T::quants(quants, u, row, w);
                T::factors(block, quants, u, row, factor, least);
                for (int j = 0; j < 8; j++) memcpy(bytes + 4 * (GROUP * j + row), &w[j], sizeof(vi));
                float* const lanes = (float*)factors + row;
                for (int half = 0; half < T::HALVES; half++) {
                    store<F32>((char*)(lanes + GROUP * half), factor[half]);
                    if (T::IS_AFFINE) store<F32>((char*)(lanes + GROUP * (T::HALVES + half)), least[half]);
                }
            }
            to += staged_scales(T::activation) + STAGED_QUANTS;
        }
        block += T::fields.nbytes();
    }
}

// One unit (32 columns) of a block times the panel, added to acc. `panel` is at the unit.
template <int32_t D, int WIDTH>
JF_INLINE void add_unit(const uint8_t* block, int u, const char* panel, vf (*acc)[WIDTH]) {
    using T = Format<D>;
    const uint8_t* quants = block + T::fields.scale_nbytes;
    constexpr Activation a = T::activation;
    constexpr int HALVES = T::HALVES;
    const char *scale = panel + WIDTH * a.quant_nbytes(), *sums = scale + 4 * WIDTH;
#pragma GCC unroll 4
    for (int part = 0; part < GROUP / W; part++) {
        vi w[T::PRODUCTS == WIDE ? 16 : 8];
        vf factor[HALVES], least[HALVES];
        T::quants(quants, u, part * W, w);
        T::factors(block, quants, u, part * W, factor, least);
        if constexpr (T::PRODUCTS == WIDE) widen(w);
        if constexpr (made_signed(T::PRODUCTS, T::BITS))
            for (int j = 0; j < 8; j++) w[j] ^= every_byte(0x80);
        constexpr bool STARTS_AT_0 = T::IS_AFFINE || made_signed(T::PRODUCTS, T::BITS);
        constexpr int TOGETHER = side_by_side(T::PRODUCTS) ? (WIDTH < 4 ? WIDTH : 4) : 1;
#pragma GCC unroll 16
        for (int m = 0; m < WIDTH; m += TOGETHER) {
#pragma GCC unroll 2
            for (int half = 0; half < HALVES; half++) {
                const int first = 8 / HALVES * half, last = first + 8 / HALVES;
                const char* sum = sums + 4 * (WIDTH * half + m);
                vi total[TOGETHER];
                for (int i = 0; i < TOGETHER; i++) total[i] = STARTS_AT_0 ? vi{} : spread(sum + 4 * i);
                dots<T::PRODUCTS, T::BITS, TOGETHER>(total, w, panel + m * a.quant_nbytes(), first, last);
                for (int i = 0; i < TOGETHER; i++) {
                    const vf d = factor[half] * spread_float(scale + 4 * (m + i));
                    acc[part][m + i] = fma(to_float(total[i]), d, acc[part][m + i]);
                }
                for (int i = 0; T::IS_AFFINE && i < TOGETHER; i++)
                    acc[part][m + i] = fma(least[half], spread_float(sum + 4 * i), acc[part][m + i]);
            }
        }
    }
}

// Unrolled, shifts are constants and neighbours share loads: half the time for one row. Only units that lie together,
// for loads in a loop are ones that the hardware sees coming: q6_K was read 8 % faster. Narrow vectors, whose code is
// many times longer, go without, but for one row with NEON.
#if defined(__ARM_NEON)
constexpr int UNROLLED_ROWS = 1;
#else
constexpr int UNROLLED_ROWS = W > 4 ? 4 : 0;
#endif
template <int32_t D, int WIDTH>
constexpr bool UNROLLED = WIDTH <= UNROLLED_ROWS && Format<D>::ALIKE > 1;

// out[m][r] += row r of the group times row m of the panel, over all blocks.
template <int32_t D, int WIDTH>
void tile(const uint8_t* block, const char* panel, int64_t blocks, float* out) {
    using T = Format<D>;
    constexpr int PARTS = GROUP / W;
    constexpr int64_t step = WIDTH * T::activation.unit_nbytes();
    vf acc[PARTS][WIDTH];
#pragma GCC unroll 16
    for (int m = 0; m < WIDTH; m++)
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++) acc[part][m] = load<F32>((const char*)(out + GROUP * m + W * part));
    for (int64_t b = 0; b < blocks; b++) {
        auto unit = [&](int u) __attribute__((always_inline)) { add_unit<D, WIDTH>(block, u, panel + u * step, acc); };
        if constexpr (UNROLLED<D, WIDTH>) {
            for (int first = 0; first < T::UNITS; first += T::ALIKE)
#pragma GCC unroll 8
                for (int u = 0; u < T::ALIKE; u++) unit(first + u);
        } else {
            for (int u = 0; u < T::UNITS; u++) unit(u);
        }
        panel += T::UNITS * step;
        block += T::fields.nbytes();
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

typedef void (*Tile)(const uint8_t* block, const char* panel, int64_t blocks, float* out);

template <int32_t D>
Tile tile_of_width(int64_t width) {
    switch (width) {
        case 1:
            return tile<D, 1>;
        case 2:
            return tile<D, 2>;
        case 3:
            return tile<D, 3>;
        case 4:
            return tile<D, 4>;
        case 8:
            if constexpr (WIDEST >= 8)
                return tile<D, 8>;
            else
                return nullptr;
        case 16:
            if constexpr (WIDEST >= 16)
                return tile<D, 16>;
            else
                return nullptr;
        default:
            return nullptr;
    }
}

// What a product needs to know of the dtype of its weights.
struct Weights {
    Activation activation;  // what it asks of x
    void (*round)(const float* x, int64_t k, char* panel, int64_t width, int64_t m, int shift);
    Tile (*tile)(int64_t width);  // reads the packed weight; null for staged types
    // How blocks are decoded to memory, and the tile that reads them there; null where that never pays.
    void (*stage)(const uint8_t* block, int64_t blocks, uint8_t* to);
    Tile (*staged_tile)(int64_t width);
    bool ahead;  // decoded once for many panels
};

// Direct types are decoded to memory too when many panels of x read them: 512 rows took a third less time. Not where
// the shared tiles are slower (of pairs, they allow for seven bits) or can't (eight bits where products are of signed
// bytes), nor for q8_0, which needs no decoding.
template <int32_t D>
constexpr bool DECODED_ONCE = Format<D>::PRODUCTS == VNNI || (Format<D>::PRODUCTS == SIGNED && Format<D>::BITS < 8);
template <int32_t D>
constexpr bool IS_STAGED = Format<D>::WAY == STAGED || (DECODED_ONCE<D> && D != Q8_0);

template <int32_t D>
JF_INLINE Weights weights() {
    using T = Format<D>;
    constexpr Activation a = T::activation;
    Weights found{a,       quantise_row<a.super, a.wide, a.affine, a.halves>, nullptr, nullptr,
                  nullptr, IS_STAGED<D> && (!is_codebook(D) || iq_panels)};
    if constexpr (T::WAY == DIRECT) found.tile = tile_of_width<D>;
    if constexpr (IS_STAGED<D>) {
        found.stage = stage<D>;
        found.staged_tile = tile_of_width<staged_form(a.halves, a.affine)>;
    }
    return found;
}

inline Weights weights_of(int32_t dtype) {
    return with_weight(dtype, [](auto type) { return weights<type.dtype>(); });
}

}  // namespace
}  // namespace jackfield

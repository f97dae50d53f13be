// f32 to one block of 256 elements (q4_K, q5_K, q6_K), byte-equal to the core's encode at every level: the same f32
// operations in the same order, sums of eight running parts whatever the width of the machine. No intrinsics.
#pragma once
#include "blocks.h"

namespace jackfield {
namespace {

constexpr float TINY = 1e-30f;  // a narrower range than this has a scale that f16 stores as 0

// Nearest, ties to even, for |x| < 2^22; what is larger stays beyond every range of quants. NaN stays NaN.
inline float nearest(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }
inline float limited(float x, float least, float most) { return x < least ? least : x > most ? most : x; }

// Eight running sums, then pairs of neighbours. The vector keeps compilers from adding one by one.
template <int N>
inline float total(const float* x) {
    typedef float Eight __attribute__((vector_size(32)));
    Eight t, next;
    memcpy(&t, x, sizeof t);
    for (int i = 8; i < N; i += 8) {
        memcpy(&next, x + i, sizeof next);
        t += next;
    }
    return ((t[0] + t[1]) + (t[2] + t[3])) + ((t[4] + t[5]) + (t[6] + t[7]));
}

// False: f16 would round it to inf, or it is NaN.
inline bool fits_half(float d) { return __builtin_fabsf(d) < 65520; }

// ---- q4_K, q5_K -----------------------------------------------------------------------------------------------------

// The grids tried around the range: steps + first + 0.1 t for t = 0 .. trials.
struct Grids {
    int steps;
    double first;
    int trials;
};

constexpr Grids grids_of(int32_t dtype) { return dtype == Q4_K ? Grids{15, -1.0, 20} : Grids{31, -0.5, 15}; }

inline void levels_of(const float* x, float low, float inverse, float steps, float* level) {
    for (int i = 0; i < 32; i++) level[i] = limited(nearest(inverse * (x[i] - low)), 0, steps);
}

inline float error_of(const float* x, const float* w, const float* level, float scale, float offset) {
    float e[32];
    for (int i = 0; i < 32; i++) {
        const float miss = scale * level[i] + offset - x[i];
        e[i] = w[i] * (miss * miss);
    }
    return total<32>(e);
}

// Scale and offset (at most 0) of 32 elements: weighted least squares on each grid, the pair of least error is kept.
inline void fit_affine(const float* x, const Grids& grids, float& scale, float& offset) {
    float low = x[0], high = x[0], w[32], a[32], b[32], c[32], level[32];
    for (int i = 1; i < 32; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    low = low < 0 ? low : 0;
    scale = 0, offset = low;
    const float span = high - low, steps = float(grids.steps);
    if (span < TINY) return;
    for (int i = 0; i < 32; i++) a[i] = x[i] * x[i];
    const float rms = __builtin_sqrtf(total<32>(a) / 32);
    for (int i = 0; i < 32; i++) w[i] = rms + __builtin_fabsf(x[i]), a[i] = w[i] * x[i];
    const float sw = total<32>(w), swx = total<32>(a);
    scale = span / steps;
    levels_of(x, low, 1 / scale, steps, level);
    float best = error_of(x, w, level, scale, offset);
    for (int t = 0; t <= grids.trials; t++) {
        levels_of(x, low, float(grids.first + 0.1 * t + grids.steps) / span, steps, level);
        for (int i = 0; i < 32; i++) {
            a[i] = w[i] * level[i];
            b[i] = a[i] * level[i];
            c[i] = a[i] * x[i];
        }
        const float swl = total<32>(a), swll = total<32>(b), swlx = total<32>(c);
        const float det = sw * swll - swl * swl;
        float s = (sw * swlx - swx * swl) / det, o = (swll * swx - swl * swlx) / det;
        if (o > 0) s = swlx / swll, o = 0;
        const float error = error_of(x, w, level, s, o);
        if (det > 0 && error < best) scale = s, offset = o, best = error;  // a NaN is never better
    }
}

// The factor and the 6-bit codes of 8 values, relative to the largest. False: the factor overflows f16.
inline bool code63(const float* values, float& factor, uint8_t* codes) {
    float top = values[0];
    for (int s = 1; s < 8; s++) top = values[s] > top ? values[s] : top;
    top += 0.0f;  // -0 becomes 0
    factor = top / 63;
    if (!fits_half(factor)) return false;
    const float inverse = top > TINY ? 63 / top : 0;
    for (int s = 0; s < 8; s++) codes[s] = uint8_t(limited(nearest(values[s] * inverse), 0, 63));
    return true;
}

inline void pack_codes(const uint8_t* scales, const uint8_t* minima, uint8_t* packed) {
    for (int s = 0; s < 4; s++) {
        packed[s] = uint8_t(scales[s] | scales[s + 4] >> 4 << 6);
        packed[s + 4] = uint8_t(minima[s] | minima[s + 4] >> 4 << 6);
        packed[s + 8] = uint8_t((scales[s + 4] & 15) | (minima[s + 4] & 15) << 4);
    }
}

// The 8 rows of 32 quants: low nibbles in pairs of rows; bit s of byte i of `fifth` (may be null) is bit 4 of row s.
inline void write_rows(const uint8_t (*q)[32], uint8_t* nibbles, uint8_t* fifth) {
    for (int s = 0; s < 8; s += 2)
        for (int i = 0; i < 32; i++) nibbles[s * 16 + i] = uint8_t((q[s][i] & 15) | q[s + 1][i] << 4);
    for (int s = 0; fifth && s < 8; s++)
        for (int i = 0; i < 32; i++) fifth[i] |= uint8_t(q[s][i] >> 4 << s);
}

inline bool encode_affine(int32_t dtype, const float* x, uint8_t* b) {
    const Grids grids = grids_of(dtype);
    float scale[8], least[8], d, dmin;
    uint8_t scales[8], minima[8], q[8][32];
    for (int s = 0; s < 8; s++) {
        fit_affine(x + 32 * s, grids, scale[s], least[s]);
        least[s] = -least[s];
    }
    if (!code63(scale, d, scales) || !code63(least, dmin, minima)) return false;
    write_half(b, d);
    write_half(b + 2, dmin);
    pack_codes(scales, minima, b + 4);
    d = read_half(b), dmin = read_half(b + 2);
    for (int s = 0; s < 8; s++) {  // for the scales as stored
        const float factor = d * float(scales[s]), minimum = dmin * float(minima[s]);
        for (int i = 0; i < 32; i++) {
            const float level = factor == 0 ? 0 : (x[32 * s + i] + minimum) / factor;
            q[s][i] = uint8_t(int32_t(limited(nearest(level), 0, float(grids.steps))));
        }
    }
    write_rows(q, b + (dtype == Q4_K ? 16 : 48), dtype == Q4_K ? nullptr : b + 16);
    return true;
}

// ---- q6_K -----------------------------------------------------------------------------------------------------------

// Scale of 16 elements for quants -32 .. 31, of either sign: the grid that explains most weighted energy.
inline float fit_signed(const float* x) {
    const float v = largest_of(x, 16);
    if (__builtin_fabsf(v) < TINY) return 0;
    float u[16], w[16], a[16], b[16], scale = 0, best = 0;
    for (int i = 0; i < 16; i++) u[i] = x[i] / v, w[i] = u[i] * u[i];
    for (int k = 0; k < 19; k++) {
        const int t = k == 0 ? 0 : k <= 9 ? k - 10 : k - 9;  // 0, -9 .. -1, 1 .. 9: of equals the first is kept
        const float grid = float(-(32 + 0.1 * t));
        for (int i = 0; i < 16; i++) {
            const float level = limited(nearest(grid * u[i]), -32, 31), wl = w[i] * level;
            a[i] = wl * u[i];
            b[i] = wl * level;
        }
        const float sul = total<16>(a), sll = total<16>(b), score = sul * sul / sll;
        if (score > best) scale = sul / sll, best = score;
    }
    return scale * v;
}

inline bool encode_q6_k(const float* x, uint8_t* b) {
    float scale[16];
    uint8_t q[256];
    for (int s = 0; s < 16; s++) scale[s] = fit_signed(x + 16 * s);
    const float top = largest_of(scale, 16);
    if (__builtin_fabsf(top) < 1e-15f) return true;
    if (!fits_half(top / -128)) return false;
    write_half(b + 208, top / -128);
    const float inverse = -128 / top, d = read_half(b + 208);
    for (int s = 0; s < 16; s++) {
        const int code = int(limited(nearest(inverse * scale[s]), -128, 127));
        b[192 + s] = uint8_t(code);
        const float factor = d * float(code);
        for (int i = 16 * s; i < 16 * s + 16; i++) {
            const float level = factor == 0 ? 0 : limited(nearest(x[i] / factor), -32, 31);
            q[i] = uint8_t(int32_t(level) + 32);
        }
    }
    for (int n = 0; n < 2; n++) {
        const uint8_t* half = q + 128 * n;
        for (int r = 0; r < 64; r++) b[64 * n + r] = uint8_t((half[r] & 15) | half[64 + r] << 4);
        for (int r = 0; r < 32; r++)
            b[128 + 32 * n + r] =
                uint8_t(half[r] >> 4 | half[32 + r] >> 4 << 2 | half[64 + r] >> 4 << 4 | half[96 + r] >> 4 << 6);
    }
    return true;
}

// False: x was not finite or a scale overflows f16, and the block is all zero.
inline bool encode_super(int32_t dtype, const float* x, uint8_t* b) {
    float zeros = 0;
    for (int i = 0; i < 256; i++) zeros += x[i] * 0;  // NaN if anything is not finite
    memset(b, 0, size_t(block_nbytes(dtype)));
    if (!(zeros == 0)) return false;
    return dtype == Q6_K ? encode_q6_k(x, b) : encode_affine(dtype, x, b);
}

}  // namespace
}  // namespace jackfield

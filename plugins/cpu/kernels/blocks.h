// Block dtypes as the kernels read them: sizes, one block to f32 (bit-equal to the core's decode) and, for the oldest
// types of 32 elements, f32 to one block (byte-equal to the core's encode). Plain C++ without intrinsics: also for code
// that must run on every machine. Layout of the bits: the core's dtypes.
#pragma once
#include <stdint.h>
#include <string.h>

#include "jackfield/kernel.h"

namespace jackfield {

// One block of a dtype that `decode_block` or `encode_block` leaves to them. One build for all levels, in blocks/.
void decode_coded(int32_t dtype, const uint8_t* block, float* out);
bool encode_coded(int32_t dtype, const float* x, uint8_t* block);

namespace {

constexpr bool is_block(int32_t d) { return d >= PLAIN_DTYPES; }

// Elements of a block (1 for plain dtypes) and its bytes.
#define JF_LENGTH(number, name, length, nbytes) length,
#define JF_NBYTES(number, name, length, nbytes) nbytes,
constexpr int16_t LENGTHS[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, JF_BLOCK_DTYPES(JF_LENGTH)};
constexpr int16_t NBYTES[] = {4, 2, 2, 8, 1, 1, 2, 4, 8, 1, JF_BLOCK_DTYPES(JF_NBYTES)};
#undef JF_LENGTH
#undef JF_NBYTES
constexpr int64_t block_length(int32_t d) { return LENGTHS[d]; }
constexpr int64_t block_nbytes(int32_t d) { return NBYTES[d]; }
constexpr bool is_super(int32_t d) { return block_length(d) == 256; }
constexpr bool is_codebook(int32_t d) {  // rows of a table stand for several columns
    return d == IQ1_S || d == IQ1_M || d == IQ2_XXS || d == IQ2_XS || d == IQ2_S || d == IQ3_XXS || d == IQ3_S;
}

// f(Type<D>()) for the weight dtype D that `dtype` is: the one switch over them.
template <int32_t D>
struct Type {
    static constexpr int32_t dtype = D;
};
template <class F>
JF_INLINE auto with_weight(int32_t dtype, F f) {
    switch (dtype) {
#define JF_CASE(number, ...) \
    case number:             \
        return f(Type<number>());
        JF_WEIGHT_DTYPES(JF_CASE)
#undef JF_CASE
        default:
            __builtin_unreachable();  // no kernel and no packing takes another one
    }
}

constexpr int64_t row_nbytes(int32_t d, int64_t length) { return length / block_length(d) * block_nbytes(d); }

inline float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
inline uint32_t bits_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

inline float half_to_float(uint16_t h) {
    const uint32_t sign = uint32_t(h & 0x8000) << 16, rest = uint32_t(h & 0x7fff) << 13;
    if (rest >= 0x0f800000) return float_of(sign | rest | 0x7f800000);  // inf, NaN
    if (rest < 0x00800000) {                                            // subnormal: rest/2^13 units of 2^-24
        const float value = float(rest >> 13) * 0x1p-24f;
        return sign ? -value : value;
    }
    return float_of(sign | (rest + (112u << 23)));
}

// Nearest, ties to even; overflow is inf, NaN stays NaN.
inline uint16_t float_to_half(float x) {
    const uint32_t bits = bits_of_float(x), sign = bits >> 16 & 0x8000, a = bits & 0x7fffffff;
    if (a > 0x7f800000) return uint16_t(sign | 0x7e00);
    if (a >= 0x47800000) return uint16_t(sign | 0x7c00);
    if (a < 0x38800000) return uint16_t(sign | (bits_of_float(float_of(a) + 0.5f) - 0x3f000000));  // multiples of 2^-24
    return uint16_t(sign | ((a - (112u << 23) + 0xfff + (a >> 13 & 1)) >> 13));
}

inline float read_half(const uint8_t* p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return half_to_float(h);
}
inline void write_half(uint8_t* p, float x) {
    const uint16_t h = float_to_half(x);
    memcpy(p, &h, 2);
}

// The 6-bit scale and minimum of sub-block s of a q4_K or q5_K block, from its 12 bytes.
inline void scale_and_minimum(const uint8_t* packed, int s, int& scale, int& minimum) {
    if (s < 4) {
        scale = packed[s] & 63;
        minimum = packed[4 + s] & 63;
    } else {
        scale = (packed[4 + s] & 15) | packed[s - 4] >> 6 << 4;
        minimum = packed[4 + s] >> 4 | packed[s] >> 6 << 4;
    }
}

// ---- decode: one block to block_length floats -----------------------------------------------------------------------

inline void decode_nibbles(const uint8_t* qs, uint32_t fifth, float d, int offset, float m, bool affine, float* out) {
    for (int i = 0; i < 16; i++) {
        const int low = (qs[i] & 15) | (fifth >> i & 1) << 4, high = qs[i] >> 4 | (fifth >> (i + 16) & 1) << 4;
        out[i] = d * float(low - offset);
        out[i + 16] = d * float(high - offset);
    }
    if (affine)
        for (int i = 0; i < 32; i++) out[i] += m;
}

inline void decode_q4_k(const uint8_t* b, const uint8_t* fifth, const uint8_t* qs, float* out) {
    const float d = read_half(b), dmin = read_half(b + 2);
    for (int s = 0; s < 8; s++) {
        int scale, minimum;
        scale_and_minimum(b + 4, s, scale, minimum);
        const float factor = d * float(scale), least = dmin * float(minimum);
        for (int i = 0; i < 32; i++) {
            const int byte = qs[s / 2 * 32 + i], nibble = s % 2 ? byte >> 4 : byte & 15;
            const int q = nibble | (fifth ? (fifth[i] >> s & 1) << 4 : 0);
            out[s * 32 + i] = factor * float(q) - least;
        }
    }
}

inline void decode_q6_k(const uint8_t* b, float* out) {
    const float d = read_half(b + 208);
    for (int e = 0; e < 256; e++) {
        const int n = e / 128, r = e % 128, byte = b[64 * n + r % 64];
        const int q = (r < 64 ? byte & 15 : byte >> 4) | (b[128 + 32 * n + r % 32] >> 2 * (r / 32) & 3) << 4;
        out[e] = d * float(int8_t(b[192 + e / 16])) * float(q - 32);
    }
}

inline void decode_block(int32_t dtype, const uint8_t* b, float* out) {
    uint32_t fifth;
    switch (dtype) {
        case Q4_0:
            return decode_nibbles(b + 2, 0, read_half(b), 8, 0, false, out);
        case Q4_1:
            return decode_nibbles(b + 4, 0, read_half(b), 0, read_half(b + 2), true, out);
        case Q5_0:
            memcpy(&fifth, b + 2, 4);
            return decode_nibbles(b + 6, fifth, read_half(b), 16, 0, false, out);
        case Q5_1:
            memcpy(&fifth, b + 4, 4);
            return decode_nibbles(b + 8, fifth, read_half(b), 0, read_half(b + 2), true, out);
        case Q8_0: {
            const float d = read_half(b);
            for (int i = 0; i < 32; i++) out[i] = d * float(int8_t(b[2 + i]));
            return;
        }
        case Q4_K:
            return decode_q4_k(b, nullptr, b + 16, out);
        case Q5_K:
            return decode_q4_k(b, b + 16, b + 48, out);
        case Q6_K:
            return decode_q6_k(b, out);
        default:
            return decode_coded(dtype, b, out);
    }
}

// ---- elements of the float dtypes -----------------------------------------------------------------------------------

inline float read_float(int32_t dtype, const char* p) {
    if (dtype == F32) {
        float x;
        memcpy(&x, p, 4);
        return x;
    }
    uint16_t h;
    memcpy(&h, p, 2);
    return dtype == F16 ? half_to_float(h) : float_of(uint32_t(h) << 16);
}

// n elements `stride` bytes apart, widened to f32. dtype: F32, F16 or BF16.
inline void read_floats(int32_t dtype, const char* from, int64_t stride, int64_t n, float* out) {
    if (dtype == F32 && stride == 4) {
        memcpy(out, from, size_t(n) * 4);
    } else if (dtype == F32) {
        for (int64_t i = 0; i < n; i++) memcpy(out + i, from + i * stride, 4);
    } else {
        for (int64_t i = 0; i < n; i++) out[i] = read_float(dtype, from + i * stride);
    }
}

// ---- encode: f32 to one block of 32. False: x was not finite or the scale overflows f16, and the block is all zero --

inline float inverse(float d) {
    const float f = 1 / d;
    return f - f == 0 ? f : 0;  // inf (or d = 0) counts as 0
}
inline uint8_t clipped(float q, int most) { return q < 0 ? 0 : q > float(most) ? uint8_t(most) : uint8_t(q); }
inline int8_t round_half_away(float x) {  // exact for |x| < 2^22
    const float whole = float(int32_t(x));
    return int8_t(int32_t(whole) + int32_t(2 * (x - whole)));
}

inline void write_quants(const uint8_t* q, uint8_t* nibbles, uint8_t* fifth) {
    uint32_t bits = 0;
    for (int i = 0; i < 16; i++) nibbles[i] = uint8_t((q[i] & 15) | q[i + 16] << 4);
    for (int i = 0; i < 32; i++) bits |= uint32_t(q[i] >> 4 & 1) << i;
    if (fifth) memcpy(fifth, &bits, 4);
}

inline float largest_of(const float* x, int n) {  // of magnitude, first of equals
    float v = x[0];
    for (int i = 1; i < n; i++) v = __builtin_fabsf(x[i]) > __builtin_fabsf(v) ? x[i] : v;
    return v;
}

inline bool encode_block(int32_t dtype, const float* x, uint8_t* b) {
    memset(b, 0, size_t(block_nbytes(dtype)));
    float low = x[0], high = x[0], zeros = 0;
    for (int i = 0; i < 32; i++) {
        zeros += x[i] * 0;  // NaN if anything is not finite
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    if (!(zeros == 0)) return false;
    uint8_t q[32];
    const int levels = dtype == Q4_0 ? 8 : 16, steps = dtype == Q4_1 ? 15 : 31;
    if (dtype == Q8_0) {
        float d = __builtin_fabsf(largest_of(x, 32)) / 127;
        const float f = inverse(d);
        if (f == 0) d = 0;
        if (d >= 65520) return false;
        write_half(b, d);
        for (int i = 0; i < 32; i++) b[2 + i] = uint8_t(round_half_away(x[i] * f));
    } else if (dtype == Q4_0 || dtype == Q5_0) {
        const float d = largest_of(x, 32) / float(-levels), f = inverse(d);
        if (__builtin_fabsf(d) >= 65520) return false;
        for (int i = 0; i < 32; i++) q[i] = clipped(x[i] * f + (float(levels) + 0.5f), 2 * levels - 1);
        write_half(b, d);
        write_quants(q, b + (dtype == Q4_0 ? 2 : 6), dtype == Q4_0 ? nullptr : b + 2);
    } else {  // q4_1, q5_1
        const float d = (high - low) / float(steps), f = inverse(d);
        if (!(d < 65520) || __builtin_fabsf(low) >= 65520) return false;
        for (int i = 0; i < 32; i++) q[i] = clipped((x[i] - low) * f + 0.5f, steps);
        write_half(b, d);
        write_half(b + 2, low);
        write_quants(q, b + (dtype == Q4_1 ? 4 : 8), dtype == Q4_1 ? nullptr : b + 4);
    }
    return true;
}

}  // namespace
}  // namespace jackfield

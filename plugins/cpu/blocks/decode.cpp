// One block to f32 for the dtypes whose decoding no kernel waits for: one build for every machine and all levels.
// Bit-equal to the core's decode: products are rounded in the order scale, coded scale, quant, minimum.
#include "../kernels/blocks.h"

#include "jackfield/codebooks.h"

namespace jackfield {
namespace {

using namespace codebook;

inline uint32_t read_word(const uint8_t* p) {
    uint32_t word;
    memcpy(&word, p, 4);
    return word;
}
inline uint32_t read_short(const uint8_t* p) {
    uint16_t word;
    memcpy(&word, p, 2);
    return word;
}
inline int nibble_of(const uint8_t* p, int i) { return p[i / 2] >> 4 * (i % 2) & 15; }
// Two bits a column: byte i of 32 holds columns i, i + 32, i + 64, i + 96 of 128.
inline int two_bits(const uint8_t* p, int e) { return p[e / 128 * 32 + e % 32] >> 2 * (e % 128 / 32) & 3; }

// ---- one or two bits ------------------------------------------------------------------------------------------------

void decode_q1_0(const uint8_t* b, float* out) {
    const float d = read_half(b);
    for (int e = 0; e < 128; e++) out[e] = d * float(2 * (b[2 + e / 8] >> e % 8 & 1) - 1);
}

void decode_q2_0(const uint8_t* b, float* out) {
    const float d = read_half(b);
    for (int e = 0; e < 64; e++) out[e] = d * float((b[2 + e / 4] >> 2 * (e % 4) & 3) - 1);
}

void decode_tq2_0(const uint8_t* b, float* out) {
    const float d = read_half(b + 64);
    for (int e = 0; e < 256; e++) out[e] = d * float(two_bits(b, e) - 1);
}

// `digits` base-3 digits of each of `width` bytes.
float* decode_trits(const uint8_t* b, int width, int digits, float d, float* out) {
    for (int k = 0, power = 1; k < digits; k++, power *= 3)
        for (int i = 0; i < width; i++) *out++ = d * float((uint8_t(b[i] * power) * 3 >> 8) - 1);
    return out;
}

void decode_tq1_0(const uint8_t* b, float* out) {
    const float d = read_half(b + 52);
    out = decode_trits(b, 32, 5, d, out);
    out = decode_trits(b + 32, 16, 5, d, out);
    decode_trits(b + 48, 4, 4, d, out);
}

// ---- K types --------------------------------------------------------------------------------------------------------

void decode_q2_k(const uint8_t* b, float* out) {
    const float d = read_half(b + 80), dmin = read_half(b + 82);
    for (int e = 0; e < 256; e++) {
        const float factor = d * float(b[e / 16] & 15), least = dmin * float(b[e / 16] >> 4);
        out[e] = factor * float(two_bits(b + 16, e)) - least;
    }
}

void decode_q3_k(const uint8_t* b, float* out) {
    const float d = read_half(b + 108);
    const uint8_t* scales = b + 96;
    for (int e = 0; e < 256; e++) {
        const int j = e / 16, low = scales[j % 8] >> j / 8 * 4 & 15, high = scales[8 + j % 4] >> j / 4 * 2 & 3;
        const int q = two_bits(b + 32, e) | (b[e % 32] >> e / 32 & 1) << 2;
        out[e] = d * float((low | high << 4) - 32) * float(q - 4);
    }
}

// ---- four bits by a table -------------------------------------------------------------------------------------------

// `n` low nibbles, then the high ones.
void decode_table(const uint8_t* qs, int n, const int8_t* values, float d, float* out) {
    for (int i = 0; i < n; i++) {
        out[i] = d * float(values[qs[i] & 15]);
        out[i + n] = d * float(values[qs[i] >> 4]);
    }
}

void decode_iq4_xs(const uint8_t* b, float* out) {
    const float d = read_half(b);
    for (int s = 0; s < 8; s++) {
        const int scale = nibble_of(b + 4, s) | (b[2 + s / 4] >> 2 * (s % 4) & 3) << 4;
        decode_table(b + 8 + 16 * s, 16, IQ4_VALUES, d * float(scale - 32), out + 32 * s);
    }
}

void decode_mxfp4(const uint8_t* b, float* out) {
    const uint32_t e = b[0];
    decode_table(b + 1, 16, E2M1_VALUES, float_of(e < 2 ? 0x200000u << e : (e - 1) << 23), out);
}

void decode_nvfp4(const uint8_t* b, float* out) {
    for (int g = 0; g < 4; g++) decode_table(b + 4 + 8 * g, 8, E2M1_VALUES, 0.5f * E4M3_VALUES[b[g]], out + 16 * g);
}

// ---- rows of a codebook ---------------------------------------------------------------------------------------------

// The first `count` columns of a row; bit j of `signs` is the sign of column j.
inline void signed_row(uint64_t row, int count, uint32_t signs, float factor, float* out) {
    for (int j = 0; j < count; j++) {
        const int g = int8_t(row >> 8 * j);
        out[j] = factor * float(signs >> j & 1 ? -g : g);
    }
}
inline float half_steps(float d, int n, float share) { return d * (0.5f + float(n)) * share; }

void decode_iq2_xxs(const uint8_t* b, float* out) {
    const float d = read_half(b);
    for (int u = 0; u < 32; u++) {
        const uint8_t* pair = b + 2 + 8 * (u / 4);
        const uint32_t codes = read_word(pair + 4), signs = EVEN_SIGNS[codes >> 7 * (u % 4) & 127];
        signed_row(IQ2_XXS_ROWS[pair[u % 4]], 8, signs, half_steps(d, int(codes >> 28), 0.25f), out + 8 * u);
    }
}

void decode_iq2_xs(const uint8_t* b, float* out) {
    const float d = read_half(b);
    for (int u = 0; u < 32; u++) {
        const uint32_t word = read_short(b + 2 + 2 * u);
        const float factor = half_steps(d, nibble_of(b + 66, u / 2), 0.25f);
        signed_row(IQ2_XS_ROWS[word & 511], 8, EVEN_SIGNS[word >> 9], factor, out + 8 * u);
    }
}

void decode_iq2_s(const uint8_t* b, float* out) {
    const float d = read_half(b);
    for (int u = 0; u < 32; u++) {
        const int index = b[2 + u] | (b[66 + u / 4] >> 2 * (u % 4) & 3) << 8;
        signed_row(IQ2_S_ROWS[index], 8, b[34 + u], half_steps(d, nibble_of(b + 74, u / 2), 0.25f), out + 8 * u);
    }
}

void decode_iq3_xxs(const uint8_t* b, float* out) {
    const float d = read_half(b);
    for (int i = 0; i < 64; i++) {
        const uint32_t codes = read_word(b + 66 + 4 * (i / 8)), signs = EVEN_SIGNS[codes >> 7 * (i % 8 / 2) & 127];
        const float factor = half_steps(d, int(codes >> 28), 0.5f);
        signed_row(IQ3_XXS_ROWS[b[2 + i]], 4, signs >> 4 * (i % 2), factor, out + 4 * i);
    }
}

void decode_iq3_s(const uint8_t* b, float* out) {
    const float d = read_half(b);
    for (int i = 0; i < 64; i++) {
        const int index = b[2 + i] | (b[66 + i / 8] >> i % 8 & 1) << 8;
        const float factor = d * float(1 + 2 * nibble_of(b + 106, i / 8));
        signed_row(IQ3_S_ROWS[index], 4, uint32_t(b[74 + i / 2] >> 4 * (i % 2)), factor, out + 4 * i);
    }
}

inline void shifted_row(uint32_t index, bool down, float factor, float* out) {
    const float delta = down ? -0.125f : 0.125f;
    for (int j = 0; j < 8; j++) out[j] = factor * (float(int8_t(IQ1_ROWS[index] >> 8 * j)) + delta);
}

void decode_iq1_s(const uint8_t* b, float* out) {
    const float d = read_half(b);
    for (int u = 0; u < 32; u++) {
        const uint32_t high = read_short(b + 34 + 2 * (u / 4)), index = b[2 + u] | (high >> 3 * (u % 4) & 7) << 8;
        shifted_row(index, high & 0x8000, d * float(2 * (high >> 12 & 7) + 1), out + 8 * u);
    }
}

void decode_iq1_m(const uint8_t* b, float* out) {
    uint32_t bits = 0;  // of d: the upper four of each word
    for (int i = 0; i < 4; i++) bits |= read_short(b + 48 + 2 * i) >> 12 << 4 * i;
    const float d = half_to_float(uint16_t(bits));
    for (int u = 0; u < 32; u++) {
        const uint32_t n = read_short(b + 48 + 2 * (u / 8)) >> 3 * (u / 2 % 4) & 7,
                       high = uint32_t(nibble_of(b + 32, u));
        shifted_row(b[u] | (high & 7) << 8, high & 8, d * float(2 * n + 1), out + 8 * u);
    }
}

// ---- activations ----------------------------------------------------------------------------------------------------

void decode_bytes(const uint8_t* q, int n, float d, float* out) {
    for (int i = 0; i < n; i++) out[i] = d * float(int8_t(q[i]));
}

}  // namespace

void decode_coded(int32_t dtype, const uint8_t* b, float* out) {
    switch (dtype) {
        case Q1_0:
            return decode_q1_0(b, out);
        case Q2_0:
            return decode_q2_0(b, out);
        case TQ1_0:
            return decode_tq1_0(b, out);
        case TQ2_0:
            return decode_tq2_0(b, out);
        case Q2_K:
            return decode_q2_k(b, out);
        case Q3_K:
            return decode_q3_k(b, out);
        case IQ1_S:
            return decode_iq1_s(b, out);
        case IQ1_M:
            return decode_iq1_m(b, out);
        case IQ2_XXS:
            return decode_iq2_xxs(b, out);
        case IQ2_XS:
            return decode_iq2_xs(b, out);
        case IQ2_S:
            return decode_iq2_s(b, out);
        case IQ3_XXS:
            return decode_iq3_xxs(b, out);
        case IQ3_S:
            return decode_iq3_s(b, out);
        case IQ4_NL:
            return decode_table(b + 2, 16, IQ4_VALUES, read_half(b), out);
        case IQ4_XS:
            return decode_iq4_xs(b, out);
        case MXFP4:
            return decode_mxfp4(b, out);
        case NVFP4:
            return decode_nvfp4(b, out);
        case Q8_1:
            return decode_bytes(b + 4, 32, read_half(b), out);
        case Q8_K:
            return decode_bytes(b + 4, 256, float_of(read_word(b)), out);
        default:
            return;
    }
}

}  // namespace jackfield

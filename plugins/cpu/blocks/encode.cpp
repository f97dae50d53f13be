// f32 to one block for the dtypes that are cheap to make and seldom made: one build for every machine and all levels.
// Byte-equal to the core's encode: every step is one f32 operation, in its order.
#include "encoding.h"

namespace jackfield {
namespace {

using namespace codebook;

// ---- one or two bits ------------------------------------------------------------------------------------------------

bool encode_q1_0(const float* x, uint8_t* b) {
    for (int e = 0; e < 128; e++) b[2 + e / 8] = uint8_t(b[2 + e / 8] | (x[e] >= 0) << e % 8);
    return write_scale(b, total(128, [&](int e) { return fabsf(x[e]); }) / 128);
}

// -1, 0, 1 plus 1, of n elements: the nearest multiples of the largest magnitude, which is returned.
float ternary(const float* x, int n, uint8_t* q) {
    const float d = magnitude(x, n), f = inverse(d);
    for (int e = 0; e < n; e++) q[e] = uint8_t(round_half_away(x[e] * f) + 1);
    return d;
}

bool encode_q2_0(const float* x, uint8_t* b) {
    uint8_t q[64];
    const float d = ternary(x, 64, q);
    for (int e = 0; e < 64; e++) b[2 + e / 4] = uint8_t(b[2 + e / 4] | q[e] << 2 * (e % 4));
    return write_scale(b, d);
}

bool encode_tq2_0(const float* x, uint8_t* b) {
    uint8_t q[256];
    const float d = ternary(x, 256, q);
    for (int e = 0; e < 256; e++) {
        uint8_t& to = b[e / 128 * 32 + e % 32];
        to = uint8_t(to | q[e] << 2 * (e % 128 / 32));
    }
    return write_scale(b + 64, d);
}

// `digits` base-3 digits for each of `width` bytes, which are fractions of 243 rounded up.
const uint8_t* encode_trits(const uint8_t* q, int width, int digits, uint8_t* b) {
    for (int i = 0; i < width; i++) {
        int number = 0;
        for (int k = 0; k < 5; k++) number = number * 3 + (k < digits ? q[k * width + i] : 0);
        b[i] = uint8_t((number * 256 + 242) / 243);
    }
    return q + width * digits;
}

bool encode_tq1_0(const float* x, uint8_t* b) {
    uint8_t q[256];
    const float d = ternary(x, 256, q);
    const uint8_t* rest = encode_trits(q, 32, 5, b);
    rest = encode_trits(rest, 16, 5, b + 32);
    encode_trits(rest, 4, 4, b + 48);
    return write_scale(b + 52, d);
}

// ---- four bits by a table -------------------------------------------------------------------------------------------

bool encode_iq4_nl(const float* x, uint8_t* b) {
    float v = largest_of(x, 32), u[32], level[32], weight[32];
    uint8_t q[32];
    const bool flat = fabsf(v) < 1e-30f;  // a scale that f16 stores as 0
    if (flat) v = 1;
    for (int i = 0; i < 32; i++) {
        u[i] = x[i] / v;
        q[i] = nearest_value(float(IQ4_VALUES[0]) * u[i]);
        level[i] = float(IQ4_VALUES[q[i]]);
        weight[i] = u[i] * u[i] * level[i];
    }
    const float explained = total(32, [&](int i) { return weight[i] * u[i]; });
    const float squares = total(32, [&](int i) { return weight[i] * level[i]; });
    const bool better = explained * explained / squares > 0;
    write_nibbles(q, 16, b + 2);
    return write_scale(b, flat || !better ? 0 : explained / squares * v);
}

// The first code whose value times scale is nearest to x.
uint8_t nearest_e2m1(float x, float scale) {
    uint8_t best = 0;
    float least = fabsf(x);
    for (int code = 1; code < 16; code++) {
        const float error = fabsf(scale * float(E2M1_VALUES[code]) - x);
        if (error < least) best = uint8_t(code), least = error;
    }
    return best;
}

bool encode_mxfp4(const float* x, uint8_t* b) {
    uint8_t q[32];
    const float top = magnitude(x, 32), power = top > 0 ? floorf(float(log2(double(top)))) + 125 : 0;
    const uint32_t e = power < 0 ? 0 : power > 254 ? 254 : uint32_t(power);
    const float scale = float_of(e < 2 ? 0x200000u << e : (e - 1) << 23);
    for (int i = 0; i < 32; i++) q[i] = nearest_e2m1(x[i], scale);
    b[0] = uint8_t(e);
    write_nibbles(q, 16, b + 1);
    return true;
}

// The byte of unsigned E4M3 for x >= 0: beyond 448 the largest, halves up.
uint8_t to_e4m3(float x) {
    x = x > 448 ? 448 : x;
    const uint32_t bits = bits_of_float(x);
    if (bits >> 23 <= 120) {
        const float small = x * 512 + 0.5f;
        return small < 8 ? uint8_t(small) : 7;
    }
    const uint32_t code = (bits >> 20) + (bits >> 19 & 1) - (120 << 3);  // a carry moves into the exponent
    return code < 0x7e ? uint8_t(code) : 0x7e;
}

bool encode_nvfp4(const float* x, uint8_t* b) {
    uint8_t q[16];
    for (int g = 0; g < 4; g++, x += 16) {
        b[g] = to_e4m3(magnitude(x, 16) / 6);
        const float scale = 0.5f * E4M3_VALUES[b[g]],
                    reach = 12 * scale;  // beyond it differences could round to equals
        for (int i = 0; i < 16; i++) q[i] = nearest_e2m1(fminf(fmaxf(x[i], -reach), reach), scale);
        write_nibbles(q, 8, b + 4 + 8 * g);
    }
    return true;
}

// ---- activations ----------------------------------------------------------------------------------------------------

bool encode_q8_1(const float* x, uint8_t* b) {
    float d = magnitude(x, 32) / 127;
    const float f = inverse(d);
    int sum = 0;
    if (f == 0) d = 0;
    for (int i = 0; i < 32; i++) {
        const int8_t q = round_half_away(x[i] * f);
        b[4 + i] = uint8_t(q);
        sum += q;
    }
    const bool fits = write_scale(b, d);
    return write_scale(b + 2, d * float(sum)) && fits;
}

bool encode_q8_k(const float* x, uint8_t* b) {
    const float f = -127 / largest_of(x, 256), d = 1 / f;
    if (!(f - f == 0)) return true;  // as good as zero
    memcpy(b, &d, 4);
    for (int i = 0; i < 256; i++) {
        const float q = rintf(f * x[i]);
        b[4 + i] = uint8_t(int8_t(q > 127 ? 127 : q));
    }
    for (int j = 0; j < 16; j++) {
        int sum = 0;
        for (int i = 0; i < 16; i++) sum += int8_t(b[4 + 16 * j + i]);
        const int16_t word = int16_t(sum);
        memcpy(b + 260 + 2 * j, &word, 2);
    }
    return d - d == 0;
}

bool encode(int32_t dtype, const float* x, uint8_t* b) {
    switch (dtype) {
        case Q1_0:
            return encode_q1_0(x, b);
        case Q2_0:
            return encode_q2_0(x, b);
        case TQ1_0:
            return encode_tq1_0(x, b);
        case TQ2_0:
            return encode_tq2_0(x, b);
        case IQ4_NL:
            return encode_iq4_nl(x, b);
        case MXFP4:
            return encode_mxfp4(x, b);
        case NVFP4:
            return encode_nvfp4(x, b);
        case Q8_1:
            return encode_q8_1(x, b);
        case Q8_K:
            return encode_q8_k(x, b);
        default:
            return false;
    }
}

}  // namespace

bool encode_coded(int32_t dtype, const float* x, uint8_t* b) {
    const int64_t length = block_length(dtype), size = block_nbytes(dtype);
    float zeros = 0;
    for (int64_t i = 0; i < length; i++) zeros += x[i] * 0;  // NaN if anything is not finite
    memset(b, 0, size_t(size));
    if (!(zeros == 0)) return false;
    if (is_grid(dtype) ? encode_grid(dtype, x, b) : is_fitted(dtype) ? encode_fitted(dtype, x, b) : encode(dtype, x, b))
        return true;
    memset(b, 0, size_t(size));
    return false;
}

}  // namespace jackfield

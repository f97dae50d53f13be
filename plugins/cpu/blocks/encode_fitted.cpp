// f32 to one block of q2_K, q3_K or iq4_xs: a scale is fitted to each sub-block by trial of a few grids, then coded.
// Byte-equal to the core's encode.
#include "encoding.h"

namespace jackfield {
namespace {

using codebook::IQ4_VALUES;

constexpr float TINY = 1e-30f;  // a narrower range than this has a scale that f16 stores as 0

float limited(float x, float least, float most) { return x < least ? least : x > most ? most : x; }

// ---- q2_K -----------------------------------------------------------------------------------------------------------

constexpr int SUB = 16;  // elements under one scale
constexpr float STEPS = 3;

// 16 elements with a line through the quants 0 .. 3 of one grid. They weigh as much as they are large.
struct Line {
    const float* x;
    float low, level[SUB];

    void lay(float inverse) {
        for (int i = 0; i < SUB; i++) level[i] = limited(rintf(inverse * (x[i] - low)), 0, STEPS);
    }
    template <class F>
    float weighted(F term) const {
        return total(SUB, [&](int i) { return fabsf(x[i]) * term(i); });
    }
    float misfit(float scale, float offset) const {
        return weighted([&](int i) { return fabsf(scale * level[i] + offset - x[i]); });
    }
};

// Scale and offset (at most 0): weighted least squares on each grid, the pair of least error is kept.
void fit_line(const float* x, float& scale, float& offset) {
    float low = x[0], high = x[0];
    for (int i = 1; i < SUB; i++) low = fminf(low, x[i]), high = fmaxf(high, x[i]);
    Line line{x, low < 0 ? low : 0, {}};
    const float span = high - line.low;
    scale = 0, offset = line.low;
    if (span < TINY) return;
    scale = span / STEPS;
    line.lay(1 / scale);
    float best = line.misfit(scale, offset);
    const float* level = line.level;
    const float sw = total(SUB, [&](int i) { return fabsf(x[i]); }), swx = line.weighted([&](int i) { return x[i]; });
    for (int t = 0; t <= 15; t++) {
        line.lay(float(-0.5 + 0.1 * t + double(STEPS)) / span);
        const float swl = line.weighted([&](int i) { return level[i]; });
        const float swll = total(SUB, [&](int i) { return fabsf(x[i]) * level[i] * level[i]; });
        const float swlx = total(SUB, [&](int i) { return fabsf(x[i]) * level[i] * x[i]; });
        const float det = sw * swll - swl * swl;
        float s = (sw * swlx - swx * swl) / det, o = (swll * swx - swl * swlx) / det;
        if (o > 0) s = swlx / swll, o = 0;
        const float error = line.misfit(s, o);
        if (det > 0 && error < best) scale = s, offset = o, best = error;  // a NaN is never better
    }
}

// The factor, stored at `to`, and the codes 0 .. 15 of 16 values, relative to the largest.
bool code_values(const float* values, uint8_t* to, uint8_t* codes) {
    float top = values[0];
    for (int s = 1; s < 16; s++) top = fmaxf(top, values[s]);
    top += 0.0f;  // -0 becomes 0
    const float inverse = top > TINY ? 15 / top : 0;
    for (int s = 0; s < 16; s++) codes[s] = uint8_t(limited(rintf(values[s] * inverse), 0, 15));
    return write_scale(to, top / 15);
}

bool encode_q2_k(const float* x, uint8_t* b) {
    float scale[16], least[16];
    uint8_t scales[16], minima[16];
    for (int s = 0; s < 16; s++) {
        fit_line(x + SUB * s, scale[s], least[s]);
        least[s] = -least[s];
    }
    if (!code_values(scale, b + 80, scales) || !code_values(least, b + 82, minima)) return false;
    for (int s = 0; s < 16; s++) b[s] = uint8_t(scales[s] | minima[s] << 4);
    const float d = read_half(b + 80), dmin = read_half(b + 82);
    for (int e = 0; e < 256; e++) {  // for the scales as stored
        const float factor = d * float(scales[e / SUB]), minimum = dmin * float(minima[e / SUB]);
        const float q = factor == 0 ? 0 : limited(rintf((x[e] + minimum) / factor), 0, STEPS);
        uint8_t& to = b[16 + e / 128 * 32 + e % 32];
        to = uint8_t(to | int(q) << 2 * (e % 128 / 32));
    }
    return true;
}

// ---- q3_K -----------------------------------------------------------------------------------------------------------

// Scale of 16 elements, of either sign, for quants -4 .. 3. Starts with the largest element at -4; up to five sweeps
// then move one quant at a time to what the scale of the others asks for, where that explains more.
float fit_three_bits(const float* x) {
    const float v = largest_of(x, SUB);
    if (fabsf(v) < TINY) return 0;
    float u[SUB], w[SUB], wu[SUB], level[SUB];
    for (int i = 0; i < SUB; i++) {
        u[i] = x[i] / v;
        w[i] = u[i] * u[i];
        wu[i] = w[i] * u[i];
        level[i] = limited(rintf(-4 * u[i]), -4, 3);
    }
    float sul = total(SUB, [&](int i) { return wu[i] * level[i]; });  // below 0, as u has its largest at 1
    float sll = total(SUB, [&](int i) { return w[i] * level[i] * level[i]; });
    bool moved = true;
    for (int sweep = 0; sweep < 5 && moved; sweep++) {
        moved = false;
        for (int i = 0; i < SUB; i++) {
            const float rest_ul = sul - wu[i] * level[i], rest_ll = sll - w[i] * level[i] * level[i];
            const float asked = limited(rintf(u[i] * rest_ll / rest_ul), -4, 3);
            const float ul = rest_ul + wu[i] * asked, ll = rest_ll + w[i] * asked * asked;
            if (rest_ul < 0 && ll > 0 && asked != level[i] && ul * ul * sll > sul * sul * ll)
                level[i] = asked, sul = ul, sll = ll, moved = true;
        }
    }
    return sll == 0 ? 0 : v * (sul / sll);
}

bool encode_q3_k(const float* x, uint8_t* b) {
    float scale[16];
    for (int s = 0; s < 16; s++) scale[s] = fit_three_bits(x + SUB * s);
    const float top = largest_of(scale, 16), inverse = top == 0 ? 0 : -32 / top;
    if (!write_scale(b + 108, top / -32)) return false;
    const float d = read_half(b + 108);
    float factor[16];
    for (int s = 0; s < 16; s++) {
        const int code = int(limited(rintf(inverse * scale[s]), -32, 31)), stored = code + 32;
        b[96 + s % 8] = uint8_t(b[96 + s % 8] | (stored & 15) << s / 8 * 4);
        b[104 + s % 4] = uint8_t(b[104 + s % 4] | stored >> 4 << 2 * (s / 4));
        factor[s] = d * float(code);
    }
    for (int e = 0; e < 256; e++) {
        const float f = factor[e / SUB], level = f == 0 ? 0 : limited(rintf(x[e] / f), -4, 3);
        const int q = int(level) + 4;
        uint8_t &low = b[32 + e / 128 * 32 + e % 32], &high = b[e % 32];
        low = uint8_t(low | (q & 3) << 2 * (e % 128 / 32));
        high = uint8_t(high | q >> 2 << e / 32);
    }
    return true;
}

// ---- iq4_xs ---------------------------------------------------------------------------------------------------------

// Scale of 32 elements, of either sign: the trial that explains most of them by the values of the table. In the trials
// the largest element becomes minus the first value, then the first value and its neighbours.
float fit_values(const float* x) {
    float v = largest_of(x, 32), u[32], level[32], scale = 0, best = 0;
    if (fabsf(v) < TINY) return 0;
    for (int i = 0; i < 32; i++) u[i] = x[i] / v;
    for (int t = -8; t <= 7; t++) {
        const float top = float(t == -8 ? -IQ4_VALUES[0] : t + IQ4_VALUES[0]);
        for (int i = 0; i < 32; i++) level[i] = float(IQ4_VALUES[nearest_value(top * u[i])]);
        const float sul = total(32, [&](int i) { return u[i] * u[i] * level[i] * u[i]; });
        const float sll = total(32, [&](int i) { return u[i] * u[i] * level[i] * level[i]; });
        const float score = sul * sul / sll;
        if (score > best) scale = sul / sll, best = score;
    }
    return scale * v;
}

bool encode_iq4_xs(const float* x, uint8_t* b) {
    float scale[8];
    for (int s = 0; s < 8; s++) scale[s] = fit_values(x + 32 * s);
    const float step = largest_of(scale, 8) / -32;
    if (!write_scale(b, step)) return false;
    const float d = read_half(b);
    for (int s = 0; s < 8; s++, x += 32) {
        const int code = int(step == 0 ? 0 : limited(rintf(scale[s] / step), -32, 31));
        const int low = (code + 32) & 15, high = (code + 32) >> 4;
        b[2 + s / 4] = uint8_t(b[2 + s / 4] | high << 2 * (s % 4));
        b[4 + s / 2] = uint8_t(b[4 + s / 2] | low << 4 * (s % 2));
        const float factor = d * float(code);
        uint8_t q[32];
        for (int i = 0; i < 32; i++) q[i] = nearest_value(factor == 0 ? 0 : x[i] / factor);
        write_nibbles(q, 16, b + 8 + 16 * s);
    }
    return true;
}

}  // namespace

bool encode_fitted(int32_t dtype, const float* x, uint8_t* b) {
    if (dtype == Q2_K) return encode_q2_k(x, b);
    return dtype == Q3_K ? encode_q3_k(x, b) : encode_iq4_xs(x, b);
}

}  // namespace jackfield

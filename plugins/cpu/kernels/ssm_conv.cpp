#include "simd.h"
#include "views.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"x", ROWS, bit(F32)}, {"weight", ROWS, bit(F32)}};
constexpr const char* const attributes[] = {nullptr};
constexpr int64_t CHANNELS = 16, TOKENS = 128;  // of a square that is turned: inputs lie by channel, results by token

// y[t] of one channel, for n tokens.
JF_INLINE void convolve(const float* x, const float* taps, int64_t d, int64_t n, float* y) {
    int64_t t = 0;
    for (; t + W <= n; t += W) {
        vf total{};
        for (int64_t j = 0; j < d; j++) total = fma(load<F32>((const char*)(x + t + j)), splat(taps[j]), total);
        store<F32>((char*)(y + t), total);
    }
    for (; t < n; t++) {
        float total = 0;
        for (int64_t j = 0; j < d; j++) total += x[t + j] * taps[j];
        y[t] = total;
    }
}

void square(const Step& s, int64_t sequence, int64_t channel, int64_t channels, int64_t first, int64_t n) {
    const View &x = s.in[0], &weight = s.in[1], &out = s.out;
    float made[CHANNELS][TOKENS];
    for (int64_t c = 0; c < channels; c++) {
        const char* from = x.data + sequence * x.stride[1] + (channel + c) * x.stride[2] + first * 4;
        const char* taps = weight.data + (channel + c) * weight.stride[2];
        convolve((const float*)from, (const float*)taps, weight.last(), n, made[c]);
    }
    for (int64_t t = 0; t < n; t++) {
        char* to = out.data + sequence * out.stride[1] + (first + t) * out.stride[2] + channel * out.stride[3];
        for (int64_t c = 0; c < channels; c++) memcpy(to + c * out.stride[3], &made[c][t], 4);
    }
}

void run(const Step& s, const Team& team) {
    const int64_t tokens = s.out.shape[2], channels = s.out.last(), across = (channels + CHANNELS - 1) / CHANNELS;
    const Share part = share(s.out.shape[1] * across, team);
    for (int64_t p = part.begin; p < part.end; p++) {
        const int64_t channel = p % across * CHANNELS, left = channels - channel;
        for (int64_t t = 0; t < tokens; t += TOKENS)
            square(s, p / across, channel, left < CHANNELS ? left : CHANNELS, t,
                   tokens - t < TOKENS ? tokens - t : TOKENS);
    }
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(ssm_conv, operands, attributes, bit(F32), nullptr, run, nullptr, nullptr, nullptr)

#include "simd.h"
#include "views.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"x", ANY, bit(F32)}, {"weight", ROWS, bit(F32)}};
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

void by_channel(const Step& s, const Team& team) {
    const int64_t tokens = s.out.shape[2], channels = s.out.last(), across = (channels + CHANNELS - 1) / CHANNELS;
    const Share part = share(s.out.shape[1] * across, team);
    for (int64_t p = part.begin; p < part.end; p++) {
        const int64_t channel = p % across * CHANNELS, left = channels - channel;
        for (int64_t t = 0; t < tokens; t += TOKENS)
            square(s, p / across, channel, left < CHANNELS ? left : CHANNELS, t,
                   tokens - t < TOKENS ? tokens - t : TOKENS);
    }
}

// ---- channels that lie together, as where the rows of a matrix are tokens ------------------------------------------

constexpr int MOST_TAPS = 4;              // whose inputs stay in registers while tokens go by
constexpr int COLUMNS = W == 16 ? 4 : 2;  // vectors of channels at once, as far as registers go

// Up to COLUMNS vectors of channels of one sequence.
struct Strip {
    const char *x, *weight;
    char* out;
    int64_t x_step, out_step;  // bytes from token to token
    int64_t weight_step;       // bytes from channel to channel
    int64_t tokens, channels;

    JF_INLINE vf fetch(int64_t row, int column) const {
        const char* const p = x + row * x_step + column * W * 4;
        const int64_t left = channels - column * W;
        return left >= W ? load<F32>(p) : load_part<F32>(p, left);
    }
    JF_INLINE void put(int64_t token, int column, vf y) const {
        char* const p = out + token * out_step + column * W * 4;
        const int64_t left = channels - column * W;
        left >= W ? store<F32>(p, y) : store_part<F32>(p, y, left);
    }
    // Tap j of each channel.
    JF_INLINE vf taps(int64_t j, int column) const {
        const int64_t left = channels - column * W, n = left < W ? left : W;
        float found[W] = {};
        for (int64_t c = 0; c < n; c++) memcpy(&found[c], weight + (column * W + c) * weight_step + j * 4, 4);
        return load<F32>((const char*)found);
    }
    // All D taps of a column's channels: turned by whole vectors where they lie without gaps.
    template <int D>
    JF_INLINE void all_taps(int column, vf* tap) const {
        if (weight_step != D * 4 || channels < (column + 1) * W) {
            for (int j = 0; j < D; j++) tap[j] = taps(j, column);
            return;
        }
        float rows[W * D], turned[D][W];
        memcpy(rows, weight + column * W * weight_step, sizeof rows);
        for (int c = 0; c < W; c++)
            for (int j = 0; j < D; j++) turned[j][c] = rows[c * D + j];
        for (int j = 0; j < D; j++) tap[j] = load<F32>((const char*)turned[j]);
    }
};

// D taps of N vectors: each input is loaded once.
template <int D, int N>
void few_taps(const Strip& s) {
    vf tap[N][D], seen[N][D];
    for (int i = 0; i < N; i++) {
        s.all_taps<D>(i, tap[i]);
        for (int j = 1; j < D; j++) seen[i][j] = s.fetch(j - 1, i);
    }
    for (int64_t t = 0; t < s.tokens; t++)
        for (int i = 0; i < N; i++) {
            for (int j = 1; j < D; j++) seen[i][j - 1] = seen[i][j];
            seen[i][D - 1] = s.fetch(t + D - 1, i);
            vf total{};
            for (int j = 0; j < D; j++) total = fma(seen[i][j], tap[i][j], total);
            s.put(t, i, total);
        }
}

// Any number of taps of one vector.
void many_taps(const Strip& s, int64_t taps) {
    for (int64_t t = 0; t < s.tokens; t++) {
        vf total{};
        for (int64_t j = 0; j < taps; j++) total = fma(s.fetch(t + j, 0), s.taps(j, 0), total);
        s.put(t, 0, total);
    }
}

template <int N>
JF_INLINE void strip(const Strip& s, int64_t taps) {
    if (taps == 4) return few_taps<4, N>(s);
    if (taps == 3) return few_taps<3, N>(s);
    if (taps == 2) return few_taps<2, N>(s);
    many_taps(s, taps);
}

void by_token(const Step& s, const Team& team) {
    const View &x = s.in[0], &weight = s.in[1], &out = s.out;
    const int64_t channels = out.last(), taps = weight.last(), wide = taps > MOST_TAPS || taps < 2 ? W : COLUMNS * W;
    const int64_t across = (channels + wide - 1) / wide;
    const Share part = share(out.shape[1] * across, team);
    for (int64_t p = part.begin; p < part.end; p++) {
        const int64_t sequence = p / across, first = p % across * wide, left = channels - first;
        const Strip one{x.data + sequence * x.stride[1] + first * 4,
                        weight.data + first * weight.stride[2],
                        out.data + sequence * out.stride[1] + first * 4,
                        x.stride[3],
                        out.stride[2],
                        weight.stride[2],
                        out.shape[2],
                        left < wide ? left : wide};
        if (one.channels == COLUMNS * W && wide > W)
            strip<COLUMNS>(one, taps);
        else
            for (int64_t c = 0; c < one.channels; c += W) {
                Strip narrow = one;
                narrow.x += c * 4, narrow.weight += c * weight.stride[2], narrow.out += c * 4;
                narrow.channels = one.channels - c < W ? one.channels - c : W;
                strip<1>(narrow, taps);
            }
    }
}

// ---- any strides ---------------------------------------------------------------------------------------------------

void one_by_one(const Step& s, const Team& team) {
    const View &x = s.in[0], &weight = s.in[1], &out = s.out;
    const int64_t tokens = out.shape[2], channels = out.last(), taps = weight.last();
    const Share part = share(out.shape[1] * channels, team);
    for (int64_t p = part.begin; p < part.end; p++) {
        const char* const from = x.data + p / channels * x.stride[1] + p % channels * x.stride[2];
        const char* const tap = weight.data + p % channels * weight.stride[2];
        char* const to = out.data + p / channels * out.stride[1] + p % channels * out.stride[3];
        for (int64_t t = 0; t < tokens; t++) {
            float total = 0;
            for (int64_t j = 0; j < taps; j++)
                total += load_one<F32>(from + (t + j) * x.stride[3]) * load_one<F32>(tap + j * weight.stride[3]);
            memcpy(to + t * out.stride[2], &total, 4);
        }
    }
}

void run(const Step& s, const Team& team) {
    const View& x = s.in[0];
    if (x.stride[3] == 4)
        by_channel(s, team);
    else if (x.stride[2] == 4 && s.out.stride[3] == 4)
        by_token(s, team);
    else
        one_by_one(s, team);
}

int32_t workers(const Step& s, int32_t most) { return workers_for(s.out.size() * s.in[1].last(), most); }

}  // namespace
}  // namespace jackfield

JF_KERNEL(ssm_conv, operands, attributes, bit(F32), nullptr, run, workers, nullptr, nullptr)

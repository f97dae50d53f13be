#include "functions.h"
#include "views.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"state", ROWS, bit(F32)}, {"x", ROWS, bit(F32)}, {"dt", ANY, bit(F32)},
                                {"a", ROWS, bit(F32)},     {"b", ROWS, bit(F32)}, {"c", ROWS, bit(F32)},
                                {"ids", ANY, bit(I32)}};
constexpr const char* const attributes[] = {"snapshots", nullptr};
enum { STATE, X, DT, A, B, C, IDS };

JF_INLINE vf elements(const char* p, int64_t i, int64_t n) {
    return i + W <= n ? load<F32>(p + i * 4) : load_part<F32>(p + i * 4, n - i);
}

// One head of one sequence. Its state lies in work memory, (P, N) padded to whole vectors, and behind it the decay.
struct Head {
    const Step& s;
    int64_t sequence, head, tokens, heads, channels, n, width, snapshots;
    float *state, *decay;

    JF_INLINE static int64_t width_of(const Step& s) { return (s.in[STATE].last() + W - 1) / W * W; }
    JF_INLINE static int64_t nbytes(const Step& s) {
        return ((s.in[STATE].shape[2] + 1) * width_of(s) * 4 + 63) / 64 * 64;
    }
    JF_INLINE Head(const Step& step, int64_t piece, char* memory) : s(step), snapshots(step.attr[0].integer) {
        const View& x = s.in[X];
        tokens = x.shape[1], heads = x.shape[2], channels = x.shape[3];
        sequence = piece / heads, head = piece % heads;
        n = s.in[STATE].last(), width = width_of(s);
        state = (float*)memory;
        decay = state + channels * width;
    }

    // An element of the result, which is one line: what each token gives, then the states.
    JF_INLINE char* result(int64_t i) const { return s.out.data + i * s.out.stride[3]; }
    JF_INLINE char* output(int64_t t) const { return result(((sequence * tokens + t) * heads + head) * channels); }
    JF_INLINE void keep(int64_t number) const {
        const int64_t before = s.in[X].size(), count = s.in[X].shape[0];
        char* const to = result(before + ((number * count + sequence) * heads + head) * channels * n);
        for (int64_t p = 0; p < channels; p++)
            scatter((const char*)(state + p * width), to + p * n * s.out.stride[3], s.out.stride[3], n, 4);
    }
    JF_INLINE void read(int64_t slot) const {
        const View& v = s.in[STATE];
        for (int64_t p = 0; p < channels; p++)
            memcpy(state + p * width, v.data + slot * v.stride[0] + head * v.stride[1] + p * v.stride[2],
                   size_t(n) * 4);
    }
    JF_INLINE void clear() const {
        memset(state, 0, size_t(channels * width) * 4);
        const float zero = 0;
        for (int64_t t = 0; t < tokens; t++)
            for (int64_t p = 0; p < channels; p++) memcpy(output(t) + p * s.out.stride[3], &zero, 4);
        for (int64_t number = 0; number < snapshots; number++) keep(number);
    }

    JF_INLINE const char* grouped(int operand, int64_t t) const {
        const View& v = s.in[operand];
        return v.data + sequence * v.stride[0] + t * v.stride[1] + head / (heads / v.shape[2]) * v.stride[2];
    }
    JF_INLINE float taken(int64_t t) const {
        const View& dt = s.in[DT];
        const char* from = dt.data + sequence * dt.stride[1] + t * dt.stride[2] + head * dt.stride[3];
        return softplus(splat(load_one<F32>(from)))[0];
    }

    void token(int64_t t) const {
        const View &a = s.in[A], &x = s.in[X];
        const float d = taken(t);
        const char *rates = a.data + head * a.stride[2], *b = grouped(B, t), *c = grouped(C, t);
        const char* in = x.data + sequence * x.stride[0] + t * x.stride[1] + head * x.stride[2];
        for (int64_t i = 0; i < width; i += W)
            store<F32>((char*)(decay + i),
                       exp((a.last() == 1 ? splat(load_one<F32>(rates)) : elements(rates, i, n)) * d));
        for (int64_t p = 0; p < channels; p++) {
            const vf input = splat(load_one<F32>(in + p * 4) * d);
            float* const row = state + p * width;
            vf y{};
            for (int64_t i = 0; i < width; i += W) {
                const vf old = load<F32>((const char*)(row + i)), fading = load<F32>((const char*)(decay + i));
                const vf now = fma(elements(b, i, n), input, old * fading);
                store<F32>((char*)(row + i), now);
                y += i + W <= n ? now * elements(c, i, n) : within(now * elements(c, i, n), n - i);
            }
            store_part<F32>(output(t) + p * s.out.stride[3], splat(sum(y)), 1);
        }
    }
    JF_INLINE static vf within(vf x, int64_t count) {
        float lanes[W];
        memcpy(lanes, &x, sizeof lanes);
        for (int64_t i = count; i < W; i++) lanes[i] = 0;
        memcpy(&x, lanes, sizeof lanes);
        return x;
    }
};

// State number j is the one before the last j tokens; those further back than the first token are what it began with.
void run(const Step& s, const Team& team) {
    const View &x = s.in[X], &ids = s.in[IDS];
    char* const memory = team.scratch + team.index * Head::nbytes(s);
    const Share part = share(x.shape[0] * x.shape[2], team);
    if (part.begin < part.end) memset(memory, 0, size_t(Head::nbytes(s)));
    for (int64_t piece = part.begin; piece < part.end; piece++) {
        const Head head(s, piece, memory);
        int32_t slot;
        memcpy(&slot, ids.data + head.sequence * ids.stride[3], 4);
        if (slot < 0 || slot >= s.in[STATE].shape[0]) {
            set_fault(s, FAULT_INDEX, IDS, slot);
            head.clear();
            continue;
        }
        head.read(slot);
        for (int64_t number = head.tokens; number < head.snapshots; number++) head.keep(number);
        for (int64_t t = 0; t < head.tokens; t++) {
            head.token(t);
            if (head.tokens - 1 - t < head.snapshots) head.keep(head.tokens - 1 - t);
        }
    }
}

int32_t workers(const Step& s, int32_t most) { return workers_for(s.in[X].size() * s.in[STATE].last(), most); }
int64_t scratch(const Step& s, int32_t workers) { return Head::nbytes(s) * workers; }

}  // namespace
}  // namespace jackfield

JF_KERNEL(ssm_scan, operands, attributes, bit(F32), nullptr, run, workers, scratch, nullptr)

#include "rope.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {
    {"x", ROWS, FLOATS}, {"positions", ANY, bit(I32)}, {"frequency_factors", ANY, bit(F32)}};
constexpr const char* const attributes[] = {"mode",      "n_dims",           "offset",      "base",
                                            "scale",     "ext_factor",       "attn_factor", "beta_fast",
                                            "beta_slow", "original_context", "sections",    nullptr};
bool why_not(const Step& s, Words& words) {
    if (mode_of(s) != UNKNOWN) return false;
    words << "mode is " << (s.attr[MODE].text ? s.attr[MODE].text : "missing")
          << ", not normal, neox, mrope, imrope or vision";
    return true;
}

// Bytes of x and of the result that are asked for beforehand: what lies after `heads` of one token may be far away.
constexpr int64_t AHEAD = 4096;

struct Rope {
    const Step& s;
    const Mode mode;
    Tables tables;
    const double magnitude;
    const int64_t ahead;  // tokens

    Rope(const Step& step, const Team& team)
        : s(step),
          mode(Mode(step.note[0])),
          tables(step, team.scratch + team.index * Tables::nbytes(step)),
          magnitude(magnitude_of(step)),
          ahead(AHEAD / (step.out.shape[2] * step.out.last() * block_nbytes(step.out.dtype) + 1) + 1) {}

    template <DType D>
    JF_INLINE void heads(int64_t b, int64_t t, bool more) const {
        constexpr int64_t size = bytes_of<D>;
        const View &x = s.in[0], &out = s.out;
        const int64_t width = out.last();
        const bool lines = dense_rows(out);
        for (int64_t h = 0; h < x.shape[2]; h++) {
            const char* from = x.data + b * x.stride[0] + t * x.stride[1] + h * x.stride[2];
            char* const to = out.data + b * out.stride[0] + t * out.stride[1] + h * out.stride[2];
            if (more)  // the same head of a later token
                for (int64_t i = 0; i < width * size; i += 64) {
                    __builtin_prefetch(from + ahead * x.stride[1] + i);
                    __builtin_prefetch(to + ahead * out.stride[1] + i, 1);
                }
            turn_head<D>(s, tables, mode, from, lines ? to : tables.row);
            if (!lines) scatter(tables.row, to, out.stride[3], width, size);
        }
    }

    template <DType D>
    void tokens(const Share& part) {
        const int64_t count = s.in[0].shape[1];
        int64_t b = part.begin / count, t = part.begin % count, done = -1;
        for (int64_t token = part.begin; token < part.end; token++) {
            if (t != done) fill_token(s, tables, t, mode, magnitude);
            done = t;
            heads<D>(b, t, token + ahead < part.end && t + ahead < count);
            if (++t == count) t = 0, b++;
        }
    }
};

void run(const Step& s, const Team& team) {
    const View& x = s.in[0];
    const Share part = share(x.shape[0] * x.shape[1], team);
    if (part.begin == part.end) return;
    Rope rope(s, team);
    fill_angles(s, rope.tables, rope.mode);
    if (x.dtype == F32)
        rope.tokens<F32>(part);
    else if (x.dtype == F16)
        rope.tokens<F16>(part);
    else
        rope.tokens<BF16>(part);
}

int64_t scratch(const Step& s, int32_t workers) { return Tables::nbytes(s) * workers; }

}  // namespace
}  // namespace jackfield

JF_KERNEL(rope, operands, attributes, FLOATS, why_not, run, nullptr, scratch, bind_rope)

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

template <DType D>
void heads(const Step& s, const Tables& tables, Mode mode, int64_t b, int64_t t, bool more) {
    constexpr int64_t size = bytes_of<D>;
    const View &x = s.in[0], &out = s.out;
    const int64_t width = out.last();
    const bool lines = dense_rows(out);
    for (int64_t h = 0; h < x.shape[2]; h++) {
        const char* from = x.data + b * x.stride[0] + t * x.stride[1] + h * x.stride[2];
        char* const to = out.data + b * out.stride[0] + t * out.stride[1] + h * out.stride[2];
        if (more)  // the same head of the next token
            for (int64_t i = 0; i < width * size; i += 64) {
                __builtin_prefetch(from + x.stride[1] + i);
                __builtin_prefetch(to + out.stride[1] + i, 1);
            }
        turn_head<D>(s, tables, mode, from, lines ? to : tables.row);
        if (!lines) scatter(tables.row, to, out.stride[3], width, size);
    }
}

void run(const Step& s, const Team& team) {
    const View& x = s.in[0];
    const Share part = share(x.shape[0] * x.shape[1], team);
    if (part.begin == part.end) return;
    const Mode mode = Mode(s.note[0]);
    const Tables tables(s, team.scratch + team.index * Tables::nbytes(s));
    fill_angles(s, tables, mode);
    const double magnitude = magnitude_of(s);
    int64_t done = -1;
    for (int64_t token = part.begin; token < part.end; token++) {
        const int64_t b = token / x.shape[1], t = token % x.shape[1];
        if (t != done) fill_token(s, tables, t, mode, magnitude);
        done = t;
        const bool more = token + 1 < part.end && t + 1 < x.shape[1];
        if (x.dtype == F32)
            heads<F32>(s, tables, mode, b, t, more);
        else if (x.dtype == F16)
            heads<F16>(s, tables, mode, b, t, more);
        else
            heads<BF16>(s, tables, mode, b, t, more);
    }
}

int64_t scratch(const Step& s, int32_t workers) { return Tables::nbytes(s) * workers; }

}  // namespace
}  // namespace jackfield

JF_KERNEL(rope, operands, attributes, FLOATS, why_not, run, nullptr, scratch, bind_rope)

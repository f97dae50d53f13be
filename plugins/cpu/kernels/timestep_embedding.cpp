#include "sliding.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"t", ANY, bit(F32)}};
constexpr const char* const attributes[] = {"dim", "max_period", nullptr};

// Cosines, sines, and a zero where the width is odd.
void run(const Step& s, const Team& team) {
    const View &t = s.in[0], &out = s.out;
    const int64_t dim = out.last(), half = dim / 2;
    const double fall = half ? -__builtin_log(s.attr[1].number) / double(half) : 0;
    float* const line = (float*)(team.scratch + team.index * line_nbytes(dim));
    const Share part = share(out.shape[2], team);
    for (int64_t r = part.begin; r < part.end; r++) {
        const double step = load_one<F32>(t.data + r * t.stride[3]);
        for (int64_t j = 0; j < half; j++) {
            const double angle = step * __builtin_exp(fall * double(j));
            line[j] = float(__builtin_cos(angle));
            line[half + j] = float(__builtin_sin(angle));
        }
        if (dim % 2) line[dim - 1] = 0;
        put_line(out, line, out.data + r * out.stride[2], dim);
    }
}

int64_t scratch(const Step& s, int32_t workers) { return line_nbytes(s.out.last()) * workers; }

}  // namespace
}  // namespace jackfield

JF_KERNEL(timestep_embedding, operands, attributes, bit(F32), nullptr, run, nullptr, scratch, nullptr)

// Transposed convolutions: a row of results at a time, from the rows of x whose kernels reach it.
#pragma once
#include "sliding.h"

namespace jackfield {
namespace {

struct Transposed {
    const Step& s;
    Slide slide;
    Pictures x, weight, out;
    int64_t batches, channels, outputs;

    JF_INLINE Transposed(const Step& step, int axes)
        : s(step), slide(0), x(step.in[0], axes), weight(step.in[1], axes), out(step.out, axes) {
        const int at = RANK - axes - 1;
        batches = s.in[0].shape[at - 1], channels = s.in[0].shape[at], outputs = s.in[1].shape[at];
        slide.read(s.attr[0], slide.stride, axes);
        for (int i = 0; i < AXES; i++) slide.kernel[i] = weight.extent[i];
    }

    // What row i of x adds to the row of results that its kernel's row k lies on.
    JF_INLINE void add_row(int64_t n, int64_t output, int64_t i, int64_t k, float* line, float* sums) const {
        const int64_t width = x.extent[2], step = slide.stride[2];
        const Slide plain(0);
        for (int64_t c = 0; c < channels; c++) {
            take_line(plain, x, x.row(n, c, 0, i), 0, 0, line, width);
            for (int64_t j = 0; j < slide.kernel[2]; j++) {
                const float tap = one_of(s.in[1], weight.row(c, output, 0, k) + j * weight.axis[2]);
                if (step == 1)
                    add_line(line, tap, sums + j, width);
                else
                    for (int64_t w = 0; w < width; w++) sums[j + w * step] += line[w] * tap;
            }
        }
    }

    JF_INLINE void run(const Team& team) const {
        const int64_t width = out.extent[2], rows = out.extent[1];
        float* const sums = (float*)(team.scratch + team.index * scratch());
        float* const line = sums + line_nbytes(width) / 4;
        const Share part = share(batches * outputs * rows, team);
        for (int64_t p = part.begin; p < part.end; p++) {
            const int64_t row = p % rows, output = p / rows % outputs, n = p / rows / outputs;
            memset(sums, 0, size_t(width) * 4);
            for (int64_t k = row % slide.stride[1]; k < slide.kernel[1] && k <= row; k += slide.stride[1]) {
                const int64_t i = (row - k) / slide.stride[1];
                if (i < x.extent[1]) add_row(n, output, i, k, line, sums);
            }
            put_line(s.out, sums, out.row(n, output, 0, row), width);
        }
    }
    JF_INLINE int64_t scratch() const { return line_nbytes(out.extent[2]) + line_nbytes(x.extent[2]); }
};

JF_INLINE int32_t workers_for_kernels(const Step& s, int32_t most) {
    const View& w = s.in[1];
    return workers_for(s.in[0].size() * w.shape[1] * w.shape[2] * w.shape[3], most);
}

}  // namespace
}  // namespace jackfield

#define JF_TRANSPOSED(name, axes)                                                                       \
    namespace jackfield {                                                                               \
    namespace {                                                                                         \
    constexpr Operand operands[] = {{"x", ANY, bit(F32)}, {"weight", ANY, bit(F32) | bit(F16)}};        \
    constexpr const char* const attributes[] = {"stride", nullptr};                                     \
    void run(const Step& s, const Team& team) { Transposed(s, axes).run(team); }                        \
    int64_t scratch(const Step& s, int32_t workers) { return Transposed(s, axes).scratch() * workers; } \
    }                                                                                                   \
    }                                                                                                   \
    JF_KERNEL(name, operands, attributes, bit(F32), nullptr, run, workers_for_kernels, scratch, nullptr)

// Convolutions: a row of results at a time, for some output channels together, so that each line of x is taken once.
#pragma once
#include "sliding.h"

namespace jackfield {
namespace {

constexpr int64_t TOGETHER = 16;  // output channels

// How operands are to be read. axes: how many slide. channels: of pairs on one axis, else 0. each: a kernel a channel.
struct Convolution {
    const Step& s;
    Slide slide;
    Pictures x, weight, out;
    int64_t batches, channels, outputs;
    bool each;

    JF_INLINE Convolution(const Step& step, int axes, int64_t pairs, bool one_each, const Slide& given)
        : s(step),
          slide(given),
          x(step.in[0], axes, pairs),
          weight(step.in[1], axes, pairs),
          out(step.out, axes, 0),
          each(one_each) {
        const View &from = s.in[0], &kernels = s.in[1];
        const int at = RANK - axes - 1;
        channels = pairs ? pairs : from.shape[at];
        batches = pairs ? from.shape[at] / pairs : from.shape[at - 1];
        outputs = pairs ? kernels.shape[at] / pairs : kernels.shape[at - 1];
        if (pairs) out.batch = out.channel * outputs;
        for (int i = 0; i < AXES; i++) slide.kernel[i] = weight.extent[i];
    }
    JF_INLINE int64_t blocks() const { return (outputs + TOGETHER - 1) / TOGETHER; }
    JF_INLINE int64_t rows() const { return out.extent[0] * out.extent[1]; }

    // Sums of `count` output channels from `first` on, for one row of windows.
    JF_INLINE void sum_row(int64_t n, int64_t first, int64_t count, const int64_t (&o)[2], float* line,
                           float* sums) const {
        const int64_t width = out.extent[2], padded = line_nbytes(width) / 4;
        memset(sums, 0, size_t(count * padded) * 4);
        const int64_t begin = each ? first : 0, end = each ? first + 1 : channels;
        for (int64_t c = begin; c < end; c++)
            for (int64_t k0 = 0; k0 < slide.kernel[0]; k0++)
                for (int64_t k1 = 0; k1 < slide.kernel[1]; k1++) {
                    const char* const row = row_of(slide, x, n, c, o, {k0, k1});
                    for (int64_t k2 = 0; k2 < slide.kernel[2]; k2++) {
                        take_line(slide, x, row, k2, 0, line, width);
                        for (int64_t i = 0; i < count; i++) {
                            const char* tap = weight.row(first + i, each ? 0 : c, k0, k1) + k2 * weight.axis[2];
                            add_line(line, one_of(s.in[1], tap), sums + i * padded, width);
                        }
                    }
                }
    }

    JF_INLINE void run(const Team& team) const {
        const int64_t width = out.extent[2], nbytes = scratch();
        float* const line = (float*)(team.scratch + team.index * nbytes);
        float* const sums = line + line_nbytes(width) / 4;
        const int64_t step = each ? 1 : TOGETHER, across = each ? outputs : blocks();
        const Share part = share(batches * rows() * across, team);
        for (int64_t p = part.begin; p < part.end; p++) {
            const int64_t first = p % across * step, left = outputs - first, count = left < step ? left : step;
            const int64_t row = p / across % rows(), n = p / across / rows();
            const int64_t o[2] = {row / out.extent[1], row % out.extent[1]};
            sum_row(n, first, count, o, line, sums);
            for (int64_t i = 0; i < count; i++)
                put_line(s.out, sums + i * (line_nbytes(width) / 4), out.row(n, first + i, o[0], o[1]), width);
        }
    }
    JF_INLINE int64_t scratch() const { return line_nbytes(out.extent[2]) * (TOGETHER + 1); }
};

JF_INLINE int32_t workers_for_taps(const Step& s, int32_t most) {
    const View& w = s.in[1];
    return workers_for(s.out.size() * w.shape[1] * w.shape[2] * w.shape[3], most);
}

}  // namespace
}  // namespace jackfield

// An op with the attributes stride, padding, dilation: JF_CONVOLUTION(conv_2d, 2, false, dtypes of x, of the result)
#define JF_CONVOLUTION(name, axes, each, xs, results)                                              \
    namespace jackfield {                                                                          \
    namespace {                                                                                    \
    constexpr Operand operands[] = {{"x", ANY, xs}, {"weight", ANY, FLOATS}};                      \
    constexpr const char* const attributes[] = {"stride", "padding", "dilation", nullptr};         \
    JF_INLINE Convolution convolution(const Step& s) {                                             \
        Slide slide(0);                                                                            \
        slide.read(s.attr[0], slide.stride, axes);                                                 \
        slide.read(s.attr[1], slide.padding, axes);                                                \
        slide.read(s.attr[2], slide.dilation, axes);                                               \
        return Convolution(s, axes, 0, each, slide);                                               \
    }                                                                                              \
    void run(const Step& s, const Team& team) { convolution(s).run(team); }                        \
    int64_t scratch(const Step& s, int32_t workers) { return convolution(s).scratch() * workers; } \
    }                                                                                              \
    }                                                                                              \
    JF_KERNEL(name, operands, attributes, results, nullptr, run, workers_for_taps, scratch, nullptr)

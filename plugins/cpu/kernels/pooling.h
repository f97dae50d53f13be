// The largest or the mean of every window: a row of results at a time.
#pragma once
#include "sliding.h"

namespace jackfield {
namespace {

constexpr Operand pooling_operands[] = {{"x", ANY, bit(F32) | bit(F16)}};
constexpr const char* const pooling_attributes[] = {"kind", "kernel", "stride", "padding", nullptr};

// NaN stays, whichever it is.
JF_INLINE void take_larger(const float* from, float* to, int64_t n) {
    for (int64_t i = 0; i < n; i++) to[i] = from[i] > to[i] || from[i] != from[i] ? from[i] : to[i];
}

// axes: 1 or 2. inside: means count the elements inside of the row, else the whole kernel.
struct Pooling {
    const Step& s;
    Slide slide;
    Pictures x, out;
    int axes;
    bool largest;

    JF_INLINE Pooling(const Step& step, int sliding)
        : s(step), slide(0), x(step.in[0], sliding), out(step.out, sliding), axes(sliding) {
        largest = s.attr[0].text[1] == 'a';  // max, or mean
        slide.read(s.attr[1], slide.kernel, axes);
        slide.read(s.attr[2], slide.stride, axes);
        slide.read(s.attr[3], slide.padding, axes);
    }
    JF_INLINE int64_t leading(const View& v) const { return v.shape[0] * v.shape[1] * (axes == 1 ? v.shape[2] : 1); }
    // Picture number p, by all axes that do not slide.
    JF_INLINE char* picture(const View& v, int64_t p) const {
        if (axes == 2) return v.data + p / v.shape[1] * v.stride[0] + p % v.shape[1] * v.stride[1];
        const int64_t rest = p / v.shape[2];
        return v.data + rest / v.shape[1] * v.stride[0] + rest % v.shape[1] * v.stride[1] +
               p % v.shape[2] * v.stride[2];
    }

    JF_INLINE void run(const Team& team) const {
        const int64_t width = out.extent[2], rows = out.extent[1];
        float* const line = (float*)(team.scratch + team.index * scratch());
        float* const found = line + line_nbytes(width) / 4;
        const Share part = share(leading(s.out) * rows, team);
        for (int64_t p = part.begin; p < part.end; p++) {
            pool_row(picture(s.in[0], p / rows), p % rows, line, found);
            put_line(s.out, found, picture(s.out, p / rows) + p % rows * out.axis[1], width);
        }
    }
    JF_INLINE void pool_row(const char* from, int64_t row, float* line, float* found) const {
        const int64_t width = out.extent[2];
        const float fill = largest ? -__builtin_inff() : 0;
        for (int64_t i = 0; i < width; i++) found[i] = fill;
        for (int64_t k1 = 0; k1 < slide.kernel[1]; k1++) {
            const int64_t at = slide.place(1, row, k1);
            if (at < 0 || at >= x.extent[1]) continue;
            for (int64_t k2 = 0; k2 < slide.kernel[2]; k2++) {
                take_line(slide, x, from + at * x.axis[1], k2, fill, line, width);
                if (largest)
                    take_larger(line, found, width);
                else
                    add_line(line, 1, found, width);
            }
        }
        if (!largest)
            for (int64_t i = 0; i < width; i++) found[i] /= float(counted(i));
    }
    // What a mean is divided by: of a line the elements inside, of a plane the whole kernel.
    JF_INLINE int64_t counted(int64_t window) const {
        if (axes == 2) return slide.kernel[1] * slide.kernel[2];
        const int64_t first = slide.place(2, window, 0), end = first + slide.kernel[2];
        return (end < x.extent[2] ? end : x.extent[2]) - (first > 0 ? first : 0);
    }
    JF_INLINE int64_t scratch() const { return 2 * line_nbytes(out.extent[2]); }
};

JF_INLINE int32_t pooling_workers(const Step& s, int32_t most) { return workers_for(s.in[0].size(), most); }

}  // namespace
}  // namespace jackfield

#define JF_POOLING(name, axes)                                                                       \
    namespace jackfield {                                                                            \
    namespace {                                                                                      \
    void run(const Step& s, const Team& team) { Pooling(s, axes).run(team); }                        \
    int64_t scratch(const Step& s, int32_t workers) { return Pooling(s, axes).scratch() * workers; } \
    }                                                                                                \
    }                                                                                                \
    JF_KERNEL(name, pooling_operands, pooling_attributes, bit(F32), nullptr, run, pooling_workers, scratch, nullptr)

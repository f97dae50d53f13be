// Windows as rows: channels outermost, then the kernel's axes.
#pragma once
#include "sliding.h"

namespace jackfield {
namespace {

constexpr Operand columns_operands[] = {{"x", ANY, bit(F32) | bit(F16)}};

// The result has rows (batch, windows of each axis) of channels * kernel elements.
struct Columns {
    const Step& s;
    Slide slide;
    Pictures x;
    int64_t batches, channels, count[AXES];  // windows

    // row r of the result, as indices
    struct At {
        int64_t n, o[AXES];
    };
    JF_INLINE At at(int64_t r) const {
        At a;
        for (int i = AXES - 1; i >= 0; r /= count[i--]) a.o[i] = r % count[i];
        a.n = r;
        return a;
    }
    JF_INLINE int64_t rows() const { return batches * count[0] * count[1] * count[2]; }

    JF_INLINE void make(const At& a, float* line) const {
        const int64_t extent = x.extent[2], first = slide.place(2, a.o[2], 0), gap = slide.dilation[2];
        for (int64_t c = 0; c < channels; c++)
            for (int64_t k0 = 0; k0 < slide.kernel[0]; k0++)
                for (int64_t k1 = 0; k1 < slide.kernel[1]; k1++) {
                    const char* const row = row_of(slide, x, a.n, c, {a.o[0], a.o[1]}, {k0, k1});
                    for (int64_t k2 = 0; k2 < slide.kernel[2]; k2++) {
                        const int64_t place = first + k2 * gap;
                        const bool inside = row && place >= 0 && place < extent;
                        *line++ = inside ? one_of(s.in[0], row + place * x.axis[2]) : 0;
                    }
                }
    }
    // Row number r lies as the axes of the result say, whose last is that of the elements.
    JF_INLINE void run(const Team& team) const {
        float* const line = (float*)(team.scratch + team.index * line_nbytes(s.out.last()));
        const Share part = share(rows(), team);
        RowWalk walk(s.out.shape, part.begin);
        for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
            make(at(r), line);
            put_line(s.out, line, walk.row(s.out), s.out.last());
        }
    }
};

JF_INLINE int64_t columns_scratch(const Step& s, int32_t workers) { return line_nbytes(s.out.last()) * workers; }

}  // namespace
}  // namespace jackfield

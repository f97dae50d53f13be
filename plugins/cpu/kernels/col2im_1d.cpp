#include "sliding.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"x", ANY, FLOATS}};
constexpr const char* const attributes[] = {"stride", "channels", "padding", nullptr};

// Element l of a line is the sum over the columns t that reach it: those with 0 <= l - t * stride < k.
void run(const Step& s, const Team& team) {
    const View &x = s.in[0], &out = s.out;
    const int64_t stride = s.attr[0].integer, columns = x.shape[2], k = x.last() / s.attr[1].integer;
    const int64_t padding = s.attr[2].integer, width = out.last();
    float* const line = (float*)(team.scratch + team.index * line_nbytes(width));
    const Share part = share(out.shape[2], team);
    for (int64_t o = part.begin; o < part.end; o++) {
        for (int64_t i = 0; i < width; i++) {
            const int64_t l = i + padding, first = l < k ? 0 : (l - k) / stride + 1, last = l / stride;
            float total = 0;
            for (int64_t t = first; t <= last && t < columns; t++)
                total += one_of(x, x.data + t * x.stride[2] + (o * k + l - t * stride) * x.stride[3]);
            line[i] = total;
        }
        put_line(out, line, out.data + o * out.stride[2], width);
    }
}

int64_t scratch(const Step& s, int32_t workers) { return line_nbytes(s.out.last()) * workers; }
int32_t workers(const Step& s, int32_t most) { return workers_for(s.in[0].size(), most); }

}  // namespace
}  // namespace jackfield

JF_KERNEL(col2im_1d, operands, attributes, FLOATS, nullptr, run, workers, scratch, nullptr)

#include "columns.h"

namespace jackfield {
namespace {

constexpr const char* const attributes[] = {"channels", "kernel", "stride", "padding", "dilation", "dtype", nullptr};

void run(const Step& s, const Team& team) {
    const View &x = s.in[0], &out = s.out;
    const int64_t channels = s.attr[0].integer, batches = x.shape[0] / channels;
    Columns columns{s, Slide(0), Pictures(x, 3, channels), batches, channels, {1, 1, 1}};
    columns.slide.read(s.attr[1], columns.slide.kernel, 3);
    columns.slide.read(s.attr[2], columns.slide.stride, 3);
    columns.slide.read(s.attr[3], columns.slide.padding, 3);
    columns.slide.read(s.attr[4], columns.slide.dilation, 3);
    columns.count[0] = batches ? out.shape[0] / batches : 1;
    columns.count[1] = out.shape[1];
    columns.count[2] = out.shape[2];
    columns.run(team);
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(im2col_3d, columns_operands, attributes, FLOATS, nullptr, run, nullptr, columns_scratch, nullptr)

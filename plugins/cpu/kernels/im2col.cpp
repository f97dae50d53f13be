#include "columns.h"

namespace jackfield {
namespace {

constexpr const char* const attributes[] = {"kernel", "stride", "padding", "dilation", "dtype", nullptr};

void run(const Step& s, const Team& team) {
    const View &x = s.in[0], &out = s.out;
    const int axes = x.rank - 2;  // (N, C, L) or (N, C, H, W)
    Columns columns{s, Slide(0), Pictures(x, axes), x.shape[RANK - x.rank], x.shape[RANK - x.rank + 1], {1, 1, 1}};
    columns.slide.read(s.attr[0], columns.slide.kernel, axes);
    columns.slide.read(s.attr[1], columns.slide.stride, axes);
    columns.slide.read(s.attr[2], columns.slide.padding, axes);
    columns.slide.read(s.attr[3], columns.slide.dilation, axes);
    for (int i = 0; i < axes; i++) columns.count[AXES - 1 - i] = out.shape[RANK - 2 - i];
    columns.run(team);
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(im2col, columns_operands, attributes, FLOATS, nullptr, run, nullptr, columns_scratch, nullptr)

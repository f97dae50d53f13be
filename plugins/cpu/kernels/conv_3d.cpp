#include "convolutions.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"x", ANY, bit(F32)}, {"weight", ANY, FLOATS}};
constexpr const char* const attributes[] = {"channels", "stride", "padding", "dilation", nullptr};

JF_INLINE Convolution convolution(const Step& s) {
    Slide slide(0);
    slide.read(s.attr[1], slide.stride, 3);
    slide.read(s.attr[2], slide.padding, 3);
    slide.read(s.attr[3], slide.dilation, 3);
    return Convolution(s, 3, s.attr[0].integer, false, slide);
}

void run(const Step& s, const Team& team) { convolution(s).run(team); }
int64_t scratch(const Step& s, int32_t workers) { return convolution(s).scratch() * workers; }

int32_t workers(const Step& s, int32_t most) {
    const View& w = s.in[1];
    return workers_for(s.out.size() * s.attr[0].integer * w.shape[1] * w.shape[2] * w.shape[3], most);
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(conv_3d, operands, attributes, bit(F32), nullptr, run, workers, scratch, nullptr)

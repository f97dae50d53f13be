#include "unary.h"

namespace jackfield {
namespace {

constexpr const char* const attributes[] = {"scale", "bias", nullptr};

struct Scale {
    float scale, bias;
    JF_INLINE explicit Scale(const Step& s) : scale(float(s.attr[0].number)), bias(float(s.attr[1].number)) {}
    JF_INLINE vf operator()(vf x) const { return fma(x, splat(scale), splat(bias)); }
};

}  // namespace
}  // namespace jackfield

JF_KERNEL(scale, unary_operands, attributes, FLOATS, nullptr, Unary<Scale>::run, nullptr, nullptr, Unary<Scale>::bind)

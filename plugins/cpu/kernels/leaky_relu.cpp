#include "unary.h"

namespace jackfield {
namespace {

constexpr const char* const attributes[] = {"slope", nullptr};

struct LeakyRelu {
    float slope;
    JF_INLINE explicit LeakyRelu(const Step& s) : slope(float(s.attr[0].number)) {}
    JF_INLINE vf operator()(vf x) const { return x > 0.0f ? x : x * slope; }
};

}  // namespace
}  // namespace jackfield

JF_KERNEL(leaky_relu, unary_operands, attributes, FLOATS, nullptr, Unary<LeakyRelu>::run, nullptr, nullptr,
          Unary<LeakyRelu>::bind)

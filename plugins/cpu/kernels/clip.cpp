#include "unary.h"

namespace jackfield {
namespace {

constexpr const char* const attributes[] = {"min", "max", nullptr};

struct Clip {
    float low, high;
    JF_INLINE explicit Clip(const Step& s) : low(float(s.attr[0].number)), high(float(s.attr[1].number)) {}
    // x, and what came of it, stand second: NaN survives.
    JF_INLINE vf operator()(vf x) const { return min(splat(high), max(splat(low), x)); }
};

}  // namespace
}  // namespace jackfield

JF_KERNEL(clip, unary_operands, attributes, FLOATS, nullptr, Unary<Clip>::run, nullptr, nullptr, Unary<Clip>::bind)

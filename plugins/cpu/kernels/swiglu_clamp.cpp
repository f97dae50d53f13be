#include "gated.h"

namespace jackfield {
namespace {

constexpr const char* const attributes[] = {"swapped", "limit", nullptr};

// What may be NaN stands second, so that it stays.
struct Clamped {
    float limit;
    JF_INLINE explicit Clamped(const Step& s) : limit(float(s.attr[1].number)) {}
    JF_INLINE vf operator()(vf g, vf u) const {
        return silu(min(splat(limit), g)) * min(splat(limit), max(splat(-limit), u));
    }
};

}  // namespace
}  // namespace jackfield

JF_KERNEL(swiglu_clamp, gated_operands, attributes, FLOATS, nullptr, Gated<Clamped>::run, nullptr, nullptr,
          Gated<Clamped>::bind)

#include "gated.h"

namespace jackfield {
namespace {

constexpr const char* const attributes[] = {"swapped", "alpha", "limit", nullptr};

// What may be NaN stands second, so that it stays.
struct Clamped {
    float alpha, limit;
    JF_INLINE explicit Clamped(const Step& s) : alpha(float(s.attr[1].number)), limit(float(s.attr[2].number)) {}
    JF_INLINE vf operator()(vf g, vf u) const {
        g = min(splat(limit), g);
        u = min(splat(limit), max(splat(-limit), u));
        return g / (1.0f + exp(g * -alpha, BESIDE_ONE)) * (u + 1.0f);
    }
};

}  // namespace
}  // namespace jackfield

JF_KERNEL(swiglu_oai, gated_operands, attributes, FLOATS, nullptr, Gated<Clamped>::run, nullptr, nullptr,
          Gated<Clamped>::bind)

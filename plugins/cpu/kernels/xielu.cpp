#include "functions.h"
#include "unary.h"

namespace jackfield {
namespace {

constexpr const char* const attributes[] = {"alpha_n", "alpha_p", "beta", "eps", nullptr};

JF_INLINE double softplus_of(double x) { return (x > 0 ? x : 0) + __builtin_log1p(__builtin_exp(x > 0 ? -x : x)); }

struct XIelu {
    float above, below, beta, eps;
    JF_INLINE explicit XIelu(const Step& s)
        : above(float(softplus_of(s.attr[1].number))),
          below(float(s.attr[2].number + softplus_of(s.attr[0].number))),
          beta(float(s.attr[2].number)),
          eps(float(s.attr[3].number)) {}
    JF_INLINE vf operator()(vf x) const {
        const vf bend = x > 0.0f ? x * x * above : (expm1(min(splat(eps), x)) - x) * below;
        return fma(x, splat(beta), bend);
    }
};

}  // namespace
}  // namespace jackfield

JF_KERNEL(xielu, unary_operands, attributes, FLOATS, nullptr, Unary<XIelu>::run, nullptr, nullptr, Unary<XIelu>::bind)

// ALiBi: the factor of a head's mask (Press et al. 2021, section 3).
#pragma once
#include "jackfield/kernel.h"

namespace jackfield {
namespace {

inline float slope(int64_t head, int64_t heads, double max_bias) {
    if (max_bias <= 0) return 1;
    int64_t whole = 1;
    while (whole * 2 <= heads) whole *= 2;
    if (head < whole) return float(__builtin_exp2(-max_bias * double(head + 1) / double(whole)));
    return float(__builtin_exp2(-max_bias * double(2 * (head - whole) + 1) / double(2 * whole)));
}

}  // namespace
}  // namespace jackfield

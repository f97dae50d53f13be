#include "bands.h"

namespace jackfield {
namespace {

constexpr const char* const attributes[] = {"past", "fill", nullptr};

void run(const Step& s, const Team& team) {
    const int64_t past = near_enough(s.attr[0].integer);
    copy_band(s, team, float(s.attr[1].number),
              [past](int64_t r, int64_t n) { return Kept{0, within(r + past + 1, n)}; });
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(causal_mask, band_operands, attributes, bit(F32), nullptr, run, nullptr, nullptr, nullptr)

#include "bands.h"

namespace jackfield {
namespace {

constexpr const char* const attributes[] = {"k", nullptr};

void run(const Step& s, const Team& team) {
    const int64_t k = near_enough(s.attr[0].integer);
    copy_band(s, team, 0, [k](int64_t r, int64_t n) { return Kept{0, within(r + k + 1, n)}; });
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(tril, band_operands, attributes, bit(F32), nullptr, run, nullptr, nullptr, nullptr)

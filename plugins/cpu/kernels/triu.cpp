#include "bands.h"

namespace jackfield {
namespace {

constexpr const char* const attributes[] = {"k", nullptr};

void run(const Step& s, const Team& team) {
    const int64_t k = near_enough(s.attr[0].integer);
    copy_band(s, team, 0, [k](int64_t r, int64_t n) { return Kept{within(r + k, n), n}; });
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(triu, band_operands, attributes, bit(F32), nullptr, run, nullptr, nullptr, nullptr)

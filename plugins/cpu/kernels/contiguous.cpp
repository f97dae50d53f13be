#include "copies.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"x", ANY, EVERY}};
constexpr const char* const attributes[] = {nullptr};

void run(const Step& s, const Team& team) { copy_view(s.in[0], s.out, team); }

}  // namespace
}  // namespace jackfield

JF_KERNEL(contiguous, operands, attributes, EVERY, nullptr, run, nullptr, nullptr, nullptr)

// matmul(a, b): rows of a times columns of b, in f32.
#include "products.h"

namespace jackfield::JF_LEVEL {
namespace {

constexpr Operand operands[] = {{"a", ANY, FLOATS}, {"b", ANY, FLOATS}};
constexpr const char* attributes[] = {nullptr};

Product product_of(const Step& s) {
    Product p = batched_product(s);
    p.n = s.in[1].shape[3];
    p.k = s.in[1].shape[2];
    p.row_stride = s.in[1].stride[3];
    p.column_stride = s.in[1].stride[2];
    p.exact = p.columns = true;
    return p;
}

void run(const Step& s, const Team& team) { multiply(product_of(s), team, team.scratch); }
int32_t workers(const Step& s, int32_t most) { return product_workers(product_of(s), most); }
int64_t scratch(const Step& s, int32_t workers) { return product_scratch(product_of(s), workers); }

}  // namespace
}  // namespace jackfield::JF_LEVEL

JF_KERNEL(matmul, operands, attributes, bit(F32), nullptr, run, workers, scratch, nullptr)

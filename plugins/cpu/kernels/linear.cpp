// linear(x, weight): rows of x times rows of the weight. Also the engine that linear_experts and matmul share.
#include "products_blocks.h"
#include "products_floats.h"

namespace jackfield::JF_LEVEL {

static bool in_floats(const Product& p) { return p.exact || !is_block(p.dtype); }

int64_t product_scratch(const Product& p, int32_t workers) {
    return in_floats(p) ? FloatScratch(p, workers).nbytes(workers) : BlockScratch(p, workers).nbytes(workers);
}

int32_t product_workers(const Product& p, int32_t most) {
    const int64_t pays = p.most_rows * p.n * p.k >> 16;  // 64 Ki multiply-adds are worth a worker
    return pays < 1 ? 1 : pays < most ? int32_t(pays) : most;
}

void multiply(const Product& p, const Team& team, char* scratch) {
    if (!p.rows || !p.n) return;
    if (!in_floats(p)) return multiply_blocks(p, team, scratch);
    const Bf16Products how = p.dtype == BF16 && !p.exact ? bf16_products : WIDENED;
#if defined(JF_LEVEL_vnni)
    if (how == PAIRED_BY_INSTRUCTION) return multiply_floats<PairInstruction>(p, team, scratch);
#endif
    if (how != WIDENED) return multiply_floats<Pairs>(p, team, scratch);
    multiply_floats<Singles<F32>>(p, team, scratch);
}

namespace {

constexpr Operand operands[] = {{"x", ANY, FLOATS}, {"weight", ROWS, FLOATS | WEIGHTS, 1 << ROWS16}};
constexpr const char* attributes[] = {"precision", nullptr};

Product product_of(const Step& s) {
    Product p = batched_product(s);
    p.n = s.in[1].shape[2];
    p.k = s.in[1].shape[3];
    p.row_stride = s.in[1].stride[2];
    p.exact = is_exact(s.attr[0]);
    return p;
}

void run(const Step& s, const Team& team) { multiply(product_of(s), team, team.scratch); }
int32_t workers(const Step& s, int32_t most) { return product_workers(product_of(s), most); }
int64_t scratch(const Step& s, int32_t workers) { return product_scratch(product_of(s), workers); }

}  // namespace
}  // namespace jackfield::JF_LEVEL

JF_KERNEL(linear, operands, attributes, bit(F32), nullptr, run, workers, scratch, nullptr)

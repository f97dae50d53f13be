// linear(x, weight): rows of x times rows of the weight. Also the engine that linear_experts and matmul share.
#include "products_blocks.h"
#include "products_floats.h"

namespace jackfield::JF_LEVEL {

static bool in_floats(const Product& p) { return p.exact || !is_block(p.dtype); }

int64_t products_scratch(const Product* p, int count, int32_t workers) {
    return in_floats(*p) ? FloatScratch(p, count, workers).nbytes(workers)
                         : BlockScratch(p, count, workers).nbytes(workers);
}

int32_t products_workers(const Product* p, int count, int32_t most) {
    int64_t pays = 0;
    for (int i = 0; i < count; i++) pays += p[i].most_rows * p[i].n * p[i].k;
    pays >>= 16;  // 64 Ki multiply-adds are worth a worker
    return pays < 1 ? 1 : pays < most ? int32_t(pays) : most;
}

void multiply_all(const Product* p, int count, const Team& team, char* scratch) {
    if (!p->rows) return;
    if (!in_floats(*p)) return multiply_blocks(p, count, team, scratch);
    const Bf16Products how = p->dtype == BF16 && !p->exact ? bf16_products : WIDENED;
#if defined(JF_LEVEL_vnni)
    if (how == PAIRED_BY_INSTRUCTION) return multiply_floats<PairInstruction>(p, count, team, scratch);
#endif
    if (how != WIDENED) return multiply_floats<Pairs>(p, count, team, scratch);
    multiply_floats<Singles<F32>>(p, count, team, scratch);
}

namespace {

constexpr Operand operands[] = {{"x", ANY, FLOATS}, {"weight", ROWS, FLOATS | WEIGHTS, 1 << ROWS16}};
constexpr const char* attributes[] = {"precision", nullptr};

void run(const Step& s, const Team& team) { multiply(linear_product(s), team, team.scratch); }
int32_t workers(const Step& s, int32_t most) { return product_workers(linear_product(s), most); }
int64_t scratch(const Step& s, int32_t workers) { return product_scratch(linear_product(s), workers); }

}  // namespace
}  // namespace jackfield::JF_LEVEL

JF_KERNEL(linear, operands, attributes, bit(F32), nullptr, run, workers, scratch, nullptr)

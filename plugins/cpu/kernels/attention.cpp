#include "attention.h"

#include "attention_rows.h"
#include "attention_tiles.h"

namespace jackfield {
namespace {

constexpr uint64_t CACHES = bit(F32) | bit(F16) | bit(BF16) | CODED;
constexpr Operand operands[] = {
    {"q", ROWS, bit(F32)},    {"k", ROWS, CACHES},        {"v", ROWS, CACHES},      {"mask", ROWS, bit(F32) | bit(F16)},
    {"sinks", ANY, bit(F32)}, {"kv_rows", ANY, bit(I32)}, {"kv_len", ANY, bit(I32)}};
// kv_limit is a hint about the mask: without it the result is the same. precision: all sums are f32 anyway.
constexpr const char* const attributes[] = {"scale",         "causal",   "window",    "max_bias",
                                            "logit_softcap", "kv_limit", "precision", nullptr};

// The one place that chooses: planner and run ask it.
bool by_tiles(const Step& s) {
    const int64_t T = s.in[Q_].shape[2], share = s.in[Q_].shape[1] / s.in[K_].shape[1];
    return s.in[KV_ROWS_] || (T >= 4 && T * share >= 12);
}

bool why_not(const Step& s, Words& words) {
    const int64_t columns = Extents(s).N;
    if (columns <= INT32_MAX) return false;
    words << columns << " columns, limit " << int64_t(INT32_MAX);
    return true;
}

void run(const Step& s, const Team& team) {
    if (by_tiles(s))
        Tiles(s).run(team);
    else
        Rows(s).run(team);
}

// A column of a cache that was last read a token ago costs more than its products: with eight times this limit two
// workers made 3 to 6 % fewer tokens with short caches, one of them waiting.
int32_t workers(const Step& s, int32_t most) {
    const Extents x(s);
    return workers_for(x.S * x.H * x.T * x.N * (x.DK + x.DV), most);
}

int64_t scratch(const Step& s, int32_t workers) {
    return by_tiles(s) ? Tiles(s).nbytes(workers) : Rows(s).nbytes(workers);
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(attention, operands, attributes, bit(F32), why_not, run, workers, scratch, nullptr)

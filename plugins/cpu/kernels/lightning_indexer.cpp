#include "convert.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {
    {"q", ROWS, bit(F32)}, {"k", ROWS, FLOATS | WEIGHTS}, {"weights", ANY, bit(F32)}, {"mask", ANY, bit(F16)}};
constexpr const char* const attributes[] = {nullptr};
enum { Q, K, WEIGHTED, MASK };

JF_INLINE float dot(const float* a, const float* b, int64_t n) {
    vf low{}, high{};
    int64_t i = 0;
    for (; i + 2 * W <= n; i += 2 * W) {
        low = fma(load<F32>((const char*)(a + i)), load<F32>((const char*)(b + i)), low);
        high = fma(load<F32>((const char*)(a + i + W)), load<F32>((const char*)(b + i + W)), high);
    }
    for (; i + W <= n; i += W) low = fma(load<F32>((const char*)(a + i)), load<F32>((const char*)(b + i)), low);
    if (i < n) {
        const vf x = load_part<F32>((const char*)(a + i), n - i), y = load_part<F32>((const char*)(b + i), n - i);
        high += x * y;
    }
    return sum(low + high);
}

// The row of k as f32: itself, or in `memory`.
JF_INLINE const float* widened(const View& k, const char* row, float* memory) {
    if (k.dtype == F32) return (const float*)row;
    convert_line(k.dtype, row, k.stride[3], F32, (char*)memory, 4, k.last());
    return memory;
}

int64_t row_nbytes(const Step& s) { return (s.in[K].last() * 4 + 63) / 64 * 64; }

// Columns are shared out: each row of k is widened once for all tokens and heads. What is masked is not computed.
void run(const Step& s, const Team& team) {
    const View &q = s.in[Q], &k = s.in[K], &weights = s.in[WEIGHTED], &mask = s.in[MASK], &out = s.out;
    float* const memory = (float*)(team.scratch + team.index * row_nbytes(s));
    const int64_t columns = k.shape[1];
    const Share part = share(q.shape[0] * columns, team);
    for (int64_t p = part.begin; p < part.end; p++) {
        const int64_t i = p / columns, c = p % columns;
        const float* const row = widened(k, k.data + i * k.stride[0] + c * k.stride[1], memory);
        for (int64_t t = 0; t < q.shape[1]; t++) {
            const char* entry = mask.data + i % mask.shape[0] * mask.stride[0] + t * mask.stride[2];
            const float shut = load_one<F16>(entry + c * mask.stride[3]);
            float total = 0;
            for (int64_t h = 0; h < q.shape[2] && shut != -__builtin_inff(); h++) {
                const char* query = q.data + i * q.stride[0] + t * q.stride[1] + h * q.stride[2];
                const float product = dot((const float*)query, row, q.last());
                const char* weight =
                    weights.data + i * weights.stride[0] + t * weights.stride[2] + h * weights.stride[3];
                total += load_one<F32>(weight) * (product < 0 ? 0 : product);  // NaN stays
            }
            total += shut;
            memcpy(out.data + i * out.stride[0] + t * out.stride[2] + c * out.stride[3], &total, 4);
        }
    }
}

int32_t workers(const Step& s, int32_t most) { return workers_for(s.out.size() * s.in[Q].last(), most); }
int64_t scratch(const Step& s, int32_t workers) { return row_nbytes(s) * workers; }

}  // namespace
}  // namespace jackfield

JF_KERNEL(lightning_indexer, operands, attributes, bit(F32), nullptr, run, workers, scratch, nullptr)

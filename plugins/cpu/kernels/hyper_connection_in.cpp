#include "streams.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"x", ROWS, bit(F32)}, {"weights", ANY, bit(F32)}};
constexpr const char* const attributes[] = {nullptr};

void run(const Step& s, const Team& team) {
    const View &x = s.in[0], &weights = s.in[1], &out = s.out;
    const Share part = share(out.shape[2], team);
    for (int64_t t = part.begin; t < part.end; t++) {
        const char* const weight = weights.data + t * weights.stride[2];
        const Mixture mixture{x.data + t * x.stride[1], x.shape[2], x.stride[2], weight, weights.stride[3], nullptr, 0};
        mixture.write(out.data + t * out.stride[2], out.stride[3], out.last());
    }
}

int32_t workers(const Step& s, int32_t most) { return workers_for(s.in[0].size(), most); }

}  // namespace
}  // namespace jackfield

JF_KERNEL(hyper_connection_in, operands, attributes, bit(F32), nullptr, run, workers, nullptr, nullptr)

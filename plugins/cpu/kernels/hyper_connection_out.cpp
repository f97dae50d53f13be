#include "streams.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {
    {"x", ROWS, bit(F32)}, {"residual", ROWS, bit(F32)}, {"post", ANY, bit(F32)}, {"mix", ANY, bit(F32)}};
constexpr const char* const attributes[] = {nullptr};

void run(const Step& s, const Team& team) {
    const View &x = s.in[0], &residual = s.in[1], &post = s.in[2], &mix = s.in[3], &out = s.out;
    const int64_t c = out.shape[2];
    const Share part = share(out.shape[1] * c, team);
    for (int64_t p = part.begin; p < part.end; p++) {
        const int64_t t = p / c, d = p % c;
        const float weight = load_one<F32>(post.data + t * post.stride[2] + d * post.stride[3]);
        const Mixture mixture{residual.data + t * residual.stride[1],
                              c,
                              residual.stride[2],
                              mix.data + t * mix.stride[1] + d * mix.stride[3],
                              mix.stride[2],
                              x.data + t * x.stride[2],
                              weight};
        mixture.write(out.data + t * out.stride[1] + d * out.stride[2], out.stride[3], out.last());
    }
}

int32_t workers(const Step& s, int32_t most) { return workers_for(s.out.size() * s.out.shape[2], most); }

}  // namespace
}  // namespace jackfield

JF_KERNEL(hyper_connection_out, operands, attributes, bit(F32), nullptr, run, workers, nullptr, nullptr)

// rms_norm, multiply: the norm of each row times the weights of the norm.
#include "fused.h"
#include "norm_weights.h"

namespace jackfield {
namespace {

void run(const Chain& chain, const Team& team) {
    const Step &norm = *chain.steps[0], &multiply = *chain.steps[1];
    const View &x = norm.in[0], &out = multiply.out;
    const char* weights = norm_weights(multiply, norm.out);
    const Share part = share(out.rows(), team);
    RowWalk walk(out.shape, part.begin);
    for (int64_t r = part.begin; r < part.end; r++, walk.next())
        scale_norm(walk.row(x), weights, norm.attr[0].number, out.last(), walk.row(out));
}

int32_t workers(const Chain& chain, int32_t most) { return workers_for(chain.steps[0]->out.size(), most); }

}  // namespace
}  // namespace jackfield

JF_FUSED(scaled_norm, run, workers, nullptr, nullptr)

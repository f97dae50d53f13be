#include "simd.h"
#include "views.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"mixes", ANY, bit(F32)}, {"scale", ANY, bit(F32)}, {"base", ANY, bit(F32)}};
constexpr const char* const attributes[] = {"eps", "iterations", nullptr};

// Squares are small: a matrix [source][target] in f64, in work memory.
struct Square {
    double* cells;
    int64_t c;
    double eps;

    JF_INLINE double& at(int64_t source, int64_t target) const { return cells[source * c + target]; }

    JF_INLINE void softmax() const {
        for (int64_t i = 0; i < c; i++) {
            double most = -__builtin_inf(), total = 0;
            for (int64_t j = 0; j < c; j++) most = at(i, j) > most ? at(i, j) : most;
            for (int64_t j = 0; j < c; j++) total += at(i, j) = __builtin_exp(at(i, j) - most);
            for (int64_t j = 0; j < c; j++) at(i, j) = at(i, j) / total + eps;
        }
    }
    // By the sums over one axis: `step` from cell to cell of a sum, `next` from sum to sum.
    JF_INLINE void divide(int64_t step, int64_t next) const {
        for (int64_t i = 0; i < c; i++) {
            double total = 0;
            for (int64_t j = 0; j < c; j++) total += cells[i * next + j * step];
            for (int64_t j = 0; j < c; j++) cells[i * next + j * step] /= total + eps;
        }
    }
};

int64_t nbytes(const Step& s) { return (s.out.last() * s.out.last() * 8 + 63) / 64 * 64; }

void run(const Step& s, const Team& team) {
    const View &mixes = s.in[0], &scale = s.in[1], &base = s.in[2], &out = s.out;
    const int64_t c = out.last();
    const double factor = load_one<F32>(scale.data + 2 * scale.stride[3]);
    const Square square{(double*)(team.scratch + team.index * nbytes(s)), c, s.attr[0].number};
    const Share part = share(out.shape[1], team);
    for (int64_t t = part.begin; t < part.end; t++) {
        for (int64_t i = 0; i < c * c; i++) {
            const double mix = load_one<F32>(mixes.data + t * mixes.stride[2] + (2 * c + i) * mixes.stride[3]);
            square.cells[i] = mix * factor + double(load_one<F32>(base.data + (2 * c + i) * base.stride[3]));
        }
        square.softmax();
        square.divide(c, 1);
        for (int64_t n = 1; n < s.attr[1].integer; n++) {
            square.divide(1, c);
            square.divide(c, 1);
        }
        for (int64_t i = 0; i < c; i++)
            for (int64_t j = 0; j < c; j++) {
                const float value = float(square.at(i, j));
                memcpy(out.data + t * out.stride[1] + i * out.stride[2] + j * out.stride[3], &value, 4);
            }
    }
}

int64_t scratch(const Step& s, int32_t workers) { return nbytes(s) * workers; }

}  // namespace
}  // namespace jackfield

JF_KERNEL(hyper_connection_weights, operands, attributes, bit(F32), nullptr, run, nullptr, scratch, nullptr)

// Several linear steps of the same x, made as one product: x is rounded once and the workers meet once. In the order
// of the group: rms_norm and multiply, if x is a norm with weights; then for each result linear, or two of them (gate,
// up) and their gated unit, and up to two add.
#include "fused.h"
#include "norm_weights.h"
#include "products.h"

namespace jackfield::JF_LEVEL {
namespace {

struct Products {
    Product list[MOST_PRODUCTS];
    int count = 0;

    explicit Products(const Chain& chain) {
        const bool normed = is_op(chain, 0, "rms_norm");
        for (int32_t i = normed ? 2 : 0; i < chain.count;) {
            Product& p = list[count++] = linear_product(*chain.steps[i++]);
            if (normed) prepare_by_norm(p, chain);
            const Step* last = p.step;
            if (i + 1 < chain.count && is_op(chain, i, "linear") && unit_of(chain, i + 1)) {
                list[count] = linear_product(*chain.steps[i]);
                if (normed) prepare_by_norm(list[count], chain);
                count++;
                p.unit = unit_of(chain, i + 1);
                last = chain.steps[i + 1];
                i += 2;
            }
            for (; i < chain.count && is_op(chain, i, "add"); i++) {
                p.addend[p.addends++] = other_operand(*chain.steps[i], last->out);
                last = chain.steps[i];
            }
            p.y_view = &last->out;
            p.y_stride = last->out.stride[RANK - 1];
        }
    }

    static int32_t unit_of(const Chain& chain, int32_t i) {
        if (is_op(chain, i, "swiglu")) return SILU;
        if (is_op(chain, i, "geglu")) return GELU;
        return is_op(chain, i, "geglu_erf") ? GELU_ERF : NO_UNIT;
    }

    // What is added to `made`, in the shape of the result.
    static View other_operand(const Step& add, const View& made) {
        View other = add.in[add.in[0].data == made.data ? 1 : 0];
        for (int axis = 0; axis < RANK; axis++) {
            if (other.shape[axis] != add.out.shape[axis]) other.stride[axis] = 0;
            other.shape[axis] = add.out.shape[axis];
        }
        return other;
    }

    static void prepare_by_norm(Product& p, const Chain& chain) {
        p.x_view = &chain.steps[0]->in[0];
        p.x_stride = p.x_view->stride[RANK - 1];
        p.eps = chain.steps[0]->attr[0].number;
        p.weights = norm_weights(*chain.steps[1], chain.steps[0]->out);
        p.prepare = [](const Product& q, const char* row, float* line) {
            scale_norm(row, q.weights, q.eps, q.k, (char*)line);
        };
    }
};

void run(const Chain& chain, const Team& team) {
    const Products p(chain);
    multiply_all(p.list, p.count, team, team.scratch);
}
int32_t workers(const Chain& chain, int32_t most) {
    const Products p(chain);
    return products_workers(p.list, p.count, most);
}
int64_t scratch(const Chain& chain, int32_t workers) {
    const Products p(chain);
    return products_scratch(p.list, p.count, workers);
}

}  // namespace
}  // namespace jackfield::JF_LEVEL

JF_FUSED(linears, run, workers, scratch, nullptr)

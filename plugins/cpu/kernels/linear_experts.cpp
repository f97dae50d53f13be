// linear_experts(x, weight, ids): each slot (token, place) takes one of the weight matrices. Slots are sorted by
// expert, so that a matrix is read once for all its rows.
#include "products.h"

namespace jackfield::JF_LEVEL {
namespace {

constexpr Operand operands[] = {
    {"x", ANY, FLOATS}, {"weight", ROWS, FLOATS | WEIGHTS, 1 << ROWS16}, {"ids", ANY, bit(I32)}};
constexpr const char* attributes[] = {"precision", nullptr};

struct Slots {
    int64_t tokens, places, experts;

    JF_INLINE explicit Slots(const Step& s)
        : tokens(s.in[2].shape[2]), places(s.in[2].shape[3]), experts(s.in[1].shape[1]) {}
    JF_INLINE int64_t count() const { return tokens * places; }
    JF_INLINE int32_t id(const Step& s, int64_t slot) const {
        int32_t id;
        memcpy(&id, s.in[2].data + slot / places * s.in[2].stride[2] + slot % places * s.in[2].stride[3], 4);
        return id;
    }
    JF_INLINE bool good(int32_t id) const { return id >= 0 && id < experts; }
};

// Work memory of the sort, ahead of the product's: how many experts are in use, slots by expert, where each of
// those starts, which expert it is, and a counter for each. Small sorts are done by every worker for itself, which is
// cheaper than a barrier.
struct Sorting {
    int64_t nbytes;  // of one copy
    bool own;

    JF_INLINE Sorting(const Slots& slots, int32_t workers) {
        nbytes = up_to(4 * (slots.count() + 3 * slots.experts + 2), 64);
        own = workers > 1 && slots.count() + slots.experts <= 2048;
    }
    JF_INLINE int64_t total(int32_t workers) const { return own ? workers * nbytes : nbytes; }
};

struct Sorted {
    int32_t *used, *order, *bounds, *chosen, *counts;

    JF_INLINE Sorted(char* at, const Slots& slots) {
        used = (int32_t*)at;
        order = used + 1;
        bounds = order + slots.count();
        chosen = bounds + slots.experts + 1;
        counts = chosen + slots.experts;
    }
};

// Stable counting sort; slots whose id names no expert are left out.
void sort_slots(const Step& s, const Slots& slots, const Sorted& sorted) {
    memset(sorted.counts, 0, size_t(slots.experts) * 4);
    for (int64_t slot = 0; slot < slots.count(); slot++) {
        const int32_t id = slots.id(s, slot);
        if (slots.good(id)) sorted.counts[id]++;
    }
    int32_t used = 0, at = 0;
    for (int32_t e = 0; e < slots.experts; e++) {
        const int32_t count = sorted.counts[e];
        sorted.counts[e] = at;
        if (count) {
            sorted.bounds[used] = at;
            *sorted.used = used;
            sorted.chosen[used++] = e;
        }
        at += count;
    }
    sorted.bounds[used] = at;
    *sorted.used = used;
    for (int64_t slot = 0; slot < slots.count(); slot++) {
        const int32_t id = slots.id(s, slot);
        if (slots.good(id)) sorted.order[sorted.counts[id]++] = int32_t(slot);
    }
}

Product product_of(const Step& s) {
    const View &x = s.in[0], &w = s.in[1];
    Product p{};
    p.step = &s;
    p.n = w.shape[2];
    p.k = w.shape[3];
    p.most_rows = Slots(s).count();
    p.dtype = w.dtype;
    p.layout = w.layout;
    p.x_dtype = x.dtype;
    p.exact = is_exact(s.attr[0]);
    p.row_stride = w.stride[2];
    p.x_stride = x.stride[3];
    p.y_stride = s.out.stride[3];
    p.matrix = [](const Product& q, int64_t segment) -> const char* {
        const View& m = q.step->in[1];
        const int64_t size = q.layout == ROWS16 ? packed_nbytes(m.dtype, m.shape[2], m.shape[3]) : m.stride[1];
        return m.data + q.chosen[segment] * size;
    };
    p.x = [](const Product& q, int64_t t) -> const char* {
        const View& v = q.step->in[0];
        const int64_t places = q.step->in[2].shape[3], slot = q.order[t];
        return v.data + slot / places * v.stride[1] + slot % places % v.shape[2] * v.stride[2];
    };
    p.y = [](const Product& q, int64_t t) {
        const View& v = q.step->out;
        const int64_t places = q.step->in[2].shape[3], slot = q.order[t];
        return v.data + slot / places * v.stride[1] + slot % places * v.stride[2];
    };
    return p;
}

// Rows of slots without an expert are zero; an id that is neither -1 nor an expert is a fault.
void clear_rows(const Step& s, const Slots& slots, const Team& team) {
    const Share part = share(slots.count(), team);
    for (int64_t slot = part.begin; slot < part.end; slot++) {
        const int32_t id = slots.id(s, slot);
        if (slots.good(id)) continue;
        if (id != -1) set_fault(s, FAULT_INDEX, 2, id);
        char* row = s.out.data + slot / slots.places * s.out.stride[1] + slot % slots.places * s.out.stride[2];
        for (int64_t i = 0; i < s.out.last(); i++) memset(row + i * s.out.stride[3], 0, 4);
    }
}

void run(const Step& s, const Team& team) {
    const Slots slots(s);
    const Sorting sorting(slots, team.count);
    const Sorted sorted(team.scratch + (sorting.own ? sorting.nbytes * team.index : 0), slots);
    if (sorting.own || team.index == 0) sort_slots(s, slots, sorted);
    clear_rows(s, slots, team);
    if (!sorting.own) team.barrier(false);  // the product has one more
    Product p = product_of(s);
    p.order = sorted.order;
    p.bounds = sorted.bounds;
    p.chosen = sorted.chosen;
    p.segments = *sorted.used;
    p.rows = sorted.bounds[p.segments];
    multiply(p, team, team.scratch + sorting.total(team.count));
}

int32_t workers(const Step& s, int32_t most) { return product_workers(product_of(s), most); }
int64_t scratch(const Step& s, int32_t workers) {
    return Sorting(Slots(s), workers).total(workers) + product_scratch(product_of(s), workers);
}

}  // namespace
}  // namespace jackfield::JF_LEVEL

JF_KERNEL(linear_experts, operands, attributes, bit(F32), nullptr, run, workers, scratch, nullptr)

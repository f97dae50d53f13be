#include "order.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"x", ROWS, bit(F32)}};
constexpr const char* const attributes[] = {"k", nullptr};

// Put `key` at node i of a heap of n and let it sink to its place.
JF_INLINE void sink(uint64_t* heap, int64_t n, int64_t i, uint64_t key) {
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= n) break;
        if (child + 1 < n && heap[child + 1] > heap[child]) child++;
        if (heap[child] <= key) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = key;
}

// The k smallest keys, in order: a heap with the worst kept key on top.
inline uint64_t* chosen(const char* x, int64_t n, int64_t k, uint64_t* keys) {
    if (k * 8 >= n) return sorted_line(x, n, true, keys);
    for (int64_t i = 0; i < k; i++) keys[i] = order_key(load_one<F32>(x + i * 4), i, true);
    for (int64_t i = k / 2; i-- > 0;) sink(keys, k, i, keys[i]);
    for (int64_t i = k; i < n; i++) {
        const uint64_t key = order_key(load_one<F32>(x + i * 4), i, true);
        if (key < keys[0]) sink(keys, k, 0, key);
    }
    for (int64_t left = k - 1; left > 0; left--) {  // the worst goes to the end
        const uint64_t last = keys[left];
        keys[left] = keys[0];
        sink(keys, left, 0, last);
    }
    return keys;
}

void run(const Step& s, const Team& team) {
    const View &x = s.in[0], &out = s.out;
    uint64_t* const keys = own_keys(s, team);
    const Share part = share(x.rows(), team);
    RowWalk walk(x.shape, part.begin);
    for (int64_t r = part.begin; r < part.end; r++, walk.next())
        store_indices(chosen(walk.row(x), x.last(), out.last(), keys), walk.row(out), out.stride[3], out.last());
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(top_k, operands, attributes, bit(I32), nullptr, run, order_workers, order_scratch, nullptr)

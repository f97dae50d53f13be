// Kernels that make several steps of a run together, and how they see them. One file here is one such kernel; its stem
// is the name that jackfield_cpu/fusion.py asks for it by.
#pragma once
#include "jackfield/kernel.h"

namespace jackfield {

// The steps of a group in the order the group names them. A result that a later step of the group reads has an address
// of its own, by which it is known among operands, and no memory there: it is never written.
struct Chain {
    const char* const* ops;
    Step* const* steps;
    int32_t count;
};

struct Fused {
    const char* name;
    void (*run)(const Chain&, const Team&);
    int32_t (*workers)(const Chain&, int32_t most);
    int64_t (*scratch)(const Chain&, int32_t workers);  // null: none
    void (*bind)(const Chain&);                         // null; once, when addresses are final
};

static JF_INLINE bool is_op(const Chain& chain, int32_t i, const char* name) {
    const char* op = chain.ops[i];
    while (*op && *op == *name) op++, name++;
    return *op == *name;
}

}  // namespace jackfield

#define JF_FUSED(name, run_, workers_, scratch_, bind_)           \
    namespace jackfield::JF_LEVEL {                               \
    extern const Fused name;                                      \
    constexpr Fused name{#name, run_, workers_, scratch_, bind_}; \
    }

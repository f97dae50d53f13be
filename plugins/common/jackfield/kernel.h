// What a native plugin's kernels see: views, a step, the workers that make it, and the table entry of a kernel.
// Header only and C headers only: an inline function of the C++ library, compiled for a rich instruction set, could be
// the copy that the linker keeps for all of them. No type of this file crosses from one wheel to another.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifndef JF_LEVEL  // the instruction-set level a file is compiled for, set by CMake
#define JF_LEVEL base
#endif

// A member function that is not inlined would be one weak symbol for all levels, and the linker may keep the richest.
#define JF_INLINE __attribute__((always_inline)) inline

namespace jackfield {

// Block dtypes, one line each: number, name in the core, elements and bytes of a block. The last two hold rounded
// activations and are no weights.
#define JF_WEIGHT_DTYPES(X)        \
    X(Q4_0, "q4_0", 32, 18)        \
    X(Q4_1, "q4_1", 32, 20)        \
    X(Q5_0, "q5_0", 32, 22)        \
    X(Q5_1, "q5_1", 32, 24)        \
    X(Q8_0, "q8_0", 32, 34)        \
    X(Q2_K, "q2_K", 256, 84)       \
    X(Q3_K, "q3_K", 256, 110)      \
    X(Q4_K, "q4_K", 256, 144)      \
    X(Q5_K, "q5_K", 256, 176)      \
    X(Q6_K, "q6_K", 256, 210)      \
    X(Q1_0, "q1_0", 128, 18)       \
    X(Q2_0, "q2_0", 64, 18)        \
    X(TQ1_0, "tq1_0", 256, 54)     \
    X(TQ2_0, "tq2_0", 256, 66)     \
    X(IQ1_S, "iq1_s", 256, 50)     \
    X(IQ1_M, "iq1_m", 256, 56)     \
    X(IQ2_XXS, "iq2_xxs", 256, 66) \
    X(IQ2_XS, "iq2_xs", 256, 74)   \
    X(IQ2_S, "iq2_s", 256, 82)     \
    X(IQ3_XXS, "iq3_xxs", 256, 98) \
    X(IQ3_S, "iq3_s", 256, 110)    \
    X(IQ4_NL, "iq4_nl", 32, 18)    \
    X(IQ4_XS, "iq4_xs", 256, 136)  \
    X(MXFP4, "mxfp4", 32, 17)      \
    X(NVFP4, "nvfp4", 64, 36)
#define JF_BLOCK_DTYPES(X)  \
    JF_WEIGHT_DTYPES(X)     \
    X(Q8_1, "q8_1", 32, 36) \
    X(Q8_K, "q8_K", 256, 292)

// Numbers are private to one wheel; names are those of the core's dtypes.
enum DType : int32_t {
    F32,
    F16,
    BF16,
    F64,
    I8,
    U8,
    I16,
    I32,
    I64,
    BOOL,
#define JF_NUMBER(number, ...) number,
    JF_BLOCK_DTYPES(JF_NUMBER)
#undef JF_NUMBER
        DTYPES
};
constexpr int32_t PLAIN_DTYPES = BOOL + 1;  // blocks follow

constexpr int MAX_OPERANDS = 8, MAX_ATTRS = 16, RANK = 4;

// A tensor as a kernel sees it: always four axes, missing leading ones have extent 1. The last axis is index 3.
// Strides are bytes; on the last axis of a block dtype, bytes of one block. Extents count elements.
struct View {
    char* data;  // null: the optional operand is absent (or, in why_not, always null: ask `present`)
    DType dtype;
    int32_t rank;    // of the tensor in the graph, 0 to 4
    int32_t layout;  // 0 plain, else the number of a packing, see Packer
    bool present;
    bool constant;  // fixed data: safe to look at when a step is bound
    int64_t shape[RANK];
    int64_t stride[RANK];

    JF_INLINE int64_t size() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
    JF_INLINE int64_t last() const { return shape[3]; }
    JF_INLINE int64_t rows() const { return shape[0] * shape[1] * shape[2]; }
    JF_INLINE explicit operator bool() const { return present; }
};

// A value of an attribute. Numbers come as both double and int64; text as a C string; a tuple as up to 8 numbers, pairs
// in it one after the other.
constexpr int MAX_NUMBERS = 2 * RANK;
struct Attr {
    double number;
    int64_t integer;
    const char* text;  // null unless the attribute is text (a dtype's name, a mode)
    int32_t count;     // tuple: how many; else 0
    bool is_tuple;
    bool absent;  // None
    double numbers[MAX_NUMBERS];
    int64_t integers[MAX_NUMBERS];
};

// What a kernel found in data. Written once, by whoever is first; read by Program.check().
struct Fault {
    int32_t code;     // 0 none, 1 bad index, 2 non-finite value met by a block encoder
    int32_t operand;  // index of the operand that held it
    int64_t value;    // the first offending index or block
};
enum FaultCode : int32_t { FAULT_NONE, FAULT_INDEX, FAULT_NONFINITE };

// One step with all addresses. operands and attrs stand in the order of the kernel's own lists below.
struct Step {
    View out;
    const View* in;  // n_in of them
    const Attr* attr;
    int32_t n_in, n_attr;
    Fault* fault;               // never null in run
    void (*call)(const Step&);  // free for `bind`: what `run` should jump to
    int64_t note[8];            // free for `bind`: figures worked out once
};

// The workers that make one step together. run() is called once for each index, on any thread; count may exceed the
// pieces of work.
struct Team {
    int32_t index, count;
    char* scratch;  // work memory shared by all workers of the step, 64-byte aligned
    int64_t scratch_nbytes;
    void* pool;
    void (*barrier_)(void* pool, int32_t count, bool last);
    int64_t (*next_)(void* pool);  // 0, 1, 2, ...: each number once, from one counter for all workers

    // Wait for all workers of the step. last: none of them meets the others again in this run(), so the run() of a
    // worker that has not begun may be called, from beginning to end, by one that waits here.
    JF_INLINE void barrier(bool last = true) const {
        if (count > 1) barrier_(pool, count, last);
    }
    JF_INLINE int64_t next() const { return next_(pool); }
};

// Words for a refusal: a fixed buffer, so that nothing allocates and nothing is printed.
struct Words {
    char text[200];
    int32_t length;

    JF_INLINE Words& operator<<(const char* s) {
        while (*s && length < 199) text[length++] = *s++;
        text[length] = 0;
        return *this;
    }
    JF_INLINE Words& operator<<(int64_t n) {
        char digits[24];
        int at = 24;
        digits[--at] = 0;
        uint64_t rest = n < 0 ? 0 - uint64_t(n) : uint64_t(n);
        do digits[--at] = char('0' + rest % 10);
        while (rest /= 10);
        if (n < 0) digits[--at] = '-';
        return *this << (digits + at);
    }
    JF_INLINE Words& operator<<(int n) { return *this << int64_t(n); }
};

enum Reads : int32_t { DENSE, ROWS, ANY };  // how an operand may arrive: no gaps, last axis dense, any strides

constexpr uint64_t bit(DType d) { return uint64_t(1) << d; }
constexpr uint64_t FLOATS = bit(F32) | bit(F16) | bit(BF16);
constexpr uint64_t BLOCKS = (bit(DTYPES) - 1) & ~(bit(DType(PLAIN_DTYPES)) - 1);
constexpr uint64_t WEIGHTS = BLOCKS & ~(bit(Q8_1) | bit(Q8_K));

// One operand as the kernel takes it: its name in the op's declaration, how it may be strided, which dtypes.
struct Operand {
    const char* name;
    Reads reads;
    uint64_t dtypes;       // set of bit(DType)
    uint64_t layouts = 0;  // set of 1 << packing number, for packed constants
};

// A packing of a constant. Number n of a wheel is entry n - 1 of its table of packers.
struct Packer {
    struct Part {
        int64_t plain, packed;  // bytes
    };
    const char* name;                      // becomes Spec.layout
    bool (*takes)(const View& plain);      // dtype and extents fit
    int64_t (*nbytes)(const View& plain);  // of the packed form
    Part (*part)(const View& plain);       // the smallest that is packed by itself; a constant is such parts in a row
    // Any number of neighbouring parts, `nbytes` plain bytes: the last of a constant may have fewer. Gives the number
    // of the first block whose scale is no finite number, or -1.
    int64_t (*pack)(const View& plain, const char* from, int64_t nbytes, char* to);
    void (*unpack)(const View& plain, const char* from, char* to);  // the whole constant; null: one way
};

struct Kernel {
    const char* op;
    const Operand* operands;
    int32_t n_operands;
    const char* const* attributes;
    int32_t n_attributes;
    uint64_t results;                                  // dtypes of the result
    bool (*why_not)(const Step&, Words&);              // true: refused, the words say why; null: never
    void (*run)(const Step&, const Team&);             // results may be strided: honour out.stride
    int32_t (*workers)(const Step&, int32_t most);     // null: one below 64 Ki elements of result, else most
    int64_t (*scratch)(const Step&, int32_t workers);  // bytes of Team.scratch; null: none
    void (*bind)(Step&);                               // null; once per compiled step, addresses are final
};

// Spread n pieces over the workers as evenly as can be; a worker may get none.
struct Share {
    int64_t begin, end;
};
static JF_INLINE Share share(int64_t n, const Team& team) {
    return {n * team.index / team.count, n * (team.index + 1) / team.count};
}

static JF_INLINE void set_fault(const Step& s, FaultCode code, int32_t operand, int64_t value) {
    int32_t none = FAULT_NONE;
    if (__atomic_load_n(&s.fault->code, __ATOMIC_RELAXED) != FAULT_NONE) return;
    if (__atomic_compare_exchange_n(&s.fault->code, &none, int32_t(code), false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
        s.fault->operand = operand;
        s.fault->value = value;
    }
}

}  // namespace jackfield

// The one line that makes a kernel known: JF_KERNEL(softmax, ...fields of Kernel after `op`...). A constant, so that no
// code of a richer instruction set runs while the library loads. The file's stem is the op's name.
#define JF_KERNEL(name, operands_, attributes_, results_, why_not_, run_, workers_, scratch_, bind_) \
    namespace jackfield::JF_LEVEL {                                                                  \
    extern const Kernel name;                                                                        \
    constexpr Kernel name{#name,                                                                     \
                          operands_,                                                                 \
                          int32_t(sizeof(operands_) / sizeof(Operand)),                              \
                          attributes_,                                                               \
                          int32_t(sizeof(attributes_) / sizeof(const char*)) - 1,                    \
                          results_,                                                                  \
                          why_not_,                                                                  \
                          run_,                                                                      \
                          workers_,                                                                  \
                          scratch_,                                                                  \
                          bind_};                                                                    \
    }
// The same for an op without operands, which makes something of its attributes alone.
#define JF_SOURCE(name, attributes_, results_, run_)                                                       \
    namespace jackfield::JF_LEVEL {                                                                        \
    extern const Kernel name;                                                                              \
    constexpr Kernel                                                                                       \
        name{#name,    nullptr, 0,    attributes_, int32_t(sizeof(attributes_) / sizeof(const char*)) - 1, \
             results_, nullptr, run_, nullptr,     nullptr,                                                \
             nullptr};                                                                                     \
    }
// attributes_ is an array of names that ends with nullptr, so that an op without attributes has a list too.

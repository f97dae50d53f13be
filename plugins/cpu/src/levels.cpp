#include "levels.h"

#include "../kernels/choices.h"

#include <cstring>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace jackfield {

#if defined(__aarch64__) && defined(__linux__)
struct Feature {
    const char* name;
    unsigned long kind, bits;  // of the kernel's hardware capabilities
};
// Numbers of the kernel's interface (asm/hwcap.h), which old headers do not name.
constexpr Feature FEATURES[] = {{"dotprod", AT_HWCAP, 1ul << 20},
                                {"fp16", AT_HWCAP, 1ul << 9 | 1ul << 10},  // scalars and vectors
                                {"i8mm", AT_HWCAP2, 1ul << 13}};
static bool has(const Feature& f) { return (getauxval(f.kind) & f.bits) == f.bits; }
#elif defined(__aarch64__) && defined(__APPLE__)
struct Feature {
    const char *name, *key;
};
constexpr Feature FEATURES[] = {{"dotprod", "hw.optional.arm.FEAT_DotProd"},
                                {"fp16", "hw.optional.arm.FEAT_FP16"},
                                {"i8mm", "hw.optional.arm.FEAT_I8MM"}};
static bool has(const Feature& f) {
    int value = 0;
    size_t nbytes = sizeof value;
    return sysctlbyname(f.key, &value, &nbytes, nullptr, 0) == 0 && value == 1;
}
#endif

// __builtin_cpu_supports also asks the operating system (XCR0) whether the registers are saved.
static std::vector<std::string> lacking(const std::string& level) {
    std::vector<std::string> lacks;
#if defined(__x86_64__)
#define NEED(feature) \
    if (!__builtin_cpu_supports(feature)) lacks.push_back(feature)
    __builtin_cpu_init();
    if (level == "base") return lacks;
    NEED("avx2");
    NEED("fma");
    NEED("bmi2");
    NEED("f16c");
    if (level == "avx2") return lacks;
    NEED("avx512f");
    NEED("avx512bw");
    NEED("avx512vl");
    NEED("avx512dq");
    NEED("avx512cd");
    if (level == "avx512") return lacks;
    NEED("avx512vnni");
#undef NEED
#elif defined(__aarch64__)
    if (level == "base") return lacks;
    for (const Feature& f : FEATURES)
        if (!has(f) && (level == "i8mm" || std::strcmp(f.name, "i8mm"))) lacks.push_back(f.name);
#else
    (void)level;
#endif
    return lacks;
}

static bool has_bf16_dots() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx512bf16");
#else
    return false;
#endif
}

static Bf16Products best_bf16_products() { return has_bf16_dots() ? PAIRED_BY_INSTRUCTION : WIDENED; }

Bf16Products bf16_products = best_bf16_products();
bool iq_panels = true;

bool set_bf16_products(const std::string& how) {
    if (how == "widened")
        bf16_products = WIDENED;
    else if (how == "paired")
        bf16_products = has_bf16_dots() ? PAIRED_BY_INSTRUCTION : PAIRED;
    else if (how == "auto")
        bf16_products = best_bf16_products();
    else
        return false;
    return true;
}

void set_iq_panels(bool on) { iq_panels = on; }

const std::vector<Level>& levels() {
    static const std::vector<Level> all = [] {
        std::vector<Level> found;
        for (const LevelTable* t = level_tables; t->name; ++t)
            found.push_back({t->name, lacking(t->name), t->kernels, t->fused});
        return found;
    }();
    return all;
}

const Level* find_level(const std::string& name) {
    for (const Level& level : levels())
        if (level.name == name) return &level;
    return nullptr;
}

const Kernel* find_kernel(const Level& level, const std::string& op) {
    for (const Kernel* const* k = level.kernels; *k; ++k)
        if (op == (*k)->op) return *k;
    return nullptr;
}

const Fused* find_fused(const Level& level, const std::string& name) {
    for (const Fused* const* f = level.fused; *f; ++f)
        if (name == (*f)->name) return *f;
    return nullptr;
}

}  // namespace jackfield

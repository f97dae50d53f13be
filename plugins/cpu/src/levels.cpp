#include "levels.h"

#include "../kernels/bf16_products.h"

#include <cstring>

namespace jackfield {

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

const Kernel* base_kernel(const std::string& op) { return find_kernel(levels().back(), op); }

}  // namespace jackfield

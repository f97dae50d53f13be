// Instruction-set levels: the same kernels, compiled once for each; one is chosen when the module is first asked.
#pragma once
#include <fused.h>
#include <jackfield/kernel.h>

#include <string>
#include <vector>

namespace jackfield {

struct LevelTable {
    const char* name;
    const Kernel* const* kernels;  // ends with a null
    const Fused* const* fused;     // likewise
};
extern const LevelTable level_tables[];  // generated, best first, ends with a null name; the last one is "base"

struct Level {
    std::string name;
    std::vector<std::string> lacks;  // features this CPU (or its operating system) does not offer
    const Kernel* const* kernels;
    const Fused* const* fused;
    bool usable() const { return lacks.empty(); }
};

// "widened", "paired" or "auto", which is paired where the CPU has the instruction. False for another word.
bool set_bf16_products(const std::string& how);
void set_iq_panels(bool on);

const std::vector<Level>& levels();                              // best first
const Level* find_level(const std::string& name);                // or null
const Kernel* find_kernel(const Level&, const std::string& op);  // or null
const Fused* find_fused(const Level&, const std::string& name);  // or null

}  // namespace jackfield

// How weights of some dtypes are multiplied: choices for the process, made before its first program.
#pragma once
#include <stdint.h>

namespace jackfield {

// How a bf16 weight meets an x that may be rounded: as f32, or x is rounded to bf16 and two products are added at once,
// by an instruction or in words of the level. levels.cpp knows what the CPU has.
enum Bf16Products : int32_t { WIDENED, PAIRED, PAIRED_BY_INSTRUCTION };
extern Bf16Products bf16_products;

// Whether weights of codebooks (iq1, iq2, iq3) are decoded once for all panels of x where there are several; else block
// by block for each.
extern bool iq_panels;

}  // namespace jackfield

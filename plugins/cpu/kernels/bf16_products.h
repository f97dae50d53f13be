// Which of the two ways bf16 weights are multiplied; one choice for the process.
#pragma once
#include <stdint.h>

namespace jackfield {

// How a bf16 weight meets an x that may be rounded: as f32, or x is rounded to bf16 and two products are added at once,
// by an instruction or in words of the level. levels.cpp knows what the CPU has.
enum Bf16Products : int32_t { WIDENED, PAIRED, PAIRED_BY_INSTRUCTION };
extern Bf16Products bf16_products;

}  // namespace jackfield

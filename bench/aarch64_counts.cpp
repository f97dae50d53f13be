// One tile of the packed block products over some units (32 columns), for aarch64_counts.py to count instructions.
// Usage: counts TYPE WAY ROWS UNITS; WAY: direct, staged (a tile of decoded units) or stage (decoding them).
// The exit status is 1 where the type has no such way. What the bytes are does not change which instructions run.
#include "tiles_blocks.h"

#include <stdlib.h>
#include <string.h>

using namespace jackfield;

constexpr int64_t MOST_UNITS = 64;
static uint8_t scales[1 << 20], quants[1 << 20];
static char panel[1 << 20];
static float out[1 << 18];

template <int32_t D>
static bool one_tile(int rows, int64_t blocks) {
    if (rows == 1) tile<D, 1>(scales, quants, panel, blocks, out);
    if (rows == 4) tile<D, 4>(scales, quants, panel, blocks, out);
    return rows == 1 || rows == 4;
}

template <int32_t D>
static bool made(const char* way, int rows, int64_t units) {
    using T = Format<D>;
    constexpr Activation a = T::activation;
    if constexpr (T::WAY == DIRECT)
        if (!strcmp(way, "direct")) return one_tile<D>(rows, units / T::UNITS);
    if constexpr (IS_STAGED<D>) {
        if (!strcmp(way, "staged")) return one_tile<staged_form(a.halves, a.affine)>(rows, units);
        if (!strcmp(way, "stage")) return stage<D>(scales, quants, units / T::UNITS, (uint8_t*)out, quants), true;
    }
    return false;
}

int main(int count, char** word) {
    if (count != 5) return 2;
    const int rows = atoi(word[3]);
    const int64_t units = atoi(word[4]);
    if (units < 0 || units > MOST_UNITS || units % 8) return 2;
#define JF_TYPE(number, name, ...) \
    if (!strcmp(word[1], name)) return !made<number>(word[2], rows, units);
    JF_WEIGHT_DTYPES(JF_TYPE)
#undef JF_TYPE
    return 2;
}

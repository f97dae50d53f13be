// The rows of a codebook and the nearest of them to a few elements: least sum of (b g + a) g over its values g.
// Distances are those of the core: a column takes few values, so half a row takes at most 81; their sums are made once
// for all rows, and the distance of a row is the sum of its halves.
#pragma once
#include <float.h>

#include "../kernels/blocks.h"
#include "jackfield/codebooks.h"

namespace jackfield {
namespace {

struct Nearest {
    int row;
    float distance;
};

// Rows in runs that share their second half: the tables are sorted by it.
class Rows {
public:
    template <class Word, int COUNT>
    explicit Rows(const Word (&words)[COUNT]) : count(COUNT), width(sizeof(Word)) {
        bool used[256] = {};  // values are -1 .. 62
        for (const Word word : words)
            for (int j = 0; j < width; j++) used[uint8_t(value(word, j) + 1)] = true;
        uint8_t digit[256];
        for (int v = 0; v < 256; v++) {
            digit[v] = uint8_t(levels);
            if (used[v] && levels < 8) level[levels++] = float(v - 1);
        }
        const auto half = [&](Word word, int from) {
            int number = 0;
            for (int j = from; j < from + width / 2; j++) number = number * levels + digit[value(word, j) + 1];
            return uint8_t(number);
        };
        for (int r = 0; r < count; r++) {
            const uint8_t number = half(words[r], width / 2);
            if (!runs || number != second[runs - 1]) starts[runs] = uint16_t(r), second[runs++] = number;
            first[r] = half(words[r], 0);
            for (int j = 0; j < width; j++) elements[r * width + j] = int8_t(value(words[r], j));
        }
        starts[runs] = uint16_t(count);
    }

    // The values of a row, all moved by delta.
    void read(int row, float delta, float* out) const {
        for (int j = 0; j < width; j++) out[j] = float(elements[row * width + j]) + delta;
    }

    // Nearest of the rows moved by delta. Of equals the first: first halves are compared in each run, then the runs.
    Nearest nearest(const float* a, const float* b, float delta) const {
        return levels == 3 ? search<3, 4>(a, b, delta) : search<8, 2>(a, b, delta);
    }

    const int count, width;

private:
    template <class Word>
    static int value(Word word, int j) {
        return int8_t(word >> 8 * j);
    }

    // For all values of half a row; the first column counts most. Neighbours are added first.
    template <int LEVELS, int HALF>
    static void half_sums(const float* a, const float* b, const float* values, float* sums) {
        float cost[HALF][LEVELS];
        for (int j = 0; j < HALF; j++)
            for (int v = 0; v < LEVELS; v++) cost[j][v] = (b[j] * values[v] + a[j]) * values[v];
        if constexpr (HALF == 2) {
            add_all<LEVELS>(cost[0], cost[1], sums);
        } else {
            constexpr int PAIRS = LEVELS * LEVELS;
            float low[PAIRS], high[PAIRS];
            add_all<LEVELS>(cost[0], cost[1], low);
            add_all<LEVELS>(cost[2], cost[3], high);
            add_all<PAIRS>(low, high, sums);
        }
    }
    template <int N>
    static void add_all(const float* x, const float* y, float* sums) {
        for (int i = 0; i < N; i++)
            for (int k = 0; k < N; k++) sums[i * N + k] = x[i] + y[k];
    }

    template <int LEVELS, int HALF>
    Nearest search(const float* a, const float* b, float delta) const {
        constexpr int SUMS = HALF == 2 ? LEVELS * LEVELS : LEVELS * LEVELS * LEVELS * LEVELS;
        float values[LEVELS], lower[SUMS], upper[SUMS];
        for (int v = 0; v < LEVELS; v++) values[v] = level[v] + delta;
        half_sums<LEVELS, HALF>(a, b, values, lower);
        half_sums<LEVELS, HALF>(a + HALF, b + HALF, values, upper);
        float least = lower[0];
        for (int i = 1; i < SUMS; i++) least = lower[i] < least ? lower[i] : least;
        // Rounding is monotone, so least + upper is no more than any distance of a run: most runs need no look.
        int promising = 0;
        for (int run = 1; run < runs; run++)
            if (upper[second[run]] < upper[second[promising]]) promising = run;
        const float limit = best_of(promising, lower).distance + upper[second[promising]];
        Nearest best{0, FLT_MAX};  // distances are far below: factors have a limit
        for (int run = 0; run < runs; run++) {
            const float bound = least + upper[second[run]];
            if (bound > limit || bound >= best.distance) continue;
            Nearest found = best_of(run, lower);
            found.distance += upper[second[run]];
            if (found.distance < best.distance) best = found;
        }
        return best;
    }

    // The row of a run whose first half costs least, and the sum of that.
    Nearest best_of(int run, const float* lower) const {
        Nearest best{starts[run], lower[first[starts[run]]]};
        for (int r = starts[run] + 1; r < starts[run + 1]; r++)
            if (lower[first[r]] < best.distance) best = {r, lower[first[r]]};
        return best;
    }

    int levels = 0, runs = 0;
    float level[8];             // values of an element, ascending: three or eight
    uint8_t first[2048];        // number of a row's first half
    uint8_t second[81];         // number of a run's second half
    uint16_t starts[82];        // the first row of each run, and at last the number of rows
    int8_t elements[2048 * 8];  // of the rows
};

}  // namespace
}  // namespace jackfield

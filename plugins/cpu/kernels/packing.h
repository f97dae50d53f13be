// The packed layout of constants, `rows16`: sixteen rows of a weight interleaved, one lane of a vector each.
//
// A matrix (N, K) becomes ceil(N/16) groups of 16 rows, each filled up to a multiple of 64 bytes; rows beyond N are
// zero blocks. A group is, block by block,
//   scales   d f16[16]; then m or dmin f16[16], coded scales of some types, byte by byte
//   quants   all other bytes, four bytes of row 0, four of row 1, ...
// so that 64 bytes of plain quants hold four columns of sixteen rows, what an instruction with four products a lane
// eats, and a product reads one stream, line by line: the hardware sees it coming and brings it faster than prefetches
// in software did. All bytes of the plain blocks are there once; some are turned round so that lanes need no shuffle
// (see `turn` in packing/rows16.cpp).
// Of q4_K and q6_K both are there by units of 32 columns: coded scales, then the quants they belong to.
// A float matrix keeps its elements: column 0 of sixteen rows, column 1, ...; of bf16 a pair of columns lies together,
// (k, k + 1) of row 0, of row 1, ..., as instructions with two products a lane want it. A last column without a partner
// has zeros.
#pragma once
#include "blocks.h"

namespace jackfield {
namespace {

constexpr int64_t GROUP = 16;  // rows that lie interleaved
constexpr int32_t ROWS16 = 1;  // its number among the packings of this wheel

constexpr int MOST_FIELDS = 17;

// A field of a block: `length` bytes at `plain` go, `chunk` at a time, to `to` in the scales or quants.
struct Field {
    int plain, length, chunk;
    bool quant;
    int to;
};
struct Fields {
    int count, scale_nbytes, quant_nbytes;  // bytes of a block of sixteen rows
    Field field[MOST_FIELDS];

    constexpr int nbytes() const { return scale_nbytes + quant_nbytes; }
};

// f16 of a row side by side; bytes, each side by side; words of four bytes, which go to the quants.
constexpr Field half_at(int plain) { return {plain, 2, 2, false, 0}; }
constexpr Field bytes_in(int plain, int length) { return {plain, length, 1, false, 0}; }
constexpr Field words_in(int plain, int length) { return {plain, length, 4, true, 0}; }
constexpr Field codes_in(int plain, int length) { return {plain, length, 1, true, 0}; }  // bytes that quants begin with

// The fields follow each other in their part.
template <int N>
constexpr Fields in_order(const Field (&list)[N]) {
    Fields fields{N, 0, 0, {}};
    for (int f = 0; f < N; f++) {
        int& end = list[f].quant ? fields.quant_nbytes : fields.scale_nbytes;
        fields.field[f] = list[f];
        fields.field[f].to = end;
        end += int(GROUP) * list[f].length;
    }
    return fields;
}

// A product that read coded scales at the head of a block while quants went on elsewhere was up to a fifth slower: what
// lies on the way of the stream comes with it. Two units of q4_K are the nibbles of the same bytes.
constexpr Fields fours() {
    Field list[14] = {half_at(0), half_at(2)};
    for (int pair = 0; pair < 4; pair++) {
        list[2 + 3 * pair] = codes_in(4 + 2 * pair, 2);
        list[3 + 3 * pair] = codes_in(12 + pair, 1);
        list[4 + 3 * pair] = words_in(16 + 32 * pair, 32);
    }
    return in_order(list);
}
constexpr Fields sixes() {
    Field list[17] = {half_at(208)};
    for (int u = 0; u < 8; u++) {
        list[1 + 2 * u] = codes_in(192 + 2 * u, 2);
        list[2 + 2 * u] = words_in(24 * u, 24);
    }
    return in_order(list);
}

constexpr Fields fields_of(int32_t dtype) {
    switch (dtype) {
        case Q4_0:
        case IQ4_NL:
        case Q1_0:
        case Q2_0:
            return in_order({half_at(0), words_in(2, 16)});
        case Q4_1:
            return in_order({half_at(0), half_at(2), words_in(4, 16)});
        case Q5_0:
            return in_order({half_at(0), words_in(2, 20)});
        case Q5_1:
            return in_order({half_at(0), half_at(2), words_in(4, 20)});
        case Q8_0:
            return in_order({half_at(0), words_in(2, 32)});
        case Q2_K:
            return in_order({half_at(80), half_at(82), words_in(0, 80)});
        case Q3_K:
            return in_order({half_at(108), words_in(0, 108)});
        case Q4_K:
            return fours();
        case Q5_K:
            return in_order({half_at(0), half_at(2), bytes_in(4, 12), words_in(16, 160)});
        case Q6_K:
            return sixes();
        case TQ1_0:
            return in_order({half_at(52), words_in(0, 52)});
        case TQ2_0:
            return in_order({half_at(64), words_in(0, 64)});
        case IQ1_S:
            return in_order({half_at(0), words_in(2, 48)});
        case IQ1_M:
            return in_order({words_in(0, 56)});
        case IQ2_XXS:
            return in_order({half_at(0), words_in(2, 64)});
        case IQ2_XS:
            return in_order({half_at(0), words_in(2, 72)});
        case IQ2_S:
            return in_order({half_at(0), words_in(2, 80)});
        case IQ3_XXS:
            return in_order({half_at(0), words_in(2, 96)});
        case IQ3_S:
            return in_order({half_at(0), words_in(2, 108)});
        case IQ4_XS:
            return in_order({half_at(0), bytes_in(2, 6), words_in(8, 128)});
        case MXFP4:
            return in_order({bytes_in(0, 1), words_in(1, 16)});
        case NVFP4:
            return in_order({words_in(0, 36)});
        default:
            return {};
    }
}

constexpr int64_t up_to(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
constexpr int64_t groups_of(int64_t rows) { return (rows + GROUP - 1) / GROUP; }

// Columns of a float type that lie together, and where in a group row r of column k is.
constexpr int64_t columns_together(int32_t dtype) { return dtype == BF16 ? 2 : 1; }
constexpr int64_t element_at(int32_t dtype, int64_t r, int64_t k) {
    const int64_t columns = columns_together(dtype);
    return ((k / columns * GROUP + r) * columns + k % columns) * block_nbytes(dtype);
}

// Bytes of a group, of a matrix.
constexpr int64_t group_nbytes(int32_t dtype, int64_t length) {
    if (!is_block(dtype)) return up_to(up_to(length, columns_together(dtype)) * GROUP * block_nbytes(dtype), 64);
    return up_to(length / block_length(dtype) * fields_of(dtype).nbytes(), 64);
}
constexpr int64_t packed_nbytes(int32_t dtype, int64_t rows, int64_t length) {
    return groups_of(rows) * group_nbytes(dtype, length);
}

}  // namespace

// One group from up to 16 plain rows, `stride` bytes apart; missing rows become zeros. True: a block has a scale that
// is no finite number; it is packed all the same.
bool pack_group(int32_t dtype, const char* from, int64_t stride, int64_t rows, int64_t length, char* to);
// Whether a plain block of a weight dtype has such a scale.
bool is_bad_block(int32_t dtype, const uint8_t* block);
// Plain block b of row r of a group of a weight dtype.
void unpack_block(int32_t dtype, const char* group, int64_t r, int64_t b, uint8_t* block);
// Row r of a group back to plain bytes.
void unpack_row(int32_t dtype, const char* group, int64_t length, int64_t r, char* to);

}  // namespace jackfield

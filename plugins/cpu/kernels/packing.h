// The packed layout of constants, `rows16`: sixteen rows of a weight interleaved, one lane of a vector each.
//
// A matrix (N, K) becomes ceil(N/16) groups of 16 rows; rows beyond N are zero blocks. A group is
//   scales   for each block: d f16[16]; then m or dmin f16[16], coded scales (K types)
//   (up to a multiple of 64 bytes)
//   quants   for each block: the quant bytes, four bytes of row 0, four of row 1, ...
// so that 64 bytes hold four columns of sixteen rows, what an instruction with four products a lane eats. All bytes of
// the plain blocks are there once; three fields are turned round so that lanes need no shuffle (see `to_lanes`).
// A float matrix keeps its elements: column 0 of sixteen rows, column 1, ...
#pragma once
#include "blocks.h"

namespace jackfield {
namespace {

constexpr int64_t GROUP = 16;  // rows that lie interleaved
constexpr int32_t ROWS16 = 1;  // its number among the packings of this wheel

// A field of a block: `length` bytes at `plain` go, `chunk` at a time, to `to` in the scales or quants of the group.
struct Field {
    int plain, length, chunk, to;
    bool quant;
};
struct Fields {
    int count, scale_nbytes, quant_nbytes;  // bytes a block takes in the two parts of its group
    Field field[5];
};

constexpr Fields fields_of(int32_t dtype) {
    switch (dtype) {
        case Q4_0:
            return {2, 32, 256, {{0, 2, 2, 0, false}, {2, 16, 4, 0, true}}};
        case Q4_1:
            return {3, 64, 256, {{0, 2, 2, 0, false}, {2, 2, 2, 32, false}, {4, 16, 4, 0, true}}};
        case Q5_0:
            return {3, 32, 320, {{0, 2, 2, 0, false}, {2, 4, 4, 0, true}, {6, 16, 4, 64, true}}};
        case Q5_1:
            return {4, 64, 320, {{0, 2, 2, 0, false}, {2, 2, 2, 32, false}, {4, 4, 4, 0, true}, {8, 16, 4, 64, true}}};
        case Q8_0:
            return {2, 32, 512, {{0, 2, 2, 0, false}, {2, 32, 4, 0, true}}};
        case Q4_K:
            return {4,
                    256,
                    2048,
                    {{0, 2, 2, 0, false}, {2, 2, 2, 32, false}, {4, 12, 1, 64, false}, {16, 128, 4, 0, true}}};
        case Q5_K:
            return {5,
                    256,
                    2560,
                    {{0, 2, 2, 0, false},
                     {2, 2, 2, 32, false},
                     {4, 12, 1, 64, false},
                     {16, 32, 4, 0, true},
                     {48, 128, 4, 512, true}}};
        case Q6_K:
            return {4,
                    288,
                    3072,
                    {{208, 2, 2, 0, false}, {192, 16, 1, 32, false}, {0, 128, 4, 0, true}, {128, 64, 4, 2048, true}}};
        default:
            return {};
    }
}

constexpr int64_t up_to(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
constexpr int64_t groups_of(int64_t rows) { return (rows + GROUP - 1) / GROUP; }

// Where the quants of a group start, bytes of a group, bytes of a matrix.
constexpr int64_t quants_at(int32_t dtype, int64_t length) {
    return up_to(length / block_length(dtype) * fields_of(dtype).scale_nbytes, 64);
}
constexpr int64_t group_nbytes(int32_t dtype, int64_t length) {
    if (!is_block(dtype)) return up_to(length * GROUP * block_nbytes(dtype), 64);
    return quants_at(dtype, length) + length / block_length(dtype) * fields_of(dtype).quant_nbytes;
}
constexpr int64_t packed_nbytes(int32_t dtype, int64_t rows, int64_t length) {
    return groups_of(rows) * group_nbytes(dtype, length);
}

// ---- the fields that are turned round, in a copy of the plain block -------------------------------------------------

// Fifth bits: bit j of byte b is element 4j + b (plain: bit e of the word is element e). A 4 x 8 bit matrix transposed.
inline void turn_fifth(uint8_t* p, bool forth) {
    uint32_t from, to = 0;
    memcpy(&from, p, 4);
    for (int e = 0; e < 32; e++) {
        const int plain = e, turned = 8 * (e % 4) + e / 4;
        to |= (from >> (forth ? plain : turned) & 1) << (forth ? turned : plain);
    }
    memcpy(p, &to, 4);
}

// Scales S and minima M of 6 bits: bytes 0..7 are S & 15 | (M & 15) << 4 of sub-blocks 0..7; byte 8 + s, s < 4, is
// S[s] >> 4 | (M[s] >> 4) << 2 | (S[s+4] >> 4) << 4 | (M[s+4] >> 4) << 6.
inline void turn_scales(uint8_t* p, bool forth) {
    uint8_t t[12] = {};
    for (int s = 0; s < 8; s++) {
        int scale, minimum;
        const int up = 4 * (s / 4), least = s % 4;
        if (forth) {
            scale_and_minimum(p, s, scale, minimum);
            t[s] = uint8_t((scale & 15) | (minimum & 15) << 4);
            t[8 + least] = uint8_t(t[8 + least] | (scale >> 4) << up | (minimum >> 4) << (up + 2));
        } else {
            scale = (p[s] & 15) | (p[8 + least] >> up & 3) << 4;
            minimum = p[s] >> 4 | (p[8 + least] >> (up + 2) & 3) << 4;
            if (s < 4) {
                t[s] = uint8_t(t[s] | scale);
                t[4 + s] = uint8_t(t[4 + s] | minimum);
            } else {
                t[4 + s] = uint8_t((scale & 15) | (minimum & 15) << 4);
                t[s - 4] = uint8_t(t[s - 4] | scale >> 4 << 6);
                t[s] = uint8_t(t[s] | minimum >> 4 << 6);
            }
        }
    }
    memcpy(p, t, 12);
}

template <int32_t D>
JF_INLINE void turn(uint8_t* block, bool forth) {
    if constexpr (D == Q5_0) turn_fifth(block + 2, forth);
    if constexpr (D == Q5_1) turn_fifth(block + 4, forth);
    if constexpr (D == Q4_K || D == Q5_K) turn_scales(block + 4, forth);
    if constexpr (D == Q8_0)
        for (int i = 0; i < 32; i++)
            block[2 + i] ^= 0x80;  // 0..255 with 128 for zero: the unsigned side of the product
}

// ---- blocks ---------------------------------------------------------------------------------------------------------

// Row r's part of a block: from a (turned) plain block into the group, or back.
template <int32_t D, bool FORTH>
JF_INLINE void interleave(uint8_t* block, uint8_t* scales, uint8_t* quants, int64_t r) {
    constexpr Fields fields = fields_of(D);
#pragma GCC unroll 5
    for (int f = 0; f < fields.count; f++) {
        const Field field = fields.field[f];
        uint8_t* lane = (field.quant ? quants : scales) + field.to + r * field.chunk;
        uint8_t* plain = block + field.plain;
        for (int p = 0; p < field.length; p += field.chunk, plain += field.chunk, lane += GROUP * field.chunk) {
            uint8_t *to = FORTH ? lane : plain, *from = FORTH ? plain : lane;
            if (field.chunk == 4)
                memcpy(to, from, 4);
            else if (field.chunk == 2)
                memcpy(to, from, 2);
            else
                *to = *from;
        }
    }
}

template <int32_t D>
inline void pack_blocks(const char* from, int64_t stride, int64_t rows, int64_t length, char* to) {
    constexpr int64_t size = block_nbytes(D);
    constexpr Fields fields = fields_of(D);
    uint8_t *scales = (uint8_t*)to, *quants = scales + quants_at(D, length);
    const int64_t blocks = length / block_length(D);
    memset(scales + blocks * fields.scale_nbytes, 0, size_t(quants_at(D, length) - blocks * fields.scale_nbytes));
    for (int64_t b = 0; b < blocks; b++) {
        for (int64_t r = 0; r < GROUP; r++) {
            uint8_t block[size] = {};
            if (r < rows) memcpy(block, from + r * stride + b * size, size);
            turn<D>(block, true);
            interleave<D, true>(block, scales + b * fields.scale_nbytes, quants + b * fields.quant_nbytes, r);
        }
    }
}

template <int32_t D>
inline void unpack_block(const char* group, int64_t length, int64_t r, int64_t b, uint8_t* block) {
    constexpr Fields fields = fields_of(D);
    uint8_t *scales = (uint8_t*)group, *quants = scales + quants_at(D, length);
    interleave<D, false>(block, scales + b * fields.scale_nbytes, quants + b * fields.quant_nbytes, r);
    turn<D>(block, false);
}

// Plain block b of row r of a group, of `length` columns.
inline void unpack_block(int32_t dtype, const char* group, int64_t length, int64_t r, int64_t b, uint8_t* block) {
    switch (dtype) {
        case Q4_0:
            return unpack_block<Q4_0>(group, length, r, b, block);
        case Q4_1:
            return unpack_block<Q4_1>(group, length, r, b, block);
        case Q5_0:
            return unpack_block<Q5_0>(group, length, r, b, block);
        case Q5_1:
            return unpack_block<Q5_1>(group, length, r, b, block);
        case Q8_0:
            return unpack_block<Q8_0>(group, length, r, b, block);
        case Q4_K:
            return unpack_block<Q4_K>(group, length, r, b, block);
        case Q5_K:
            return unpack_block<Q5_K>(group, length, r, b, block);
        case Q6_K:
            return unpack_block<Q6_K>(group, length, r, b, block);
        default:
            return;
    }
}

// One group from up to 16 plain rows, `stride` bytes apart; missing rows become zeros.
inline void pack_group(int32_t dtype, const char* from, int64_t stride, int64_t rows, int64_t length, char* to) {
    switch (dtype) {
        case Q4_0:
            return pack_blocks<Q4_0>(from, stride, rows, length, to);
        case Q4_1:
            return pack_blocks<Q4_1>(from, stride, rows, length, to);
        case Q5_0:
            return pack_blocks<Q5_0>(from, stride, rows, length, to);
        case Q5_1:
            return pack_blocks<Q5_1>(from, stride, rows, length, to);
        case Q8_0:
            return pack_blocks<Q8_0>(from, stride, rows, length, to);
        case Q4_K:
            return pack_blocks<Q4_K>(from, stride, rows, length, to);
        case Q5_K:
            return pack_blocks<Q5_K>(from, stride, rows, length, to);
        case Q6_K:
            return pack_blocks<Q6_K>(from, stride, rows, length, to);
        default:
            break;
    }
    const int64_t size = block_nbytes(dtype);
    memset(to, 0, size_t(group_nbytes(dtype, length)));
    for (int64_t k = 0; k < length; k++)
        for (int64_t r = 0; r < rows; r++)
            memcpy(to + (k * GROUP + r) * size, from + r * stride + k * size, size_t(size));
}

// Row r of a group back to plain bytes.
inline void unpack_row(int32_t dtype, const char* group, int64_t length, int64_t r, char* to) {
    const int64_t size = block_nbytes(dtype);
    for (int64_t b = 0; b < length / block_length(dtype); b++) {
        if (is_block(dtype))
            unpack_block(dtype, group, length, r, b, (uint8_t*)to + b * size);
        else
            memcpy(to + b * size, group + (b * GROUP + r) * size, size_t(size));
    }
}

}  // namespace
}  // namespace jackfield

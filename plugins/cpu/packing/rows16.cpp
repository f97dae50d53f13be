// The layout rows16: bytes of plain rows to their places and back. See kernels/packing.h.
#include "../kernels/packing.h"

namespace jackfield {
namespace {

// ---- the fields that are turned round, in a copy of the plain block -------------------------------------------------

// One bit for each of 32 elements: bit j of byte b is element 4j + b (plain: bit e of the word is element e). A 4 x 8
// bit matrix transposed.
inline void turn_bits(uint8_t* p, bool forth) {
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

// Two bits for each of 16 elements: byte b holds elements b, 4 + b, 8 + b, 12 + b (plain: 4b, 4b + 1, ...). A 4 x 4
// matrix transposed, so there and back are one.
inline void turn_pairs(uint8_t* p) {
    uint8_t t[4] = {};
    for (int j = 0; j < 4; j++)
        for (int b = 0; b < 4; b++) t[b] = uint8_t(t[b] | (p[j] >> 2 * b & 3) << 2 * j);
    memcpy(p, t, 4);
}

template <int32_t D>
JF_INLINE void turn(uint8_t* block, bool forth) {
    if constexpr (D == Q5_0) turn_bits(block + 2, forth);
    if constexpr (D == Q5_1) turn_bits(block + 4, forth);
    if constexpr (D == Q4_K || D == Q5_K) turn_scales(block + 4, forth);
    if constexpr (D == Q8_0)
        for (int i = 0; i < 32; i++)
            block[2 + i] ^= 0x80;  // 0..255 with 128 for zero: the unsigned side of the product
    if constexpr (D == Q1_0)
        for (int i = 0; i < 16; i += 4) turn_bits(block + 2 + i, forth);
    if constexpr (D == Q2_0)
        for (int i = 0; i < 16; i += 4) turn_pairs(block + 2 + i);
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

}  // namespace

void unpack_block(int32_t dtype, const char* group, int64_t length, int64_t r, int64_t b, uint8_t* block) {
    with_weight(dtype, [&](auto type) { unpack_block<type.dtype>(group, length, r, b, block); });
}

void pack_group(int32_t dtype, const char* from, int64_t stride, int64_t rows, int64_t length, char* to) {
    if (is_block(dtype))
        return with_weight(dtype, [&](auto type) { pack_blocks<type.dtype>(from, stride, rows, length, to); });
    const int64_t size = block_nbytes(dtype);
    memset(to, 0, size_t(group_nbytes(dtype, length)));
    for (int64_t k = 0; k < length; k++)
        for (int64_t r = 0; r < rows; r++)
            memcpy(to + (k * GROUP + r) * size, from + r * stride + k * size, size_t(size));
}

void unpack_row(int32_t dtype, const char* group, int64_t length, int64_t r, char* to) {
    const int64_t size = block_nbytes(dtype);
    for (int64_t b = 0; b < length / block_length(dtype); b++) {
        if (is_block(dtype))
            unpack_block(dtype, group, length, r, b, (uint8_t*)to + b * size);
        else
            memcpy(to + b * size, group + (b * GROUP + r) * size, size_t(size));
    }
}

}  // namespace jackfield

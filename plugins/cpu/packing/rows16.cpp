// The layout rows16: bytes of plain rows to their places and back. See kernels/packing.h.
#include "lanes.h"

namespace jackfield {
namespace {

// ---- scales that are no finite numbers: the same blocks as the core finds -------------------------------------------

constexpr uint16_t EXPONENT = 0x7c00;   // of an f16; all bits set: inf or NaN
constexpr uint8_t NO_E8M0 = 0xff;       // the scale of mxfp4 kept for NaN
constexpr uint8_t LARGEST_E4M3 = 0x7e;  // the largest scale of nvfp4; above it are NaN and negative ones

template <int32_t D>
JF_INLINE bool is_bad(const uint8_t* block) {
    if constexpr (D == MXFP4) return block[0] == NO_E8M0;
    if constexpr (D == NVFP4) {
        for (int i = 0; i < 4; i++)
            if (block[i] > LARGEST_E4M3) return true;
    } else if constexpr (D == IQ1_M) {  // the upper nibbles of four words at byte 48, lowest first, are an f16
        return (block[55] & 0x70) == 0x70 && (block[53] & 0xc0) == 0xc0;
    } else {
        constexpr Fields fields = fields_of(D);
        for (int f = 0; f < fields.count; f++)
            if (fields.field[f].chunk == 2 && (block[fields.field[f].plain + 1] & EXPONENT >> 8) == EXPONENT >> 8)
                return true;
    }
    return false;
}

// The same of a block of each of sixteen rows: not zero where it is bad. Scales that are lanes by now are looked at
// there.
template <int32_t D>
JF_INLINE Halves bad_lanes(Rows blocks, const uint8_t* scales, const uint8_t* quants) {
    constexpr Fields fields = fields_of(D);
    Halves bad{};
    if constexpr (D == MXFP4) return (Halves)(load<Bytes>(scales) == NO_E8M0);
    if constexpr (D == NVFP4)  // four scales are the first word of a block
        for (int64_t i = 0; i < 4 * GROUP; i += 16) bad |= (Halves)(load<Bytes>(quants + i) > LARGEST_E4M3);
    if constexpr (D == IQ1_M)
        for (int64_t r = 0; r < GROUP; r++) bad[0] |= is_bad<D>(blocks[r]);
#pragma GCC unroll 17
    for (int f = 0; f < fields.count; f++)
        if (fields.field[f].chunk == 2)
            for (int64_t i = 0; i < 2 * GROUP; i += 16)
                bad |= (Halves)((load<Halves>(scales + fields.field[f].to + i) & EXPONENT) == EXPONENT);
    return bad;
}

JF_INLINE bool any(Halves lanes) {
    uint64_t parts[2];
    memcpy(parts, &lanes, sizeof parts);
    return parts[0] | parts[1];
}

// ---- there: sixteen rows at once ------------------------------------------------------------------------------------

// A block of each row to its place among the scales and the quants.
template <int32_t D>
JF_INLINE void lay(Rows blocks, uint8_t* scales, uint8_t* quants) {
    constexpr Fields fields = fields_of(D);
    constexpr uint8_t flip = D == Q8_0 ? 0x80 : 0;  // 0..255 with 128 for zero: the unsigned side of the product
#pragma GCC unroll 17
    for (int f = 0; f < fields.count; f++) {
        const Field field = fields.field[f];
        uint8_t* const to = (field.quant ? quants : scales) + field.to;
        if (field.chunk == 4)
            across<uint32_t>(blocks, field.plain, field.length, to, flip);
        else if (field.chunk == 2)
            across<uint16_t>(blocks, field.plain, field.length, to);
        else
            across<uint8_t>(blocks, field.plain, field.length, to);
    }
    if constexpr (D == Q5_0 || D == Q5_1) each_word(quants, 1, bits_turned);
    if constexpr (D == Q1_0) each_word(quants, 4, bits_turned);
    if constexpr (D == Q2_0) each_word(quants, 4, pairs_turned);
    if constexpr (D == Q5_K) turn_scales([=](int i) { return scales + fields.field[2].to + GROUP * i; });
    if constexpr (D == Q4_K)
        turn_scales([=](int i) {
            return quants + (i < 8 ? fields.field[2 + i / 2 * 3].to + i % 2 * GROUP : fields.field[3 + (i - 8) * 3].to);
        });
    if constexpr (D == Q6_K) turn_sixes(quants);
}

// What is read a group later and written some blocks later is fetched ahead: the sixteen short rows of a group are no
// stream that a processor would see coming. Where there is nothing any more, nothing happens.
constexpr int64_t WRITTEN_AHEAD = 8;  // blocks
template <bool WRITTEN>
JF_INLINE void fetch(const void* from, int64_t nbytes) {
    for (int64_t i = 0; i < nbytes; i += 64) __builtin_prefetch((const char*)from + i, WRITTEN, 3);
}

template <int32_t D>
inline bool pack_blocks(const char* from, int64_t stride, int64_t rows, int64_t length, char* to) {
    constexpr int64_t size = block_nbytes(D);
    constexpr Fields fields = fields_of(D);
    static const uint8_t nothing[size] = {};  // what stands where there is no row
    const int64_t blocks = length / block_length(D), filled = blocks * fields.nbytes();
    memset(to + filled, 0, size_t(group_nbytes(D, length) - filled));
    const uint8_t* row[GROUP];
    for (int64_t r = 0; r < GROUP; r++) row[r] = r < rows ? (const uint8_t*)from + r * stride : nothing;
    Halves bad{};
    for (int64_t b = 0; b < blocks; b++) {
        uint8_t *scales = (uint8_t*)to + b * fields.nbytes(), *quants = scales + fields.scale_nbytes;
        lay<D>(row, scales, quants);
        bad |= bad_lanes<D>(row, scales, quants);
        fetch<false>(from + GROUP * (stride + b * size), GROUP * size);
        fetch<true>(scales + WRITTEN_AHEAD * fields.nbytes(), fields.nbytes());
        for (int64_t r = 0; r < rows; r++) row[r] += size;
    }
    return any(bad);
}

template <class T>
inline void pack_floats(const char* from, int64_t stride, int64_t length, char* to) {
    const uint8_t* row[GROUP];
    for (int64_t r = 0; r < GROUP; r++) row[r] = (const uint8_t*)from + r * stride;
    across<T>(row, 0, length * int64_t(sizeof(T)), (uint8_t*)to);
}

// ---- back: one block of one row -------------------------------------------------------------------------------------

// See bits_turned, pairs_turned, turn_scales and turn_sixes in lanes.h.
inline void turn_bits_back(uint8_t* p) {
    uint32_t from, to = 0;
    memcpy(&from, p, 4);
    for (int e = 0; e < 32; e++) to |= (from >> (8 * (e % 4) + e / 4) & 1) << e;
    memcpy(p, &to, 4);
}

inline void turn_pairs_back(uint8_t* p) {
    uint8_t t[4] = {};
    for (int j = 0; j < 4; j++)
        for (int b = 0; b < 4; b++) t[b] = uint8_t(t[b] | (p[j] >> 2 * b & 3) << 2 * j);
    memcpy(p, t, 4);
}

inline void turn_scales_back(uint8_t* p) {
    uint8_t s[8], m[8], t[12];
    for (int i = 0; i < 8; i++) {
        const int upper = p[8 + i / 2] >> i % 2 * 4;
        s[i] = uint8_t((p[i] & 15) | (upper & 3) << 4);
        m[i] = uint8_t(p[i] >> 4 | (upper & 12) << 2);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = uint8_t(s[i] | s[4 + i] >> 4 << 6);
        t[4 + i] = uint8_t(m[i] | m[4 + i] >> 4 << 6);
        t[8 + i] = uint8_t((s[4 + i] & 15) | m[4 + i] << 4);
    }
    memcpy(p, t, 12);
}

inline void turn_sixes_back(uint8_t* p) {
    uint8_t t[192] = {};
    for (int u = 0; u < 8; u++) {
        const uint8_t* unit = p + 24 * u;
        uint8_t *low = t + 64 * (u / 4) + 32 * (u % 2), *high = t + 128 + 32 * (u / 4);
        for (int i = 0; i < 32; i++) {
            low[i] = uint8_t(low[i] | (unit[i % 16] >> i / 16 * 4 & 15) << (u & 2) * 2);
            high[i] = uint8_t(high[i] | (unit[16 + i % 8] >> i / 8 * 2 & 3) << 2 * (u % 4));
        }
    }
    memcpy(p, t, 192);
}

template <int32_t D>
JF_INLINE void turn_back(uint8_t* block) {
    if constexpr (D == Q5_0) turn_bits_back(block + 2);
    if constexpr (D == Q5_1) turn_bits_back(block + 4);
    if constexpr (D == Q4_K || D == Q5_K) turn_scales_back(block + 4);
    if constexpr (D == Q6_K) turn_sixes_back(block);
    if constexpr (D == Q8_0)
        for (int i = 0; i < 32; i++) block[2 + i] ^= 0x80;
    for (int i = 0; i < 16; i += 4) {
        if constexpr (D == Q1_0) turn_bits_back(block + 2 + i);
        if constexpr (D == Q2_0) turn_pairs_back(block + 2 + i);
    }
}

// Row r's part of a group's block, as it stands there.
template <int32_t D>
JF_INLINE void gather(const uint8_t* scales, const uint8_t* quants, int64_t r, uint8_t* block) {
    constexpr Fields fields = fields_of(D);
#pragma GCC unroll 17
    for (int f = 0; f < fields.count; f++) {
        const Field field = fields.field[f];
        const uint8_t* lane = (field.quant ? quants : scales) + field.to + r * field.chunk;
        uint8_t* plain = block + field.plain;
        for (int p = 0; p < field.length; p += field.chunk, plain += field.chunk, lane += GROUP * field.chunk) {
            if (field.chunk == 4)
                memcpy(plain, lane, 4);
            else if (field.chunk == 2)
                memcpy(plain, lane, 2);
            else
                *plain = *lane;
        }
    }
}

template <int32_t D>
inline void unpack_block(const char* group, int64_t r, int64_t b, uint8_t* block) {
    constexpr Fields fields = fields_of(D);
    const uint8_t* scales = (const uint8_t*)group + b * fields.nbytes();
    gather<D>(scales, scales + fields.scale_nbytes, r, block);
    turn_back<D>(block);
}

}  // namespace

void unpack_block(int32_t dtype, const char* group, int64_t r, int64_t b, uint8_t* block) {
    with_weight(dtype, [&](auto type) { unpack_block<type.dtype>(group, r, b, block); });
}

bool is_bad_block(int32_t dtype, const uint8_t* block) {
    return with_weight(dtype, [&](auto type) { return is_bad<type.dtype>(block); });
}

bool pack_group(int32_t dtype, const char* from, int64_t stride, int64_t rows, int64_t length, char* to) {
    if (is_block(dtype))
        return with_weight(dtype, [&](auto type) { return pack_blocks<type.dtype>(from, stride, rows, length, to); });
    const int64_t size = block_nbytes(dtype), together = columns_together(dtype);
    const int64_t units = rows == GROUP ? length / together : 0, filled = units * together * GROUP * size;
    memset(to + filled, 0, size_t(group_nbytes(dtype, length) - filled));
    if (units && size * together == 4) pack_floats<uint32_t>(from, stride, units, to);
    if (units && size * together == 2) pack_floats<uint16_t>(from, stride, units, to);
    for (int64_t k = units * together; k < length; k++)
        for (int64_t r = 0; r < rows; r++)
            memcpy(to + element_at(dtype, r, k), from + r * stride + k * size, size_t(size));
    return false;
}

void unpack_row(int32_t dtype, const char* group, int64_t length, int64_t r, char* to) {
    const int64_t size = block_nbytes(dtype);
    for (int64_t b = 0; b < length / block_length(dtype); b++) {
        if (is_block(dtype))
            unpack_block(dtype, group, r, b, (uint8_t*)to + b * size);
        else
            memcpy(to + b * size, group + element_at(dtype, r, b), size_t(size));
    }
}

}  // namespace jackfield

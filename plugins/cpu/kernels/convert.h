// A line of elements in another dtype: what cast, write and put_rows do. Floats and blocks go by way of f32, whole
// numbers by way of i64, in pieces of 256 elements, which is a multiple of every block.
#pragma once
#include "blocks.h"
#include "encode_super.h"
#include "quantise.h"
#include "simd.h"
#include "views.h"

namespace jackfield {
namespace {

constexpr int64_t PIECE = 256;
constexpr uint64_t INTS = bit(I8) | bit(I16) | bit(I32) | bit(I64);
// Block types made by code of a level; blocks/ has the others.
constexpr uint64_t SMALL = bit(Q4_0) | bit(Q4_1) | bit(Q5_0) | bit(Q5_1) | bit(Q8_0);
constexpr uint64_t FITTED = bit(Q4_K) | bit(Q5_K) | bit(Q6_K);

JF_INLINE bool is_int(DType d) { return INTS & bit(d); }

// True: refused, in words.
inline bool cannot_convert(DType from, DType to, Words& words) {
    if (from == to) return false;
    if (!((FLOATS | INTS | BLOCKS) & bit(from)))
        words << "elements of this dtype are copied, not converted";
    else if (!((FLOATS | INTS | BLOCKS) & bit(to)))
        words << "elements are not converted to the dtype of the result";
    else
        return false;
    return true;
}

template <DType D>
JF_INLINE void widen_as(const char* x, float* out, int64_t n) {
    int64_t i = 0;
    for (; i + W <= n; i += W) store<F32>((char*)(out + i), load<D>(x + i * bytes_of<D>));
    if (i < n) store_part<F32>((char*)(out + i), load_part<D>(x + i * bytes_of<D>, n - i), n - i);
}

template <DType D>
JF_INLINE void narrow_as(const float* x, char* out, int64_t n) {
    int64_t i = 0;
    for (; i + W <= n; i += W) store<D>(out + i * bytes_of<D>, load<F32>((const char*)(x + i)));
    if (i < n) store_part<D>(out + i * bytes_of<D>, load_part<F32>((const char*)(x + i), n - i), n - i);
}

JF_INLINE int64_t read_int(DType d, const char* p) {
    int64_t wide;
    int32_t word;
    int16_t half;
    switch (d) {
        case I8:
            return int8_t(*p);
        case I16:
            memcpy(&half, p, 2);
            return half;
        case I32:
            memcpy(&word, p, 4);
            return word;
        default:
            memcpy(&wide, p, 8);
            return wide;
    }
}

JF_INLINE void write_int(DType d, char* p, int64_t v) {
    const int64_t most = d == I8 ? 127 : d == I16 ? 32767 : d == I32 ? INT32_MAX : INT64_MAX;
    v = v > most ? most : v < -most - 1 ? -most - 1 : v;
    memcpy(p, &v, size_t(block_nbytes(d)));  // little-endian
}

// Toward zero, saturating, NaN gives 0. 2^63 itself does not fit.
JF_INLINE int64_t whole(float x) {
    if (x != x) return 0;
    return x >= 0x1p63f ? INT64_MAX : x < -0x1p63f ? INT64_MIN : int64_t(x);
}

// Nearest even to f32; or, for bf16, cut to 24 bits with the lost ones in the last bit, so that the rounding to come is
// the only one.
JF_INLINE float float_of_int(int64_t v, bool sticky) {
    if (!sticky) return float(v);
    const uint64_t size = v < 0 ? 0 - uint64_t(v) : uint64_t(v);
    const int drop = size >> 24 ? 40 - __builtin_clzll(size) : 0;
    const uint64_t kept = size >> drop, lost = size & ((uint64_t(1) << drop) - 1);
    const float f = float(kept | (lost != 0)) * float(uint64_t(1) << drop);
    return v < 0 ? -f : f;
}

// f32 of n elements: the source itself, or `buffer`.
JF_INLINE const float* widen(DType from, const char* x, float* buffer, int64_t n, DType to) {
    if (from == F32) return (const float*)x;
    if (from == F16)
        widen_as<F16>(x, buffer, n);
    else if (from == BF16)
        widen_as<BF16>(x, buffer, n);
    else if (is_block(from))
        for (int64_t b = 0; b < n / block_length(from); b++)
            decode_block(from, (const uint8_t*)x + b * block_nbytes(from), buffer + b * block_length(from));
    else
        for (int64_t i = 0; i < n; i++)
            buffer[i] = float_of_int(read_int(from, x + i * block_nbytes(from)), to == BF16);
    return buffer;
}

// False: x was not finite or a scale overflows f16, and the block is all zero.
JF_INLINE bool encode_any(DType to, const float* x, uint8_t* block) {
    if (SMALL & bit(to)) return encode_block(to, x, block);
    return FITTED & bit(to) ? encode_super(to, x, block) : encode_coded(to, x, block);
}

// Blocks of q8_0, at most a piece of them: the core's bytes. The number of the first that could not be coded, or -1.
JF_INLINE int64_t encode_quants(const float* x, uint8_t* out, int64_t blocks) {
    static_assert(PIECE / 32 <= SCALED, "scales of a piece are found together");
    alignas(64) float factors[SCALED], scales[SCALED];
    find_scales<false>(x, blocks, factors, scales);
    int64_t bad = -1;
    for (int64_t b = 0; b < blocks; b++, x += 32, out += 34) {
        const bool fits = scales[b] < 65520;  // NaN does not
        const auto low = round_half<false>(x, factors[b]), high = round_half<false>(x + 16, factors[b]);
        write_half(out, scales[b]);
        memcpy(out + 2, &low, 16);
        memcpy(out + 18, &high, 16);
        if (fits) continue;
        memset(out, 0, 34);
        if (bad < 0) bad = b;
    }
    return bad;
}

// The number of the first block that could not be coded, or -1.
JF_INLINE int64_t narrow(DType to, const float* x, char* out, int64_t n) {
    if (to == F32) {
        memcpy(out, x, size_t(n) * 4);
    } else if (to == F16) {
        narrow_as<F16>(x, out, n);
    } else if (to == BF16) {
        narrow_as<BF16>(x, out, n);
    } else if (is_int(to)) {
        for (int64_t i = 0; i < n; i++) write_int(to, out + i * block_nbytes(to), whole(x[i]));
    } else if (to == Q8_0) {
        return encode_quants(x, (uint8_t*)out, n / 32);
    } else {
        int64_t bad = -1;
        for (int64_t b = 0; b < n / block_length(to); b++) {
            uint8_t* const block = (uint8_t*)out + b * block_nbytes(to);
            if (!encode_any(to, x + b * block_length(to), block) && bad < 0) bad = b;
        }
        return bad;
    }
    return -1;
}

// n elements at strides of units (blocks, or single elements). -1, or the first block of the line with a bad value.
inline int64_t convert_line(DType from, const char* x, int64_t xs, DType to, char* out, int64_t os, int64_t n) {
    const int64_t xu = block_nbytes(from), ou = block_nbytes(to), xl = block_length(from), ol = block_length(to);
    if (xs == xu && os == ou && from == to) {
        memcpy(out, x, size_t(n / xl * xu));
        return -1;
    }
    alignas(64) char in_buffer[PIECE * 8], out_buffer[PIECE * 8];
    alignas(64) float middle[PIECE];
    int64_t bad = -1;
    for (int64_t i = 0; i < n; i += PIECE) {
        const int64_t m = n - i < PIECE ? n - i : PIECE;
        const char* from_here = x + i / xl * xs;
        if (xs != xu) gather(from_here, xs, in_buffer, m / xl, xu), from_here = in_buffer;
        char* const to_here = os == ou ? out + i / ol * os : out_buffer;
        if (from == to) {
            memcpy(to_here, from_here, size_t(m / xl * xu));
        } else if (is_int(from) && is_int(to)) {
            for (int64_t j = 0; j < m; j++) write_int(to, to_here + j * ou, read_int(from, from_here + j * xu));
        } else {
            const int64_t at = narrow(to, widen(from, from_here, middle, m, to), to_here, m);
            if (at >= 0 && bad < 0) bad = i / ol + at;
        }
        if (os != ou) scatter(out_buffer, out + i / ol * os, os, m / ol, ou);
    }
    return bad;
}

}  // namespace
}  // namespace jackfield

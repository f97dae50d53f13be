// Sixteen rows laid side by side: how elements of plain rows become lanes. Vectors of 16 bytes as compilers have them
// for every machine: each load and store moves that much, so packing keeps up with the memory without a build per
// level.
#pragma once
#include "../kernels/packing.h"

namespace jackfield {
namespace {

using Rows = const uint8_t* const (&)[GROUP];  // where sixteen rows, or blocks of them, start

template <class T>
struct Vector {
    typedef T type __attribute__((vector_size(16)));
};
using Words = Vector<uint32_t>::type;
using Halves = Vector<uint16_t>::type;
using Bytes = Vector<uint8_t>::type;

template <class V>
JF_INLINE V load(const uint8_t* p) {
    V v;
    memcpy(&v, p, sizeof v);
    return v;
}
template <class V>
JF_INLINE void store(uint8_t* p, V v) {
    memcpy(p, &v, sizeof v);
}

// Elements of the lower halves of two vectors in turn, and of the upper halves.
JF_INLINE Words zip_low(Words a, Words b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); }
JF_INLINE Words zip_high(Words a, Words b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); }
JF_INLINE Halves zip_low(Halves a, Halves b) { return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11); }
JF_INLINE Halves zip_high(Halves a, Halves b) { return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15); }
JF_INLINE Bytes zip_low(Bytes a, Bytes b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
JF_INLINE Bytes zip_high(Bytes a, Bytes b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

// A square of N vectors of N elements transposed. Zipping vectors i and i + N/2 turns the number of each element, the
// bits of its row before those of its column, round by one bit; after log2(N) times row and column have changed places.
template <class V, int N>
JF_INLINE void transpose(V (&v)[N]) {
#pragma GCC unroll 4
    for (int round = 1; round < N; round *= 2) {
        V next[N];
#pragma GCC unroll 8
        for (int i = 0; i < N / 2; i++) {
            next[2 * i] = zip_low(v[i], v[i + N / 2]);
            next[2 * i + 1] = zip_high(v[i], v[i + N / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < N; i++) v[i] = next[i];
    }
}

// `nbytes` of each row from byte `at` on, as elements T: the first of sixteen rows, the second of each, ... The bits
// set in `flip` change in every byte.
template <class T>
JF_INLINE void across(Rows rows, int64_t at, int64_t nbytes, uint8_t* to, uint8_t flip = 0) {
    using V = typename Vector<T>::type;
    constexpr int64_t SIZE = sizeof(T), SIDE = 16 / SIZE;
    const V flips = (V)(Bytes{} + flip);
    int64_t p = at;
    for (; p + 16 <= at + nbytes; p += 16, to += GROUP * 16)
        for (int64_t r = 0; r < GROUP; r += SIDE) {
            V square[SIDE];
#pragma GCC unroll 16
            for (int64_t i = 0; i < SIDE; i++) square[i] = load<V>(rows[r + i] + p);
            transpose(square);
#pragma GCC unroll 16
            for (int64_t i = 0; i < SIDE; i++) store(to + (i * GROUP + r) * SIZE, square[i] ^ flips);
        }
    for (; p < at + nbytes; p += SIZE, to += GROUP * SIZE)
        for (int64_t r = 0; r < GROUP; r++) {
            T element;
            memcpy(&element, rows[r] + p, SIZE);
            element = T(element ^ flips[0]);
            memcpy(to + r * SIZE, &element, SIZE);
        }
}

// ---- fields that are turned round, where they lie as lanes; `turn` in rows16.cpp turns them back
// ---------------------

// The bits of `mask` and those `by` above them change places.
JF_INLINE Words exchanged(Words x, uint32_t mask, int by) {
    const Words moved = (x ^ x >> by) & mask;
    return x ^ moved ^ moved << by;
}

// One bit for each of 32 elements: bit j of byte b becomes element 4j + b (plain: bit e of the word is element e). So
// the number of each bit, five bits itself, turns round by two, which four exchanges of two of its bits do.
JF_INLINE Words bits_turned(Words x) {
    x = exchanged(x, 0x22222222, 1);
    x = exchanged(x, 0x0a0a0a0a, 3);
    x = exchanged(x, 0x00cc00cc, 6);
    return exchanged(x, 0x0000f0f0, 12);
}

// Two bits for each of 16 elements: byte b becomes elements b, 4 + b, 8 + b, 12 + b (plain: 4b, 4b + 1, ...).
JF_INLINE Words pairs_turned(Words x) { return exchanged(exchanged(x, 0x00cc00cc, 6), 0x0000f0f0, 12); }

template <class F>
JF_INLINE void each_word(uint8_t* lanes, int words, F turned) {
    for (int i = 0; i < words * GROUP * 4; i += 16) store(lanes + i, turned(load<Words>(lanes + i)));
}

// The twelve bytes of scales S and minima M of 6 bits. Plain: bytes 0..3 are S[0..3] | S[4..7] >> 4 << 6, bytes 4..7
// the same of M, bytes 8..11 the lower four bits of S[4..7] and of M[4..7]. Turned: bytes 0..7 are
// S & 15 | (M & 15) << 4 of sub-blocks 0..7; byte 8 + p has what is above of the pair 2p and 2p + 1:
// S[2p] >> 4 | M[2p] >> 4 << 2 | S[2p+1] >> 4 << 4 | M[2p+1] >> 4 << 6. at(i): the lanes of byte i.
template <class At>
JF_INLINE void turn_scales(At at) {
    Bytes a[4], b[4], c[4];
    for (int s = 0; s < 4; s++) a[s] = load<Bytes>(at(s)), b[s] = load<Bytes>(at(4 + s)), c[s] = load<Bytes>(at(8 + s));
    for (int s = 0; s < 4; s++) {
        store(at(s), (a[s] & 15) | b[s] << 4);
        store(at(4 + s), c[s]);
    }
    for (int p = 0; p < 2; p++) {
        const Bytes s = a[2 * p], m = b[2 * p], s1 = a[2 * p + 1], m1 = b[2 * p + 1];
        store(at(8 + p), (s >> 4 & 0x03) | (m >> 2 & 0x0c) | (s1 & 0x30) | (m1 << 2 & 0xc0));
        store(at(10 + p), s >> 6 | (m >> 4 & 0x0c) | (s1 >> 2 & 0x30) | (m1 & 0xc0));
    }
}

// Six bits for each of 256 elements, which are eight units of 32. Plain, for each half of them: 64 bytes with the lower
// four bits of units 0 and 1 and, above those, of 2 and 3; behind both halves, for each of them 32 bytes with the upper
// two bits of all four. Turned: unit by unit, 16 bytes with the lower bits of elements 0..15 and, above those, of
// 16..31; and 8 bytes with the upper bits of elements 0..7, 8..15, ... So a product reads each line once and in order.
JF_INLINE void turn_sixes(uint8_t* lanes) {
    constexpr int WORD = 4 * GROUP, CODES = 2 * GROUP, UNIT = CODES + 6 * WORD;  // bytes of sixteen rows
    uint8_t plain[48 * WORD];
    for (int u = 0; u < 8; u++) memcpy(plain + 6 * WORD * u, lanes + UNIT * u + CODES, 6 * WORD);
    for (int u = 0; u < 8; u++, lanes += UNIT) {
        const uint8_t *lower = plain + WORD * (u / 4 * 16 + u % 2 * 8), *upper = plain + WORD * (32 + u / 4 * 8);
        const int nibble = (u & 2) * 2, pair = u % 4 * 2;
        for (int at = 0; at < WORD; at += 16) {
            auto low = [&](int j) { return load<Words>(lower + WORD * j + at) >> nibble & 0x0f0f0f0f; };
            auto high = [&](int j) { return load<Words>(upper + WORD * j + at) >> pair & 0x03030303; };
            uint8_t* const to = lanes + CODES + at;
            for (int j = 0; j < 4; j++) store(to + WORD * j, low(j) | low(j + 4) << 4);
            for (int j = 0; j < 2; j++)
                store(to + WORD * (4 + j), high(j) | high(j + 2) << 2 | high(j + 4) << 4 | high(j + 6) << 6);
        }
    }
}

}  // namespace
}  // namespace jackfield

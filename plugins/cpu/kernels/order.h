// Order of f32 as whole numbers, for argsort and top_k: a key in the high half of 64 bits, the index in the low half,
// so that ties go by index and every sort is stable.
#pragma once
#include "simd.h"
#include "views.h"

namespace jackfield {
namespace {

// NaN is last in both directions; -0 equals +0.
JF_INLINE uint64_t order_key(float x, int64_t index, bool descending) {
    const float folded = x + 0.0f;
    uint32_t b;
    memcpy(&b, &folded, 4);
    b = b >> 31 ? ~b : b | 0x80000000u;
    if (descending) b = ~b;
    if (x != x) b = 0xffffffffu;
    return uint64_t(b) << 32 | uint32_t(index);
}

inline void insertion_sort(uint64_t* keys, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        const uint64_t key = keys[i];
        int64_t j = i;
        for (; j > 0 && keys[j - 1] > key; j--) keys[j] = keys[j - 1];
        keys[j] = key;
    }
}

// By bytes of the high half, least first; the low half is in order on entry. Both buffers hold n keys; the sorted one
// is returned.
inline uint64_t* radix_sort(uint64_t* keys, uint64_t* other, int64_t n) {
    int64_t counts[4][256] = {};
    for (int64_t i = 0; i < n; i++)
        for (int b = 0; b < 4; b++) counts[b][keys[i] >> (32 + 8 * b) & 255]++;
    for (int b = 0; b < 4; b++) {
        const int shift = 32 + 8 * b;
        int64_t* at = counts[b];
        if (at[keys[0] >> shift & 255] == n) continue;  // all alike
        for (int64_t i = 0, sum = 0; i < 256; i++) {
            const int64_t count = at[i];
            at[i] = sum;
            sum += count;
        }
        for (int64_t i = 0; i < n; i++) other[at[keys[i] >> shift & 255]++] = keys[i];
        uint64_t* const swap = keys;
        keys = other;
        other = swap;
    }
    return keys;
}

// keys: room for 2n; the sorted keys of a line of f32.
inline uint64_t* sorted_line(const char* x, int64_t n, bool descending, uint64_t* keys) {
    for (int64_t i = 0; i < n; i++) keys[i] = order_key(load_one<F32>(x + i * 4), i, descending);
    if (n > 64) return radix_sort(keys, keys + n, n);
    insertion_sort(keys, n);
    return keys;
}

JF_INLINE void store_indices(const uint64_t* keys, char* out, int64_t stride, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const int32_t index = int32_t(uint32_t(keys[i]));
        memcpy(out + i * stride, &index, 4);
    }
}

inline int64_t order_scratch(const Step& s, int32_t workers) { return s.in[0].last() * 16 * workers; }

inline int32_t order_workers(const Step& s, int32_t most) { return workers_for(s.in[0].size() * 4, most); }

JF_INLINE uint64_t* own_keys(const Step& s, const Team& team) {
    return (uint64_t*)(team.scratch + s.in[0].last() * 16 * team.index);
}

}  // namespace
}  // namespace jackfield

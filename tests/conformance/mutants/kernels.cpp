// A small backend's kernels, right as they stand, and wrong in one way once `set_fault` has named it.
//
// Tensors come as views of rank 4: extents in elements, strides in bytes, for block types those of whole blocks on the
// last axis. A queue runs what is submitted on a thread of its own, so that whoever forgets to wait reads too early.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#define FAULTS(X)            \
    X(tail_dropped)          \
    X(stride_ignored)        \
    X(copy_off_by_one)       \
    X(middle_broadcast)      \
    X(minus_zero_lost)       \
    X(nan_hidden)            \
    X(nan_lost_in_max)       \
    X(int_overflow_wraps)    \
    X(negative_axis)         \
    X(empty_crashes)         \
    X(f16_accumulator)       \
    X(mask_ignored)          \
    X(length_off_by_one)     \
    X(state_ignored)         \
    X(whole_vectors_written) \
    X(padding_read)          \
    X(operand_clobbered)     \
    X(cleared_before_read)   \
    X(scratch_overrun)       \
    X(scratch_shared)        \
    X(target_written_dense)  \
    X(alignment_assumed)     \
    X(nibble_order)          \
    X(last_block_skipped)    \
    X(scale_as_f32)          \
    X(block_rounding)        \
    X(bad_block_kept)        \
    X(packed_row_slice)      \
    X(bad_index_followed)    \
    X(fault_swallowed)       \
    X(leak_per_call)         \
                             \
    X(slow_queue)

namespace {

#define NAME(name) name,
enum Fault : int { none, FAULTS(NAME) };
#undef NAME
#define TEXT(name) #name,
const char* const fault_names[] = {"none", FAULTS(TEXT)};
#undef TEXT

int fault = none;

enum DType : int32_t { f32, f16, i32, i64, q8_0, q4_0, other };
constexpr int64_t BLOCK = 32;

struct View {
    char* data;
    int64_t shape[4];
    int64_t stride[4];
    int32_t dtype;
    int32_t unit;        // bytes of one element or block
    int64_t packed_row;  // bytes from row to row of a packed constant; 0 for plain bytes

    int64_t size() const { return shape[0] * shape[1] * shape[2] * shape[3]; }
    int64_t per_unit() const { return dtype == q8_0 || dtype == q4_0 ? BLOCK : 1; }
    char* at(int64_t a, int64_t b, int64_t c, int64_t d = 0) const {
        return data + a * stride[0] + b * stride[1] + c * stride[2] + d * stride[3];
    }
    bool dense() const {
        int64_t step = unit;
        for (int i = 3; i >= 0; i--) {
            if (shape[i] != 1 && stride[i] != step) return false;
            step *= i == 3 ? shape[3] / per_unit() : shape[i];
        }
        return true;
    }
};

struct Found {     // what a kernel finds in data; the first of a run is kept
    int32_t kind;  // 0 nothing, 1 index, 2 a number no block can hold
    int32_t step;
    int64_t value;
};

struct Step {
    int32_t op;
    int32_t present;  // bit i: operand i is there
    View in[5];
    View out;
    int64_t ints[4];
    double floats[2];
    char* scratch;
};

// Numbers

float bits_float(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

uint32_t float_bits(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

float half_float(uint16_t h) {
    uint32_t sign = uint32_t(h & 0x8000) << 16, exponent = h >> 10 & 31, fraction = h & 0x3FF;
    if (exponent == 31) return bits_float(sign | 0x7F800000 | fraction << 13);
    if (exponent) return bits_float(sign | (exponent + 112) << 23 | fraction << 13);
    float small = std::ldexp(float(fraction), -24);
    return sign ? -small : small;
}

uint16_t float_half(float x) {  // nearest even
    uint32_t bits = float_bits(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7FFFFFFF;
    if (rest > 0x7F800000) return uint16_t(sign | 0x7E00);
    if (rest >= 0x477FF000) return uint16_t(sign | 0x7C00);
    if (rest < 0x38800000) {  // below the normal numbers of f16: whole multiples of 2^-24
        float scaled = std::ldexp(bits_float(rest), 24);
        return uint16_t(sign | uint32_t(std::nearbyint(scaled)));
    }
    rest += 0xFFF + (rest >> 13 & 1);
    return uint16_t(sign | ((rest - 0x38000000) >> 13));
}

template <class T>
T get(const char* p) {
    T value;
    std::memcpy(&value, p, sizeof(T));
    return value;
}

template <class T>
void put(char* p, T value) {
    std::memcpy(p, &value, sizeof(T));
}

float load(const View& v, const char* p) { return v.dtype == f16 ? half_float(get<uint16_t>(p)) : get<float>(p); }

void store(const View& v, char* p, double x) {
    if (v.dtype == f16)
        put(p, float_half(float(x)));
    else
        put(p, float(x));
}

int64_t index_at(const View& v, const char* p) { return v.dtype == i64 ? get<int64_t>(p) : get<int32_t>(p); }

float block_scale(const char* block) {
    if (fault == scale_as_f32) return bits_float(uint32_t(get<uint16_t>(block)) << 16);
    return half_float(get<uint16_t>(block));
}

void nibbles(const char* quants, float d, float* out) {
    for (int i = 0; i < 16; i++) {
        auto byte = uint8_t(quants[i]);
        int low = byte & 15, high = byte >> 4;
        if (fault == nibble_order) std::swap(low, high);
        out[i] = d * float(low - 8);
        out[i + 16] = d * float(high - 8);
    }
}

void decode(const View& v, const char* block, float* out) {
    float d = block_scale(block);
    if (v.dtype == q4_0) return nibbles(block + 2, d, out);
    for (int i = 0; i < BLOCK; i++) out[i] = d * float(int8_t(block[2 + i]));
}

bool encode_q8_0(const float* x, char* block) {  // false: not codable, all zero bytes
    float top = 0;
    bool finite = true;
    for (int i = 0; i < BLOCK; i++) {
        finite &= bool(std::isfinite(x[i]));
        top = std::max(top, std::fabs(x[i]));
    }
    float d = top / 127.0f, inverse = 1.0f / d;
    if (!std::isfinite(inverse)) d = inverse = 0;
    uint16_t scale = float_half(d);
    bool good = finite && (scale & 0x7C00) != 0x7C00;
    if (!good && fault != bad_block_kept) {
        std::memset(block, 0, 34);
        return false;
    }
    put(block, scale);
    for (int i = 0; i < BLOCK; i++) {
        float y = x[i] * inverse;
        float whole = fault == block_rounding ? std::trunc(y) : std::round(y);
        block[2 + i] = char(int8_t(std::max(-127.0f, std::min(127.0f, whole))));
    }
    return true;
}

// A row of floats of any dtype, block types decoded. Packed q4_0: all scales of the row, then all nibbles.
void read_row(const View& v, const char* row, int64_t columns, float* out) {
    if (v.per_unit() == 1) {
        for (int64_t i = 0; i < columns; i++) out[i] = load(v, row + i * v.stride[3]);
        return;
    }
    int64_t blocks = columns / BLOCK;
    for (int64_t b = 0; b < blocks; b++) {
        if (fault == last_block_skipped && b == blocks - 1 && b) {
            std::fill_n(out + b * BLOCK, BLOCK, 0.0f);
        } else if (v.packed_row) {
            nibbles(row + 2 * blocks + 16 * b, block_scale(row + 2 * b), out + b * BLOCK);
        } else {
            decode(v, row + b * v.stride[3], out + b * BLOCK);
        }
    }
}

const char* row_of(const View& v, int64_t a, int64_t b, int64_t c) {
    if (!v.packed_row) return v.at(a, b, c);
    int64_t step = fault == packed_row_slice ? v.shape[3] / BLOCK * 18 : v.packed_row;
    return v.data + ((a * v.shape[1] + b) * v.shape[2] + c) * step;
}

template <class F>
void each(const View& v, F&& body) {
    for (int64_t a = 0; a < v.shape[0]; a++)
        for (int64_t b = 0; b < v.shape[1]; b++)
            for (int64_t c = 0; c < v.shape[2]; c++)
                for (int64_t d = 0; d < v.shape[3]; d++) body(a, b, c, d);
}

template <class F>
void each_row(const View& v, F&& body) {
    for (int64_t a = 0; a < v.shape[0]; a++)
        for (int64_t b = 0; b < v.shape[1]; b++)
            for (int64_t c = 0; c < v.shape[2]; c++) body(a, b, c);
}

View as_read(View v) {
    if (fault == stride_ignored) {
        int64_t step = v.unit;
        for (int i = 3; i >= 0; i--) {
            if (v.shape[i] != 1 && v.stride[i] != 0) v.stride[i] = step;
            step *= i == 3 ? v.shape[3] / v.per_unit() : v.shape[i];
        }
    }
    if (fault == alignment_assumed && v.dense())
        v.data = reinterpret_cast<char*>(reinterpret_cast<uintptr_t>(v.data) & ~uintptr_t(15));
    return v;
}

// Kernels

double combine(int op, double a, double b) { return op == 0 ? a + b : a * b; }

void binary(const Step& s) {
    View a = s.in[0], b = s.in[1];
    const View& y = s.out;
    bool faulty = s.op == 1;  // the tests of the kit use add for what is no question of numbers
    if (faulty) a = as_read(a), b = as_read(b);
    int64_t n = y.size();
    bool flat = a.dense() && b.dense() && a.size() == n && b.size() == n && a.dtype == f32 && b.dtype == f32;
    if (flat && y.dtype == f32) {
        int64_t whole = faulty && fault == tail_dropped ? n / 8 * 8 : n;
        for (int64_t i = 0; i < whole; i++)
            put(y.data + 4 * i, float(combine(s.op, get<float>(a.data + 4 * i), get<float>(b.data + 4 * i))));
        return;
    }
    for (View* v : {&a, &b})
        for (int i = 0; i < 4; i++)
            if (v->shape[i] == 1)
                v->stride[i] = faulty && fault == middle_broadcast && (i == 1 || i == 2) ? v->stride[3] : 0;
    each(y, [&](int64_t i, int64_t j, int64_t k, int64_t l) {
        store(y, y.at(i, j, k, l), combine(s.op, load(a, a.at(i, j, k, l)), load(b, b.at(i, j, k, l))));
    });
}

void relu(const Step& s) {
    View x = s.in[0];
    const View& y = s.out;
    each(y, [&](int64_t i, int64_t j, int64_t k, int64_t l) {
        float value = load(x, x.at(i, j, k, l));
        bool kept = value > 0 || (std::isnan(value) && fault != nan_hidden);
        store(y, y.at(i, j, k, l), kept ? value : 0);
    });
    if (fault == whole_vectors_written && y.dense())
        for (int64_t i = y.size(); i % 8; i++) store(y, y.data + i * y.unit, 0);
}

void copy(const Step& s) {
    View x = s.in[0];
    const View& y = s.out;  // both in whole blocks
    int64_t shift = fault == copy_off_by_one && y.shape[3] > 1 ? 1 : 0;
    each(y, [&](int64_t i, int64_t j, int64_t k, int64_t l) {
        int64_t from = std::min(l + shift, y.shape[3] - 1);
        std::memmove(y.at(i, j, k, l), x.at(i, j, k, from), size_t(y.unit));
    });
}

int32_t whole_number(float x) {
    if (std::isnan(x)) return 0;
    if (fault == int_overflow_wraps) return int32_t(uint32_t(int64_t(std::max(-9e18f, std::min(9e18f, x)))));
    if (x >= 2147483648.0f) return std::numeric_limits<int32_t>::max();
    return x <= -2147483648.0f ? std::numeric_limits<int32_t>::min() : int32_t(x);
}

void cast_element(const View& x, const char* from, const View& y, char* to) {
    if (x.dtype == y.dtype) {
        std::memmove(to, from, size_t(y.unit));
    } else if (x.dtype == i32) {
        store(y, to, y.dtype == f16 ? float(get<int32_t>(from)) : float(get<int32_t>(from)));
    } else if (y.dtype == i32) {
        put(to, whole_number(load(x, from)));
    } else {
        float value = load(x, from);
        store(y, to, fault == minus_zero_lost && value == 0 ? 0.0f : value);
    }
}

void cast(const Step& s, Found* found) {
    View x = s.in[0];
    const View& y = s.out;
    if (x.per_unit() == 1 && y.per_unit() == 1) {
        each(y, [&](int64_t i, int64_t j, int64_t k, int64_t l) {
            cast_element(x, x.at(i, j, k, l), y, y.at(i, j, k, l));
        });
        return;
    }
    std::vector<float> row(size_t(y.shape[3]));
    int64_t block = 0;
    each_row(y, [&](int64_t i, int64_t j, int64_t k) {
        read_row(x, x.at(i, j, k), y.shape[3], row.data());
        if (y.per_unit() == 1) {
            for (int64_t l = 0; l < y.shape[3]; l++) store(y, y.at(i, j, k, l), row[size_t(l)]);
            return;
        }
        for (int64_t b = 0; b < y.shape[3] / BLOCK; b++, block++)
            if (!encode_q8_0(row.data() + b * BLOCK, y.at(i, j, k, b)) && !found->kind) *found = {2, 0, block};
    });
}

double shared_scratch[1 << 16];
char* volatile lost;  // what a leak loses; the compiler must not see that nobody needs it

void softmax(const Step& s) {
    View x = s.in[0];
    const View &mask = s.in[1], &y = s.out;
    bool masked = (s.present & 2) && fault != mask_ignored;
    int64_t n = y.shape[3];
    each_row(y, [&](int64_t i, int64_t j, int64_t k) {
        auto* e = reinterpret_cast<double*>(s.scratch);
        if (fault == scratch_shared) e = shared_scratch;
        if (fault == cleared_before_read && y.data == x.data) std::memset(y.at(i, j, k), 0, size_t(n) * 4);
        double top = -INFINITY, total = 0;
        for (int64_t l = 0; l < n; l++) {
            double z = s.floats[0] * load(x, x.at(i, j, k, l));
            if (masked) z += load(mask, mask.at(i % mask.shape[0], j % mask.shape[1], k, l));
            e[l] = z;
            top = std::isnan(z) || std::isnan(top) ? NAN : std::max(top, z);
        }
        for (int64_t l = 0; l < n; l++) {
            e[l] = e[l] == -INFINITY ? 0 : std::exp(e[l] - top);
            total += e[l];
            if (fault == scratch_shared && l % 64 == 0) std::this_thread::yield();
        }
        if (fault == scratch_overrun) std::memset(e + n, 0, 64);
        for (int64_t l = 0; l < n; l++) store(y, y.at(i, j, k, l), top == -INFINITY ? 0.0 : e[l] / total);
    });
}

void rms_norm(const Step& s) {
    View x = s.in[0];
    const View& y = s.out;
    int64_t n = y.shape[3];
    each_row(y, [&](int64_t i, int64_t j, int64_t k) {
        double total = 0;
        for (int64_t l = 0; l < n; l++) total += double(load(x, x.at(i, j, k, l))) * load(x, x.at(i, j, k, l));
        double scale = 1 / std::sqrt(total / double(std::max<int64_t>(1, n)) + s.floats[0]);
        for (int64_t l = 0; l < n; l++) {
            float value = load(x, x.at(i, j, k, l));
            if (fault == operand_clobbered) store(x, x.at(i, j, k, l), value * scale);
            store(y, y.at(i, j, k, l), value * scale);
        }
    });
}

void sum(const Step& s) {
    View x = s.in[0];
    const View& y = s.out;  // has the summed axis with extent 1
    if (s.ints[0] == 4) {
        double total = 0;
        each(x, [&](int64_t i, int64_t j, int64_t k, int64_t l) { total += load(x, x.at(i, j, k, l)); });
        return store(y, y.at(0, 0, 0, 0), total);
    }
    int64_t axis = s.ints[0], n = x.shape[axis];
    if (fault == negative_axis && s.ints[1] < -1) axis = 3;
    if (fault == empty_crashes && x.size() == 0) std::raise(SIGSEGV);
    if (fault == negative_axis) n = std::min(n, x.shape[axis]);
    each(y, [&](int64_t i, int64_t j, int64_t k, int64_t l) {
        double total = 0;
        for (int64_t m = 0; m < n; m++) {
            total += load(x, x.at(i, j, k, l) + m * x.stride[axis]);
            if (fault == f16_accumulator && x.dtype == f16) total = half_float(float_half(float(total)));
        }
        store(y, y.at(i, j, k, l), total);
    });
}

void argmax(const Step& s) {
    View x = s.in[0];
    const View& y = s.out;
    int64_t axis = s.ints[0];
    each(y, [&](int64_t i, int64_t j, int64_t k, int64_t l) {
        int32_t best = 0;
        float top = load(x, x.at(i, j, k, l));
        for (int64_t m = 1; m < x.shape[axis]; m++) {
            float value = load(x, x.at(i, j, k, l) + m * x.stride[axis]);
            bool first_nan = std::isnan(value) && !std::isnan(top) && fault != nan_lost_in_max;
            if (value > top || first_nan) best = int32_t(m), top = value;
        }
        put(y.at(i, j, k, l), best);
    });
}

void linear(const Step& s) {
    View x = s.in[0];
    const View &w = s.in[1], &y = s.out;
    int64_t K = x.shape[3], N = w.shape[2];
    std::vector<float> weight(size_t(K + 8));
    for (int64_t a = 0; a < y.shape[0]; a++)
        for (int64_t b = 0; b < y.shape[1]; b++)
            for (int64_t n = 0; n < N; n++) {
                int64_t wa = a * w.shape[0] / y.shape[0], wb = b * w.shape[1] / y.shape[1];
                read_row(w, row_of(w, wa, wb, n), K, weight.data());
                for (int64_t m = 0; m < y.shape[2]; m++) {
                    double total = 0;
                    int64_t k = 0;
                    for (; k < K; k++) total += double(load(x, x.at(a, b, m, k))) * weight[size_t(k)];
                    if (fault == padding_read)  // a whole vector; what lies behind the row is thought to count nothing
                        for (; k % 8; k++) total += double(load(x, x.at(a, b, m, k))) * 0.0;
                    store(y, y.at(a, b, m, n), total);
                }
            }
}

void take_rows(const Step& s, Found* found) {
    const View &x = s.in[0], &rows = s.in[1], &y = s.out;
    std::vector<float> row(size_t(y.shape[3]));
    each_row(y, [&](int64_t i, int64_t j, int64_t k) {
        int64_t number = index_at(rows, rows.at(0, i, j, k));
        bool inside = number >= 0 && number < x.shape[2];
        if (!inside && !found->kind) *found = {1, 0, number};
        if (!inside && fault == bad_index_followed) {
            number = std::max<int64_t>(-1, std::min(number, x.shape[2]));
            inside = x.shape[2] > 0;
        }
        if (inside)
            read_row(x, row_of(x, i, j, number), y.shape[3], row.data());
        else
            std::fill(row.begin(), row.end(), 0.0f);
        for (int64_t l = 0; l < y.shape[3]; l++) put(y.at(i, j, k, l), row[size_t(l)]);
    });
}

void put_rows(const Step& s, Found* found) {
    const View &x = s.in[1], &rows = s.in[2];
    View y = s.out;
    if (fault == target_written_dense) y.stride[2] = y.shape[3] / y.per_unit() * y.unit;
    std::vector<float> row(size_t(y.shape[3]));
    int64_t block = 0;
    each_row(x, [&](int64_t i, int64_t j, int64_t k) {
        int64_t number = index_at(rows, rows.at(0, i % rows.shape[1], j % rows.shape[2], k));
        if (number == -1) return;
        if (number < 0 || number >= y.shape[2]) {
            if (found->kind != 1) *found = {1, 0, number};
            return;
        }
        read_row(x, x.at(i, j, k), y.shape[3], row.data());
        for (int64_t b = 0; y.per_unit() > 1 && b < y.shape[3] / BLOCK; b++, block++)
            if (!encode_q8_0(row.data() + b * BLOCK, y.at(i, j, number, b)) && !found->kind) *found = {2, 0, block};
        for (int64_t l = 0; y.per_unit() == 1 && l < y.shape[3]; l++) store(y, y.at(i, j, number, l), row[size_t(l)]);
    });
}

void attention(const Step& s, Found* found) {
    const View &q = s.in[0], &k = s.in[1], &v = s.in[2], &mask = s.in[3], &y = s.out;
    int64_t H = q.shape[1], T = q.shape[2], N = k.shape[2], group = H / std::max<int64_t>(1, k.shape[1]);
    auto* z = reinterpret_cast<double*>(s.scratch);
    each_row(q, [&](int64_t a, int64_t h, int64_t t) {
        int64_t n = s.ints[1] ? get<int32_t>(reinterpret_cast<char*>(s.ints[1]) + a * s.ints[2]) : N;
        for (int64_t d = 0; d < y.shape[3]; d++) store(y, y.at(a, t, h, d), 0);
        if (n < 0 || n > N) {
            if (!found->kind) *found = {1, 0, n};
            return;
        }
        if (fault == length_off_by_one && n < N) n++;
        double top = -INFINITY, total = 0;
        for (int64_t c = 0; c < n; c++) {
            bool seen = !s.ints[0] || c <= n - T + t;
            float bias = 0;
            if (s.present & 8) bias = load(mask, mask.at(a % mask.shape[0], h % mask.shape[1], t, c));
            z[c] = -INFINITY;
            z[N + c] = seen && bias != -INFINITY;
            if (z[N + c] == 0) continue;
            double dot = 0;
            for (int64_t d = 0; d < q.shape[3]; d++)
                dot += double(load(q, q.at(a, h, t, d))) * load(k, k.at(a, h / group, c, d));
            z[c] = s.floats[0] * dot + bias;
            top = std::isnan(z[c]) || std::isnan(top) ? NAN : std::max(top, z[c]);
        }
        for (int64_t c = 0; c < n; c++) {
            z[c] = z[c] == -INFINITY ? 0 : std::exp(z[c] - top);
            total += z[c];
        }
        for (int64_t d = 0; d < y.shape[3]; d++) {
            double mean = 0;
            for (int64_t c = 0; c < n; c++)
                if (z[N + c] != 0) mean += (total == 0 ? 0 : z[c] / total) * load(v, v.at(a, h / group, c, d));
            store(y, y.at(a, t, h, d), mean);
        }
    });
}

void gated_linear_attention(const Step& s) {
    const View &k = s.in[0], &v = s.in[1], &q = s.in[2], &g = s.in[3], &state = s.in[4], &y = s.out;
    int64_t T = k.shape[1], H = k.shape[2], D = k.shape[3], S = state.shape[2];
    std::vector<double> st(size_t(D * D));
    for (int64_t seq = 0; seq < S; seq++)
        for (int64_t h = 0; h < H; h++) {
            for (int64_t c = 0; c < D * D; c++)
                st[size_t(c)] = fault == state_ignored ? 0.0f : load(state, state.at(0, 0, seq, h * D * D + c));
            for (int64_t t = seq * (T / S); t < (seq + 1) * (T / S); t++)
                for (int64_t j = 0; j < D; j++) {
                    double total = 0;
                    for (int64_t i = 0; i < D; i++) {
                        double& cell = st[size_t(i * D + j)];
                        cell *= load(g, g.at(0, t, h, i));
                        cell += double(load(k, k.at(0, t, h, i))) * load(v, v.at(0, t, h, j));
                        total += load(q, q.at(0, t, h, i)) * cell;
                    }
                    store(y, y.at(0, 0, t, h * D + j), s.floats[0] * total);
                }
            for (int64_t c = 0; c < D * D; c++) {
                int64_t at = h * D * D + c;
                store(y, y.at(0, 0, T + seq * D + at / (H * D), at % (H * D)), st[size_t(c)]);
            }
        }
}

void run_step(const Step& s, Found* found) {
    switch (s.op) {
        case 0:
        case 1:
            return binary(s);
        case 2:
            return relu(s);
        case 3:
            return copy(s);
        case 4:
            return cast(s, found);
        case 5:
            return softmax(s);
        case 6:
            return rms_norm(s);
        case 7:
            return sum(s);
        case 8:
            return argmax(s);
        case 9:
            return linear(s);
        case 10:
            return take_rows(s, found);
        case 11:
            return put_rows(s, found);
        case 12:
            return gated_linear_attention(s);
        default:
            return attention(s, found);
    }
}

class Queue {
public:
    Queue() : worker_([this] { work(); }) { worker_.detach(); }  // lives as long as the process

    void submit(const Step* steps, int64_t count, Found* found);

    void wait() {
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return jobs_.empty(); });
    }

private:
    struct Job {
        const Step* steps;
        int64_t count;
        Found* found;
    };

    void work();

    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::deque<Job> jobs_;
    std::thread worker_;
};

}  // namespace

extern "C" {

int set_fault(const char* name) {  // 0: no kernel is wrong in this way
    for (int i = 0; i < int(sizeof(fault_names) / sizeof(*fault_names)); i++)
        if (!std::strcmp(name, fault_names[i])) {
            fault = i;
            return 1;
        }
    return 0;
}

void* buffer_new(int64_t nbytes) {
    void* p = nullptr;
    return posix_memalign(&p, 64, size_t(std::max<int64_t>(nbytes, 1))) ? nullptr : p;
}

void buffer_free(void* p) { std::free(p); }

void run_steps(const Step* steps, int64_t count, Found* found) {
    if (fault == leak_per_call) std::memset(lost = static_cast<char*>(std::malloc(1 << 18)), 1, 1 << 18);
    for (int64_t i = 0; i < count; i++) {
        Found here = {0, 0, 0};
        run_step(steps[i], &here);
        if (here.kind && !found->kind && fault != fault_swallowed) *found = {here.kind, int32_t(i), here.value};
    }
}

void pack_q4_0(const char* plain, char* packed, int64_t rows, int64_t blocks, int64_t row_nbytes, int64_t limit) {
    std::memset(packed, 0, size_t(limit));
    for (int64_t r = 0; r < rows; r++)
        for (int64_t b = 0; b < blocks; b++) {
            const char* block = plain + (r * blocks + b) * 18;
            int64_t scale = r * row_nbytes + 2 * b, quants = r * row_nbytes + 2 * blocks + 16 * b;
            if (scale + 2 <= limit) std::memcpy(packed + scale, block, 2);
            if (quants + 16 <= limit) std::memcpy(packed + quants, block + 2, 16);
        }
}

void unpack_q4_0(const char* packed, char* plain, int64_t rows, int64_t blocks, int64_t row_nbytes) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t b = 0; b < blocks; b++) {
            char* block = plain + (r * blocks + b) * 18;
            std::memcpy(block, packed + r * row_nbytes + 2 * b, 2);
            std::memcpy(block + 2, packed + r * row_nbytes + 2 * blocks + 16 * b, 16);
        }
}

void* queue_new() { return new Queue; }

void queue_submit(void* queue, const Step* steps, int64_t count, Found* found) {
    static_cast<Queue*>(queue)->submit(steps, count, found);
}

void queue_wait(void* queue) { static_cast<Queue*>(queue)->wait(); }

void crash() { std::raise(SIGSEGV); }

void say(const char* text) {
    std::puts(text);
    std::fflush(stdout);
}
}

void Queue::submit(const Step* steps, int64_t count, Found* found) {
    std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back({steps, count, found});
    wake_.notify_one();
}

void Queue::work() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        wake_.wait(lock, [this] { return !jobs_.empty(); });
        Job job = jobs_.front();
        lock.unlock();
        std::this_thread::sleep_for(std::chrono::milliseconds(fault == slow_queue ? 5 : 0));
        run_steps(job.steps, job.count, job.found);
        lock.lock();
        jobs_.pop_front();
        if (jobs_.empty()) done_.notify_all();
    }
}

// Rotary embedding: the angles of a token are made once, in f64, and shared by all heads that are turned by them.
#pragma once
#include "simd.h"
#include "views.h"

namespace jackfield {
namespace {

enum { MODE, N_DIMS, OFFSET, BASE, SCALE, EXT_FACTOR, ATTN_FACTOR, BETA_FAST, BETA_SLOW, ORIGINAL_CONTEXT, SECTIONS };
enum Mode : int64_t { NORMAL, NEOX, MROPE, IMROPE, VISION, UNKNOWN };

typedef double vd __attribute__((vector_size(sizeof(vf))));
typedef int64_t vl __attribute__((vector_size(sizeof(vf))));
constexpr int WD = W / 2;
typedef float vfh __attribute__((vector_size(sizeof(vf) / 2)));
typedef uint32_t vuh __attribute__((vector_size(sizeof(vf) / 2)));
typedef uint64_t vul __attribute__((vector_size(sizeof(vf))));

inline bool same_text(const char* a, const char* b) {
    while (*a && *a == *b) a++, b++;
    return *a == *b;
}

inline Mode mode_of(const Step& s) {
    const char* const names[] = {"normal", "neox", "mrope", "imrope", "vision"};
    for (int64_t m = NORMAL; m < UNKNOWN; m++)
        if (s.attr[MODE].text && same_text(s.attr[MODE].text, names[m])) return Mode(m);
    return UNKNOWN;
}

// Work memory of one worker. angle: radians per unit of position, by pair; axis: which of the four position lists.
struct Tables {
    int64_t pairs, padded;  // padded to whole vectors
    double* angle;
    int32_t* axis;
    float *cosine, *sine;  // normal: by channel, each value twice, the sine of the first with a minus; else by pair
    char* row;             // one row of x, for results with gaps

    JF_INLINE static int64_t pairs_of(const Step& s) {
        return mode_of(s) == VISION ? s.attr[N_DIMS].integer : s.attr[N_DIMS].integer / 2;
    }
    JF_INLINE static int64_t nbytes(const Step& s) {
        const int64_t padded = (pairs_of(s) + W - 1) / W * W;
        return (padded * (8 + 4 + 8 + 8) + s.out.last() * 4 + 63) / 64 * 64;
    }
    JF_INLINE Tables(const Step& s, char* at) : pairs(pairs_of(s)), padded((pairs + W - 1) / W * W) {
        angle = (double*)at;
        cosine = (float*)(at + padded * 8);
        sine = cosine + 2 * padded;
        axis = (int32_t*)(sine + 2 * padded);
        row = (char*)(axis + padded);
    }
};

// Which section holds j, by cumulative bounds; `start` is where it begins.
JF_INLINE int32_t section_of(const Attr& sections, int64_t j, int64_t& start) {
    start = 0;
    for (int32_t c = 0; c < 3; c++) {
        const int64_t end = start + int64_t(sections.numbers[c]);
        if (j < end) return c;
        start = end;
    }
    return 3;
}

JF_INLINE int32_t interleaved(const Attr& sections, int64_t j) {
    const int32_t c = int32_t(j % 3);
    return double(j) < 3 * sections.numbers[c] ? c : 3;
}

// The position list and the exponent of a pair.
JF_INLINE void place_pair(const Step& s, Mode mode, int64_t i, int32_t& axis, int64_t& exponent) {
    const Attr& sections = s.attr[SECTIONS];
    axis = 0;
    exponent = i;
    if (mode == NORMAL || mode == NEOX) return;
    int64_t total = 0, start = 0;
    for (int c = 0; c < RANK; c++) total += int64_t(sections.numbers[c]);
    const int64_t j = i % (total > 0 ? total : 1);
    axis = mode == IMROPE ? interleaved(sections, j) : section_of(sections, j, start);
    if (mode == VISION) exponent = j - start;
}

// YaRN (Peng et al. 2023): the share of each pair that keeps its own frequency.
struct Yarn {
    double low = 0, high = 0, factor = 0;

    JF_INLINE Yarn() = default;
    JF_INLINE explicit Yarn(const Step& s) : factor(s.attr[EXT_FACTOR].number) {
        const double n = s.attr[N_DIMS].number, base = __builtin_log(s.attr[BASE].number);
        const double context = s.attr[ORIGINAL_CONTEXT].number / 6.283185307179586;
        low = __builtin_floor(n * __builtin_log(context / s.attr[BETA_FAST].number) / (2 * base));
        high = __builtin_ceil(n * __builtin_log(context / s.attr[BETA_SLOW].number) / (2 * base));
        low = low > 0 ? low : 0;
        high = high < n - 1 ? high : n - 1;
    }
    JF_INLINE double kept(int64_t i) const {
        const double span = high - low > 0.001 ? high - low : 0.001, ramp = (double(i) - low) / span;
        return (1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp)) * factor;
    }
};

// Powers of `step`, by vectors.
JF_INLINE void fill_powers(const Tables& tables, double step) {
    vd power;
    double one = 1;
    for (int j = 0; j < WD; j++, one *= step) power[j] = one;
    for (int64_t i = 0; i < tables.padded; i += WD, power *= one) memcpy(tables.angle + i, &power, sizeof power);
}

inline void fill_angles(const Step& s, const Tables& tables, Mode mode) {
    const View& factors = s.in[2];
    const double scale = s.attr[SCALE].number;
    const bool yarn = s.attr[EXT_FACTOR].number != 0, plain = mode == NORMAL || mode == NEOX;
    double step, power = 1;
    memcpy(&step, &s.note[1], 8);
    if (plain) fill_powers(tables, step);
    if (plain && !yarn && !factors && scale == 1) return;
    const Yarn ramp = yarn ? Yarn(s) : Yarn{};
    int64_t exponent = 0;
    for (int64_t i = 0; i < tables.pairs; i++) {
        const int64_t before = exponent;
        if (plain) {
            power = tables.angle[i];
        } else {
            place_pair(s, mode, i, tables.axis[i], exponent);
            power = exponent == 0 ? 1 : exponent == before + 1 ? power * step : __builtin_pow(step, double(exponent));
        }
        if (factors)
            tables.angle[i] = power / double(load_one<F32>(factors.data + i * factors.stride[3]));
        else
            tables.angle[i] = power;
        const double w = yarn ? ramp.kept(i) : 0;
        tables.angle[i] *= scale * (1 - w) + w;
    }
    for (int64_t i = tables.pairs; i < tables.padded; i++) tables.angle[i] = 0, tables.axis[i] = 0;
}

// Sine and cosine of angles in f64: whole quarter turns off in two parts (exact below 2^20 turns), then Taylor's series
// on +-pi/4, far below f32's resolution.
JF_INLINE void sine_cosine(vd a, vd& sine, vd& cosine) {
    const vd magic = a * 0.6366197723675814 + 6755399441055744.0, q = magic - 6755399441055744.0;
    const vl quarter = (vl)magic;
    const vd r = (a - q * 1.57079632673412561417) - q * 6.07710050650619224932e-11, z = r * r;
    vd p = z * (1.0 / 6227020800) - 1.0 / 39916800;
    p = p * z + 1.0 / 362880;
    p = p * z - 1.0 / 5040;
    p = p * z + 1.0 / 120;
    p = p * z - 1.0 / 6;
    const vd sn = r + r * z * p;
    p = z * (1.0 / 479001600) - 1.0 / 3628800;
    p = p * z + 1.0 / 40320;
    p = p * z - 1.0 / 720;
    p = p * z + 1.0 / 24;
    p = p * z - 0.5;
    const vd cs = 1 + z * p;
    const vl swap = (vl)((quarter & 1) != 0);
    sine = (vd)((((vl)cs & swap) | ((vl)sn & ~swap)) ^ ((quarter & 2) << 62));
    cosine = (vd)((((vl)sn & swap) | ((vl)cs & ~swap)) ^ (((quarter + 1) & 2) << 62));
}

// Cosines and sines of one token, times the magnitude.
inline void fill_token(const Step& s, const Tables& tables, int64_t t, Mode mode, double magnitude) {
    const View& positions = s.in[1];
    double p[RANK];
    for (int c = 0; c < RANK; c++) {
        int32_t position;
        const int64_t list = c < positions.shape[2] ? c : 0;
        memcpy(&position, positions.data + list * positions.stride[2] + t * positions.stride[3], 4);
        p[c] = position;
    }
    for (int64_t i = 0; i < tables.padded; i += WD) {
        vd a, sine, cosine;
        memcpy(&a, tables.angle + i, sizeof a);
        if (mode == NORMAL || mode == NEOX)
            a *= p[0];
        else
            for (int j = 0; j < WD; j++) a[j] *= p[tables.axis[i + j]];
        sine_cosine(a, sine, cosine);
        sine *= magnitude;
        cosine *= magnitude;
        const vfh sn = __builtin_convertvector(sine, vfh), cs = __builtin_convertvector(cosine, vfh);
        if (mode != NORMAL) {
            memcpy(tables.cosine + i, &cs, sizeof cs);
            memcpy(tables.sine + i, &sn, sizeof sn);
            continue;
        }
        const vul c = __builtin_convertvector((vuh)cs, vul), d = __builtin_convertvector((vuh)sn, vul);
        const vul both = c | c << 32, signs = d << 32 | (d ^ 0x80000000);  // each value for two channels
        memcpy(tables.cosine + 2 * i, &both, sizeof both);
        memcpy(tables.sine + 2 * i, &signs, sizeof signs);
    }
}

JF_INLINE vf swap_neighbours(vf x) {
#if defined(__ARM_NEON)
    return (vf)vrev64q_f32(x);
#else
    vi order;
    for (int i = 0; i < W; i++) order[i] = i ^ 1;
    return __builtin_shuffle(x, order);
#endif
}

// Pairs of neighbours: n channels from x to out.
template <DType D>
JF_INLINE void turn_neighbours(const Tables& tables, const char* x, char* out, int64_t n) {
    constexpr int size = bytes_of<D>;
    for (int64_t i = 0; i < n; i += W) {
        const bool whole = i + W <= n;
        const vf v = whole ? load<D>(x + i * size) : load_part<D>(x + i * size, n - i);
        const vf c = load<F32>((const char*)(tables.cosine + i)), sn = load<F32>((const char*)(tables.sine + i));
        const vf y = fma(v, c, swap_neighbours(v) * sn);
        if (whole)
            store<D>(out + i * size, y);
        else
            store_part<D>(out + i * size, y, n - i);
    }
}

// Pairs (i, i + pairs).
template <DType D>
JF_INLINE void turn_halves(const Tables& tables, const char* x, char* out) {
    constexpr int size = bytes_of<D>;
    const int64_t n = tables.pairs, gap = n * size;
    for (int64_t i = 0; i < n; i += W) {
        const bool whole = i + W <= n;
        const char* from = x + i * size;
        char* to = out + i * size;
        const vf a = whole ? load<D>(from) : load_part<D>(from, n - i);
        const vf b = whole ? load<D>(from + gap) : load_part<D>(from + gap, n - i);
        const vf c = load<F32>((const char*)(tables.cosine + i)), sn = load<F32>((const char*)(tables.sine + i));
        const vf ya = fma(a, c, -(b * sn)), yb = fma(a, sn, b * c);
        if (whole) {
            store<D>(to, ya);
            store<D>(to + gap, yb);
        } else {
            store_part<D>(to, ya, n - i);
            store_part<D>(to + gap, yb, n - i);
        }
    }
}

// All channels of one head, from x to `to`, which may be x.
template <DType D>
JF_INLINE void turn_head(const Step& s, const Tables& tables, Mode mode, const char* from, char* to) {
    constexpr int64_t size = bytes_of<D>;
    const int64_t first = s.attr[OFFSET].integer, n = 2 * tables.pairs, after = first + n, width = s.out.last();
    if (mode == NORMAL)
        turn_neighbours<D>(tables, from + first * size, to + first * size, n);
    else
        turn_halves<D>(tables, from + first * size, to + first * size);
    if (to == from) return;
    if (first) memcpy(to, from, size_t(first * size));
    if (width > after) memcpy(to + after * size, from + after * size, size_t((width - after) * size));
}

JF_INLINE double magnitude_of(const Step& s) {
    double magnitude;
    memcpy(&magnitude, &s.note[2], 8);
    return magnitude;
}

// note[0]: the mode; note[1], note[2]: as f64 the factor from one pair's frequency to the next, and the magnitude.
inline void bind_rope(Step& s) {
    s.note[0] = mode_of(s);
    const double step = __builtin_exp(-2 / s.attr[N_DIMS].number * __builtin_log(s.attr[BASE].number));
    memcpy(&s.note[1], &step, 8);
    double magnitude = s.attr[ATTN_FACTOR].number;
    if (s.attr[EXT_FACTOR].number != 0) magnitude *= 1 - 0.1 * __builtin_log(s.attr[SCALE].number);
    memcpy(&s.note[2], &magnitude, 8);
}

}  // namespace
}  // namespace jackfield

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

// a*b + c; one rounding where the level has it
JF_INLINE vd fma(vd a, vd b, vd c) {
#if defined(__AVX512F__)
    return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined(__AVX2__)
    return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#elif defined(__ARM_NEON)
    return (vd)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
#else
    return a * b + c;
#endif
}

inline bool same_text(const char* a, const char* b) {
    while (*a && *a == *b) a++, b++;
    return *a == *b;
}

JF_INLINE bool one_list(Mode mode) { return mode == NORMAL || mode == NEOX; }

inline Mode mode_of(const Step& s) {
    const char* const names[] = {"normal", "neox", "mrope", "imrope", "vision"};
    for (int64_t m = NORMAL; m < UNKNOWN; m++)
        if (s.attr[MODE].text && same_text(s.attr[MODE].text, names[m])) return Mode(m);
    return UNKNOWN;
}

// The sines of a position are made from those of an anchor, the last multiple of NEAR, and those of the way from there:
// e^(i(a + b)) = e^(ia) e^(ib), in f64. From so many tokens on both are kept in tables. It is the same sum for one
// token alone, so that a position's sines don't depend on its neighbours.
constexpr int64_t MANY_TOKENS = 64, NEAR = 16;

// Work memory of one worker. angle: radians per unit of position, by pair; axis: which of the four position lists.
struct Tables {
    int64_t pairs, padded;  // padded to whole vectors
    double* angle;
    int64_t* axis;
    double* near_waves;      // cosines of 0 to NEAR - 1 steps, by step and pair, then the sines; null for few tokens
    double* anchor_waves;    // cosines and sines of the anchor, times the magnitude
    Share reach[1 << RANK];  // by a set of lists, a bit each: whole vectors that hold all their pairs
    const float* held;       // the `cosine` that was filled last, for a token at these positions
    int64_t position[RANK], list[RANK];  // in each list, and where that begins
    float *cosine, *sine;  // normal: by channel, each value twice, the sine of the first with a minus; else by pair
    char* row;             // one row of x, for results with gaps

    JF_INLINE static int64_t pairs_of(const Step& s) {
        return mode_of(s) == VISION ? s.attr[N_DIMS].integer : s.attr[N_DIMS].integer / 2;
    }
    JF_INLINE static int64_t nbytes(const Step& s) {
        const int64_t padded = (pairs_of(s) + W - 1) / W * W;
        const int64_t waves = many(s) ? 16 * padded * (NEAR + 1) : 0;
        return (waves + padded * (8 + 8 + 8 + 8) + s.out.last() * 4 + 63) / 64 * 64;
    }
    JF_INLINE static bool many(const Step& s) { return s.in[0].shape[1] >= MANY_TOKENS; }
    JF_INLINE Tables(const Step& s, char* at) : pairs(pairs_of(s)), padded((pairs + W - 1) / W * W), held(nullptr) {
        near_waves = many(s) ? (double*)at : nullptr;
        anchor_waves = near_waves + 2 * padded * NEAR;
        if (near_waves) at += 16 * padded * (NEAR + 1);
        for (int64_t& p : position) p = INT64_MIN;  // no token's
        angle = (double*)at;
        cosine = (float*)(at + padded * 8);
        sine = cosine + 2 * padded;
        axis = (int64_t*)(sine + 2 * padded);
        row = (char*)(axis + padded);
    }
};

// Which section holds j, by cumulative bounds; `start` is where it begins.
JF_INLINE int64_t section_of(const Attr& sections, int64_t j, int64_t& start) {
    start = 0;
    for (int64_t c = 0; c < 3; c++) {
        const int64_t end = start + int64_t(sections.numbers[c]);
        if (j < end) return c;
        start = end;
    }
    return 3;
}

JF_INLINE int64_t interleaved(const Attr& sections, int64_t j) {
    const int64_t c = j % 3;
    return double(j) < 3 * sections.numbers[c] ? c : 3;
}

// The position list and the exponent of a pair.
JF_INLINE void place_pair(const Step& s, Mode mode, int64_t i, int64_t& axis, int64_t& exponent) {
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

inline void fill_pairs(const Step& s, const Tables& tables, Mode mode) {
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

JF_INLINE vd spread(double x) { return x - vd{}; }

// Sine and cosine of angles in f64: whole quarter turns off in two parts (exact below 2^20 turns), then Taylor's series
// on +-pi/4, far below f32's resolution.
JF_INLINE void sine_cosine(vd a, vd& sine, vd& cosine) {
    const vd magic = fma(a, spread(0.6366197723675814), spread(6755399441055744.0)), q = magic - 6755399441055744.0;
    const vl quarter = (vl)magic;
    const vd r = fma(q, spread(-6.07710050650619224932e-11), fma(q, spread(-1.57079632673412561417), a)), z = r * r;
    vd p = fma(z, spread(1.0 / 6227020800), spread(-1.0 / 39916800));
    p = fma(p, z, spread(1.0 / 362880));
    p = fma(p, z, spread(-1.0 / 5040));
    p = fma(p, z, spread(1.0 / 120));
    p = fma(p, z, spread(-1.0 / 6));
    const vd sn = fma(r * z, p, r);
    p = fma(z, spread(1.0 / 479001600), spread(-1.0 / 3628800));
    p = fma(p, z, spread(1.0 / 40320));
    p = fma(p, z, spread(-1.0 / 720));
    p = fma(p, z, spread(1.0 / 24));
    p = fma(p, z, spread(-0.5));
    const vd cs = fma(z, p, spread(1.0));
    const vl swap = (vl)((quarter & 1) != 0);
    sine = (vd)((((vl)cs & swap) | ((vl)sn & ~swap)) ^ ((quarter & 2) << 62));
    cosine = (vd)((((vl)sn & swap) | ((vl)cs & ~swap)) ^ (((quarter + 1) & 2) << 62));
}

// The angles of pairs i to i + WD at a position p, which has a place in up to four lists.
JF_INLINE vd angles_at(const Tables& tables, Mode mode, int64_t i, const double* p) {
    vd a;
    memcpy(&a, tables.angle + i, sizeof a);
    if (one_list(mode)) return a * p[0];
    for (int j = 0; j < WD; j++) a[j] *= p[tables.axis[i + j]];
    return a;
}

// Both halves of a vector of f32.
JF_INLINE vf joined(vd low, vd high) {
    const vfh a = __builtin_convertvector(low, vfh), b = __builtin_convertvector(high, vfh);
#if defined(__AVX512F__)
    return _mm512_insertf32x8(_mm512_castps256_ps512((__m256)a), (__m256)b, 1);
#elif defined(__AVX2__)
    return _mm256_insertf128_ps(_mm256_castps128_ps256((__m128)a), (__m128)b, 1);
#else
    vf x;
    memcpy(&x, &a, sizeof a), memcpy((char*)&x + sizeof a, &b, sizeof b);
    return x;
#endif
}

// Each value of one half twice.
JF_INLINE vf doubled(vf x, int half) {
#if defined(__ARM_NEON)
    return half ? (vf)vzip2q_f32((float32x4_t)x, (float32x4_t)x) : (vf)vzip1q_f32((float32x4_t)x, (float32x4_t)x);
#else
    vi order;
    for (int i = 0; i < W; i++) order[i] = half * (W / 2) + i / 2;
    return __builtin_shuffle(x, order);
#endif
}

// v in the lanes of even number, 0 in the others.
JF_INLINE vi alternating(int32_t v) {
    vi x;
    for (int i = 0; i < W; i++) x[i] = i % 2 ? 0 : v;
    return x;
}

// Where the waves of a token are kept, as the mode has them.
struct Waves {
    char *cosine, *sine;

    JF_INLINE explicit Waves(const Tables& tables) : cosine((char*)tables.cosine), sine((char*)tables.sine) {}

    // Those of pairs i to i + W, each in two vectors.
    JF_INLINE void keep(bool neighbours, int64_t i, const vd* cosines, const vd* sines) const {
        const vf c = joined(cosines[0], cosines[1]), s = joined(sines[0], sines[1]);
        if (!neighbours) {
            store<F32>(cosine + i * 4, c);
            store<F32>(sine + i * 4, s);
            return;
        }
        const vi first = alternating(int32_t(0x80000000));
        store<F32>(cosine + i * 8, doubled(c, 0));  // each value for two channels
        store<F32>(cosine + (i * 2 + W) * 4, doubled(c, 1));
        store<F32>(sine + i * 8, of_bits(bits_of(doubled(s, 0)) ^ first));
        store<F32>(sine + (i * 2 + W) * 4, of_bits(bits_of(doubled(s, 1)) ^ first));
    }
};

// Where token t stands in list c, or in the first where there are fewer.
JF_INLINE int64_t position_in(const View& positions, int64_t t, int64_t c) {
    int32_t p;
    memcpy(&p, positions.data + t * positions.stride[3] + (c < positions.shape[2] ? c : 0) * positions.stride[2], 4);
    return p;
}

inline void fill_near(const Tables& tables) {
    for (int64_t k = 0; k < NEAR; k++)
        for (int64_t i = 0; i < tables.padded; i += WD) {
            vd a, sine, cosine;
            memcpy(&a, tables.angle + i, sizeof a);
            sine_cosine(a * double(k), sine, cosine);
            memcpy(tables.near_waves + k * tables.padded + i, &cosine, sizeof cosine);
            memcpy(tables.near_waves + (NEAR + k) * tables.padded + i, &sine, sizeof sine);
        }
}

inline void find_lists(Tables& tables, const View& positions) {
    for (int64_t c = 0; c < RANK; c++) tables.list[c] = (c < positions.shape[2] ? c : 0) * positions.stride[2];
    Share of[RANK];
    for (Share& r : of) r = {tables.padded, 0};
    for (int64_t i = 0; i < tables.padded; i++) {
        Share& r = of[tables.axis[i]];
        const int64_t vector = i / W * W;
        r.begin = vector < r.begin ? vector : r.begin;
        r.end = vector + W;
    }
    tables.reach[0] = {tables.padded, 0};
    for (int c = 0; c < RANK; c++)
        for (int set = 0; set < 1 << c; set++) {
            const Share r = tables.reach[set];
            tables.reach[set | 1 << c] = {r.begin < of[c].begin ? r.begin : of[c].begin,
                                          r.end > of[c].end ? r.end : of[c].end};
        }
}

// The angles of a step, and what is made from them once.
inline void fill_angles(const Step& s, Tables& tables, Mode mode) {
    fill_pairs(s, tables, mode);
    if (!tables.near_waves) return;
    if (!one_list(mode)) find_lists(tables, s.in[1]);
    fill_near(tables);
}

inline void fill_anchor(const Tables& tables, Mode mode, double magnitude, const Share& pairs) {
    double p[RANK];
    for (int c = 0; c < RANK; c++) p[c] = double(tables.position[c] & -NEAR);
    for (int64_t i = pairs.begin; i < pairs.end; i += WD) {
        vd sine, cosine;
        sine_cosine(angles_at(tables, mode, i, p), sine, cosine);
        sine *= magnitude;
        cosine *= magnitude;
        memcpy(tables.anchor_waves + i, &cosine, sizeof cosine);
        memcpy(tables.anchor_waves + tables.padded + i, &sine, sizeof sine);
    }
}

// Waves of the sum of two angles.
JF_INLINE void add_angles(vd c, vd s, vd near_c, vd near_s, vd& cosine, vd& sine) {
    cosine = fma(c, near_c, -(s * near_s));
    sine = fma(s, near_c, c * near_s);
}

// The waves of the way from the anchor, for pairs i to i + WD. step: where those of each list's way lie in the table.
template <int LISTS>
JF_INLINE vd near_at(const int64_t* axes, const double* waves, int64_t i, const int64_t* step) {
    vd v, other;
    memcpy(&v, waves + step[0] + i, sizeof v);
    if (LISTS == 1) return v;
    vl axis;
    memcpy(&axis, axes + i, sizeof axis);
    for (int64_t c = 1; c < LISTS; c++) {
        memcpy(&other, waves + step[c] + i, sizeof other);
        v = axis == c ? other : v;
    }
    return v;
}

template <int LISTS, bool NEIGHBOURS>
JF_INLINE void add_near(const Tables& tables, const int64_t* step, const Share& pairs) {
    const int64_t padded = tables.padded, *axes = tables.axis;
    const double *cosines = tables.near_waves, *sines = cosines + NEAR * padded, *anchor = tables.anchor_waves;
    const Waves waves(tables);
    for (int64_t i = pairs.begin; i < pairs.end; i += W) {
        vd sine[2], cosine[2];
        for (int half = 0; half < 2; half++) {
            const int64_t at = i + half * WD;
            vd c, s;
            memcpy(&c, anchor + at, sizeof c);
            memcpy(&s, anchor + padded + at, sizeof s);
            const vd near_c = near_at<LISTS>(axes, cosines, at, step);
            const vd near_s = near_at<LISTS>(axes, sines, at, step);
            add_angles(c, s, near_c, near_s, cosine[half], sine[half]);
        }
        waves.keep(NEIGHBOURS, i, cosine, sine);
    }
}

JF_INLINE void fill_from_anchor(Tables& tables, int64_t position, Mode mode, double magnitude) {
    const int64_t step = (position & (NEAR - 1)) * tables.padded;
    const Share all{0, tables.padded};
    const bool fresh = ((position ^ tables.position[0]) & -NEAR) != 0;
    tables.position[0] = position;
    if (fresh) fill_anchor(tables, mode, magnitude, all);
    if (mode == NORMAL)
        add_near<1, true>(tables, &step, all);
    else
        add_near<1, false>(tables, &step, all);
}

// The same from several lists. Only what moved since the token before: in a row of a picture that is one list.
template <int LISTS>
JF_INLINE void fill_from_anchors(Tables& tables, const View& positions, int64_t t, Mode mode, double magnitude) {
    int64_t step[LISTS], differ = 0, moved = tables.held == tables.cosine ? 0 : (1 << LISTS) - 1, fresh = 0;
    const char* const at = positions.data + t * positions.stride[3];
    for (int64_t c = 0; c < LISTS; c++) {
        int32_t here;
        memcpy(&here, at + tables.list[c], 4);
        int64_t p = here;
        __asm__("" : "+r"(p));  // no vectors of four, which would be stored in parts and read as one
        step[c] = (p & (NEAR - 1)) * tables.padded;
        differ |= step[c] ^ step[0];
        if (p == tables.position[c]) continue;
        moved |= int64_t(1) << c;
        if ((p ^ tables.position[c]) & -NEAR) fresh |= int64_t(1) << c;
        tables.position[c] = p;
        __asm__("" : "+r"(moved));  // a branch: what moves is foreseen, and five steps less for a list that does not
    }
    tables.held = tables.cosine;
    if (fresh) fill_anchor(tables, mode, magnitude, tables.reach[fresh]);
    if (differ)
        add_near<LISTS, false>(tables, step, tables.reach[moved]);
    else
        add_near<1, false>(tables, step, tables.reach[moved]);
}

// The same without tables, to the bit.
JF_INLINE void fill_alone(const Tables& tables, const View& positions, int64_t t, Mode mode, double magnitude) {
    double anchor[RANK], near[RANK];
    for (int c = 0; c < (one_list(mode) ? 1 : RANK); c++) {
        const int64_t p = position_in(positions, t, c);
        near[c] = double(p & (NEAR - 1));
        anchor[c] = double(p & -NEAR);
    }
    const Waves waves(tables);
    for (int64_t i = 0; i < tables.padded; i += W) {
        vd sine[2], cosine[2];
        for (int half = 0; half < 2; half++) {
            const int64_t at = i + half * WD;
            vd c, s, near_c, near_s;
            sine_cosine(angles_at(tables, mode, at, anchor), s, c);
            sine_cosine(angles_at(tables, mode, at, near), near_s, near_c);
            add_angles(c * magnitude, s * magnitude, near_c, near_s, cosine[half], sine[half]);
        }
        waves.keep(mode == NORMAL, i, cosine, sine);
    }
}

// Cosines and sines of one token, times the magnitude.
inline void fill_token(const Step& s, Tables& tables, int64_t t, Mode mode, double magnitude) {
    if (!tables.near_waves)
        fill_alone(tables, s.in[1], t, mode, magnitude);
    else if (one_list(mode))
        fill_from_anchor(tables, position_in(s.in[1], t, 0), mode, magnitude);
    else if (tables.reach[1 << 3].end == 0)  // nothing turns by the fourth list, as usual
        fill_from_anchors<3>(tables, s.in[1], t, mode, magnitude);
    else
        fill_from_anchors<RANK>(tables, s.in[1], t, mode, magnitude);
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
    const Waves waves(tables);
    const auto turned = [&](vf v, int64_t i) {
        return fma(v, load<F32>(waves.cosine + i * 4), swap_neighbours(v) * load<F32>(waves.sine + i * 4));
    };
    int64_t i = 0;
    for (; i + W <= n; i += W) store<D>(out + i * size, turned(load<D>(x + i * size), i));
    if (i < n) store_part<D>(out + i * size, turned(load_part<D>(x + i * size, n - i), i), n - i);
}

// Pairs (i, i + pairs).
template <DType D>
JF_INLINE void turn_halves(const Tables& tables, const char* x, char* out) {
    constexpr int size = bytes_of<D>;
    const int64_t n = tables.pairs, gap = n * size;
    const Waves waves(tables);
    const auto turn = [&](vf& a, vf& b, int64_t i) {
        const vf c = load<F32>(waves.cosine + i * 4), s = load<F32>(waves.sine + i * 4), first = a;
        a = fma(first, c, -(b * s));
        b = fma(first, s, b * c);
    };
    int64_t i = 0;
    for (; i + W <= n; i += W) {
        vf a = load<D>(x + i * size), b = load<D>(x + i * size + gap);
        turn(a, b, i);
        store<D>(out + i * size, a);
        store<D>(out + i * size + gap, b);
    }
    if (i == n) return;
    vf a = load_part<D>(x + i * size, n - i), b = load_part<D>(x + i * size + gap, n - i);
    turn(a, b, i);
    store_part<D>(out + i * size, a, n - i);
    store_part<D>(out + i * size + gap, b, n - i);
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

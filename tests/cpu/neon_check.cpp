// The NEON code of the kernels against plain loops: built for one level and run by test_neon, perhaps under emulation.
// Says what differs, one line each; the exit status is 1 then.
#include "attention_blocks.h"
#include "functions.h"
#include "rope.h"
#include "tiles_blocks.h"
#include "tiles_floats.h"
#include "transpose.h"
#include "wide_sum.h"

#include <stdio.h>

using namespace jackfield;

static int failures = 0;
static void expect(bool same, const char* what, long long a, long long b, double got, double want) {
    if (same) return;
    failures++;
    printf("%s(%lld, %lld): %.9g, must be %.9g\n", what, a, b, got, want);
}
static bool same_bits(float a, float b) { return (a != a && b != b) || bits_of_float(a) == bits_of_float(b); }

static uint32_t state = 1;
static uint32_t random_bits() {
    state = state * 1664525u + 1013904223u;
    return state >> 8 ^ state << 20;
}
static int below(int n) { return int(random_bits() % uint32_t(n)); }

// ---- vectors of f32 -------------------------------------------------------------------------------------------------

static const float ODD[] = {
    0.0f,  -0.0f,   1.5f,   -2.5f,     0x1p-149f,        -0x1p-130f,        3e38f, -1e20f,
    65504, 65519.9, 65520,  0x1p-24f,  0x1p-25f,         0x1.8p-25f,        1e-7f, -7.75f,
    0.5f,  -0.5f,   126.5f, 126.4999f, __builtin_inff(), -__builtin_inff(), 1e9f,  __builtin_nanf("")};

static void check_words() {
    for (float a : ODD)
        for (float b : ODD) {
            expect(same_bits(max(splat(a), splat(b))[1], a > b ? a : b), "max", 0, 0, max(splat(a), splat(b))[1], a);
            expect(same_bits(min(splat(a), splat(b))[2], a < b ? a : b), "min", 0, 0, min(splat(a), splat(b))[2], a);
            const float got = fma(splat(a), splat(b), splat(-7.75f))[3], want = __builtin_fmaf(a, b, -7.75f);
            expect(same_bits(got, want), "fma", 0, 0, got, want);
        }
    for (float a : ODD)
        if (a > -2e9f && a < 2e9f) expect(truncate(splat(a))[0] == int(a), "truncate", 0, 0, truncate(splat(a))[0], a);
    const vf x = {1, -20, 300, 4};
    expect(sum(x) == 285, "sum", 0, 0, sum(x), 285);
    expect(largest(x) == 300, "largest", 0, 0, largest(x), 300);
    WideSum wide;
    wide.add(vf{0x1p40f, 1, 0x1p-10f, 2});
    wide.add(vf{1, 1, 1, 1});
    expect(wide.total() == 0x1p40 + 7 + 0x1p-10, "WideSum", 0, 0, wide.total(), 0);
}

static bool near(double got, double want, double bound) { return __builtin_fabs(got - want) <= bound; }

static void check_functions() {
    for (float a : ODD) {
        expect(same_bits(sqrt(splat(a))[2], __builtin_sqrtf(a)), "sqrt", 0, 0, sqrt(splat(a))[2], a);
        expect(same_bits(trunc(splat(a))[1], __builtin_truncf(a)), "trunc", 0, 0, trunc(splat(a))[1], a);
        expect(same_bits(floor(splat(a))[0], __builtin_floorf(a)), "floor", 0, 0, floor(splat(a))[0], a);
        expect(same_bits(ceil(splat(a))[3], __builtin_ceilf(a)), "ceil", 0, 0, ceil(splat(a))[3], a);
        expect(same_bits(round_away(splat(a))[3], __builtin_roundf(a)), "round_away", 0, 0, round_away(splat(a))[3], a);
    }
    for (int i = 0; i < 4000; i++) {
        const float x = float(i - 2000) * 0.37f;
        const double sn = __builtin_sin(double(x)), cs = __builtin_cos(double(x));
        expect(near(sine(splat(x), 0)[1], sn, 2e-7), "sine", i, 0, sine(splat(x), 0)[1], sn);
        expect(near(sine(splat(x), 1)[2], cs, 2e-7), "cosine", i, 0, sine(splat(x), 1)[2], cs);
        vd s, c;
        const double far = double(i) * 517.3;
        sine_cosine(spread(far), s, c);
        expect(near(s[1], __builtin_sin(far), 1e-12), "sine f64", i, 0, s[1], __builtin_sin(far));
        expect(near(c[0], __builtin_cos(far), 1e-12), "cosine f64", i, 0, c[0], __builtin_cos(far));
    }
    const double exact = 0x1p-60;  // lost where the product is rounded before the sum
    const vd one = fma(spread(1 + 0x1p-30), spread(1 + 0x1p-30), spread(-1 - 0x1p-29));
    expect(one[0] == exact && one[1] == exact, "fma f64", 0, 0, one[0], exact);
}

static void check_orders() {
    const vf x = {1, 2, 3, 4};
    const float swapped[] = {2, 1, 4, 3}, low[] = {1, 1, 2, 2}, high[] = {3, 3, 4, 4};
    const vf both = joined(vd{1, 2}, vd{3, 4});
    for (int i = 0; i < 4; i++) {
        expect(swap_neighbours(x)[i] == swapped[i], "swap_neighbours", i, 0, swap_neighbours(x)[i], swapped[i]);
        expect(doubled(x, 0)[i] == low[i], "doubled", i, 0, doubled(x, 0)[i], low[i]);
        expect(doubled(x, 1)[i] == high[i], "doubled", i, 1, doubled(x, 1)[i], high[i]);
        expect(both[i] == x[i], "joined", i, 0, both[i], x[i]);
    }
}

// Every byte of a square has another value than its neighbours.
template <int SIZE, bool PAST>
static void check_square() {
    constexpr int N = int(SQUARE<SIZE>), LINE_BYTES = int(CACHE_LINE);
    alignas(64) static char from[N * LINE_BYTES], to[N * LINE_BYTES];
    for (int i = 0; i < N * LINE_BYTES; i++) from[i] = char(i * 7 + i / 256 * 3);
    for (int columns = N; columns > 0; columns /= 2) {
        memset(to, 0, sizeof to);
        turn_square<SIZE, PAST>(from, to, LINE_BYTES, N, columns);
        for (int r = 0; r < N; r++)
            for (int c = 0; c < N; c++) {
                const char none[SIZE] = {}, *want = c < columns ? from + r * LINE_BYTES + c * SIZE : none;
                const char* got = to + c * LINE_BYTES + r * SIZE;
                expect(!memcmp(got, want, SIZE), "turn_square", SIZE, r * N + c, *got, *want);
            }
    }
}

static void check_halves() {
    for (uint32_t h = 0; h < 65536; h++) {
        const uint16_t four[4] = {uint16_t(h), 0, uint16_t(h ^ 1), 0x3c00};
        const vf got = load<F16>((const char*)four);
        expect(same_bits(got[0], half_to_float(four[0])), "load f16", h, 0, got[0], half_to_float(four[0]));
        expect(same_bits(got[2], half_to_float(four[2])), "load f16", h, 2, got[2], half_to_float(four[2]));
    }
    for (int i = 0; i < 200000; i++) {
        const float x = i < int(sizeof ODD / 4) ? ODD[i]
                        : i % 2                 ? float_of(random_bits())
                                                : float(below(1 << 20)) * 0x1p-24f;
        uint16_t four[4];
        store<F16>((char*)four, splat(x));
        const uint16_t want = float_to_half(x);
        const bool nan = x != x && (four[3] & 0x7fff) > 0x7c00;
        expect(nan || four[3] == want, "store f16", i, 0, four[3], want);
    }
}

static void check_lanes() {
    uint8_t bytes[16], table[16];
    for (int i = 0; i < 16; i++) bytes[i] = uint8_t(17 * i + 3), table[i] = uint8_t(250 - 13 * i);
    Table t;
    memcpy(t.byte, table, 16);
    uint8_t index[16], found[16];
    for (int i = 0; i < 16; i++) index[i] = uint8_t(i * 7 % 16);
    const vi looked = look_up(t, bytes_at(index));
    memcpy(found, &looked, 16);
    for (int i = 0; i < 16; i++) expect(found[i] == table[index[i]], "look_up", i, 0, found[i], table[index[i]]);
    for (int i = 0; i < 4; i++) {
        expect(unsigned_lanes(bytes + 9)[i] == bytes[9 + i], "unsigned_lanes", i, 0, unsigned_lanes(bytes + 9)[i],
               bytes[9 + i]);
        expect(signed_lanes(bytes + 9)[i] == int8_t(bytes[9 + i]), "signed_lanes", i, 0, signed_lanes(bytes + 9)[i], 0);
    }
    static float lines[GROUP * LINE], columns[10 * GROUP];
    for (int i = 0; i < GROUP * LINE; i++) lines[i] = float(i);
    turn_lines(lines, 10, columns);
    for (int k = 0; k < 10; k++)
        for (int r = 0; r < GROUP; r++)
            expect(columns[k * GROUP + r] == lines[r * LINE + k], "turn_lines", k, r, columns[k * GROUP + r], 0);
}

// ---- activations ----------------------------------------------------------------------------------------------------

static int rounded_away(float x) { return x < 0 ? -int(double(-x) + 0.5) : int(double(x) + 0.5); }
static int rounded_even(float x) { return int(__builtin_rint(double(x))); }

template <bool SUPER, bool AFFINE, int HALVES>
static void check_rounding(int shift) {
    constexpr int K = 512, WIDTH = 3, M = 1;
    constexpr int64_t unit = Activation{SUPER, false, AFFINE, 0, HALVES}.unit_nbytes() * WIDTH;
    static float x[K];
    static char panel[K / 32 * unit];
    for (int i = 0; i < K; i++)  // halves in the first blocks, where the scale is 1; then anything
        x[i] = i < K / 2 ? float(below(252) - 126) + 0.5f : float(below(1 << 16) - (1 << 15)) * 0x1p-12f;
    for (int i = 0; i < K; i += 32) x[i] = i < K / 2 ? -127 : -9;
    quantise_row<SUPER, false, AFFINE, HALVES>(x, K, panel, WIDTH, M, shift);
    for (int u = 0; u < K / 32; u++) {
        const char* at = panel + u * unit;
        const float top = u < K / 64 ? 127.0f : 9.0f, d = SUPER ? 1 / (-127.0f / -top) : top / 127.0f;
        const float factor = SUPER ? -127.0f / -top : 1 / d;
        const int8_t* quants = (const int8_t*)at + 32 * M;
        int total[2] = {0, 0};
        for (int i = 0; i < 32; i++) {
            const float y = x[32 * u + i] * factor;
            const int want = SUPER ? rounded_even(y) : rounded_away(y);
            expect(quants[i] == want, SUPER ? "quants to even" : "quants away", u, i, quants[i], want);
            total[HALVES == 2 && i >= 16] += want;
        }
        const float* scale = (const float*)(at + 32 * WIDTH) + M;
        expect(same_bits(*scale, d), "scale", u, SUPER, *scale, d);
        for (int half = 0; half < HALVES; half++) {
            const char* sum = (const char*)(scale + WIDTH * (half + 1));
            int32_t whole;
            memcpy(&whole, sum, 4);
            const float real = float_of(uint32_t(whole)), want = float(total[half]) * d;
            if (AFFINE)
                expect(same_bits(real, want), "sums", u, half, real, want);
            else
                expect(whole == -(total[half] << shift), "sums", u, half, whole, -(total[half] << shift));
        }
    }
}

// ---- products -------------------------------------------------------------------------------------------------------

template <int BITS, int COUNT>
static void check_dots() {
    constexpr Products P = products_of(BITS);
    for (int round = 0; round < 64; round++) {
        uint8_t w[8][16];
        int8_t q[COUNT][32];
        for (auto& row : w)
            for (auto& b : row) b = uint8_t(round == 0 ? (1 << BITS) - 1 : round == 1 ? 0 : below(1 << BITS));
        for (auto& row : q)
            for (auto& b : row) b = int8_t(round < 8 ? (round & 2 ? -127 : 127) : below(255) - 127);
        const int offset = made_signed(P, BITS) ? 128 : 0;
        vi words[8], sums[COUNT];
        for (int j = 0; j < 8; j++) {
            words[j] = bytes_at(w[j]);
            if (offset) words[j] ^= every_byte(0x80);
        }
        const int first = round % 3 == 1 ? 4 : 0, last = round % 3 == 2 ? 4 : 8;
        for (vi& sum : sums) sum = vi{} + round;
        dots<P, BITS, COUNT>(sums, words, (const char*)q, first, last);
        for (int m = 0; m < COUNT; m++)
            for (int lane = 0; lane < 4; lane++) {
                int want = round;
                for (int c = 4 * first; c < 4 * last; c++) want += (w[c / 4][4 * lane + c % 4] - offset) * q[m][c];
                expect(sums[m][lane] == want, "dots", BITS, COUNT, sums[m][lane], want);
            }
    }
}

// Random blocks whose f16 scales are 1, and x whose largest are 127, so that all is a sum of few whole numbers (or
// eighths of them) and exact: the tile must give what decoded blocks give.
template <int32_t D, int WIDTH>
static void check_tile() {
    constexpr int K = 256;
    constexpr Activation a = Format<D>::activation;
    static uint8_t rows[GROUP][row_nbytes(D, K)], group[group_nbytes(D, K)];
    for (auto& row : rows)
        for (int b = 0; b < K / block_length(D); b++) {
            uint8_t* const block = row + b * block_nbytes(D);
            for (int i = 0; i < block_nbytes(D); i++) block[i] = uint8_t(random_bits());
            for (const Field& f : fields_of(D).field)
                if (f.chunk == 2 && f.length == 2) write_half(block + f.plain, 1);
        }
    pack_group(D, (const char*)rows, row_nbytes(D, K), GROUP, K, (char*)group);
    static float x[WIDTH][K];
    static char panel[K / 32 * WIDTH * a.unit_nbytes()];
    for (int m = 0; m < WIDTH; m++) {
        for (float& v : x[m]) v = float(below(255) - 127);
        for (int i = 0; i < K; i += 32) x[m][i] = 127;
        quantise_row<a.super, a.wide, a.affine, a.halves>(x[m], K, panel, WIDTH, m, a.shift);
    }
    const int64_t blocks = K / block_length(D);
    alignas(64) float out[2][WIDTH][GROUP] = {};
    if constexpr (Format<D>::WAY == DIRECT) tile<D, WIDTH>(group, panel, blocks, out[0][0]);
    if constexpr (IS_STAGED<D>) {
        constexpr int32_t form = staged_form(a.halves, a.affine);
        static uint8_t staged[K / 32 * (staged_scales(a) + STAGED_QUANTS)];
        stage<D>(group, blocks, staged);
        tile<form, WIDTH>(staged, panel, K / 32, out[1][0]);
    }
    for (int m = 0; m < WIDTH; m++)
        for (int r = 0; r < GROUP; r++) {
            double want = 0;
            for (int b = 0; b < blocks; b++) {
                float w[256];
                decode_block(D, rows[r] + b * block_nbytes(D), w);
                for (int i = 0; i < block_length(D); i++) want += double(w[i]) * double(x[m][b * block_length(D) + i]);
            }
            if (Format<D>::WAY == DIRECT) expect(out[0][m][r] == want, "tile", D, m, out[0][m][r], want);
            if (IS_STAGED<D>) expect(out[1][m][r] == want, "staged tile", D, m, out[1][m][r], want);
        }
}

template <int32_t D>
static void check_type() {
    check_tile<D, 1>();
    check_tile<D, 3>();
}

// ---- caches of attention --------------------------------------------------------------------------------------------

// Two rows of two blocks of any bits but finite scales: each way to read them gives the bits of `decode_block`.
template <DType D>
static void check_cache() {
    constexpr int64_t nbytes = block_nbytes(D);
    for (int round = 0; round < 200; round++) {
        uint8_t rows[2][2 * nbytes];
        float want[2][64], wide[64], factors[4 * 2 + W];
        for (auto& row : rows)
            for (auto& b : row) b = uint8_t(random_bits());
        for (int i = 0; i < 4; i++) {
            uint8_t* const block = rows[i / 2] + i % 2 * nbytes;
            for (int half = 0; half < 2 - (D == Q8_0 || D == Q4_0 || D == Q5_0 || D == IQ4_NL); half++)
                write_half(block + 2 * half, float(below(1 << 12) - (1 << 11)) * 0x1p-9f);
            decode_block(D, block, want[i / 2] + 32 * (i % 2));
        }
        read_factors(D, (const char*)rows, 2 * nbytes, 2, 2, factors, 2);
        const CodedRows<D> cache{(const char*)rows, 2 * nbytes, factors, factors + 4, 2, {nullptr, 0}};
        for (int r = 0; r < 2; r++) {
            expect(!widen_blocks<D>((const char*)rows[r], wide, 64), "widen_blocks", D, r, 1, 0);
            for (int d = 0; d < 64; d++) {
                const float one = cache.one(r, d / W * W)[d % W];
                const float placed = cache.place(0, d / 32 * 32).load(r, d % 32 / W * W)[d % W];
                expect(same_bits(wide[d], want[r][d]), "widen_blocks", D, d, wide[d], want[r][d]);
                expect(same_bits(one, want[r][d]), "a vector of a cache", D, d, one, want[r][d]);
                expect(same_bits(placed, want[r][d]), "a place in a cache", D, d, placed, want[r][d]);
            }
        }
    }
}

int main() {
    check_words();
    check_functions();
    check_orders();
    check_square<1, false>(), check_square<2, true>(), check_square<4, false>(), check_square<8, true>();
    check_halves();
    check_lanes();
    check_rounding<false, false, 1>(3);
    check_rounding<false, true, 1>(0);
    check_rounding<true, false, 2>(7);
    check_rounding<true, true, 2>(0);
    check_dots<1, 1>(), check_dots<2, 3>(), check_dots<3, 4>(), check_dots<4, 2>();
    check_dots<5, 4>(), check_dots<6, 1>(), check_dots<7, 4>(), check_dots<8, 3>();
    check_type<Q4_0>(), check_type<Q5_1>(), check_type<Q8_0>(), check_type<IQ4_NL>(), check_type<Q4_K>();
    check_type<Q6_K>(), check_type<IQ4_XS>(), check_type<TQ1_0>(), check_type<IQ2_XXS>();
    check_cache<Q8_0>(), check_cache<Q4_0>(), check_cache<Q4_1>(), check_cache<Q5_0>(), check_cache<Q5_1>();
    check_cache<IQ4_NL>();
    printf("%d failures\n", failures);
    return failures != 0;
}

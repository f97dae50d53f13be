// f32 to one block of rows of a codebook: iq1, iq2 and iq3. A scale is fitted to each sub-block by trial, then coded;
// the rows are the nearest for the scale as coded. Byte-equal to the core's encode.
#include "encoding.h"
#include "nearest_rows.h"

namespace jackfield {
namespace {

using namespace codebook;

constexpr float MOST = 1e15f;  // beyond this factor squares would overflow
constexpr float DELTAS[] = {0.125f, -0.125f};

// How a type's blocks are fitted. Signed: negatives are bits, even in number for each 8 elements where `even`. Else
// elements are values of a row plus one of two deltas, chosen for each row where `mixed` and else for all under a
// scale.
struct Kind {
    const Rows& rows;
    int sub;      // elements under one scale
    int top;      // the largest code n of a scale; the scale is d (2n + 1)
    int largest;  // value of the codebook, which trials are relative to; 0: not signed
    bool even, mixed;

    bool is_signed() const { return largest > 0; }
    int groups() const { return sub / rows.width; }
    int trials() const { return is_signed() ? 14 : 13; }
    // A scale to try, in units of the largest magnitude or of the root mean square.
    float trial(int t) const { return is_signed() ? float(14 + t) / float(20 * largest) : float(6 + t) / 10; }
};

// Built when first asked for.
template <const auto& WORDS>
const Rows& rows_of() {
    static const Rows rows(WORDS);
    return rows;
}

// One block as found. An index counts over the rows with the first delta, then those with the second.
struct Block {
    float d;
    uint8_t codes[16];
    uint8_t signs[32];  // bit j of byte i: element 8 i + j is negative
    uint16_t index[64];
};

// Elements under one scale, relative to `unit`, and the trials on them.
class SubBlock {
public:
    SubBlock() = default;

    SubBlock(const Kind& how, const float* x, uint8_t* signs) : kind(&how) {
        const int n = how.sub;
        unit = how.is_signed() ? magnitude(x, n) : root_mean_square(x, n);
        if (unit == 0) unit = 1;
        float u[32];
        for (int i = 0; i < n; i++) u[i] = x[i] / unit;
        const float spread = mean_square(u, n) / 2;
        for (int i = 0; i < n; i++) w[i] = u[i] * u[i] + spread;
        if (how.is_signed())
            for (int i = 0; i < n; i += 8) signs[i / 8] = take_signs(u + i, w + i);
        for (int i = 0; i < n; i++) wx[i] = w[i] * u[i];
    }

    // The best scale of all trials, not yet coded.
    float scale() const {
        float scale = 0, best = 0;
        for (int t = 0; t < kind->trials(); t++) {
            uint16_t found[2][8];
            float distances[2][8];
            const int choices = look(kind->trial(t), found, distances);
            for (int c = 0; c < choices; c++) {
                float row[32];
                for (int g = 0; g < kind->groups(); g++) read(found[c][g], row + g * kind->rows.width);
                const float sug = total(kind->sub, [&](int i) { return wx[i] * row[i]; });
                const float sgg = total(kind->sub, [&](int i) { return w[i] * (row[i] * row[i]); });
                const float score = sug > 0 ? sug * sug / sgg : 0;
                if (score > best) scale = sug / sgg, best = score;
            }
        }
        return scale * unit;
    }

    // The rows for the scale as coded.
    void choose(float coded, uint16_t* index) const {
        const float factor = coded / unit;
        uint16_t found[2][8];
        float distances[2][8];
        const int choices = look(factor < MOST ? factor : MOST, found, distances);
        const bool later = choices > 1 && sum(distances[1]) < sum(distances[0]);
        memcpy(index, found[later], size_t(kind->groups()) * 2);
    }

private:
    static float mean_square(const float* x, int n) {
        return total(n, [&](int i) { return x[i] * x[i]; }) / float(n);
    }

    // By way of the largest, so that nothing overflows.
    static float root_mean_square(const float* x, int n) {
        const float top = magnitude(x, n), share = top == 0 ? 1 : top;
        float u[32];
        for (int i = 0; i < n; i++) u[i] = x[i] / share;
        return top * sqrtf(mean_square(u, n));
    }

    // The sign byte of 8 elements, which lose their signs. To make it even, the one that costs least is turned.
    uint8_t take_signs(float* u, const float* weight) const {
        unsigned negative = 0, count = 0;
        int cheapest = 0;
        float least = weight[0] * (u[0] * u[0]);
        for (int j = 0; j < 8; j++) {
            const float cost = weight[j] * (u[j] * u[j]);
            if (cost < least) cheapest = j, least = cost;
            negative |= unsigned(u[j] < 0) << j;
            count += u[j] < 0;
        }
        if (kind->even && count % 2) negative ^= 1u << cheapest;
        for (int j = 0; j < 8; j++) u[j] = negative >> j & 1 ? -u[j] : u[j];
        return uint8_t(negative);
    }

    // Nearest rows with each delta; or one choice: the nearer of both for each row. Returns the number of choices.
    int look(float s, uint16_t (*found)[8], float (*distances)[8]) const {
        const Rows& rows = kind->rows;
        float a[32], b[32];
        for (int i = 0; i < kind->sub; i++) a[i] = -2 * s * wx[i], b[i] = s * s * w[i];
        for (int g = 0; g < kind->groups(); g++) {
            const float *ag = a + g * rows.width, *bg = b + g * rows.width;
            Nearest near = rows.nearest(ag, bg, kind->is_signed() ? 0 : DELTAS[0]);
            if (!kind->is_signed()) {
                Nearest other = rows.nearest(ag, bg, DELTAS[1]);
                other.row += rows.count;
                if (kind->mixed && other.distance < near.distance) near = other;
                found[1][g] = uint16_t(other.row), distances[1][g] = other.distance;
            }
            found[0][g] = uint16_t(near.row), distances[0][g] = near.distance;
        }
        return kind->is_signed() || kind->mixed ? 1 : 2;
    }

    void read(int index, float* out) const {
        const int count = kind->rows.count;
        kind->rows.read(index % count, kind->is_signed() ? 0 : DELTAS[index / count], out);
    }

    static float sum(const float* four) { return (four[0] + four[1]) + (four[2] + four[3]); }

    const Kind* kind = nullptr;
    float unit = 1, w[32], wx[32];
};

// False: the scale is no finite f16. It is stored as `share` steps of the coded scales.
bool fit(const Kind& kind, const float* x, float share, Block& block) {
    const int subs = 256 / kind.sub;
    SubBlock sub[16];
    float scale[16], most = 0;
    for (int s = 0; s < subs; s++) {
        sub[s] = SubBlock(kind, x + kind.sub * s, block.signs + kind.sub / 8 * s);
        scale[s] = sub[s].scale();
        most = scale[s] > most ? scale[s] : most;
    }
    const float given = share * (most / float(2 * kind.top + 1));
    if (!(given < 65520)) return false;
    block.d = half_to_float(float_to_half(given));
    const float d = block.d / share;
    for (int s = 0; s < subs; s++) {
        const float n = rintf(((d == 0 ? 0 : scale[s] / d) - 1) / 2);
        block.codes[s] = uint8_t(n < 0 ? 0 : n > float(kind.top) ? float(kind.top) : n);
        sub[s].choose(d * float(2 * block.codes[s] + 1), block.index + kind.groups() * s);
    }
    return true;
}

// ---- layouts: b is all zero -----------------------------------------------------------------------------------------

void write_short(uint8_t* to, uint32_t word) { to[0] = uint8_t(word), to[1] = uint8_t(word >> 8); }
void put(uint8_t& to, int bits, int at) { to = uint8_t(to | bits << at); }
void write_codes(const Block& f, int n, uint8_t* to) {
    for (int s = 0; s < n; s++) put(to[s / 2], f.codes[s], 4 * (s % 2));
}

// Four sign codes of 7 bits and a scale's code.
void write_sign_word(const Block& f, int s, uint8_t* to) {
    uint32_t word = uint32_t(f.codes[s]) << 28;
    for (int k = 0; k < 4; k++) word |= uint32_t(f.signs[4 * s + k] & 127) << 7 * k;
    memcpy(to, &word, 4);
}

bool encode_iq2_xxs(const float* x, uint8_t* b) {
    Block f;
    if (!fit({rows_of<IQ2_XXS_ROWS>(), 32, 15, 43, true, false}, x, 8, f)) return false;
    write_half(b, f.d);
    for (int s = 0; s < 8; s++) {
        for (int k = 0; k < 4; k++) b[2 + 8 * s + k] = uint8_t(f.index[4 * s + k]);
        write_sign_word(f, s, b + 2 + 8 * s + 4);
    }
    return true;
}

bool encode_iq2_xs(const float* x, uint8_t* b) {
    Block f;
    if (!fit({rows_of<IQ2_XS_ROWS>(), 16, 15, 43, true, false}, x, 8, f)) return false;
    write_half(b, f.d);
    for (int u = 0; u < 32; u++) write_short(b + 2 + 2 * u, f.index[u] | uint32_t(f.signs[u] & 127) << 9);
    write_codes(f, 16, b + 66);
    return true;
}

bool encode_iq2_s(const float* x, uint8_t* b) {
    Block f;
    if (!fit({rows_of<IQ2_S_ROWS>(), 16, 15, 43, false, false}, x, 8, f)) return false;
    write_half(b, f.d);
    for (int u = 0; u < 32; u++) {
        b[2 + u] = uint8_t(f.index[u]);
        b[34 + u] = f.signs[u];
        put(b[66 + u / 4], f.index[u] >> 8, 2 * (u % 4));
    }
    write_codes(f, 16, b + 74);
    return true;
}

bool encode_iq3_xxs(const float* x, uint8_t* b) {
    Block f;
    if (!fit({rows_of<IQ3_XXS_ROWS>(), 32, 15, 62, true, false}, x, 4, f)) return false;
    write_half(b, f.d);
    for (int i = 0; i < 64; i++) b[2 + i] = uint8_t(f.index[i]);
    for (int s = 0; s < 8; s++) write_sign_word(f, s, b + 66 + 4 * s);
    return true;
}

bool encode_iq3_s(const float* x, uint8_t* b) {
    Block f;
    if (!fit({rows_of<IQ3_S_ROWS>(), 32, 15, 15, false, false}, x, 1, f)) return false;
    write_half(b, f.d);
    for (int i = 0; i < 64; i++) {
        b[2 + i] = uint8_t(f.index[i]);
        put(b[66 + i / 8], f.index[i] >> 8, i % 8);
    }
    memcpy(b + 74, f.signs, 32);
    write_codes(f, 8, b + 106);
    return true;
}

bool encode_iq1_s(const float* x, uint8_t* b) {
    Block f;
    if (!fit({rows_of<IQ1_ROWS>(), 32, 7, 0, false, false}, x, 1, f)) return false;
    write_half(b, f.d);
    for (int s = 0; s < 8; s++) {
        uint32_t word = uint32_t(f.codes[s]) << 12 | uint32_t(f.index[4 * s] >> 11) << 15;
        for (int k = 0; k < 4; k++) {
            b[2 + 4 * s + k] = uint8_t(f.index[4 * s + k]);
            word |= uint32_t(f.index[4 * s + k] >> 8 & 7) << 3 * k;
        }
        write_short(b + 34 + 2 * s, word);
    }
    return true;
}

bool encode_iq1_m(const float* x, uint8_t* b) {
    Block f;
    if (!fit({rows_of<IQ1_ROWS>(), 16, 7, 0, false, true}, x, 1, f)) return false;
    for (int u = 0; u < 32; u++) {
        b[u] = uint8_t(f.index[u]);
        put(b[32 + u / 2], f.index[u] >> 8, 4 * (u % 2));  // three bits of the row, then its delta
    }
    const uint32_t half = float_to_half(f.d);
    for (int i = 0; i < 4; i++) {
        uint32_t word = (half >> 4 * i & 15) << 12;  // of d, a nibble a word
        for (int k = 0; k < 4; k++) word |= uint32_t(f.codes[4 * i + k]) << 3 * k;
        write_short(b + 48 + 2 * i, word);
    }
    return true;
}

}  // namespace

bool encode_grid(int32_t dtype, const float* x, uint8_t* b) {
    switch (dtype) {
        case IQ2_XXS:
            return encode_iq2_xxs(x, b);
        case IQ2_XS:
            return encode_iq2_xs(x, b);
        case IQ2_S:
            return encode_iq2_s(x, b);
        case IQ3_XXS:
            return encode_iq3_xxs(x, b);
        case IQ3_S:
            return encode_iq3_s(x, b);
        case IQ1_S:
            return encode_iq1_s(x, b);
        default:
            return encode_iq1_m(x, b);
    }
}

}  // namespace jackfield

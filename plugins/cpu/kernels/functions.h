// Functions of vectors beyond those of simd.h, each within two units of the last place where nothing else is said.
#pragma once
#include "simd.h"

namespace jackfield {
namespace {

constexpr int32_t SIGN_BIT = int32_t(0x80000000);

JF_INLINE vf with_sign_of(vf x, vf sign) { return of_bits((bits_of(x) & ~SIGN_BIT) | (bits_of(sign) & SIGN_BIT)); }

// Toward zero, exact at any size; zeros keep their sign, inf and NaN stay.
JF_INLINE vf trunc(vf x) {
    const vf whole = with_sign_of(__builtin_convertvector(truncate(x), vf), x);
    return abs(x) < 8388608.0f ? whole : x;
}
JF_INLINE vf floor(vf x) {
    const vf whole = trunc(x);
    return whole > x ? whole - 1.0f : whole;
}
JF_INLINE vf ceil(vf x) {
    const vf whole = trunc(x);
    return whole < x ? with_sign_of(whole + 1.0f, x) : whole;
}
JF_INLINE vf round_away(vf x) {
    const vf whole = trunc(x);
    return abs(x - whole) >= 0.5f ? whole + with_sign_of(splat(1.0f), x) : whole;
}

JF_INLINE vf sqrt(vf x) {
#if defined(__AVX512F__)
    return _mm512_sqrt_ps(x);
#elif defined(__AVX2__)
    return _mm256_sqrt_ps(x);
#elif defined(__ARM_NEON)
    return (vf)vsqrtq_f32(x);
#else
    return _mm_sqrt_ps(x);
#endif
}

// x = m 2^k with m in sqrt(1/2) .. sqrt(2), and an even polynomial of (m - 1) / (m + 1), as in FreeBSD's e_logf.c.
JF_INLINE vf log(vf x) {
    const auto small = x < 1.17549435e-38f;
    const vi bits = bits_of(small ? x * 8388608.0f : x) + (0x3f800000 - 0x3f3504f3);
    const vf k = __builtin_convertvector((bits >> 23) - 127 - (vi)(small ? vi{} + 23 : vi{}), vf);
    const vf f = of_bits((bits & 0x007fffff) + 0x3f3504f3) - 1.0f, s = f / (2.0f + f), z = s * s, w = z * z;
    const vf even = z * fma(w, splat(0.28498786688f), splat(0.66666662693f));
    const vf odd = w * fma(w, splat(0.24279078841f), splat(0.40000972152f)), half = 0.5f * f * f;
    const vf y = fma(k, splat(6.9313812256e-01f), fma(s, half + (even + odd), k * 9.0580006145e-06f) - half + f);
    const vf edge = x == 0.0f ? splat(-__builtin_inff()) : splat(__builtin_nanf(""));
    return x > 0.0f ? (x < __builtin_inff() ? y : x) : edge;
}

// Near 0 by the polynomial of exp, because e^x - 1 cancels there; elsewhere within 1e-6.
JF_INLINE vf expm1(vf x) {
    vf p = fma(splat(1.98756911e-4f), x, splat(1.39819994e-3f));
    p = fma(p, x, splat(8.33345205e-3f));
    p = fma(p, x, splat(4.16657963e-2f));
    p = fma(p, x, splat(1.66666657e-1f));
    p = fma(p, x, splat(0.5f));
    return abs(x) < 0.34f ? fma(p * x, x, x) : exp(x) - 1.0f;
}

// ln(1 + e^x): what the sum lost of a small e^x is put back.
JF_INLINE vf softplus(vf x) {
    const vf e = exp(x, BESIDE_ONE), u = 1.0f + e;
    return x > 20.0f ? x : log(u) - ((u - 1.0f) - e) / u;
}

// Sine of x and `quarters` quarter turns more. Whole quarter turns come off in three parts (Cephes, sinf); far out,
// where these do not do, each lane goes through f64.
JF_INLINE vf sine(vf x, int quarters) {
    const vf q = (x * 0.636619772f + 12582912.0f) - 12582912.0f;
    vf r = fma(q, splat(-1.5703125f), x);
    r = fma(q, splat(-4.837512969970703125e-4f), r);
    r = fma(q, splat(-7.549789948768648e-8f), r);
    const vf z = r * r;
    vf s = fma(splat(-1.9515295891e-4f), z, splat(8.3321608736e-3f));
    s = fma(s, z, splat(-1.6666654611e-1f));
    s = fma(s * z, r, r);
    vf c = fma(splat(2.443315711809948e-5f), z, splat(-1.388731625493765e-3f));
    c = fma(c, z, splat(4.166664568298827e-2f));
    c = fma(c, z * z, 1.0f - 0.5f * z);
    const vi turn = truncate(q) + quarters;
    vf y = (turn & 1) != 0 ? c : s;
    y = of_bits(bits_of(y) ^ ((turn & 2) << 30));
    const auto near = abs(x) < 8192.0f;
    if (any((vi)~near))
        for (int i = 0; i < W; i++)
            if (!(__builtin_fabsf(x[i]) < 8192.0f))
                y[i] = float(quarters ? __builtin_cos(double(x[i])) : __builtin_sin(double(x[i])));
    return y;
}

}  // namespace
}  // namespace jackfield

// Numbers as bits. WGSL leaves NaN, infinities, subnormals, rounding to f16 and the digits of exp, tanh, sin and cos to
// the driver; what an op promises about them is done here, with integers or with polynomials in f32.

fn is_nan(bits: u32) -> bool {
    return (bits & 0x7fffffffu) > 0x7f800000u;
}

// A number whose order as u32 is that of the floats; both zeros are one. NaN is not asked.
fn order_key(bits: u32) -> u32 {
    if ((bits << 1u) == 0u) {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, (bits >> 31u) == 1u);
}

// f32 bits to f16 bits, nearest even.
fn half_narrow(bits: u32) -> u32 {
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return sign | 0x7e00u | ((size >> 13u) & 0x3ffu);
    }
    if (size >= 0x477ff000u) {  // 65520 and above: rounds to infinity
        return sign | 0x7c00u;
    }
    if (size >= 0x38800000u) {  // a normal f16
        let moved = size - 0x38000000u;
        return sign | ((moved + 0xfffu + ((moved >> 13u) & 1u)) >> 13u);
    }
    let shift = 126u - (size >> 23u);
    if (shift > 24u) {
        return sign;
    }
    let whole = (size & 0x7fffffu) | 0x800000u;
    let kept = whole >> shift;
    let rest = whole & ((1u << shift) - 1u);
    let middle = 1u << (shift - 1u);
    return sign | (kept + select(0u, 1u, rest > middle || (rest == middle && (kept & 1u) == 1u)));
}

// f16 bits to f32 bits, exact.
fn half_wide(half: u32) -> u32 {
    let sign = (half & 0x8000u) << 16u;
    let exponent = (half >> 10u) & 31u;
    let fraction = half & 0x3ffu;
    if (exponent == 31u) {
        return sign | 0x7f800000u | (fraction << 13u);
    }
    if (exponent > 0u) {
        return sign | ((exponent + 112u) << 23u) | (fraction << 13u);
    }
    if (fraction == 0u) {
        return sign;
    }
    let top = 31u - countLeadingZeros(fraction);
    return sign | ((top + 103u) << 23u) | ((fraction << (23u - top)) & 0x7fffffu);
}

// f32 bits to bf16 bits, nearest even.
fn brain_narrow(bits: u32) -> u32 {
    if (is_nan(bits)) {
        return (bits >> 16u) | 0x40u;
    }
    return (bits + 0x7fffu + ((bits >> 16u) & 1u)) >> 16u;
}

fn infinity() -> f32 {
    return bitcast<f32>(p.infinite);
}

// e to the power x, to two units in the last place: ln 2 in two parts, then Taylor to the seventh power.
fn exp_of(x: f32) -> f32 {
    if (is_nan(bitcast<u32>(x)) || x < -104.0) {
        return select(0.0, x, is_nan(bitcast<u32>(x)));
    }
    if (x > 89.0) {
        return infinity();
    }
    let k = round(x * 1.442695041);
    let r = fma(-k, 1.428606820e-6, fma(-k, 0.693145752, x));
    var y = fma(r, 1.984126984e-4, 1.388888889e-3);
    y = fma(r, y, 8.333333333e-3);
    y = fma(r, y, 4.166666667e-2);
    y = fma(r, y, 0.1666666667);
    y = fma(r, y, 0.5);
    y = fma(r, y, 1.0);
    y = fma(r, y, 1.0);
    let half = i32(k) / 2;
    return y * power_of_two(half) * power_of_two(i32(k) - half);
}

// 2 to the power k, for -126 <= k <= 127.
fn power_of_two(k: i32) -> f32 {
    return bitcast<f32>(u32(k + 127) << 23u);
}

fn tanh_of(x: f32) -> f32 {
    let size = 1.0 - 2.0 / (exp_of(2.0 * abs(x)) + 1.0);
    return select(size, -size, x < 0.0);
}

fn sigmoid_of(x: f32) -> f32 {
    return 1.0 / (1.0 + exp_of(-x));
}

fn silu_of(x: f32) -> f32 {
    return x / (1.0 + exp_of(-x));
}

// 0.5 x (1 + tanh u) is x / (1 + exp(-2u)), without the cancellation.
fn gelu_of(x: f32) -> f32 {
    return x / (1.0 + exp_of(-1.5957691216 * (x + 0.044715 * x * x * x)));
}

// 1 - erf(z) for z >= 0, to 1.5e-7. Source: Abramowitz and Stegun 1964, formula 7.1.26.
fn erfc_of(z: f32) -> f32 {
    let t = 1.0 / (1.0 + 0.3275911 * z);
    let y = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    return y * exp_of(-z * z);
}

fn gelu_erf_of(x: f32) -> f32 {
    let tail = erfc_of(abs(x) * 0.7071067812);
    return 0.5 * x * select(tail, 2.0 - tail, x > 0.0);
}

// (cos, sin) of an angle: quarter turns off in three parts, then Taylor on -pi/4 .. pi/4.
fn turn_of(angle: f32) -> vec2<f32> {
    let k = round(angle * 0.6366197724);
    let r = fma(-k, 7.549789949e-8, fma(-k, 4.837512970e-4, fma(-k, 1.5703125, angle)));
    let s = r * r;
    let sine = r * fma(s, fma(s, fma(s, fma(s, 2.755731922e-6, -1.984126984e-4), 8.333333333e-3), -0.1666666667), 1.0);
    let cosine = fma(s, fma(s, fma(s, fma(s, 2.480158730e-5, -1.388888889e-3), 4.166666667e-2), -0.5), 1.0);
    let quarter = u32(i32(k)) & 3u;
    let turned = select(vec2(cosine, sine), vec2(-sine, cosine), (quarter & 1u) == 1u);
    return select(turned, -turned, (quarter & 2u) == 2u);
}

// a / b where b, or a, may be a subnormal that the driver would take for zero.
fn ratio_of(a: f32, b: f32) -> f32 {
    let over = widened(a);
    let under = widened(b);
    let steps = over.y - under.y;
    let q = over.x / under.x;
    if (steps == 0.0) {
        return q;
    }
    return select(q * 1.3234890e-23 * 1.0587912e-22, q * 3.7778932e22 * 1.8889466e22, steps > 0.0);
}

// (m, -1) for a subnormal, which is m times 2^-149; else (x, 0).
fn widened(x: f32) -> vec2<f32> {
    let bits = bitcast<u32>(x);
    let fraction = bits & 0x7fffffffu;
    if (fraction == 0u || fraction >= 0x00800000u) {
        return vec2(x, 0.0);
    }
    return vec2(select(f32(fraction), -f32(fraction), (bits >> 31u) == 1u), -1.0);
}

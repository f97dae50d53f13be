// The same number in another dtype.
fn work(group: u32, lane: u32) {
    let i = group * LANES + lane;
    if (i >= p.size) {
        return;
    }
    let place = unravel(i, p.shape);
    let into = p.start + at_strides(place, p.out_strides);
    $convert
}

// Toward zero; too large saturates, NaN is 0.
fn whole_of(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let exponent = (bits >> 23u) & 255u;
    if (is_nan(bits) || exponent < 127u) {
        return 0u;
    }
    let negative = (bits >> 31u) == 1u;
    if (exponent >= 158u) {
        return select(0x7fffffffu, 0x80000000u, negative);
    }
    let fraction = (bits & 0x7fffffu) | 0x800000u;
    let size = select(fraction >> (150u - min(exponent, 150u)), fraction << (max(exponent, 150u) - 150u), exponent > 150u);
    return select(size, 0u - size, negative);
}

// The nearest f32 of an i32, ties to even.
fn float_of(bits: u32) -> f32 {
    let negative = (bits >> 31u) == 1u;
    let size = select(bits, 0u - bits, negative);
    if (size == 0u) {
        return 0.0;
    }
    let top = 31u - countLeadingZeros(size);
    var fraction = size << (23u - min(top, 23u));
    if (top > 23u) {
        let shift = top - 23u;
        let rest = size & ((1u << shift) - 1u);
        let middle = 1u << (shift - 1u);
        fraction = size >> shift;
        fraction += select(0u, 1u, rest > middle || (rest == middle && (fraction & 1u) == 1u));
    }
    let found = ((top + 126u) << 23u) + fraction;  // a carry goes into the exponent
    return bitcast<f32>(select(found, found | 0x80000000u, negative));
}

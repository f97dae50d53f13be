// One operand, element by element.
fn work(group: u32, lane: u32) {
    let i = group * LANES + lane;
    if (i >= p.size) {
        return;
    }
    let x = x_at(at_strides(unravel(i, p.shape), p.x_strides));
    out_put(i, $value);
}

// NaN is kept by its bits, and so are subnormals.
fn relu_of(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    return select(x, 0.0, (bits >> 31u) == 1u && !is_nan(bits));
}

fn clip_of(x: f32, low: f32, high: f32) -> f32 {
    let bits = bitcast<u32>(x);
    if (is_nan(bits)) {
        return x;
    }
    let key = order_key(bits);
    if (key > order_key(bitcast<u32>(high))) {
        return high;
    }
    return select(x, low, key < order_key(bitcast<u32>(low)));
}

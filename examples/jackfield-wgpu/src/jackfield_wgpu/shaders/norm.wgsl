// One workgroup a row. Rows with large numbers are made small first, so that squares stay finite.
fn work(group: u32, lane: u32) {
    let start = at_strides(unravel(group, p.rows), p.x_strides);
    var size = 0u;
    for (var j = lane; j < p.count; j += LANES) {
        size = max(size, bitcast<u32>(x_at(start + j * p.x_strides.w)) & 0x7fffffffu);
    }
    let top = largest(size, lane);
    let shrink = select(1.0, 8.2718061e-25, top > 0x58635fa9u && top < 0x7f800000u);  // 2^-80 above 1e15
    var mean = 0.0;
    if ($centred) {
        let first = x_at(start) * shrink;  // counted from it, a row of equal numbers has just this mean
        var sum = 0.0;
        for (var j = lane; j < p.count; j += LANES) {
            sum += x_at(start + j * p.x_strides.w) * shrink - first;
        }
        mean = first + total(sum, lane) / f32(p.count);
    }
    var square = 0.0;
    for (var j = lane; j < p.count; j += LANES) {
        let x = x_at(start + j * p.x_strides.w) * shrink - mean;
        square += x * x;
    }
    let squares = total(square, lane);
    let eps = p.eps;
    let length = $length;
    for (var j = lane; j < p.count; j += LANES) {
        out_put(group * p.count + j, (x_at(start + j * p.x_strides.w) * shrink - mean) / length);
    }
}

// The larger one, or a NaN.
fn at_least(x: f32, least: f32) -> f32 {
    return select(x, least, x < least);
}

// Bytes as they are, in units of 1, 2 or 4. x repeats where the result is larger.
fn work(group: u32, lane: u32) {
    let i = group * LANES + lane;
    if (i >= p.size) {
        return;
    }
    let part = i % p.parts;
    let place = unravel(i / p.parts, p.shape);
    let bits = x_bits(at_strides(place % p.x_shape, p.x_strides) + part);
    out_put_bits(p.start + at_strides(place, p.out_strides) + part, bits);
}

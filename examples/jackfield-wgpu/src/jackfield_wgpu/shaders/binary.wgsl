// Two operands that broadcast.
fn work(group: u32, lane: u32) {
    let i = group * LANES + lane;
    if (i >= p.size) {
        return;
    }
    let place = unravel(i, p.shape);
    let a = a_at(at_strides(place, p.a_strides));
    let b = b_at(at_strides(place, p.b_strides));
    out_put(i, $value);
}

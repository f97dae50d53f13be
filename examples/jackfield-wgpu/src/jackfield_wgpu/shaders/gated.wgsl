// An activated part times a linear part: two tensors, or two halves of one.
fn work(group: u32, lane: u32) {
    let i = group * LANES + lane;
    if (i >= p.size) {
        return;
    }
    let place = unravel(i, p.shape);
    let g = gate_at(at_strides(place, p.gate_strides) + p.gate_start);
    let u = up_at(at_strides(place, p.up_strides) + p.up_start);
    out_put(i, $value);
}

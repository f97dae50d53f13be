// One workgroup a search. A NaN is above all, and of equals the first wins; no key is 0.
fn work(group: u32, lane: u32) {
    let start = at_strides(unravel(group, p.outer), p.outer_strides);
    var key = 0u;
    var at = 0xffffffffu;
    for (var j = lane; j < p.count; j += LANES) {
        let other = key_of(x_at(start + j * p.inner_strides.w));
        if (other > key) {
            key = other;
            at = j;
        }
    }
    let best = largest(key, lane);
    let first = ~largest(select(0u, ~at, key == best), lane);
    if (lane == 0u) {
        out_put_bits(group, first);
    }
}

// One workgroup a sum: `outer` numbers the sums, `inner` what each adds up.
fn work(group: u32, lane: u32) {
    let start = at_strides(unravel(group, p.outer), p.outer_strides);
    var mine = 0.0;
    for (var j = lane; j < p.count; j += LANES) {
        mine += x_at(start + at_strides(unravel(j, p.inner), p.inner_strides));
    }
    let found = total(mine, lane);
    if (lane == 0u) {
        out_put(group, $value);
    }
}

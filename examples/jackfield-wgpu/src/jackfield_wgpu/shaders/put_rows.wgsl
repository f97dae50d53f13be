// One workgroup a row of x. Row -1 is skipped; of rows with one number the last one wins.
fn work(group: u32, lane: u32) {
    look_for_fault(group, lane);
    let place = unravel(group, p.shape);  // two batch axes, the row of x, 0
    let batch = at_strides(vec4(place.x % p.rows_shape.x, place.y % p.rows_shape.y, 0u, 0u), p.rows_strides);
    let at = batch + place.z * p.rows_strides.z;
    let low = rows_low(at);
    let high = rows_high(at);
    var later = 0u;
    for (var j = place.z + 1u + lane; j < p.shape.z; j += LANES) {
        let other = batch + j * p.rows_strides.z;
        later = max(later, select(0u, 1u, rows_low(other) == low && rows_high(other) == high));
    }
    if (largest(later, lane) != 0u || high != 0u || low >= p.extent) {
        return;
    }
    let start = at_strides(place, p.x_strides);
    let into = at_strides(vec4(place.x, place.y, low, 0u), p.out_strides);
    for (var c = lane; c < p.count; c += LANES) {
        let from_x = start + c * p.x_strides.w;
        let to = into + c * p.out_strides.w;
        $put
    }
}

fn place_of(i: u32) -> u32 {
    return at_strides(unravel(i, p.rows_shape), p.rows_strides);
}

fn is_bad(i: u32) -> bool {
    let at = place_of(i);
    let skipped = rows_low(at) == 0xffffffffu && rows_high(at) == 0xffffffffu;
    return !skipped && (rows_high(at) != 0u || rows_low(at) >= p.extent);
}

fn low_of(i: u32) -> u32 {
    return rows_low(place_of(i));
}

fn high_of(i: u32) -> u32 {
    return rows_high(place_of(i));
}

fn operand_of(i: u32) -> u32 {
    return 0u;
}

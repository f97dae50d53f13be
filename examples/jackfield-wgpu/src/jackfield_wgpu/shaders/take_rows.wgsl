// Rows of a table by number; a number outside gives zeros.
fn work(group: u32, lane: u32) {
    look_for_fault(group, lane);
    let i = group * LANES + lane;
    if (i >= p.size) {
        return;
    }
    let place = unravel(i, p.shape);
    let at = at_strides(vec4(place.x, place.y, place.z, 0u), p.rows_strides);
    let row = rows_low(at);
    if (rows_high(at) != 0u || row >= p.extent) {
        out_put_bits(i, 0u);
        return;
    }
    let start = at_strides(vec4(place.x, place.y, row, 0u), p.x_strides);
    $take
}

fn place_of(i: u32) -> u32 {
    return at_strides(unravel(i, p.rows_shape), p.rows_strides);
}

fn is_bad(i: u32) -> bool {
    let at = place_of(i);
    return (rows_high(at) != 0u || rows_low(at) >= p.extent);
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

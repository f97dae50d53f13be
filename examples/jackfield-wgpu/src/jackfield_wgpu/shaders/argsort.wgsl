// Each element's rank in its row: how many come before it. NaN comes last in both directions.
fn sort_key(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    return select($key, 0xffffffffu, is_nan(bits));
}

fn work(group: u32, lane: u32) {
    let i = group * LANES + lane;
    if (i >= p.size) {
        return;
    }
    let mine = i % p.count;
    let row = i / p.count;
    let start = at_strides(unravel(row, p.rows), p.x_strides);
    let key = sort_key(x_at(start + mine * p.x_strides.w));
    var rank = 0u;
    for (var j = 0u; j < p.count; j++) {
        let other = sort_key(x_at(start + j * p.x_strides.w));
        rank += select(0u, 1u, other < key || (other == key && j < mine));
    }
    if (rank < p.kept) {
        out_put_bits(row * p.kept + rank, mine);
    }
}

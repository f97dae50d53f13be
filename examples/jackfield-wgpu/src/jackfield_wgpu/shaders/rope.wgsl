// A lane turns a pair of channels, or copies one that does not turn. table: the angle of each pair at position 1.
fn work(group: u32, lane: u32) {
    let i = group * LANES + lane;
    if (i >= p.size) {
        return;
    }
    let place = unravel(i, p.lanes);  // batch, token, head, pair or other channel
    let start = at_strides(vec4(place.x, place.y, place.z, 0u), p.x_strides);
    let into = ((place.x * p.lanes.y + place.y) * p.lanes.z + place.z) * p.channels;
    if (place.w >= p.pairs) {
        let other = place.w - p.pairs;
        let c = select(other + 2u * p.pairs, other, other < p.offset);
        out_put_bits(into + c, x_bits(start + c * p.x_strides.w));
        return;
    }
    let a = p.offset + place.w * p.pair_step;
    let b = a + p.pair_gap;
    var angle = f32(bitcast<i32>(positions_bits(place.y * p.positions_stride))) * table[place.w];
    $factor
    let turn = turn_of(angle) * p.magnitude;
    let u = x_at(start + a * p.x_strides.w);
    let v = x_at(start + b * p.x_strides.w);
    out_put(into + a, u * turn.x - v * turn.y);
    out_put(into + b, u * turn.y + v * turn.x);
}

// One workgroup a row. table: the slope of each head.
const NOTHING = 0x007fffffu;  // the key of -inf
const TOO_MUCH = 0xff800000u;  // the key of +inf; above it is NaN

fn logit(s: u32, h: u32, m: u32, j: u32) -> f32 {
    var z = p.scale * x_at(at_strides(vec4(s, h, m, j), p.x_strides));
    $mask
    return z;
}

fn work(group: u32, lane: u32) {
    let m = group % p.shape.z;
    let h = group / p.shape.z % p.shape.y;
    let s = group / p.shape.z / p.shape.y;
    let n = p.shape.w;
    var key = 0u;
    for (var j = lane; j < n; j += LANES) {
        key = max(key, key_of(logit(s, h, m, j)));
    }
    var best = largest(key, lane);
    var sink = 0.0;
    var sinks = false;
    $sink
    if (best >= TOO_MUCH || best <= NOTHING) {
        for (var j = lane; j < n; j += LANES) {
            out_put_bits(group * n + j, select(0u, 0x7fc00000u, best >= TOO_MUCH));
        }
        return;
    }
    let top = of_key(best);
    var mine = 0.0;
    for (var j = lane; j < n; j += LANES) {
        mine += exp_of(logit(s, h, m, j) - top);
    }
    let whole = total(mine, lane) + select(0.0, exp_of(sink - top), sinks);
    for (var j = lane; j < n; j += LANES) {
        out_put(group * n + j, exp_of(logit(s, h, m, j) - top) / whole);
    }
}

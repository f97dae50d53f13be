// One workgroup a query and head: 64 columns at a time, with a running maximum. table: the slope of each head.
const NOTHING = 0x007fffffu;  // the key of -inf
const TOO_MUCH = 0xff800000u;  // the key of +inf; above it is NaN
const UNSEEN = 0xffffffffu;
var<workgroup> shares: array<f32, 64>;
var<workgroup> rows: array<u32, 64>;

fn weighted(key: u32, top: u32) -> f32 {
    return select(0.0, exp_of(of_key(key) - of_key(top)), key > NOTHING);
}

// How many columns a stream says it has, and the cache row of each.
fn told(s: u32) -> i32 {
    return $told;
}

fn listed(s: u32, j: u32) -> i32 {
    return $listed;
}

fn has_length(s: u32) -> bool {
    return told(s) >= 0 && told(s) <= i32(p.columns);
}

fn work(group: u32, lane: u32) {
    $look
    let h = group % p.heads;
    let t = group / p.heads % p.tokens;
    let s = group / p.heads / p.tokens;
    let out_start = group * p.value_size;
    let q_start = at_strides(vec4(s, h, t, 0u), p.q_strides);
    let k_start = at_strides(vec4(s, h / p.shared_by, 0u, 0u), p.k_strides);
    let v_start = at_strides(vec4(s, h / p.shared_by, 0u, 0u), p.v_strides);
    let n = select(0u, u32(told(s)), has_length(s));
    let here = i32(n) - i32(p.tokens) + i32(t);
    var top = 0u;
    var sum = 0.0;
    $sink
    $begin
    for (var first = 0u; first < n && top < TOO_MUCH; first += LANES) {
        let j = first + lane;
        var row = select(UNSEEN, j, j < n);
        if ((p.causal != 0u && i32(j) > here) || (p.window > 0u && i32(j) <= here - i32(p.window))) {
            row = UNSEEN;
        }
        if (row != UNSEEN) {
            let place = listed(s, j);
            row = select(UNSEEN, u32(place), place >= 0 && place < i32(p.cache_rows));
        }
        var entry = 0.0;
        $mask
        var key = 0u;
        if (row != UNSEEN) {
            var z = 0.0;
            for (var d = 0u; d < p.key_size; d++) {
                z += q_at(q_start + d * p.q_strides.w) * k_at(k_start + row * p.k_strides.z + d * p.k_strides.w);
            }
            z *= p.scale;
            if (p.softcap > 0.0) {
                z = p.softcap * tanh_of(z / p.softcap);
            }
            key = key_of(z + entry);
        }
        let best = max(top, largest(key, lane));
        if (best < TOO_MUCH) {
            let kept = select(weighted(top, best), 1.0, top == best);
            let share = weighted(key, best);
            sum = sum * kept + total(share, lane);
            $fade
            shares[lane] = share;
            rows[lane] = row;
            workgroupBarrier();
            for (var i = 0u; i < LANES; i++) {
                if (rows[i] != UNSEEN) {
                    let at = v_start + rows[i] * p.v_strides.z;
                    $gather
                }
            }
        }
        top = best;
    }
    $end
}

fn finished(sum: f32, whole: f32, top: u32) -> f32 {
    if (top >= TOO_MUCH) {
        return bitcast<f32>(p.infinite | 0x400000u);
    }
    return select(sum / whole, sum, whole == 0.0);
}

// For fault.wgsl: of each stream its length, then its rows.

fn is_bad(i: u32) -> bool {
    let s = i / p.lists;
    if (i % p.lists == 0u) {
        return !has_length(s);
    }
    let j = i % p.lists - 1u;
    return has_length(s) && j < u32(told(s)) && listed(s, j) >= i32(p.cache_rows);
}

fn low_of(i: u32) -> u32 {
    let s = i / p.lists;
    if (i % p.lists == 0u) {
        return u32(told(s));
    }
    return u32(listed(s, i % p.lists - 1u));
}

fn high_of(i: u32) -> u32 {
    return 0u - (low_of(i) >> 31u);
}

fn operand_of(i: u32) -> u32 {
    return select(1u, 0u, i % p.lists == 0u);
}

// What every shader has: its place in the grid, coordinates, rows of workgroups that work together.

const LANES = 64u;
var<workgroup> floats: array<f32, 64>;
var<workgroup> words: array<u32, 64>;
var<workgroup> places: array<u32, 64>;

// Workgroups are numbered over two dimensions, because one holds 65,535 at most.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) at: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let group = at.x + at.y * count.x;
    if (group >= p.groups) {
        return;
    }
    work(group, lane);
}

fn unravel(index: u32, shape: vec4<u32>) -> vec4<u32> {
    var rest = index;
    let d = rest % shape.w;
    rest /= shape.w;
    let c = rest % shape.z;
    rest /= shape.z;
    return vec4(rest / shape.y, rest % shape.y, c, d);
}

fn at_strides(place: vec4<u32>, strides: vec4<u32>) -> u32 {
    return place.x * strides.x + place.y * strides.y + place.z * strides.z + place.w * strides.w;
}

// The sum over a workgroup, to all its lanes; always in the same order.
fn total(mine: f32, lane: u32) -> f32 {
    workgroupBarrier();
    floats[lane] = mine;
    for (var width = LANES / 2u; width > 0u; width /= 2u) {
        workgroupBarrier();
        if (lane < width) {
            floats[lane] += floats[lane + width];
        }
    }
    workgroupBarrier();
    return floats[0];
}

// The largest u32 of a workgroup, to all its lanes.
fn largest(mine: u32, lane: u32) -> u32 {
    workgroupBarrier();
    words[lane] = mine;
    for (var width = LANES / 2u; width > 0u; width /= 2u) {
        workgroupBarrier();
        if (lane < width) {
            words[lane] = max(words[lane], words[lane + width]);
        }
    }
    workgroupBarrier();
    return words[0];
}

// A float as a u32 of the same order; a NaN is above all. No float has the key 0.
fn key_of(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    return select(order_key(bits), 0xffffffffu, is_nan(bits));
}

fn of_key(key: u32) -> f32 {
    return bitcast<f32>(select(~key, key & 0x7fffffffu, key >= 0x80000000u));
}

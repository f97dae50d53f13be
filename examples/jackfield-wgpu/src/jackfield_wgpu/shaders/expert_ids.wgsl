// The ids of experts, for fault.wgsl.
fn place_of(i: u32) -> u32 {
    return at_strides(unravel(i, p.ids_shape), p.ids_strides);
}

fn is_bad(i: u32) -> bool {
    let at = place_of(i);
    let skipped = ids_low(at) == 0xffffffffu && ids_high(at) == 0xffffffffu;
    return !skipped && (ids_high(at) != 0u || ids_low(at) >= p.extent);
}

fn low_of(i: u32) -> u32 {
    return ids_low(place_of(i));
}

fn high_of(i: u32) -> u32 {
    return ids_high(place_of(i));
}

fn operand_of(i: u32) -> u32 {
    return 0u;
}

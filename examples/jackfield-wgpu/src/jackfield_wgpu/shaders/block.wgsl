// Number k of a row of blocks that starts at this byte.
fn number_of(row: u32, k: u32) -> f32 {
    let block = row + k / 32u * NBYTES;
    return four_of(block, k % 32u / 4u, scale_of(block))[k % 4u];
}

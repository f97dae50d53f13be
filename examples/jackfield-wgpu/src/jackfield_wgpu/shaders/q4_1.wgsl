// Blocks of 32 numbers in 20 bytes: f16 scale and minimum, then 16 bytes; byte i holds number i low and number i + 16 high.
const NBYTES = 20u;

fn scale_of(block: u32) -> vec2<f32> {
    let both = w_quad(block);
    return vec2(bitcast<f32>(half_wide(both & 0xffffu)), bitcast<f32>(half_wide(both >> 16u)));
}

// Numbers 4j to 4j + 3 of a block. A scale times a nibble is exact, so that one rounding or two are the same.
fn four_of(block: u32, j: u32, scale: vec2<f32>) -> vec4<f32> {
    let word = w_quad(block + 4u + 4u * (j & 3u)) >> (4u * (j >> 2u));
    let q = vec4(word & 15u, (word >> 8u) & 15u, (word >> 16u) & 15u, (word >> 24u) & 15u);
    return vec4<f32>(q) * scale.x + scale.y;
}

// Blocks of 32 numbers in 18 bytes: an f16 scale, then 16 bytes; byte i holds number i low and number i + 16 high, plus 8.
const NBYTES = 18u;

fn scale_of(block: u32) -> vec2<f32> {
    return vec2(bitcast<f32>(half_wide(w_half(block))), 0.0);
}

// Numbers 4j to 4j + 3 of a block.
fn four_of(block: u32, j: u32, scale: vec2<f32>) -> vec4<f32> {
    let word = w_quad(block + 2u + 4u * (j & 3u)) >> (4u * (j >> 2u));
    let q = vec4(word & 15u, (word >> 8u) & 15u, (word >> 16u) & 15u, (word >> 24u) & 15u);
    return (vec4<f32>(q) - 8.0) * scale.x;
}

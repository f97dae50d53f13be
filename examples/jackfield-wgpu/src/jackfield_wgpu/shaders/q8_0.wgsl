// Blocks of 32 numbers in 34 bytes: an f16 scale, then an i8 each.
const NBYTES = 34u;

fn scale_of(block: u32) -> vec2<f32> {
    return vec2(bitcast<f32>(half_wide(w_half(block))), 0.0);
}

// Numbers 4j to 4j + 3 of a block.
fn four_of(block: u32, j: u32, scale: vec2<f32>) -> vec4<f32> {
    let word = bitcast<i32>(w_quad(block + 2u + 4u * j));
    let q = vec4(extractBits(word, 0u, 8u), extractBits(word, 8u, 8u), extractBits(word, 16u, 8u), extractBits(word, 24u, 8u));
    return vec4<f32>(q) * scale.x;
}

// Numbers k to k + 3 of the row of x that starts here.
fn x_four(start: u32, k: u32) -> vec4<f32> {
    let at = start + k * p.x_strides.w;
    let step = p.x_strides.w;
    return vec4(x_at(at), x_at(at + step), x_at(at + 2u * step), x_at(at + 3u * step));
}

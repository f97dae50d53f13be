// Sums of products: a workgroup makes $rows rows by 8 columns, with 8 lanes a column that share its inner length.
var<workgroup> sums: array<f32, $room>;

fn work(group: u32, lane: u32) {
    let tile = group % p.column_tiles;
    let row = group / p.column_tiles % p.row_tiles * $rows;
    let batch = group / p.column_tiles / p.row_tiles;
    let column = tile * 8u + lane / 8u;
    let part = lane % 8u;
    var chunks = p.chunks;
    $place
    let w_start = w_batch + min(column, p.columns - 1u) * p.w_strides.z;
    $begin
    for (var c = part; c < chunks; c += 8u) {
        $step
    }
    $end
    workgroupBarrier();
    let r = lane / 8u;
    let mine = tile * 8u + lane % 8u;
    if (r < $rows && row + r < p.rows && mine < p.columns) {
        var found = 0.0;
        for (var i = 0u; i < 8u; i++) {
            found += sums[r * LANES + lane % 8u * 8u + i];
        }
        out_put((batch * p.rows + row + r) * p.columns + mine, found);
    }
}

// An index that lies outside: of a call the first step that meets one tells the first one of its operand. The file that
// uses this says of the i-th of p.indices indices whether it `is_bad`, its two words, and which operand it belongs to.
fn look_for_fault(group: u32, lane: u32) {
    if (group != 0u) {
        return;
    }
    var mine = 0u;
    for (var i = lane; i < p.indices && mine == 0u; i += LANES) {
        mine = select(0u, ~i, is_bad(i));
    }
    let first = largest(mine, lane);
    if (first != 0u && lane == 0u && atomicCompareExchangeWeak(&fault[0], 0u, p.step).exchanged) {
        atomicStore(&fault[1], low_of(~first));
        atomicStore(&fault[2], high_of(~first));
        atomicStore(&fault[3], operand_of(~first));
    }
}

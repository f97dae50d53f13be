#include "scan_lanes.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"state", ROWS, bit(F32)}, {"x", ROWS, bit(F32)}, {"dt", ANY, bit(F32)},
                                {"a", ROWS, bit(F32)},     {"b", ROWS, bit(F32)}, {"c", ROWS, bit(F32)},
                                {"ids", ANY, bit(I32)}};
constexpr const char* const attributes[] = {"snapshots", nullptr};

// The result is one line. With gaps it is made without them first, behind the work memory of all workers.
JF_INLINE bool gaps(const Step& s) { return s.out.stride[3] != 4; }

void run(const Step& s, const Team& team) {
    const View& ids = s.in[IDS];
    char* const dense = gaps(s) ? team.scratch + team.count * Memory::nbytes(s) : s.out.data;
    const Memory memory(s, team.scratch + team.index * Memory::nbytes(s));
    const Division division(s);
    const Share part = share(division.pieces(s), team);
    for (int64_t piece = part.begin; piece < part.end; piece++) {
        const Lanes lanes(s, division, piece, memory, dense);
        int32_t slot;
        memcpy(&slot, ids.data + lanes.sequence * ids.stride[3], 4);
        if (slot < 0 || slot >= s.in[STATE].shape[0]) {
            set_fault(s, FAULT_INDEX, IDS, slot);
            lanes.clear();
        } else if (lanes.wide)
            lanes.run<true>(lanes.slot(slot));
        else
            lanes.run<false>(lanes.slot(slot));
    }
    if (!gaps(s)) return;
    team.barrier();
    const Share copied = share(s.out.last(), team);
    scatter(dense + copied.begin * 4, s.out.data + copied.begin * s.out.stride[3], s.out.stride[3],
            copied.end - copied.begin, 4);
}

int32_t workers(const Step& s, int32_t most) { return workers_for(s.in[X].size() * s.in[STATE].last(), most); }
int64_t scratch(const Step& s, int32_t workers) {
    return Memory::nbytes(s) * workers + (gaps(s) ? s.out.last() * 4 : 0);
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(ssm_scan, operands, attributes, bit(F32), nullptr, run, workers, scratch, nullptr)

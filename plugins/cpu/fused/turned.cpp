// rope of several tensors by the same angles, and put_rows of what is turned: keys go to the cache as they are made. In
// the order of the group: rope, and put_rows if its result goes nowhere else; then the next.
#include "fused.h"
#include "put_rows.h"
#include "rope.h"

namespace jackfield::JF_LEVEL {
namespace {

constexpr int MOST_TURNS = 3;  // jackfield_cpu/fusion.py takes one neighbour on each side

// x is [1, tokens, heads, channels]. put: the step that takes the result as [heads, tokens, channels], or null.
struct Turn {
    const Step* rope;
    const Step* put;

    JF_INLINE int64_t heads() const { return rope->in[0].shape[2]; }

    template <DType D>
    JF_INLINE void head(const Tables& tables, Mode mode, int64_t t, int64_t h) const {
        const View &x = rope->in[0], &out = rope->out;
        const char* from = x.data + t * x.stride[1] + h * x.stride[2];
        if (!put) return turn_head<D>(*rope, tables, mode, from, out.data + t * out.stride[1] + h * out.stride[2]);
        turn_head<D>(*rope, tables, mode, from, tables.row);
        Column(*put, 0, h, 0).put(t, tables.row, bytes_of<D>, x.last());
    }
};

struct Turns {
    Turn list[MOST_TURNS];
    int count = 0;
    int64_t tokens, heads = 0, elements = 0, tables = 0;  // tables: bytes of one worker's

    JF_INLINE explicit Turns(const Chain& chain) : tokens(chain.steps[0]->in[0].shape[1]) {
        for (int32_t i = 0; i < chain.count; i++) {
            const Step* s = chain.steps[i];
            if (is_op(chain, i, "put_rows")) {
                list[count - 1].put = s;
                continue;
            }
            list[count++] = {s, nullptr};
            heads += s->in[0].shape[2];
            elements += s->in[0].size();
            tables = Tables::nbytes(*s) > tables ? Tables::nbytes(*s) : tables;
        }
    }
    JF_INLINE const Step& first() const { return *list[0].rope; }
    // Of one token: cosines and sines, as Tables has them.
    JF_INLINE int64_t waves() const { return (Tables::pairs_of(first()) + W - 1) / W * W * 16; }
    JF_INLINE int64_t waves_nbytes() const { return (tokens * waves() + 63) / 64 * 64; }
};

template <DType D>
void turn(const Turns& turns, Tables tables, Mode mode, const char* waves, const Team& team) {
    const Share mine = share(turns.heads, team);
    if (mine.begin == mine.end) return;
    for (int64_t t = 0; t < turns.tokens; t++) {
        tables.cosine = (float*)(waves + t * turns.waves());
        tables.sine = tables.cosine + 2 * tables.padded;
        int64_t before = 0;
        for (int i = 0; i < turns.count; before += turns.list[i++].heads()) {
            const Turn& one = turns.list[i];
            const int64_t begin = mine.begin > before ? mine.begin - before : 0, rest = mine.end - before;
            for (int64_t h = begin; h < rest && h < one.heads(); h++) one.head<D>(tables, mode, t, h);
        }
    }
}

// The angles of all tokens are shared out by tokens, then the heads: the rows of one head are put in their order, so
// that of a row put twice the last one stays.
void run(const Chain& chain, const Team& team) {
    const Turns turns(chain);
    const Step& first = turns.first();
    const Mode mode = Mode(first.note[0]);
    Tables tables(first, team.scratch + turns.waves_nbytes() + team.index * turns.tables);
    const Share part = share(turns.tokens, team);
    if (part.begin < part.end) fill_angles(first, tables, mode);
    Tables one = tables;
    for (int64_t t = part.begin; t < part.end; t++) {
        one.cosine = (float*)(team.scratch + t * turns.waves());
        one.sine = one.cosine + 2 * one.padded;
        fill_token(first, one, t, mode, magnitude_of(first));
    }
    team.barrier();
    const DType dtype = first.in[0].dtype;
    if (dtype == F32)
        turn<F32>(turns, tables, mode, team.scratch, team);
    else if (dtype == F16)
        turn<F16>(turns, tables, mode, team.scratch, team);
    else
        turn<BF16>(turns, tables, mode, team.scratch, team);
}

int32_t workers(const Chain& chain, int32_t most) { return workers_for(Turns(chain).elements, most); }

int64_t scratch(const Chain& chain, int32_t workers) {
    const Turns turns(chain);
    return turns.waves_nbytes() + turns.tables * workers;
}

void bind(const Chain& chain) {
    for (int32_t i = 0; i < chain.count; i++)
        if (is_op(chain, i, "rope")) bind_rope(*chain.steps[i]);
}

}  // namespace
}  // namespace jackfield::JF_LEVEL

JF_FUSED(turned, run, workers, scratch, bind)

// Copies of whole views: bytes only, so blocks travel like elements.
#pragma once
#include "blocks.h"
#include "transpose.h"
#include "views.h"

namespace jackfield {
namespace {

// An axis of a copy: extent, and bytes from one index to the next.
struct Loop {
    int64_t n, from, to;
};

// What is to be copied, as few axes as will do: axes of one index are dropped, axes that run on as one are joined, the
// order is that of the target, and what lies together on both sides is one unit.
struct Paths {
    const char* from;
    char* to;
    int64_t unit;  // bytes
    int count;
    Loop loop[RANK];  // the last `count` ones count, the others have one index

    JF_INLINE Paths(const View& source, const View& target)
        : from(source.data), to(target.data), unit(block_nbytes(source.dtype)), count(0) {
        Loop kept[RANK];
        for (int axis = 0; axis < RANK; axis++) {
            const int64_t n = axis == 3 ? source.last() / block_length(source.dtype) : source.shape[axis];
            if (n == 1) continue;
            int at = count++;
            for (; at > 0 && kept[at - 1].to < target.stride[axis]; at--) kept[at] = kept[at - 1];
            kept[at] = {n, source.stride[axis], target.stride[axis]};
        }
        int joined = 0;
        for (int i = 0; i < count; i++) {
            Loop& outer = kept[joined > 0 ? joined - 1 : 0];
            if (joined > 0 && outer.from == kept[i].n * kept[i].from && outer.to == kept[i].n * kept[i].to)
                outer = {outer.n * kept[i].n, kept[i].from, kept[i].to};
            else
                kept[joined++] = kept[i];
        }
        if (joined > 0 && kept[joined - 1].from == unit && kept[joined - 1].to == unit) unit *= kept[--joined].n;
        count = joined;
        for (int i = 0; i < RANK; i++) loop[i] = i < RANK - count ? Loop{1, 0, 0} : kept[i - (RANK - count)];
    }

    // The axis that lies closest in the source, before the last one; or the last.
    JF_INLINE int source_axis() const {
        int best = 3;
        for (int i = RANK - count; i < 3; i++)
            if (loop[i].from > 0 && loop[i].from < loop[best].from && loop[i].n >= 4) best = i;
        return best;
    }
    // All lines of the target can be written whole.
    JF_INLINE bool whole_lines() const {
        if (loop[3].to != unit || uintptr_t(to) % CACHE_LINE) return false;
        return loop[0].to % CACHE_LINE == 0 && loop[1].to % CACHE_LINE == 0 && loop[2].to % CACHE_LINE == 0;
    }
};

// A run of bytes that both sides have together. The last piece overlaps the one before.
JF_INLINE void copy_run(char* to, const char* from, int64_t n) {
    constexpr int64_t V = sizeof(vb);
    if (n < V) return copy_short(to, from, n);
    if (n > 1024) {
        memcpy(to, from, size_t(n));
        return;
    }
    for (int64_t i = 0; i + V < n; i += V) memcpy(to + i, from + i, V);
    memcpy(to + n - V, from + n - V, V);
}

template <int SIZE>
inline void fill_line(const char* from, char* to, int64_t n) {
    char piece[CACHE_LINE];
    for (int i = 0; i < CACHE_LINE; i += SIZE) memcpy(piece + i, from, SIZE);
    int64_t i = 0;
    for (; i + CACHE_LINE <= n * SIZE; i += CACHE_LINE) memcpy(to + i, piece, CACHE_LINE);
    for (; i < n * SIZE; i += SIZE) memcpy(to + i, from, SIZE);
}

template <int SIZE>
inline void copy_lines(const Loop& rows, const Loop& line, const char* from, char* to, int64_t m, int64_t n) {
    if (n < m && n < 16) {  // short lines: along the rows
        for (int64_t i = 0; i < n; i++) copy_line<SIZE>(from + i * line.from, rows.from, to + i * line.to, rows.to, m);
        return;
    }
    for (int64_t r = 0; r < m; r++, from += rows.from, to += rows.to) {
        if (line.to == SIZE && line.from == 0)
            fill_line<SIZE>(from, to, n);
        else if (line.to == SIZE && line.from == 2 * SIZE)  // strides that the compiler knows become shuffles
            for (int64_t i = 0; i < n; i++) memcpy(to + i * SIZE, from + i * 2 * SIZE, SIZE);
        else
            copy_line<SIZE>(from, line.from, to, line.to, n);
    }
}

// Units of any other size. Runs with gaps are not foreseen by the hardware: they are asked for.
inline void copy_units(const Loop& rows, const Loop& line, int64_t unit, const char* from, char* to, int64_t m,
                       int64_t n) {
    const bool lines = line.n > 1;
    const int64_t count = lines ? n : m, other = lines ? m : n, step = lines ? line.from : rows.from;
    const int64_t ahead = unit <= 1024 && step > unit ? 8 * step : 0;
    for (int64_t r = 0; r < other; r++)
        for (int64_t i = 0; i < count; i++) {
            const int64_t down = lines ? r : i, across = lines ? i : r;
            const char* run = from + down * rows.from + across * line.from;
            if (ahead && i + 8 < count)
                for (int64_t k = 0; k < unit; k += CACHE_LINE) __builtin_prefetch(run + ahead + k);
            copy_run(to + down * rows.to + across * line.to, run, unit);
        }
}

// A run of bytes, its whole lines past the caches.
inline void copy_run_past(char* to, const char* from, int64_t n) {
    const int64_t before = -int64_t(uintptr_t(to)) & (CACHE_LINE - 1), head = before < n ? before : n;
    copy_short(to, from, head);
    int64_t i = head;
    for (; i + CACHE_LINE <= n; i += CACHE_LINE)
        for (int64_t k = 0; k < CACHE_LINE; k += int64_t(sizeof(vb))) {
            vb v;
            memcpy(&v, from + i + k, sizeof v);
            store_past_caches(to + i + k, v);
        }
    copy_short(to + i, from + i, n - i);
}

// How a copy whose axes are turned writes: line by line where they are whole, else in runs that are mostly whole lines.
enum Way { THROUGH_CACHES, WHOLE_LINES, RUNS };
constexpr int64_t RUN = 1024, RUNS_ABREAST = 2 * CACHE_LINE;  // bytes, along the target and along the source

// n elements along m lines of the target, at most RUN bytes by RUNS_ABREAST bytes of the source.
template <int SIZE>
inline void turn_runs(const Turn& t, int64_t n, int64_t m) {
    constexpr int64_t gap = RUN + CACHE_LINE;  // runs in different sets of the first cache
    alignas(CACHE_LINE) char made[RUNS_ABREAST / SIZE * gap];
    turn<SIZE, false>({t.from, t.from_row, t.from_column, made, SIZE, gap}, n, m);
    for (int64_t r = 0; r < m; r++) copy_run_past(t.to + r * t.to_column, made + r * gap, n * SIZE);
}

template <int SIZE>
JF_INLINE void copy_piece(const Loop& rows, const Loop& line, bool turned, Way way, const char* from, char* to,
                          int64_t m, int64_t n) {
    const Turn t{from, line.from, rows.from, to, line.to, rows.to};
    if (!turned)
        copy_lines<SIZE>(rows, line, from, to, m, n);
    else if (way == WHOLE_LINES)
        turn<SIZE, true>(t, n, m);
    else if (way == RUNS)
        turn_runs<SIZE>(t, n, m);
    else
        turn<SIZE, false>(t, n, m);
}

// A copy that is more than one run, in pieces of m by n indices of two axes.
inline void copy_pieces(const Paths& p, const Team& team) {
    const int axis = p.source_axis();
    const bool fits = p.unit <= 16 && (p.unit & (p.unit - 1)) == 0;
    const bool turned = fits && axis != 3 && p.loop[3].n * p.unit >= CACHE_LINE;
    const int64_t bytes = p.unit * p.loop[0].n * p.loop[1].n * p.loop[2].n * p.loop[3].n;
    const bool past = turned && bytes >= PAST_CACHES, runs = past && p.loop[3].to == p.unit && !p.whole_lines();
    const Way way = runs ? RUNS : past && p.whole_lines() ? WHOLE_LINES : THROUGH_CACHES;
    const int row = axis != 3 ? axis : 2;
    const Loop &rows = p.loop[row], &line = p.loop[3], &outer = p.loop[row == 0 ? 1 : 0],
               &inner = p.loop[row == 2 ? 1 : 2];
    constexpr int64_t PIECE = 32 << 10;  // bytes, so that workers share long units too
    const int64_t fit = p.unit * 4096 < PIECE ? 4096 : PIECE / p.unit + 1;
    const int64_t squares = (way == WHOLE_LINES ? ABREAST<true> : ABREAST<false>)*CACHE_LINE / p.unit;
    const int64_t most = runs ? RUN / p.unit : turned ? squares : fit;
    const int64_t n = line.n < most ? line.n : most;
    const int64_t square = turned ? CACHE_LINE / p.unit : 1;  // pieces of whole ones, so that the next is aligned too
    const int64_t filled = PIECE / (p.unit * n) / square * square, least = filled > 0 ? filled : square;
    const int64_t room = runs ? RUNS_ABREAST / p.unit : least;
    const int64_t m = rows.n < room ? rows.n : room;
    const int64_t down = (rows.n + m - 1) / m, across = (line.n + n - 1) / n;
    const int64_t shape[3] = {inner.n, across, down};
    const int64_t each = inner.n * across * down;
    const Share part = share(outer.n * each, team);
    if (part.begin >= part.end) return;
    int64_t at0 = part.begin / each;
    RowWalk walk(shape, part.begin % each);
    for (int64_t i = part.begin; i < part.end; i++) {
        const int64_t r = walk.at[2] * m, c = walk.at[1] * n, mm = rows.n - r < m ? rows.n - r : m,
                      nn = line.n - c < n ? line.n - c : n;
        const char* from = p.from + at0 * outer.from + walk.at[0] * inner.from + r * rows.from + c * line.from;
        char* to = p.to + at0 * outer.to + walk.at[0] * inner.to + r * rows.to + c * line.to;
        if (!fits)
            copy_units(rows, line, p.unit, from, to, mm, nn);
        else if (p.unit == 4)
            copy_piece<4>(rows, line, turned, way, from, to, mm, nn);
        else if (p.unit == 2)
            copy_piece<2>(rows, line, turned, way, from, to, mm, nn);
        else if (p.unit == 8)
            copy_piece<8>(rows, line, turned, way, from, to, mm, nn);
        else if (p.unit == 1)
            copy_piece<1>(rows, line, turned, way, from, to, mm, nn);
        else
            copy_piece<16>(rows, line, turned, way, from, to, mm, nn);
        walk.next();
        if (walk.at[0] == inner.n) walk.at[0] = 0, at0++;
    }
    if (way != THROUGH_CACHES) settle();
}

// `to` has the shape of `from` and its dtype.
inline void copy_view(const View& from, const View& to, const Team& team) {
    if (from.size() == 0) return;
    if (!dense(from) || !dense(to)) {
        const Paths p(from, to);
        if (p.count) return copy_pieces(p, team);
    }
    const Share part =
        share_lines(from.rows() * (from.last() / block_length(from.dtype)) * block_nbytes(from.dtype), team);
    if (from.data != to.data && part.begin < part.end)
        memcpy(to.data + part.begin, from.data + part.begin, size_t(part.end - part.begin));
}

}  // namespace
}  // namespace jackfield

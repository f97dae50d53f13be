// sum and mean: totals in f64, over the last axis, another one, or all.
#pragma once
#include "landing.h"
#include "simd.h"
#include "views.h"
#include "wide_sum.h"

namespace jackfield {
namespace {

constexpr Operand reduce_operands[] = {{"x", ROWS, FLOATS}};
constexpr const char* const reduce_attributes[] = {"axis", "keepdims", nullptr};

JF_INLINE void store_one(const View& out, char* to, double value) {
    const vf x = splat(float(value));
    if (out.dtype == F32)
        store_part<F32>(to, x, 1);
    else if (out.dtype == F16)
        store_part<F16>(to, x, 1);
    else
        store_part<BF16>(to, x, 1);
}

template <bool MEAN>
struct Reduce {
    template <DType D>
    static void all(const Step& s) {
        const View& x = s.in[0];
        double total = 0;
        RowWalk walk(x.shape, 0);
        for (int64_t r = 0; r < x.rows(); r++, walk.next()) total += wide_sum<D>(walk.row(x), x.last());
        store_one(s.out, s.out.data, MEAN ? total / double(x.size()) : total);
    }

    template <DType D>
    static void last(const Step& s, const Team& team) {
        const View& x = s.in[0];
        const Landing landing(s, 3);
        const Share part = share(x.rows(), team);
        RowWalk walk(x.shape, part.begin);
        for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
            const double total = wide_sum<D>(walk.row(x), x.last());
            store_one(s.out, landing.at(s, walk.at[0], walk.at[1], walk.at[2]),
                      MEAN ? total / double(x.last()) : total);
        }
    }

    // Over axis 0, 1 or 2: some columns at a time, whose totals stay in the first cache.
    template <DType D>
    static void other(const Step& s, const Team& team, int axis) {
        constexpr int64_t most = 512;
        const View& x = s.in[0];
        const Landing landing(s, axis);
        int64_t rest[3] = {x.shape[0], x.shape[1], x.shape[2]};
        rest[axis] = 1;
        const int64_t across = (x.last() + most - 1) / most;
        const Share part = share(rest[0] * rest[1] * rest[2] * across, team);
        for (int64_t p = part.begin; p < part.end; p++) {
            const RowWalk walk(rest, p / across);
            const int64_t c = p % across * most, m = x.last() - c < most ? x.last() - c : most;
            columns<D>(s, axis, walk.row(x) + c * bytes_of<D>,
                       landing.at(s, walk.at[0], walk.at[1], walk.at[2]) + c * landing.stride[3], landing.stride[3], m);
        }
    }

    // Rows that are added while a total is in a register. The order of a total's additions is that of the rows.
    static constexpr int64_t ABREAST_ROWS = 4;

    template <DType D>
    JF_INLINE static void add_rows(const char* from, int64_t down, WideSum* total, int64_t count) {
        for (int64_t v = 0; v < count; v++) {
            WideSum sum = total[v];
            for (int64_t j = 0; j < ABREAST_ROWS; j++) {
                const char* at = from + j * down + v * W * bytes_of<D>;
                __builtin_prefetch(at + ABREAST_ROWS * down);  // jumps are not foreseen by the hardware
                sum.add(load<D>(at));
            }
            total[v] = sum;
        }
    }

    // m neighbouring columns. A total's lanes are in the order of the elements.
    template <DType D>
    static void columns(const Step& s, int axis, const char* from, char* to, int64_t stride, int64_t m) {
        const View& x = s.in[0];
        WideSum total[512 / W];
        const int64_t whole = m / W, left = m % W, down = x.stride[axis], rows = x.shape[axis];
        for (int64_t k = 0; k < rows;) {
            const int64_t abreast = rows - k < ABREAST_ROWS ? 1 : ABREAST_ROWS;
            if (abreast > 1)
                add_rows<D>(from, down, total, whole);
            else
                for (int64_t v = 0; v < whole; v++) total[v].add(load<D>(from + v * W * bytes_of<D>));
            for (int64_t j = 0; left && j < abreast; j++)
                total[whole].add(load_part<D>(from + j * down + whole * W * bytes_of<D>, left));
            k += abreast, from += abreast * down;
        }
        const double n = MEAN ? double(x.shape[axis]) : 1;
        for (int64_t c = 0; c < m; c += W, to += W * stride) {
            double lanes[W];
            memcpy(lanes, &total[c / W].low, sizeof lanes / 2);
            memcpy(lanes + W / 2, &total[c / W].high, sizeof lanes / 2);
            if (s.out.dtype == F32 && stride == 4 && m - c >= W)
                for (int j = 0; j < W; j++) ((float*)to)[j] = float(lanes[j] / n);
            else
                for (int64_t j = 0; j < W && j < m - c; j++) store_one(s.out, to + j * stride, lanes[j] / n);
        }
    }

    template <DType D>
    static void any(const Step& s, const Team& team) {
        const int axis = reduced_axis(s);
        if (axis == -1) {
            if (team.index == 0) all<D>(s);
        } else if (axis == 3) {
            last<D>(s, team);
        } else {
            other<D>(s, team, axis);
        }
    }

    static void run(const Step& s, const Team& team) {
        if (s.in[0].dtype == F32) return any<F32>(s, team);
        if (s.in[0].dtype == F16) return any<F16>(s, team);
        any<BF16>(s, team);
    }

    static int32_t workers(const Step& s, int32_t most) {
        return s.attr[0].absent ? 1 : workers_for(s.in[0].size(), most);
    }
};

}  // namespace
}  // namespace jackfield

#define JF_REDUCE(name, MEAN)                                                                                      \
    JF_KERNEL(name, reduce_operands, reduce_attributes, FLOATS, nullptr, Reduce<MEAN>::run, Reduce<MEAN>::workers, \
              nullptr, nullptr)

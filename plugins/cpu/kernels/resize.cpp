#include "sliding.h"

namespace jackfield {
namespace {

constexpr Operand operands[] = {{"x", ANY, bit(F32)}};
constexpr const char* const attributes[] = {"shape", "mode", "align_corners", "antialias", nullptr};
enum Mode { NEAREST, BILINEAR, BICUBIC };

// Which old elements of an axis a new one is made of, and how much each counts.
struct Axis {
    int64_t before, after;
    Mode mode;
    bool corners, aligned, antialias;
    double ratio;

    JF_INLINE Axis(const Step& s, int axis) : before(s.in[0].shape[axis]), after(s.out.shape[axis]) {
        const char* const text = s.attr[1].text;
        mode = text[0] == 'n' ? NEAREST : text[2] == 'l' ? BILINEAR : BICUBIC;
        aligned = s.attr[2].integer != 0, antialias = s.attr[3].integer != 0;
        corners = aligned && before > 1 && after > 1;
        ratio = corners ? double(after - 1) / double(before - 1) : double(after) / double(before);
    }
    JF_INLINE double support() const { return ratio < 1 ? 1 / ratio : 1; }
    JF_INLINE int64_t most() const {
        if (antialias) return int64_t(2 * support()) + 3;
        return mode == NEAREST ? 1 : mode == BILINEAR ? 2 : 4;
    }
    JF_INLINE int64_t nbytes() const { return (most() * 12 + 63) / 64 * 64; }

    // Keys' kernel, at a distance of at most 2.
    JF_INLINE static double cubic(double u) {
        constexpr double a = -0.75;
        return u <= 1 ? ((a + 2) * u - (a + 3)) * u * u + 1 : a * (((u - 5) * u + 8) * u - 4);
    }

    // Element i. index, weight: `most` of each. Returns how many count.
    JF_INLINE int64_t taps(int64_t i, int64_t* index, float* weight) const {
        if (mode == NEAREST) {
            index[0] = corners ? i * (before - 1) / (after - 1) : i * before / after;
            weight[0] = 1;
            return 1;
        }
        if (antialias) return triangle(i, index, weight);
        const double y = aligned ? double(i) / ratio : (double(i) + 0.5) / ratio - 0.5, floor = __builtin_floor(y);
        const int64_t first = int64_t(floor);
        if (mode == BILINEAR) {
            const double part = y - double(clamped(first)), d = part < 0 ? 0 : part > 1 ? 1 : part;
            index[0] = clamped(first), index[1] = clamped(first + 1);
            weight[0] = float(1 - d), weight[1] = float(d);
            return 2;
        }
        for (int64_t k = 0; k < 4; k++) {
            index[k] = clamped(first - 1 + k);
            weight[k] = float(cubic(__builtin_fabs(y - floor - double(k - 1))));
        }
        return 4;
    }
    JF_INLINE int64_t clamped(int64_t i) const { return i < 0 ? 0 : i >= before ? before - 1 : i; }

    JF_INLINE double height(int64_t j, int64_t i) const {
        return 1 - __builtin_fabs((double(j) + 0.5 - (double(i) + 0.5) / ratio) / support());
    }
    // A triangle as wide as an element of the smaller image, its sum 1.
    JF_INLINE int64_t triangle(int64_t i, int64_t* index, float* weight) const {
        const double centre = (double(i) + 0.5) / ratio - 0.5;
        const int64_t low = clamped(int64_t(__builtin_floor(centre - support()))),
                      high = clamped(int64_t(__builtin_ceil(centre + support())));
        double total = 0;
        for (int64_t j = low; j <= high; j++) total += height(j, i) > 0 ? height(j, i) : 0;
        int64_t count = 0;
        for (int64_t j = low; j <= high; j++)
            if (height(j, i) > 0 && count < most()) index[count] = j, weight[count++] = float(height(j, i) / total);
        return count;
    }
};

// Rows first: a line as wide as the old image, then along it.
struct Resizing {
    const Step& s;
    Axis rows, columns;

    JF_INLINE explicit Resizing(const Step& step) : s(step), rows(step, 2), columns(step, 3) {}
    JF_INLINE int64_t nbytes() const {
        const int64_t taps = rows.nbytes() > columns.nbytes() ? rows.nbytes() : columns.nbytes();
        return taps + line_nbytes(s.in[0].last()) + line_nbytes(s.out.last());
    }
    JF_INLINE void run(const Team& team) const {
        const View &x = s.in[0], &out = s.out;
        char* const memory = team.scratch + team.index * nbytes();
        float* const line = (float*)memory;
        float* const made = line + line_nbytes(x.last()) / 4;
        int64_t* const index = (int64_t*)(made + line_nbytes(out.last()) / 4);
        const int64_t most = rows.most() > columns.most() ? rows.most() : columns.most();
        float* const weight = (float*)(index + most);
        const Share part = share(out.rows(), team);
        RowWalk walk(out.shape, part.begin);
        for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
            const char* from = x.data;
            for (int axis = 0; axis < 2; axis++)
                from += walk.at[axis] * x.shape[axis] / out.shape[axis] * x.stride[axis];
            down(from, rows.taps(walk.at[2], index, weight), index, weight, line);
            for (int64_t i = 0; i < out.last(); i++) {
                const int64_t count = columns.taps(i, index, weight);
                float total = 0;
                for (int64_t k = 0; k < count; k++) total += line[index[k]] * weight[k];
                made[i] = total;
            }
            put_line(out, made, walk.row(out), out.last());
        }
    }
    JF_INLINE void down(const char* from, int64_t count, const int64_t* index, const float* weight, float* line) const {
        const View& x = s.in[0];
        for (int64_t i = 0; i < x.last(); i++) {
            float total = 0;
            for (int64_t k = 0; k < count; k++)
                total += load_one<F32>(from + index[k] * x.stride[2] + i * x.stride[3]) * weight[k];
            line[i] = total;
        }
    }
};

void run(const Step& s, const Team& team) { Resizing(s).run(team); }
int64_t scratch(const Step& s, int32_t workers) { return Resizing(s).nbytes() * workers; }

}  // namespace
}  // namespace jackfield

JF_KERNEL(resize, operands, attributes, bit(F32), nullptr, run, nullptr, scratch, nullptr)

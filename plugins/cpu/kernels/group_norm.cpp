#include "layer.h"

namespace jackfield {
namespace {

constexpr const char* const attributes[] = {"groups", "eps", nullptr};

// x as (images, channels, rows, columns): (C, L) is one image whose rows have a height of 1.
JF_INLINE View as_images(View v) {
    if (v.rank > 2) return v;
    v.shape[1] = v.shape[2], v.stride[1] = v.stride[2];
    v.shape[2] = 1;
    return v;
}

// Neighbouring channels of one image.
struct Group {
    int64_t image, first, channels;

    template <class Each>
    JF_INLINE void rows(const View& x, const Each& each) const {
        for (int64_t c = first; c < first + channels; c++)
            for (int64_t h = 0; h < x.shape[2]; h++) each(c, h);
    }
    JF_INLINE char* row(const View& v, int64_t c, int64_t h) const {
        return v.data + image * v.stride[0] + c * v.stride[1] + h * v.stride[2];
    }
};

template <DType D>
JF_INLINE Line line_of(const View& x, const Group& group, double eps) {
    const int64_t n = group.channels * x.shape[2] * x.last();
    double total = 0;
    group.rows(x, [&](int64_t c, int64_t h) { total += wide_sum<D>(group.row(x, c, h), x.last()); });
    const float shift = float(total / double(n));
    Moments all{0, 0};
    group.rows(x, [&](int64_t c, int64_t h) {
        const Moments part = safe_moments<D, true>(group.row(x, c, h), x.last(), shift);
        all.first += part.first;
        all.second += part.second;
    });
    return centred(all, n, shift, eps);
}

template <DType D>
void groups(const Step& s, const Team& team) {
    const View x = as_images(s.in[0]), out = as_images(s.out);
    const int64_t channels = x.shape[1], each = (channels - 1) / s.attr[0].integer + 1;
    const int64_t count = (channels - 1) / each + 1;  // those that have channels
    const Share part = share(x.shape[0] * count, team);
    for (int64_t g = part.begin; g < part.end; g++) {
        const int64_t first = g % count * each, left = channels - first;
        const Group group{g / count, first, left < each ? left : each};
        const Line line = line_of<D>(x, group, s.attr[1].number);
        group.rows(x, [&](int64_t c, int64_t h) {
            Norms<Line>::scattered<D>(line, group.row(x, c, h), group.row(out, c, h), out.stride[3], x.last());
        });
    }
}

void run(const Step& s, const Team& team) {
    if (s.in[0].dtype == F32) return groups<F32>(s, team);
    if (s.in[0].dtype == F16) return groups<F16>(s, team);
    groups<BF16>(s, team);
}

int32_t workers(const Step& s, int32_t most) { return workers_for(s.out.size(), most); }

}  // namespace
}  // namespace jackfield

JF_KERNEL(group_norm, norm_operands, attributes, FLOATS, nullptr, run, workers, nullptr, nullptr)

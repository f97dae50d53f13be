#include "convert.h"

namespace jackfield {
namespace {

constexpr const char* const attributes[] = {"shape", "value", "dtype", nullptr};

// To f32 with what is lost kept in the last bit, so that the rounding to half the size is the only one.
JF_INLINE float sticky(double value) {
    const float near = float(value);
    if (value != value || double(near) == value) return near;
    int32_t bits;
    memcpy(&bits, &near, 4);
    if (__builtin_fabs(double(near)) > __builtin_fabs(value)) bits--;
    bits |= 1;
    float odd;
    memcpy(&odd, &bits, 4);
    return odd;
}

// One element as it is stored.
JF_INLINE void make_element(const Step& s, char* element) {
    const double value = s.attr[1].number;
    if (is_int(s.out.dtype))
        write_int(s.out.dtype, element, s.attr[1].integer);
    else if (s.out.dtype == F32)
        store_part<F32>(element, splat(float(value)), 1);
    else if (s.out.dtype == F16)
        store_part<F16>(element, splat(sticky(value)), 1);
    else
        store_part<BF16>(element, splat(sticky(value)), 1);
}

// The first row is filled element by element, the others are copies of it.
void run(const Step& s, const Team& team) {
    const View& out = s.out;
    const int64_t size = block_nbytes(out.dtype), n = out.last(), stride = out.stride[3];
    char element[8];
    make_element(s, element);
    const Share part = share(out.rows(), team);
    RowWalk walk(out.shape, part.begin);
    const char* first = nullptr;
    for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
        char* const to = walk.row(out);
        if (first && stride == size) {
            memcpy(to, first, size_t(n * size));
            continue;
        }
        for (int64_t i = 0; i < n; i++) memcpy(to + i * stride, element, size_t(size));
        first = to;
    }
}

}  // namespace
}  // namespace jackfield

JF_SOURCE(full, attributes, FLOATS | INTS, run)

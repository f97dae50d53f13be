#include "copies.h"

namespace jackfield {
namespace {

constexpr uint64_t NUMBERS = FLOATS | bit(I8) | bit(I16) | bit(I32) | bit(I64);
constexpr Operand operands[] = {{"x", ROWS, NUMBERS}};
constexpr const char* const attributes[] = {"repeats", nullptr};

// n bytes from x, again and again until `total` are there: what is there already is copied, so the pieces double.
JF_INLINE void repeat(const char* x, int64_t n, char* out, int64_t total) {
    copy_run(out, x, n);
    for (int64_t done = n; done < total;) {
        const int64_t more = total - done < done ? total - done : done;
        copy_run(out + done, out, more);
        done += more;
    }
}

// `count` short rows, dense on both sides, each `times` times. N: bytes of a row, known to the compiler.
template <int N>
JF_INLINE void repeat_rows(const char* x, char* out, int64_t count, int64_t times) {
    for (int64_t r = 0; r < count; r++, x += N) {
        char row[N];
        memcpy(row, x, N);
        for (int64_t i = 0; i < times; i++, out += N) memcpy(out, row, N);
    }
}

// Twice, as most often: the compiler makes shuffles of it.
template <class T>
JF_INLINE void repeat_twice(const char* x, char* out, int64_t count) {
    for (int64_t r = 0; r < count; r++) {
        T row;
        memcpy(&row, x + r * int64_t(sizeof row), sizeof row);
        const T both[] = {row, row};
        memcpy(out + r * int64_t(sizeof both), both, sizeof both);
    }
}

// The same for rows of n < 16 bytes: whole pieces of 16 are moved, and the next one covers what was too much.
inline void repeat_any(const char* x, char* out, int64_t count, int64_t n, int64_t times) {
    const int64_t exact = 16 / n + 1;  // the last rows, whose pieces would reach beyond the ends
    for (int64_t r = 0; r < count; r++, x += n)
        for (int64_t i = 0; i < times; i++, out += n) {
            if (count - r > exact)
                memcpy(out, x, 16);
            else
                copy_short(out, x, n);
        }
}

JF_INLINE void repeat_short(const char* x, char* out, int64_t count, int64_t n, int64_t times) {
    if (n == 4 && times == 2) return repeat_twice<uint32_t>(x, out, count);
    if (n == 8 && times == 2) return repeat_twice<uint64_t>(x, out, count);
    if (n == 4) return repeat_rows<4>(x, out, count, times);
    if (n == 8) return repeat_rows<8>(x, out, count, times);
    if (n == 16) return repeat_rows<16>(x, out, count, times);
    if (n == 32) return repeat_rows<32>(x, out, count, times);
    if (n == 64) return repeat_rows<64>(x, out, count, times);
    repeat_any(x, out, count, n, times);
}

// Axes outside the last one that lie without gaps are joined, so that short rows come many at a time.
void run_short(const Step& s, const Team& team, int64_t n) {
    const View &x = s.in[0], &out = s.out;
    const int64_t times = out.last() / x.last();
    const Share part = share(out.rows(), team);
    for (int64_t r = part.begin; r < part.end;) {
        const int64_t i2 = r % out.shape[2], i1 = r / out.shape[2] % out.shape[1], i0 = r / out.shape[2] / out.shape[1];
        const int64_t most = x.shape[2] - i2 % x.shape[2], count = part.end - r < most ? part.end - r : most;
        const char* from =
            x.data + i0 % x.shape[0] * x.stride[0] + i1 % x.shape[1] * x.stride[1] + i2 % x.shape[2] * x.stride[2];
        repeat_short(from, out.data + i0 * out.stride[0] + i1 * out.stride[1] + i2 * out.stride[2], count, n, times);
        r += count;
    }
}

void run(const Step& s, const Team& team) {
    const View &x = s.in[0], &out = s.out;
    const int64_t size = block_nbytes(x.dtype), n = x.last(), stride = out.stride[3];
    const int64_t bytes = n * size;
    if (bytes > 0 && (bytes <= 16 || bytes == 32 || bytes == 64) && x.shape[2] >= 16 && dense(x, 2) && dense(out, 2))
        return run_short(s, team, bytes);
    const Share part = share(out.rows(), team);
    RowWalk walk(out.shape, part.begin);
    for (int64_t r = part.begin; r < part.end; r++, walk.next()) {
        const char* from = x.data;
        for (int axis = 0; axis < 3; axis++) {
            const int64_t i = walk.at[axis], most = x.shape[axis];
            from += (i < most    ? i
                     : most == 1 ? 0
                                 : i % most) *
                    x.stride[axis];  // divisions would take longer than short rows
        }
        if (stride == size || out.last() == 1)
            repeat(from, n * size, walk.row(out), out.last() * size);
        else
            for (int64_t i = 0; i < out.last(); i += n) scatter(from, walk.row(out) + i * stride, stride, n, size);
    }
}

}  // namespace
}  // namespace jackfield

JF_KERNEL(tile, operands, attributes, NUMBERS, nullptr, run, nullptr, nullptr, nullptr)

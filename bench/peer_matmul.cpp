// How long a peer takes for y = x w^T with a weight of one type: the peer's side of matmul.py.
//
//     peer-matmul TYPE THREADS PACK COPIES N K M...      prints a line for each M: M and the seconds of one product
//
// The weight has N rows of K elements, x has M rows of float32. COPIES of the weight take turns, so that with enough of
// them each comes from memory. PACK is 1 for the packed layout the peer gives weights while loading. Nothing is printed
// where the peer does not know the type or (llama.cpp) has no such layout for it, "wrong" for seconds where the product
// is far from that of the decoded weight. PEER_IK: built on ik_llama.cpp's libraries, which leave types they have no
// such layout for as they are.
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"
#ifdef PEER_IK
#include "iqk/iqk_quantize.h"
#else
#include "ggml-cpu.h"
#endif

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

namespace {

constexpr int ROUNDS = 9;
constexpr double ROUND_S = 0.02;
constexpr int64_t MADE_ROWS = 16;  // encoded once and repeated: some types take seconds a matrix

ggml_type type_named(const char* name) {
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const auto type = static_cast<ggml_type>(i);
        const char* known = ggml_type_name(type);
        if (known != nullptr && std::strcmp(known, name) == 0 && ggml_blck_size(type) > 0) return type;
    }
    return GGML_TYPE_COUNT;
}

// With one thread the clock is that of the thread, which other processes hardly disturb.
double now(int threads) {
    timespec t;
    clock_gettime(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

std::vector<float> normal(int64_t count) {
    std::mt19937 dice(0);
    std::normal_distribution<float> draw(0.0f, 1.0f);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = draw(dice);
    return values;
}

std::vector<char> encoded(ggml_type type, int64_t n, int64_t k) {
    const std::vector<float> values = normal(MADE_ROWS * k), even(static_cast<size_t>(k), 1.0f);
    const size_t row = ggml_row_size(type, k);
    std::vector<char> made(MADE_ROWS * row), all(static_cast<size_t>(n) * row);
    ggml_quantize_chunk(type, values.data(), made.data(), 0, MADE_ROWS, k, even.data());
    for (size_t at = 0; at < all.size(); at += made.size()) {
        std::memcpy(all.data() + at, made.data(), std::min(made.size(), all.size() - at));
    }
    return all;
}

// The row as float32.
std::vector<float> decoded(ggml_type type, const char* row, int64_t k) {
    std::vector<float> values(static_cast<size_t>(k));
#ifdef PEER_IK
    const auto to_float = ggml_internal_get_type_traits(type).to_float;
#else
    const auto to_float = ggml_get_type_traits(type)->to_float;
#endif
    if (type == GGML_TYPE_F32) {
        std::memcpy(values.data(), row, values.size() * sizeof(float));
    } else {
        to_float(row, values.data(), k);
    }
    return values;
}

// Whether y [m, n] is about x w^T, seen at its last row and the rows of the weight that were made: rounding x to int8
// moves a product of normal numbers by a hundredth of its spread, a broken kernel by about all of it.
bool right(const std::vector<float>& y, const std::vector<float>& x, const std::vector<char>& weight, ggml_type type,
           int64_t n, int64_t k) {
    const size_t row = ggml_row_size(type, k), last = x.size() - static_cast<size_t>(k);
    double wrong = 0, spread = 0;
    for (int64_t i = 0; i < std::min(n, MADE_ROWS); ++i) {
        const std::vector<float> values = decoded(type, weight.data() + static_cast<size_t>(i) * row, k);
        double sum = 0;
        for (size_t j = 0; j < values.size(); ++j) sum += static_cast<double>(values[j]) * x[last + j];
        const double off = y[y.size() - static_cast<size_t>(n - i)] - sum;
        wrong += off * off;
        spread += sum * sum;
    }
    return wrong <= 0.01 * spread;  // false for NaN
}

ggml_context* context_for(size_t tensors) {
    ggml_init_params params{};
    params.mem_size = tensors * (ggml_tensor_overhead() + 512) + ggml_graph_overhead() * tensors;
    params.no_alloc = true;
    return ggml_init(params);
}

// Weights in the layout asked for; empty where the peer has none for the type.
std::vector<ggml_tensor*> weights(ggml_backend_t backend, ggml_type type, int64_t n, int64_t k, int copies, bool pack) {
    ggml_context* context = context_for(static_cast<size_t>(copies));
    std::vector<ggml_tensor*> made;
    for (int i = 0; i < copies; ++i) {
        made.push_back(ggml_new_tensor_2d(context, type, k, n));
        ggml_set_name(made.back(), "weight");
    }
    ggml_backend_buffer_t buffer = nullptr;
#ifndef PEER_IK
    if (pack) {
        ggml_backend_dev_t device = ggml_backend_get_device(backend);
        auto kinds = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
            ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts"));
        ggml_backend_buffer_type_t* kind = kinds == nullptr ? nullptr : kinds(device);
        for (; kind != nullptr && *kind != nullptr && buffer == nullptr; ++kind) {
            buffer = ggml_backend_alloc_ctx_tensors_from_buft(context, *kind);
            if (buffer != nullptr && made[0]->extra == nullptr) return {};
        }
        if (buffer == nullptr) return {};
    }
#endif
    if (buffer == nullptr) buffer = ggml_backend_alloc_ctx_tensors(context, backend);
    if (buffer == nullptr) return {};
    const std::vector<char> bytes = encoded(type, n, k);
    for (ggml_tensor* weight : made) ggml_backend_tensor_set(weight, bytes.data(), 0, bytes.size());
#ifdef PEER_IK
    for (ggml_tensor* weight : made) {
        if (pack) iqk_repack_tensor(weight);
    }
#endif
    return made;
}

// Seconds of one product; below 0 where it is wrong.
double seconds(ggml_backend_t backend, const std::vector<ggml_tensor*>& made, ggml_type type, int64_t m, int threads) {
    ggml_context* context = context_for(2 * made.size() + 1);
    ggml_tensor* x = ggml_new_tensor_2d(context, GGML_TYPE_F32, made[0]->ne[0], m);
    std::vector<ggml_cgraph*> graphs;
    std::vector<ggml_tensor*> products;
    for (ggml_tensor* weight : made) {
        graphs.push_back(ggml_new_graph_custom(context, 8, false));
        products.push_back(ggml_mul_mat(context, weight, x));
        ggml_build_forward_expand(graphs.back(), products.back());
    }
    ggml_backend_buffer_t buffer = ggml_backend_alloc_ctx_tensors(context, backend);
    const std::vector<float> values = normal(made[0]->ne[0] * m);
    ggml_backend_tensor_set(x, values.data(), 0, values.size() * sizeof(float));
    size_t turn = 0;
    auto one = [&] { ggml_backend_graph_compute(backend, graphs[turn++ % graphs.size()]); };
    one();
    const int64_t k = made[0]->ne[0], n = made[0]->ne[1];
    std::vector<float> y(static_cast<size_t>(n * m));
    ggml_backend_tensor_get(products[0], y.data(), 0, y.size() * sizeof(float));
    if (!right(y, values, encoded(type, n, k), type, n, k)) return -1;
    const double begin = now(threads);
    one();
    const int repeats = std::max(1, static_cast<int>(ROUND_S / std::max(now(threads) - begin, 1e-7)));
    std::vector<double> times;
    for (int round = 0; round < ROUNDS; ++round) {
        const double start = now(threads);
        for (int i = 0; i < repeats; ++i) one();
        times.push_back((now(threads) - start) / repeats);
    }
    ggml_backend_buffer_free(buffer);
    ggml_free(context);
    std::sort(times.begin(), times.end());
    return times[ROUNDS / 2];
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 8) {
        std::fputs("peer-matmul: usage: TYPE THREADS PACK COPIES N K M...\n", stderr);
        return 1;
    }
    const int threads = std::atoi(argv[2]);
    const int64_t n = std::atoll(argv[5]), k = std::atoll(argv[6]);
    const ggml_type type = type_named(argv[1]);
    if (type == GGML_TYPE_COUNT || k % ggml_blck_size(type) != 0) return 0;
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, threads);
    const std::vector<ggml_tensor*> made = weights(backend, type, n, k, std::atoi(argv[4]), std::atoi(argv[3]) != 0);
    for (int i = 7; i < argc && !made.empty(); ++i) {
        const double took = seconds(backend, made, type, std::atoll(argv[i]), threads);
        if (took < 0) {
            std::printf("%s wrong\n", argv[i]);
        } else {
            std::printf("%s %.9g\n", argv[i], took);
        }
        std::fflush(stdout);
    }
    return 0;
}

// What llama-bench does not tell of a peer: how long loading and the first token take, and whether its output is right.
//
//     peer-probe first MODEL THREADS PACK SHORT LONG     seconds: loading, first token of SHORT and of LONG tokens
//     peer-probe score MODEL THREADS PACK SINGLES ID...  -log probability of each next id; the last SINGLES one by one
//
// PACK is 1 where weights are packed while loading. Prints one JSON object. PEER_IK: built on ik_llama.cpp's libraries,
// else on llama.cpp's.
#include "llama.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

void only_errors(ggml_log_level level, const char* text, void*) {
    if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

// One loaded model and one context, released together.
class Peer {
public:
    Peer(const char* path, int threads, bool pack, uint32_t length) {
        llama_model_params model_params = llama_model_default_params();
        llama_context_params params = llama_context_default_params();
        params.n_ctx = length;
        params.n_batch = length;
        params.n_threads = params.n_threads_batch = static_cast<decltype(params.n_threads)>(threads);
#ifdef PEER_IK
        model_params.repack_tensors = pack;
        params.flash_attn = true;
#else
        model_params.use_extra_bufts = pack;
#endif
        model = llama_model_load_from_file(path, model_params);
        if (model == nullptr) throw std::runtime_error("the model did not load");
        context = llama_init_from_model(model, params);
        if (context == nullptr) throw std::runtime_error("no context");
    }

    Peer(const Peer&) = delete;
    Peer& operator=(const Peer&) = delete;

    ~Peer() {
        llama_free(context);
#ifdef PEER_IK
        llama_free_model(model);
#else
        llama_model_free(model);
#endif
    }

    int vocabulary() const { return llama_vocab_n_tokens(llama_model_get_vocab(model)); }

    void forget() {
#ifdef PEER_IK
        llama_kv_cache_clear(context);
#else
        llama_memory_clear(llama_get_memory(context), true);
#endif
    }

    // Evaluates ids at positions from `past`; logits of all of them or of the last.
    void evaluate(const std::vector<llama_token>& ids, int past, bool all) {
        llama_batch batch = llama_batch_init(static_cast<int32_t>(ids.size()), 0, 1);
        batch.n_tokens = static_cast<int32_t>(ids.size());
        for (int32_t i = 0; i < batch.n_tokens; ++i) {
            batch.token[i] = ids[static_cast<size_t>(i)];
            batch.pos[i] = past + i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i] = all || i + 1 == batch.n_tokens;
        }
        const int32_t status = llama_decode(context, batch);
        llama_batch_free(batch);
        if (status != 0) throw std::runtime_error("llama_decode failed");
    }

    // -log of the probability of `next` after row i of the last evaluation.
    double surprise(int i, llama_token next) {
        const float* row = llama_get_logits_ith(context, i);
        if (row == nullptr) throw std::runtime_error("a row of logits is missing");
        const int n = vocabulary();
        double most = row[0], sum = 0;
        for (int j = 1; j < n; ++j) most = row[j] > most ? row[j] : most;
        for (int j = 0; j < n; ++j) sum += std::exp(row[j] - most);
        return std::log(sum) + most - row[next];
    }

    double first(const std::vector<llama_token>& ids) {
        forget();
        const auto start = Clock::now();
        evaluate(ids, 0, false);
        volatile float logit = llama_get_logits_ith(context, -1)[0];
        (void)logit;
        return since(start);
    }

private:
    llama_model* model = nullptr;
    llama_context* context = nullptr;
};

// Ids from the whole vocabulary: speed does not depend on which.
std::vector<llama_token> some_ids(int count, int vocabulary) {
    std::vector<llama_token> ids;
    for (int i = 0; i < count; ++i) ids.push_back(static_cast<llama_token>((7919L * (i + 1)) % vocabulary));
    return ids;
}

void print_list(const char* name, const std::vector<double>& values) {
    std::printf("\"%s\": [", name);
    for (size_t i = 0; i < values.size(); ++i) {
        if (i > 0) std::printf(", ");
        if (std::isfinite(values[i])) {
            std::printf("%.5f", values[i]);
        } else {
            std::printf("NaN");  // Python's json reads it
        }
    }
    std::printf("]");
}

void time_first(const char* model, int threads, bool pack, int shorter, int longer) {
    const auto start = Clock::now();
    Peer peer(model, threads, pack, static_cast<uint32_t>(longer > shorter ? longer : shorter));
    const double load = since(start);
    const double cold = peer.first(some_ids(shorter, peer.vocabulary()));
    const std::vector<llama_token> ids = some_ids(longer, peer.vocabulary());
    peer.first(ids);
    std::printf("{\"load_s\": %.6f, \"short_s\": %.6f, \"long_s\": %.6f}\n", load, cold, peer.first(ids));
}

void score(const char* model, int threads, bool pack, int singles, const std::vector<llama_token>& ids) {
    const int together = static_cast<int>(ids.size()) - singles;  // the last of them predicts the first single id
    Peer peer(model, threads, pack, static_cast<uint32_t>(ids.size()));
    std::vector<double> batch, single;
    peer.evaluate({ids.begin(), ids.begin() + together}, 0, true);
    for (int i = 0; i + 1 < together; ++i) batch.push_back(peer.surprise(i, ids[static_cast<size_t>(i) + 1]));
    for (size_t i = static_cast<size_t>(together); i + 1 < ids.size(); ++i) {
        peer.evaluate({ids[i]}, static_cast<int>(i), true);
        single.push_back(peer.surprise(0, ids[i + 1]));
    }
    std::printf("{");
    print_list("batch", batch);
    std::printf(", ");
    print_list("single", single);
    std::printf("}\n");
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 7) {
        std::fputs("peer-probe: usage: first MODEL THREADS PACK SHORT LONG | score MODEL THREADS PACK SINGLES ID...\n",
                   stderr);
        return 1;
    }
    llama_log_set(only_errors, nullptr);
    llama_backend_init();
    const int threads = std::atoi(argv[3]);
    const bool pack = std::atoi(argv[4]) != 0;
    try {
        if (std::string(argv[1]) == "first") {
            time_first(argv[2], threads, pack, std::atoi(argv[5]), std::atoi(argv[6]));
        } else {
            std::vector<llama_token> ids;
            for (int i = 6; i < argc; ++i) ids.push_back(std::atoi(argv[i]));
            score(argv[2], threads, pack, std::atoi(argv[5]), ids);
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "peer-probe: %s\n", error.what());
        return 1;
    }
    return 0;
}

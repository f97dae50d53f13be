// What the programs that record llama.cpp share: one sequence in one batch, evaluated as plainly as it can be. One
// thread, float32 KV cache, plain attention (no fused kernel), no repacking of weights.
#pragma once
#include "llama.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

using Model = std::unique_ptr<llama_model, void (*)(llama_model*)>;
using Context = std::unique_ptr<llama_context, void (*)(llama_context*)>;
using File = std::unique_ptr<FILE, int (*)(FILE*)>;

inline void only_errors(ggml_log_level level, const char* text, void*) {
    if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

// Null where it does not load.
inline Model plain_model(const char* path) {
    llama_log_set(only_errors, nullptr);
    llama_backend_init();
    llama_model_params params = llama_model_default_params();
    params.use_extra_bufts = false;
    return {llama_model_load_from_file(path, params), llama_model_free};
}

inline llama_context_params plain_context(size_t length) {
    llama_context_params params = llama_context_default_params();
    params.n_batch = params.n_ubatch = static_cast<uint32_t>(length);
    params.n_ctx = params.n_batch + 8;
    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = params.type_v = GGML_TYPE_F32;
    return params;
}

inline std::vector<llama_token> ids_of(char** words, int count) {
    std::vector<llama_token> ids;
    for (int i = 0; i < count; ++i) ids.push_back(std::atoi(words[i]));
    return ids;
}

// False where llama.cpp fails. Outputs of all positions are kept.
inline bool evaluate(llama_context* context, const std::vector<llama_token>& ids) {
    llama_batch batch = llama_batch_init(static_cast<int32_t>(ids.size()), 0, 1);
    batch.n_tokens = static_cast<int32_t>(ids.size());
    for (int32_t i = 0; i < batch.n_tokens; ++i) {
        batch.token[i] = ids[static_cast<size_t>(i)];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    const int32_t status = llama_decode(context, batch);
    llama_batch_free(batch);
    return status == 0;
}

inline bool written(const float* row, size_t size, FILE* out) {
    return row != nullptr && std::fwrite(row, sizeof(float), size, out) == size;
}

// Writes the logits llama.cpp computes at every position of one sequence: the source of tests/golden/families.
//
//     llama-logits MODEL OUT ID ID ...
//
// One thread, float32 KV cache, plain attention (no fused kernel), no repacking of weights, the whole sequence in one
// batch. OUT receives float32 values in machine order, [ids, vocabulary]; stdout one line with llama.cpp's version.
#include "llama.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

namespace {

void only_errors(ggml_log_level level, const char* text, void*) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        std::fputs(text, stderr);
    }
}

int fail(const char* what) {
    std::fprintf(stderr, "llama-logits: %s\n", what);
    return 1;
}

llama_context_params plain_context(uint32_t length) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = length + 8;
    params.n_batch = length;
    params.n_ubatch = length;
    params.n_threads = 1;
    params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = GGML_TYPE_F32;
    params.type_v = GGML_TYPE_F32;
    return params;
}

llama_batch batch_with_all_logits(const std::vector<llama_token>& ids) {
    llama_batch batch = llama_batch_init(static_cast<int32_t>(ids.size()), 0, 1);
    batch.n_tokens = static_cast<int32_t>(ids.size());
    for (int32_t i = 0; i < batch.n_tokens; ++i) {
        batch.token[i] = ids[i];
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    return batch;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 4) {
        return fail("usage: llama-logits MODEL OUT ID ID ...");
    }
    std::vector<llama_token> ids;
    for (int i = 3; i < argc; ++i) {
        ids.push_back(std::atoi(argv[i]));
    }
    llama_log_set(only_errors, nullptr);
    llama_backend_init();

    llama_model_params model_params = llama_model_default_params();
    model_params.use_extra_bufts = false;
    std::unique_ptr<llama_model, void (*)(llama_model*)> model(llama_model_load_from_file(argv[1], model_params),
                                                               llama_model_free);
    if (!model) {
        return fail("the model did not load");
    }
    const auto length = static_cast<uint32_t>(ids.size());
    std::unique_ptr<llama_context, void (*)(llama_context*)> context(
        llama_init_from_model(model.get(), plain_context(length)), llama_free);
    if (!context) {
        return fail("no context");
    }
    llama_batch batch = batch_with_all_logits(ids);
    const int32_t status = llama_decode(context.get(), batch);
    llama_batch_free(batch);
    if (status != 0) {
        return fail("llama_decode failed");
    }

    const int32_t vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model.get()));
    std::unique_ptr<FILE, int (*)(FILE*)> out(std::fopen(argv[2], "wb"), std::fclose);
    if (!out) {
        return fail("cannot write OUT");
    }
    for (uint32_t i = 0; i < length; ++i) {
        const float* row = llama_get_logits_ith(context.get(), static_cast<int32_t>(i));
        if (row == nullptr ||
            std::fwrite(row, sizeof(float), vocabulary, out.get()) != static_cast<size_t>(vocabulary)) {
            return fail("a row of logits is missing or could not be written");
        }
    }
    std::printf("%s\n", llama_version());
    return 0;
}

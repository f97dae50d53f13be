// Writes the embeddings llama.cpp makes of one sequence: the source of tests/golden/families/embeddings_*.npz.
//
//     llama-embeddings MODEL OUT POOLING ID ID ...
//
// POOLING is mean, cls or last, which give one vector, or none, which gives one a token. One thread, float32 KV cache
// where the model has one, plain attention, no repacking of weights, the whole sequence in one batch. OUT receives
// float32 values in machine order, [1 or ids, width], not normalised; stdout one line with llama.cpp's version.
#include "llama.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace {

void only_errors(ggml_log_level level, const char* text, void*) {
    if (level == GGML_LOG_LEVEL_ERROR) {
        std::fputs(text, stderr);
    }
}

int fail(const char* what) {
    std::fprintf(stderr, "llama-embeddings: %s\n", what);
    return 1;
}

enum llama_pooling_type pooling_named(const char* name) {
    if (std::strcmp(name, "none") == 0) return LLAMA_POOLING_TYPE_NONE;
    if (std::strcmp(name, "mean") == 0) return LLAMA_POOLING_TYPE_MEAN;
    if (std::strcmp(name, "cls") == 0) return LLAMA_POOLING_TYPE_CLS;
    if (std::strcmp(name, "last") == 0) return LLAMA_POOLING_TYPE_LAST;
    return LLAMA_POOLING_TYPE_UNSPECIFIED;
}

llama_context_params embedding_context(uint32_t length, enum llama_pooling_type pooling) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = length + 8;
    params.n_batch = length;
    params.n_ubatch = length;
    params.n_threads = 1;
    params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = GGML_TYPE_F32;
    params.type_v = GGML_TYPE_F32;
    params.embeddings = true;
    params.pooling_type = pooling;
    return params;
}

llama_batch batch_of(const std::vector<llama_token>& ids) {
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
    if (argc < 5) {
        return fail("usage: llama-embeddings MODEL OUT POOLING ID ID ...");
    }
    const enum llama_pooling_type pooling = pooling_named(argv[3]);
    if (pooling == LLAMA_POOLING_TYPE_UNSPECIFIED) {
        return fail("POOLING must be none, mean, cls or last");
    }
    std::vector<llama_token> ids;
    for (int i = 4; i < argc; ++i) {
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
        llama_init_from_model(model.get(), embedding_context(length, pooling)), llama_free);
    if (!context) {
        return fail("no context");
    }
    llama_batch batch = batch_of(ids);
    const int32_t status = llama_decode(context.get(), batch);
    llama_batch_free(batch);
    if (status != 0) {
        return fail("llama_decode failed");
    }

    const auto width = static_cast<size_t>(llama_model_n_embd_out(model.get()));
    const int32_t rows = pooling == LLAMA_POOLING_TYPE_NONE ? static_cast<int32_t>(length) : 1;
    std::unique_ptr<FILE, int (*)(FILE*)> out(std::fopen(argv[2], "wb"), std::fclose);
    if (!out) {
        return fail("cannot write OUT");
    }
    for (int32_t i = 0; i < rows; ++i) {
        const float* row = pooling == LLAMA_POOLING_TYPE_NONE ? llama_get_embeddings_ith(context.get(), i)
                                                              : llama_get_embeddings_seq(context.get(), 0);
        if (row == nullptr || std::fwrite(row, sizeof(float), width, out.get()) != width) {
            return fail("an embedding is missing or could not be written");
        }
    }
    std::printf("%s\n", llama_version());
    return 0;
}

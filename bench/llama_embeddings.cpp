// Writes the embeddings llama.cpp makes of one sequence: the source of tests/golden/families/embeddings_*.npz.
//
//     llama-embeddings MODEL OUT POOLING ID ID ...
//
// POOLING is mean, cls or last, which give one vector, or none, which gives one a token. As plain as llama_plain.h
// says. OUT receives float32 values in machine order, [1 or ids, width], not normalised; stdout one line with
// llama.cpp's version.
#include "llama_plain.h"

#include <cstring>

namespace {

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

llama_context_params embedding_context(size_t length, enum llama_pooling_type pooling) {
    llama_context_params params = plain_context(length);
    params.embeddings = true;
    params.pooling_type = pooling;
    return params;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 5) return fail("usage: llama-embeddings MODEL OUT POOLING ID ID ...");
    const enum llama_pooling_type pooling = pooling_named(argv[3]);
    if (pooling == LLAMA_POOLING_TYPE_UNSPECIFIED) return fail("POOLING must be none, mean, cls or last");
    const std::vector<llama_token> ids = ids_of(argv + 4, argc - 4);
    const Model model = plain_model(argv[1]);
    if (!model) return fail("the model did not load");
    const Context context(llama_init_from_model(model.get(), embedding_context(ids.size(), pooling)), llama_free);
    if (!context) return fail("no context");
    if (!evaluate(context.get(), ids)) return fail("llama_decode failed");

    const auto width = static_cast<size_t>(llama_model_n_embd_out(model.get()));
    const bool each = pooling == LLAMA_POOLING_TYPE_NONE;
    const File out(std::fopen(argv[2], "wb"), std::fclose);
    if (!out) return fail("cannot write OUT");
    for (size_t i = 0; i < (each ? ids.size() : 1); ++i) {
        const float* row = each ? llama_get_embeddings_ith(context.get(), static_cast<int32_t>(i))
                                : llama_get_embeddings_seq(context.get(), 0);
        if (!written(row, width, out.get())) return fail("an embedding is missing or could not be written");
    }
    std::printf("%s\n", llama_version());
    return 0;
}

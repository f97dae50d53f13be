// Writes the logits llama.cpp computes at every position of one sequence: the source of tests/golden/families.
//
//     llama-logits MODEL OUT ID ID ...
//
// As plain as llama_plain.h says. OUT receives float32 values in machine order, [ids, vocabulary]; stdout one line with
// llama.cpp's version.
#include "llama_plain.h"

static int fail(const char* what) {
    std::fprintf(stderr, "llama-logits: %s\n", what);
    return 1;
}

int main(int argc, char** argv) {
    if (argc < 4) return fail("usage: llama-logits MODEL OUT ID ID ...");
    const std::vector<llama_token> ids = ids_of(argv + 3, argc - 3);
    const Model model = plain_model(argv[1]);
    if (!model) return fail("the model did not load");
    const Context context(llama_init_from_model(model.get(), plain_context(ids.size())), llama_free);
    if (!context) return fail("no context");
    if (!evaluate(context.get(), ids)) return fail("llama_decode failed");

    const auto vocabulary = static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model.get())));
    const File out(std::fopen(argv[2], "wb"), std::fclose);
    if (!out) return fail("cannot write OUT");
    for (size_t i = 0; i < ids.size(); ++i) {
        if (!written(llama_get_logits_ith(context.get(), static_cast<int32_t>(i)), vocabulary, out.get()))
            return fail("a row of logits is missing or could not be written");
    }
    std::printf("%s\n", llama_version());
    return 0;
}

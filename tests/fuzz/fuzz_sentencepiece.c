/* fuzz_sentencepiece.c - any bytes as tokenizer.model (SentencePiece's protobuf, or tiktoken's text) and as tekken.json: a
 * verdict with a reason; what is accepted becomes a tokenizer that opens. */
#include "fuzz_file.h"

#include <string.h>

#include "text/toksource.h"

#include "fuzz_tokens.h"

static void one(nb_tokfile_id kind, const uint8_t *data, size_t size)
{
    nb_tokfiles f = { 0 };
    nb_toksource s = { 0 };
    nb_tokenizer *t = NULL;
    nb_err err = { 0 };

    f.f[kind].p = (const char *)data;
    f.f[kind].n = size;
    if (nb_toksource_init(&s, &f, &err) == NB_OK && nb_tokenizer_open(s.json, s.n_json, s.config, s.n_config, &t, &err) == NB_OK)
        fuzz_texts(t);
    else if (err.what[0] == '\0' || err.cls[0] == '\0' || (s.json && strcmp(err.cls, "tok.json") == 0 && kind == NB_TOK_MODEL))
        abort(); /* what we write must be JSON at least */
    nb_tokenizer_close(t);
    nb_toksource_clear(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && data[0] == '{')
        one(NB_TOK_TEKKEN, data, size);
    else
        one(NB_TOK_MODEL, data, size);
    return 0;
}

/* fuzz_tokenizer.c - any bytes as tokenizer.json: a verdict with a reason; then texts to ids and back, whole and streamed
 * alike. */
#include "fuzz_file.h"

#include <string.h>

#include "text/tokenizer.h"

#include "fuzz_tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char config[] =
        "{\"tokenizer_class\":\"LlamaTokenizer\",\"bos_token\":\"<s>\",\"added_tokens_decoder\":{\"9\":{\"content\":"
        "\"<|x|>\",\"special\":true}}}";
    nb_tokenizer *t = NULL;
    nb_err err = { 0 };

    for (int with = 0; with < 2; with++) {
        nb_err_clear(&err);
        if (nb_tokenizer_open((const char *)data, size, with ? config : NULL, with ? sizeof config - 1 : 0, &t, &err) == NB_OK)
            fuzz_texts(t);
        else if (err.what[0] == '\0' || err.cls[0] == '\0' || t)
            abort();
        nb_tokenizer_close(t);
    }
    return 0;
}

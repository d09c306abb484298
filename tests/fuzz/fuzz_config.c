/* fuzz_config.c - any bytes as config.json: read in the lenient way, written and read again, taken as a model's sizes. */
#include "fuzz_file.h"

#include <string.h>

#include "base/mem.h"
#include "model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nb_json *root = NULL, *again = NULL;
    nb_config c = { 0 };
    nb_err err = { 0 };
    char *text, *second;

    if (nb_json_parse_config((const char *)data, size, "cfg", &root, NULL, &err) != NB_OK) {
        if (err.what[0] == '\0')
            abort();
        return 0;
    }
    text = nb_json_dump(root, 2, false);
    if (!text || nb_json_parse_config(text, strlen(text), "cfg", &again, NULL, &err) != NB_OK)
        abort();
    second = nb_json_dump(again, 2, false);
    if (!second || strcmp(text, second) != 0)
        abort();
    if (nb_config_parse(root, &c, &err) == NB_OK) {
        if (c.n_heads == 0 || c.n_kv_heads == 0 || c.n_heads % c.n_kv_heads != 0 || c.vocab == 0 || c.d_model == 0)
            abort();
    } else if (err.what[0] == '\0') {
        abort();
    }
    nb_config_clear(&c);
    nb_free(text);
    nb_free(second);
    nb_json_free(root);
    nb_json_free(again);
    return 0;
}

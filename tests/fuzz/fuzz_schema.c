/* fuzz_schema.c - any JSON as a schema: a verdict with a reason; texts that the grammar calls whole are JSON. */
#include "fuzz_grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nb_json *schema = NULL, *v = NULL;
    nb_grammar *g = NULL;
    nb_buf text = { 0 };
    nb_err err = { 0 };
    nb_status rc;

    if (nb_json_parse((const char *)data, size, "json", 0, &schema, &err) != NB_OK)
        return 0;
    rc = nb_grammar_new_schema(NULL, schema, &fuzz_limits, &g, &err);
    fuzz_verdict(rc, g, &err);
    if (g && fuzz_make(g, 60, &text) && nb_json_parse(text.p ? text.p : "", text.n, "json", 0, &v, NULL) == NB_EFORMAT) {
        nb_json_free(v);
        v = NULL; /* a name may come twice among additional properties */
        nb_err warn = { 0 };
        if (nb_json_parse_config(text.p ? text.p : "", text.n, "json", &v, &warn, NULL) != NB_OK)
            abort();
    }
    nb_json_free(v);
    nb_buf_clear(&text);
    nb_grammar_unref(g);
    nb_json_free(schema);
    return 0;
}

/* fuzz_ebnf.c - any bytes as a grammar text, GBNF or Lark: a verdict with a reason; texts that the grammar makes are UTF-8. */
#include "fuzz_grammar.h"

#include "text/utf8.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nb_grammar *g = NULL;
    nb_buf text = { 0 };
    nb_err err = { 0 };
    const nb_status rc = nb_grammar_new_ebnf(NULL, (const char *)data, size, &fuzz_limits, &g, &err);

    fuzz_verdict(rc, g, &err);
    if (g && fuzz_make(g, 40, &text) && nb_u8_check(text.p ? text.p : "", text.n) < text.n)
        abort();
    nb_buf_clear(&text);
    nb_grammar_unref(g);
    return 0;
}

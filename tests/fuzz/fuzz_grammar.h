/* fuzz_grammar.h - a compiled constraint in a fuzz target: texts that it allows are made and must be whole when it says so. */
#ifndef NB_TESTS_FUZZ_GRAMMAR_H
#define NB_TESTS_FUZZ_GRAMMAR_H

#include <string.h>

#include "fuzz_file.h"
#include "text/grammar.h"

/* Small, so that a run takes little. */
static const nb_glimits fuzz_limits = { .source = 65536, .nodes = 20000, .seconds = 0.5, .cache = 1u << 20 };

/* Take up to `most` bytes, each the first allowed one of a list that turns with the text; the text is appended to out. True when it
 * may end there. */
static inline int fuzz_make(nb_grammar *g, size_t most, nb_buf *out)
{
    static const char bytes[] = "}]\",:{[\\e0aT1-. u\ntrlsfn/x\xC3\xA9+E)(b<>=9Z_";
    const size_t n = sizeof bytes - 1;
    nb_gstate *s = NULL;
    uint32_t turn = 7;
    int end;

    if (nb_gstate_open(g, &s, NULL) != NB_OK)
        abort();
    for (size_t i = 0; i < most && !nb_gstate_must_end(s); i++) {
        size_t k = 0;
        turn = turn * 1103515245u + 12345u;
        while (k < n) {
            const char c = bytes[(k + (turn >> 16) % (i < most / 2 ? n : 3)) % n];
            const nb_status rc = nb_gstate_bytes(s, &c, 1, NULL);
            if (rc == NB_OK) {
                nb_buf_putc(out, c);
                break;
            }
            if (rc != NB_NO && rc != NB_ELIMIT)
                abort();
            k++;
        }
        if (k == n)
            break;
    }
    end = nb_gstate_may_end(s);
    nb_gstate_close(s);
    return end;
}

/* What every verdict must be: a grammar, or a class and a sentence. */
static inline void fuzz_verdict(nb_status rc, const nb_grammar *g, const nb_err *err)
{
    if ((rc == NB_OK) != (g != NULL) || (rc != NB_OK && (!err->what[0] || !err->cls[0])))
        abort();
}

#endif

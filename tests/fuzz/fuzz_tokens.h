/* fuzz_tokens.h - texts through a tokenizer that came out of arbitrary bytes. */
#ifndef NB_TESTS_FUZZ_TOKENS_H
#define NB_TESTS_FUZZ_TOKENS_H

#include <stdlib.h>
#include <string.h>

#include "text/tokenizer.h"

/* Decoding gives the same bytes whole and in a stream. */
static inline void fuzz_decode(const nb_tokenizer *t, const int32_t *ids, size_t n)
{
    nb_buf whole = { 0 }, parts = { 0 };
    nb_err err = { 0 };
    nb_detok *d = NULL;
    nb_status rc = nb_tokenizer_decode(t, ids, n, false, &whole, &err), rc2;

    if (nb_detok_open(t, false, &d, &err) != NB_OK)
        abort();
    rc2 = NB_OK;
    for (size_t i = 0; rc2 == NB_OK && i < n; i++)
        rc2 = nb_detok_add(d, ids[i], &parts, &err);
    if (rc2 == NB_OK)
        rc2 = nb_detok_flush(d, &parts, &err);
    if (rc == NB_OK && rc2 == NB_OK && (whole.n != parts.n || (whole.n > 0 && memcmp(whole.p, parts.p, whole.n) != 0)))
        abort();
    nb_detok_close(d);
    nb_buf_clear(&whole);
    nb_buf_clear(&parts);
}

static inline void fuzz_texts(const nb_tokenizer *t)
{
    static const char text[] = "Hello  world<|x|> <s>it's\n\n12345 \xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80\xe2\x96\x81 a\xcc\x81 <0x41>"
                               "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa \xff\x00 end.";
    static const int32_t odd[] = { 0, -1, 3, 1 << 30, 5, 7, 2, 9, 1, 4 };

    for (int parse = 0; parse < 2; parse++) {
        nb_ids ids = { 0 };
        nb_err err = { 0 };
        if (nb_tokenizer_encode(t, text, sizeof text - 1, true, parse != 0, &ids, &err) == NB_OK)
            fuzz_decode(t, ids.p, ids.n);
        else if (err.what[0] == '\0')
            abort();
        nb_ids_clear(&ids);
    }
    fuzz_decode(t, odd, sizeof odd / sizeof odd[0]);
}

#endif

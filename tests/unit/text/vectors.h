/* vectors.h - reading recorded tokenizer vectors in tests: one JSON object a line, run-length texts. */
#ifndef NB_TESTS_TEXT_VECTORS_H
#define NB_TESTS_TEXT_VECTORS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"
#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"

/* Small selection in the tree, the whole set beside it. */
#define OWN_DATA "tests/data/tokenizers"

static inline const char *golden_dir(void)
{
    const char *g = getenv("NB_GOLDEN");
    static char path[512];

    snprintf(path, sizeof path, "%s/tokenizers/own", g && *g ? g : "../shared/golden");
    return path;
}

/* The file dir/name, or NULL. Freed with nb_free. */
static inline char *slurp(const char *dir, const char *name, size_t *n)
{
    char path[2048];
    char *text = NULL;
    nb_err err = { 0 };

    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (nb_read_file(path, 256u << 20, &text, n, &err) != NB_OK)
        return NULL;
    return text;
}

/* Next line of a jsonl text at *at, parsed; NULL at the end. */
static inline nb_json *next_line(const char *text, size_t n, size_t *at)
{
    const char *end;
    nb_json *v = NULL;
    nb_err err = { 0 };
    size_t len;

    if (!text || *at >= n)
        return NULL;
    end = memchr(text + *at, '\n', n - *at);
    len = end ? (size_t)(end - (text + *at)) : n - *at;
    if (nb_json_parse(text + *at, len, "json", 0, &v, &err) != NB_OK)
        fail_msg("vector file: %s", err.what);
    *at += len + 1;
    return v;
}

/* "text", or "text_rle" [[unit, count], ...] spelled out. */
static inline void text_of(const nb_json *line, nb_buf *out)
{
    const nb_json *t = nb_json_get(line, "text"), *rle = nb_json_get(line, "text_rle");

    if (t)
        nb_buf_put(out, nb_json_str(t, ""), nb_json_str_len(t));
    for (size_t i = 0; i < nb_json_len(rle); i++) {
        const nb_json *pair = nb_json_at(rle, i), *u = nb_json_at(pair, 0);
        for (int64_t k = nb_json_int(nb_json_at(pair, 1), 0); k > 0; k--)
            nb_buf_put(out, nb_json_str(u, ""), nb_json_str_len(u));
    }
}

/* Does s[n] equal the JSON text v? */
static inline int same_str(const nb_json *v, const char *s, size_t n)
{
    return nb_json_str_len(v) == n && (n == 0 || memcmp(nb_json_str(v, ""), s, n) == 0);
}

#endif

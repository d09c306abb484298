/* chat_encode.c - messages to ids, with control tokens made by the template alone.
 *
 * A character that the request does not have is put before every place of its texts where the letters of a special token begin (or
 * may, at the end of a text). In the prompt it tells these places and is taken out again. */
#include <string.h>

#include "text/chat.h"
#include "text/tokparts.h"
#include "text/utf8.h"

#define SIGN_FIRST 0xFDD0u /* noncharacters, for use inside programs */
#define SIGN_LAST  0xFDEFu

typedef struct guard {
    const nb_tokenizer *t;
    char sign[4];
    size_t n_sign;
    struct token {
        const char *p;
        size_t n;
    } * v; /* special tokens */
    size_t n;
    bool first[256]; /* bytes that begin one */
    bool failed;
} guard;

static nb_status collect(guard *g, nb_err *err)
{
    const size_t n = nb_added_ids(g->t->added);

    g->v = nb_alloc_array(n + 1, sizeof *g->v);
    if (!g->v)
        return nb_enomem(err, "the control tokens");
    for (size_t i = 0; i < n; i++) {
        const nb_added_token *t = nb_added_by_id(g->t->added, (int32_t)i);
        size_t k = 0;
        const char *p = t && t->special ? nb_added_content(g->t->added, (int32_t)i, &k) : NULL;
        if (!p || k == 0)
            continue;
        g->v[g->n].p = p;
        g->v[g->n++].n = k;
        g->first[(unsigned char)*p] = true;
    }
    return NB_OK;
}

/* A sign that the request does not have. */
static nb_status choose_sign(guard *g, const nb_json *request, nb_err *err)
{
    char *text = nb_json_dump(request, 0, true);
    uint32_t cp = SIGN_FIRST;

    if (!text)
        return nb_enomem(err, "the request");
    for (; cp <= SIGN_LAST; cp++) {
        g->n_sign = nb_u8_put(g->sign, cp);
        g->sign[g->n_sign] = 0;
        if (!strstr(text, g->sign))
            break;
    }
    nb_free(text);
    return cp <= SIGN_LAST ? NB_OK
                           : nb_fail(err, NB_EARG, "tmpl.request", "TK-13", "the messages have every noncharacter U+FDD0 to U+FDEF");
}

/* Do the letters of a special token begin at s[n], or all of s[n] begin one? */
static bool token_begins(const guard *g, const char *s, size_t n)
{
    for (size_t i = 0; i < g->n; i++) {
        const size_t k = g->v[i].n < n ? g->v[i].n : n;
        if (memcmp(g->v[i].p, s, k) == 0)
            return true;
    }
    return false;
}

/* s[n] with signs; false: it needs none. */
static bool put_signs(guard *g, const char *s, size_t n, nb_buf *out)
{
    size_t done = 0;

    out->n = 0;
    for (size_t i = 0; i < n; i++) {
        if (!g->first[(unsigned char)s[i]] || !token_begins(g, s + i, n - i))
            continue;
        nb_buf_put(out, s + done, i - done);
        nb_buf_put(out, g->sign, g->n_sign);
        done = i;
    }
    if (out->n == 0)
        return false;
    nb_buf_put(out, s + done, n - done);
    g->failed = g->failed || out->failed;
    return true;
}

/* A copy of v with signs in its texts and names; NULL: no memory. */
static nb_json *signed_copy(guard *g, const nb_json *v)
{
    nb_buf text = { 0 };
    nb_json *out;

    switch (nb_json_typeof(v)) {
    case NB_JSTR:
        out = put_signs(g, nb_json_str(v, ""), nb_json_str_len(v), &text) ? nb_json_new_strn(text.p, text.n) : nb_json_copy(v);
        break;
    case NB_JARR:
        out = nb_json_new_arr();
        for (size_t i = 0; i < nb_json_len(v); i++)
            g->failed = !nb_json_push(out, signed_copy(g, nb_json_at(v, i))) || g->failed;
        break;
    case NB_JOBJ:
        out = nb_json_new_obj();
        for (size_t i = 0; i < nb_json_len(v); i++) {
            const char *key;
            const nb_json *x = nb_json_member(v, i, &key);
            const bool role = strcmp(key, "role") == 0; /* templates compare it */
            nb_json *y = role ? nb_json_copy(x) : signed_copy(g, x);
            g->failed = !nb_json_set(out, put_signs(g, key, strlen(key), &text) ? text.p : key, y) || g->failed;
        }
        break;
    default:
        out = nb_json_copy(v);
        break;
    }
    nb_buf_clear(&text);
    g->failed = g->failed || !out;
    return out;
}

/* Take the signs out of text; their places go to *places (an nb_alloc block). */
static nb_status take_signs(const guard *g, nb_buf *text, size_t **places, size_t *n, nb_err *err)
{
    size_t count = 0, to = 0;

    for (size_t i = 0; i + g->n_sign <= text->n; i++)
        count += memcmp(text->p + i, g->sign, g->n_sign) == 0;
    *n = 0;
    *places = nb_alloc_array(count + 1, sizeof **places);
    if (!*places)
        return nb_enomem(err, "the prompt");
    for (size_t i = 0; i < text->n;) {
        if (i + g->n_sign <= text->n && memcmp(text->p + i, g->sign, g->n_sign) == 0) {
            (*places)[(*n)++] = to;
            i += g->n_sign;
        } else {
            text->p[to++] = text->p[i++];
        }
    }
    text->n = to;
    if (text->p)
        text->p[to] = 0;
    return NB_OK;
}

nb_status nb_chat_encode(const nb_chat *c, const nb_tokenizer *t, const nb_json *request, bool gen_default, const struct tm *now,
                         bool trust, nb_buf *prompt, nb_ids *out, nb_err *err)
{
    guard g = { .t = t };
    nb_json *copy = NULL;
    nb_buf text = { 0 };
    size_t *places = NULL;
    const size_t before = out->n;
    nb_guard at = { 0 };
    nb_status rc = trust ? NB_OK : collect(&g, err);

    if (rc == NB_OK && !trust)
        rc = choose_sign(&g, request, err);
    if (rc == NB_OK && !trust) {
        copy = signed_copy(&g, request);
        if (g.failed)
            rc = nb_enomem(err, "the request");
    }
    if (rc == NB_OK)
        rc = nb_chat_render(c, trust ? request : copy, gen_default, now, &text, err);
    if (rc == NB_OK && !trust)
        rc = take_signs(&g, &text, &places, &at.n, err);
    at.v = places;
    if (rc == NB_OK)
        rc = nb_tokenizer_encode_guarded(t, text.p ? text.p : "", text.n, false, &at, out, err);
    if (rc == NB_OK && out->n == before)
        rc = nb_fail(err, NB_EARG, "tmpl.empty", "JT-18", "the messages give a prompt without any token");
    if (rc == NB_OK && prompt) {
        nb_buf_put(prompt, text.p ? text.p : "", text.n);
        if (prompt->failed)
            rc = nb_enomem(err, "the prompt");
    }
    nb_json_free(copy);
    nb_free(g.v);
    nb_free(places);
    nb_buf_clear(&text);
    return rc;
}

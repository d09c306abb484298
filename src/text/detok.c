/* detok.c - ids to text one by one. Source: spec tokenizers 11. */
#include <string.h>

#include "base/mem.h"
#include "text/decoder.h"
#include "text/tokparts.h"

struct nb_detok {
    const nb_tokenizer *t;
    bool skip_special;
    nb_decoder_stream st;
};

nb_status nb_detok_open(const nb_tokenizer *t, bool skip_special, nb_detok **out, nb_err *err)
{
    nb_detok *d = nb_calloc(1, sizeof *d);

    *out = d;
    if (!d)
        return nb_enomem(err, "the detokenizer");
    d->t = t;
    d->skip_special = skip_special;
    return NB_OK;
}

void nb_detok_close(nb_detok *d)
{
    if (!d)
        return;
    nb_decoder_stream_clear(&d->st);
    nb_free(d);
}

nb_status nb_detok_add(nb_detok *d, int32_t id, nb_buf *out, nb_err *err)
{
    size_t n;
    const char *s = nb_token_shown(d->t, id, d->skip_special, &n);

    return s ? nb_decoder_feed(d->t->decoder, &d->st, s, n, out, err) : NB_OK;
}

nb_status nb_detok_flush(nb_detok *d, nb_buf *out, nb_err *err)
{
    return nb_decoder_flush(d->t->decoder, &d->st, out, err);
}

/* ---- the bytes of one token ---- */

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* As the second token behind a letter, so that rules about the beginning do not act. */
static nb_status bytes_behind(const nb_decoder *d, const char *s, size_t n, nb_buf *out, nb_err *err)
{
    nb_buf text = { 0 }, got = { 0 };
    const nb_span v[] = { { 0, 1 }, { 1, n } };
    nb_status rc = NB_OK;

    nb_buf_putc(&text, 'a');
    nb_buf_put(&text, s, n);
    if (!text.failed)
        rc = nb_decoder_run(d, text.p, v, 2, &got, err);
    if (rc == NB_OK && got.n > 0 && got.p[0] == 'a')
        nb_buf_put(out, got.p + 1, got.n - 1);
    else if (rc == NB_OK)
        nb_buf_put(out, s, n);
    if (rc == NB_OK && (text.failed || got.failed))
        rc = nb_enomem(err, "the vocabulary");
    nb_buf_clear(&text);
    nb_buf_clear(&got);
    return rc;
}

nb_status nb_tokenizer_bytes(const nb_tokenizer *t, int32_t id, nb_buf *out, nb_err *err)
{
    size_t n = 0;
    const char *s = nb_token_shown(t, id, false, &n);
    const size_t at = out->n;
    nb_status rc = NB_OK;

    if (!s || n == 0)
        return NB_OK;
    if (nb_decoder_is_bytes(t->decoder)) {
        if (!nb_standin_bytes(out, s, n)) {
            out->n = at;
            nb_buf_put(out, s, n);
        }
    } else if (n == 6 && memcmp(s, "<0x", 3) == 0 && s[5] == '>' && hex_digit(s[3]) >= 0 && hex_digit(s[4]) >= 0 &&
               nb_decoder_falls_back(t->decoder)) {
        nb_buf_putc(out, (char)(hex_digit(s[3]) << 4 | hex_digit(s[4])));
    } else {
        rc = bytes_behind(t->decoder, s, n, out, err);
    }
    return rc == NB_OK && out->failed ? nb_enomem(err, "the vocabulary") : rc;
}

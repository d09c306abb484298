/* detok.c - ids to text one by one. Source: spec tokenizers 11. */
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

nb_status nb_tokenizer_bytes(const nb_tokenizer *t, int32_t id, nb_buf *out, nb_err *err)
{
    size_t n = 0;
    const char *s = nb_token_shown(t, id, false, &n);

    return s && n ? nb_decoder_middle(t->decoder, s, n, out, err) : NB_OK;
}

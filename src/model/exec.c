/* exec.c - the executor interface: every call goes to the implementation that opened the handle. */
#include "model/exec.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"

enum {
    FEW_ROWS = 4, /* a step of so many rows has work for all threads */
    TRY_EVERY = 32,
    TUNE_BYTES = 256 << 20 /* more weights a step keep every thread busy, and trying takes too long */
};

void nb_exec_close(nb_exec *x)
{
    if (x)
        x->ops->close(x);
}

uint64_t nb_exec_bytes(const nb_exec *x)
{
    return x->ops->bytes(x);
}

void nb_exec_copy_page(nb_exec *x, uint32_t to, uint32_t from)
{
    x->ops->copy_page(x, to, from);
}

void nb_exec_fill_page(nb_exec *x, uint32_t page, uint8_t byte)
{
    x->ops->fill_page(x, page, byte);
}

size_t nb_exec_page_bytes(nb_exec *x)
{
    return x->ops->page_io ? x->ops->page_io(x, 0, NULL, NULL) : 0;
}

void nb_exec_save_page(nb_exec *x, uint32_t page, unsigned char *out)
{
    x->ops->page_io(x, page, out, NULL);
}

void nb_exec_load_page(nb_exec *x, uint32_t page, const unsigned char *in)
{
    x->ops->page_io(x, page, NULL, in);
}

void nb_exec_copy_near(nb_exec *x, uint32_t to, uint32_t from)
{
    x->ops->copy_near(x, to, from);
}

void nb_exec_fill_near(nb_exec *x, uint32_t page, uint8_t byte)
{
    x->ops->fill_near(x, page, byte);
}

size_t nb_exec_window(const nb_config *c)
{
    for (size_t l = 0; c->windowed && l < c->n_layers; l++)
        if (c->windowed[l])
            return c->sliding_window;
    return 0;
}

bool nb_exec_is_near(const nb_config *c, size_t layer)
{
    bool yes = c->windowed && c->windowed[layer];

    for (size_t l = 0; c->dims && l < c->n_layers; l++)
        yes = yes && (c->dims[l].kv_from != layer || c->windowed[l]);
    return yes;
}

void nb_exec_set_tap(nb_exec *x, nb_tap_fn *fn, void *user)
{
    x->ops->set_tap(x, fn, user);
}

/* A small step on the chosen threads; now and then on twice as many, which stay if they are faster: other work may have kept them busy
 * when they were measured. */
static nb_status run_few(nb_exec *x, const nb_batch *b, float *logits, nb_err *err)
{
    const int all = nb_pool_threads(x->pool), twice = 2 * x->few < all ? 2 * x->few : all;
    const bool more = x->few < all && ++x->steps % TRY_EVERY == 0;
    const double begin = nb_now();
    nb_status rc;
    double took;

    nb_pool_limit(x->pool, more ? twice : x->few);
    rc = x->ops->run(x, b, logits, err);
    nb_pool_limit(x->pool, 0);
    took = nb_now() - begin;
    if (!more)
        x->took = took;
    else if (took < 0.95 * x->took)
        x->few = twice;
    return rc;
}

nb_status nb_exec_run(nb_exec *x, const nb_batch *b, float *logits, nb_err *err)
{
    return x->few && b->m < FEW_ROWS ? run_few(x, b, logits, err) : x->ops->run(x, b, logits, err);
}

typedef struct one_step {
    nb_exec *x;
    float *logits;
    nb_status rc;
    nb_err *err;
} one_step;

static void run_one(void *ctx)
{
    static const uint32_t zero;
    static const int32_t token;
    static const uint8_t want = 1;
    one_step *s = ctx;
    const nb_seq_view view = { .pages = &zero, .n_pages = 1, .near = &zero };
    const nb_batch b = { .m = 1, .token = &token, .pos = &zero, .seq = &zero, .want = &want, .seqs = &view, .n_seqs = 1 };

    if (s->rc == NB_OK)
        s->rc = s->x->ops->run(s->x, &b, s->logits, s->err);
}

nb_status nb_exec_tune(nb_exec *x, const nb_model *m, nb_pool *pool, nb_err *err)
{
    one_step s = { .x = x, .err = err };
    double all, best;

    x->few = 0;
    if (nb_pool_threads(pool) == 1 || nb_model_step_bytes(m) > TUNE_BYTES)
        return NB_OK;
    s.logits = nb_alloc_array(nb_model_config(m)->vocab, sizeof *s.logits);
    if (!s.logits)
        return nb_enomem(err, "the measured steps");
    x->pool = pool;
    x->few = nb_pool_tune(pool, run_one, &s, &all, &best);
    if (nb_exec_state_bytes(x) > 0)
        nb_exec_state_claim(x, 0, 0);
    nb_free(s.logits);
    return s.rc;
}

int nb_exec_few(const nb_exec *x)
{
    return x->few;
}

nb_status nb_exec_embed(nb_exec *x, const nb_batch *b, float *h, nb_err *err)
{
    return x->ops->embed(x, b, h, err);
}

nb_status nb_exec_layers(nb_exec *x, const nb_batch *b, float *h, size_t l0, size_t l1, nb_err *err)
{
    return x->ops->layers(x, b, h, l0, l1, err);
}

void nb_exec_beside(nb_exec *x, const float *h)
{
    x->ops->beside(x, h);
}

nb_status nb_exec_span(nb_exec *x, const nb_batch *b, size_t layer, size_t op0, size_t op1, const float *in, float *out, nb_err *err)
{
    return x->ops->span(x, b, layer, op0, op1, NULL, in, out, err);
}

nb_status nb_exec_part(nb_exec *x, const nb_batch *b, size_t layer, size_t op0, size_t op1, float *h, const float *in, float *out,
                       nb_err *err)
{
    return x->ops->span(x, b, layer, op0, op1, h, in, out, err);
}

nb_status nb_exec_ffn(nb_exec *x, size_t layer, size_t e, const float *in, size_t m, float *act, nb_err *err)
{
    return x->ops->ffn(x, layer, e, in, m, act, err);
}

nb_status nb_exec_head(nb_exec *x, const float *h, size_t m, float *logits, nb_err *err)
{
    return x->ops->head(x, h, m, logits, err);
}

size_t nb_exec_state_bytes(const nb_exec *x)
{
    return x->ops->state_bytes ? x->ops->state_bytes(x) : 0;
}

/* A slot begins with the number of tokens in it. */
size_t nb_exec_state_tokens(const nb_exec *x, size_t slot)
{
    uint32_t n = 0;

    if (nb_exec_state_bytes(x) > 0)
        memcpy(&n, x->ops->state_at((nb_exec *)x, slot), sizeof n);
    return n;
}

void nb_exec_state_save(const nb_exec *x, size_t slot, void *out)
{
    if (nb_exec_state_bytes(x) > 0)
        memcpy(out, x->ops->state_at((nb_exec *)x, slot), nb_exec_state_bytes(x));
}

void nb_exec_state_load(nb_exec *x, size_t slot, const void *in)
{
    if (nb_exec_state_bytes(x) > 0)
        memcpy(x->ops->state_at(x, slot), in, nb_exec_state_bytes(x));
}

void nb_exec_state_copy(nb_exec *x, size_t from, size_t to)
{
    if (nb_exec_state_bytes(x) > 0 && from != to)
        memcpy(x->ops->state_at(x, to), x->ops->state_at(x, from), nb_exec_state_bytes(x));
}

void nb_exec_state_claim(nb_exec *x, size_t slot, uint32_t tokens)
{
    if (nb_exec_state_bytes(x) > 0)
        x->ops->state_claim(x, slot, tokens);
}

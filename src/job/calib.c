/* calib.c - calibration tokens, batches of rows, captured inputs. */
#include "job/calib.h"

#include <string.h>

#include "base/mem.h"
#include "base/rng.h"
#include "io/io.h"
#include "job/ids.h"
#include "job/load.h"
#include "text/tokenizer.h"
#include "solve/solve_awq.h"

enum { DEFAULT_ROWS = 128, DEFAULT_LEN = 512, LEAST_TOKENS = 128, SEED = 42 };
#define TEXT_LIMIT ((size_t)1 << 30)

/* ---- tokens ---- */

void nb_calib_clear(nb_calib *c)
{
    nb_free(c->ids);
    memset(c, 0, sizeof *c);
}

static nb_status take_rows(nb_calib *c, size_t rows, size_t len, nb_err *err)
{
    size_t n;

    c->rows = rows;
    c->len = len;
    c->ids = nb_mul_size(rows, len, &n) ? nb_alloc_array(n, sizeof *c->ids) : NULL;
    return c->ids ? NB_OK : nb_enomem(err, "the calibration tokens");
}

/* The first rows of the file, each cut to its first tokens. */
static nb_status from_ids(nb_calib *c, const char *path, size_t rows, size_t len, size_t vocab, nb_err *err)
{
    nb_idrows all;
    nb_status rc = nb_idrows_read(&all, path, vocab, err);

    if (rc != NB_OK)
        return rc;
    rc = take_rows(c, rows && rows < all.rows ? rows : all.rows, len && len < all.len ? len : all.len, err);
    for (size_t i = 0; rc == NB_OK && i < c->rows; i++)
        memcpy(c->ids + i * c->len, all.ids + i * all.len, c->len * sizeof *c->ids);
    nb_idrows_clear(&all);
    return rc;
}

/* Which of `windows` windows become rows: all, or a sample without repetition in ascending order (Floyd's method would
 * need a set; a partial shuffle of the numbers is simpler). */
static nb_status pick_windows(size_t *pick, size_t windows, size_t rows, nb_err *err)
{
    size_t *all = nb_alloc_array(windows, sizeof *all);
    size_t n = 0;
    bool *use = nb_calloc(windows, sizeof *use);

    if (!all || !use) {
        nb_free(all);
        nb_free(use);
        return nb_enomem(err, "the choice of calibration rows");
    }
    for (size_t i = 0; i < windows; i++)
        all[i] = i;
    for (size_t i = 0; i < rows; i++) {
        const size_t j = i + (size_t)(nb_rng_uniform(SEED, 0, i) * (double)(windows - i)), t = all[i];
        all[i] = all[j];
        all[j] = t;
        use[all[i]] = true;
    }
    for (size_t i = 0; i < windows; i++)
        if (use[i])
            pick[n++] = i;
    nb_free(use);
    nb_free(all);
    return NB_OK;
}

static nb_status cut_text(nb_calib *c, const nb_ids *ids, size_t rows, size_t len, nb_err *err)
{
    size_t windows, *pick;
    nb_status rc;

    if (ids->n < LEAST_TOKENS)
        return nb_fail(err, NB_EFORMAT, ids->n < 2 ? "calib.empty" : "calib.short", "",
                       "the calibration text gives %zu tokens, at least %d are needed and ten thousand are useful; give a longer text of "
                       "the kind that the model will see",
                       ids->n, LEAST_TOKENS);
    len = len ? len : DEFAULT_LEN;
    if (len > ids->n)
        len = ids->n;
    windows = ids->n / len;
    rows = rows ? rows : DEFAULT_ROWS;
    if (rows > windows)
        rows = windows;
    rc = take_rows(c, rows, len, err);
    if (rc != NB_OK)
        return rc;
    pick = nb_alloc_array(rows, sizeof *pick);
    rc = pick ? pick_windows(pick, windows, rows, err) : nb_enomem(err, "the choice of calibration rows");
    for (size_t i = 0; rc == NB_OK && i < rows; i++)
        memcpy(c->ids + i * len, ids->p + pick[i] * len, len * sizeof *c->ids);
    nb_free(pick);
    return rc;
}

/* The tokenizer alone: a broken chat template is no reason not to quantize. */
static nb_status open_tokenizer(const char *model, nb_tokenizer **tok, nb_err *err)
{
    nb_hfdir *dir = NULL;
    nb_status rc = nb_hfdir_open(model, &dir, err);

    if (rc == NB_OK)
        rc = nb_load_tokenizer(dir, tok, err);
    nb_hfdir_close(dir);
    nb_err_at(err, model, NULL);
    return rc;
}

static nb_status from_text(nb_calib *c, const char *path, const char *model, size_t rows, size_t len, nb_err *err)
{
    nb_tokenizer *tok = NULL;
    nb_ids ids = { 0 };
    char *text = NULL;
    size_t n;
    nb_status rc = nb_read_file(path, TEXT_LIMIT, &text, &n, err);

    if (rc == NB_OK)
        rc = open_tokenizer(model, &tok, err);
    if (rc == NB_OK)
        rc = nb_tokenizer_encode(tok, text, n, true, false, &ids, err);
    if (rc == NB_OK)
        rc = cut_text(c, &ids, rows, len, err);
    nb_ids_clear(&ids);
    nb_tokenizer_close(tok);
    nb_free(text);
    return rc;
}

nb_status nb_calib_open(nb_calib *c, const char *path, const char *model, size_t rows, size_t len, size_t vocab, nb_err *err)
{
    nb_container kind = NB_IO_UNKNOWN;
    nb_err ignored = { 0 };
    nb_status rc;

    memset(c, 0, sizeof *c);
    if (nb_sniff(path, &kind, &ignored) == NB_OK && kind == NB_IO_SAFETENSORS)
        rc = from_ids(c, path, rows, len, vocab, err);
    else
        rc = from_text(c, path, model, rows, len, err);
    for (size_t i = 0; rc == NB_OK && i < c->rows * c->len; i++)
        if (c->ids[i] < 0 || (size_t)c->ids[i] >= vocab)
            rc = nb_fail(err, NB_EFORMAT, "calib.token", "", "row %zu, token %zu is not below the vocabulary size %zu of the model",
                         i / c->len, i % c->len, vocab);
    if (rc != NB_OK) {
        nb_err_at(err, path, NULL);
        nb_calib_clear(c);
    }
    return rc;
}

/* ---- batches of whole rows ---- */

nb_status nb_rows_init(nb_rows *r, size_t len, size_t max_rows, nb_err *err)
{
    const size_t per = (len + NB_PAGE - 1) / NB_PAGE, m = len * max_rows;

    memset(r, 0, sizeof *r);
    r->len = len;
    r->max_rows = max_rows;
    r->n_pages = per * max_rows;
    r->pos = nb_alloc_array(m, sizeof *r->pos);
    r->seq = nb_alloc_array(m, sizeof *r->seq);
    r->pages = nb_alloc_array(r->n_pages, sizeof *r->pages);
    r->views = nb_calloc(max_rows, sizeof *r->views);
    if (!r->pos || !r->seq || !r->pages || !r->views) {
        nb_rows_clear(r);
        return nb_enomem(err, "a batch of calibration rows");
    }
    for (size_t i = 0; i < m; i++) {
        r->pos[i] = (uint32_t)(i % len);
        r->seq[i] = (uint32_t)(i / len);
    }
    for (size_t i = 0; i < r->n_pages; i++)
        r->pages[i] = (uint32_t)i;
    for (size_t i = 0; i < max_rows; i++) {
        r->views[i].pages = r->pages + i * per;
        r->views[i].n_pages = per;
    }
    return NB_OK;
}

void nb_rows_clear(nb_rows *r)
{
    nb_free(r->pos);
    nb_free(r->seq);
    nb_free(r->pages);
    nb_free(r->views);
    memset(r, 0, sizeof *r);
}

nb_batch nb_rows_batch(const nb_rows *r, const int32_t *ids, size_t rows)
{
    return (nb_batch){ .m = rows * r->len, .token = ids, .pos = r->pos, .seq = r->seq, .seqs = r->views, .n_seqs = rows };
}

/* ---- captured inputs ---- */

/* Inputs of op `op`; 0: not one whose inputs are kept. */
static size_t op_inputs(const nb_plan *p, size_t op)
{
    size_t n, k;

    if (p->ops[op].kind == NB_OP_MOE)
        return p->cfg->d_model;
    if (p->ops[op].kind != NB_OP_LINEAR)
        return 0;
    nb_plan_linear_size(p, p->ops[op].roles[0], &n, &k);
    return k;
}

static size_t sample_stride(size_t tokens)
{
    return tokens / 512 ? tokens / 512 : 1;
}

uint64_t nb_capture_bytes(const nb_plan *p, size_t tokens, size_t chunk_tokens, const bool *full, const bool *gram, uint64_t *spill)
{
    const size_t stride = sample_stride(tokens), n_sample = (tokens + stride - 1) / stride;
    uint64_t sum = 0;

    *spill = 0;

    for (size_t op = 0; op < p->n_ops; op++) {
        const uint64_t k = op_inputs(p, op);
        sum += k ? k * (8 + 4 * (uint64_t)(n_sample + chunk_tokens)) : 0;
        *spill += full[op] ? 4 * k * tokens : 0;
        sum += gram[op] ? 8 * k * k : 0;
        sum += p->ops[op].kind == NB_OP_MOE ? 4 * (uint64_t)tokens * p->cfg->moe.n_active : 0;
    }
    return sum + *spill;
}

nb_status nb_capture_init(nb_capture *c, const nb_plan *p, size_t tokens, size_t chunk_tokens, const bool *full, const bool *gram,
                          const char *spill, nb_err *err)
{
    nb_status rc = NB_OK;

    memset(c, 0, sizeof *c);
    c->spill = spill;
    c->only = SIZE_MAX;
    c->tokens = tokens;
    c->chunk_tokens = chunk_tokens;
    c->stride = sample_stride(tokens);
    c->n_sample = (tokens + c->stride - 1) / c->stride;
    for (size_t op = 0; rc == NB_OK && op < p->n_ops && c->n_in < NB_LEN(c->in); op++) {
        nb_input *in = &c->in[c->n_in];

        if (op_inputs(p, op) == 0)
            continue;
        c->n_in++;
        in->op = op;
        in->k = op_inputs(p, op);
        in->n_chosen = p->ops[op].kind == NB_OP_MOE ? p->cfg->moe.n_active : 0;
        in->chosen = in->n_chosen ? nb_alloc_array(tokens, in->n_chosen * sizeof *in->chosen) : NULL;
        in->xsum = nb_calloc(in->k, sizeof *in->xsum);
        in->sample = nb_alloc_array(c->n_sample, in->k * sizeof *in->sample);
        in->chunk = nb_alloc_array(chunk_tokens, in->k * sizeof *in->chunk);
        if (!in->xsum || !in->sample || !in->chunk || (in->n_chosen && !in->chosen))
            rc = nb_enomem(err, "captured inputs; fewer calibration rows need less (--calib-rows)");
        if (rc == NB_OK && full[op])
            rc =
                nb_spill_open(&in->full_mem, spill, tokens, in->k, "captured inputs; fewer calibration rows need less (--calib-rows)", err);
        in->full = in->full_mem.p;
        if (rc == NB_OK && gram[op])
            rc = nb_gram_init(&in->gram, in->k, err);
    }
    if (rc != NB_OK)
        nb_capture_clear(c);
    return rc;
}

void nb_capture_clear(nb_capture *c)
{
    for (size_t i = 0; i < c->n_in; i++) {
        nb_free(c->in[i].xsum);
        nb_free(c->in[i].sample);
        nb_spill_close(&c->in[i].full_mem);
        nb_free(c->in[i].chunk);
        nb_free(c->in[i].chosen);
        nb_gram_clear(&c->in[i].gram);
    }
    memset(c, 0, sizeof *c);
}

void nb_capture_reset(nb_capture *c)
{
    c->done = 0;
    for (size_t i = 0; i < c->n_in; i++) {
        nb_input *in = &c->in[i];
        memset(in->xsum, 0, in->k * sizeof *in->xsum);
        if (in->gram.sum)
            memset(in->gram.sum, 0, in->k * in->k * sizeof *in->gram.sum);
        in->gram.tokens = 0;
        in->tokens = in->n_sample = in->in_chunk = 0;
    }
}

void nb_capture_settle(const nb_capture *c)
{
    for (size_t i = 0; i < c->n_in; i++)
        nb_spill_settle(&c->in[i].full_mem);
}

void nb_capture_tap(void *capture, const nb_tap *t)
{
    nb_capture *c = capture;

    if (t->kind != NB_TAP_OP_IN || (c->only != SIZE_MAX && t->op != c->only))
        return;
    for (size_t i = 0; i < c->n_in; i++) {
        nb_input *in = &c->in[i];
        if (in->op != t->op)
            continue;
        for (size_t r = 0; r < t->m && t->row0 + r < c->chunk_tokens; r++)
            memcpy(in->chunk + (t->row0 + r) * in->k, t->x + r * t->ld, in->k * sizeof *in->chunk);
        for (size_t r = 0; r < t->m && in->chosen && c->done + t->row0 + r < c->tokens; r++)
            memcpy(in->chosen + (c->done + t->row0 + r) * in->n_chosen, t->chosen + r * in->n_chosen, in->n_chosen * sizeof *in->chosen);
        in->in_chunk = t->row0 + t->m;
        return;
    }
}

nb_status nb_capture_add(nb_capture *c, nb_pool *pool, size_t m, nb_err *err)
{
    for (size_t i = 0; i < c->n_in; i++) {
        nb_input *in = &c->in[i];
        nb_status rc;

        if ((c->only != SIZE_MAX && in->op != c->only) || in->in_chunk == 0)
            continue;
        in->in_chunk = 0;
        in->tokens += m;
        in->n_sample = (in->tokens + c->stride - 1) / c->stride;
        nb_awq_xsum(pool, in->chunk, in->k, m, in->k, in->xsum);
        for (size_t r = (c->stride - c->done % c->stride) % c->stride; r < m; r += c->stride)
            memcpy(in->sample + (c->done + r) / c->stride * in->k, in->chunk + r * in->k, in->k * sizeof *in->sample);
        if (in->full)
            memcpy(in->full + c->done * in->k, in->chunk, m * in->k * sizeof *in->full);
        if (in->gram.sum) {
            rc = nb_gram_add(&in->gram, pool, in->chunk, in->k, m, err);
            if (rc != NB_OK)
                return rc;
        }
    }
    c->done += m;
    return NB_OK;
}

nb_input *nb_capture_at(nb_capture *c, size_t op)
{
    for (size_t i = 0; i < c->n_in; i++)
        if (c->in[i].op == op)
            return &c->in[i];
    return NULL;
}

const nb_input *nb_capture_of(const nb_capture *c, size_t op)
{
    for (size_t i = 0; i < c->n_in; i++)
        if (c->in[i].op == op)
            return &c->in[i];
    return NULL;
}

/* exec_cpu.c - the CPU executor: checking a batch, rows in and out of the slots, its interface. Buffers: exec_open.c; ops: exec_ops.c. */
#include "model/exec_cpu.h"

#include <string.h>

static void cpu_beside(nb_exec *base, const float *h)
{
    ((nb_xcpu *)base)->beside = h;
}

static void cpu_set_tap(nb_exec *base, nb_tap_fn *fn, void *user)
{
    nb_xcpu *x = (nb_xcpu *)base;
    x->tap = fn;
    x->tap_user = user;
}

/* ---- a batch -------------------------------------------------------------------------------------------------- */

static nb_status check_row(const nb_xcpu *x, const nb_batch *b, size_t i, nb_err *err)
{
    const size_t page = b->pos[i] / NB_PAGE;
    const nb_seq_view *s;

    if (b->token && (b->token[i] < 0 || (size_t)b->token[i] >= x->m->cfg.vocab))
        return nb_fail(err, NB_EARG, "exec.token", "", "token %d at position %u, the vocabulary has %zu", (int)b->token[i],
                       (unsigned)b->pos[i], x->m->cfg.vocab);
    if (x->m->positions && b->pos[i] >= x->m->n_positions)
        return nb_fail(err, NB_EARG, "exec.position", "", "position %u, the model has %zu", (unsigned)b->pos[i], x->m->n_positions);
    if (b->seq[i] >= b->n_seqs)
        return nb_fail(err, NB_EARG, "exec.batch", "", "row %zu names sequence %u of %zu", i, (unsigned)b->seq[i], b->n_seqs);
    s = &b->seqs[b->seq[i]];
    if (page >= s->n_pages || s->pages[page] >= x->o.n_pages || (x->o.n_near && (!s->near || s->near[page] >= x->o.n_near)))
        return nb_fail(err, NB_EARG, "exec.batch", "", "position %u of row %zu has no page", (unsigned)b->pos[i], i);
    if (i > 0 && b->seq[i] == b->seq[i - 1] && b->pos[i] != b->pos[i - 1] + 1)
        return nb_fail(err, NB_EARG, "exec.batch", "", "row %zu has position %u after %u", i, (unsigned)b->pos[i], (unsigned)b->pos[i - 1]);
    return NB_OK;
}

static nb_status check_batch(const nb_xcpu *x, const nb_batch *b, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; i < b->m && rc == NB_OK; i++)
        rc = check_row(x, b, i, err);
    return rc;
}

/* Grow one plain table to cap positions. */
static bool grow_rope(nb_xcpu *x, nb_layer_rope w, size_t cap)
{
    const size_t have = x->rope_cap, more = cap - have, half = x->half[w];
    float *cs = nb_realloc(x->cs[w], cap * half * sizeof *cs), *sn;

    if (!cs)
        return false;
    x->cs[w] = cs;
    sn = nb_realloc(x->sn[w], cap * half * sizeof *sn);
    if (!sn)
        return false;
    x->sn[w] = sn;
    if (w == NB_ROPE_MAIN)
        nb_rope_table(&x->m->cfg, 0, have, more, cs + have * half, sn + have * half);
    else
        nb_rope_table_local(&x->m->cfg, have, more, cs + have * half, sn + have * half);
    return true;
}

/* Plain tables for positions below n; they grow by doubling, so that decoding does not allocate every token. */
static nb_status reserve_rope(nb_xcpu *x, size_t n, nb_err *err)
{
    size_t cap = x->rope_cap ? x->rope_cap : 256;

    if (n <= x->rope_cap)
        return NB_OK;
    while (cap < n)
        cap *= 2;
    if (!grow_rope(x, NB_ROPE_MAIN, cap) || (nb_xcpu_has_local(x) && !grow_rope(x, NB_ROPE_LOCAL, cap)))
        return nb_enomem(err, "rope tables");
    x->rope_cap = cap;
    return NB_OK;
}

/* Length of a row's sequence as planned, else up to its last row in the batch. */
static size_t total_of(const nb_batch *b, size_t i)
{
    const size_t planned = b->seqs[b->seq[i]].total;

    if (planned)
        return planned;
    while (i + 1 < b->m && b->seq[i + 1] == b->seq[i])
        i++;
    return (size_t)b->pos[i] + 1;
}

static nb_status prepare_rope(nb_xcpu *x, nb_err *err)
{
    const nb_batch *b = x->b;
    size_t max = 0, key = 0;
    nb_status rc;

    if (x->m->cfg.learned_pos || x->m->cfg.alibi)
        return NB_OK;
    for (size_t i = 0; i < x->rows; i++)
        max = b->pos[x->row0 + i] > max ? b->pos[x->row0 + i] : max;
    rc = reserve_rope(x, max + 1, err);
    for (size_t i = 0; i < x->rows && rc == NB_OK; i++) {
        const size_t row = x->row0 + i, pos = b->pos[row];
        if (i == 0 || b->seq[row] != b->seq[row - 1])
            key = nb_rope_key(&x->m->cfg, total_of(b, row));
        for (int w = 0; w < 1 + nb_xcpu_has_local(x); w++) {
            x->row_cs[w][i] = x->cs[w] + pos * x->half[w];
            x->row_sn[w][i] = x->sn[w] + pos * x->half[w];
        }
        if (key) {
            nb_rope_table(&x->m->cfg, key, pos, 1, x->own_cs + i * x->half[NB_ROPE_MAIN], x->own_sn + i * x->half[NB_ROPE_MAIN]);
            x->row_cs[NB_ROPE_MAIN][i] = x->own_cs + i * x->half[NB_ROPE_MAIN];
            x->row_sn[NB_ROPE_MAIN][i] = x->own_sn + i * x->half[NB_ROPE_MAIN];
        }
    }
    return rc;
}

/* Tokens of a block: those of the layer with the most query heads for a key. */
static size_t most_rows(const nb_config *c)
{
    size_t r = c->n_heads / c->n_kv_heads;

    for (size_t l = 0; c->dims && l < c->n_layers; l++)
        r = c->n_heads / c->dims[l].kv_heads > r ? c->n_heads / c->dims[l].kv_heads : r;
    return r < NB_QUERY_ROWS ? NB_QUERY_ROWS / r : 1;
}

/* Does row i of a batch come right after the row before it? */
static bool goes_on(const nb_batch *b, size_t i)
{
    return b->seq[i] == b->seq[i - 1] && b->pos[i] == b->pos[i - 1] + 1;
}

/* Runs of one sequence, cut into blocks of query rows. */
static void prepare_blocks(nb_xcpu *x)
{
    const nb_batch *b = x->b;
    const size_t most = most_rows(&x->m->cfg);

    x->n_spans = 0;
    for (size_t i = 0; i < x->rows; i++) {
        const size_t row = x->row0 + i;
        if (i == 0 || !goes_on(b, row))
            x->spans[x->n_spans++] = (nb_block){ .seq = &b->seqs[b->seq[row]], .row = i, .pos = b->pos[row] };
        x->spans[x->n_spans - 1].m++;
    }
    x->n_blocks = 0;
    for (size_t i = 0; i < x->rows;) {
        const size_t row = x->row0 + i;
        size_t n = 1;
        while (n < most && i + n < x->rows && goes_on(b, row + n))
            n++;
        x->blocks[x->n_blocks++] = (nb_block){ .seq = &b->seqs[b->seq[row]], .row = i, .m = n, .pos = b->pos[row] };
        i += n;
    }
}

static nb_status begin_cut(nb_xcpu *x, const nb_batch *b, size_t row0, nb_err *err)
{
    x->b = b;
    x->row0 = row0;
    x->rows = b->m - row0 < x->o.max_m ? b->m - row0 : x->o.max_m;
    prepare_blocks(x);
    return prepare_rope(x, err);
}

/* ---- rows whose logits are wanted ------------------------------------------------------------------------------ */

/* Everything that later ops may read of a row, to an earlier place. */
static void move_row(nb_xcpu *x, size_t from, size_t to)
{
    const nb_plan *p = &x->m->plan;
    const size_t row = x->row0 + from;

    x->kept_token[to] = x->b->token[row];
    x->kept_pos[to] = x->b->pos[row];
    x->kept_seq[to] = x->b->seq[row];
    for (int w = 0; w < 2; w++) {
        x->row_cs[w][to] = x->row_cs[w][from];
        x->row_sn[w][to] = x->row_sn[w][from];
    }
    for (size_t s = 0; s < NB_SLOT_COUNT && to != from; s++)
        memcpy(x->slot[s] + to * p->slot_width[s], x->slot[s] + from * p->slot_width[s], p->slot_width[s] * sizeof(float));
}

void nb_xcpu_keep_wanted(nb_xcpu *x)
{
    const nb_batch *b = x->b;
    size_t n = 0;

    for (size_t i = 0; i < x->rows; i++)
        if (b->want && b->want[x->row0 + i])
            move_row(x, i, n++);
    x->kept = (nb_batch){ .m = n, .token = x->kept_token, .pos = x->kept_pos, .seq = x->kept_seq, .seqs = b->seqs, .n_seqs = b->n_seqs };
    x->b = &x->kept;
    x->row0 = 0;
    x->rows = n;
    prepare_blocks(x);
}

/* Nobody looks at other rows. (Where rows choose keys or entries, what they chose lies outside of the slots.) */
static bool may_narrow(const nb_xcpu *x)
{
    return !x->tap && !x->m->cfg.index_top && !x->m->cfg.v4.on;
}

/* ---- rows in and out ------------------------------------------------------------------------------------------ */

/* Rows lie `ld` floats apart. */
static void rows_in(nb_xcpu *x, nb_slot s, const float *src, size_t ld, size_t m)
{
    const size_t w = x->m->plan.slot_width[s], len = x->m->plan.slot_len[s];

    for (size_t i = 0; i < m; i++)
        memcpy(x->slot[s] + i * w, src + i * ld, len * sizeof *src);
}

static void rows_out(const nb_xcpu *x, nb_slot s, float *dst, size_t ld, size_t m)
{
    const size_t w = x->m->plan.slot_width[s], len = x->m->plan.slot_len[s];

    for (size_t i = 0; i < m; i++)
        memcpy(dst + i * ld, x->slot[s] + i * w, len * sizeof *dst);
}

static void copy_in(nb_xcpu *x, nb_slot s, const float *src, size_t m)
{
    rows_in(x, s, src, x->m->plan.slot_len[s], m);
}

static void copy_out(const nb_xcpu *x, nb_slot s, float *dst, size_t m)
{
    rows_out(x, s, dst, x->m->plan.slot_len[s], m);
}

/* What a span of ops does with a slot. Ops that are not plain may use slots they do not name. */
enum { READS = 1, WRITES = 2, OTHERS = 4 };

static int uses(const nb_plan *p, size_t op0, size_t op1, nb_slot s)
{
    int how = 0;

    for (size_t i = op0; i < op1; i++) {
        const nb_op *op = &p->ops[i];

        if (!nb_op_is_plain(op->kind))
            return READS | WRITES | OTHERS;
        how |= (op->in == s ? READS : 0) | (op->out == s ? WRITES | READS : 0); /* an addition reads it */
    }
    return how;
}

/* May the caller's rows stand in for a slot? */
static bool fits(const nb_plan *p, nb_slot s, const float *rows)
{
    return p->slot_width[s] == p->slot_len[s] && (uintptr_t)rows % 64 == 0;
}

static void embed_rows(nb_xcpu *x)
{
    const nb_model *m = x->m;
    const nb_config *c = &m->cfg;
    const size_t d = c->d_model, e = c->embed_dim;
    const nb_slot to = e == d ? NB_SLOT_X : NB_SLOT_NORM;

    for (size_t i = 0; i < x->rows; i++) {
        const size_t token = (size_t)x->b->token[x->row0 + i];
        float *out = x->slot[to] + i * m->plan.slot_width[to];
        if (m->embed)
            nb_to_f32(out, m->embed + token * e * (nb_dtype_info(m->embed_type)->bits / 8), m->embed_type, e);
        else
            x->kern->row_dense(&m->top.ops[NB_TOP_HEAD].mats[0].dense, token, out);
    }
    if (e != d)
        nb_xcpu_linear(x, &m->top.ops[NB_TOP_IN], NB_SLOT_NORM, NB_SLOT_X, x->rows);
    for (size_t i = 0; i < x->rows; i++) {
        float *out = x->slot[NB_SLOT_X] + i * m->plan.slot_width[NB_SLOT_X];
        for (size_t k = 0; c->embed_mult != 1 && k < d; k++)
            out[k] *= (float)c->embed_mult;
        if (m->positions)
            x->kern->add(out, m->positions + (x->b->pos[x->row0 + i] + c->pos_offset) * d, d);
        if (c->embed_norm)
            nb_xcpu_embed_norm(x, i);
    }
}

/* From X rows to what the head reads: n rows in NORM. */
static void project_out(nb_xcpu *x, size_t n)
{
    const nb_plan *p = &x->m->plan;

    if (x->m->cfg.embed_dim == x->m->cfg.d_model)
        return;
    nb_xcpu_linear(x, &x->m->top.ops[NB_TOP_OUT], NB_SLOT_NORM, NB_SLOT_PROJ, n);
    for (size_t i = 0; i < n; i++)
        memcpy(x->slot[NB_SLOT_NORM] + i * p->slot_width[NB_SLOT_NORM], x->slot[NB_SLOT_PROJ] + i * p->slot_width[NB_SLOT_PROJ],
               x->m->cfg.embed_dim * sizeof(float));
}

static void tap_rows(nb_xcpu *x, nb_tap_kind kind, nb_slot s, size_t layer, size_t row0, size_t m)
{
    nb_tap t = { .kind = kind, .layer = layer, .x = x->slot[s], .row0 = row0, .m = m };

    t.width = kind == NB_TAP_FINAL ? x->m->cfg.embed_dim : x->m->plan.slot_len[s];
    t.ld = x->m->plan.slot_width[s];
    if (x->tap)
        x->tap(x->tap_user, &t);
}

/* beside [rows][width]: where each layer leaves what goes with the residual, or NULL. */
static nb_status run_layers(nb_xcpu *x, size_t l0, size_t l1, float *beside, nb_err *err)
{
    for (size_t l = l0; l < l1; l++) {
        if (!x->m->layers[l].bound)
            return nb_fail(err, NB_EARG, "model.layer", "", "layer %zu is not bound", l);
        nb_xcpu_ops(x, l, 0, x->m->plan.n_ops);
        if (x->tap) {
            nb_xcpu_flush(x);
            tap_rows(x, NB_TAP_LAYER, NB_SLOT_X, l, x->row0, x->rows);
        }
        if (beside) {
            nb_xcpu_flush(x);
            nb_xcpu_carry_out(x, l, beside, x->width);
        }
    }
    nb_xcpu_flush(x);
    return NB_OK;
}

static nb_status cpu_run(nb_exec *base, const nb_batch *b, float *logits, nb_err *err)
{
    nb_xcpu *x = (nb_xcpu *)base;
    nb_status rc = check_batch(x, b, err);
    size_t done = 0;

    if (rc == NB_OK)
        rc = nb_xcpu_states_check(x, b, 0, x->m->cfg.n_layers, err);

    for (size_t row0 = 0; row0 < b->m && rc == NB_OK; row0 += x->o.max_m) {
        size_t n = 0;

        rc = begin_cut(x, b, row0, err);
        if (rc != NB_OK)
            break;
        embed_rows(x);
        tap_rows(x, NB_TAP_EMBED, NB_SLOT_X, 0, row0, x->rows);
        nb_xcpu_after_embed(x);
        x->narrows = may_narrow(x);
        rc = run_layers(x, 0, x->m->cfg.n_layers, NULL, err);
        x->narrows = false;
        if (rc != NB_OK)
            break;
        if (x->b == b)
            nb_xcpu_keep_wanted(x);
        n = x->rows;
        if (n > 0) {
            nb_xcpu_before_head(x);
            for (size_t i = 0; i < n; i++)
                nb_xcpu_final_norm(x, i, i);
            project_out(x, n);
            tap_rows(x, NB_TAP_FINAL, NB_SLOT_NORM, 0, done, n);
            nb_xcpu_logits(x, n, logits + done * x->m->cfg.vocab);
        }
        done += n;
    }
    return rc;
}

static nb_status cpu_embed(nb_exec *base, const nb_batch *b, float *h, nb_err *err)
{
    nb_xcpu *x = (nb_xcpu *)base;
    const size_t d = x->m->cfg.d_model;
    nb_status rc = check_batch(x, b, err);

    for (size_t row0 = 0; row0 < b->m && rc == NB_OK; row0 += x->o.max_m) {
        rc = begin_cut(x, b, row0, err);
        if (rc != NB_OK)
            break;
        embed_rows(x);
        rows_out(x, NB_SLOT_X, h + row0 * x->width, x->width, x->rows);
        for (size_t i = 0; i < x->rows; i++)
            memset(h + (row0 + i) * x->width + d, 0, (x->width - d) * sizeof *h);
        tap_rows(x, NB_TAP_EMBED, NB_SLOT_X, 0, row0, x->rows);
    }
    return rc;
}

/* What layers read beside the residual: what follows from the tokens; what the layers before left needs opts.carry. */
static nb_status begin_layers(nb_xcpu *x, size_t l0, size_t l1, nb_err *err)
{
    const nb_config *c = &x->m->cfg;

    if (c->n_streams + c->v4.streams > 0 && !x->o.carry && (l0 > 0 || l1 < c->n_layers))
        return nb_fail(err, NB_EUNSUPPORTED, "exec.layers", "", "%s has %zu residual streams: its layers run all together only",
                       c->model_type, c->n_streams + c->v4.streams);
    if (!x->o.carry && c->halves && l0 % c->halves != 0)
        return nb_fail(err, NB_EUNSUPPORTED, "exec.layers", "", "layers of %s run in pairs only", c->model_type);
    if (!x->o.carry && l0 > 0 && nb_xcpu_picks(x) && c->mixer && c->mixer[l0] == NB_MIX_SHARED)
        return nb_fail(err, NB_EUNSUPPORTED, "exec.layers", "", "layer %zu of %s takes the keys that an earlier layer chose", l0,
                       c->model_type);
    if (!c->branch && !c->uses && !c->v4.on)
        return NB_OK;
    if (!x->b->token)
        return nb_fail(err, NB_EARG, "exec.batch", "", "layers that read the embedding need the tokens");
    embed_rows(x);
    nb_xcpu_after_embed(x);
    return NB_OK;
}

static nb_status cpu_layers(nb_exec *base, const nb_batch *b, float *h, size_t l0, size_t l1, nb_err *err)
{
    nb_xcpu *x = (nb_xcpu *)base;
    const size_t d = x->m->cfg.d_model;
    nb_status rc = check_batch(x, b, err);

    if (l1 > x->m->cfg.n_layers || l0 > l1)
        return nb_fail(err, NB_EARG, "model.layer", "", "layers %zu to %zu of %zu", l0, l1, x->m->cfg.n_layers);
    if (rc == NB_OK)
        rc = nb_xcpu_states_check(x, b, l0, l1, err);
    for (size_t row0 = 0; row0 < b->m && rc == NB_OK; row0 += x->o.max_m) {
        float *rows = h + row0 * x->width, *beside = x->width > d ? rows + d : NULL;

        rc = begin_cut(x, b, row0, err);
        if (rc != NB_OK)
            break;
        rc = begin_layers(x, l0, l1, err);
        if (rc != NB_OK)
            break;
        rows_in(x, NB_SLOT_X, rows, x->width, x->rows);
        if (beside)
            nb_xcpu_carry_in(x, l0, beside, x->width);
        rc = run_layers(x, l0, l1, beside, err);
        rows_out(x, NB_SLOT_X, rows, x->width, x->rows);
    }
    return rc;
}

/* Ops [op0, op1) on the rows at hand. What they only pass through is neither copied in nor out, and the caller's rows stand in for a
 * slot where they can. */
static void run_span(nb_xcpu *x, size_t layer, size_t op0, size_t op1, float *h, const float *in, float *out)
{
    const nb_plan *p = &x->m->plan;
    const nb_slot from = p->ops[op0].in, to = p->ops[op1 - 1].out;
    const bool reads_in = !h || from != NB_SLOT_X;
    const int on_x = uses(p, op0, op1, NB_SLOT_X) | (x->beside ? READS | WRITES | OTHERS : 0);
    const bool known = !(on_x & OTHERS);
    float *own[NB_SLOT_COUNT];

    memcpy(own, x->slot, sizeof own);
    if (h && on_x && known && fits(p, NB_SLOT_X, h))
        x->slot[NB_SLOT_X] = h;
    else if (h && on_x)
        copy_in(x, NB_SLOT_X, h, x->rows);
    if (reads_in && known && fits(p, from, in) && !(uses(p, op0, op1, from) & WRITES))
        memcpy(&x->slot[from], &in, sizeof in); /* read only */
    else if (reads_in)
        copy_in(x, from, in, x->rows);
    if (out && known && to != NB_SLOT_X && to != from && fits(p, to, out))
        x->slot[to] = out;
    if (x->beside && x->width > x->m->cfg.d_model)
        nb_xcpu_carry_in(x, layer, x->beside + x->row0 * x->width + x->m->cfg.d_model, x->width);
    nb_xcpu_ops(x, layer, op0, op1);
    nb_xcpu_flush(x);
    if (out && x->slot[to] != out)
        copy_out(x, to, out, x->rows);
    if (h && (on_x & WRITES) && x->slot[NB_SLOT_X] != h)
        copy_out(x, NB_SLOT_X, h, x->rows);
    memcpy(x->slot, own, sizeof own);
}

static nb_status cpu_span(nb_exec *base, const nb_batch *b, size_t layer, size_t op0, size_t op1, float *h, const float *in, float *out,
                          nb_err *err)
{
    nb_xcpu *x = (nb_xcpu *)base;
    const nb_plan *p = &x->m->plan;
    nb_status rc = check_batch(x, b, err);

    if (op0 >= op1 || op1 > p->n_ops || layer >= x->m->cfg.n_layers || !x->m->layers[layer].bound)
        return nb_fail(err, NB_EARG, "model.layer", "", "ops %zu to %zu of layer %zu cannot run", op0, op1, layer);
    if (rc == NB_OK)
        rc = nb_xcpu_states_check(x, b, layer, layer + 1, err);
    for (size_t row0 = 0; row0 < b->m && rc == NB_OK; row0 += x->o.max_m) {
        rc = begin_cut(x, b, row0, err);
        if (rc != NB_OK)
            break;
        rc = begin_layers(x, 0, x->m->cfg.n_layers, err);
        if (rc != NB_OK)
            break;
        run_span(x, layer, op0, op1, h ? h + row0 * x->m->cfg.d_model : NULL, in ? in + row0 * p->slot_len[p->ops[op0].in] : NULL,
                 out ? out + row0 * p->slot_len[p->ops[op1 - 1].out] : NULL);
    }
    return rc;
}

static nb_status cpu_ffn(nb_exec *base, size_t layer, size_t e, const float *in, size_t m, float *act, nb_err *err)
{
    nb_xcpu *x = (nb_xcpu *)base;
    const nb_moe_cfg *c = &x->m->cfg.moe;
    const nb_plan *p = &x->m->plan;
    const size_t d = x->m->cfg.d_model;

    if (layer >= x->m->cfg.n_layers || !x->m->layers[layer].moe.ffn || e >= c->n_experts + (c->shared_ff > 0))
        return nb_fail(err, NB_EARG, "model.layer", "", "layer %zu has no expert %zu", layer, e);
    for (size_t row0 = 0; row0 < m; row0 += x->o.max_m) {
        const size_t n = m - row0 < x->o.max_m ? m - row0 : x->o.max_m, ff = e < c->n_experts ? c->ff : c->shared_ff;
        for (size_t i = 0; i < n; i++)
            memcpy(x->slot[NB_SLOT_TAKEN] + i * p->slot_width[NB_SLOT_TAKEN], in + (row0 + i) * d, d * sizeof *in);
        nb_xcpu_ffn_act(x, &x->m->layers[layer].moe.ffn[e], n);
        for (size_t i = 0; i < n; i++)
            memcpy(act + (row0 + i) * ff, x->slot[NB_SLOT_ACT] + i * p->slot_width[NB_SLOT_ACT], ff * sizeof *act);
    }
    return NB_OK;
}

static nb_status cpu_head(nb_exec *base, const float *h, size_t m, float *logits, nb_err *err)
{
    nb_xcpu *x = (nb_xcpu *)base;
    (void)err;
    for (size_t row0 = 0; row0 < m; row0 += x->o.max_m) {
        const size_t n = m - row0 < x->o.max_m ? m - row0 : x->o.max_m;

        copy_in(x, NB_SLOT_X, h + row0 * x->m->cfg.d_model, n);
        for (size_t i = 0; i < n; i++)
            nb_xcpu_final_norm(x, i, i);
        project_out(x, n);
        tap_rows(x, NB_TAP_FINAL, NB_SLOT_NORM, 0, row0, n);
        if (logits)
            nb_xcpu_logits(x, n, logits + row0 * x->m->cfg.vocab);
    }
    return NB_OK;
}

static const nb_exec_ops cpu_ops = {
    .close = nb_xcpu_close,
    .bytes = nb_xcpu_bytes,
    .set_tap = cpu_set_tap,
    .run = cpu_run,
    .embed = cpu_embed,
    .layers = cpu_layers,
    .span = cpu_span,
    .ffn = cpu_ffn,
    .beside = cpu_beside,
    .head = cpu_head,
    .copy_page = nb_xcpu_copy_page,
    .fill_page = nb_xcpu_fill_page,
    .page_io = nb_xcpu_page_io,
    .copy_near = nb_xcpu_copy_near,
    .fill_near = nb_xcpu_fill_near,
    .state_bytes = nb_xcpu_state_bytes,
    .state_at = nb_xcpu_state_at,
    .state_claim = nb_xcpu_state_claim,
};

nb_status nb_exec_cpu_open(nb_model *m, const nb_exec_opts *o, nb_exec **out, nb_err *err)
{
    nb_xcpu *x;
    nb_status rc;

    *out = NULL;
    if (o->max_m == 0 || o->max_m > 1 << 20 || (o->kv_dtype != NB_DT_F16 && o->kv_dtype != NB_DT_F32 && o->kv_dtype != NB_DT_I8))
        return nb_fail(err, NB_EARG, "exec.size", "", "max_m %zu with cache type %s", o->max_m, nb_dtype_info(o->kv_dtype)->name);
    if (o->kv_dtype == NB_DT_I8 && m->cfg.alibi)
        return nb_fail(err, NB_EUNSUPPORTED, "exec.kv", "",
                       "%s keeps position biases among its keys, which 8 bits cannot hold; use f16 or f32", m->cfg.model_type);
    x = nb_calloc(1, sizeof *x);
    if (!x)
        return nb_enomem(err, "the executor");
    x->base.ops = &cpu_ops;
    x->m = m;
    x->kern = m->kern;
    x->o = *o;
    x->threads = nb_pool_threads(o->pool);
    x->width = m->cfg.d_model + (o->carry ? nb_plan_carry(&m->plan) : 0);
    rc = nb_xcpu_alloc(x, err);
    if (rc != NB_OK) {
        nb_xcpu_close(&x->base);
        return rc;
    }
    *out = &x->base;
    return NB_OK;
}

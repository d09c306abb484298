/* One function per op kind, and the splitting of each over threads. Outputs are split, never sums. */
#include <math.h>
#include <string.h>

#include "model/exec_cpu.h"

static float *at(const nb_xcpu *x, nb_slot s, size_t row)
{
    return x->slot[s] + row * x->m->plan.slot_width[s];
}

static bool same_input(const nb_mat *a, const nb_mat *b)
{
    return b->kind != NB_MAT_DENSE && a->q4.g == b->q4.g && a->q4.perm == b->q4.perm;
}

/* The matrix whose quantized input serves mat i: the first with the same groups and order. */
static size_t act_of(const nb_fused *f, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (same_input(&f->mats[i], &f->mats[j]))
            return j;
    return i;
}

/* Rows of the piece that begins at row0 of m. */
static size_t rows_of(size_t piece, size_t row0, size_t m)
{
    return m - row0 < piece ? m - row0 : piece;
}

/* The quantized input of mat i, of the piece that begins at row0. Pieces lie one after another, each as if there were no others. */
static nb_act act_at(const nb_xcpu *x, const nb_fused *f, size_t i, size_t row0)
{
    const size_t g = f->mats[i].q4.g;
    nb_act a = x->act[i];

    if (row0 > 0)
        (x->o.a8 ? nb_act_place_a8 : nb_act_place)(&a, x->act_buf + i * x->act_bytes + nb_act_bytes(row0, f->k, g),
                                                   rows_of(x->piece, row0, x->act_m), f->k, g);
    return a;
}

static void op_quant(nb_xcpu *x, const nb_item *it, size_t begin, size_t end)
{
    const size_t ld = x->m->plan.slot_width[it->op->in];

    for (size_t i = 0; i < it->f->n_mats; i++)
        for (size_t r = begin, n; r < end && it->f->mats[i].kind != NB_MAT_DENSE && act_of(it->f, i) == i; r += n) {
            const size_t row0 = r / x->piece * x->piece, left = row0 + x->piece - r;
            nb_act a = act_at(x, it->f, i, row0);

            n = end - r < left ? end - r : left;
            (x->o.a8 ? x->kern->act_a8 : x->kern->act_a16)(&a, x->slot[it->op->in] + row0 * ld, ld, r - row0, r - row0 + n,
                                                           it->f->mats[i].q4.perm);
        }
}

static void run_items(void *ctx, size_t begin, size_t end, int thread)
{
    nb_xcpu *x = ctx;

    (void)thread;
    for (size_t i = 0; i < x->n_items; i++) {
        const nb_item *it = &x->items[i];
        if (!it->row) {
            op_quant(x, it, begin, end);
            continue;
        }
        for (size_t r = begin; r < end; r++)
            it->row(x, it, r);
    }
}

void nb_xcpu_flush(nb_xcpu *x)
{
    const size_t grain = (x->rows + 8 * (size_t)x->threads - 1) / (8 * (size_t)x->threads);

    if (x->n_items > 0)
        nb_parallel_for(x->rows * x->m->plan.slot_width[NB_SLOT_GU] < NB_INLINE_MACS || x->rows == 1 ? NULL : x->o.pool, x->rows, grain,
                        run_items, x);
    x->n_items = 0;
}

static void push(nb_xcpu *x, nb_row_fn *row, size_t l, const nb_op *op, const nb_fused *f)
{
    if (x->n_items == NB_MAX_ITEMS)
        nb_xcpu_flush(x);
    x->items[x->n_items++] = (nb_item){ .row = row, .layer = &x->m->layers[l], .l = l, .op = op, .f = f };
}

/* ---- linear --------------------------------------------------------------------------------------------------- */

typedef struct linear_job {
    const nb_xcpu *x;
    const nb_fused *f;
    const float *in;
    float *out;
    size_t ldi, ldo, m;
    size_t piece; /* rows of one task, see piece_of() */
    size_t row0;  /* of the piece at hand */
} linear_job;

/* Strips are one task each, of all rows, where that keeps the threads busy to the end. Else the rows are cut as well, into no more pieces
 * than that takes: every one of them unpacks the weights again. */
static size_t piece_of(const nb_xcpu *x, size_t n_strips, size_t m)
{
    const size_t threads = (size_t)x->threads;
    size_t best = 1, best_waste = SIZE_MAX;

    for (size_t n = 1; n == 1 || n * NB_PIECE_ROWS <= m; n++) {
        const size_t tasks = n * n_strips, turns = (tasks + threads - 1) / threads;
        const size_t waste = 1000 * (turns * threads - tasks) / (turns * threads);

        if (waste < best_waste) {
            best_waste = waste;
            best = n;
        }
        if (waste <= NB_PIECE_WASTE)
            break;
    }
    return best == 1 ? m : ((m + best - 1) / best + NB_PIECE_STEP - 1) / NB_PIECE_STEP * NB_PIECE_STEP;
}

/* Sum of token i over packed group g: as quantized, or of the floats themselves. */
static float group_sum(const linear_job *j, const nb_q4 *w, const nb_act *a, size_t i, size_t g)
{
    const size_t k0 = g * w->g, k1 = k0 + w->g < w->k ? k0 + w->g : w->k;
    float sum = 0;

    if (a)
        return a->step[g * a->m + i] * (float)a->sum[g * a->m + i];
    for (size_t k = k0; k < k1; k++)
        sum += j->in[i * j->ldi + (w->perm ? w->perm[k] : k)];
    return sum;
}

/* y += fix * group sums, strips [s0, s1): groups in ascending order, whatever the split. a: NULL for exact f32. */
static void add_fix(const linear_job *j, const nb_mat *mat, const nb_act *a, float *y, size_t s0, size_t s1)
{
    for (size_t i = 0; i < j->m; i++)
        for (size_t g = 0; g < mat->q4.n_groups; g++) {
            const float sum = group_sum(j, &mat->q4, a, i, g);
            for (size_t s = s0; s < s1; s++)
                j->x->kern->axpy(y + i * j->ldo + s * NB_STRIP, mat->fix + (s * mat->q4.n_groups + g) * NB_STRIP, sum, NB_STRIP);
        }
}

static void run_mat(const linear_job *j, const nb_mat *mat, size_t i, size_t s0, size_t s1)
{
    const nb_kern *k = j->x->kern;
    nb_act act, *a = NULL;
    const bool byte = mat->kind == NB_MAT_Q8;
    float *y = j->out + mat->strip0 * NB_STRIP;

    if (mat->kind != NB_MAT_DENSE && !j->x->o.exact_fp32) {
        act = act_at(j->x, j->f, act_of(j->f, i), j->row0);
        a = &act;
    }
    if (mat->kind == NB_MAT_DENSE)
        k->gemm_dense(&mat->dense, j->in, j->ldi, j->m, y, j->ldo, s0, s1);
    else if (!a)
        (byte ? k->gemm_q8_f32 : k->gemm_q4_f32)(&mat->q4, j->in, j->ldi, j->m, y, j->ldo, s0, s1);
    else if (a->lo)
        (byte ? k->gemm_q8 : k->gemm_q4)(&mat->q4, a, y, j->ldo, s0, s1);
    else
        (byte ? k->gemm_q8_a8 : k->gemm_q4_a8)(&mat->q4, a, y, j->ldo, s0, s1);
    if (mat->has_fix)
        add_fix(j, mat, a, y, s0, s1);
}

static void fetch(const void *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch((const char *)p + i);
}

/* The input of a single token lies in the cache of the thread that made it: all of it is asked for at once, not line by line on
 * the way through the weights. */
static void fetch_input(const linear_job *j)
{
    for (size_t i = 0; i < j->f->n_mats; i++) {
        const nb_mat *mat = &j->f->mats[i];
        const nb_act *a = &j->x->act[i];

        if (mat->kind == NB_MAT_DENSE || j->x->o.exact_fp32) {
            fetch(j->in, j->f->k * sizeof *j->in);
        } else if (act_of(j->f, i) == i) {
            fetch(a->hi, a->k);
            if (a->lo)
                fetch(a->lo, a->k);
            fetch(a->step, a->n_groups * sizeof *a->step);
            fetch(a->sum, a->n_groups * sizeof *a->sum);
        }
    }
}

static void run_strips(const linear_job *j, size_t begin, size_t end)
{
    for (size_t i = 0; i < j->f->n_mats; i++) {
        const nb_mat *mat = &j->f->mats[i];
        const size_t s0 = begin > mat->strip0 ? begin - mat->strip0 : 0;
        const size_t s1 = end > mat->strip0 ? end - mat->strip0 : 0;
        if (s0 < mat->n_strips && s1 > 0)
            run_mat(j, mat, i, s0, s1 < mat->n_strips ? s1 : mat->n_strips);
    }
    for (size_t r = 0; j->f->bias && r < j->m; r++)
        j->x->kern->add(j->out + r * j->ldo + begin * NB_STRIP, j->f->bias + begin * NB_STRIP, (end - begin) * NB_STRIP);
}

static linear_job piece_at(const linear_job *all, size_t row0)
{
    linear_job j = *all;

    j.row0 = row0;
    j.m = rows_of(all->piece, row0, all->m);
    j.in += row0 * j.ldi;
    j.out += row0 * j.ldo;
    return j;
}

/* Tasks: the pieces of the first strip, of the next ... */
static void run_tasks(void *ctx, size_t begin, size_t end, int thread)
{
    const linear_job *all = ctx;
    const size_t pieces = (all->m + all->piece - 1) / all->piece;

    if (all->m == 1 && thread > 0)
        fetch_input(all);
    if (pieces == 1) {
        run_strips(all, begin, end);
        return;
    }
    for (size_t t = begin; t < end; t++) {
        const linear_job j = piece_at(all, t % pieces * all->piece);
        run_strips(&j, t / pieces, t / pieces + 1);
    }
}

static void run_linear(const nb_xcpu *x, linear_job *j, size_t n_strips)
{
    nb_pool *pool = j->m * n_strips * NB_STRIP * j->f->k < NB_INLINE_MACS ? NULL : x->o.pool;

    if (j->m == 1) {
        nb_parallel_static(pool, n_strips, run_tasks, j);
        if (n_strips <= NB_FETCH_STRIPS) /* the other threads' part of the output, for what the caller does next */
            fetch(j->out, n_strips * NB_STRIP * sizeof *j->out);
    } else
        nb_parallel_for(pool, n_strips * ((j->m + j->piece - 1) / j->piece), 1, run_tasks, j);
}

static void place_acts(nb_xcpu *x, const nb_fused *f, size_t m)
{
    x->act_m = m;
    x->piece = piece_of(x, f->n_strips, m);
    for (size_t i = 0; i < f->n_mats; i++)
        if (f->mats[i].kind != NB_MAT_DENSE)
            (x->o.a8 ? nb_act_place_a8 : nb_act_place)(&x->act[i], x->act_buf + i * x->act_bytes, rows_of(x->piece, 0, m), f->k,
                                                       f->mats[i].q4.g);
}

static void op_linear(nb_xcpu *x, size_t l, const nb_op *op, size_t index)
{
    const nb_fused *f = &x->m->layers[l].ops[op->roles[0]];
    linear_job j = { .x = x, .f = f, .m = x->rows, .piece = piece_of(x, f->n_strips, x->rows) };

    if (x->tap) {
        nb_tap t = { .kind = NB_TAP_OP_IN, .layer = l, .op = index, .x = x->slot[op->in], .row0 = x->row0, .m = x->rows };
        t.width = x->m->plan.slot_len[op->in];
        t.ld = x->m->plan.slot_width[op->in];
        nb_xcpu_flush(x);
        x->tap(x->tap_user, &t);
    }
    if (!x->o.exact_fp32) {
        place_acts(x, f, x->rows);
        push(x, NULL, l, op, f);
    }
    nb_xcpu_flush(x);
    j.in = x->slot[op->in];
    j.ldi = x->m->plan.slot_width[op->in];
    j.out = x->slot[op->out];
    j.ldo = x->m->plan.slot_width[op->out];
    run_linear(x, &j, f->n_strips);
}

/* ---- attention ------------------------------------------------------------------------------------------------ */

typedef struct attn_job {
    nb_xcpu *x;
    size_t layer;
    size_t tiles; /* split: of all blocks together, per head */
} attn_job;

nb_attn nb_xcpu_attn_task(const nb_xcpu *x, size_t layer, const nb_block *b, size_t head)
{
    const nb_config *c = &x->m->cfg;
    const nb_dims d = nb_config_dims(c, layer);
    const size_t r = c->n_heads / d.kv_heads;
    nb_attn t = { .m = b->m, .r = r, .d = d.kv_dim, .pos = b->pos, .softcap = (float)c->score_cap };
    const nb_plan *p = &x->m->plan;
    const nb_slot out = p->att_in == NB_SLOT_QKV ? NB_SLOT_ATT : NB_SLOT_WIDE;

    t.scale = (float)(c->scale_by_layer ? c->attn_scale / (double)(layer + 1) : c->attn_scale);
    const nb_heads heads = nb_plan_att(p, layer);

    t.q = at(x, p->att_in, b->row) + heads.off[0] + head * heads.step[0];
    t.ldq = p->slot_width[p->att_in];
    t.o = at(x, out, b->row) + head * r * d.kv_dim;
    t.ldo = p->slot_width[out];
    t.window = c->windowed && c->windowed[layer] ? c->sliding_window : 0;
    t.chunk = t.window ? c->chunk : 0;
    t.sinks = x->m->layers[layer].vec[NB_VEC_SINKS];
    t.sinks = t.sinks ? t.sinks + head * r : NULL;
    t.pages = x->kv_of[layer].near ? b->seq->near : b->seq->pages;
    t.v = nb_xcpu_kv(x, layer, head) + x->kv_of[layer].v_off;
    t.k = nb_config_one_kv(c) ? NULL : t.v - x->kv_of[layer].v_off;
    t.page_stride = x->kv_of[layer].page;
    t.kv_dtype = x->o.kv_dtype;
    return t;
}

static void run_attn(void *ctx, size_t begin, size_t end, int thread)
{
    const attn_job *j = ctx;
    const size_t heads = nb_config_dims(&j->x->m->cfg, j->layer).kv_heads;

    for (size_t i = begin; i < end; i++) {
        const nb_attn t = nb_xcpu_attn_task(j->x, j->layer, &j->x->blocks[i / heads], i % heads);
        j->x->kern->attn(&t, j->x->scratch + (size_t)thread * j->x->scratch_floats);
    }
}

static size_t tiles_of(const nb_block *b)
{
    return (b->pos + b->m + NB_ATT_TILE - 1) / NB_ATT_TILE;
}

/* Floats of one partial result, the same for every block. */
static size_t part_size(const nb_xcpu *x, size_t layer)
{
    const nb_dims d = nb_config_dims(&x->m->cfg, layer);

    return nb_attn_partial(NB_SPLIT_ROWS * (x->m->cfg.n_heads / d.kv_heads), d.kv_dim);
}

/* Partial results of a block and head lie together; a tile's size follows from the block's own rows. */
static float *part_of(const nb_xcpu *x, size_t layer, const nb_block *b, size_t head)
{
    return x->part + (b->item0 * nb_config_dims(&x->m->cfg, layer).kv_heads + head * tiles_of(b)) * part_size(x, layer);
}

static void run_parts(void *ctx, size_t begin, size_t end, int thread)
{
    const attn_job *j = ctx;
    const size_t heads = nb_config_dims(&j->x->m->cfg, j->layer).kv_heads;

    for (size_t i = begin; i < end; i++) {
        const size_t head = i % heads;
        size_t tile = i / heads, b = 0;
        while (tile >= tiles_of(&j->x->blocks[b]))
            tile -= tiles_of(&j->x->blocks[b++]);
        const nb_block *blk = &j->x->blocks[b];
        const nb_attn t = nb_xcpu_attn_task(j->x, j->layer, blk, head);
        j->x->kern->attn_part(&t, tile, tile + 1, part_of(j->x, j->layer, blk, head) + tile * nb_attn_partial(t.m * t.r, t.d),
                              j->x->scratch + (size_t)thread * j->x->scratch_floats);
    }
}

static void run_merge(void *ctx, size_t begin, size_t end, int thread)
{
    const attn_job *j = ctx;
    const size_t heads = nb_config_dims(&j->x->m->cfg, j->layer).kv_heads;

    (void)thread;
    for (size_t i = begin; i < end; i++) {
        const nb_block *b = &j->x->blocks[i / heads];
        const nb_attn t = nb_xcpu_attn_task(j->x, j->layer, b, i % heads);
        j->x->kern->attn_merge(&t, tiles_of(b), part_of(j->x, j->layer, b, i % heads));
    }
}

/* Few tasks over a long past: split them into their fixed tiles (kernels 11). */
static bool wants_split(nb_xcpu *x, size_t layer, size_t *tiles)
{
    const nb_config *c = &x->m->cfg;
    const size_t heads = nb_config_dims(c, layer).kv_heads, tasks = x->n_blocks * heads;

    *tiles = 0;
    if (x->threads == 1 || tasks >= 4 * (size_t)x->threads || (c->windowed && c->windowed[layer]))
        return false;
    for (size_t i = 0; i < x->n_blocks; i++) {
        if (x->blocks[i].m > NB_SPLIT_ROWS)
            return false;
        x->blocks[i].item0 = *tiles;
        *tiles += tiles_of(&x->blocks[i]);
    }
    return *tiles > x->n_blocks && *tiles * heads * part_size(x, layer) <= x->part_floats;
}

static void attend(nb_xcpu *x, size_t l)
{
    const nb_config *c = &x->m->cfg;
    attn_job j = { .x = x, .layer = l };
    const nb_dims d = nb_config_dims(c, l);
    const size_t tasks = x->n_blocks * d.kv_heads;

    if (nb_xcpu_picks(x))
        nb_xcpu_attn_picked(x, l);
    else if (wants_split(x, l, &j.tiles)) {
        nb_parallel_for(x->o.pool, j.tiles * d.kv_heads, 1, run_parts, &j);
        nb_parallel_for(x->o.pool, tasks, 1, run_merge, &j);
    } else {
        size_t macs = 0;
        for (size_t i = 0; i < x->n_blocks && macs < NB_INLINE_MACS; i++)
            macs += x->blocks[i].m * (x->blocks[i].pos + x->blocks[i].m) * c->n_heads * d.kv_dim;
        nb_parallel_for(macs < NB_INLINE_MACS ? NULL : x->o.pool, tasks, 1, run_attn, &j);
    }
}

/* last: nothing comes after it that needs more than the wanted rows. */
static void op_attn(nb_xcpu *x, size_t l, bool last)
{
    const nb_config *c = &x->m->cfg;

    if (c->v4.on) {
        nb_xcpu_flush(x);
        nb_xcpu_attn_v4(x, l);
        return;
    }
    if (nb_config_dims(c, l).kv_from == l)
        push(x, nb_xcpu_put_kv, l, NULL, NULL);
    nb_xcpu_flush(x);
    if (last)
        nb_xcpu_keep_wanted(x);
    if (x->rows > 0)
        attend(x, l);
}

/* ---- the layer ------------------------------------------------------------------------------------------------ */

static nb_whole_fn *const whole_ops[NB_OP_COUNT] = {
    [NB_OP_ABSORB] = nb_xcpu_absorb, [NB_OP_UNFOLD] = nb_xcpu_unfold, [NB_OP_MOE] = nb_xcpu_moe,         [NB_OP_INDEX] = nb_xcpu_index,
    [NB_OP_CONV] = nb_xcpu_conv,     [NB_OP_SHORT] = nb_xcpu_conv,    [NB_OP_DELTA] = nb_xcpu_delta,     [NB_OP_SSM] = nb_xcpu_ssm,
    [NB_OP_SSM1] = nb_xcpu_ssm1,     [NB_OP_LINATT] = nb_xcpu_linatt, [NB_OP_ENTRIES] = nb_xcpu_entries, [NB_OP_GROUPS] = nb_xcpu_groups,
};

/* Does op leave something of a row for later rows? What is not known to leave nothing may. */
static bool leaves_trace(const nb_config *c, size_t l, nb_op_kind kind)
{
    switch (kind) {
    case NB_OP_ATTN:
        return nb_config_dims(c, l).kv_from == l;
    case NB_OP_LINEAR:
    case NB_OP_ABSORB:
    case NB_OP_UNFOLD:
    case NB_OP_MOE:
    case NB_OP_GROUPS:
        return false;
    default:
        return !nb_xcpu_rows[kind];
    }
}

void nb_xcpu_find_last(const nb_xcpu *x, size_t *layer, size_t *op)
{
    const nb_plan *p = &x->m->plan;

    *layer = *op = SIZE_MAX;
    for (size_t l = x->m->cfg.n_layers; l-- > 0;)
        for (size_t i = p->n_ops; i-- > 0;)
            if (nb_plan_runs(p, &p->ops[i], l) && leaves_trace(&x->m->cfg, l, p->ops[i].kind)) {
                *layer = l;
                *op = i;
                return;
            }
}

void nb_xcpu_ops(nb_xcpu *x, size_t l, size_t op0, size_t op1)
{
    for (size_t i = op0; i < op1 && x->rows > 0; i++) {
        const nb_op *op = &x->m->plan.ops[i];
        const bool last = x->narrows && l == x->last_layer && i == x->last_op;

        if (!nb_plan_runs(&x->m->plan, op, l))
            continue;
        if (op->kind == NB_OP_LINEAR) {
            op_linear(x, l, op, i);
        } else if (op->kind == NB_OP_ATTN) {
            op_attn(x, l, last);
        } else if (nb_xcpu_rows[op->kind]) {
            push(x, nb_xcpu_rows[op->kind], l, op, NULL);
        } else {
            nb_xcpu_flush(x);
            whole_ops[op->kind](x, l, op);
            if (last)
                nb_xcpu_keep_wanted(x);
        }
    }
}

/* ---- around the layers ---------------------------------------------------------------------------------------- */

typedef struct top_job {
    nb_xcpu *x;
    nb_item it;
} top_job;

static void quant_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const top_job *j = ctx;

    (void)thread;
    op_quant(j->x, &j->it, begin, end);
}

/* Quantize m rows of slot `in` for f, if it wants that. */
static void quant_input(nb_xcpu *x, const nb_fused *f, nb_slot in, size_t m)
{
    const nb_op op = { .kind = NB_OP_LINEAR, .in = in };
    top_job j = { x, { .op = &op, .f = f } };

    bool any = false;

    for (size_t i = 0; i < f->n_mats; i++)
        any = any || f->mats[i].kind != NB_MAT_DENSE;
    if (x->o.exact_fp32 || !any)
        return;
    place_acts(x, f, m);
    nb_parallel_for(m == 1 ? NULL : x->o.pool, m, 1, quant_rows, &j);
}

void nb_xcpu_linear(nb_xcpu *x, const nb_fused *f, nb_slot in, nb_slot out, size_t m)
{
    const nb_plan *p = &x->m->plan;
    linear_job j = { .x = x, .f = f, .m = m, .in = x->slot[in], .ldi = p->slot_width[in], .out = x->slot[out], .ldo = p->slot_width[out] };

    j.piece = piece_of(x, f->n_strips, m);
    quant_input(x, f, in, m);
    run_linear(x, &j, f->n_strips);
}

void nb_xcpu_dense(const nb_xcpu *x, const nb_fused *f, const float *in, size_t ldi, float *out, size_t ldo, size_t m)
{
    linear_job j = { .x = x, .f = f, .m = m, .in = in, .ldi = ldi, .out = out, .ldo = ldo, .piece = m };

    run_linear(x, &j, f->n_strips);
}

/* The last strip of the head alone, as an op of one strip. */
static nb_fused last_strip(const nb_fused *f)
{
    nb_fused t = *f;
    nb_mat *m = &t.mats[0];
    const size_t s = m->n_strips - 1;

    m->q4.base += s * m->q4.n_groups * m->q4.block_bytes;
    if (m->has_fix)
        m->fix += s * m->q4.n_groups * NB_STRIP;
    m->dense.base += m->kind == NB_MAT_DENSE ? s * m->dense.k * NB_STRIP * (nb_dtype_info(m->dense.dtype)->bits / 8) : 0;
    if (t.bias)
        t.bias += s * NB_STRIP;
    m->q4.n_strips = m->dense.n_strips = m->n_strips = t.n_strips = 1;
    m->q4.n = m->dense.n = NB_STRIP;
    return t;
}

typedef struct scale_job {
    const nb_xcpu *x;
    float *logits;
} scale_job;

static void scale_rows(void *ctx, size_t begin, size_t end, int thread)
{
    const scale_job *j = ctx;
    const nb_config *c = &j->x->m->cfg;

    (void)thread;
    for (size_t r = begin; r < end; r++) {
        float *row = j->logits + r * c->vocab;
        for (size_t i = 0; c->logit_mult != 1 && i < c->vocab; i++)
            row[i] *= (float)c->logit_mult;
        if (c->logit_cap > 0)
            j->x->kern->softcap(row, (float)c->logit_cap, c->vocab);
    }
}

void nb_xcpu_logits(nb_xcpu *x, size_t m, float *logits)
{
    const nb_fused *f = &x->m->top.ops[NB_TOP_HEAD];
    const size_t v = x->m->cfg.vocab, full = v / NB_STRIP, rest = v % NB_STRIP;
    linear_job j = { .x = x, .f = f, .m = m, .in = x->slot[NB_SLOT_NORM], .ldi = x->m->plan.slot_width[NB_SLOT_NORM] };

    j.piece = piece_of(x, f->n_strips, m);
    quant_input(x, f, NB_SLOT_NORM, m);
    j.out = logits;
    j.ldo = v;
    if (full > 0)
        run_linear(x, &j, full);
    if (rest > 0) {
        const nb_fused t = last_strip(f);
        j.f = &t;
        j.out = x->tail;
        j.ldo = NB_STRIP;
        run_linear(x, &j, 1);
        for (size_t i = 0; i < m; i++)
            memcpy(logits + i * v + full * NB_STRIP, x->tail + i * NB_STRIP, rest * sizeof(float));
    }
    if (x->m->cfg.logit_mult != 1 || x->m->cfg.logit_cap > 0)
        nb_parallel_for(m == 1 ? NULL : x->o.pool, m, 1, scale_rows, &(scale_job){ x, logits });
}

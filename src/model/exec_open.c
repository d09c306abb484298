/* exec_open.c - buffers of the CPU executor: their sizes, opening and closing; pages of the cache copied and filled. */
#include "model/exec_cpu.h"

#include <string.h>

static nb_status alloc_slots(nb_xcpu *x, nb_err *err)
{
    const size_t m = x->o.max_m;
    size_t total = 0;
    float *p;

    for (size_t s = 0; s < NB_SLOT_COUNT; s++)
        total += x->m->plan.slot_width[s];
    if (!nb_mul_size(total * sizeof(float), m, &x->slots_bytes))
        return nb_fail(err, NB_EARG, "exec.size", "", "batches of %zu rows are too large", m);
    x->slots = nb_huge_alloc(x->slots_bytes);
    if (!x->slots)
        return nb_enomem(err, "activations");
    p = x->slots;
    for (size_t s = 0; s < NB_SLOT_COUNT; s++) {
        x->slot[s] = p;
        p += x->m->plan.slot_width[s] * m;
    }
    return NB_OK;
}

/* Room for the quantized input of any op: the longest k and the shortest groups. Layers that a lazy model binds later may
 * have any. */
static nb_status alloc_acts(nb_xcpu *x, nb_err *err)
{
    const nb_config *c = &x->m->cfg;
    size_t k = c->d_ff > c->d_model ? c->d_ff : c->d_model;

    k = k > c->n_heads * c->head_dim ? k : c->n_heads * c->head_dim;
    k = k > c->n_heads * c->mla.value ? k : c->n_heads * c->mla.value;
    k = k > c->mla.q_rank ? k : c->mla.q_rank;
    k = k > c->moe.ff ? k : c->moe.ff;
    k = k > c->moe.shared_ff ? k : c->moe.shared_ff;
    for (int r = 0; r < NB_ROLE_COUNT; r++) {
        size_t n, in;
        for (size_t l = 0; x->m->plan.has_role[r] && l < (c->dims ? c->n_layers : 1); l++) {
            nb_plan_linear_size_at(&x->m->plan, l, (nb_role)r, &n, &in);
            k = k > in ? k : in;
        }
    }
    x->n_acts = x->m->lazy ? 3 : x->m->n_acts;
    if (x->o.exact_fp32)
        x->n_acts = 0;
    x->act_bytes = x->n_acts ? (nb_act_bytes(x->o.max_m, k + NB_MAX_G, x->m->lazy ? 8 : x->m->act_g) + 63) / 64 * 64 : 1;
    x->act_buf = nb_huge_alloc(x->n_acts ? x->n_acts * x->act_bytes : 1); /* touched only as far as used */
    x->tail = nb_alloc_aligned(64, x->o.max_m * NB_STRIP * sizeof *x->tail);
    return x->act_buf && x->tail ? NB_OK : nb_enomem(err, "quantized activations");
}

/* Layer l on its own place: after what is there, or, layer by layer, on the first. */
static bool place_kv(nb_xcpu *x, size_t l, bool again)
{
    const nb_config *c = &x->m->cfg;
    const nb_dims d = nb_config_dims(c, l);
    nb_kv_place *p = &x->kv_of[l];
    size_t bytes, side;

    p->head = nb_kv_head_bytes(d.kv_dim, x->o.kv_dtype);
    p->v_off = nb_config_one_kv(c) ? 0 : d.kv_heads * p->head; /* a latent is key and value */
    p->page = p->v_off + d.kv_heads * p->head;
    if (nb_plan_has_op(&x->m->plan, l, NB_OP_INDEX)) {
        p->index = p->page;
        p->page += c->index_dim * NB_PAGE * (x->o.kv_dtype == NB_DT_F32 ? 4 : 2);
    }
    p->side_page = nb_plan_rate(&x->m->plan, l) ? nb_plan_side_page(&x->m->plan, l, x->o.kv_dtype) : 0;
    p->own = true;
    p->near = x->o.n_near > 0 && nb_exec_is_near(c, l);
    if (!nb_mul_size(p->page, p->near ? x->o.n_near : x->o.n_pages, &bytes) || !nb_mul_size(p->side_page, x->o.n_pages, &side))
        return false;
    p->base = again ? 0 : x->kv_bytes;
    p->side = p->base + bytes;
    if (!nb_add_size(bytes, side, &bytes))
        return false;
    if (!again)
        return nb_add_size(x->kv_bytes, bytes, &x->kv_bytes);
    x->kv_bytes = bytes > x->kv_bytes ? bytes : x->kv_bytes;
    return true;
}

/* Layers whose keys others read keep a place of their own, even where the rest shares one. */
static nb_status alloc_kv(nb_xcpu *x, nb_err *err)
{
    const nb_config *c = &x->m->cfg;
    bool ok = true;

    x->kv_of = nb_calloc(c->n_layers, sizeof *x->kv_of);
    if (!x->kv_of)
        return nb_enomem(err, "the KV cache");
    for (int pass = 0; pass < 2; pass++)
        for (size_t l = 0; l < c->n_layers && ok; l++) {
            bool read = false;
            for (size_t n = l + 1; c->dims && n < c->n_layers; n++)
                read = read || c->dims[n].kv_from == l;
            if (nb_plan_has_kv(&x->m->plan, l) && nb_config_dims(c, l).kv_from == l && (x->o.kv_layers && !read) == (pass == 0))
                ok = place_kv(x, l, pass == 0);
        }
    for (size_t l = 0; l < c->n_layers; l++)
        if (nb_config_dims(c, l).kv_from != l) {
            x->kv_of[l] = x->kv_of[nb_config_dims(c, l).kv_from];
            x->kv_of[l].own = false;
        }
    if (!ok)
        return nb_fail(err, NB_EARG, "exec.size", "", "a cache of %zu pages is too large", x->o.n_pages);
    x->kv = nb_huge_alloc(x->kv_bytes ? x->kv_bytes : 1);
    return x->kv ? NB_OK : nb_enomem(err, "the KV cache");
}

/* What attention tasks need at most. */
typedef struct attn_sizes {
    size_t scratch, part, heads;
} attn_sizes;

static attn_sizes largest(const nb_config *c)
{
    attn_sizes s = { 0, 0, 0 };

    for (size_t l = 0; l < c->n_layers; l++) {
        const nb_dims d = nb_config_dims(c, l);
        const size_t r = c->n_heads / d.kv_heads, m = r < NB_QUERY_ROWS ? NB_QUERY_ROWS / r : 1;
        const size_t one = nb_attn_scratch(m, r, d.kv_dim), part = nb_attn_partial(NB_SPLIT_ROWS * r, d.kv_dim);
        s.scratch = one > s.scratch ? one : s.scratch;
        s.part = part > s.part ? part : s.part;
        s.heads = d.kv_heads > s.heads ? d.kv_heads : s.heads;
        if (!c->dims)
            break;
    }
    return s;
}

uint64_t nb_exec_split_bytes(const nb_config *c, size_t n_pages, int threads)
{
    const attn_sizes s = largest(c);
    const size_t one = s.heads * s.part, most = ((size_t)16 << 20) / one; /* longer pasts run unsplit: the same bits */
    const size_t tiles = n_pages / (NB_ATT_TILE / NB_PAGE) + 4 * (size_t)threads;

    return threads > 1 ? (tiles < most ? tiles : most) * one * sizeof(float) : 0;
}

static nb_status alloc_attn(nb_xcpu *x, nb_err *err)
{
    const attn_sizes s = largest(&x->m->cfg);

    x->scratch_floats = (s.scratch + 15) / 16 * 16;
    x->scratch = nb_alloc_aligned(64, (size_t)x->threads * x->scratch_floats * sizeof(float));
    x->part_floats = nb_exec_split_bytes(&x->m->cfg, x->o.n_pages, x->threads) / sizeof(float);
    x->part = nb_alloc_aligned(64, x->part_floats * sizeof(float) + 64);
    x->blocks = nb_alloc_array(x->o.max_m, sizeof *x->blocks);
    x->spans = nb_alloc_array(x->o.max_m, sizeof *x->spans);
    return x->scratch && x->part && x->blocks && x->spans ? NB_OK : nb_enomem(err, "attention scratch");
}

static nb_status alloc_kept(nb_xcpu *x, nb_err *err)
{
    nb_xcpu_find_last(x, &x->last_layer, &x->last_op);
    x->kept_token = nb_alloc_array(x->o.max_m, sizeof *x->kept_token);
    x->kept_pos = nb_alloc_array(x->o.max_m, sizeof *x->kept_pos);
    x->kept_seq = nb_alloc_array(x->o.max_m, sizeof *x->kept_seq);
    return x->kept_token && x->kept_pos && x->kept_seq ? NB_OK : nb_enomem(err, "rows of a batch");
}

bool nb_xcpu_has_local(const nb_xcpu *x)
{
    return x->m->cfg.arch->rope == NB_LAYERS_LOCAL;
}

static nb_status alloc_rope(nb_xcpu *x, nb_err *err)
{
    const size_t m = x->o.max_m;

    x->half[NB_ROPE_MAIN] = nb_rope_dims(&x->m->cfg) / 2;
    x->half[NB_ROPE_LOCAL] = nb_xcpu_has_local(x) ? nb_rope_dims_local(&x->m->cfg) / 2 : 0;
    x->own_cs = nb_alloc_array(m * x->half[NB_ROPE_MAIN], sizeof *x->own_cs);
    x->own_sn = nb_alloc_array(m * x->half[NB_ROPE_MAIN], sizeof *x->own_sn);
    for (int w = 0; w < 2; w++) {
        x->row_cs[w] = nb_alloc_array(m, sizeof *x->row_cs[w]);
        x->row_sn[w] = nb_alloc_array(m, sizeof *x->row_sn[w]);
        if (!x->row_cs[w] || !x->row_sn[w])
            return nb_enomem(err, "rope tables");
    }
    return x->own_cs && x->own_sn ? NB_OK : nb_enomem(err, "rope tables");
}

static nb_status alloc_moe(nb_xcpu *x, nb_err *err)
{
    const nb_moe_cfg *c = &x->m->cfg.moe;

    if (!c->sparse)
        return NB_OK;
    x->chosen = nb_alloc_array(x->o.max_m * c->n_active, sizeof *x->chosen);
    x->share = nb_alloc_array(x->o.max_m * c->n_active, sizeof *x->share);
    x->taken = nb_alloc_array(x->o.max_m, sizeof *x->taken);
    x->scores = nb_alloc_array(2 * (c->n_experts + c->n_identity) + c->n_groups, sizeof *x->scores);
    return x->chosen && x->share && x->taken && x->scores ? NB_OK : nb_enomem(err, "the choice of experts");
}

void nb_xcpu_close(nb_exec *base)
{
    nb_xcpu *x = (nb_xcpu *)base;
    if (!x)
        return;
    if (x->slots)
        nb_huge_free(x->slots, x->slots_bytes);
    if (x->act_buf)
        nb_huge_free(x->act_buf, x->n_acts ? x->n_acts * x->act_bytes : 1);
    if (x->kv)
        nb_huge_free(x->kv, x->kv_bytes ? x->kv_bytes : 1);
    if (x->states)
        nb_huge_free(x->states, x->states_bytes);
    nb_free(x->state_off);
    nb_free_aligned(x->mix);
    nb_free(x->spans);
    nb_free(x->kept_token);
    nb_free(x->kept_pos);
    nb_free(x->kept_seq);
    nb_free(x->kv_of);
    nb_free(x->picked);
    nb_free(x->in_order);
    nb_free_aligned(x->gathered);
    nb_free_aligned(x->marks);
    nb_free_aligned(x->tail);
    nb_free_aligned(x->scratch);
    nb_free_aligned(x->part);
    nb_free(x->blocks);
    nb_free(x->chosen);
    nb_free(x->share);
    nb_free(x->taken);
    nb_free(x->scores);
    for (int w = 0; w < 2; w++) {
        nb_free(x->cs[w]);
        nb_free(x->sn[w]);
        nb_free(x->row_cs[w]);
        nb_free(x->row_sn[w]);
    }
    nb_free(x->own_cs);
    nb_free(x->own_sn);
    nb_free(x);
}

uint64_t nb_xcpu_bytes(const nb_exec *base)
{
    const nb_xcpu *x = (const nb_xcpu *)base;
    return (uint64_t)x->slots_bytes + x->n_acts * x->act_bytes + x->kv_bytes + x->states_bytes + x->part_floats * sizeof(float) +
           (uint64_t)x->threads * x->scratch_floats * sizeof(float) +
           2 * ((x->half[0] + x->half[1]) * x->rope_cap + x->o.max_m * x->half[0]) * sizeof(float);
}

static void copy_pages(nb_xcpu *x, bool near, uint32_t to, uint32_t from)
{
    for (size_t l = 0; l < x->m->cfg.n_layers; l++) {
        const nb_kv_place *p = &x->kv_of[l];
        if (p->own && p->near == near && to != from)
            memcpy(x->kv + p->base + to * p->page, x->kv + p->base + from * p->page, p->page);
        if (p->own && p->side_page && !near && to != from)
            memcpy(x->kv + p->side + to * p->side_page, x->kv + p->side + from * p->side_page, p->side_page);
    }
}

static void fill_pages(nb_xcpu *x, bool near, uint32_t page, uint8_t byte)
{
    for (size_t l = 0; l < x->m->cfg.n_layers; l++) {
        const nb_kv_place *p = &x->kv_of[l];
        if (p->own && p->near == near)
            memset(x->kv + p->base + page * p->page, byte, p->page);
        if (p->own && !near)
            memset(x->kv + p->side + page * p->side_page, byte, p->side_page);
    }
}

void nb_xcpu_copy_page(nb_exec *base, uint32_t to, uint32_t from)
{
    copy_pages((nb_xcpu *)base, false, to, from);
}

void nb_xcpu_fill_page(nb_exec *base, uint32_t page, uint8_t byte)
{
    fill_pages((nb_xcpu *)base, false, page, byte);
}

/* n bytes of a pool at `at` of a piece, where there is one. */
static void move_part(unsigned char *pool, size_t n, unsigned char *out, const unsigned char *in, size_t at)
{
    if (out && n)
        memcpy(out + at, pool, n);
    if (in && n)
        memcpy(pool, in + at, n);
}

size_t nb_xcpu_page_io(nb_exec *base, uint32_t page, unsigned char *out, const unsigned char *in)
{
    nb_xcpu *x = (nb_xcpu *)base;
    size_t at = 0;

    for (size_t l = 0; l < x->m->cfg.n_layers; l++) {
        const nb_kv_place *p = &x->kv_of[l];
        if (!p->own || p->near)
            continue;
        move_part(x->kv + p->base + page * p->page, p->page, out, in, at);
        at += p->page;
        move_part(x->kv + p->side + page * p->side_page, p->side_page, out, in, at);
        at += p->side_page;
    }
    return at;
}

void nb_xcpu_copy_near(nb_exec *base, uint32_t to, uint32_t from)
{
    copy_pages((nb_xcpu *)base, true, to, from);
}

void nb_xcpu_fill_near(nb_exec *base, uint32_t page, uint8_t byte)
{
    fill_pages((nb_xcpu *)base, true, page, byte);
}

nb_status nb_xcpu_alloc(nb_xcpu *x, nb_err *err)
{
    nb_status rc;

    if ((rc = alloc_slots(x, err)) == NB_OK && (rc = alloc_acts(x, err)) == NB_OK && (rc = alloc_kv(x, err)) == NB_OK &&
        (rc = alloc_attn(x, err)) == NB_OK && (rc = alloc_kept(x, err)) == NB_OK && (rc = alloc_moe(x, err)) == NB_OK &&
        (rc = nb_xcpu_states_open(x, err)) == NB_OK && (rc = nb_xcpu_index_open(x, err)) == NB_OK &&
        (rc = nb_xcpu_v4_open(x, err)) == NB_OK)
        rc = alloc_rope(x, err);
    return rc;
}

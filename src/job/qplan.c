/* qplan.c - what a quantization job will take, told and checked before it begins. */
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "job/quantize_priv.h"

/* ---- time ---- */

struct probe_ctx {
    const nb_kern *kern;
    const nb_dense *w;
    const float *x;
    float *y;
    size_t m;
};

static void probe_strips(void *user, size_t begin, size_t end, int thread)
{
    const struct probe_ctx *c = user;

    (void)thread;
    c->kern->gemm_dense(c->w, c->x, c->w->k, c->m, c->y, c->w->n, begin, end);
}

/* Multiply-adds per second of the dense kernel on this machine, now: a few milliseconds of real work. */
static double probe_rate(const nb_kern *kern, nb_pool *pool)
{
    enum { N = 1024, K = 512, M = 256 };
    nb_dense w = { 0 };
    float *x = nb_calloc(M * K, sizeof *x), *y = nb_calloc(M * N, sizeof *y);
    struct probe_ctx c = { .kern = kern, .w = &w, .x = x, .y = y, .m = M };
    double rate = 1e9, t0;

    if (x && y && nb_dense_layout(&w, N, K, NB_DT_F32) && (w.base = nb_huge_alloc(w.bytes))) {
        int runs = 0;
        nb_parallel_for(pool, w.n_strips, 1, probe_strips, &c);
        t0 = nb_now();
        do {
            nb_parallel_for(pool, w.n_strips, 1, probe_strips, &c);
            runs++;
        } while (nb_now() - t0 < 0.03);
        rate = (double)runs * N * K * M / (nb_now() - t0);
    }
    nb_huge_free(w.base, w.bytes);
    nb_free(x);
    nb_free(y);
    return rate;
}

/* ---- memory ---- */

enum { SLACK = 40 << 20 }; /* pages of code, stacks, small blocks, pieces of the heap between others */

/* Weights of the largest linear and of the largest layer, and bytes of the latter as stored. */
static void sizes(const nb_qjob *j, uint64_t *most, uint64_t *layer, uint64_t *stored)
{
    uint64_t w = 0, b = 0;

    *most = *layer = *stored = 0;
    for (size_t i = 0; i < j->mods.n; i++) {
        const nb_qmod *m = &j->mods.mods[i];
        const uint64_t n = (uint64_t)m->at.n * m->at.k;

        if (i == j->mods.first[m->layer])
            w = b = 0;
        *most = n > *most ? n : *most;
        if (m->mod == NB_MOD_HEAD) /* in parts, when no layer is there */
            continue;
        w += n;
        b += n * nb_dtype_info(m->at.w->dtype)->bits / 8;
        *layer = w > *layer ? w : *layer;
        *stored = b > *stored ? b : *stored;
    }
}

/* Everything that is not in a layer. */
typedef struct outer {
    uint64_t read; /* embedding and head as they are stored: read before the layers and after them */
    uint64_t held; /* all the time: stored and packed                                              */
    uint64_t most; /* the largest */
} outer;

static outer outer_bytes(const nb_qjob *j)
{
    char embed[192], head[192];
    outer o = { 0 };

    nb_plan_embed(&j->plan, embed, sizeof embed);
    snprintf(head, sizeof head, "%s.weight", j->plan.head);
    for (size_t i = 0; i < j->src.store->n_tensors; i++) {
        const nb_tensor *t = &j->src.store->tensors[i];
        const bool as_stored = t->data && (t->dtype == NB_DT_F32 || t->dtype == NB_DT_F16 || t->dtype == NB_DT_BF16);
        if (t->rank != 2 || strstr(t->name, "layers."))
            continue;
        if (strcmp(t->name, head) == 0 || (strcmp(t->name, embed) == 0 && as_stored))
            o.read += t->n_bytes;
        else
            o.held += 2 * t->n_bytes;
        o.most = t->n_bytes > o.most ? t->n_bytes : o.most;
    }
    return o;
}

static uint64_t greater(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Resident at once when activations are in memory, and when they are in files. */
static void need(const nb_qjob *j, const nb_block_cost *c, uint64_t *in_memory, uint64_t *in_files)
{
    const size_t codes = nb_qjob_codes(j);
    const outer out = outer_bytes(j);
    uint64_t most, layer, stored, packed, base;

    sizes(j, &most, &layer, &stored);
    base = nb_rss_now() + SLACK;
    if (!j->method->calibrates) {
        *in_memory = *in_files = base + 15 * most + 2 * out.most; /* codes, words; float32 in and out, stored bytes; copies */
        return;
    }
    /* one byte a weight, scale and zero point of groups, or four. Codes, packed words and scales of a linear that is solved; stored
     * bytes of one at a time */
    packed = codes ? layer + layer * 5 / (codes >= 32 ? 32 : 8) : 4 * layer;
    base += out.held + greater(out.read + c->idle, stored * most / layer + greater(packed + 3 * most + c->bytes, c->whole));
    *in_memory = base + c->spill;
    *in_files = base + (c->spill && j->calib.rows ? c->spill / j->calib.rows * (NB_BLOCK_CHUNK / j->calib.len + 1) : 0);
    if (*in_files > *in_memory)
        *in_files = *in_memory;
}

/* ---- the plan ---- */

void nb_qplan_make(nb_qjob *j, nb_quantize_plan *p)
{
    nb_block_cost c = { 0 };
    uint64_t cap = j->o->memory;

    *p = (nb_quantize_plan){ .method = j->o->method,
                             .layout = j->fmt->name,
                             .layers = j->cfg.n_layers,
                             .modules = j->mods.n_quantized,
                             .rows = j->calib.rows,
                             .len = j->calib.len,
                             .docs = j->calib.docs,
                             .empty = j->calib.empty,
                             .in_bytes = j->src.store->total_bytes,
                             .out_bytes = nb_qout_bytes(j->out),
                             .kernel = j->kern->name,
                             .threads = nb_pool_threads(j->o->pool) };
    for (size_t i = 0; i < j->mods.n; i++)
        p->params += j->mods.mods[i].quantized ? (uint64_t)j->mods.mods[i].at.n * j->mods.mods[i].at.k : 0;
    p->seconds = (double)p->params * 8e-9 + (double)p->in_bytes * 1e-9; /* rounding, and moving bytes */
    if (j->method->open) {
        c = j->method->cost(j);
        p->seconds += 1.2 * c.macs * (double)j->cfg.n_layers / probe_rate(j->kern, j->o->pool);
    }
    need(j, &c, &p->peak_bytes, &p->least_bytes);
    if (!cap && nb_mem_free())
        cap = nb_rss_now() + (uint64_t)(NB_QUANTIZE_MEMORY * (double)nb_mem_free());
    p->cap_bytes = cap ? cap : UINT64_MAX;
    p->disk_bytes = p->out_bytes;
    if (j->method->block) /* activations that enter the next block, while those of the one before are still there */
        p->disk_bytes += 2 * 4 * (uint64_t)j->calib.rows * j->calib.len * (j->cfg.d_model + nb_plan_carry(&j->plan));
    if (p->peak_bytes > p->cap_bytes && p->least_bytes < p->peak_bytes) {
        p->spill = true;
        p->peak_bytes = p->least_bytes;
        p->disk_bytes += c.spill;
    }
}

/* In whole megabytes, rounded up, as --memory takes them. */
static uint64_t megabytes(uint64_t bytes)
{
    return (bytes + 999999) / 1000000;
}

nb_status nb_qplan_fits(const nb_qjob *j, const nb_quantize_plan *p, const char *out, nb_err *err)
{
    if (p->peak_bytes > p->cap_bytes)
        return nb_fail(err, NB_ENOMEM, "mem.budget", "",
                       "the job needs %llu MB, %s is %llu MB; the smallest cap that works is --memory %lluM%s",
                       (unsigned long long)megabytes(p->peak_bytes), j->o->memory ? "the cap" : "60 % of the free memory",
                       (unsigned long long)(p->cap_bytes / 1000000), (unsigned long long)megabytes(p->least_bytes),
                       p->rows > 1 ? ", less with fewer or shorter calibration rows (--calib-rows, --calib-len)" : "");
    return nb_out_room(out, p->disk_bytes, err);
}

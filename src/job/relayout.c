/* relayout.c - convert to a layout: for every linear, stripe by stripe, from.unpack -> hub -> to.pack -> sink. Stripes go over the
 * pool; a stripe's bytes depend on nothing but the input. One linear is in memory at a time. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/strmap.h"
#include "job/convert_priv.h"
#include "quant/convention.h"
#include "tensor/sink.h"

enum { UNIT = 128, CODES = 1 << 21 }; /* outputs of a stripe are a multiple of every layout's; codes in one stripe */
enum { PIECE = 1 << 20 };             /* bytes of a plain tensor in a work item */

/* One linear, or one tensor that is copied. */
typedef struct item {
    const nb_linear *lin;
    const nb_tensor *plain;
    nb_qspec spec;  /* of a linear in the target                                                        */
    uint64_t print; /* of what was meant to be written                                                  */
    uint64_t bytes[NB_MAX_PARTS];
    const char *names[NB_MAX_PARTS]; /* NULL: the target does not store this part                             */
} item;

typedef struct job {
    const nb_convert_opts *o;
    nb_conv_in in;
    const nb_format *to;
    nb_arena arena;
    item *items;
    size_t n_items, n_linears;
    nb_order_verdict fault; /* what is repaired */
    nb_qspec spec;          /* global values of the target                                                      */
    nb_sink *sink;
    nb_convert_sum *sum;
    /* of the item at work */
    item *now;
    void *part[NB_MAX_PARTS]; /* whole packed tensors                                                         */
    uint64_t part_cap[NB_MAX_PARTS];
    pthread_mutex_t lock; /* guards what follows, print of the item, sum                                      */
    nb_err *err;
    size_t err_at;      /* piece of the recorded error: the first one wins                                  */
    uint64_t n_rounded; /* scales of the linear that the type does not hold                                 */
    double max_rel;
} job;

static void job_fail(job *j, const nb_err *e, size_t at)
{
    pthread_mutex_lock(&j->lock);
    if (at < j->err_at) {
        *j->err = *e;
        j->err_at = at;
    }
    pthread_mutex_unlock(&j->lock);
}

/* Outputs in a stripe. Wide stripes read and write long pieces of rows; the codes still fit a cache. */
static size_t stripe_rows(const nb_linear *lin)
{
    const size_t rows = CODES / lin->k / UNIT * UNIT;

    return rows ? rows : UNIT;
}

static size_t n_stripes(const nb_linear *lin)
{
    return (lin->n + stripe_rows(lin) - 1) / stripe_rows(lin);
}

static nb_status init_stripe(nb_qlin *q, const nb_linear *lin, size_t n0, nb_err *err)
{
    const size_t rows = stripe_rows(lin);

    return nb_qlin_init(q, lin->n - n0 < rows ? lin->n - n0 : rows, lin->k, lin->g, lin->spec.bits, err);
}

/* ---- what the target will say ---------------------------------------------------------------------------------- */

static int role_part(const nb_format *f, nb_part_role role)
{
    for (int p = 0; p < NB_MAX_PARTS && f->parts[p].suffix; p++)
        if (f->parts[p].role == role)
            return p;
    return -1;
}

static bool omits_zeros(const nb_format *f)
{
    const int p = role_part(f, NB_PART_ZEROS);

    return p < 0 || f->parts[p].when == NB_STORE_ASYM;
}

/* Reads a linear to see whether every zero point is the middle code, as its config says (else CFG-012). */
static nb_status is_symmetric(const nb_linear *lin, bool *out, nb_err *err)
{
    const uint8_t half = (uint8_t)(1u << (lin->spec.bits - 1));
    nb_status rc = NB_OK;

    *out = true;
    for (size_t n0 = 0; n0 < lin->n && *out && rc == NB_OK; n0 += stripe_rows(lin)) {
        nb_qlin q = { 0 };
        rc = init_stripe(&q, lin, n0, err);
        if (rc == NB_OK)
            rc = lin->format->unpack(lin, n0, &q, err);
        for (size_t i = 0; rc == NB_OK && i < q.n * q.n_groups; i++)
            *out = *out && q.zeros[i] == half;
        nb_qlin_clear(&q);
    }
    return rc;
}

static nb_dtype scale_dtype(const job *j, const nb_linear *lin)
{
    if (j->o->scale_dtype != NB_DT_NONE)
        return j->o->scale_dtype;
    /* formats 3.3, 3.5: float16 only; llm-awq takes the type of the model, where float32 is none */
    if (strcmp(j->to->name, "awq-gemv") == 0 || strcmp(j->to->name, "awq-gemv-fast") == 0)
        return NB_DT_F16;
    return lin->spec.scale_dtype;
}

static nb_status expect(const job *j, const nb_linear *lin, nb_err *err)
{
    const int64_t g = j->o->group_size;
    char what[96] = "";
    nb_status rc = NB_OK;

    if (j->o->bits && j->o->bits != lin->spec.bits)
        snprintf(what, sizeof what, "bits (%u to %u)", lin->spec.bits, j->o->bits);
    else if (g && (g < 0 ? lin->k : (size_t)g) != lin->g)
        snprintf(what, sizeof what, "the group size (%zu to %" PRId64 ")", lin->g, g);
    if (what[0])
        rc = nb_fail(err, NB_EUNSUPPORTED, "conv.bits", "CNV-060",
                     "Changing %s is not a conversion. \xe2\x86\x92 Re-quantize from the original weights.", what);
    else if (lin->act_order && role_part(j->to, NB_PART_G_IDX) < 0)
        rc = nb_fail(err, NB_EUNSUPPORTED, "conv.act_order", "CNV-010",
                     "the linear uses a reordered g_idx; %s has no g_idx. \xe2\x86\x92 Keep GPTQ/compressed-tensors, or re-quantize.",
                     j->to->name);
    else if (!j->to->pack)
        rc = nb_fail(err, NB_EUNSUPPORTED, "conv.target", "", "%s is read but not written; nibble formats lists what is", j->to->name);
    nb_err_at(err, NULL, lin->prefix);
    return rc;
}

/* The spec of every linear in the target. Group tables come from the tensors: a declared order that is natural costs nothing. */
static nb_status plan_linear(job *j, item *it, nb_err *err)
{
    const nb_linear *lin = it->lin;
    bool sym = lin->spec.sym;
    nb_status rc = expect(j, lin, err);

    if (rc == NB_OK && sym && omits_zeros(j->to) && role_part(lin->format, NB_PART_ZEROS) >= 0 &&
        lin->parts[role_part(lin->format, NB_PART_ZEROS)]) {
        if ((rc = is_symmetric(lin, &sym, err)) == NB_OK && !sym)
            nb_log(j->o->host, NB_LOG_WARN, "%s: the config says symmetric, but zero points differ; they are kept", lin->prefix);
    }
    it->spec = lin->spec;
    it->spec.sym = sym;
    it->spec.desc_act = lin->act_order;
    it->spec.scale_dtype = scale_dtype(j, lin);
    return rc;
}

static bool same_spec(const nb_qspec *a, const nb_qspec *b, size_t k)
{
    const size_t ga = a->group_size < 0 ? k : (size_t)a->group_size, gb = b->group_size < 0 ? k : (size_t)b->group_size;

    return a->bits == b->bits && (ga < k ? ga : k) == (gb < k ? gb : k) && a->sym == b->sym && a->desc_act == b->desc_act;
}

/* Global values: those of most linears. Layouts without settings per module need one set of bits and groups; whether zero points
 * are symmetric and inputs reordered may be said for all where every part is stored anyway. */
static nb_status plan_spec(job *j, nb_err *err)
{
    enum { KINDS = 16 };
    nb_qspec kind[KINDS] = { 0 };
    size_t count[KINDS] = { 0 }, n = 0, best = 0;
    bool any_asym = false, any_order = false;

    for (size_t i = 0; i < j->n_items; i++) {
        any_asym = any_asym || (j->items[i].lin && !j->items[i].spec.sym);
        any_order = any_order || (j->items[i].lin && j->items[i].spec.desc_act);
    }
    for (size_t i = 0; i < j->n_items; i++) {
        item *it = &j->items[i];
        size_t at = 0;
        if (!it->lin)
            continue;
        if (!omits_zeros(j->to) && !j->to->override)
            it->spec.sym = !any_asym;
        if (!omits_zeros(j->to)) /* g_idx is stored in any case */
            it->spec.desc_act = any_order;
        while (at < n && !same_spec(&kind[at], &it->spec, it->lin->k))
            at++;
        if (at == n && n < KINDS)
            kind[n++] = it->spec;
        if (at < KINDS && ++count[at] > count[best])
            best = at;
    }
    j->spec = kind[best];
    for (size_t i = 0; i < j->n_items && !j->to->override; i++) {
        const item *it = &j->items[i];
        if (it->lin && !same_spec(&j->spec, &it->spec, it->lin->k)) {
            nb_fail(err, NB_EUNSUPPORTED, "conv.mixed", "CNV-050",
                    "%u bits, group %zu here and %u bits, group %" PRId64 " elsewhere; %s has one setting for all modules. \xe2\x86\x92 "
                    "Convert to gptq or compressed-tensors.",
                    it->spec.bits, it->lin->g, j->spec.bits, j->spec.group_size, j->to->name);
            nb_err_at(err, NULL, it->lin->prefix);
            return NB_EUNSUPPORTED;
        }
    }
    return NB_OK;
}

/* ---- the list of tensors --------------------------------------------------------------------------------------- */

/* Linears where their first part stands, everything else as it is. */
static nb_status list_items(job *j, nb_err *err)
{
    const nb_store *s = j->in.store;
    nb_strmap *parts = nb_strmap_new(j->in.scan.n_linears * 4 + 1);
    bool *seen = nb_calloc(j->in.scan.n_linears + 1, 1);
    nb_status rc = parts && seen ? NB_OK : nb_enomem(err, "the tensor list");

    j->items = nb_arena_calloc(&j->arena, s->n_tensors + 1, sizeof *j->items);
    if (rc == NB_OK && !j->items)
        rc = nb_enomem(err, "the tensor list");
    for (size_t i = 0; i < j->in.scan.n_linears && rc == NB_OK; i++)
        for (size_t p = 0; p < NB_MAX_PARTS && rc == NB_OK; p++) {
            const nb_tensor *t = j->in.scan.linears[i].parts[p];
            if (t && nb_strmap_put(parts, t->name, t->name_len, i, NULL) != NB_OK)
                rc = nb_enomem(err, "the tensor list");
        }
    for (size_t i = 0; i < s->n_tensors && rc == NB_OK; i++) {
        const nb_tensor *t = &s->tensors[i];
        uint64_t at;
        if (!nb_strmap_get(parts, t->name, t->name_len, &at)) {
            if (!t->data) {
                rc = nb_fail(err, NB_EUNSUPPORTED, "st.dtype", "", "the tensor has no plain bytes to copy");
                nb_err_at(err, t->file, t->name);
            }
            j->items[j->n_items++].plain = t;
        } else if (!seen[at]) {
            seen[at] = true;
            j->items[j->n_items].lin = &j->in.scan.linears[at];
            rc = plan_linear(j, &j->items[j->n_items++], err);
            j->n_linears++;
        }
    }
    nb_free(seen);
    nb_strmap_free(parts);
    return rc;
}

static nb_status declare_linear(job *j, item *it, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t p = 0; p < NB_MAX_PARTS && rc == NB_OK; p++) {
        uint64_t shape[4], count;
        unsigned rank;
        nb_dtype t;
        if (!nb_format_stores(j->to, p, &it->spec))
            continue;
        t = j->to->parts[p].dtype != NB_DT_NONE ? j->to->parts[p].dtype : it->spec.scale_dtype;
        rank = nb_format_part_shape(j->to, p, it->lin->n, it->lin->k, it->lin->g, it->spec.bits, shape);
        it->names[p] = nb_arena_printf(&j->arena, "%s.%s", it->lin->prefix, j->to->parts[p].suffix);
        if (!it->names[p] || !nb_shape_count(shape, rank, &count) || !nb_dtype_bytes(t, count, &it->bytes[p]))
            return nb_enomem(err, "the tensor list");
        if (it->bytes[p] == 0) {
            nb_fail(err, NB_EUNSUPPORTED, "conv.shape", "CNV-050", "%s has no place for %zu outputs, %zu inputs, group %zu at %u bits",
                    j->to->name, it->lin->n, it->lin->k, it->lin->g, it->spec.bits);
            nb_err_at(err, NULL, it->lin->prefix);
            return NB_EUNSUPPORTED;
        }
        rc = nb_sink_declare(j->sink, it->names[p], t, rank, shape, err);
        if (it->bytes[p] > j->part_cap[p])
            j->part_cap[p] = it->bytes[p];
    }
    return rc;
}

static nb_status declare_all(job *j, nb_outdir *out, nb_err *err)
{
    nb_status rc = nb_st_sink_open(&j->sink, out, j->o->shard_bytes, err);

    for (size_t i = 0; i < j->n_items && rc == NB_OK; i++) {
        const nb_tensor *t = j->items[i].plain;
        rc = t ? nb_sink_declare(j->sink, t->name, t->dtype, t->rank, t->shape, err) : declare_linear(j, &j->items[i], err);
    }
    for (size_t p = 0; p < NB_MAX_PARTS && rc == NB_OK; p++)
        if (j->part_cap[p] && !(j->part[p] = nb_alloc((size_t)j->part_cap[p])))
            rc = nb_enomem(err, "a packed linear");
    return rc == NB_OK ? nb_sink_begin(j->sink, err) : rc;
}

/* ---- moving bytes ---------------------------------------------------------------------------------------------- */

/* Scales as the target will hold them. Without `lossy` a change is counted and refused for the linear as a whole. */
static void round_scales(job *j, nb_qlin *q, nb_dtype t)
{
    unsigned char raw[256 * 4];
    float back[256];
    uint64_t n_changed = 0;
    double worst = 0.0;

    for (size_t i = 0, all = q->n * q->n_groups; i < all; i += NB_LEN(back)) {
        const size_t m = all - i < NB_LEN(back) ? all - i : NB_LEN(back);
        nb_from_f32(raw, q->scales + i, t, m);
        nb_to_f32(back, raw, t, m);
        for (size_t x = 0; x < m; x++) {
            const float s = q->scales[i + x];
            if (back[x] == s || (isnan(s) && isnan(back[x])))
                continue;
            n_changed++;
            worst = fmax(worst, fabs((double)back[x] - (double)s) / fabs((double)s));
            q->scales[i + x] = back[x];
        }
    }
    q->scale_dtype = t;
    if (n_changed == 0)
        return;
    nb_free(q->offsets); /* they belong to the scales as they were */
    q->offsets = NULL;
    pthread_mutex_lock(&j->lock);
    j->n_rounded += n_changed;
    j->max_rel = fmax(j->max_rel, worst);
    pthread_mutex_unlock(&j->lock);
}

/* Outputs of every word as the other order of columns has them; zero points alone where only they are wrong. */
static void reorder(const nb_linear *lin, nb_qlin *q, bool codes)
{
    size_t period;
    const uint8_t *order = nb_order_other(lin, &period);
    uint8_t old[8][4096];

    for (size_t o = 0; order && o + period <= q->n; o += period) {
        for (size_t at = 0; codes && at < q->k; at += sizeof old[0]) {
            const size_t m = q->k - at < sizeof old[0] ? q->k - at : sizeof old[0];
            for (size_t i = 0; i < period; i++)
                memcpy(old[i], q->codes + (o + i) * q->k + at, m);
            for (size_t i = 0; i < period; i++)
                memcpy(q->codes + (o + i) * q->k + at, old[order[i]], m);
        }
        for (size_t g = 0; g < q->n_groups; g++) {
            uint8_t z[8];
            for (size_t i = 0; i < period; i++)
                z[i] = q->zeros[(o + i) * q->n_groups + g];
            for (size_t i = 0; i < period; i++)
                q->zeros[(o + i) * q->n_groups + g] = z[order[i]];
        }
    }
}

static void repair(const job *j, nb_qlin *q)
{
    const unsigned maxq = (1u << q->bits) - 1;

    if (j->fault.columns || j->fault.zeros)
        reorder(j->now->lin, q, j->fault.columns);
    if (j->fault.offset == 0)
        return;
    for (size_t i = 0; i < q->n * q->n_groups; i++) /* the wrap of the subtraction undone */
        q->zeros[i] = (uint8_t)((unsigned)(q->zeros[i] + j->fault.offset) & maxq);
}

static nb_status stripe(job *j, size_t n0, nb_qlin *q, nb_err *err)
{
    const nb_linear *lin = j->now->lin;
    uint64_t print;
    nb_status rc = lin->format->unpack(lin, n0, q, err);

    if (rc != NB_OK)
        return rc;
    repair(j, q);
    if (q->scale_dtype != j->now->spec.scale_dtype)
        round_scales(j, q, j->now->spec.scale_dtype);
    if ((rc = j->to->pack(q, n0, lin->n, j->part, err)) != NB_OK)
        return rc;
    print = j->o->no_verify ? 0 : nb_print_rows(q, n0);
    pthread_mutex_lock(&j->lock);
    j->now->print += print;
    j->sum->n_scales += q->n * q->n_groups;
    pthread_mutex_unlock(&j->lock);
    return NB_OK;
}

static void stripes(void *ctx, size_t begin, size_t end, int thread)
{
    job *j = ctx;
    const nb_linear *lin = j->now->lin;

    (void)thread;
    for (size_t c = begin; c < end; c++) {
        const size_t n0 = c * stripe_rows(lin);
        nb_qlin q = { 0 };
        nb_err e = { 0 };
        nb_status rc = init_stripe(&q, lin, n0, &e);
        if (rc == NB_OK)
            rc = stripe(j, n0, &q, &e);
        nb_qlin_clear(&q);
        if (rc != NB_OK)
            job_fail(j, &e, c);
    }
}

/* Pieces of the packed parts, one part after the other. */
static void write_pieces(void *ctx, size_t begin, size_t end, int thread)
{
    job *j = ctx;

    (void)thread;
    for (size_t c = begin; c < end; c++) {
        size_t p = 0, at = c;
        uint64_t off, n;
        nb_err e = { 0 };
        while (at >= (j->now->bytes[p] + PIECE - 1) / PIECE)
            at -= (size_t)((j->now->bytes[p++] + PIECE - 1) / PIECE);
        off = (uint64_t)at * PIECE;
        n = j->now->bytes[p] - off < PIECE ? j->now->bytes[p] - off : PIECE;
        if (nb_sink_write(j->sink, j->now->names[p], off, (const char *)j->part[p] + off, n, &e) != NB_OK)
            job_fail(j, &e, c);
    }
}

static nb_status write_linear(job *j, item *it)
{
    const nb_linear *lin = it->lin;
    void *all[NB_MAX_PARTS];
    nb_status rc = NB_OK;

    memcpy(all, j->part, sizeof all);
    for (size_t p = 0; p < NB_MAX_PARTS; p++) {
        if (!it->names[p])
            j->part[p] = NULL; /* not stored for this linear */
        else
            memset(j->part[p], 0, (size_t)it->bytes[p]);
    }
    nb_parallel_for(j->o->pool, n_stripes(lin), 1, stripes, j);
    if (j->err_at != SIZE_MAX)
        rc = j->err->code;
    else if (j->n_rounded && !j->o->lossy)
        rc =
            nb_fail(j->err, NB_ENUMERIC, "num.scale_inexact", "CNV-030",
                    "%" PRIu64 " of %zu scales change when stored as %s (max relative change %.1e). \xe2\x86\x92 Keep %s, or pass --lossy.",
                    j->n_rounded, lin->n * ((lin->k + lin->g - 1) / lin->g), nb_dtype_info(it->spec.scale_dtype)->torch, j->max_rel,
                    nb_dtype_info(lin->spec.scale_dtype)->torch);
    if (rc == NB_OK) {
        size_t n = 0;
        for (size_t p = 0; p < NB_MAX_PARTS; p++)
            n += (size_t)((it->bytes[p] + PIECE - 1) / PIECE);
        nb_parallel_for(j->o->pool, n, 1, write_pieces, j);
        rc = j->err_at == SIZE_MAX ? NB_OK : j->err->code;
    }
    memcpy(j->part, all, sizeof all);
    for (size_t p = 0; p < NB_MAX_PARTS; p++)
        if (lin->parts[p])
            nb_store_drop(j->in.store, lin->parts[p]);
    nb_err_at(j->err, NULL, lin->prefix);
    j->sum->n_rounded += j->n_rounded;
    j->sum->max_rel = fmax(j->sum->max_rel, j->max_rel);
    j->sum->n_linears++;
    return rc;
}

/* A view of one piece of a plain tensor. */
static nb_tensor piece_of(const nb_tensor *t, size_t c)
{
    nb_tensor v = *t;

    v.data += c * PIECE;
    v.n_bytes = t->n_bytes - c * PIECE < PIECE ? t->n_bytes - c * PIECE : PIECE;
    return v;
}

static void copy_pieces(void *ctx, size_t begin, size_t end, int thread)
{
    job *j = ctx;

    (void)thread;
    for (size_t c = begin; c < end; c++) {
        const nb_tensor v = piece_of(j->now->plain, c);
        const uint64_t print = j->o->no_verify ? 0 : nb_print_bytes(v.data, (size_t)v.n_bytes, c);
        nb_err e = { 0 };
        if (nb_sink_write(j->sink, v.name, c * PIECE, v.data, v.n_bytes, &e) != NB_OK)
            job_fail(j, &e, c);
        nb_store_drop(j->in.store, &v);
        pthread_mutex_lock(&j->lock);
        j->now->print += print;
        pthread_mutex_unlock(&j->lock);
    }
}

static nb_status write_item(job *j, item *it)
{
    j->now = it;
    j->err_at = SIZE_MAX;
    j->n_rounded = 0;
    j->max_rel = 0.0;
    if (it->lin) {
        for (size_t p = 0; p < NB_MAX_PARTS; p++)
            j->sum->n_bytes += it->bytes[p], j->sum->n_tensors += it->names[p] != NULL;
        return write_linear(j, it);
    }
    nb_parallel_for(j->o->pool, (size_t)((it->plain->n_bytes + PIECE - 1) / PIECE), 1, copy_pieces, j);
    j->sum->n_bytes += it->plain->n_bytes;
    j->sum->n_tensors++;
    j->sum->n_copied++;
    return j->err_at == SIZE_MAX ? NB_OK : j->err->code;
}

/* fn over all items, with progress. */
static nb_status each(job *j, const char *what, nb_status (*fn)(job *j, item *it))
{
    nb_progress p = { .what = what, .unit = "tensors", .total = j->n_items };
    nb_status rc = NB_OK;

    for (size_t i = 0; i < j->n_items && rc == NB_OK; i++) {
        if (nb_cancelled(j->o->host))
            return nb_fail(j->err, NB_ECANCELED, "canceled", "", "stopped; nothing was written");
        p.item = j->items[i].lin ? j->items[i].lin->prefix : j->items[i].plain->name;
        p.done = i;
        nb_report_progress(j->o->host, &p);
        rc = fn(j, &j->items[i]);
    }
    p.done = p.total;
    if (rc == NB_OK)
        nb_report_progress(j->o->host, &p);
    return rc;
}

/* ---- configuration --------------------------------------------------------------------------------------------- */

/* Modules with a plain matrix that a loader would expect to be quantized: not embeddings and norms. */
static bool is_kept_linear(const nb_tensor *t)
{
    static const char suffix[] = ".weight";
    static const char *const other[] = { "embed", "norm", "wte", "wpe" };
    const size_t n = sizeof suffix - 1;
    char name[128];
    const char *last;

    if (t->rank != 2 || t->name_len <= n || t->name_len - n >= sizeof name || strcmp(t->name + t->name_len - n, suffix) != 0)
        return false;
    memcpy(name, t->name, t->name_len - n);
    name[t->name_len - n] = '\0';
    last = strrchr(name, '.') ? strrchr(name, '.') + 1 : name;
    for (size_t i = 0; i < NB_LEN(other); i++)
        if (strstr(last, other[i]))
            return false;
    return strcmp(name, "lm_head") != 0;
}

static nb_status quant_object(job *j, nb_json **out, nb_err *err)
{
    static const char *const kept[] = { "damp_percent", "true_sequential" };
    const char **skip = nb_arena_calloc(&j->arena, j->n_items + 1, sizeof *skip);
    const bool head = nb_scan_find(&j->in.scan, "lm_head") != NULL;
    size_t n = 0;
    nb_json *q;
    bool ok = skip != NULL;

    if (ok && !head)
        skip[n++] = "lm_head";
    for (size_t i = 0; i < j->n_items && ok; i++) {
        const nb_tensor *t = j->items[i].plain;
        if (t && is_kept_linear(t))
            ok = (skip[n++] = nb_arena_strndup(&j->arena, t->name, t->name_len - 7)) != NULL;
    }
    q = ok ? j->to->config(&j->spec, skip, n) : NULL;
    ok = q != NULL;
    if (ok && head && nb_json_get(q, "lm_head"))
        ok = nb_json_set(q, "lm_head", nb_json_new_bool(true));
    for (size_t i = 0; i < j->n_items && ok && j->to->override; i++) {
        const item *it = &j->items[i];
        if (it->lin && !same_spec(&j->spec, &it->spec, it->lin->k))
            ok = j->to->override(q, it->lin->prefix, &it->spec);
    }
    for (size_t i = 0; i < NB_LEN(kept) && ok && strcmp(j->to->method, "gptq") == 0; i++)
        if (nb_json_get(j->in.qcfg, kept[i]))
            ok = nb_json_set(q, kept[i], nb_json_copy(nb_json_get(j->in.qcfg, kept[i])));
    if (!ok) {
        nb_json_free(q);
        return nb_enomem(err, "the quantization config");
    }
    *out = q;
    return NB_OK;
}

/* config.json, and quantize_config.json where loaders of the method look for it (formats 6.8). */
static nb_status write_configs(job *j, nb_outdir *out, nb_err *err)
{
    const bool ct = strcmp(j->to->method, "compressed-tensors") == 0;
    const nb_dtype t = j->spec.scale_dtype;
    const nb_json *config;
    nb_json *o = NULL, *q = NULL;
    nb_status rc = nb_hfdir_config(j->in.dir, &config, err);

    if (rc == NB_OK)
        rc = quant_object(j, &q, err);
    if (rc == NB_OK) {
        bool ok = (o = nb_json_copy(config)) && nb_conv_drop_quant(o);
        if (ok && !ct && (t == NB_DT_F16 || t == NB_DT_BF16))
            ok = nb_conv_set_dtype(o, nb_dtype_info(t)->torch, true);
        ok = ok && nb_json_set(o, "quantization_config", nb_json_copy(q));
        rc = ok ? nb_conv_put_json(out, "config.json", o, err) : nb_enomem(err, "config.json");
    }
    if (rc == NB_OK && !ct)
        rc = nb_conv_put_json(out, "quantize_config.json", q, err);
    nb_json_free(o);
    nb_json_free(q);
    return rc == NB_OK ? nb_conv_small_files(&j->in, j->o->host, out, err) : rc;
}

/* ---- reading back ---------------------------------------------------------------------------------------------- */

/* The same sums over what was written. `back` stands in j->now for the source while this runs. */
static void check_stripes(void *ctx, size_t begin, size_t end, int thread)
{
    job *j = ctx;
    const nb_linear *lin = j->now->lin;

    (void)thread;
    for (size_t c = begin; c < end; c++) {
        const size_t n0 = c * stripe_rows(lin);
        nb_qlin q = { 0 };
        nb_err e = { 0 };
        uint64_t print = 0;
        nb_status rc = init_stripe(&q, lin, n0, &e);
        if (rc == NB_OK)
            rc = lin->format->unpack(lin, n0, &q, &e);
        if (rc == NB_OK)
            print = nb_print_rows(&q, n0);
        nb_qlin_clear(&q);
        if (rc != NB_OK)
            job_fail(j, &e, c);
        pthread_mutex_lock(&j->lock);
        j->now->print += print;
        pthread_mutex_unlock(&j->lock);
    }
}

static void check_pieces(void *ctx, size_t begin, size_t end, int thread)
{
    job *j = ctx;

    (void)thread;
    for (size_t c = begin; c < end; c++) {
        const nb_tensor v = piece_of(j->now->plain, c);
        const uint64_t print = nb_print_bytes(v.data, (size_t)v.n_bytes, c);
        nb_store_drop(j->in.store, &v);
        pthread_mutex_lock(&j->lock);
        j->now->print += print;
        pthread_mutex_unlock(&j->lock);
    }
}

static nb_status differs(job *j, const char *name, const char *what)
{
    nb_fail(j->err, NB_EVERIFY, "conv.verify", "", "%s; the output was removed", what);
    nb_err_at(j->err, NULL, name);
    return NB_EVERIFY;
}

/* `in` is the staged result here: j->in of a second job whose items are the first one's. */
static nb_status check_item(job *j, item *it)
{
    item back = { 0 };

    j->now = &back;
    j->err_at = SIZE_MAX;
    if (it->lin) {
        const nb_linear *was = it->lin;
        back.lin = nb_scan_find(&j->in.scan, was->prefix);
        if (!back.lin || back.lin->n != was->n || back.lin->k != was->k || back.lin->g != was->g || back.lin->spec.bits != was->spec.bits)
            return differs(j, was->prefix, "the linear that was written has other sizes");
        nb_parallel_for(j->o->pool, n_stripes(back.lin), 1, check_stripes, j);
        for (size_t p = 0; p < NB_MAX_PARTS; p++)
            if (back.lin->parts[p])
                nb_store_drop(j->in.store, back.lin->parts[p]);
    } else {
        const nb_tensor *was = it->plain;
        back.plain = nb_store_find(j->in.store, was->name);
        if (!back.plain || back.plain->n_bytes != was->n_bytes || back.plain->dtype != was->dtype)
            return differs(j, was->name, "the tensor that was written has another size or type");
        nb_parallel_for(j->o->pool, (size_t)((was->n_bytes + PIECE - 1) / PIECE), 1, check_pieces, j);
    }
    if (j->err_at != SIZE_MAX)
        return j->err->code;
    if (back.print != it->print)
        return differs(j, it->lin ? it->lin->prefix : it->plain->name, "read back, the values differ from those that were converted");
    return NB_OK;
}

static nb_status verify(job *j, const nb_outdir *out)
{
    job v = { .o = j->o, .items = j->items, .n_items = j->n_items, .err = j->err, .sum = j->sum };
    nb_status rc;

    if (pthread_mutex_init(&v.lock, NULL) != 0)
        return nb_enomem(j->err, "a lock");
    rc = nb_conv_open(nb_outdir_path(out), NULL, &v.in, j->err);
    if (rc == NB_OK && v.in.scan.n_linears != j->in.scan.n_linears)
        rc = differs(j, nb_outdir_path(out), "the result has another number of linears");
    if (rc == NB_OK)
        rc = each(&v, "verify", check_item);
    nb_conv_close(&v.in);
    pthread_mutex_destroy(&v.lock);
    return rc;
}

/* ---- the whole ------------------------------------------------------------------------------------------------- */

static nb_status choose_target(job *j, nb_err *err)
{
    bool sym = true;

    if (j->in.scan.n_linears == 0)
        return nb_fail(err, NB_EUNSUPPORTED, "conv.dense", "",
                       "these tensors are dense: there are no codes to move to another layout. "
                       "\xe2\x86\x92 Use nibble quantize.");
    for (size_t i = 0; i < j->in.scan.n_linears; i++)
        sym = sym && j->in.scan.linears[i].spec.sym;
    j->to = j->o->format ? j->o->format : j->in.scan.format;
    if (j->o->best_gptq && !sym)
        j->to = nb_format_find("gptq_v2");
    j->sum->from = j->in.scan.format;
    j->sum->format = j->to;
    return NB_OK;
}

/* The fault that is to be repaired, as the tests of formats 8 prove it; GPTQ labels were settled while scanning. */
static nb_status find_fault(job *j, nb_err *err)
{
    const bool zeros = j->o->repair == NB_REPAIR_ZEROS;
    const nb_linear *first = NULL;
    nb_order_test t = { 0 };
    nb_order_verdict v = { 0 };
    nb_status rc;

    if (j->o->repair == NB_REPAIR_NONE)
        return NB_OK;
    rc = nb_order_sample(j->in.scan.linears, j->in.scan.n_linears, &first, &t, err);
    if (rc != NB_OK)
        return rc;
    if (first)
        v = nb_order_judge(first, &t);
    j->fault = (nb_order_verdict){ .columns = v.columns && !zeros, .zeros = v.zeros && !zeros, .offset = zeros ? v.offset : 0 };
    if (!j->fault.columns && !j->fault.zeros && j->fault.offset == 0 && !(zeros && j->in.scan.note[0]))
        return nb_fail(err, NB_EUNSUPPORTED, "conv.repair", "",
                       "the values do not prove that %s (mean offset %+.2f steps over %zu groups); nothing was written",
                       zeros ? "zero points are off by one" : "nibbles are in another order", v.mean, t.n_pairs);
    j->sum->n_repaired = j->in.scan.n_linears;
    return NB_OK;
}

static nb_status relayout(job *j, nb_outdir *out)
{
    nb_err *err = j->err;
    nb_status rc = list_items(j, err);

    if (rc == NB_OK)
        rc = plan_spec(j, err);
    if (rc == NB_OK)
        rc = write_configs(j, out, err);
    if (rc == NB_OK)
        rc = declare_all(j, out, err);
    if (rc == NB_OK)
        rc = each(j, "convert", write_item);
    if (rc == NB_OK)
        rc = nb_sink_finish(j->sink, err);
    if (rc == NB_OK)
        rc = nb_store_still(j->in.store, err);
    nb_sink_close(j->sink);
    j->sink = NULL;
    for (size_t p = 0; p < NB_MAX_PARTS; p++) {
        nb_free(j->part[p]);
        j->part[p] = NULL;
    }
    if (rc == NB_OK && !j->o->no_verify)
        j->sum->verified = (rc = verify(j, out)) == NB_OK;
    return rc;
}

nb_status nb_conv_relayout(const char *in, const char *out, const nb_convert_opts *o, nb_convert_sum *sum, nb_err *err)
{
    nb_err own = { 0 };
    job j = { .o = o, .sum = sum, .err = err ? err : &own };
    nb_outdir *dir = NULL;
    const double t0 = nb_now();
    nb_status rc;

    if (pthread_mutex_init(&j.lock, NULL) != 0)
        return nb_enomem(err, "a lock");
    rc = nb_conv_open(in, o->host, &j.in, j.err);
    if (rc == NB_OK)
        rc = choose_target(&j, j.err);
    if (rc == NB_OK)
        rc = find_fault(&j, j.err);
    if (rc == NB_OK)
        rc = nb_outdir_open(&dir, out, o->force, &in, 1, j.err);
    if (rc == NB_OK)
        rc = relayout(&j, dir);
    if (rc == NB_OK)
        rc = nb_outdir_commit(dir, j.err);
    else
        nb_outdir_abort(dir);
    for (size_t p = 0; p < NB_MAX_PARTS; p++)
        nb_free(j.part[p]);
    nb_conv_close(&j.in);
    nb_arena_clear(&j.arena);
    pthread_mutex_destroy(&j.lock);
    nb_err_at(j.err, in, NULL);
    sum->seconds = nb_now() - t0;
    return rc;
}

nb_status nb_convert_target(const char *name, nb_convert_opts *o, nb_err *err)
{
    static const struct {
        const char *name, *format;
        bool best;
    } names[] = {
        { "awq", "awq-gemm", false },    { "gptq", "gptq", true },      { "gptq-v1", "gptq", false },
        { "gptq-v2", "gptq_v2", false }, { "gptq-p", "gptq_p", false }, { "ct", "compressed-tensors", false },
    };
    char esc[NB_ESC_CAP];

    o->dtype = nb_dtype_from_name(name);
    if (o->dtype == NB_DT_F16 || o->dtype == NB_DT_BF16 || o->dtype == NB_DT_F32)
        return NB_OK;
    o->dtype = NB_DT_NONE;
    for (size_t i = 0; i < NB_LEN(names); i++)
        if (strcmp(name, names[i].name) == 0) {
            o->format = nb_format_find(names[i].format);
            o->best_gptq = names[i].best;
            return NB_OK;
        }
    if ((o->format = nb_format_find(name)))
        return NB_OK;
    return nb_fail(err, NB_EARG, "arg.value", "",
                   "--to is \"%s\"; expected f16, bf16, f32, awq-gemm, awq-gemv, awq-gemv-fast, llm-awq, gptq, gptq-v1, gptq-v2, gptq-p or "
                   "compressed-tensors",
                   nb_esc(esc, sizeof esc, name, strlen(name)));
}

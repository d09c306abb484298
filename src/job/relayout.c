/* relayout.c - convert to a layout: for every linear, stripe by stripe, from.unpack -> hub -> to.pack -> sink. Stripes go over the
 * pool; a stripe's bytes depend on nothing but the input. One linear is in memory at a time, and where its codes go as words
 * (relayout_words.c) only its zero points and scales. */
#include "job/diff.h"
#include "job/relayout.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { UNIT = 128, CODES = 1 << 21 }; /* outputs of a stripe are a multiple of every layout's; codes in one stripe */
enum { PIECE = 1 << 20 };             /* bytes of a plain tensor in a work item */

static void job_fail(nb_relay *j, const nb_err *e, size_t at)
{
    pthread_mutex_lock(&j->lock);
    if (at < j->err_at) {
        *j->err = *e;
        j->err_at = at;
    }
    pthread_mutex_unlock(&j->lock);
}

/* Outputs in a stripe. Wide stripes read and write long pieces of rows; the codes still fit a cache. */
size_t nb_relay_rows(const nb_linear *lin)
{
    const size_t rows = CODES / lin->k / UNIT * UNIT;

    return rows ? rows : UNIT;
}

static size_t n_stripes(const nb_linear *lin)
{
    return (lin->n + nb_relay_rows(lin) - 1) / nb_relay_rows(lin);
}

nb_status nb_relay_stripe(nb_qlin *q, const nb_linear *lin, size_t n0, bool with_codes, nb_err *err)
{
    const size_t rows = nb_relay_rows(lin), n = lin->n - n0 < rows ? lin->n - n0 : rows;

    return with_codes ? nb_qlin_init(q, n, lin->k, lin->g, lin->spec.bits, err)
                      : nb_qlin_init_grid(q, n, lin->k, lin->g, lin->spec.bits, err);
}

static nb_status declare_linear(nb_relay *j, nb_relay_item *it, nb_err *err)
{
    nb_status rc = NB_OK;

    it->words = nb_relay_words(j, it->lin);
    if (it->words && j->tile_cap < nb_relay_tile_bytes(j, it->lin))
        j->tile_cap = nb_relay_tile_bytes(j, it->lin);
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
        if (it->bytes[p] > j->part_cap[p] && !(it->words && p == 0))
            j->part_cap[p] = it->bytes[p];
    }
    return rc;
}

static nb_status declare_all(nb_relay *j, nb_outdir *out, nb_err *err)
{
    nb_status rc = nb_st_sink_open(&j->sink, out, j->o->shard_bytes, err);

    for (size_t i = 0; i < j->n_items && rc == NB_OK; i++) {
        const nb_tensor *t = j->items[i].plain;
        rc = t ? nb_sink_declare(j->sink, t->name, t->dtype, t->rank, t->shape, err) : declare_linear(j, &j->items[i], err);
    }
    for (size_t p = 0; p < NB_MAX_PARTS && rc == NB_OK; p++)
        if (j->part_cap[p] && !(j->part[p] = nb_alloc((size_t)j->part_cap[p])))
            rc = nb_enomem(err, "a packed linear");
    if (rc == NB_OK && j->tile_cap && !(j->tiles = nb_alloc_array(2 * (size_t)nb_pool_threads(j->o->pool), j->tile_cap)))
        rc = nb_enomem(err, "tiles of packed codes");
    return rc == NB_OK ? nb_sink_begin(j->sink, err) : rc;
}

/* ---- moving bytes ---------------------------------------------------------------------------------------------- */

/* Scales as the target will hold them. Without `lossy` a change is counted and refused for the linear as a whole. */
static void round_scales(nb_relay *j, nb_qlin *q, nb_dtype t)
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

static nb_status stripe(nb_relay *j, size_t n0, nb_qlin *q, nb_err *err)
{
    const nb_linear *lin = j->now->lin;
    uint64_t print;
    nb_status rc = lin->format->unpack(lin, n0, q, err);

    if (rc != NB_OK)
        return rc;
    nb_relay_repair(j, q);
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
    nb_relay *j = ctx;
    const nb_linear *lin = j->now->lin;

    (void)thread;
    for (size_t c = begin; c < end; c++) {
        const size_t n0 = c * nb_relay_rows(lin);
        nb_qlin q = { 0 };
        nb_err e = { 0 };
        nb_status rc = nb_relay_stripe(&q, lin, n0, !j->now->words, &e);
        if (rc == NB_OK)
            rc = stripe(j, n0, &q, &e);
        nb_qlin_clear(&q);
        if (rc != NB_OK)
            job_fail(j, &e, c);
    }
}

static void add_print(nb_relay *j, uint64_t print)
{
    pthread_mutex_lock(&j->lock);
    j->now->print += print;
    pthread_mutex_unlock(&j->lock);
}

static size_t n_pieces(const nb_relay *j, size_t p)
{
    if (p == 0 && j->now->words)
        return nb_relay_tiles(j, j->now->lin);
    return (size_t)((j->now->bytes[p] + PIECE - 1) / PIECE);
}

/* Give back the pages of the linear before: a task among the others, since it takes as long as some of them. */
static void drop_past(const nb_relay *j)
{
    for (size_t p = 0; p < NB_MAX_PARTS && j->past; p++)
        if (j->past->parts[p])
            nb_store_drop(j->in.store, j->past->parts[p]);
}

/* Pieces of the packed parts, one part after the other, behind task 0. Codes that are moved as words are made here. */
static void write_pieces(void *ctx, size_t begin, size_t end, int thread)
{
    nb_relay *j = ctx;

    for (size_t c = begin; c < end; c++) {
        const nb_relay_item *it = j->now;
        size_t p = 0, at = c - 1;
        nb_err e = { 0 };
        if (c == 0) {
            drop_past(j);
            continue;
        }
        while (at >= n_pieces(j, p))
            at -= n_pieces(j, p++);
        if (p == 0 && it->words) {
            add_print(j, nb_relay_tile(j, it->lin, at, thread, it->names[0], &e));
        } else {
            const uint64_t off = (uint64_t)at * PIECE, n = it->bytes[p] - off < PIECE ? it->bytes[p] - off : PIECE;
            nb_sink_write(j->sink, it->names[p], off, (const char *)j->part[p] + off, n, &e);
        }
        if (e.code != NB_OK)
            job_fail(j, &e, c);
    }
}

static nb_status write_linear(nb_relay *j, nb_relay_item *it)
{
    const nb_linear *lin = it->lin;
    void *all[NB_MAX_PARTS];
    nb_status rc = NB_OK;

    memcpy(all, j->part, sizeof all);
    for (size_t p = 0; p < NB_MAX_PARTS; p++) {
        if (!it->names[p] || (p == 0 && it->words))
            j->part[p] = NULL; /* not stored for this linear, or not here */
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
            n += n_pieces(j, p);
        nb_parallel_for(j->o->pool, n + 1, 1, write_pieces, j);
        rc = j->err_at == SIZE_MAX ? NB_OK : j->err->code;
    }
    memcpy(j->part, all, sizeof all);
    j->past = lin;
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
    nb_relay *j = ctx;

    (void)thread;
    for (size_t c = begin; c < end; c++) {
        const nb_tensor v = piece_of(j->now->plain, c);
        const uint64_t print = j->o->no_verify ? 0 : nb_print_bytes(v.data, (size_t)v.n_bytes, c);
        nb_err e = { 0 };
        if (nb_sink_write(j->sink, v.name, c * PIECE, v.data, v.n_bytes, &e) != NB_OK)
            job_fail(j, &e, c);
        nb_store_drop(j->in.store, &v);
        add_print(j, print);
    }
}

static nb_status write_item(nb_relay *j, nb_relay_item *it)
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
static nb_status each(nb_relay *j, const char *what, nb_status (*fn)(nb_relay *j, nb_relay_item *it))
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

/* ---- reading back ---------------------------------------------------------------------------------------------- */

static void check_stripe(nb_relay *j, size_t c)
{
    const nb_linear *lin = j->now->lin;
    const size_t n0 = c * nb_relay_rows(lin);
    nb_qlin q = { 0 };
    nb_err e = { 0 };
    nb_status rc = nb_relay_stripe(&q, lin, n0, !j->now->words, &e);

    if (rc == NB_OK)
        rc = lin->format->unpack(lin, n0, &q, &e);
    if (rc == NB_OK)
        add_print(j, nb_print_rows(&q, n0));
    nb_qlin_clear(&q);
    if (rc != NB_OK)
        job_fail(j, &e, c);
}

/* The same sums over what was written: task 0 as above, tiles if there are any, stripes. */
static void check_linear(void *ctx, size_t begin, size_t end, int thread)
{
    nb_relay *j = ctx;
    const nb_linear *lin = j->now->lin;
    const size_t tiles = j->now->words ? nb_relay_tiles(j, lin) : 0;

    for (size_t c = begin; c < end; c++)
        if (c == 0)
            drop_past(j);
        else if (c <= tiles)
            add_print(j, nb_relay_tile(j, lin, c - 1, thread, NULL, NULL));
        else
            check_stripe(j, c - 1 - tiles);
}

static void check_pieces(void *ctx, size_t begin, size_t end, int thread)
{
    nb_relay *j = ctx;

    (void)thread;
    for (size_t c = begin; c < end; c++) {
        const nb_tensor v = piece_of(j->now->plain, c);
        const uint64_t print = nb_print_bytes(v.data, (size_t)v.n_bytes, c);
        nb_store_drop(j->in.store, &v);
        add_print(j, print);
    }
}

static nb_status differs(nb_relay *j, const char *name, const char *what)
{
    nb_fail(j->err, NB_EVERIFY, "conv.verify", "", "%s; the output was removed", what);
    nb_err_at(j->err, NULL, name);
    return NB_EVERIFY;
}

/* `in` is the staged result here: j->in of a second job whose items are the first one's. */
static nb_status check_item(nb_relay *j, nb_relay_item *it)
{
    nb_relay_item back = { 0 };

    j->now = &back;
    j->err_at = SIZE_MAX;
    if (it->lin) {
        const nb_linear *was = it->lin;
        back.lin = nb_scan_find(&j->in.scan, was->prefix);
        if (!back.lin || back.lin->n != was->n || back.lin->k != was->k || back.lin->g != was->g || back.lin->spec.bits != was->spec.bits)
            return differs(j, was->prefix, "the linear that was written has other sizes");
        back.words = it->words;
        if (it->words && !nb_relay_words(j, back.lin))
            return differs(j, was->prefix, "the linear that was written has another layout");
        nb_parallel_for(j->o->pool, 1 + (it->words ? nb_relay_tiles(j, back.lin) : 0) + n_stripes(back.lin), 1, check_linear, j);
        j->past = back.lin;
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

static nb_status verify(nb_relay *j, const nb_outdir *out)
{
    nb_relay v = { .o = j->o, .to = j->to, .items = j->items, .n_items = j->n_items, .err = j->err, .sum = j->sum };
    nb_status rc;

    v.tiles = j->tiles;
    v.tile_cap = j->tile_cap;
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

/* Codes, zero points and scales of every linear, values of everything else, on both sides. Float offsets round products of these. */
static nb_status check_bits(nb_relay *j, const char *in, const nb_outdir *out)
{
    static const char what[] = "compared number by number, the result differs from the input";
    nb_diff d = { 0 };
    nb_status rc = nb_diff_run(in, nb_outdir_path(out), &(nb_diff_opts){ .pool = j->o->pool }, &d, j->err);

    if (rc == NB_OK || rc == NB_NO) {
        rc = d.n_quantized == j->n_linears && d.n_same_codes == d.n_quantized ? NB_OK : differs(j, nb_outdir_path(out), what);
        for (size_t i = 0; i < d.n_rows && rc == NB_OK; i++)
            if (!d.rows[i].codes && d.rows[i].kind != NB_DIFF_SAME)
                rc = differs(j, d.rows[i].name, what);
    }
    nb_diff_clear(&d);
    return rc;
}

/* ---- the whole ------------------------------------------------------------------------------------------------- */

static nb_status relayout(nb_relay *j, const char *in, nb_outdir *out)
{
    nb_err *err = j->err;
    nb_status rc = nb_relay_plan(j, err);

    if (rc == NB_OK)
        rc = nb_relay_configs(j, out, err);
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
    if (rc == NB_OK && j->o->bits_check)
        j->sum->bits_checked = (rc = check_bits(j, in, out)) == NB_OK;
    return rc;
}

nb_status nb_conv_relayout(const char *in, const char *out, const nb_convert_opts *o, nb_convert_sum *sum, nb_err *err)
{
    nb_err own = { 0 };
    nb_relay j = { .o = o, .sum = sum, .err = err ? err : &own };
    nb_outdir *dir = NULL;
    const double t0 = nb_now();
    nb_status rc;

    if (pthread_mutex_init(&j.lock, NULL) != 0)
        return nb_enomem(err, "a lock");
    rc = nb_conv_open(in, o->host, &j.in, j.err);
    if (rc == NB_OK)
        rc = nb_relay_target(&j, j.err);
    if (rc == NB_OK)
        rc = nb_relay_find_fault(&j, j.err);
    if (rc == NB_OK)
        rc = nb_outdir_open(&dir, out, o->force, &in, 1, j.err);
    if (rc == NB_OK)
        rc = relayout(&j, in, dir);
    if (rc == NB_OK)
        rc = nb_outdir_commit(dir, j.err);
    else
        nb_outdir_abort(dir);
    for (size_t p = 0; p < NB_MAX_PARTS; p++)
        nb_free(j.part[p]);
    nb_free(j.tiles);
    nb_conv_close(&j.in);
    nb_arena_clear(&j.arena);
    pthread_mutex_destroy(&j.lock);
    nb_err_at(j.err, in, NULL);
    sum->seconds = nb_now() - t0;
    return rc;
}

/* test_invariance.c - AT-3, NU-13, NU-14 on real executors: the logits of a token, compared by memcmp, are the same alone and in any batch, for any
 * slices, from the cache or computed, after lost blocks, with any number of threads. A spy around the executor knows the tokens that
 * lie in each page and keeps the first logits it sees after each history; all later ones must be equal to the bit. */
#include "unit/model/fixture.h"
#include "unit/model/memmodel.h"

#include <stdlib.h>
#include <unistd.h>

#include "engine/engine.h"

enum { CONTEXT = 256, N_ASK = 7, N_OUT = 24, SEEN = 1 << 14, MOST_PAGES = 64 };

/* ---- the spy ---- */

typedef struct row {
    uint64_t history; /* 0: free */
    float *logits;
} row;

typedef struct spy {
    nb_exec base;
    nb_exec *x;
    size_t vocab, compared;
    const char *label;
    row *seen; /* [SEEN], shared by all runs of a model */
    int32_t cell[MOST_PAGES * NB_PAGE];
} spy;

static void spy_close(nb_exec *b)
{
    nb_exec_close(((spy *)b)->x);
}

static uint64_t spy_bytes(const nb_exec *b)
{
    return nb_exec_bytes(((const spy *)b)->x);
}

static void spy_copy(nb_exec *b, uint32_t to, uint32_t from)
{
    spy *s = (spy *)b;

    memcpy(s->cell + to * NB_PAGE, s->cell + from * NB_PAGE, NB_PAGE * sizeof *s->cell);
    nb_exec_copy_page(s->x, to, from);
}

static void spy_fill(nb_exec *b, uint32_t page, uint8_t byte)
{
    nb_exec_fill_page(((spy *)b)->x, page, byte);
}

static size_t spy_page_io(nb_exec *b, uint32_t page, unsigned char *out, const unsigned char *in)
{
    spy *s = (spy *)b;
    const size_t n = s->x->ops->page_io(s->x, page, out, in), cells = NB_PAGE * sizeof *s->cell;

    if (out)
        memcpy(out + n, s->cell + page * NB_PAGE, cells);
    if (in)
        memcpy(s->cell + page * NB_PAGE, in + n, cells);
    return n + cells;
}

static void spy_copy_near(nb_exec *b, uint32_t to, uint32_t from)
{
    nb_exec_copy_near(((spy *)b)->x, to, from);
}

static void spy_fill_near(nb_exec *b, uint32_t page, uint8_t byte)
{
    nb_exec_fill_near(((spy *)b)->x, page, byte);
}

static size_t spy_state_bytes(const nb_exec *b)
{
    return nb_exec_state_bytes(((const spy *)b)->x);
}

static unsigned char *spy_state_at(nb_exec *b, size_t slot)
{
    return ((spy *)b)->x->ops->state_at(((spy *)b)->x, slot);
}

static void compare(spy *s, uint64_t history, const float *logits)
{
    size_t at = history % SEEN;

    while (s->seen[at].history && s->seen[at].history != history)
        at = (at + 1) % SEEN;
    if (!s->seen[at].history) {
        s->seen[at].history = history;
        s->seen[at].logits = nb_alloc_array(s->vocab, sizeof *logits);
        memcpy(s->seen[at].logits, logits, s->vocab * sizeof *logits);
        return;
    }
    s->compared++;
    for (size_t v = 0; v < s->vocab; v++)
        if (memcmp(&s->seen[at].logits[v], &logits[v], sizeof *logits) != 0)
            fail_msg("%s: logit %d is %.9g, was %.9g", s->label, (int)v, (double)logits[v], (double)s->seen[at].logits[v]);
}

static nb_status spy_run(nb_exec *b, const nb_batch *batch, float *logits, nb_err *err)
{
    spy *s = (spy *)b;
    const nb_status rc = nb_exec_run(s->x, batch, logits, err);

    for (size_t i = 0; i < batch->m; i++)
        s->cell[batch->seqs[batch->seq[i]].pages[batch->pos[i] / NB_PAGE] * NB_PAGE + batch->pos[i] % NB_PAGE] = batch->token[i];
    for (size_t i = 0; i < batch->m && rc == NB_OK; i++) {
        const nb_seq_view *v = &batch->seqs[batch->seq[i]];
        uint64_t h = 88172645463325252u + v->total;
        if (!batch->want[i])
            continue;
        for (size_t p = 0; p <= batch->pos[i]; p++)
            h = (h ^ (uint64_t)s->cell[v->pages[p / NB_PAGE] * NB_PAGE + p % NB_PAGE]) * 0x9e3779b97f4a7c15u, h ^= h >> 31;
        compare(s, h ? h : 1, logits);
        logits += s->vocab;
    }
    return rc;
}

static const nb_exec_ops spy_ops = { .close = spy_close,
                                     .bytes = spy_bytes,
                                     .run = spy_run,
                                     .copy_page = spy_copy,
                                     .fill_page = spy_fill,
                                     .page_io = spy_page_io,
                                     .copy_near = spy_copy_near,
                                     .fill_near = spy_fill_near,
                                     .state_bytes = spy_state_bytes,
                                     .state_at = spy_state_at };

/* ---- runs ---- */

typedef struct variant {
    const char *label;
    size_t together; /* requests added at once */
    size_t chunk, n_pages, max_batched;
    int threads;
    bool no_cache, twice;
    size_t n;
    bool apart; /* layers with a window have pages of their own */
    bool disk;  /* blocks go to disk at the end: the second such run begins with those of the first */
} variant;

static const variant variants[] = {
    { "alone, no cache", 1, 0, 40, 512, 0, true, false, 1, false, false },
    { "together", N_ASK, 0, 60, 512, 0, true, false, 1, false, false },
    { "together, slices of 1", N_ASK, 1, 60, 64, 0, true, false, 1, false, false },
    { "slices of 31", 3, 31, 60, 96, 0, true, false, 1, false, false },
    { "slices of 32", 3, 32, 60, 96, 0, true, false, 1, false, false },
    { "cache, one after another", 1, 0, 40, 512, 0, false, true, 1, false, false },
    { "cache, together", N_ASK, 0, 60, 128, 0, false, true, 1, false, false },
    { "cache, slices of 7", 4, 7, 60, 64, 0, false, true, 1, false, false },
    { "blocks taken back", N_ASK, 0, 9, 128, 0, false, true, 1, false, false },
    { "blocks taken back, no cache", N_ASK, 0, 9, 128, 0, true, false, 1, false, false },
    { "choices, blocks taken back", 3, 0, 9, 128, 0, false, true, 3, false, false },
    { "windows apart", N_ASK, 0, 30, 128, 0, false, true, 1, true, false },
    { "windows apart, blocks taken back", N_ASK, 0, 9, 128, 0, false, true, 3, true, false },
    { "windows apart, slices of 7", 4, 7, 60, 64, 0, false, true, 1, true, false },
    { "to disk", 1, 0, 40, 512, 0, false, false, 1, false, true },
    { "from disk", N_ASK, 0, 40, 128, 0, false, false, 1, false, true },
    { "3 threads", N_ASK, 0, 30, 128, 3, false, true, 1, false, false },
    { "16 threads", 4, 0, 30, 128, 16, false, false, 1, false, false },
};

/* Request i: prompts share the beginning, up to different places; every other answer is drawn. */
static void make_request(nb_request *r, int32_t *ids, size_t i, size_t vocab)
{
    static const size_t length[N_ASK] = { 96, 64, 101, 1, 33, 110, 96 }, shared[N_ASK] = { 96, 64, 70, 0, 20, 101, 95 };

    for (size_t k = 0; k < length[i]; k++)
        ids[k] = (int32_t)((k < shared[i] ? k * k * 3 + k * 7 + 1 : k * 11 + i) % vocab);
    *r = (nb_request){ .ids = ids,
                       .n_ids = length[i],
                       .max_tokens = N_OUT,
                       .sampling = { .temperature = (float)(i % 2), .top_p = 1, .repetition_penalty = 1, .seed = i } };
}

/* Of the runs of one model. */
static char disk_dir[] = "/tmp/nibble-kept-XXXXXX";

static nb_engine *open_variant(fixture *f, spy *s, const variant *v, nb_dtype kv, nb_pool *pool)
{
    const size_t window = nb_exec_window(nb_model_config(f->model));
    const size_t n_near = v->apart && window ? 2 * 8 * ((window + NB_PAGE - 1) / NB_PAGE + 4) + v->max_batched / NB_PAGE + 1 : 0;
    const nb_exec_opts xo = {
        .n_near = n_near, .pool = pool, .max_m = v->max_batched, .n_pages = v->n_pages, .n_states = 8, .kv_dtype = kv
    };
    nb_engine_opts o = { .pool = pool,
                         .context = CONTEXT,
                         .max_seqs = 8,
                         .max_batched = v->max_batched,
                         .chunk = v->chunk,
                         .n_pages = v->n_pages,
                         .kv_dtype = kv,
                         .no_prefix_cache = v->no_cache,
                         .config = nb_model_config(f->model),
                         .n_near = n_near,
                         .window = n_near ? window : 0,
                         .disk_bytes = 1 << 30,
                         .check = true };
    nb_engine *e = NULL;
    nb_err err = { 0 };

    assert_true(v->n_pages <= MOST_PAGES);
    s->base.ops = &spy_ops;
    s->label = v->label;
    s->vocab = fix_vocab(f);
    if (nb_exec_cpu_open(f->model, &xo, &s->x, &err) != NB_OK)
        fix_fail("executor", &err);
    if (v->disk && nb_exec_state_bytes(s->x) == 0)
        o.disk_dir = disk_dir;
    if (nb_engine_open_exec(&s->base, s->vocab, &o, &e, &err) != NB_OK)
        fix_fail("engine", &err);
    return e;
}

static void drain(nb_engine *e)
{
    const nb_event *ev;
    nb_err err = { 0 };
    size_t n;

    for (int k = 0; k < 20000 && !nb_engine_idle(e); k++) {
        if (nb_engine_step(e, &ev, &n, &err) != NB_OK)
            fix_fail("step", &err);
        for (size_t i = 0; i < n; i++)
            if (ev[i].kind == NB_EV_DONE && ev[i].finish != NB_FINISH_LENGTH)
                fix_fail("request", ev[i].err ? ev[i].err : &err);
    }
    assert_true(nb_engine_idle(e));
}

static nb_engine_stats run_variant(fixture *f, row *seen, const variant *v, nb_dtype kv)
{
    spy *s = nb_calloc(1, sizeof *s);
    nb_pool *pool = NULL;
    nb_engine_stats st;
    nb_err err = { 0 };
    nb_engine *e;
    size_t added = 0;

    if (v->threads && nb_pool_open(&pool, v->threads, &err) != NB_OK)
        fix_fail("pool", &err);
    s->seen = seen;
    e = open_variant(f, s, v, kv, pool);
    for (int round = 0; round < (v->twice ? 2 : 1); round++)
        for (size_t i = 0; i < N_ASK; i++) {
            int32_t ids[CONTEXT];
            nb_request r;
            uint64_t id;
            make_request(&r, ids, i, s->vocab);
            r.n = v->n;
            if (nb_engine_add(e, &r, &id, &err) != NB_OK)
                fix_fail("add", &err);
            if (++added % v->together == 0)
                drain(e);
        }
    drain(e);
    nb_engine_stats_get(e, &st);
    if (nb_engine_save_cache(e, &err) != NB_OK)
        fix_fail("save", &err);
    st.disk_tokens = nb_exec_state_bytes(s->x) ? 128 : st.disk_tokens; /* nothing is kept of those */
    if (v != variants && s->compared < N_ASK * (N_OUT - 1))
        fail_msg("%s: only %d rows were compared", v->label, (int)s->compared);
    nb_engine_close(e);
    nb_pool_close(pool);
    nb_free(s);
    return st;
}

static void all_variants(fixture *f, nb_dtype kv, const char *model, bool with_threads)
{
    row *seen = nb_calloc(SEEN, sizeof *seen);
    size_t preemptions = 0, hits = 0, copies = 0;
    uint64_t read = 0;
    char remove[64];

    memcpy(disk_dir + sizeof disk_dir - 7, "XXXXXX", 6);
    assert_non_null(mkdtemp(disk_dir));
    for (size_t i = 0; i < NB_LEN(variants); i++) {
        nb_engine_stats st;
        if (variants[i].threads && !with_threads)
            continue;
        st = run_variant(f, seen, &variants[i], kv);
        preemptions += st.preemptions;
        hits += st.hit_tokens;
        copies += st.copies;
        read += variants[i].disk ? st.disk_tokens : 0;
    }
    if (preemptions < 4 || hits < 1000 || copies < 5)
        fail_msg("%s: %d preemptions, %d hits, %d copies: too few to prove anything", model, (int)preemptions, (int)hits, (int)copies);
    if (read < 128)
        fail_msg("%s: %d tokens were read from disk", model, (int)read);
    assert_int_equal(snprintf(remove, sizeof remove, "rm -r %s", disk_dir) > 0 ? system(remove) : -1, 0);
    for (size_t i = 0; i < SEEN; i++)
        nb_free(seen[i].logits);
    nb_free(seen);
}

static void test_packed(void **state)
{
    static const struct {
        mm_kind kind;
        nb_dtype kv;
    } rows[] = { { MM_AWQ, NB_DT_F16 }, { MM_BF16, NB_DT_F32 }, { MM_AWQ, NB_DT_I8 } };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        memmodel mem;
        fixture f = { 0 };
        mm_open(&mem, rows[i].kind);
        f.store = mem.store;
        fix_bind(&f, mem.cfg, mem.qcfg, (fix_opts){ 0 });
        all_variants(&f, rows[i].kv, "a small Llama", i == 0);
        f.store = NULL;
        fix_close(&f);
        mm_close(&mem);
    }
}

/* Windows, latents, experts, rope tables that depend on the planned length. */
static void test_kinds_of_attention(void **state)
{
    static const char *const models[] = { "gemma3_text", "deepseek_v3", "gpt_oss", "llama-dynamic" };

    (void)state;
    for (size_t i = 0; i < NB_LEN(models); i++) {
        char path[128];
        fixture f;
        snprintf(path, sizeof path, "tests/data/models/%s", models[i]);
        fix_open(&f, path, (fix_opts){ 0 });
        all_variants(&f, i % 2 ? NB_DT_I8 : NB_DT_F16, models[i], false);
        fix_close(&f);
    }
}

/* Convolutions, gated delta rule, Mamba-2 beside and without attention, blocks that layers share, windows that become entries. */
static void test_kinds_of_state(void **state)
{
    static const char *const models[] = { "lfm2", "qwen3_next", "falcon_h1", "mamba2", "zamba2", "deepseek_v4" };

    (void)state;
    for (size_t i = 0; i < NB_LEN(models); i++) {
        char path[512];
        fixture f;
        snprintf(path, sizeof path, "tests/data/models-2026/%s", models[i]);
        fix_open(&f, path, (fix_opts){ 0 });
        all_variants(&f, NB_DT_F16, models[i], false);
        fix_close(&f);
    }
}

/* What the engine says it will take is what the executor takes, with windows apart and not, in every type. */
static void test_sizes(void **state)
{
    static const char *const models[] = { "gemma3_text", "llama", "deepseek_v3", "gpt_oss", "falcon_h1" };
    static const nb_dtype types[] = { NB_DT_F16, NB_DT_I8, NB_DT_F32 };

    (void)state;
    for (size_t i = 0; i < NB_LEN(models) * NB_LEN(types); i++) {
        nb_engine_opts o = { .max_seqs = 2, .context = 64, .kv_dtype = types[i % NB_LEN(types)] };
        const char *model = models[i / NB_LEN(types)];
        uint64_t said[2], taken[2];
        char path[128];
        fixture f;
        snprintf(path, sizeof path, "tests/data/models%s/%s", strcmp(model, "falcon_h1") ? "" : "-2026", model);
        fix_open(&f, path, (fix_opts){ 0 });
        for (size_t k = 0; k < 2; k++) {
            nb_engine *e = NULL;
            nb_err err = { 0 };
            o.n_pages = k ? 500 : 1700;
            said[k] = nb_engine_cache_bytes(f.model, &o);
            if (nb_engine_open(f.model, &o, &e, &err) != NB_OK)
                fix_fail(path, &err);
            taken[k] = nb_engine_kv_bytes(e);
            nb_engine_close(e);
            assert_true(nb_engine_pages_in(f.model, &o, said[k]) >= o.n_pages);
            o.n_pages = nb_engine_pages_in(f.model, &o, 3 * said[k] + 5);
            assert_true(nb_engine_cache_bytes(f.model, &o) <= 3 * said[k] + 5);
            o.n_pages++;
            assert_true(nb_engine_cache_bytes(f.model, &o) > 3 * said[k] + 5);
        }
        assert_int_equal(said[0] - said[1], taken[0] - taken[1]);
        fix_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed),
        cmocka_unit_test(test_kinds_of_attention),
        cmocka_unit_test(test_kinds_of_state),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

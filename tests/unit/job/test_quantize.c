/* test_quantize.c - the AWQ block against the recorded layer of GPTQModel, folds that change nothing, and the whole job on a
 * two-layer model and, for GPTQ layouts, a four-layer one: same bytes for any number of threads, refusals, cancelling. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "job/awq_block.h"
#include "job/load.h"
#include "job/quantize.h"

static const char tiny[] = "tests/data/models/llama", pemberley[] = "models/pemberley-4m";
static char scratch[] = "/tmp/nibble-test-XXXXXX";

static const char *in_scratch(const char *name)
{
    static char path[2][512];
    static int turn;

    turn ^= 1;
    snprintf(path[turn], sizeof path[turn], "%s/%s", scratch, name);
    return path[turn];
}

static int make_scratch(void **state)
{
    (void)state;
    return mkdtemp(scratch) ? 0 : -1;
}

static int remove_scratch(void **state)
{
    char cmd[600];

    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", scratch);
    return system(cmd);
}

/* ---- one block ---- */

typedef struct fixture {
    nb_loaded l;
    nb_calib calib;
    nb_pool *pool;
    nb_awq_block *b;
} fixture;

static void open_fixture(fixture *f, const char *ids, size_t n_rows, const nb_awq_opts *o)
{
    nb_err err = { 0 };
    nb_model_opts mo = { .lazy = true, .f32 = true };

    memset(f, 0, sizeof *f);
    assert_int_equal(nb_pool_open(&f->pool, 2, &err), NB_OK);
    mo.pool = f->pool;
    if (nb_load_store(&f->l, pemberley, NULL, &err) != NB_OK || nb_load_model(&f->l, &mo, &err) != NB_OK ||
        nb_calib_open(&f->calib, ids, pemberley, n_rows, 0, nb_model_config(f->l.model)->vocab, &err) != NB_OK ||
        nb_awq_block_open(&f->b, f->l.model, f->l.store, &f->calib, o, f->pool, NULL, &err) != NB_OK)
        fail_msg("%s: %s", err.file, err.what);
}

static void close_fixture(fixture *f)
{
    nb_awq_block_close(f->b);
    nb_calib_clear(&f->calib);
    nb_load_close(&f->l);
    nb_pool_close(f->pool);
}

static void recorded_layer(void **state)
{
    static const struct {
        const char *tag;
        size_t g;
        bool plain;
    } rows[] = { { "asym_g128_nohint", 128, false }, { "asym_g128_plain", 128, true } };
    const char *root = getenv("NB_GOLDEN");
    char path[512], ids[512];
    nb_err err = { 0 };
    nb_json *meta = NULL;

    (void)state;
    root = root ? root : "../shared/golden";
    snprintf(path, sizeof path, "%s/quantizers/awq_layer.json", root);
    snprintf(ids, sizeof ids, "%s/../data/calib/pemberley_calib.safetensors", root);
    if (nb_json_parse_file(path, 64u << 20, "json", &meta, &err) != NB_OK || access(ids, R_OK) != 0) {
        fprintf(stderr, "skipped: %s or %s is not there\n", path, ids);
        nb_json_free(meta);
        skip();
    }
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const nb_json *groups = nb_json_get(nb_json_get(nb_json_get(meta, "awq"), rows[i].tag), "groups");
        const nb_awq_opts o = { .bits = 4,
                                .group_size = (int64_t)rows[i].g,
                                .plain = rows[i].plain,
                                .inspect = true,
                                .clip = NB_AWQ_CLIPS,
                                .norm_dtype = NB_DT_F32 };
        const nb_awq_group *g;
        fixture f;
        size_t n;

        open_fixture(&f, ids, 4, &o);
        assert_int_equal(nb_awq_block_capture(f.b, 0, &err), NB_OK);
        assert_int_equal(nb_awq_block_search(f.b, &err), NB_OK);
        n = nb_awq_block_groups(f.b, &g);
        assert_int_equal(n, nb_json_len(groups));
        for (size_t j = 0; j < n; j++) {
            const nb_json *e = nb_json_at(groups, j), *losses = nb_json_get(e, "losses");
            for (int r = 0; r < NB_AWQ_RATIOS; r++) {
                const double ref = nb_json_num(nb_json_at(losses, (size_t)r), NAN);
                if (!(fabs(g[j].best.losses[r] / ref - 1.0) <= 2e-3))
                    fail_msg("%s group %zu: loss %d is %.8g, recorded %.8g", rows[i].tag, j, r, g[j].best.losses[r], ref);
            }
            assert_int_equal(g[j].best.index, nb_json_int(nb_json_get(e, "best_index"), -1));
        }
        close_fixture(&f);
    }
    nb_json_free(meta);
}

/* Folding must leave the block as it was: every group stays on, and norms stored in few bits are compensated exactly. */
static void folds_hold(void **state)
{
    const nb_dtype types[] = { NB_DT_F32, NB_DT_F16, NB_DT_BF16 };
    nb_err err = { 0 };

    (void)state;
    for (size_t i = 0; i < NB_LEN(types); i++) {
        const nb_awq_opts o = { .bits = 4, .group_size = 128, .clip = NB_AWQ_CLIPS, .scale_dtype = NB_DT_F16, .norm_dtype = types[i] };
        const nb_awq_group *g;
        fixture f;
        size_t n;

        open_fixture(&f, "models/pemberley-4m/calib.txt", 2, &o);
        assert_int_equal(f.calib.rows, 2);
        assert_int_equal(nb_awq_block_capture(f.b, 1, &err), NB_OK);
        assert_int_equal(nb_awq_block_search(f.b, &err), NB_OK);
        assert_int_equal(nb_awq_block_fold(f.b, &err), NB_OK);
        n = nb_awq_block_groups(f.b, &g);
        assert_int_equal(n, 3);
        for (size_t j = 0; j < n; j++)
            assert_int_equal(g[j].state, NB_FOLD_ON);
        for (int r = 0; r < NB_ROLE_COUNT; r++) { /* put the folded weights back unrounded: only float32 noise may remain */
            double before, after;
            float *w;
            if (r >= NB_ROLE_V) /* clipped, or not there */
                continue;
            assert_int_equal(nb_awq_block_take(f.b, (nb_role)r, &w, &before, &err), NB_OK);
            assert_int_equal(nb_awq_block_put(f.b, (nb_role)r, NULL, w, &after, &err), NB_OK);
            assert_true(before > 1e-6 && after < 1e-12);
        }
        assert_int_equal(nb_awq_block_replay(f.b, &err), NB_OK);
        close_fixture(&f);
    }
}

/* A layer with as many kv heads as heads, made of noise: o folds into v as well. */
static void v_carries_o(void **state)
{
    static const char config[] =
        "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,"
        "\"num_hidden_layers\":1,\"num_attention_heads\":4,\"num_key_value_heads\":4,\"vocab_size\":40,"
        "\"rms_norm_eps\":1e-5,\"max_position_embeddings\":64,\"tie_word_embeddings\":true}";
    static const struct {
        const char *name;
        uint64_t n, k;
    } rows[] = {
        { "model.embed_tokens.weight", 40, 64 },
        { "model.norm.weight", 64, 0 },
        { "model.layers.0.input_layernorm.weight", 64, 0 },
        { "model.layers.0.post_attention_layernorm.weight", 64, 0 },
        { "model.layers.0.self_attn.q_proj.weight", 64, 64 },
        { "model.layers.0.self_attn.k_proj.weight", 64, 64 },
        { "model.layers.0.self_attn.v_proj.weight", 64, 64 },
        { "model.layers.0.self_attn.o_proj.weight", 64, 64 },
        { "model.layers.0.mlp.gate_proj.weight", 96, 64 },
        { "model.layers.0.mlp.up_proj.weight", 96, 64 },
        { "model.layers.0.mlp.down_proj.weight", 64, 96 },
    };
    const nb_awq_opts o = { .bits = 4, .group_size = 32, .clip = NB_AWQ_CLIPS, .norm_dtype = NB_DT_F16 };
    const nb_model_opts mo = { .lazy = true, .f32 = true };
    float *data[NB_LEN(rows)];
    nb_calib calib = { .rows = 3, .len = 20, .ids = nb_alloc(60 * sizeof(int32_t)) };
    const nb_awq_group *g;
    nb_err err = { 0 };
    nb_awq_block *b;
    nb_scan scan = { 0 };
    nb_model *m;
    nb_store *s;
    nb_json *j;
    size_t n;

    (void)state;
    assert_int_equal(nb_memstore_open(&s, &err), NB_OK);
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const uint64_t shape[2] = { rows[i].n, rows[i].k }, count = rows[i].n * (rows[i].k ? rows[i].k : 1);
        data[i] = nb_alloc(count * sizeof(float));
        for (uint64_t a = 0; a < count; a++)
            data[i][a] = (float)(rows[i].k ? 0.2 * nb_rng_normal(7, i, a) : 0.5 + nb_rng_uniform(7, i, a));
        assert_int_equal(nb_memstore_add(s, rows[i].name, NB_DT_F32, rows[i].k ? 2 : 1, shape, data[i], &err), NB_OK);
    }
    for (size_t i = 0; i < 60; i++)
        calib.ids[i] = (int32_t)(nb_rng_uniform(8, 0, i) * 40);
    assert_int_equal(nb_json_parse(config, strlen(config), "cfg", 0, &j, &err), NB_OK);
    if (nb_model_open(s, j, &scan, &mo, &m, &err) != NB_OK || nb_awq_block_open(&b, m, s, &calib, &o, NULL, NULL, &err) != NB_OK ||
        nb_awq_block_capture(b, 0, &err) != NB_OK || nb_awq_block_search(b, &err) != NB_OK || nb_awq_block_fold(b, &err) != NB_OK)
        fail_msg("%s", err.what);
    n = nb_awq_block_groups(b, &g);
    assert_int_equal(n, 4);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(g[i].state, NB_FOLD_ON);
        if (g[i].g->mods[0] == NB_ROLE_O)
            assert_int_equal(g[i].g->pred, NB_ROLE_V);
    }
    nb_awq_block_close(b);
    nb_model_close(m);
    nb_json_free(j);
    nb_store_close(s);
    nb_calib_clear(&calib);
    for (size_t i = 0; i < NB_LEN(rows); i++)
        nb_free(data[i]);
}

/* ---- the whole job ---- */

static const char *write_ids(const char *name, int32_t top)
{
    const uint64_t shape[2] = { 6, 24 };
    const char *path = in_scratch(name);
    int32_t ids[6 * 24];
    nb_err err = { 0 };
    nb_sink *s;

    for (size_t i = 0; i < NB_LEN(ids); i++)
        ids[i] = (int32_t)(nb_rng_uniform(3, 0, i) * 96);
    ids[100] = top;
    assert_int_equal(nb_st_sink_file(&s, path, true, &err), NB_OK);
    assert_int_equal(nb_sink_declare(s, "input_ids", NB_DT_I32, 2, shape, &err), NB_OK);
    assert_int_equal(nb_sink_begin(s, &err), NB_OK);
    assert_int_equal(nb_sink_write(s, "input_ids", 0, ids, sizeof ids, &err), NB_OK);
    assert_int_equal(nb_sink_finish(s, &err), NB_OK);
    nb_sink_close(s);
    return path;
}

typedef struct seen {
    size_t plans, rows, scaled;
    bool bad;
} seen;

static void on_plan(void *user, const nb_quantize_plan *p)
{
    seen *v = user;

    v->plans++;
    v->bad = v->bad || p->modules != 14 || p->layers != 2 || p->peak_bytes == 0 || !(p->seconds > 0);
}

static void on_row(void *user, const nb_quantize_row *r)
{
    seen *v = user;

    v->rows++;
    v->scaled += r->ratio >= 0;
    v->bad = v->bad || r->done != v->rows || r->total != 14 || !isfinite(r->before) || !isfinite(r->after) || *r->note;
}

static void same_file(const char *a, const char *b)
{
    char *p, *q;
    size_t n, m;

    assert_int_equal(nb_read_file(a, 64u << 20, &p, &n, NULL), NB_OK);
    assert_int_equal(nb_read_file(b, 64u << 20, &q, &m, NULL), NB_OK);
    assert_int_equal(n, m);
    assert_memory_equal(p, q, n);
    nb_free(q);
    nb_free(p);
}

static void whole_job(void **state)
{
    static const struct {
        const char *label, *out;
        nb_quant_method method;
        int threads;
        bool sym, original;
    } rows[] = {
        { "gptq into the AWQ layout", "gptq", NB_QUANT_GPTQ, 2, false, true },
        { "rtn", "rtn", NB_QUANT_RTN, 1, false, false },
        { "awq, one thread", "awq1", NB_QUANT_AWQ, 1, false, false },
        { "awq, three threads", "awq3", NB_QUANT_AWQ, 3, false, false },
        { "awq sym, original replay", "sym", NB_QUANT_AWQ, 2, true, true },
        { "awq and gptq, one thread", "both1", NB_QUANT_AWQ_GPTQ, 1, false, false },
        { "awq and gptq, three threads", "both3", NB_QUANT_AWQ_GPTQ, 3, false, false },
        { "awq and gptq, original replay", "both", NB_QUANT_AWQ_GPTQ, 2, true, true },
    };
    char ids[512], a[512];

    (void)state;
    snprintf(ids, sizeof ids, "%s", write_ids("ids.safetensors", 5));
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        seen v = { 0 };
        nb_quantize_opts o = { .method = rows[i].method,
                               .bits = 4,
                               .group_size = 16,
                               .sym = rows[i].sym,
                               .scale_dtype = NB_DT_F16,
                               .format = "awq-gemm",
                               .order = NB_GPTQ_GAR,
                               .calib = ids,
                               .clip = NB_AWQ_CLIPS,
                               .refine = 4,
                               .gptaq = rows[i].original ? 0 : 0.5,
                               .replay_original = rows[i].original,
                               .on_plan = on_plan,
                               .on_row = on_row,
                               .user = &v };
        nb_quantize_result res;
        nb_err err = { 0 };
        nb_loaded l = { 0 };

        assert_int_equal(nb_pool_open(&o.pool, rows[i].threads, &err), NB_OK);
        if (nb_quantize(tiny, in_scratch(rows[i].out), &o, &res, &err) != NB_OK)
            fail_msg("%s: %s: %s", rows[i].label, err.subject, err.what);
        nb_pool_close(o.pool);
        if (v.bad || v.plans != 1 || v.rows != 14 || res.modules != 14 || v.scaled != (nb_quant_scales(rows[i].method) ? 12u : 0u))
            fail_msg("%s: %zu plans, %zu rows, %zu scaled", rows[i].label, v.plans, v.rows, v.scaled);

        if (nb_load_store(&l, in_scratch(rows[i].out), NULL, &err) != NB_OK)
            fail_msg("%s: %s", rows[i].label, err.what);
        assert_int_equal(l.scan.n_linears, 14);
        assert_int_equal(l.scan.spec.sym, rows[i].sym);
        assert_string_equal(nb_json_str(nb_json_get(l.config, "torch_dtype"), ""), "float16");
        nb_load_close(&l);
        assert_int_equal(nb_quantize(tiny, in_scratch(rows[i].out), &o, &res, &err), NB_EEXISTS);
    }
    snprintf(a, sizeof a, "%s", in_scratch("awq1/model.safetensors"));
    same_file(a, in_scratch("awq3/model.safetensors"));
    snprintf(a, sizeof a, "%s", in_scratch("both1/model.safetensors"));
    same_file(a, in_scratch("both3/model.safetensors"));
}

/* GPTQ in every layout it has: what the files say, errors below those of plain rounding, same bytes with three threads. */
static void gptq_job(void **state)
{
    static const struct {
        const char *label, *out, *layout;
        unsigned bits;
        int64_t group;
        int threads;
        bool sym, desc_act; /* as the files must say */
        nb_gptq_order order;
        bool static_groups, plain; /* plain: without the step towards the original model, without refinement */
    } rows[] = {
        { "symmetric", "g1", "gptq", 4, 128, 1, true, false, NB_GPTQ_GAR, false, false },
        { "symmetric, three threads", "g3", "gptq", 4, 128, 3, true, false, NB_GPTQ_GAR, false, false },
        { "symmetric, plain", "gp", "gptq", 4, 128, 2, true, false, NB_GPTQ_GAR, false, true },
        { "asymmetric", "ga", "gptq_v2", 4, 64, 2, false, false, NB_GPTQ_GAR, false, false },
        { "3 bits, falling diagonal", "gd", "gptq_v2", 3, 32, 2, false, true, NB_GPTQ_DESC, false, false },
        { "8 bits, static groups need no g_idx", "gs", "gptq", 8, 128, 2, true, false, NB_GPTQ_DESC, true, false },
        { "6 bits, per channel", "g6", "gptq_p", 6, -1, 2, true, false, NB_GPTQ_NATURAL, false, false },
        { "2 bits", "g2", "gptq_v2", 2, 32, 2, false, false, NB_GPTQ_GAR, false, false },
    };
    char ids[512], a[512];

    (void)state;
    snprintf(ids, sizeof ids, "%s", in_scratch("ids.safetensors"));
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_quantize_opts o = { .method = NB_QUANT_GPTQ,
                               .bits = rows[i].bits,
                               .group_size = rows[i].group,
                               .sym = rows[i].sym,
                               .scale_dtype = NB_DT_F16,
                               .order = rows[i].order,
                               .static_groups = rows[i].static_groups,
                               .gptaq = rows[i].plain ? 0 : NB_QUANTIZE_GPTAQ,
                               .refine = rows[i].plain ? 0 : NB_QUANTIZE_REFINE,
                               .calib = ids };
        nb_quantize_result res;
        nb_err err = { 0 };
        nb_loaded l = { 0 };
        const nb_json *q;
        bool natural = true;

        assert_int_equal(nb_pool_open(&o.pool, rows[i].threads, &err), NB_OK);
        if (nb_quantize(pemberley, in_scratch(rows[i].out), &o, &res, &err) != NB_OK ||
            nb_load_store(&l, in_scratch(rows[i].out), NULL, &err) != NB_OK)
            fail_msg("%s: %s: %s", rows[i].label, err.subject, err.what);
        nb_pool_close(o.pool);
        if (res.fallbacks || res.modules != 28 || !(res.mean_after < 0.6 * res.mean_before))
            fail_msg("%s: %zu fell back, error %g, of plain rounding %g", rows[i].label, res.fallbacks, res.mean_after, res.mean_before);
        q = nb_json_get(l.config, "quantization_config");
        assert_string_equal(nb_json_str(nb_json_get(q, "checkpoint_format"), ""), rows[i].layout);
        assert_true(nb_json_num(nb_json_get(q, "damp_percent"), 0) == NB_QUANTIZE_DAMP);
        assert_int_equal(nb_json_bool(nb_json_get(q, "static_groups"), false), rows[i].static_groups);
        assert_int_equal(l.scan.n_linears, 28);
        assert_int_equal(l.scan.spec.bits, rows[i].bits);
        assert_int_equal(l.scan.spec.group_size, rows[i].group);
        assert_int_equal(l.scan.spec.sym, rows[i].sym);
        assert_int_equal(l.scan.spec.desc_act, rows[i].desc_act);
        for (size_t m = 0; m < l.scan.n_linears; m++)
            natural = natural && !l.scan.linears[m].act_order;
        assert_int_equal(natural, !rows[i].desc_act);
        nb_load_close(&l);
    }
    snprintf(a, sizeof a, "%s", in_scratch("g1/model.safetensors"));
    same_file(a, in_scratch("g3/model.safetensors"));
}

static bool stop(void *user)
{
    size_t *left = user;

    return (*left)-- == 0 ? (*left = 0, true) : false;
}

static void refusals(void **state)
{
    char good[512], bad[512], done[512];
    const struct {
        const char *label, *model, *calib;
        int64_t group;
        nb_dtype scales;
        nb_status want;
        const char *cls, *says;
        nb_quant_method method;
        const char *format;
    } rows[] = {
        { "SHP-004 group that does not divide", tiny, good, 32, NB_DT_F16, NB_EARG, "quantize.group", "16, -1", NB_QUANT_AWQ, NULL },
        { "group of zero", tiny, good, 0, NB_DT_F16, NB_EARG, "quantize.group", "128", NB_QUANT_AWQ, NULL },
        { "no calibration", tiny, NULL, 16, NB_DT_F16, NB_EARG, "quantize.calib", "--calib", NB_QUANT_AWQ, NULL },
        { "calibration file missing", tiny, "/nonexistent/ids", 16, NB_DT_F16, NB_EOPEN, "io.not_found", "", NB_QUANT_AWQ, NULL },
        { "token over the vocabulary", tiny, bad, 16, NB_DT_F16, NB_EFORMAT, "ids.token", "96", NB_QUANT_AWQ, NULL },
        { "scales in float32", tiny, good, 16, NB_DT_F32, NB_EARG, "quantize.scale_dtype", "bf16", NB_QUANT_AWQ, NULL },
        { "already quantized", done, good, 16, NB_DT_F16, NB_EUNSUPPORTED, "quantize.already", "awq-gemm", NB_QUANT_AWQ, NULL },
        { "SHP-009 GPTQ in blocks of 32", tiny, good, 16, NB_DT_F16, NB_EUNSUPPORTED, "quantize.outputs", "32", NB_QUANT_GPTQ, "gptq_v2" },
        { "unknown layout", tiny, good, 16, NB_DT_F16, NB_EARG, "quantize.format", "formats", NB_QUANT_GPTQ, "gptq_v3" },
        { "GPTQ without calibration", tiny, NULL, 16, NB_DT_F16, NB_EARG, "quantize.calib", "GPTQ", NB_QUANT_GPTQ, "gptq" },
        { "no such model", "/nonexistent/model", good, 16, NB_DT_F16, NB_EOPEN, "io.not_found", "", NB_QUANT_AWQ, NULL },
    };

    (void)state;
    snprintf(good, sizeof good, "%s", in_scratch("ids.safetensors"));
    snprintf(done, sizeof done, "%s", in_scratch("rtn"));
    snprintf(bad, sizeof bad, "%s", write_ids("bad.safetensors", 96));
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        const nb_quantize_opts o = { .method = rows[i].method,
                                     .bits = 4,
                                     .group_size = rows[i].group,
                                     .scale_dtype = rows[i].scales,
                                     .format = rows[i].format,
                                     .calib = rows[i].calib };
        nb_err err = { 0 };
        char out[512];

        snprintf(out, sizeof out, "%s/refused", scratch);
        if (nb_quantize(rows[i].model, out, &o, NULL, &err) != rows[i].want || strcmp(err.cls, rows[i].cls) != 0 ||
            !strstr(err.what, rows[i].says))
            fail_msg("%s: %d %s: %s", rows[i].label, err.code, err.cls, err.what);
        assert_int_not_equal(access(out, F_OK), 0);
    }
}

/* Cancelled at many moments in turn: always NB_ECANCELED, never anything under the final name or beside it but the directory from
 * which the next call goes on. */
static void cancelled(void **state)
{
    char ids[512], out[512], cmd[600];
    nb_status rc = NB_ECANCELED;

    (void)state;
    snprintf(ids, sizeof ids, "%s", in_scratch("ids.safetensors"));
    snprintf(out, sizeof out, "%s", in_scratch("cancelled"));
    for (size_t when = 0; rc == NB_ECANCELED; when += 5) {
        size_t left = when;
        const nb_host host = { .cancelled = stop, .user = &left };
        const nb_quantize_opts o = {
            .method = NB_QUANT_AWQ, .bits = 4, .group_size = 16, .scale_dtype = NB_DT_F16, .calib = ids, .host = &host
        };
        nb_err err = { 0 };

        rc = nb_quantize(tiny, out, &o, NULL, &err);
        if (rc != NB_OK && rc != NB_ECANCELED)
            fail_msg("after %zu questions: %d %s", when, rc, err.what);
        assert_int_equal(access(out, F_OK) == 0, rc == NB_OK);
        snprintf(cmd, sizeof cmd, "test -z \"$(ls -A '%s' | grep nibble- | grep -v '^cancelled.nibble-job$')\"", scratch);
        assert_int_equal(system(cmd), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_layer), cmocka_unit_test(folds_hold), cmocka_unit_test(v_carries_o), cmocka_unit_test(whole_job),
        cmocka_unit_test(gptq_job),       cmocka_unit_test(refusals),   cmocka_unit_test(cancelled),
    };

    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}

/* States of recurrent and convolution layers: sequences beside each other, in pieces, with threads, forked, resumed; all the
 * same bits. And layers of other sizes, streams and choices of keys, which must not mix sequences either. */
#include "unit/model/fixture.h"

enum { N_SEQ = 3, LEN = 34 };

static const char *const models[] = { "qwen3_5-q64",       "qwen3_next", "lfm2",   "granitemoehybrid",
                                      "nemotron_h-latent", "falcon_h1",  "jamba",  "kimi_linear",
                                      "olmo_hybrid",       "mamba2",     "bamba",  "minimax",
                                      "gemma3n",           "gemma4",     "zamba2", "deepseek_v4" };

static void open_slots(fixture *f, const char *name, int threads, size_t max_m, nb_exec **x)
{
    char dir[128];
    nb_exec_opts o = { .max_m = max_m, .n_pages = FIX_PAGES, .n_states = N_SEQ + 1, .kv_dtype = NB_DT_F32 };
    nb_err err = { 0 };

    snprintf(dir, sizeof dir, "tests/data/models-2026/%s", name);
    fix_open(f, dir, (fix_opts){ .threads = threads });
    o.pool = f->pool;
    if (nb_exec_cpu_open(f->model, &o, x, &err) != NB_OK)
        fix_fail(name, &err);
}

static void fill_ids(int32_t *ids, size_t n, size_t vocab, uint32_t seed)
{
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)((seed = seed * 1664525 + 1013904223) >> 8) % (int32_t)vocab;
}

/* Rows [from[s], to[s]) of every sequence in one batch; logits of all rows by sequence and position. */
static void run_together(nb_exec *x, const char *name, int32_t ids[N_SEQ][LEN], const size_t *from, const size_t *to, size_t V, float *out)
{
    static const uint32_t pages[N_SEQ][2] = { { 5, 1 }, { 0, 9 }, { 3, 7 } };
    const nb_seq_view views[N_SEQ] = { { .pages = pages[0], .n_pages = 2, .state = 2 },
                                       { .pages = pages[1], .n_pages = 2, .state = 0 },
                                       { .pages = pages[2], .n_pages = 2, .state = 3 } };
    int32_t token[N_SEQ * LEN];
    uint32_t pos[N_SEQ * LEN], seq[N_SEQ * LEN];
    uint8_t want[N_SEQ * LEN];
    float *logits = nb_alloc_array(N_SEQ * LEN * V, sizeof *logits);
    nb_batch b = { .token = token, .pos = pos, .seq = seq, .want = want, .seqs = views, .n_seqs = N_SEQ };
    nb_err err = { 0 };
    size_t row = 0;

    for (uint32_t s = 0; s < N_SEQ; s++)
        for (size_t i = from[s]; i < to[s]; i++, b.m++) {
            token[b.m] = ids[s][i];
            pos[b.m] = (uint32_t)i;
            seq[b.m] = s;
            want[b.m] = 1;
        }
    if (nb_exec_run(x, &b, logits, &err) != NB_OK)
        fix_fail(name, &err);
    for (size_t s = 0; s < N_SEQ; s++)
        for (size_t i = from[s]; i < to[s]; i++, row++)
            memcpy(out + (s * LEN + i) * V, logits + row * V, V * sizeof *out);
    nb_free(logits);
}

/* All sequences alone in one pass; then together, in pieces, some with one token a step, cut, with threads. */
static void together(void **state)
{
    (void)state;
    for (size_t m = 0; m < NB_LEN(models); m++) {
        static const size_t cuts[][N_SEQ] = { { 0, 0, 0 }, { 20, 5, 1 }, { 21, 15, 2 }, { 22, 33, 3 }, { LEN, LEN, LEN } };
        int32_t ids[N_SEQ][LEN];
        float *want, *got;
        fixture f;
        nb_exec *x;
        size_t V;

        open_slots(&f, models[m], 0, 128, &x);
        V = fix_vocab(&f);
        want = nb_calloc(N_SEQ * LEN * V, sizeof *want);
        got = nb_calloc(N_SEQ * LEN * V, sizeof *got);
        for (size_t s = 0; s < N_SEQ; s++) {
            fill_ids(ids[s], LEN, V, (uint32_t)(7 + s));
            fix_run(&f, ids[s], 0, LEN, want + s * LEN * V);
        }
        nb_exec_close(x);
        fix_close(&f);
        for (int threads = 0; threads < 3; threads += 2) {
            open_slots(&f, models[m], threads, threads ? 128 : 7, &x);
            memset(got, 0, N_SEQ * LEN * V * sizeof *got);
            for (size_t i = 0; i + 1 < NB_LEN(cuts); i++)
                run_together(x, models[m], ids, cuts[i], cuts[i + 1], V, got);
            if (memcmp(want, got, N_SEQ * LEN * V * sizeof *got) != 0)
                fail_msg("%s: other bits beside others, %d threads", models[m], threads);
            nb_exec_close(x);
            fix_close(&f);
        }
        nb_free(want);
        nb_free(got);
    }
}

static nb_status step(nb_exec *x, const int32_t *ids, size_t pos, size_t n, uint32_t slot, const uint32_t *pages, float *logits,
                      nb_err *err)
{
    uint32_t where[LEN], seq[LEN] = { 0 };
    uint8_t want[LEN] = { 0 };
    const nb_seq_view view = { .pages = pages, .n_pages = 2, .state = slot };
    const nb_batch b = { .m = n, .token = ids, .pos = where, .seq = seq, .want = want, .seqs = &view, .n_seqs = 1 };

    for (size_t i = 0; i < n; i++)
        where[i] = (uint32_t)(pos + i);
    want[n - 1] = 1;
    return nb_exec_run(x, &b, logits, err);
}

/* A fork goes on where it was copied; a copy in memory resumes; both as if nothing had happened between. */
static void forks(void **state)
{
    static const uint32_t pages[2] = { 4, 11 }, other[2] = { 2, 3 };

    (void)state;
    for (size_t m = 0; m < NB_LEN(models); m++) {
        int32_t ids[LEN];
        fixture f;
        nb_exec *x;
        nb_err err = { 0 };

        open_slots(&f, models[m], 0, 64, &x);
        const size_t V = fix_vocab(&f), bytes = nb_exec_state_bytes(x);
        float *logits = nb_alloc_array(3 * V, sizeof *logits);
        unsigned char *saved = nb_calloc(1, bytes + 1);
        fill_ids(ids, LEN, V, 3);
        assert_true(bytes > 0 || strncmp(models[m], "gemma", 5) == 0);
        assert_int_equal(step(x, ids, 0, 20, 1, pages, logits, &err), NB_OK);
        assert_true(nb_exec_state_tokens(x, 1) == (bytes ? 20 : 0));
        nb_exec_state_save(x, 1, saved);
        nb_exec_state_copy(x, 1, 3);
        nb_exec_copy_page(x, other[0], pages[0]);
        assert_int_equal(step(x, ids + 20, 20, 4, 1, pages, logits, &err), NB_OK);
        assert_int_equal(step(x, ids + 20, 20, 4, 3, other, logits + V, &err), NB_OK);
        assert_int_equal(step(x, ids, 0, 9, 1, pages, logits + 2 * V, &err), NB_OK); /* another one in the slot */
        nb_exec_copy_page(x, pages[0], other[0]);
        nb_exec_state_load(x, 1, saved);
        assert_int_equal(step(x, ids + 20, 20, 4, 1, pages, logits + 2 * V, &err), NB_OK);
        assert_memory_equal(logits, logits + V, V * sizeof *logits);
        assert_memory_equal(logits, logits + 2 * V, V * sizeof *logits);
        nb_exec_state_claim(x, 1, 27); /* as if three more tokens had been seen */
        assert_true(nb_exec_state_tokens(x, 1) == (bytes ? 27 : 0));
        assert_int_equal(step(x, ids, 27, 1, 1, pages, logits, &err), NB_OK);
        nb_free(saved);
        nb_free(logits);
        nb_exec_close(x);
        fix_close(&f);
    }
}

/* A row that does not continue its slot, slots out of range, two sequences in one. */
static void misuse(void **state)
{
    static const uint32_t pages[2] = { 4, 11 };
    const nb_seq_view same[2] = { { .pages = pages, .n_pages = 1, .state = 1 }, { .pages = pages + 1, .n_pages = 1, .state = 1 } };
    const int32_t ids[2] = { 1, 2 };
    const uint32_t pos[2] = { 0, 0 }, seq[2] = { 0, 1 };
    const nb_batch two = { .m = 2, .token = ids, .pos = pos, .seq = seq, .seqs = same, .n_seqs = 2 };
    float *logits;
    fixture f;
    nb_exec *x;
    nb_err err = { 0 };

    (void)state;
    open_slots(&f, "lfm2", 0, 64, &x);
    logits = nb_alloc_array(fix_vocab(&f), sizeof *logits);
    assert_int_equal(step(x, ids, 3, 1, 0, pages, logits, &err), NB_EARG); /* nothing before it */
    assert_string_equal(err.cls, "exec.state");
    nb_err_clear(&err);
    assert_int_equal(step(x, ids, 0, 2, 0, pages, logits, &err), NB_OK);
    assert_int_equal(step(x, ids, 1, 1, 0, pages, logits, &err), NB_EARG); /* a state cannot go back */
    nb_err_clear(&err);
    assert_int_equal(step(x, ids, 2, 1, 0, pages, logits, &err), NB_OK);
    assert_int_equal(step(x, ids, 0, 1, N_SEQ + 1, pages, logits, &err), NB_EARG);
    nb_err_clear(&err);
    assert_int_equal(nb_exec_run(x, &two, NULL, &err), NB_EARG);
    assert_string_equal(err.cls, "exec.state");
    nb_free(logits);
    nb_exec_close(x);
    fix_close(&f);
}

/* Layer by layer over one layer's pages and state equals the whole step. */
static void by_layer(void **state)
{
    static const char *const names[] = { "qwen3_next", "lfm2", "granitemoehybrid", "jamba", "gemma4", "kimi_linear", "zamba2" };

    (void)state;
    for (size_t m = 0; m < NB_LEN(names); m++) {
        nb_exec_opts o = { .max_m = 10, .n_pages = FIX_PAGES, .kv_layers = 1, .kv_dtype = NB_DT_F32 };
        uint32_t pos[LEN], seq[LEN] = { 0 };
        int32_t ids[LEN];
        fixture f;
        nb_exec *all, *one;
        nb_err err = { 0 };

        open_slots(&f, names[m], 0, 64, &all);
        const nb_seq_view view = { .pages = f.pages, .n_pages = 2 };
        const nb_batch b = { .m = LEN, .token = ids, .pos = pos, .seq = seq, .seqs = &view, .n_seqs = 1 };
        const size_t V = fix_vocab(&f), d = nb_model_config(f.model)->d_model;
        float *want = nb_alloc_array(LEN * V, sizeof *want), *got = nb_alloc_array(LEN * V, sizeof *got),
              *h = nb_calloc(LEN * d, sizeof *h);
        fill_ids(ids, LEN, V, 5);
        for (size_t i = 0; i < LEN; i++)
            pos[i] = (uint32_t)i;
        fix_run(&f, ids, 0, LEN, want);
        if (nb_exec_cpu_open(f.model, &o, &one, &err) != NB_OK || nb_exec_embed(one, &b, h, &err) != NB_OK)
            fix_fail(names[m], &err);
        for (size_t l = 0; l < nb_model_config(f.model)->n_layers; l++)
            if (nb_exec_layers(one, &b, h, l, l + 1, &err) != NB_OK)
                fix_fail(names[m], &err);
        assert_int_equal(nb_exec_head(one, h, LEN, got, &err), NB_OK);
        if (memcmp(want, got, LEN * V * sizeof *got) != 0)
            fail_msg("%s: other bits layer by layer", names[m]);
        nb_exec_close(one);
        nb_exec_close(all);
        nb_free(want);
        nb_free(got);
        nb_free(h);
        fix_close(&f);
    }
}

/* Floats that one sequence keeps in one layer, at the sizes of released models: spec models-2026 S6. */
static void sizes(void **state)
{
    static const struct {
        const char *model, *config; /* more keys */
        size_t layer, floats;
    } rows[] = {
        { "qwen3_5_text", "", 0, 24576 + 524288 },
        { "qwen3_5_text", "", 3, 0 },
        { "qwen3_next", ",\"num_experts\":16,\"moe_intermediate_size\":64", 0, 24576 + 524288 },
        { "kimi_linear", ",\"num_experts\":16,\"moe_intermediate_size\":64", 0, 3 * 3 * 32 * 128 + 32 * 128 * 128 },
        { "granitemoehybrid", ",\"num_local_experts\":0", 0, 3 * (8192 + 2 * 256) + 8192 * 256 },
        { "zamba2", ",\"hybrid_layer_ids\":[1],\"n_mamba_heads\":128", 1, 3 * (8192 + 2 * 64) + 8192 * 64 },
        { "jamba", "", 0, 3 * 8192 + 8192 * 16 },
        { "lfm2", ",\"full_attn_idxs\":[3]", 0, 2 * 4096 },
        { "minimax", ",\"num_local_experts\":8", 1, 32 * 128 * 128 },
        { "minimax", ",\"num_local_experts\":8", 0, 0 },
        /* windows that are not complete: HCA keeps all of one, CSA one and half of the one before, each also for its keys */
        { "deepseek_v4", ",\"n_routed_experts\":8,\"moe_intermediate_size\":64,\"num_key_value_heads\":1", 0, 128 * 2 * 512 },
        { "deepseek_v4", ",\"n_routed_experts\":8,\"moe_intermediate_size\":64,\"num_key_value_heads\":1", 3, 4 * 6 * (512 + 128) },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        char text[512];
        nb_json *j = NULL;
        nb_config c;
        nb_plan p;
        nb_fit fit;
        nb_err err = { 0 };
        size_t all = 0;

        snprintf(text, sizeof text,
                 "{\"model_type\":\"%s\",\"hidden_size\":4096,\"num_hidden_layers\":4,\"num_attention_heads\":32,\"vocab_size\":100,"
                 "\"intermediate_size\":64%s}",
                 rows[i].model, rows[i].config);
        assert_int_equal(nb_json_parse(text, strlen(text), "cfg", 0, &j, NULL), NB_OK);
        if (nb_config_parse(j, &c, &err) != NB_OK)
            fail_msg("%s: %s", rows[i].model, err.what);
        assert_int_equal(nb_plan_build(&c, NULL, &p, NULL), NB_OK);
        if (nb_plan_state(&p, rows[i].layer) != rows[i].floats)
            fail_msg("%s: layer %zu keeps %zu floats, expected %zu", rows[i].model, rows[i].layer, nb_plan_state(&p, rows[i].layer),
                     rows[i].floats);
        for (size_t l = 0; l < 4; l++)
            all += nb_plan_state(&p, l);
        assert_int_equal(nb_model_fit(&c, &p, NULL, NULL, 32, 1, NB_DT_F16, &fit, &err), NB_OK);
        assert_true(fit.state == all * sizeof(float));
        nb_plan_clear(&p);
        nb_config_clear(&c);
        nb_json_free(j);
    }
}

/* Residuals behind every layer of a whole step. */
typedef struct residuals {
    float *rows; /* [layers][LEN][d] */
    size_t d;
} residuals;

static void keep_residual(void *user, const nb_tap *t)
{
    const residuals *k = user;

    for (size_t r = 0; t->kind == NB_TAP_LAYER && r < t->m; r++)
        memcpy(k->rows + (t->layer * LEN + t->row0 + r) * k->d, t->x + r * t->ld, k->d * sizeof *k->rows);
}

/* Layer by layer, two prompts in turn over the same pages and slots: all that a layer needs of earlier ones comes with the rows. And
 * spans of a layer, after the other prompt has run. */
static void carried(void **state)
{
    static const char *const names[] = { "gemma3n",     "gemma4", "glm_moe_dsa",  "longcat_flash",
                                         "deepseek_v4", "zamba2", "deepseek_v32", "lfm2" };

    (void)state;
    for (size_t m = 0; m < NB_LEN(names); m++) {
        nb_exec_opts o = { .max_m = 10, .n_pages = FIX_PAGES, .kv_layers = 1, .kv_dtype = NB_DT_F32, .carry = true };
        uint32_t pos[LEN], seq[LEN] = { 0 };
        int32_t ids[2][LEN];
        fixture f;
        residuals want[2];
        nb_exec *all, *one;
        nb_err err = { 0 };
        float *h[2], *out, *again;

        open_slots(&f, names[m], 0, 64, &all);
        const nb_seq_view view = { .pages = f.pages, .n_pages = 3 };
        const nb_config *c = nb_model_config(f.model);
        const nb_plan *p = nb_model_plan(f.model);
        const size_t d = c->d_model, width = d + nb_plan_carry(p), L = c->n_layers;
        nb_batch b[2];
        assert_int_equal(width > d, m < 5);
        if (nb_exec_cpu_open(f.model, &o, &one, &err) != NB_OK)
            fix_fail(names[m], &err);
        for (size_t i = 0; i < LEN; i++)
            pos[i] = (uint32_t)i;
        for (uint32_t s = 0; s < 2; s++) {
            fill_ids(ids[s], LEN, c->vocab, 5 + s);
            b[s] = (nb_batch){ .m = LEN, .token = ids[s], .pos = pos, .seq = seq, .seqs = &view, .n_seqs = 1 };
            want[s] = (residuals){ nb_calloc(L * LEN * d, sizeof(float)), d };
            nb_exec_set_tap(all, keep_residual, &want[s]);
            if (nb_exec_run(all, &b[s], NULL, &err) != NB_OK)
                fix_fail(names[m], &err);
            h[s] = nb_calloc(LEN * width, sizeof *h[s]);
            assert_int_equal(nb_exec_embed(one, &b[s], h[s], &err), NB_OK);
        }
        out = nb_calloc(LEN * p->slot_len[p->ops[p->n_ops - 1].out], sizeof *out);
        again = nb_calloc(LEN * width, sizeof *again);
        for (size_t l = 0; l < L; l++) {
            memcpy(again, h[0], LEN * width * sizeof *again);
            for (int s = 0; s < 2; s++)
                if (nb_exec_layers(one, &b[s], h[s], l, l + 1, &err) != NB_OK)
                    fix_fail(names[m], &err);
            for (size_t r = 0; r < 2 * LEN; r++)
                if (memcmp(h[r / LEN] + r % LEN * width, want[r / LEN].rows + (l * LEN + r % LEN) * d, d * sizeof *out) != 0)
                    fail_msg("%s: other bits behind layer %zu, row %zu", names[m], l, r);
            if (p->ops[0].in != NB_SLOT_X)
                continue;
            for (size_t r = 0; r < LEN; r++) /* the residual, close together */
                memmove(out + r * d, again + r * width, d * sizeof *out);
            nb_exec_beside(one, again);
            if (nb_exec_span(one, &b[0], l, 0, p->n_ops, out, out, &err) != NB_OK)
                fix_fail(names[m], &err);
            nb_exec_beside(one, NULL);
            if (p->ops[p->n_ops - 1].out == NB_SLOT_X && memcmp(out, want[0].rows + l * LEN * d, LEN * d * sizeof *out) != 0)
                fail_msg("%s: other bits from all ops of layer %zu", names[m], l);
        }
        for (int s = 0; s < 2; s++) {
            nb_free(want[s].rows);
            nb_free(h[s]);
        }
        nb_free(out);
        nb_free(again);
        nb_exec_close(one);
        nb_exec_close(all);
        fix_close(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(together), cmocka_unit_test(forks), cmocka_unit_test(misuse),
        cmocka_unit_test(by_layer), cmocka_unit_test(sizes), cmocka_unit_test(carried),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Logits, hidden states and greedy ids against recorded reference passes: pemberley-4m, every tiny model of
 * tests/data/models and models-2026, the larger ones of NB_GOLDEN/models-small, and the rest of NB_GOLDEN/models-2026. Tolerance
 * 2e-4 + 2e-4 |x|; greedy exact. Origins: the README beside each golden.
 *
 * test_golden NAME ... runs those directories only; --table and --table-2026 print docs/models.md's rows, with the largest
 * difference of a logit. */
#include "unit/model/fixture.h"

#include "base/cpu.h"
#include "unit/kern/thin.h"

#include <math.h>
#include <unistd.h>

static nb_store *golden;
static const char *label;
static float worst; /* of the logits of the current model */

static const nb_tensor *find(const char *name)
{
    return nb_store_find(golden, name);
}

/* Compare rows [T - rows, T) with the recorded last rows; got row t at got + t * ld. */
static void check(const char *name, const float *got, size_t T, size_t ld)
{
    const nb_tensor *t = find(name);
    const size_t streams = t->rank == 3 ? (size_t)t->shape[1] : 1; /* the first of several residuals is compared */
    const size_t rows = (size_t)t->shape[0], w = (size_t)t->shape[t->rank - 1];
    float *want = nb_alloc_array(rows * w, sizeof *want);

    assert_true(t->rank == 2 || t->rank == 3);
    for (size_t r = 0; r < rows; r++)
        assert_int_equal(nb_store_read_f32(golden, t, r * streams * w, w, want + r * w, NULL), NB_OK);
    for (size_t i = 0; i < rows * w; i++) {
        const float g = got[(T - rows + i / w) * ld + i % w], x = want[i];
        if (strncmp(name, "logits", 6) == 0)
            worst = fmaxf(worst, fabsf(g - x));
        if (!(fabsf(g - x) <= 2e-4f + 2e-4f * fabsf(x)))
            fail_msg("%s %s: row %zu column %zu is %g, expected %g", label, name, i / w, i % w, (double)g, (double)x);
    }
    nb_free(want);
}

static int32_t *ids_of(const char *name, size_t extra, size_t *n)
{
    const nb_tensor *t = find(name);
    int32_t *ids = nb_calloc((size_t)t->shape[0] + extra, sizeof *ids);

    *n = (size_t)t->shape[0];
    for (size_t i = 0; i < *n; i++) {
        int64_t v;
        memcpy(&v, t->data + 8 * i, 8);
        ids[i] = (int32_t)v;
    }
    return ids;
}

/* What the tap saw, copied. */
typedef struct seen {
    size_t d, n_layers, T;
    float *embed, *layer, *final; /* [T][d], [n_layers][T][d], [T][d] */
    size_t op_in;
} seen;

static void tap(void *user, const nb_tap *t)
{
    seen *s = user;
    float *to = t->kind == NB_TAP_EMBED ? s->embed : t->kind == NB_TAP_FINAL ? s->final : s->layer + t->layer * s->T * s->d;

    s->op_in += t->kind == NB_TAP_OP_IN;
    for (size_t i = 0; i < t->m && t->kind != NB_TAP_OP_IN; i++)
        memcpy(to + (t->row0 + i) * t->width, t->x + i * t->ld, t->width * sizeof *to);
}

static void check_prompt(fixture *f, const char *ids_name, const char *logits_name, bool hidden)
{
    const size_t V = fix_vocab(f), d = nb_model_config(f->model)->d_model, L = nb_model_config(f->model)->n_layers;
    char name[64];
    const nb_plan *p = nb_model_plan(f->model);
    size_t T, n_linear = 0;
    int32_t *ids = ids_of(ids_name, 0, &T);
    float *logits = nb_alloc_array(T * V, sizeof *logits), *mem = nb_calloc((L + 2) * T * d, sizeof *mem);
    seen s = { .d = d, .n_layers = L, .T = T, .embed = mem, .layer = mem + T * d, .final = mem + (L + 1) * T * d };

    nb_exec_set_tap(f->exec, tap, &s);
    fix_run(f, ids, 0, T, logits);
    nb_exec_set_tap(f->exec, NULL, NULL);
    const size_t halves = nb_model_config(f->model)->halves ? nb_model_config(f->model)->halves : 1;

    for (size_t l = halves - 1; l < L && hidden; l += halves) {
        snprintf(name, sizeof name, "hidden.layer%zu", l / halves);
        if (find(name))
            check(name, s.layer + l * T * d, T, d);
    }
    if (hidden && find("hidden.embed"))
        check("hidden.embed", s.embed, T, d);
    if (hidden && find("hidden.final"))
        check("hidden.final", s.final, T, nb_model_config(f->model)->embed_dim);
    for (size_t l = 0; l < L; l++)
        for (size_t i = 0; i < p->n_ops; i++)
            n_linear += (p->ops[i].kind == NB_OP_LINEAR || p->ops[i].kind == NB_OP_MOE || p->ops[i].kind == NB_OP_ABSORB) &&
                        nb_plan_runs(p, &p->ops[i], l);
    assert_true(s.op_in == n_linear * ((T + 63) / 64));
    check(logits_name, logits, T, V);
    nb_free(ids);
    nb_free(logits);
    nb_free(mem);
}

/* whole: every id from a pass over all ids so far, as the reference did where rope depends on the length. */
static void check_greedy(fixture *f, const char *ids_name, const char *greedy_name, bool whole)
{
    const size_t V = fix_vocab(f);
    size_t T, n;
    int32_t *want = ids_of(greedy_name, 0, &n), *ids = ids_of(ids_name, n, &T);
    float *logits = nb_alloc_array((T + n) * V, sizeof *logits);

    fix_run(f, ids, 0, T, logits);
    memmove(logits, logits + (T - 1) * V, V * sizeof *logits);
    for (size_t i = 0; i < n; i++) {
        const int32_t id = fix_argmax(logits, V);
        if (id != want[i])
            fail_msg("%s %s: id %zu is %d, expected %d", label, greedy_name, i, (int)id, (int)want[i]);
        ids[T + i] = id;
        if (whole) {
            fix_run(f, ids, 0, T + i + 1, logits);
            memmove(logits, logits + (T + i) * V, V * sizeof *logits);
        } else {
            fix_run(f, ids + T + i, T + i, 1, logits);
        }
    }
    nb_free(want);
    nb_free(ids);
    nb_free(logits);
}

/* What four more pages cost is what the estimate says: keys and values of the kv heads, or one latent and the rotated part
 * of a key. */
static void check_cache(fixture *f)
{
    const nb_config *c = nb_model_config(f->model);
    const size_t tokens = 4 * NB_PAGE;
    uint64_t bytes[2], cached = 0, quarters = 0;
    nb_fit fit;
    nb_err err = { 0 };

    for (size_t i = 0; i < 2; i++) {
        const nb_exec_opts o = { .max_m = 1, .n_pages = 1 + 4 * i, .kv_dtype = NB_DT_F16 };
        nb_exec *x = NULL;
        assert_int_equal(nb_exec_cpu_open(f->model, &o, &x, &err), NB_OK);
        bytes[i] = nb_exec_bytes(x);
        nb_exec_close(x);
    }
    assert_int_equal(nb_model_fit(c, nb_model_plan(f->model), &f->scan, f->store, tokens, 1, NB_DT_F16, &fit, &err), NB_OK);
    for (size_t l = 0; l < c->n_layers; l++) {
        const nb_dims d = nb_config_dims(c, l);
        const nb_mixer kind = nb_plan_mixer(nb_model_plan(f->model), l);
        if (kind == NB_MIX_CSA || kind == NB_MIX_HCA) /* entries of several tokens */
            quarters += 4 * (c->head_dim + (kind == NB_MIX_CSA ? c->index_dim : 0)) / c->v4.rate[kind == NB_MIX_HCA];
        if (nb_plan_has_kv(nb_model_plan(f->model), l) && d.kv_from == l)
            cached += c->v4.on ? c->head_dim : c->mla.on ? c->mla.kv_rank + c->mla.rope : 2 * d.kv_heads * d.kv_dim;
        cached += nb_plan_has_op(nb_model_plan(f->model), l, NB_OP_INDEX) ? c->index_dim : 0;
    }
    cached = 4 * cached + quarters; /* in quarters of a value */
    if (fit.kv != cached * tokens / 2 || bytes[1] - bytes[0] != fit.kv)
        fail_msg("%s: %zu tokens take %llu bytes, the estimate is %llu, expected %zu / 4 values a token", label, tokens,
                 (unsigned long long)(bytes[1] - bytes[0]), (unsigned long long)fit.kv, (size_t)cached);
}

/* Under a name that nobody knows the model is refused, and the sentence names a row that it is like. */
static void check_renamed(fixture *f, const char *dir)
{
    const char *const keys[] = { "model_type", "architectures" };
    nb_hfdir *d = NULL;
    const nb_json *cfg;
    nb_config c;
    nb_err err = { 0 };

    assert_int_equal(nb_hfdir_open(dir, &d, &err), NB_OK);
    assert_int_equal(nb_hfdir_config(d, &cfg, &err), NB_OK);
    nb_json *j = nb_json_copy(nb_json_get(cfg, "text_config") ? nb_json_get(cfg, "text_config") : cfg);
    for (size_t i = 0; i < NB_LEN(keys); i++)
        nb_json_remove(j, keys[i]);
    assert_true(nb_json_set(j, "model_type", nb_json_new_str("foo")));
    assert_int_equal(nb_config_parse(j, &c, &err), NB_EUNSUPPORTED);
    nb_config_nearest(j, f->store, &err);
    if (!strstr(err.what, "its tensors are nearest to ") || strstr(err.what, "but it"))
        fail_msg("%s as foo: %s", label, err.what);
    nb_json_free(j);
    nb_hfdir_close(d);
}

/* The same bits of a row whichever others are wanted beside it: want[T * V] are those of all. */
static void check_wanted(const char *dir, const int32_t *ids, size_t T, const float *want)
{
    static const struct {
        size_t piece, max_m, every; /* rows T-1, T-1-every ... are wanted */
        int threads;
    } rows[] = { { 1000, 64, 1000, 0 }, { 1000, 64, 3, 2 }, { 5, 64, 7, 0 }, { 1000, 7, 10, 0 } };
    uint8_t *mask = nb_calloc(T, 1);

    for (size_t i = 0; i < NB_LEN(rows); i++) {
        fixture f;
        fix_open(&f, dir, (fix_opts){ .threads = rows[i].threads, .max_m = rows[i].max_m });
        const size_t V = fix_vocab(&f);
        float *got = nb_alloc_array(T * V, sizeof *got), *to = got, *at = got;
        for (size_t t = 0; t < T; t++)
            mask[t] = (T - 1 - t) % rows[i].every == 0;
        for (size_t t = 0, n; t < T; t += n) {
            n = T - t < rows[i].piece ? T - t : rows[i].piece;
            fix_run_some(&f, ids + t, t, n, mask + t, to);
            for (size_t r = t; r < t + n; r++)
                to += mask[r] * V;
        }
        for (size_t t = 0; t < T; t++)
            if (mask[t]) {
                if (memcmp(at, want + t * V, V * sizeof *at) != 0)
                    fail_msg("%s: row %zu of %zu has other bits in pieces of %zu with one of %zu rows wanted", label, t, T, rows[i].piece,
                             rows[i].every);
                at += V;
            }
        nb_free(got);
        fix_close(&f);
    }
    nb_free(mask);
}

/* The same bits from every kernel table, from cuts of 7 rows, from pieces of 5 and token by token. */
static void check_bits(const char *dir)
{
    static const size_t pieces[] = { 1000, 5, 1 };
    size_t T;
    int32_t *ids = ids_of("input_ids", 0, &T);
    float *want = NULL, *got = NULL;

    for (size_t k = 0; k < nb_kern_count(); k++)
        for (size_t p = 0; p < NB_LEN(pieces) && !(nb_kern_at(k)->need & ~nb_cpu_features()); p++) {
            fixture f;
            size_t V;

            if (left_out())
                continue;
            fix_open(&f, dir, (fix_opts){ .kern = nb_kern_at(k), .max_m = p ? 7 : 64 });
            V = fix_vocab(&f);
            if (nb_rope_key(nb_model_config(f.model), 1000)) { /* tables follow the length of the sequence */
                fix_close(&f);
                break;
            }
            got = nb_alloc_array(T * V, sizeof *got);
            for (size_t i = 0; i < T; i += pieces[p])
                fix_run(&f, ids + i, i, T - i < pieces[p] ? T - i : pieces[p], got + i * V);
            if (want && memcmp(want, got, T * V * sizeof *got) != 0)
                fail_msg("%s: other bits from table %s in pieces of %zu", label, nb_kern_at(k)->name, pieces[p]);
            if (want)
                nb_free(got);
            else
                want = got;
            fix_close(&f);
        }
    if (want)
        check_wanted(dir, ids, T, want);
    nb_free(want);
    nb_free(ids);
}

/* Floats of a state as recorded: conv_state [C][taps], newest last; recurrent_state [heads][keys][values], of Mamba-2
 * [heads][values][keys], of Mamba-1 [values][keys]. */
static void check_state(const fixture *f, const nb_store *want, size_t layer, const float *got)
{
    const nb_plan *p = nb_model_plan(f->model);
    const nb_mix_cfg *m = &p->cfg->mix;
    const bool turned = p->cfg->mixer[layer] == NB_MIX_SSM || p->cfg->mixer[layer] == NB_MIX_SSM1;
    const size_t past = m->taps - 1, C = nb_plan_conv_state(p, layer) / past, n = m->key_dim * m->value_dim;
    char name[64];
    const nb_tensor *t;

    snprintf(name, sizeof name, "layer%zu.conv_state", layer);
    t = nb_store_find(want, name);
    assert_non_null(t);
    assert_true(t->shape[0] == C && t->shape[1] == m->taps);
    for (size_t i = 0; i < C * past; i++) {
        float x;
        memcpy(&x, t->data + 4 * (i / past * m->taps + 1 + i % past), 4);
        if (!(fabsf(got[i % past * C + i / past] - x) <= 1e-4f))
            fail_msg("%s %s: channel %zu is %g, expected %g", label, name, i / past, (double)got[i % past * C + i / past], (double)x);
    }
    snprintf(name, sizeof name, "layer%zu.recurrent_state", layer);
    t = nb_store_find(want, name);
    if (!t)
        return;
    got += (C * past + 63) / 64 * 64;
    for (size_t i = 0; i < m->heads * n; i++) {
        const size_t r = i % n, at = i / n * n + (turned ? r % m->key_dim * m->value_dim + r / m->key_dim : r);
        float x;
        memcpy(&x, t->data + 4 * i, 4);
        if (!(fabsf(got[at] - x) <= 1e-4f))
            fail_msg("%s %s: value %zu is %g, expected %g", label, name, i, (double)got[at], (double)x);
    }
}

/* What recurrent layers keep after the first prompt, in one pass and in pieces that are saved and loaded between. */
static void check_states(fixture *f, const char *path)
{
    const nb_plan *p = nb_model_plan(f->model);
    const size_t bytes = nb_exec_state_bytes(f->exec);
    nb_store *want = NULL;
    size_t T;
    int32_t *ids = ids_of("input_ids", 0, &T);
    unsigned char *saved = nb_calloc(2, bytes + 1);
    const float *at = (const float *)(void *)(saved + bytes - nb_plan_states(p) * sizeof(float));

    fix_run(f, ids, 0, T, NULL);
    assert_true(nb_exec_state_tokens(f->exec, 0) == T || bytes == 0);
    nb_exec_state_save(f->exec, 0, saved);
    fix_run(f, ids, 0, 17, NULL);
    nb_exec_state_save(f->exec, 0, saved + bytes);
    fix_run(f, ids, 0, 3, NULL);
    nb_exec_state_load(f->exec, 0, saved + bytes);
    fix_run(f, ids + 17, 17, T - 17, NULL);
    nb_exec_state_save(f->exec, 0, saved + bytes);
    assert_memory_equal(saved, saved + bytes, bytes);
    if (access(path, R_OK) == 0) {
        assert_int_equal(nb_st_open(path, &want, NULL), NB_OK);
        for (size_t l = 0; l < p->cfg->n_layers; at += nb_plan_state(p, l++))
            if (nb_plan_state(p, l) > 0)
                check_state(f, want, l, at);
        nb_store_close(want);
    }
    nb_free(saved);
    nb_free(ids);
}

static void check_model(const char *dir, const char *golden_path, fix_opts o)
{
    char state[1100];
    fixture f;
    nb_err err = { 0 };

    worst = 0;
    if (nb_st_open(golden_path, &golden, &err) != NB_OK)
        fix_fail(golden_path, &err);
    fix_open(&f, dir, o);
    check_prompt(&f, "input_ids", "logits", true);
    check_prompt(&f, "input_ids_2", "logits_2", false);
    check_greedy(&f, "input_ids", "greedy", nb_model_config(f.model)->rope.kind == NB_ROPE_DYNAMIC);
    if (find("greedy_2"))
        check_greedy(&f, "input_ids_2", "greedy_2", false);
    check_cache(&f);
    snprintf(state, sizeof state, "%s/golden.state.safetensors", dir);
    if (nb_exec_state_bytes(f.exec) > 0)
        check_states(&f, state);
    check_renamed(&f, dir);
    fix_close(&f);
    nb_store_close(golden);
}

static void pemberley(void **state)
{
    const char *root = getenv("NB_GOLDEN");
    char path[1024];

    (void)state;
    snprintf(path, sizeof path, "%s/pemberley/golden.safetensors", root ? root : "../shared/golden");
    label = "pemberley-4m";
    if (access(path, R_OK) != 0) {
        fprintf(stderr, "skipped: no reference data at %s (NB_GOLDEN)\n", path);
        skip();
    }
    check_model("models/pemberley-4m", path, (fix_opts){ .threads = 2 });
}

static void small(void **state)
{
    const char *root = getenv("NB_GOLDEN");
    char dir[1024], path[1100];

    label = *state;
    snprintf(dir, sizeof dir, "%s/models-small/%s", root ? root : "../shared/golden", label);
    snprintf(path, sizeof path, "%s/golden.safetensors", dir);
    check_model(dir, path, (fix_opts){ .threads = 2 });
}

static void tiny_in(const char *root, void **state)
{
    char dir[1024], path[1100];

    label = *state;
    snprintf(dir, sizeof dir, "%s/%s", root, label);
    snprintf(path, sizeof path, "%s/golden.safetensors", dir);
    check_model(dir, path, (fix_opts){ 0 });
    assert_int_equal(nb_st_open(path, &golden, NULL), NB_OK);
    check_bits(dir);
    nb_store_close(golden);
}

static void tiny(void **state)
{
    tiny_in("tests/data/models", state);
}

static void tiny_2026(void **state)
{
    tiny_in("tests/data/models-2026", state);
}

/* All of them, variants included; those of the tree are not run twice. */
static void recent(void **state)
{
    const char *root = getenv("NB_GOLDEN");
    char dir[900];

    snprintf(dir, sizeof dir, "%s/models-2026", root ? root : "../shared/golden");
    tiny_in(dir, state);
}

/* ---- the list of directories ---------------------------------------------------------------------------------- */

enum { MAX_CASES = 240 };
static struct CMUnitTest cases[MAX_CASES + 1];
static char names[MAX_CASES][64], types[MAX_CASES][64], traits[MAX_CASES][256];
static size_t n_cases;

/* The type that config.json dispatches on, if the table has it. */
static const nb_arch *arch_of(const char *dir)
{
    nb_hfdir *d = NULL;
    const nb_json *cfg, *text;
    const nb_arch *a = NULL;

    if (nb_hfdir_open(dir, &d, NULL) == NB_OK && nb_hfdir_config(d, &cfg, NULL) == NB_OK) {
        text = nb_json_get(cfg, "text_config");
        a = nb_arch_find(nb_json_str(nb_json_get(text ? text : cfg, "model_type"), ""), NULL);
    }
    nb_hfdir_close(d);
    return a;
}

/* Tested already, from the tree. */
static bool in_tree(const char *name)
{
    for (size_t i = 0; i < n_cases; i++)
        if (cases[i].test_func == tiny_2026 && strcmp(cases[i].initial_state, name) == 0)
            return true;
    return false;
}

/* Rows of ROOT/MODELS.tsv become tests named PREFIX + directory. */
static void add_cases(const char *root, const char *prefix, CMUnitTestFunction fn, bool all)
{
    char line[1024], dir[1100];
    FILE *f;

    snprintf(dir, sizeof dir, "%s/MODELS.tsv", root);
    f = fopen(dir, "r");
    if (!f) {
        fprintf(stderr, "skipped: no reference models at %s (NB_GOLDEN)\n", root);
        return;
    }
    for (bool head = true; fgets(line, sizeof line, f) && n_cases < MAX_CASES; head = false) {
        char *name = strtok(line, "\t"), *cls = strtok(NULL, "\t"), *what = strtok(NULL, "\t");
        if (head || !name || !cls || !what)
            continue;
        snprintf(dir, sizeof dir, "%s/%s", root, name);
        if (!arch_of(dir) || (strcmp(prefix, "2026/") == 0 && !all && in_tree(name)))
            continue;
        snprintf(types[n_cases], sizeof types[0], "%s", arch_of(dir)->type);
        snprintf(names[n_cases], sizeof names[0], "%s%s", prefix, name);
        snprintf(traits[n_cases], sizeof traits[0], "%s", what);
        cases[n_cases] = (struct CMUnitTest){ names[n_cases], fn, NULL, NULL, names[n_cases] + strlen(prefix) };
        n_cases++;
    }
    fclose(f);
}

static bool wanted(const char *name, int argc, char **argv)
{
    bool any = argc < 2;

    for (int i = 1; i < argc; i++)
        any = any || strcmp(argv[i], name) == 0;
    return any;
}

/* A failing model ends the program: no row for it. */
static int print_table(const char *only)
{
    printf("| model_type | directory | traits | largest difference |\n|---|---|---|---|\n");
    for (size_t i = 0; i < n_cases; i++) {
        void *state = cases[i].initial_state;
        const char *name = cases[i].initial_state;
        if ((strncmp(names[i], "2026/", 5) == 0) != (only != NULL))
            continue;
        cases[i].test_func(&state);
        printf("| `%s` | %s | %s | %.1e |\n", types[i], name, traits[i], (double)worst);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const char *root = getenv("NB_GOLDEN");
    char path[1024];
    size_t n = 0;

    const bool table = argc == 2 && strncmp(argv[1], "--table", 7) == 0;

    add_cases("tests/data/models", "", tiny, true);
    if (table && !argv[1][7])
        return print_table(NULL);
    add_cases("tests/data/models-2026", "models-2026/", tiny_2026, true);
    snprintf(path, sizeof path, "%s/models-2026", root ? root : "../shared/golden");
    add_cases(path, "2026/", recent, table);
    if (table)
        return print_table("2026/");
    snprintf(path, sizeof path, "%s/models-small", root ? root : "../shared/golden");
    add_cases(path, "small/", small, true);
    cases[n_cases++] = (struct CMUnitTest){ "pemberley-4m", pemberley, NULL, NULL, NULL };
    for (size_t i = 0; i < n_cases; i++)
        if (wanted(cases[i].name, argc, argv))
            cases[n++] = cases[i];
    return _cmocka_run_group_tests("model golden", cases, n, NULL, NULL);
}

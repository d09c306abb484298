/* Logits, hidden states and greedy ids against recorded reference passes: pemberley-4m and every tiny model whose
 * architecture is in the table. Tolerance 2e-4 + 2e-4 |x|; greedy exact. Origins: the README beside each golden. */
#include "unit/model/fixture.h"

#include <math.h>
#include <unistd.h>

static nb_store *golden;
static const char *label;

static const nb_tensor *find(const char *name)
{
    return nb_store_find(golden, name);
}

/* Compare rows [T - rows, T) with the recorded last rows; got row t at got + t * ld. */
static void check(const char *name, const float *got, size_t T, size_t ld)
{
    const nb_tensor *t = find(name);
    const size_t rows = (size_t)t->shape[0], w = (size_t)t->shape[1];
    float *want = nb_alloc_array(rows * w, sizeof *want);

    assert_int_equal(t->rank, 2);
    assert_int_equal(nb_store_read_f32(golden, t, 0, rows * w, want, NULL), NB_OK);
    for (size_t i = 0; i < rows * w; i++) {
        const float g = got[(T - rows + i / w) * ld + i % w], x = want[i];
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
        memcpy(to + (t->row0 + i) * s->d, t->x + i * t->ld, s->d * sizeof *to);
}

static void check_prompt(fixture *f, const char *ids_name, const char *logits_name, bool hidden)
{
    const size_t V = fix_vocab(f), d = nb_model_config(f->model)->d_model, L = nb_model_config(f->model)->n_layers;
    char name[64];
    size_t T;
    int32_t *ids = ids_of(ids_name, 0, &T);
    float *logits = nb_alloc_array(T * V, sizeof *logits), *mem = nb_calloc((L + 2) * T * d, sizeof *mem);
    seen s = { .d = d, .n_layers = L, .T = T, .embed = mem, .layer = mem + T * d, .final = mem + (L + 1) * T * d };

    nb_exec_set_tap(f->exec, tap, &s);
    fix_run(f, ids, 0, T, logits);
    nb_exec_set_tap(f->exec, NULL, NULL);
    for (size_t l = 0; l < L && hidden; l++) {
        snprintf(name, sizeof name, "hidden.layer%zu", l);
        if (find(name))
            check(name, s.layer + l * T * d, T, d);
    }
    if (hidden && find("hidden.embed"))
        check("hidden.embed", s.embed, T, d);
    if (hidden && find("hidden.final"))
        check("hidden.final", s.final, T, d);
    assert_true(s.op_in == 4 * L * ((T + 63) / 64));
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

static void check_model(const char *dir, const char *golden_path, fix_opts o)
{
    fixture f;
    nb_err err = { 0 };

    if (nb_st_open(golden_path, &golden, &err) != NB_OK)
        fix_fail(golden_path, &err);
    fix_open(&f, dir, o);
    check_prompt(&f, "input_ids", "logits", true);
    check_prompt(&f, "input_ids_2", "logits_2", false);
    check_greedy(&f, "input_ids", "greedy", nb_model_config(f.model)->rope.kind == NB_ROPE_DYNAMIC);
    if (find("greedy_2"))
        check_greedy(&f, "input_ids_2", "greedy_2", false);
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

static void tiny(void **state)
{
    char dir[128], path[160];

    label = *state;
    snprintf(dir, sizeof dir, "tests/data/models/%s", label);
    snprintf(path, sizeof path, "%s/golden.safetensors", dir);
    check_model(dir, path, (fix_opts){ 0 });
}

#define TINY(name)                                                                                                                         \
    {                                                                                                                                      \
        name, tiny, NULL, NULL, (char[])                                                                                                   \
        {                                                                                                                                  \
            name                                                                                                                           \
        }                                                                                                                                  \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pemberley),
        TINY("llama"),
        TINY("llama-dynamic"),
        TINY("llama-linear"),
        TINY("llama-llama3"),
        TINY("llama-yarn"),
        TINY("llama-yarn-af"),
        TINY("mistral"),
        TINY("mistral-full"),
        TINY("mistral-mixed"),
        TINY("qwen2"),
        TINY("qwen2-sliding"),
        TINY("qwen3"),
        TINY("qwen3-sliding"),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* BB-15: names are compared by whole path segments. Matrices stored as one (gate_up_proj) and apart (gate_proj, up_proj), in two files
 * and side by side in one, are the same model: equal bits. */
#include "unit/model/fixture.h"
#include "unit/model/memmodel.h"

static const nb_tensor *need(const nb_store *s, const char *name)
{
    const nb_tensor *t = nb_store_find(s, name);

    if (!t)
        fail_msg("no %s", name);
    return t;
}

static void add(nb_store *s, const char *name, nb_dtype t, unsigned rank, const uint64_t *shape, const void *data)
{
    nb_err err = { 0 };

    if (nb_memstore_add(s, name, t, rank, shape, data, &err) != NB_OK)
        fail_msg("%s: %s", name, err.what);
}

/* The next rows of a matrix that is put together. */
static void put(unsigned char **at, const nb_tensor *t)
{
    memcpy(*at, t->data, (size_t)t->n_bytes);
    *at += t->n_bytes;
}

/* Logits of 12 tokens; closes the store. */
static float *logits_of(nb_store *s, const nb_json *cfg, size_t *n)
{
    static const int32_t ids[12] = { 1, 5, 9, 2, 7, 3, 8, 30, 31, 4, 6, 11 };
    fixture f = { .store = s };
    float *out;

    fix_bind(&f, cfg, NULL, (fix_opts){ 0 });
    *n = NB_LEN(ids) * fix_vocab(&f);
    out = nb_alloc_array(*n, sizeof *out);
    fix_run(&f, ids, 0, NB_LEN(ids), out);
    fix_close(&f);
    return out;
}

static void same_logits(nb_store *a, nb_store *b, const nb_json *cfg)
{
    size_t n, m;
    float *x = logits_of(a, cfg, &n), *y = logits_of(b, cfg, &m);

    assert_int_equal(n, m);
    assert_memory_equal(x, y, n * sizeof *x);
    nb_free(x);
    nb_free(y);
}

/* Everything of s whose name does not hold `without`. */
static nb_store *copy_of(const nb_store *s, const char *without)
{
    nb_store *out = NULL;

    assert_int_equal(nb_memstore_open(&out, NULL), NB_OK);
    for (size_t i = 0; i < s->n_tensors; i++) {
        const nb_tensor *t = &s->tensors[i];
        if (!strstr(t->name, without))
            add(out, t->name, t->dtype, t->rank, t->shape, t->data);
    }
    return out;
}

/* Phi-3 writes gate_up_proj; the same weights apart load too. */
static void two_files(void **state)
{
    memmodel mem;
    nb_store *fused, *apart, *gone;

    (void)state;
    mm_open(&mem, MM_BF16);
    assert_true(nb_json_set(mem.cfg, "model_type", nb_json_new_str("phi3")));
    gone = copy_of(mem.store, ".gate_proj");
    fused = copy_of(gone, ".up_proj");
    apart = copy_of(mem.store, "none");
    for (unsigned l = 0; l < MM_LAYERS; l++) {
        const uint64_t shape[2] = { 2 * MM_FF, MM_D };
        unsigned char *data = nb_arena_calloc(&mem.mem, (size_t)2 * MM_FF * MM_D, 2), *at = data;
        char name[96];
        snprintf(name, sizeof name, "model.layers.%u.mlp.gate_proj.weight", l);
        put(&at, need(mem.store, name));
        snprintf(name, sizeof name, "model.layers.%u.mlp.up_proj.weight", l);
        put(&at, need(mem.store, name));
        snprintf(name, sizeof name, "model.layers.%u.mlp.gate_up_proj.weight", l);
        add(fused, name, NB_DT_BF16, 2, shape, data);
    }
    same_logits(fused, apart, mem.cfg);
    nb_store_close(gone);
    mm_close(&mem);
}

/* The experts of layer l as two tensors. */
static void fuse_experts(nb_store *out, const nb_store *s, nb_arena *mem, unsigned l, uint64_t n_experts)
{
    static const char *const names[] = { "gate_proj", "up_proj", "down_proj" };
    unsigned char *gu = nb_arena_calloc(mem, 1 << 20, 1), *down = nb_arena_calloc(mem, 1 << 20, 1), *at[2] = { gu, down };
    uint64_t ff = 0, d = 0;
    nb_dtype t = NB_DT_NONE;
    char name[96];

    for (unsigned e = 0; e < n_experts; e++)
        for (size_t i = 0; i < NB_LEN(names); i++) {
            const nb_tensor *w;
            snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.%s.weight", l, e, names[i]);
            w = need(s, name);
            put(&at[i == 2], w);
            t = w->dtype;
            ff = w->shape[i == 2];
            d = w->shape[i != 2];
        }
    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.gate_up_proj", l);
    add(out, name, t, 3, (const uint64_t[]){ n_experts, 2 * ff, d }, gu);
    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.down_proj", l);
    add(out, name, t, 3, (const uint64_t[]){ n_experts, d, ff }, down);
}

/* Qwen2-MoE with the experts as one tensor and the shared expert's gate_proj and up_proj apart. */
static void one_file(void **state)
{
    static const char dir[] = "tests/data/models/qwen2_moe";
    nb_hfdir *h = NULL;
    nb_store *s = NULL, *both, *apart;
    nb_arena mem = { 0 };
    const nb_json *cfg;
    nb_err err = { 0 };
    int64_t layers, experts;

    (void)state;
    if (nb_open(dir, &s, &err) != NB_OK || nb_hfdir_open(dir, &h, &err) != NB_OK || nb_hfdir_config(h, &cfg, &err) != NB_OK)
        fix_fail(dir, &err);
    layers = nb_json_int(nb_json_get(cfg, "num_hidden_layers"), 0);
    experts = nb_json_int(nb_json_get(cfg, "num_experts"), 0);
    assert_true(layers > 0 && experts > 0);
    need(s, "model.layers.0.mlp.shared_expert.up_proj.weight");
    both = copy_of(s, ".experts.");
    apart = copy_of(s, "none");
    for (unsigned l = 0; l < layers; l++)
        fuse_experts(both, s, &mem, l, (uint64_t)experts);
    same_logits(both, apart, cfg);
    nb_arena_clear(&mem);
    nb_hfdir_close(h);
    nb_store_close(s);
}

/* Granite's experts as GPTQModel takes them apart: gate and up of an expert stay one matrix. */
static void granite_apart(void **state)
{
    nb_hfdir *dir = NULL;
    nb_store *whole = NULL, *apart;
    const nb_json *cfg;
    nb_arena mem = { 0 };
    nb_err err = { 0 };

    (void)state;
    assert_int_equal(nb_open("tests/data/models-2026/granitemoehybrid", &whole, &err), NB_OK);
    assert_int_equal(nb_hfdir_open("tests/data/models-2026/granitemoehybrid", &dir, &err), NB_OK);
    assert_int_equal(nb_hfdir_config(dir, &cfg, &err), NB_OK);
    apart = copy_of(whole, "block_sparse_moe.");
    for (size_t i = 0; i < whole->n_tensors; i++) {
        const nb_tensor *t = &whole->tensors[i];
        const char *linear = strstr(t->name, "put_linear.weight");

        if (!strstr(t->name, "block_sparse_moe.") || !linear) {
            if (strstr(t->name, "block_sparse_moe."))
                add(apart, t->name, t->dtype, t->rank, t->shape, t->data);
            continue;
        }
        for (uint64_t e = 0; e < t->shape[0]; e++) {
            const size_t bytes = (size_t)(t->n_bytes / t->shape[0]);
            unsigned char *part = nb_arena_calloc(&mem, bytes, 1);
            char name[192];

            memcpy(part, t->data + e * bytes, bytes);
            snprintf(name, sizeof name, "%.*sput_linear.%llu.linear.weight", (int)(linear - t->name), t->name, (unsigned long long)e);
            add(apart, name, t->dtype, 2, t->shape + 1, part);
        }
    }
    assert_true(apart->n_tensors > whole->n_tensors);
    same_logits(apart, whole, cfg); /* and closes both: one holds the bytes of the other */
    nb_arena_clear(&mem);
    nb_hfdir_close(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        { "BB-15 one matrix, or gate and up apart", two_files, NULL, NULL, NULL },
        { "BB-15 both in one file", one_file, NULL, NULL, NULL },
        { "experts taken apart by GPTQModel", granite_apart, NULL, NULL, NULL },
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* How often a step hands out work to the pool: at most 8 times a layer while one sequence decodes
 * (spec kernels 8), or small models wait more than they compute.
 * The linker puts the counters below before the pool's functions. */
#include "unit/model/fixture.h"
#include "unit/model/memmodel.h"

static size_t forks;

void __real_nb_parallel_for(nb_pool *p, size_t n, size_t grain, nb_range_fn *fn, void *ctx);
void __wrap_nb_parallel_for(nb_pool *p, size_t n, size_t grain, nb_range_fn *fn, void *ctx);
void __real_nb_parallel_static(nb_pool *p, size_t n, nb_range_fn *fn, void *ctx);
void __wrap_nb_parallel_static(nb_pool *p, size_t n, nb_range_fn *fn, void *ctx);

void __wrap_nb_parallel_for(nb_pool *p, size_t n, size_t grain, nb_range_fn *fn, void *ctx)
{
    forks += p != NULL;
    __real_nb_parallel_for(p, n, grain, fn, ctx);
}

void __wrap_nb_parallel_static(nb_pool *p, size_t n, nb_range_fn *fn, void *ctx)
{
    forks += p != NULL;
    __real_nb_parallel_static(p, n, fn, ctx);
}

enum { PAST = 40, ONE = 8, MANY = 10 };

/* A step of n tokens after PAST others, at most so many forks a layer. */
static void step(const char *label, fixture *f, size_t layers, size_t n, size_t most)
{
    const size_t vocab = fix_vocab(f);
    int32_t ids[PAST + 64];

    for (size_t i = 0; i < NB_LEN(ids); i++)
        ids[i] = (int32_t)(nb_rng_uniform(9, 1, i) * (double)vocab);
    fix_run(f, ids, 0, PAST, NULL);
    forks = 0;
    fix_run(f, ids, PAST, n, NULL);
    if (forks < layers || forks > most * layers)
        fail_msg("%s, a step of %zu rows: %zu forks in %zu layers", label, n, forks, layers);
}

/* One sequence decodes: every product of this model is large enough to be shared. */
static void one_row(void **state)
{
    fixture f;

    (void)state;
    fix_open(&f, "models/pemberley-4m", (fix_opts){ .threads = 2 });
    step("16-bit", &f, nb_model_config(f.model)->n_layers, 1, ONE);
    fix_close(&f);
}

/* With many rows, what lies between the products is shared as well: norms, keys and rotation, rounding, the gate. */
static void many_rows(void **state)
{
    static const char *const label[] = {
        [MM_BF16] = "16-bit", [MM_AWQ] = "4-bit", [MM_MIXED] = "mixed", [MM_FAST] = "offsets", [MM_BYTE] = "8-bit"
    };

    (void)state;
    for (size_t i = 0; i < 2 * (size_t)MM_KIND_COUNT; i++) {
        memmodel mem;
        fixture f;

        mm_open(&mem, (mm_kind)(i / 2));
        f = (fixture){ .store = mem.store };
        fix_bind(&f, mem.cfg, mem.qcfg, (fix_opts){ .threads = 2, .a8 = i % 2 == 1 });
        step(label[i / 2], &f, MM_LAYERS, 64, MANY);
        f.store = NULL; /* the memory model's */
        fix_close(&f);
        mm_close(&mem);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(one_row), cmocka_unit_test(many_rows) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

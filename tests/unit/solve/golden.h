/* golden.h - reads the step goldens of the reference quantizers for the tests of this folder. */
#ifndef NB_TEST_SOLVE_GOLDEN_H
#define NB_TEST_SOLVE_GOLDEN_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/mem.h"
#include "io/io.h"
#include "tensor/store.h"

typedef struct golden {
    nb_store *store;
    nb_json *meta;
} golden;

static inline const char *golden_path(char *out, size_t cap, const char *name)
{
    const char *root = getenv("NB_GOLDEN");

    snprintf(out, cap, "%s/quantizers/%s", root ? root : "../shared/golden", name);
    return out;
}

/* false (and a reason on stderr): the reference data is not there, the test skips. */
static inline bool golden_open(golden *g, const char *name)
{
    char file[256], path[1024];
    nb_err err = { 0 };

    snprintf(file, sizeof file, "%s.safetensors", name);
    golden_path(path, sizeof path, file);
    if (nb_st_open(path, &g->store, &err) != NB_OK) {
        fprintf(stderr, "skipped: %s: %s\n", path, err.what);
        return false;
    }
    snprintf(file, sizeof file, "%s.json", name);
    golden_path(path, sizeof path, file);
    assert_int_equal(nb_json_parse_file(path, 64u << 20, "json", &g->meta, &err), NB_OK);
    return true;
}

static inline void golden_close(golden *g)
{
    nb_json_free(g->meta);
    nb_store_close(g->store);
}

/* A copy of an F32 tensor; sizes may be NULL. Freed with nb_free. */
static inline float *golden_f32(const golden *g, const char *name, size_t *rows, size_t *cols)
{
    const nb_tensor *t = nb_store_find(g->store, name);
    uint64_t n;
    float *p;

    if (!t)
        fail_msg("no tensor %s", name);
    assert_true(nb_shape_count(t->shape, t->rank, &n));
    p = nb_alloc(n * sizeof *p);
    assert_non_null(p);
    assert_int_equal(nb_store_read_f32(g->store, t, 0, n, p, NULL), NB_OK);
    if (cols)
        *cols = (size_t)t->shape[t->rank - 1];
    if (rows)
        *rows = (size_t)(n / t->shape[t->rank - 1]);
    return p;
}

static inline const unsigned char *golden_bytes(const golden *g, const char *name)
{
    const nb_tensor *t = nb_store_find(g->store, name);

    if (!t)
        fail_msg("no tensor %s", name);
    return t->data;
}

/* CRC-32 as in zlib, as eight hex digits. */
static inline const char *crc_hex(char out[9], const void *p, size_t n)
{
    const unsigned char *b = p;
    uint32_t c = 0xffffffffu;

    for (size_t i = 0; i < n; i++) {
        c ^= b[i];
        for (int j = 0; j < 8; j++)
            c = c >> 1 ^ (0xedb88320u & -(c & 1u));
    }
    snprintf(out, 9, "%08x", (unsigned)~c);
    return out;
}

/* Largest |a/b - 1|; NaN counts as infinite. */
static inline double rel_diff(const float *a, const float *b, size_t n)
{
    double worst = 0;

    for (size_t i = 0; i < n; i++) {
        const double d = b[i] == a[i] ? 0.0 : (double)a[i] / (double)b[i] - 1.0;
        if (!(d <= worst && -d <= worst))
            worst = d == d ? (d < 0 ? -d : d) : 1e30;
    }
    return worst;
}

#endif

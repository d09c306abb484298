/* Checkpoints written by AutoAWQ, GPTQModel and AutoRound: dequantized CRC-32 of every linear as recorded, and
 * pack(unpack) equal to the stored bytes. The small ones of tests/data/layouts always, all of $NB_GOLDEN/layouts where present. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/mem.h"
#include "io/io.h"
#include "quant/quant.h"
#include "unit/quant/crc32.h"

static void check_linear(const char *dir, const nb_linear *lin, const nb_json *want)
{
    const nb_json *w = nb_json_get(want, lin->prefix);
    nb_qlin q = { 0 };
    nb_err err = { 0 };
    void *out[NB_MAX_PARTS] = { 0 };
    uint32_t crc = 0;
    char text[16];

    if (!w)
        fail_msg("%s: %s is not in the record", dir, lin->prefix);
    assert_int_equal(nb_json_int(nb_json_at(nb_json_get(w, "shape"), 0), 0), lin->n);
    assert_int_equal(nb_json_int(nb_json_at(nb_json_get(w, "shape"), 1), 0), lin->k);
    for (size_t p = 0; p < NB_MAX_PARTS; p++)
        if (lin->parts[p])
            out[p] = nb_calloc((size_t)lin->parts[p]->n_bytes, 1);
    for (size_t n0 = 0; n0 < lin->n; n0 += 24) { /* stripes that fit no tile */
        const size_t n = lin->n - n0 < 24 ? lin->n - n0 : 24;
        float *dense = nb_alloc_array(n * lin->k, sizeof *dense);
        assert_int_equal(nb_qlin_init(&q, n, lin->k, lin->g, lin->spec.bits, &err), NB_OK);
        if (lin->format->unpack(lin, n0, &q, &err) != NB_OK || (lin->format->pack && lin->format->pack(&q, n0, lin->n, out, &err) != NB_OK))
            fail_msg("%s: %s: %s", dir, lin->prefix, err.what);
        nb_qlin_dequant(&q, dense);
        crc = test_crc32_more(crc, dense, n * lin->k * sizeof *dense);
        nb_free(dense);
        nb_qlin_clear(&q);
    }
    snprintf(text, sizeof text, "%08x", crc);
    if (strcmp(text, nb_json_str(nb_json_get(w, "crc32"), "")) != 0)
        fail_msg("%s: %s: dequantized CRC %s, recorded %s", dir, lin->prefix, text, nb_json_str(nb_json_get(w, "crc32"), "-"));
    for (size_t p = 0; p < NB_MAX_PARTS; p++) {
        if (out[p] && lin->format->pack && memcmp(out[p], lin->parts[p]->data, (size_t)lin->parts[p]->n_bytes) != 0)
            fail_msg("%s: %s.%s: packed bytes differ", dir, lin->prefix, lin->format->parts[p].suffix);
        nb_free(out[p]);
    }
}

static void check_dir(const char *root, const char *name, const char *format)
{
    char path[512];
    nb_hfdir *dir = NULL;
    nb_store *s = NULL;
    nb_json *rec = NULL;
    const nb_json *qcfg, *want;
    const char *source;
    nb_scan sc;
    nb_err err = { 0 };

    snprintf(path, sizeof path, "%s/golden/%s.json", root, name);
    if (nb_json_parse_file(path, 1 << 20, "json", &rec, &err) != NB_OK)
        fail_msg("%s: %s", path, err.what);
    want = nb_json_get(rec, "linears");
    snprintf(path, sizeof path, "%s/%s", root, name);
    if (nb_hfdir_open(path, &dir, &err) != NB_OK || nb_open(path, &s, &err) != NB_OK ||
        nb_hfdir_quant_config(dir, &qcfg, &source, &err) != NB_OK || nb_scan_open(s, qcfg, source, NULL, &sc, &err) != NB_OK)
        fail_msg("%s: %s", path, err.what);
    if (sc.n_linears == 0 || sc.n_linears != nb_json_len(want))
        fail_msg("%s: %zu linears, recorded %zu", name, sc.n_linears, nb_json_len(want));
    if (strcmp(sc.format->name, format) != 0)
        fail_msg("%s: found layout %s, want %s", name, sc.format->name, format);
    for (size_t i = 0; i < sc.n_linears; i++)
        check_linear(name, &sc.linears[i], want);
    nb_scan_clear(&sc);
    nb_store_close(s);
    nb_hfdir_close(dir);
    nb_json_free(rec);
}

static void test_in_tree(void **state)
{
    (void)state;
    check_dir("tests/data/layouts", "awq-gemm-g32-skip-autoawq", "awq-gemm");
    check_dir("tests/data/layouts", "awq-gemm-g32-asym-bf16-gptqmodel", "awq-gemm");
    check_dir("tests/data/layouts", "awq-gemm-3bit-gptqmodel", "awq-gemm");
    check_dir("tests/data/layouts", "awq-gemv-gptqmodel", "awq-gemv");
    check_dir("tests/data/layouts", "awq-gemv-fast-gptqmodel", "awq-gemv-fast");
}

/* Layouts of the index that this version reads, with the name of the format that must be found. */
static const struct {
    const char *index, *format;
} known[] = {
    { "awq-gemm", "awq-gemm" }, { "gemv", "awq-gemv" },         { "gemv_fast", "awq-gemv-fast" },
    { "llm-awq", "llm-awq" },   { "awq-marlin", "awq-marlin" },
};

static const char *format_of(const char *layout)
{
    for (size_t i = 0; i < NB_LEN(known); i++)
        if (strcmp(known[i].index, layout) == 0)
            return known[i].format;
    return NULL;
}

/* Every directory of the index whose layout is known here, in a container that is read. */
static void test_all(void **state)
{
    const char *golden = getenv("NB_GOLDEN");
    char root[400], index[512], line[1024];
    size_t n = 0;
    FILE *f;

    (void)state;
    snprintf(root, sizeof root, "%s/layouts", golden ? golden : "../shared/golden");
    snprintf(index, sizeof index, "%s/LAYOUTS.tsv", root);
    f = fopen(index, "r");
    if (!f) {
        print_message("skipped: %s is absent\n", index);
        skip();
    }
    while (fgets(line, sizeof line, f)) {
        char *field[10] = { line };
        for (size_t i = 1; i < 10 && field[i - 1]; i++) {
            field[i] = strchr(field[i - 1], '\t');
            if (field[i])
                *field[i]++ = 0;
        }
        if (!field[8] || !format_of(field[3]) || field[8][0] == '.') /* .bin, .pt */
            continue;
        check_dir(root, line, format_of(field[3]));
        n++;
    }
    fclose(f);
    print_message("%zu directories\n", n);
    assert_true(n >= 22);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_in_tree), cmocka_unit_test(test_all) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Every layout to every other and back: the tensors come back byte for byte wherever the target can hold them, and are refused with
 * the written rule where it cannot. Directories of golden/layouts, or the selection in tests/data/layouts in a clean clone. Then
 * what --repair does, and what a damaged write does to the verification. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/bits.h"
#include "base/map.h"
#include "base/mem.h"
#include "io/io.h"
#include "job/check.h"
#include "job/convert.h"

static char root[64];

static const char *const targets[] = { "awq-gemm", "awq-gemv", "awq-gemv-fast", "llm-awq", "gptq-v1", "gptq-v2", "gptq-p", "ct" };

static int set_up(void **state)
{
    (void)state;
    /* hundreds of small outputs, each synced to its disk: memory where there is such a place */
    snprintf(root, sizeof root, "%s/nibble-matrix-XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    return mkdtemp(root) ? 0 : -1;
}

static int tear_down(void **state)
{
    char cmd[96];
    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", root);
    return system(cmd);
}

static const char *layouts(void)
{
    static char dir[512];
    const char *g = getenv("NB_GOLDEN");

    snprintf(dir, sizeof dir, "%s/layouts", g ? g : "../shared/golden");
    return access(dir, R_OK) == 0 ? dir : "tests/data/layouts";
}

static nb_status convert(const char *in, const char *to, const char *out, nb_pool *pool, nb_convert_opts o, nb_convert_sum *sum,
                         nb_err *err)
{
    nb_status rc = to ? nb_convert_target(to, &o, err) : NB_OK;

    o.pool = pool;
    o.force = true;
    return rc == NB_OK ? nb_convert(in, out, &o, sum, err) : rc;
}

/* What a pair may lose, and why. */
typedef struct loss {
    bool g_idx;  /* the source had no g_idx, and writers of GPTQ store one                      */
    bool scales; /* the middle layout knows float16 only: exact, but of another type            */
    bool zeros;  /* the source stored zero points in a way that is not written any more         */
    bool codes;  /* the same for words                                                          */
} loss;

static bool lost(const loss *l, const char *name)
{
    const char *last = strrchr(name, '.') + 1;

    return (l->g_idx && strcmp(last, "g_idx") == 0) || (l->scales && (strcmp(last, "scales") == 0 || strcmp(last, "weight_scale") == 0)) ||
           (l->zeros && (strcmp(last, "qzeros") == 0 || strcmp(last, "weight_zero_point") == 0)) ||
           (l->codes && (strcmp(last, "weight_packed") == 0));
}

static void same_tensors(const char *a, const char *b, const loss *l, const char *label)
{
    nb_store *sa, *sb;
    nb_err err = { 0 };

    assert_int_equal(nb_open(a, &sa, &err), NB_OK);
    assert_int_equal(nb_open(b, &sb, &err), NB_OK);
    for (size_t i = 0; i < sa->n_tensors; i++) {
        const nb_tensor *t = &sa->tensors[i], *u = nb_store_find(sb, t->name);
        if (lost(l, t->name))
            continue;
        if (!u || u->dtype != t->dtype || u->n_bytes != t->n_bytes || memcmp(u->data, t->data, (size_t)t->n_bytes) != 0)
            fail_msg("%s: %s differs", label, t->name);
    }
    for (size_t i = 0; i < sb->n_tensors; i++)
        if (!lost(l, sb->tensors[i].name) && !nb_store_find(sa, sb->tensors[i].name))
            fail_msg("%s: %s is new", label, sb->tensors[i].name);
    nb_store_close(sa);
    nb_store_close(sb);
}

/* Layout of a directory, NULL when it is to be refused; what of it is stored in an old way. */
static const char *source_of(const char *dir, loss *l, bool *f16, bool *v1_zero)
{
    nb_store *s = NULL;
    nb_hfdir *h = NULL;
    nb_scan scan = { 0 };
    const nb_json *q = NULL;
    nb_json *inferred = NULL;
    const char *file = NULL, *name = NULL;
    char note[160];
    nb_err err = { 0 };

    memset(l, 0, sizeof *l);
    *f16 = true;
    *v1_zero = false;
    if (nb_open(dir, &s, &err) == NB_OK && nb_hfdir_open(dir, &h, &err) == NB_OK)
        nb_hfdir_quant_config(h, &q, &file, &err);
    if (s && !q && nb_quant_infer(s, NULL, &inferred, note, sizeof note, &err) == NB_OK) /* awq-llm-awq-pt has no config */
        q = inferred;
    if (s && q && nb_scan_open(s, q, file ? file : "", NULL, &scan, &err) == NB_OK && scan.format) {
        const nb_linear *lin = &scan.linears[0];
        name = scan.format->name;
        *f16 = lin->spec.scale_dtype == NB_DT_F16;
        l->g_idx = strcmp(lin->format->method, "gptq") == 0 && !lin->parts[3];
        for (size_t p = 0; p < NB_MAX_PARTS; p++)
            l->zeros = l->zeros || (lin->parts[p] && lin->parts[p]->dtype == NB_DT_I8);
        if (strcmp(name, "compressed-tensors") == 0 && lin->variant != 0) /* aligned words */
            l->codes = l->zeros = lin->spec.bits == 3;
        *v1_zero = strcmp(name, "gptq") == 0 && !lin->spec.sym;
    }
    nb_scan_clear(&scan);
    nb_json_free(inferred);
    nb_hfdir_close(h);
    nb_store_close(s);
    return name;
}

/* The only reasons for which a pair may be refused (formats 5). */
static bool may_refuse(const nb_err *e)
{
    static const char *const rules[] = { "CNV-010", "CNV-020", "CNV-030", "CNV-040", "CNV-050",
                                         "CNV-060", "SHP-003", "SHP-008", "SHP-009", "CFG-004" };

    for (size_t i = 0; i < NB_LEN(rules); i++)
        if (strcmp(e->rule, rules[i]) == 0)
            return true;
    return false;
}

static const char *back_name(const char *layout)
{
    return strcmp(layout, "gptq") == 0 ? "gptq-v1" : layout;
}

/* Counts pairs there and back, and refused ones. */
static void one_directory(const char *name, nb_pool *pool, size_t *n_back, size_t *n_refused)
{
    char dir[768], mid[256], end[256], label[512];
    loss l;
    bool f16, v1_zero;
    const char *layout;

    snprintf(dir, sizeof dir, "%s/%s", layouts(), name);
    snprintf(mid, sizeof mid, "%s/mid", root);
    snprintf(end, sizeof end, "%s/end", root);
    layout = source_of(dir, &l, &f16, &v1_zero);
    for (size_t i = 0; i < NB_LEN(targets); i++) {
        nb_convert_sum sum;
        nb_err err = { 0 };
        loss here = l;
        nb_status rc = convert(dir, targets[i], mid, pool, (nb_convert_opts){ 0 }, &sum, &err);
        snprintf(label, sizeof label, "%s -> %s -> back", name, targets[i]);
        if (!layout) {
            assert_int_not_equal(rc, NB_OK);
            continue;
        }
        if (rc != NB_OK) {
            if (!may_refuse(&err))
                fail_msg("%s: %s %s: %s", label, err.cls, err.rule, err.what);
            ++*n_refused;
            continue;
        }
        assert_true(sum.verified);
        assert_int_equal(sum.n_rounded, 0);
        if (strcmp(layout, "awq-marlin") == 0 || strcmp(layout, "gptq-marlin") == 0)
            continue; /* only read */
        rc = convert(mid, back_name(layout), end, pool, (nb_convert_opts){ 0 }, &sum, &err);
        if (rc != NB_OK && v1_zero && strcmp(err.rule, "CNV-020") == 0)
            continue; /* zero points of 0 that another writer stored in v1 (formats 3.10) */
        if (rc != NB_OK)
            fail_msg("%s: %s %s: %s: %s", label, err.cls, err.rule, err.subject, err.what);
        here.scales = !f16 && (strcmp(targets[i], "awq-gemv") == 0 || strcmp(targets[i], "awq-gemv-fast") == 0);
        same_tensors(dir, end, &here, label);
        ++*n_back;
    }
}

static void matrix(void **state)
{
    size_t n_back = 0, n_refused = 0, n_dirs = 0;
    struct dirent *e;
    DIR *d = opendir(layouts());
    nb_pool *pool = NULL;

    (void)state;
    assert_non_null(d);
    assert_int_equal(nb_pool_open(&pool, 2, NULL), NB_OK);
    while ((e = readdir(d))) {
        struct stat st;
        char path[1024];
        snprintf(path, sizeof path, "%s/%s/config.json", layouts(), e->d_name);
        if (e->d_name[0] == '.' || stat(path, &st) != 0)
            continue;
        one_directory(e->d_name, pool, &n_back, &n_refused);
        n_dirs++;
    }
    closedir(d);
    nb_pool_close(pool);
    print_message("%zu directories: %zu pairs there and back, %zu refused by rule\n", n_dirs, n_back, n_refused);
    assert_true(n_dirs >= 8 && n_back >= 30);
    if (strncmp(layouts(), "tests/", 6) != 0) /* all 71: .bin, .pt and mixtures of experts too */
        assert_true(n_dirs == 71 && n_back >= 300);
}

/* ---- repair ---------------------------------------------------------------------------------------------------- */

typedef enum fault { ZEROS_MINUS, ORDER, ZEROS_ORDER, NOTHING } fault;

static uint32_t broken_word(fault f, uint32_t w)
{
    static const unsigned at[8] = { 0, 2, 4, 6, 1, 3, 5, 7 }; /* nibble i holds output at[i] */
    uint32_t out = 0;

    for (unsigned i = 0; i < 8; i++) {
        const uint32_t v = w >> 4 * i & 15;
        if (f == ZEROS_MINUS)
            out |= ((v - 1) & 15) << 4 * i;
        else
            out |= v << 4 * at[i]; /* natural order */
    }
    return out;
}

static bool breaks(fault f, const char *name)
{
    const bool zeros = strstr(name, ".qzeros") != NULL, codes = strstr(name, ".qweight") != NULL;

    return (zeros && f != NOTHING) || (codes && f == ORDER);
}

/* A copy of an AWQ GEMM directory with one fault in all linears. */
static void write_broken(const char *in, const char *out, fault f)
{
    static const char *const files[] = { "config.json", "quantize_config.json" };
    nb_store *s;
    nb_hfdir *h;
    nb_outdir *dir;
    nb_sink *sink;
    nb_err err = { 0 };

    assert_int_equal(nb_open(in, &s, &err), NB_OK);
    assert_int_equal(nb_hfdir_open(in, &h, &err), NB_OK);
    assert_int_equal(nb_outdir_open(&dir, out, true, NULL, 0, &err), NB_OK);
    for (size_t i = 0; i < NB_LEN(files); i++) {
        const char *p;
        size_t n;
        assert_int_equal(nb_hfdir_file(h, files[i], &p, &n, &err), NB_OK);
        if (p)
            assert_int_equal(nb_outdir_put(dir, files[i], p, n, &err), NB_OK);
    }
    assert_int_equal(nb_st_sink_open(&sink, dir, 0, &err), NB_OK);
    for (size_t i = 0; i < s->n_tensors; i++)
        assert_int_equal(nb_sink_declare(sink, s->tensors[i].name, s->tensors[i].dtype, s->tensors[i].rank, s->tensors[i].shape, &err),
                         NB_OK);
    assert_int_equal(nb_sink_begin(sink, &err), NB_OK);
    for (size_t i = 0; i < s->n_tensors; i++) {
        const nb_tensor *t = &s->tensors[i];
        unsigned char *p = malloc((size_t)t->n_bytes);
        assert_non_null(p);
        memcpy(p, t->data, (size_t)t->n_bytes);
        for (uint64_t b = 0; breaks(f, t->name) && b < t->n_bytes; b += 4)
            nb_put_le32(p + b, broken_word(f, nb_le32(p + b)));
        assert_int_equal(nb_sink_write(sink, t->name, 0, p, t->n_bytes, &err), NB_OK);
        free(p);
    }
    assert_int_equal(nb_sink_finish(sink, &err), NB_OK);
    nb_sink_close(sink);
    assert_int_equal(nb_outdir_commit(dir, &err), NB_OK);
    nb_hfdir_close(h);
    nb_store_close(s);
}

static bool check_says(const char *dir, const char *rule)
{
    nb_report *r = nb_report_new();
    const nb_check_opts o = { 0 };
    nb_check_sum sum;
    bool said = false;

    nb_check(dir, &o, r, &sum, NULL);
    for (size_t i = 0; i < nb_report_count(r); i++)
        said = said || strcmp(nb_report_at(r, i)->rule, rule) == 0;
    nb_report_free(r);
    return said;
}

static void repair(void **state)
{
    static const struct {
        const char *label;
        fault f;
        const char *rule;
        nb_repair how;
    } rows[] = {
        { "ORD-002 zero points minus one", ZEROS_MINUS, "ORD-002", NB_REPAIR_ZEROS },
        { "ORD-001 nibbles in natural order", ORDER, "ORD-001", NB_REPAIR_ORDER },
        { "ORD-004 zero points alone in natural order", ZEROS_ORDER, "ORD-004", NB_REPAIR_ORDER },
    };
    static const char in[] = "tests/data/layouts/awq-gemm-g32-asym-bf16-gptqmodel";
    const loss none = { 0 };
    char broken[256], fixed[256];
    nb_convert_sum sum;

    (void)state;
    snprintf(broken, sizeof broken, "%s/broken", root);
    snprintf(fixed, sizeof fixed, "%s/fixed", root);
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_err err = { 0 };
        write_broken(in, broken, rows[i].f);
        if (!check_says(broken, rows[i].rule))
            fail_msg("%s: check is silent", rows[i].label);
        if (convert(broken, NULL, fixed, NULL, (nb_convert_opts){ .repair = rows[i].how }, &sum, &err) != NB_OK)
            fail_msg("%s: %s: %s", rows[i].label, err.cls, err.what);
        assert_int_equal(sum.n_repaired, 14);
        same_tensors(in, fixed, &none, rows[i].label);
        assert_false(check_says(fixed, rows[i].rule));
    }
    for (int how = NB_REPAIR_ZEROS; how <= NB_REPAIR_ORDER; how++) { /* a sound file is left alone */
        nb_err err = { 0 };
        assert_int_equal(convert(in, NULL, fixed, NULL, (nb_convert_opts){ .repair = (nb_repair)how }, &sum, &err), NB_EUNSUPPORTED);
        assert_string_equal(err.cls, "conv.repair");
    }
}

/* ---- refusals, rounding ---------------------------------------------------------------------------------------- */

/* Packed tensors without any config: BB-13. A directory's weights alone, and what is said to be in them. */
static void inferred(void **state)
{
    static const struct {
        const char *dir, *layout;
        unsigned bits;
    } rows[] = {
        { "awq-gemm-3bit-gptqmodel", "awq-gemm", 3 },
        { "awq-gemv-gptqmodel", "awq-gemv", 4 },
        { "awq-gemv-fast-gptqmodel", "awq-gemv-fast", 4 },
        { "ct-w4a16-asym-g32", "compressed-tensors", 4 },
        { "gptq-v1-4bit-g32-desc", "gptq", 4 },
    };

    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        char path[256], note[160] = "";
        nb_store *s;
        nb_json *config;
        nb_scan scan;
        nb_err err = { 0 };
        snprintf(path, sizeof path, "tests/data/layouts/%s/model.safetensors", rows[i].dir);
        assert_int_equal(nb_open(path, &s, &err), NB_OK);
        assert_int_equal(nb_quant_infer(s, NULL, &config, note, sizeof note, &err), NB_OK);
        assert_non_null(config);
        assert_int_equal(nb_scan_open(s, config, "", NULL, &scan, &err), NB_OK);
        if (strcmp(scan.format->name, rows[i].layout) != 0 || scan.linears[0].spec.bits != rows[i].bits || !strstr(note, rows[i].layout))
            fail_msg("BB-13 %s: %s, %u bits; %s", rows[i].dir, scan.format->name, scan.linears[0].spec.bits, note);
        nb_scan_clear(&scan);
        nb_json_free(config);
        nb_store_close(s);
    }
}

static void refusals(void **state)
{
    static const struct {
        const char *label, *dir, *to, *rule;
        nb_convert_opts o;
    } rows[] = {
        { "act-order to AWQ", "gptq-v1-4bit-g32-desc", "awq-gemm", "CNV-010", { 0 } },
        { "zero point 0 to v1", "awq-gemm-g32-skip-autoawq", "gptq-v1", "CNV-020", { 0 } },
        { "3 bits to gemv", "awq-gemm-3bit-gptqmodel", "awq-gemv", "CNV-060", { 0 } },
        { "other bits asked for", "awq-gemm-g32-skip-autoawq", "gptq-v2", "CNV-060", { .bits = 8 } },
        { "other groups asked for", "awq-gemm-g32-skip-autoawq", "gptq-v2", "CNV-060", { .group_size = 128 } },
        { "float32 scales as bfloat16", "awq-gemm-g32-skip-autoawq", "ct", "CNV-030", { .scale_dtype = NB_DT_BF16 } },
    };
    char dir[256], out[256];
    nb_convert_sum sum;
    nb_err err = { 0 };

    (void)state;
    snprintf(out, sizeof out, "%s/none", root);
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        memset(&err, 0, sizeof err);
        snprintf(dir, sizeof dir, "tests/data/layouts/%s", rows[i].dir);
        assert_int_not_equal(convert(dir, rows[i].to, out, NULL, rows[i].o, &sum, &err), NB_OK);
        if (strcmp(err.rule, rows[i].rule) != 0)
            fail_msg("%s: %s %s: %s", rows[i].label, err.rule, err.cls, err.what);
        assert_int_not_equal(access(out, F_OK), 0);
    }
    memset(&err, 0, sizeof err);
    assert_int_equal(convert("tests/data/layouts/awq-gemm-g32-skip-autoawq", "ct", out, NULL,
                             (nb_convert_opts){ .scale_dtype = NB_DT_BF16, .lossy = true }, &sum, &err),
                     NB_OK);
    assert_true(sum.n_rounded > 0 && sum.max_rel > 0 && sum.max_rel <= 0x1p-8 && sum.verified);
    assert_int_equal(convert("models/pemberley-4m", "awq-gemm", out, NULL, (nb_convert_opts){ 0 }, &sum, &err), NB_EUNSUPPORTED);
    assert_string_equal(err.cls, "conv.dense");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matrix),
        cmocka_unit_test(repair),
        cmocka_unit_test(inferred),
        cmocka_unit_test(refusals),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}

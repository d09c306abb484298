/* Convention tests of check on real files, spoiled one way each: ORD-001, ORD-002, ORD-004, ORD-005, ORD-009; and
 * on made ones of sizes or widths that no file here has: ORD-003, ORD-008. */
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

#include "base/bits.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "io/io.h"
#include "job/check.h"
#include "quant/quant.h"

#define AWQ  "tests/data/layouts/awq-gemm-g32-skip-autoawq"
#define GPTQ "tests/data/layouts/gptq-v1-4bit-g32-desc"

/* The nibbles of a word in columns' own order instead of 0,2,4,6,1,3,5,7. */
static uint32_t sequential(uint32_t w)
{
    static const uint8_t order[8] = { 0, 2, 4, 6, 1, 3, 5, 7 };
    uint32_t v = 0;

    for (int i = 0; i < 8; i++)
        v |= (w >> 4 * i & 15) << 4 * order[i];
    return v;
}

static uint32_t plus_one(uint32_t w)
{
    uint32_t v = 0;

    for (int i = 0; i < 32; i += 4)
        v |= (((w >> i) + 1) & 15) << i;
    return v;
}

static uint32_t minus_one(uint32_t w)
{
    return ~plus_one(~w); /* per field, modulo 16 */
}

static uint32_t signed_codes(uint32_t w)
{
    return w ^ 0x88888888u;
}

static const struct {
    const char *label, *dir;
    uint32_t (*codes)(uint32_t), (*zeros)(uint32_t); /* NULL: as they are */
    const char *rule, *what;
} rows[] = {
    { "AWQ as it is", AWQ, NULL, NULL, "", "" },
    { "GPTQ as it is", GPTQ, NULL, NULL, "", "" },
    { "ORD-001 nibbles in order", AWQ, sequential, sequential, "ORD-001",
      "The nibbles of qweight are in 0,1,2,3,4,5,6,7 order; awq-gemm stores output columns as 0,2,4,6,1,3,5,7." },
    { "ORD-002 zero points plus one", AWQ, NULL, plus_one, "ORD-002", "Zero points appear to be stored +1: the decoded weights of" },
    { "ORD-002 zero points minus one", AWQ, NULL, minus_one, "ORD-002", "Zero points appear to be stored -1: the decoded weights of" },
    { "ORD-004 only qzeros in order", AWQ, NULL, sequential, "ORD-004", "use different nibble orders." },
    { "ORD-005 v2 zero points under v1", GPTQ, NULL, plus_one, "ORD-005",
      "Config says gptq, zero points say gptq_v2 (stored 88888888 everywhere). Using gptq_v2." },
    { "ORD-009 signed codes", GPTQ, signed_codes, NULL, "ORD-009", "Codes look signed; gptq stores codes with an offset of 8." },
};

static unsigned char *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    unsigned char *p;

    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    p = nb_alloc(*n);
    assert_int_equal(fread(p, 1, *n, f), *n);
    fclose(f);
    return p;
}

static void write_file(const char *path, const unsigned char *p, size_t n)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(p, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static bool ends_in(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);

    return n >= m && strcmp(s + n - m, end) == 0;
}

/* Apply the row's functions to every word of the tensors they are for. */
static void spoil(unsigned char *file, size_t i)
{
    const size_t n = (size_t)nb_le64(file);
    nb_json *head = NULL;

    assert_int_equal(nb_json_parse((const char *)file + 8, n, "st", 0, &head, NULL), NB_OK);
    for (size_t x = 0; x < nb_json_len(head); x++) {
        const char *key;
        const nb_json *off = nb_json_get(nb_json_member(head, x, &key), "data_offsets");
        uint32_t (*fn)(uint32_t) = ends_in(key, ".qweight") ? rows[i].codes : ends_in(key, ".qzeros") ? rows[i].zeros : NULL;
        for (int64_t at = nb_json_int(nb_json_at(off, 0), 0); fn && at < nb_json_int(nb_json_at(off, 1), 0); at += 4)
            nb_put_le32(file + 8 + n + at, fn(nb_le32(file + 8 + n + at)));
    }
    nb_json_free(head);
}

/* The findings about order in a directory: exactly this one, or none when the rule is "". */
static void check_dir(const char *dir, const char *label, const char *rule, const char *what)
{
    nb_report *r = nb_report_new();
    nb_check_sum sum;
    nb_err err = { 0 };
    const nb_status rc = nb_check(dir, &(nb_check_opts){ 0 }, r, &sum, &err);
    size_t orders = 0;

    if (rc != NB_OK && rc != NB_NO)
        fail_msg("%s: %s", label, err.what);
    for (size_t x = 0; x < nb_report_count(r); x++) {
        const nb_finding *f = nb_report_at(r, x);
        if (strncmp(f->rule, "ORD-", 4) != 0)
            continue;
        orders++;
        if (strcmp(f->rule, rule) != 0 || !strstr(f->what, what))
            fail_msg("%s: %s %s", label, f->rule, f->what);
    }
    if (orders != (rule[0] != 0))
        fail_msg("%s: %zu findings about order", label, orders);
    nb_report_free(r);
}

static void check_row(size_t i, const char *tmp)
{
    char path[512];
    unsigned char *p;
    size_t n;

    snprintf(path, sizeof path, "%s/config.json", rows[i].dir);
    p = read_file(path, &n);
    snprintf(path, sizeof path, "%s/config.json", tmp);
    write_file(path, p, n);
    nb_free(p);
    snprintf(path, sizeof path, "%s/model.safetensors", rows[i].dir);
    p = read_file(path, &n);
    spoil(p, i);
    snprintf(path, sizeof path, "%s/model.safetensors", tmp);
    write_file(path, p, n);
    nb_free(p);
    check_dir(tmp, rows[i].label, rows[i].rule, rows[i].what);
}

static void test_rows(void **state)
{
    char tmp[] = "/tmp/nb_order_XXXXXX", path[512];

    (void)state;
    assert_non_null(mkdtemp(tmp));
    for (size_t i = 0; i < NB_LEN(rows); i++)
        check_row(i, tmp);
    snprintf(path, sizeof path, "%s/config.json", tmp);
    unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", tmp);
    unlink(path);
    rmdir(tmp);
}

/* Linears of normal weights in AWQ GEMM, symmetric. transposed: the scales, of which there are as many groups as outputs, are written
 * the other way round; interleaved: bytes of words in the order 0, 2, 1, 3. */
typedef struct made {
    const char *label, *config;
    size_t n, k, g;
    unsigned bits;
    bool transposed, interleaved;
    const char *rule, *what;
    bool flipped; /* codes without their offset */
    int levels;   /* weights have this many values; 0: any */
} made;

#define AWQ_CONFIG_G(b, g)                                                                                                                 \
    "{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":" b ",\"group_size\":" g ",\"zero_point\":false,\"version\":\"gemm\"}}"

#define AWQ_CONFIG(b) AWQ_CONFIG_G(b, "32")

static const made made_rows[] = {
    { "square as it is", AWQ_CONFIG("4"), 32, 1024, 32, 4, false, false, "", "", false, 0 },
    { "ORD-003 scales transposed", AWQ_CONFIG("4"), 32, 1024, 32, 4, true, false, "ORD-003", "scales appear to be transposed.", false, 0 },
    { "8 bit as it is", AWQ_CONFIG("8"), 64, 512, 32, 8, false, false, "", "", false, 0 },
    { "ORD-008 bytes interleaved", AWQ_CONFIG("8"), 64, 512, 32, 8, false, true, "ORD-008",
      "8-bit codes look interleaved; this layout has no public writer. Please report the producer.", false, 0 },
    { "ORD-009 groups of 4 as they are", AWQ_CONFIG_G("4", "4"), 64, 512, 4, 4, false, false, "", "", false, 0 },
    { "ORD-009 groups of 8 as they are", AWQ_CONFIG_G("4", "8"), 64, 512, 8, 4, false, false, "", "", false, 0 },
    { "ORD-009 groups of 16 as they are", AWQ_CONFIG_G("4", "16"), 64, 512, 16, 4, false, false, "", "", false, 0 },
    { "ORD-009 weights of two values", AWQ_CONFIG("4"), 64, 512, 32, 4, false, false, "", "", false, 2 },
    { "ORD-009 weights of three values", AWQ_CONFIG("4"), 64, 512, 32, 4, false, false, "", "", false, 3 },
    { "ORD-009 signed, groups of 32", AWQ_CONFIG("4"), 64, 512, 32, 4, false, false, "ORD-009", "Codes look signed;", true, 0 },
    { "ORD-009 signed, groups of 16", AWQ_CONFIG_G("4", "16"), 64, 512, 16, 4, false, false, "ORD-009", "Codes look signed;", true, 0 },
    { "ORD-009 signed, 8 bits", AWQ_CONFIG("8"), 64, 512, 32, 8, false, false, "ORD-009", "Codes look signed;", true, 0 },
};

static void fill(nb_qlin *q, const made *m, unsigned layer)
{
    const int half = 1 << (m->bits - 1);
    double *w = nb_alloc_array(m->g, sizeof *w);

    for (size_t i = 0; i < m->n * q->n_groups; i++) {
        const size_t o = i / q->n_groups, g = i % q->n_groups;
        const double size = 0.01 * exp(0.7 * nb_rng_normal(8, layer, o));
        double most = 0;
        for (size_t x = 0; x < m->g; x++) {
            w[x] = nb_rng_normal(9, layer, i * m->g + x);
            if (m->levels)
                w[x] = w[x] > 0.5 ? 1 : w[x] > -0.5 && m->levels == 3 ? 0 : -1;
            most = fmax(most, fabs(w[x]));
        }
        q->scales[m->transposed ? g * q->n_groups + o : i] = nb_f16_to_f32(nb_f32_to_f16((float)(size * most / half)));
        q->zeros[i] = (uint8_t)half;
        for (size_t x = 0; x < m->g; x++)
            q->codes[o * m->k + g * m->g + x] =
                (uint8_t)((unsigned)fmin(nearbyint(w[x] / most * half) + half, 2 * half - 1) ^ (m->flipped ? (unsigned)half : 0));
    }
    nb_free(w);
}

static void interleave(unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i += 4) {
        const unsigned char t = p[i + 1];
        p[i + 1] = p[i + 2];
        p[i + 2] = t;
    }
}

enum { LAYERS = 3 };

static void write_made(const char *path, const made *m)
{
    const nb_format *f = nb_format_find("awq-gemm");
    uint64_t shape[3][4], bytes[3];
    nb_sink *s;
    nb_err e = { 0 };
    char name[96];

    assert_int_equal(nb_st_sink_file(&s, path, true, &e), NB_OK);
    for (unsigned i = 0; i < 3 * LAYERS; i++) {
        const unsigned p = i % 3, rank = nb_format_part_shape(f, p, m->n, m->k, m->g, m->bits, shape[p]);
        bytes[p] = shape[p][0] * shape[p][1] * (p == 2 ? 2 : 4);
        snprintf(name, sizeof name, "model.layers.%u.mlp.up_proj.%s", i / 3, f->parts[p].suffix);
        assert_int_equal(nb_sink_declare(s, name, p == 2 ? NB_DT_F16 : NB_DT_I32, rank, shape[p], &e), NB_OK);
    }
    assert_int_equal(nb_sink_begin(s, &e), NB_OK);
    for (unsigned l = 0; l < LAYERS; l++) {
        void *part[NB_MAX_PARTS] = { nb_calloc((size_t)bytes[0], 1), nb_calloc((size_t)bytes[1], 1), nb_calloc((size_t)bytes[2], 1) };
        nb_qlin q = { 0 };
        assert_int_equal(nb_qlin_init(&q, m->n, m->k, m->g, m->bits, &e), NB_OK);
        q.scale_dtype = NB_DT_F16;
        fill(&q, m, l);
        assert_int_equal(f->pack(&q, 0, m->n, part, &e), NB_OK);
        for (unsigned p = 0; p < 3; p++) {
            if (m->interleaved && p < 2)
                interleave(part[p], (size_t)bytes[p]);
            snprintf(name, sizeof name, "model.layers.%u.mlp.up_proj.%s", l, f->parts[p].suffix);
            assert_int_equal(nb_sink_write(s, name, 0, part[p], bytes[p], &e), NB_OK);
            nb_free(part[p]);
        }
        nb_qlin_clear(&q);
    }
    assert_int_equal(nb_sink_finish(s, &e), NB_OK);
    nb_sink_close(s);
}

static void test_made(void **state)
{
    char tmp[] = "/tmp/nb_order_XXXXXX", config[512], weights[512];

    (void)state;
    assert_non_null(mkdtemp(tmp));
    snprintf(config, sizeof config, "%s/config.json", tmp);
    snprintf(weights, sizeof weights, "%s/model.safetensors", tmp);
    for (size_t i = 0; i < NB_LEN(made_rows); i++) {
        write_file(config, (const unsigned char *)made_rows[i].config, strlen(made_rows[i].config));
        write_made(weights, &made_rows[i]);
        check_dir(tmp, made_rows[i].label, made_rows[i].rule, made_rows[i].what);
    }
    unlink(config);
    unlink(weights);
    rmdir(tmp);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_rows), cmocka_unit_test(test_made) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

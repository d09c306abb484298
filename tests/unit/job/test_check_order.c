/* Convention tests of check on real files, spoiled one way each: ORD-001, ORD-002, ORD-004, ORD-005, ORD-009. */
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
#include "job/check.h"

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

static void check_row(size_t i, const char *tmp)
{
    char path[512];
    unsigned char *p;
    size_t n, orders = 0;
    nb_report *r = nb_report_new();
    nb_check_sum sum;
    nb_err err = { 0 };
    nb_status rc;

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
    rc = nb_check(tmp, &(nb_check_opts){ 0 }, r, &sum, &err);
    if (rc != NB_OK && rc != NB_NO)
        fail_msg("%s: %s", rows[i].label, err.what);
    for (size_t x = 0; x < nb_report_count(r); x++) {
        const nb_finding *f = nb_report_at(r, x);
        if (strncmp(f->rule, "ORD-", 4) != 0)
            continue;
        orders++;
        if (strcmp(f->rule, rows[i].rule) != 0 || !strstr(f->what, rows[i].what))
            fail_msg("%s: %s %s", rows[i].label, f->rule, f->what);
    }
    if (orders != (rows[i].rule[0] != 0))
        fail_msg("%s: %zu findings about order", rows[i].label, orders);
    nb_report_free(r);
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

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_rows) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

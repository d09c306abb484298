/* nb_convert and nb_inspect_path: the SmolLM2 GGUF against its table of checksums, AWQ directories against theirs, what
 * stays untouched, and that nothing half-written is left. */
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
#include "job/convert.h"
#include "job/inspect.h"
#include "quant/quant.h"
#include "text/tokenizer.h"
#include "unit/quant/crc32.h"
#include "cputime.h"

static char root[] = "/tmp/nibble-convert-XXXXXX";

static const char *golden(void)
{
    const char *g = getenv("NB_GOLDEN");
    return g ? g : "../shared/golden";
}

static int set_up(void **state)
{
    (void)state;
    return mkdtemp(root) ? 0 : -1;
}

static int tear_down(void **state)
{
    char cmd[80];
    (void)state;
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", root);
    return system(cmd);
}

static void path_in(char out[512], const char *name)
{
    snprintf(out, 512, "%s/%s", root, name);
}

static nb_status convert(const char *in, const char *out, nb_dtype t, nb_convert_sum *sum, nb_err *err)
{
    nb_pool *pool;
    nb_convert_opts o = { .dtype = t };
    nb_status rc = nb_pool_open(&pool, 2, err);

    if (rc != NB_OK)
        return rc;
    o.pool = pool;
    rc = nb_convert(in, out, &o, sum, err);
    nb_pool_close(pool);
    return rc;
}

static void check_prompts(nb_hfdir *d, const nb_json *ref)
{
    const nb_json *prompts = nb_json_get(nb_json_get(nb_json_get(ref, "models"), "f16"), "prompts");
    const char *json, *config;
    size_t n_json, n_config;
    nb_tokenizer *t = NULL;
    nb_err err = { 0 };

    assert_int_equal(nb_hfdir_file(d, "tokenizer.json", &json, &n_json, &err), NB_OK);
    assert_int_equal(nb_hfdir_file(d, "tokenizer_config.json", &config, &n_config, &err), NB_OK);
    if (nb_tokenizer_open(json, n_json, config, n_config, &t, &err) != NB_OK)
        fail_msg("tokenizer: %s", err.what);
    assert_int_equal(nb_json_len(prompts), 3);
    for (size_t i = 0; i < nb_json_len(prompts); i++) {
        const nb_json *text = nb_json_get(nb_json_at(prompts, i), "text"), *want = nb_json_get(nb_json_at(prompts, i), "ids");
        nb_ids ids = { 0 };
        assert_int_equal(nb_tokenizer_encode(t, nb_json_str(text, ""), nb_json_str_len(text), true, true, &ids, &err), NB_OK);
        assert_int_equal(ids.n, nb_json_len(want));
        for (size_t k = 0; k < ids.n; k++)
            assert_int_equal(ids.p[k], nb_json_int(nb_json_at(want, k), -1));
        nb_ids_clear(&ids);
    }
    nb_tokenizer_close(t);
}

/* Every tensor's CRC-32 equals the recorded one, as f32 and as f16. NB_SMOLLM2_GGUF names the file. */
static void smollm2(void **state)
{
    const char *gguf = getenv("NB_SMOLLM2_GGUF");
    char path[512], dir[512], crc[16];
    uint64_t inexact;
    nb_json *table = NULL, *ref = NULL;
    nb_err err = { 0 };
    static const struct {
        nb_dtype t;
        const char *key;
    } kinds[] = { { NB_DT_F16, "crc32_f16" }, { NB_DT_F32, "crc32_f32" } };

    (void)state;
    snprintf(path, sizeof path, "%s/smollm2/tensors.json", golden());
    if (!gguf || access(gguf, R_OK) != 0 || access(path, R_OK) != 0) {
        print_message("skipped: NB_SMOLLM2_GGUF does not name the file, or %s is absent\n", path);
        skip();
    }
    assert_int_equal(nb_json_parse_file(path, 1 << 24, "golden", &table, &err), NB_OK);
    snprintf(path, sizeof path, "%s/smollm2/reference.json", golden());
    assert_int_equal(nb_json_parse_file(path, 1 << 24, "golden", &ref, &err), NB_OK);
    for (size_t k = 0; k < NB_LEN(kinds); k++) {
        nb_convert_sum sum;
        nb_store *s = NULL;
        nb_hfdir *d;
        path_in(dir, kinds[k].key);
        if (convert(gguf, dir, kinds[k].t, &sum, &err) != NB_OK || nb_open(dir, &s, &err) != NB_OK)
            fail_msg("%s: %s", err.cls, err.what);
        assert_int_equal(s->n_tensors, nb_json_len(table));
        inexact = 0;
        for (size_t i = 0; i < nb_json_len(table); i++) {
            const nb_json *row = nb_json_at(table, i);
            const nb_tensor *t = nb_store_find(s, nb_json_str(nb_json_get(row, "name"), ""));
            if (!t)
                fail_msg("%s is missing", nb_json_str(nb_json_get(row, "name"), ""));
            snprintf(crc, sizeof crc, "%08x", test_crc32(t->data, (size_t)t->n_bytes));
            if (strcmp(crc, nb_json_str(nb_json_get(row, kinds[k].key), "")) != 0)
                fail_msg("%s: %s %s", t->name, kinds[k].key, crc);
            inexact += (uint64_t)nb_json_int(nb_json_get(row, "inexact_f16"), 0);
        }
        assert_int_equal(sum.n_inexact, k == 0 ? inexact : 0);
        nb_store_close(s);
        assert_int_equal(nb_hfdir_open(dir, &d, &err), NB_OK);
        check_prompts(d, ref);
        nb_hfdir_close(d);
    }
    nb_json_free(table);
    nb_json_free(ref);
}

/* The vocabulary of a GGUF without tensors (pre "llama-bpe"): ids as llama.cpp gives them, special tokens parsed. */
static void llama_bpe_vocabulary(void **state)
{
    char path[512];
    char *lines, *p;
    const char *json, *config;
    size_t n, n_json, n_config, texts = 0;
    nb_err err = { 0 };
    nb_hfdir *d = NULL;
    nb_tokenizer *t = NULL;

    (void)state;
    snprintf(path, sizeof path, "%s/tokenizers/own/gguf-bpe/vocab.gguf", golden());
    if (access(path, R_OK) != 0) {
        print_message("skipped: %s is absent\n", path);
        skip();
    }
    assert_int_equal(nb_hfdir_open(path, &d, &err), NB_OK);
    assert_int_equal(nb_hfdir_file(d, "tokenizer.json", &json, &n_json, &err), NB_OK);
    assert_int_equal(nb_hfdir_file(d, "tokenizer_config.json", &config, &n_config, &err), NB_OK);
    if (nb_tokenizer_open(json, n_json, config, n_config, &t, &err) != NB_OK)
        fail_msg("tokenizer: %s", err.what);
    snprintf(path, sizeof path, "%s/tokenizers/own/gguf-bpe/vectors_llamacpp.jsonl", golden());
    assert_int_equal(nb_read_file(path, 1 << 24, &lines, &n, &err), NB_OK);
    for (p = lines; *p; p += strcspn(p, "\n") + 1) {
        nb_json *row = NULL;
        const nb_json *want, *text;
        nb_ids ids = { 0 };
        assert_int_equal(nb_json_parse(p, strcspn(p, "\n"), "golden", 0, &row, &err), NB_OK);
        text = nb_json_get(row, "text");
        want = nb_json_get(row, nb_json_get(row, "ids_parsed") ? "ids_parsed" : "ids");
        if (text && want) {
            bool same;
            assert_int_equal(nb_tokenizer_encode(t, nb_json_str(text, ""), nb_json_str_len(text), false, true, &ids, &err), NB_OK);
            same = ids.n == nb_json_len(want);
            for (size_t k = 0; same && k < ids.n; k++)
                same = ids.p[k] == nb_json_int(nb_json_at(want, k), -1);
            if (!same)
                fail_msg("%s: other ids", nb_json_str(nb_json_get(row, "name"), "?"));
            texts++;
        }
        nb_ids_clear(&ids);
        nb_json_free(row);
    }
    assert_int_equal(texts, 400);
    nb_free(lines);
    nb_tokenizer_close(t);
    nb_hfdir_close(d);
}

/* A quantized directory as f32: recorded CRC-32 of every linear, no quantization config left, other files byte for byte. */
static void dequantize(void **state)
{
    static const char *const dirs[] = { "awq-gemm-g32-skip-autoawq", "awq-gemm-g32-asym-bf16-gptqmodel" };

    (void)state;
    for (size_t i = 0; i < NB_LEN(dirs); i++) {
        char in[256], out[512], rec[256], name[256], crc[16];
        nb_err err = { 0 };
        nb_convert_sum sum;
        nb_store *s = NULL;
        nb_hfdir *a, *b;
        nb_json *want;
        const nb_json *linears, *config, *q;
        snprintf(in, sizeof in, "tests/data/layouts/%s", dirs[i]);
        snprintf(rec, sizeof rec, "tests/data/layouts/golden/%s.json", dirs[i]);
        path_in(out, dirs[i]);
        assert_int_equal(nb_json_parse_file(rec, 1 << 24, "golden", &want, &err), NB_OK);
        linears = nb_json_get(want, "linears");
        if (convert(in, out, NB_DT_F32, &sum, &err) != NB_OK || nb_open(out, &s, &err) != NB_OK)
            fail_msg("%s: %s: %s", in, err.cls, err.what);
        assert_int_equal(sum.n_linears, nb_json_len(linears));
        assert_int_equal(sum.n_inexact, 0);
        for (size_t k = 0; k < nb_json_len(linears); k++) {
            const char *prefix;
            const nb_json *row = nb_json_member(linears, k, &prefix);
            const nb_tensor *t;
            snprintf(name, sizeof name, "%s.weight", prefix);
            t = nb_store_find(s, name);
            if (!t)
                fail_msg("%s is missing", name);
            snprintf(crc, sizeof crc, "%08x", test_crc32(t->data, (size_t)t->n_bytes));
            assert_string_equal(crc, nb_json_str(nb_json_get(row, "crc32"), ""));
        }
        nb_store_close(s);
        assert_int_equal(nb_hfdir_open(in, &a, &err), NB_OK);
        assert_int_equal(nb_hfdir_open(out, &b, &err), NB_OK);
        assert_int_equal(nb_hfdir_quant_config(b, &q, NULL, &err), NB_OK);
        assert_null(q);
        assert_int_equal(nb_hfdir_config(b, &config, &err), NB_OK);
        assert_string_equal(nb_json_str(nb_json_get(config, nb_json_get(config, "dtype") ? "dtype" : "torch_dtype"), ""), "float32");
        for (size_t k = 0; k < nb_hfdir_count(a); k++) {
            const char *p, *r, *file = nb_hfdir_name(a, k);
            size_t n, m;
            if (strcmp(file, "config.json") == 0 || strcmp(file, "quantize_config.json") == 0)
                continue;
            assert_int_equal(nb_hfdir_file(a, file, &p, &n, &err), NB_OK);
            assert_int_equal(nb_hfdir_file(b, file, &r, &m, &err), NB_OK);
            if (!r || n != m || memcmp(p, r, n) != 0)
                fail_msg("%s: %s is not the same", dirs[i], file);
        }
        nb_hfdir_close(a);
        nb_hfdir_close(b);
        nb_json_free(want);
    }
}

/* bf16 to f32 and back gives the same tensor bytes; an existing output is kept without force. */
static void there_and_back(void **state)
{
    char wide[512], back[512];
    nb_err err = { 0 };
    nb_convert_sum sum;
    nb_store *a, *b;

    (void)state;
    path_in(wide, "wide");
    path_in(back, "back");
    assert_int_equal(convert("models/pemberley-4m", wide, NB_DT_F32, &sum, &err), NB_OK);
    assert_int_equal(convert(wide, back, NB_DT_BF16, &sum, &err), NB_OK);
    assert_int_equal(sum.n_inexact, 0);
    assert_int_equal(nb_open("models/pemberley-4m", &a, &err), NB_OK);
    assert_int_equal(nb_open(back, &b, &err), NB_OK);
    assert_int_equal(a->n_tensors, b->n_tensors);
    for (size_t i = 0; i < a->n_tensors; i++) {
        const nb_tensor *t = nb_store_find(b, a->tensors[i].name);
        assert_non_null(t);
        assert_int_equal(t->dtype, NB_DT_BF16);
        assert_int_equal(t->n_bytes, a->tensors[i].n_bytes);
        assert_memory_equal(t->data, a->tensors[i].data, (size_t)t->n_bytes);
    }
    nb_store_close(a);
    nb_store_close(b);
    assert_int_equal(convert(wide, back, NB_DT_F16, &sum, &err), NB_EEXISTS);
}

static void write_st(const char *path, const char *header, const void *data, size_t n)
{
    unsigned char len[8];
    FILE *f = fopen(path, "wb");

    nb_put_le64(len, strlen(header));
    assert_non_null(f);
    assert_int_equal(fwrite(len, 1, 8, f), 8);
    assert_int_equal(fwrite(header, 1, strlen(header), f), strlen(header));
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* U-05: a failing run leaves nothing. */
static void failures(void **state)
{
    static const float big[2] = { 1.0f, 1e6f };
    char in[512], out[512], cmd[700];
    nb_err err = { 0 };
    nb_convert_sum sum;
    nb_store *s = NULL;

    (void)state;
    path_in(in, "big.safetensors");
    path_in(out, "big-out");
    write_st(in, "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", big, 8);
    assert_int_equal(convert(in, out, NB_DT_F16, &sum, &err), NB_ENUMERIC);
    assert_string_equal(err.cls, "num.overflow");
    assert_string_equal(err.subject, "w");
    assert_int_equal(access(out, F_OK), -1);
    nb_err_clear(&err);
    assert_int_equal(convert(in, out, NB_DT_BF16, &sum, &err), NB_OK); /* a bare file: one file comes out */
    assert_int_equal(nb_open(out, &s, &err), NB_OK);
    assert_int_equal(s->tensors[0].dtype, NB_DT_BF16);
    nb_store_close(s);
    path_in(in, "f8.safetensors");
    path_in(out, "f8-out");
    write_st(in, "{\"w\":{\"dtype\":\"F8_E4M3\",\"shape\":[8],\"data_offsets\":[0,8]}}", big, 8);
    assert_int_equal(convert(in, out, NB_DT_F16, &sum, &err), NB_EUNSUPPORTED); /* ST-13 */
    assert_string_equal(err.cls, "st.dtype");
    assert_int_equal(access(out, F_OK), -1);
    snprintf(cmd, sizeof cmd, "test -z \"$(find '%s' -name '*nibble-*' -mindepth 1)\"", root); /* no staging left */
    assert_int_equal(system(cmd), 0);
}

/* Headers only: 20 GB that are not there are inspected in under 100 ms. */
static void inspect_sparse(void **state)
{
    char path[512];
    nb_buf h = { 0 };
    nb_err err = { 0 };
    nb_inspect in;
    uint64_t at = 0;
    double t0;

    (void)state;
    nb_buf_putc(&h, '{');
    for (int i = 0; i < 300; i++, at += 67108864)
        nb_buf_printf(&h, "%s\"model.layers.%d.w\":{\"dtype\":\"BF16\",\"shape\":[8192,4096],\"data_offsets\":[%llu,%llu]}", i ? "," : "",
                      i, (unsigned long long)at, (unsigned long long)at + 67108864);
    nb_buf_putc(&h, '}');
    path_in(path, "sparse.safetensors");
    write_st(path, h.p, "", 0);
    if (truncate(path, (off_t)(8 + h.n + at)) != 0) {
        print_message("skipped: no sparse file of 20 GB here\n");
        nb_buf_clear(&h);
        skip();
    }
    nb_buf_clear(&h);
    t0 = cpu_now();
    assert_int_equal(nb_inspect_path(path, 0, &in, &err), NB_OK);
    if (!(cpu_now() - t0 < 0.1))
        fail_msg("%.0f ms", 1e3 * (cpu_now() - t0));
    assert_true(in.n_bytes > 20000000000);
    assert_int_equal(in.n_tensors, 300);
    assert_false(in.runs);
    unlink(path);
}

static void inspect_models(void **state)
{
    nb_err err = { 0 };
    nb_inspect in;
    nb_json *o;

    (void)state;
    assert_int_equal(nb_inspect_path("models/pemberley-4m", 1000, &in, &err), NB_OK);
    assert_int_equal(in.n_params, 3672320);
    assert_string_equal(in.class_name, "LlamaForCausalLM");
    assert_int_equal(in.layers, 4);
    assert_true(in.runs && in.known && in.tied);
    assert_int_equal(in.kv, 4 * 2 * 2 * 64 * 2 * 1024); /* layers, k and v, heads, size, f16, tokens in whole pages */
    assert_string_equal(in.method, "");
    assert_int_equal(nb_inspect_path("tests/data/layouts/awq-gemm-g32-skip-autoawq", 0, &in, &err), NB_OK);
    assert_string_equal(in.layout, "awq-gemm");
    assert_int_equal(in.bits, 4);
    assert_int_equal(in.group_size, 32);
    assert_true(in.n_linears > 0);
    o = nb_inspect_json(&in);
    assert_non_null(o);
    assert_int_equal(nb_json_int(nb_json_get(o, "group_size"), 0), 32);
    nb_json_free(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(smollm2),       cmocka_unit_test(llama_bpe_vocabulary),
                                        cmocka_unit_test(dequantize),    cmocka_unit_test(there_and_back),
                                        cmocka_unit_test(failures),      cmocka_unit_test(inspect_sparse),
                                        cmocka_unit_test(inspect_models) };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}

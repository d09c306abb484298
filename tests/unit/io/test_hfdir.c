/* The small files of a model directory: what is read, what a copy carries, where the quantization config is looked for. */
#include "io_test.h"

#include "io/io.h"
#include "cputime.h"

static void put(const char *name, const char *text)
{
    scratch_file(name, text, strlen(text));
}

static void listing(void **state)
{
    char dir[400], from[400];
    nb_err err = { 0 };
    nb_hfdir *d;
    const char *p;
    size_t n;

    (void)state;
    mkdir(scratch("repo"), 0700);
    mkdir(scratch("repo/blobs"), 0700);
    mkdir(scratch("repo/snapshots"), 0700);
    snprintf(dir, sizeof dir, "%s", scratch("repo/snapshots/abc"));
    mkdir(dir, 0700);
    put("repo/blobs/1234", "{\"model_type\":\"llama\"}");
    put("secret", "not yours");
    put("repo/snapshots/abc/tokenizer.json", "{}");
    put("repo/snapshots/abc/README.md", "hello");
    put("repo/snapshots/abc/.hidden", "x");
    put("repo/snapshots/abc/model.safetensors", "\2");
    put("repo/snapshots/abc/model.safetensors.index.json", "{}");
    put("repo/snapshots/abc/pytorch_model.bin", "x");
    mkdir(scratch("repo/snapshots/abc/folder"), 0700);
    snprintf(from, sizeof from, "%s", scratch("repo/snapshots/abc/config.json"));
    assert_int_equal(symlink("../../blobs/1234", from), 0); /* FS-07: the layout of a hub cache */
    snprintf(from, sizeof from, "%s", scratch("repo/snapshots/abc/notes.txt"));
    assert_int_equal(symlink("../../../secret", from), 0);

    assert_int_equal(nb_hfdir_open(dir, &d, &err), NB_OK);
    assert_int_equal(nb_hfdir_count(d), 3);
    assert_string_equal(nb_hfdir_name(d, 0), "README.md");
    assert_string_equal(nb_hfdir_name(d, 1), "config.json");
    assert_string_equal(nb_hfdir_name(d, 2), "tokenizer.json");
    assert_null(nb_hfdir_name(d, 3));
    assert_int_equal(nb_hfdir_skipped(d), 1);
    assert_int_equal(nb_hfdir_file(d, "README.md", &p, &n, &err), NB_OK);
    assert_string_equal(p, "hello");
    assert_int_equal(n, 5);
    assert_int_equal(nb_hfdir_file(d, "absent.json", &p, &n, &err), NB_OK);
    assert_null(p);
    expect("a path", nb_hfdir_file(d, "../../secret", &p, &n, &err), &err, NB_EARG, "arg.name");
    nb_hfdir_close(d);

    snprintf(from, sizeof from, "%s", scratch("repo/snapshots/abc/model.safetensors")); /* a file stands for its directory */
    nb_err_clear(&err);
    assert_int_equal(nb_hfdir_open(from, &d, &err), NB_OK);
    assert_string_equal(nb_hfdir_path(d), dir);
    nb_hfdir_close(d);
}

static const struct {
    const char *label, *config, *file, *text; /* file: a second configuration file */
    const char *source;
    nb_status want;
    const char *cls;
} rows[] = {
    { "none", "{}", NULL, NULL, NULL, NB_OK, "" },
    { "config.json", "{\"quantization_config\":{\"bits\":4}}", "quantize_config.json", "{\"bits\":8}", "config.json", NB_OK, "" },
    { "nested", "{\"text_config\":{\"quantization_config\":{\"bits\":4}}}", NULL, NULL, "config.json", NB_OK, "" },
    { "null in config.json", "{\"quantization_config\":null}", "quant_config.json", "{\"bits\":4}", "quant_config.json", NB_OK, "" },
    { "AutoGPTQ", "{}", "quantize_config.json", "{\"bits\":4}", "quantize_config.json", NB_OK, "" },
    { "AutoRound", "{}", "quantization_config.json", "{\"bits\":4}", "quantization_config.json", NB_OK, "" },
    { "JS-15 a list", "{}", "quant_config.json", "[]", NULL, NB_EFORMAT, "cfg.type" },
    { "JS-08 a key twice in a file of its own", "{}", "quant_config.json", "{\"bits\":4,\"bits\":4}", NULL, NB_EFORMAT,
      "cfg.duplicate_key" },
    { "JS-08 a key twice in config.json", "{\"quantization_config\":{\"bits\":4},\"a\":1,\"a\":2}", NULL, NULL, "config.json", NB_OK, "" },
    { "JS-10 NaN in config.json", "{\"quantization_config\":{\"bits\":4},\"a\":NaN}", NULL, NULL, "config.json", NB_OK, "" },
    { "JS-01 empty file", "{}", "quant_config.json", "", NULL, NB_EFORMAT, "cfg.json" },
};

static void quant_config(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        char dir[32], path[400], name[96];
        nb_err err = { 0 };
        nb_hfdir *d;
        const nb_json *q;
        const char *source;
        snprintf(dir, sizeof dir, "q%zu", i);
        snprintf(path, sizeof path, "%s", scratch(dir));
        mkdir(path, 0700);
        snprintf(name, sizeof name, "%s/config.json", dir);
        put(name, rows[i].config);
        snprintf(name, sizeof name, "%s/%s", dir, rows[i].file ? rows[i].file : "x");
        put(name, rows[i].file ? rows[i].text : "");
        assert_int_equal(nb_hfdir_open(path, &d, &err), NB_OK);
        expect(rows[i].label, nb_hfdir_quant_config(d, &q, &source, &err), &err, rows[i].want, rows[i].cls);
        if (rows[i].source && (!q || strcmp(source, rows[i].source) != 0 || nb_json_int(nb_json_get(q, "bits"), 0) != 4))
            fail_msg("%s: from %s", rows[i].label, source ? source : "nowhere");
        if ((nb_hfdir_warning(d) != NULL) != (strstr(rows[i].config, "\"a\":1,\"a\":2") != NULL))
            fail_msg("%s: a warning about doubled keys, or none", rows[i].label);
        if (!rows[i].source && q)
            fail_msg("%s: found one in %s", rows[i].label, source);
        nb_hfdir_close(d);
    }
}

static void no_config(void **state)
{
    nb_err err = { 0 };
    nb_hfdir *d;
    const nb_json *c;

    (void)state;
    mkdir(scratch("bare"), 0700);
    assert_int_equal(nb_hfdir_open(scratch("bare"), &d, &err), NB_OK);
    expect("FIL-001 CF-01 no config.json", nb_hfdir_config(d, &c, &err), &err, NB_EOPEN, "cfg.missing_file");
    assert_string_equal(err.rule, "FIL-001");
    nb_hfdir_close(d);
}

/* FS-18: a directory full of strangers is listed, not read; FS-20: one file by two names. */
static void crowd(void **state)
{
    static const char st[] = "\x38\0\0\0\0\0\0\0{\"w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}   abcd";
    char dir[400], file[460], first[400];
    nb_err err = { 0 };
    nb_store *a = NULL, *b = NULL;
    nb_hfdir *d = NULL;
    const nb_json *c;
    double s;

    (void)state;
    snprintf(dir, sizeof dir, "%s", scratch("crowd"));
    mkdir(dir, 0700);
    for (int i = 0; i < 100000; i++) {
        snprintf(file, sizeof file, "%s/%d.png", dir, i);
        if (mknod(file, S_IFREG | 0600, 0) != 0) {
            printf("skipped: FS-18: this file system holds %d files only\n", i);
            skip();
        }
    }
    put("crowd/config.json", "{}");
    snprintf(first, sizeof first, "%s", scratch_file("crowd/model.safetensors", st, sizeof st - 1));
    s = cpu_now();
    assert_int_equal(nb_hfdir_open(dir, &d, &err), NB_OK);
    assert_int_equal(nb_hfdir_config(d, &c, &err), NB_OK);
    expect("FS-18 100,000 other files", nb_open(dir, &a, &err), &err, NB_OK, "");
    s = cpu_now() - s;
    if (!(s <= 2))
        fail_msg("FS-18: %.2f s to open a directory of 100,000 other files, want 2", s);
    nb_hfdir_close(d);
    snprintf(file, sizeof file, "%s", scratch("again.safetensors"));
    assert_int_equal(link(first, file), 0);
    expect("FS-20 the same file by two names", nb_open(file, &b, &err), &err, NB_OK, "");
    assert_memory_equal(nb_store_find(a, "w")->data, "abcd", 4);
    assert_memory_equal(nb_store_find(b, "w")->data, "abcd", 4);
    nb_store_close(b);
    expect("FS-20 the same file twice", nb_open(first, &b, &err), &err, NB_OK, "");
    assert_memory_equal(nb_store_find(b, "w")->data, "abcd", 4);
    nb_store_close(b);
    nb_store_close(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(listing), cmocka_unit_test(quant_config), cmocka_unit_test(no_config),
                                        cmocka_unit_test(crowd) };

    return cmocka_run_group_tests(tests, NULL, scratch_remove);
}

/* Rows IX of hardening 5.4, FIL of formats 7.1: the index and its shards; which file of a directory is opened. */
#include "io_test.h"

#include "io/io.h"

/* A shard of U8 tensors with one byte each, "a,b" naming them; `cut` bytes short. */
static void shard(const char *file, const char *names, size_t cut)
{
    nb_buf b = { 0 }, h = { 0 };
    unsigned char n[8];
    size_t at = 0;

    nb_buf_putc(&h, '{');
    for (const char *p = names; *p; at++) {
        const size_t len = strcspn(p, ",");
        nb_buf_printf(&h, "%s\"%.*s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%zu,%zu]}", at ? "," : "", (int)len, p, at, at + 1);
        p += len + (p[len] == ',');
    }
    nb_buf_putc(&h, '}');
    nb_put_le64(n, h.n);
    nb_buf_put(&b, n, 8);
    nb_buf_put(&b, h.p, h.n);
    for (size_t i = 0; i < at; i++)
        nb_buf_putc(&b, (char)(file[6] + i));
    scratch_file(file, b.p, b.n - cut);
    nb_buf_clear(&b);
    nb_buf_clear(&h);
}

static const char *index_file(const char *text)
{
    return scratch_file("model.safetensors.index.json", text, strlen(text));
}

#define MAP(m) "{\"metadata\":{\"total_size\":3},\"weight_map\":{" m "}}"

static const struct {
    const char *label, *text;
    nb_status want;
    const char *cls, *in; /* in: a piece of the sentence or subject */
} rows[] = {
    { "IX-01 not JSON", "{", NB_EFORMAT, "idx.json", "" },
    { "IX-01 JS-01 empty", "", NB_EFORMAT, "idx.json", "" },
    { "IX-01 no weight_map", "{}", NB_EFORMAT, "idx.type", "missing" },
    { "IX-01 JS-15 a list", "[]", NB_EFORMAT, "idx.type", "" },
    { "IX-01 weight_map a list", "{\"weight_map\":[]}", NB_EFORMAT, "idx.type", "object" },
    { "IX-01 weight_map empty", "{\"weight_map\":{}}", NB_EFORMAT, "idx.empty", "" },
    { "IX-01 shard name a number", MAP("\"a\":1"), NB_EFORMAT, "idx.type", "" },
    { "IX-01 JS-08 tensor twice", MAP("\"a\":\"shard-1.safetensors\",\"a\":\"shard-1.safetensors\""), NB_EFORMAT, "idx.duplicate_key", "" },
    { "IX-02 parent", MAP("\"a.weight\":\"../../x\""), NB_EFORMAT, "idx.unsafe_path", "../../x" },
    { "IX-02 absolute", MAP("\"a\":\"/etc/x.safetensors\""), NB_EFORMAT, "idx.unsafe_path", "" },
    { "IX-02 sub-directory", MAP("\"a\":\"x/shard-1.safetensors\""), NB_EFORMAT, "idx.unsafe_path", "" },
    { "IX-02 here", MAP("\"a\":\"./shard-1.safetensors\""), NB_EFORMAT, "idx.unsafe_path", "" },
    { "IX-02 backslash", MAP("\"a\":\"x\\\\y.safetensors\""), NB_EFORMAT, "idx.unsafe_path", "" },
    { "IX-02 drive", MAP("\"a\":\"c:y.safetensors\""), NB_EFORMAT, "idx.unsafe_path", "" },
    { "IX-02 dot", MAP("\"a\":\".\""), NB_EFORMAT, "idx.unsafe_path", "" },
    { "IX-02 dot dot", MAP("\"a\":\"..\""), NB_EFORMAT, "idx.unsafe_path", "" },
    { "IX-02 empty", MAP("\"a\":\"\""), NB_EFORMAT, "idx.unsafe_path", "" },
    { "IX-02 NUL", MAP("\"a\":\"x\\u0000.safetensors\""), NB_EFORMAT, "idx.unsafe_path", "" },
    { "IX-03 suffix", MAP("\"a\":\"shard-1.exe\""), NB_EFORMAT, "idx.shard_name", "" },
    { "IX-04 FIL-003 shard absent", MAP("\"a\":\"shard-1.safetensors\",\"y\":\"gone.safetensors\",\"z\":\"gone.safetensors\""), NB_EOPEN,
      "idx.missing_shard", "2 tensors are missing (y)" },
    { "IX-05 FIL-004 tensor absent", MAP("\"a\":\"shard-1.safetensors\",\"nope\":\"shard-2.safetensors\""), NB_EFORMAT,
      "idx.missing_tensor", "shard-2.safetensors" },
    { "IX-06 two shards short", MAP("\"s\":\"short-1.safetensors\",\"t\":\"short-2.safetensors\""), NB_EFORMAT, "st.truncated",
      "also short: short-2.safetensors" },
    { "IX-07 extra tensors ignored", MAP("\"a\":\"shard-1.safetensors\""), NB_OK, "", "" },
    { "IX-10 total_size wrong", "{\"metadata\":{\"total_size\":-7},\"weight_map\":{\"a\":\"shard-1.safetensors\"}}", NB_OK, "", "" },
    { "IX-10 total_size absent", "{\"weight_map\":{\"a\":\"shard-1.safetensors\"}}", NB_OK, "", "" },
    { "IX-12 shard is a directory", MAP("\"a\":\"dir.safetensors\""), NB_EOPEN, "io.not_regular", "" },
    { "IX-12 shard is a FIFO", MAP("\"a\":\"fifo.safetensors\""), NB_EOPEN, "io.not_regular", "" },
    { "IX-13 mixed", MAP("\"a\":\"shard-1.safetensors\",\"b\":\"x.bin\""), NB_EUNSUPPORTED, "idx.mixed", "" },
    { "IX-13 all PyTorch, shard absent", MAP("\"a\":\"x.bin\""), NB_EOPEN, "idx.missing_shard", "" },
    { "IX-14 one inode by two names", MAP("\"a\":\"shard-1.safetensors\",\"b\":\"same-1.safetensors\""), NB_OK, "", "" },
};

static int set_up(void **state)
{
    char from[400];

    (void)state;
    shard("shard-1.safetensors", "a,b", 0);
    shard("shard-2.safetensors", "c,a", 0);
    shard("short-1.safetensors", "s", 1);
    shard("short-2.safetensors", "t", 1);
    snprintf(from, sizeof from, "%s", scratch("shard-1.safetensors"));
    return mkdir(scratch("dir.safetensors"), 0700) | mkfifo(scratch("fifo.safetensors"), 0600) | link(from, scratch("same-1.safetensors"));
}

static void index_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_err err = { 0 };
        nb_store *s = NULL;
        const nb_status rc = nb_shards_open(index_file(rows[i].text), &s, &err);
        expect(rows[i].label, rc, &err, rows[i].want, rows[i].cls);
        if (rc != NB_OK && !strstr(err.what, rows[i].in))
            fail_msg("%s: \"%s\" lacks \"%s\"", rows[i].label, err.what, rows[i].in);
        nb_store_close(s);
    }
}

static bool noted(const nb_store *s, const char *rule, const char *text)
{
    for (size_t i = 0; i < nb_report_count(s->notes); i++) {
        const nb_finding *f = nb_report_at(s->notes, i);
        if (strcmp(f->rule, rule) == 0 && (strstr(f->what, text) || strstr(f->file, text)))
            return true;
    }
    return false;
}

/* The index decides (IX-07), and what it passes over is noted (IX-08, IX-10, FIL-005, FIL-007, FIL-008). */
static void index_decides(void **state)
{
    nb_err err = { 0 };
    nb_store *s = NULL;
    const nb_tensor *t;

    (void)state;
    assert_int_equal(nb_shards_open(index_file("{\"metadata\":{\"total_size\":9},\"weight_map\":{\"a\":\"shard-2.safetensors\","
                                               "\"b\":\"shard-1.safetensors\",\"c\":\"shard-2.safetensors\"}}"),
                                    &s, &err),
                     NB_OK);
    assert_int_equal(s->n_tensors, 3);
    assert_int_equal(s->n_files, 2);
    assert_int_equal(s->total_bytes, 3);
    t = nb_store_find(s, "a");
    assert_non_null(t);
    assert_int_equal(t->data[0], '2' + 1); /* the second byte of shard 2 */
    assert_non_null(strstr(t->file, "shard-2.safetensors"));
    assert_true(noted(s, "FIL-005", "same-1.safetensors"));
    assert_true(noted(s, "FIL-007", "stored in both"));
    assert_true(noted(s, "FIL-008", "claims 9"));
    nb_store_drop(s, t);
    assert_int_equal(nb_store_still(s, &err), NB_OK);
    shard("shard-2.safetensors", "c,a", 0); /* IX-15 */
    expect("IX-15 shard replaced", nb_store_still(s, &err), &err, NB_EREAD, "io.changed");
    nb_store_close(s);
}

static void many_shards(void **state)
{
    nb_buf b = { 0 };
    nb_err err = { 0 };
    nb_store *s = NULL;

    (void)state;
    nb_buf_puts(&b, "{\"weight_map\":{");
    for (int i = 0; i < 4097; i++)
        nb_buf_printf(&b, "%s\"t%d\":\"s%d.safetensors\"", i ? "," : "", i, i);
    nb_buf_puts(&b, "}}");
    expect("IX-11 4097 shards", nb_shards_open(index_file(b.p), &s, &err), &err, NB_ELIMIT, "limit.shards");
    nb_buf_clear(&b);
}

static void put(const char *dir, const char *name, const char *text, size_t n)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    scratch_file(path, text, n);
}

/* What is opened in a directory (IX-08, IX-09, FIL-002). */
static void directories(void **state)
{
    static const char empty[] = "\2\0\0\0\0\0\0\0{}";
    static const struct {
        const char *label, *files;
        nb_status want;
        const char *cls;
    } dirs[] = { { "nothing", "README.md", NB_EOPEN, "dir.no_weights" },
                 { "one safetensors file of any name", "gptq_model-4bit.safetensors", NB_OK, "" },
                 { "IX-08 model.safetensors wins over strays", "model.safetensors,other.safetensors", NB_OK, "" },
                 { "FIL-007 two files and no index", "a.safetensors,b.safetensors", NB_EFORMAT, "idx.missing" },
                 { "IX-09 safetensors wins over PyTorch", "model.safetensors,pytorch_model.bin", NB_OK, "" },
                 { "FS-15 content decides: safetensors in a .bin", "pytorch_model.bin", NB_OK, "" },
                 { "two GGUF files", "a.gguf,b.gguf", NB_EARG, "dir.ambiguous" },
                 { "FS-15 content decides, not the name", "a.gguf", NB_OK, "" } };

    (void)state;
    for (size_t i = 0; i < NB_LEN(dirs); i++) {
        char dir[16], path[400];
        nb_err err = { 0 };
        nb_store *s = NULL;
        snprintf(dir, sizeof dir, "d%zu", i);
        snprintf(path, sizeof path, "%s", scratch(dir));
        assert_int_equal(mkdir(path, 0700), 0);
        for (const char *p = dirs[i].files; *p;) {
            char name[64];
            const size_t len = strcspn(p, ",");
            snprintf(name, sizeof name, "%.*s", (int)len, p);
            put(dir, name, empty, 10);
            p += len + (p[len] == ',');
        }
        expect(dirs[i].label, nb_open(path, &s, &err), &err, dirs[i].want, dirs[i].cls);
        nb_store_close(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(index_rows), cmocka_unit_test(index_decides), cmocka_unit_test(many_shards),
                                        cmocka_unit_test(directories) };

    return cmocka_run_group_tests(tests, set_up, scratch_remove);
}

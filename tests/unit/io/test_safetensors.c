/* Rows ST and FS of hardening 5.3, 5.1 that concern one .safetensors file. */
#include "io_test.h"

#include "io/io.h"

/* Header text and data bytes as a file; length -1: as long as the text. */
static const char *st_file(const char *header, int64_t length, size_t data)
{
    nb_buf b = { 0 };
    unsigned char n[8];
    const char *path;

    nb_put_le64(n, length < 0 ? strlen(header) : (uint64_t)length);
    nb_buf_put(&b, n, 8);
    nb_buf_puts(&b, header);
    for (size_t i = 0; i < data; i++)
        nb_buf_putc(&b, (char)i);
    path = scratch_file("row.safetensors", b.p, b.n);
    nb_buf_clear(&b);
    return path;
}

#define ONE(dtype, shape, a, z) "{\"w\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":[" #a "," #z "]}}"
#define F32_2                   "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}"
#define E(name, n, a, z)        "\"" name "\":{\"dtype\":\"U8\",\"shape\":[" #n "],\"data_offsets\":[" #a "," #z "]}"

static const struct {
    const char *label, *header;
    int64_t length;
    size_t data;
    nb_status want;
    const char *cls;
} rows[] = {
    { "ST-02 N = 100,000,001", "{}", 100000001, 0, NB_ELIMIT, "st.header_too_large" },
    { "ST-02 N = 2^32", "{}", 4294967296, 0, NB_ELIMIT, "st.header_too_large" },
    { "ST-02 N = 2^63 - 1", "{}", INT64_MAX, 0, NB_ELIMIT, "st.header_too_large" },
    { "ST-02 big-endian N", "{}", 0x0200000000000000, 0, NB_ELIMIT, "st.header_too_large" },
    { "ST-03 N = 100,000,000 is no limit error", "{}", 100000000, 0, NB_EFORMAT, "st.header_length" },
    { "ST-04 header longer than the file", "{}", 3, 0, NB_EFORMAT, "st.header_length" },
    { "ST-05 N = 0", "", 0, 0, NB_EFORMAT, "st.header_json" },
    { "ST-05 N = 1", "{", 1, 0, NB_EFORMAT, "st.header_json" },
    { "ST-05 JS-15 an array", "[]", -1, 0, NB_EFORMAT, "st.header_json" },
    { "ST-06 blanks around the object", " \n\t{} \r\n", -1, 0, NB_OK, "" },
    { "ST-07 overlong UTF-8", "{\"\xC0\x80\":" F32_2 "}", -1, 8, NB_EFORMAT, "st.header_utf8" },
    { "ST-07 cut UTF-8", "{}\xE2\x82", -1, 0, NB_EFORMAT, "st.header_utf8" },
    { "ST-08 JS-09 text after the object", "{}x", -1, 0, NB_EFORMAT, "st.header_json" },
    { "ST-08 JS-10 NaN", "{\"w\":NaN}", -1, 0, NB_EFORMAT, "st.header_json" },
    { "ST-08 JS-14 trailing comma", "{\"w\":" F32_2 ",}", -1, 8, NB_EFORMAT, "st.header_json" },
    { "ST-08 JS-05 lone surrogate", "{\"\\uD800\":" F32_2 "}", -1, 8, NB_EFORMAT, "st.header_json" },
    { "ST-08 JS-07 byte-order mark", "\xEF\xBB\xBF{}", -1, 0, NB_EFORMAT, "st.header_json" },
    { "ST-09 name twice", "{\"w\":" F32_2 ",\"w\":" F32_2 "}", -1, 8, NB_EFORMAT, "st.duplicate_key" },
    { "ST-09 JS-08 name twice after unescaping", "{\"w\":" F32_2 ",\"\\u0077\":" F32_2 "}", -1, 8, NB_EFORMAT, "st.duplicate_key" },
    { "ST-09 field twice", "{\"w\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", -1, 8, NB_EFORMAT,
      "st.duplicate_key" },
    { "ST-09 metadata twice", "{\"__metadata__\":{},\"__metadata__\":{}}", -1, 0, NB_EFORMAT, "st.duplicate_key" },
    { "ST-10 no dtype", "{\"w\":{\"shape\":[2],\"data_offsets\":[0,8]}}", -1, 8, NB_EFORMAT, "st.tensor_entry" },
    { "ST-10 no shape", "{\"w\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", -1, 8, NB_EFORMAT, "st.tensor_entry" },
    { "ST-10 no offsets", "{\"w\":{\"dtype\":\"F32\",\"shape\":[2]}}", -1, 8, NB_EFORMAT, "st.tensor_entry" },
    { "ST-10 null shape", ONE("\"F32\"", "null", 0, 8), -1, 8, NB_EFORMAT, "st.tensor_entry" },
    { "ST-10 number for dtype", ONE("7", "[2]", 0, 8), -1, 8, NB_EFORMAT, "st.tensor_entry" },
    { "ST-10 entry is a list", "{\"w\":[]}", -1, 0, NB_EFORMAT, "st.tensor_entry" },
    { "ST-10 one offset", "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8]}}", -1, 8, NB_EFORMAT, "st.tensor_entry" },
    { "ST-10 three offsets", "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", -1, 8, NB_EFORMAT, "st.tensor_entry" },
    { "ST-10 negative offset", ONE("\"F32\"", "[2]", -1, 8), -1, 8, NB_EFORMAT, "st.tensor_entry" },
    { "ST-10 fractional offset", ONE("\"F32\"", "[2]", 0.5, 8), -1, 8, NB_EFORMAT, "st.tensor_entry" },
    { "ST-10 JS-12 integral real is a size", ONE("\"F32\"", "[2.0]", 0, 8.0), -1, 8, NB_OK, "" },
    { "ST-11 unknown field", "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":[1,{}]}}", -1, 8, NB_OK, "" },
    { "ST-12 dtype F12", ONE("\"F12\"", "[2]", 0, 8), -1, 8, NB_EUNSUPPORTED, "st.dtype" },
    { "ST-12 dtype f32", ONE("\"f32\"", "[2]", 0, 8), -1, 8, NB_EUNSUPPORTED, "st.dtype" },
    { "ST-12 empty dtype", ONE("\"\"", "[2]", 0, 8), -1, 8, NB_EUNSUPPORTED, "st.dtype" },
    { "ST-13 F8 is listed", ONE("\"F8_E4M3\"", "[8]", 0, 8), -1, 8, NB_OK, "" },
    { "ST-13 C64 is listed", ONE("\"C64\"", "[1]", 0, 8), -1, 8, NB_OK, "" },
    { "ST-14 negative dimension", ONE("\"F32\"", "[-2]", 0, 8), -1, 8, NB_EFORMAT, "st.shape" },
    { "ST-14 fractional dimension", ONE("\"F32\"", "[1.5]", 0, 8), -1, 8, NB_EFORMAT, "st.shape" },
    { "ST-14 dimension 2^48", ONE("\"U8\"", "[281474976710656]", 0, 8), -1, 8, NB_EFORMAT, "st.shape" },
    { "ST-14 text dimension", ONE("\"F32\"", "[\"2\"]", 0, 8), -1, 8, NB_EFORMAT, "st.shape" },
    { "ST-15 product overflows", ONE("\"F32\"", "[4294967296,4294967296]", 0, 8), -1, 8, NB_EFORMAT, "st.overflow" },
    { "ST-15 product overflows before a 0", ONE("\"F32\"", "[4294967296,4294967296,0]", 0, 0), -1, 0, NB_EFORMAT, "st.overflow" },
    { "ST-15 bytes overflow", ONE("\"F64\"", "[140737488355328,32768]", 0, 8), -1, 8, NB_EFORMAT, "st.overflow" },
    { "ST-16 one byte short", ONE("\"F32\"", "[2]", 0, 7), -1, 7, NB_EFORMAT, "st.tensor_size" },
    { "ST-16 by a factor", ONE("\"F32\"", "[1000,1000]", 0, 4), -1, 4, NB_EFORMAT, "st.tensor_size" },
    { "ST-17 backwards", ONE("\"F32\"", "[2]", 8, 0), -1, 8, NB_EFORMAT, "st.offsets" },
    { "ST-18 hole", "{" E("a", 4, 0, 4) "," E("b", 4, 8, 12) "}", -1, 12, NB_EFORMAT, "st.offsets" },
    { "ST-18 first not at 0", "{" E("a", 4, 4, 8) "}", -1, 8, NB_EFORMAT, "st.offsets" },
    { "ST-18 overlap", "{" E("a", 4, 0, 4) "," E("b", 4, 2, 6) "}", -1, 6, NB_EFORMAT, "st.offsets" },
    { "ST-18 ST-19 the same bytes twice", "{" E("a", 4, 0, 4) "," E("b", 4, 0, 4) "}", -1, 4, NB_EFORMAT, "st.offsets" },
    { "ST-20 bytes after the last tensor", ONE("\"F32\"", "[2]", 0, 8), -1, 9, NB_EFORMAT, "st.trailing_bytes" },
    { "ST-21 short by one byte", ONE("\"F32\"", "[2]", 0, 8), -1, 7, NB_EFORMAT, "st.truncated" },
    { "ST-21 short by all data", ONE("\"F32\"", "[2]", 0, 8), -1, 0, NB_EFORMAT, "st.truncated" },
    { "ST-22 three 4-bit values", ONE("\"F4\"", "[3]", 0, 2), -1, 2, NB_EFORMAT, "st.misaligned" },
    { "ST-22 four 6-bit values", ONE("\"F6_E2M3\"", "[4]", 0, 3), -1, 3, NB_OK, "" },
    { "ST-24 metadata is a list", "{\"__metadata__\":[]}", -1, 0, NB_EFORMAT, "st.metadata" },
    { "ST-24 metadata value is a number", "{\"__metadata__\":{\"a\":1}}", -1, 0, NB_EFORMAT, "st.metadata" },
    { "ST-25 empty name", "{" E("", 4, 0, 4) "}", -1, 4, NB_EFORMAT, "st.name" },
    { "ST-25 JS-06 NUL in a name", "{" E("a\\u0000b", 4, 0, 4) "}", -1, 4, NB_EFORMAT, "st.name" },
    { "ST-26 odd names are names",
      "{" E("../../x", 1, 0, 1) "," E("/abs", 1, 1, 2) "," E("a\\nb", 1, 2, 3) "," E("%n%s", 1, 3, 4) "," E("\\u001b[2J", 1, 4, 5) "," E(
          "\\u202e", 1, 5, 6) "," E("\xF0\x9F\x98\x80", 1, 6, 7) "," E("A", 1, 7, 8) "," E("a", 1, 8, 9) "}",
      -1, 9, NB_OK, "" },
    { "ST-27 odd offsets", "{" E("a", 3, 0, 3) ",\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[3,11]}}", -1, 11, NB_OK, "" },
    { "ST-28 empty object", "{}", -1, 0, NB_OK, "" },
    { "ST-28 zero elements and scalars",
      "{" E("z1", 0, 0, 0) ",\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}," E("z2", 0, 4, 4) "}", -1, 4, NB_OK, "" },
    { "FS-17 ST-20 a zip archive behind the tensors", "{" E("a", 4, 0, 4) "}PK\003\004PK\005\006", 53, 0, NB_EFORMAT, "st.trailing_bytes" },
    { "FS-15 a zip archive", "", 0x0000080004034b50, 0, NB_EFORMAT, "fmt.mismatch" },
    { "FS-15 a GGUF file", "", 0x0000000346554747, 0, NB_EFORMAT, "fmt.mismatch" },
    { "FS-16 a web page", "E html><html>", 0x505954434f44213c, 0, NB_EFORMAT, "fmt.mismatch" },
};

static void header_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_err err = { 0 };
        nb_store *s = NULL;
        const char *path = st_file(rows[i].header, rows[i].length, rows[i].data);
        const nb_status rc = nb_st_open(path, &s, &err);
        expect(rows[i].label, rc, &err, rows[i].want, rows[i].cls);
        if ((rc == NB_OK) != (s != NULL))
            fail_msg("%s: handle and status disagree", rows[i].label);
        if (rc != NB_OK && strcmp(err.file, path) != 0)
            fail_msg("%s: the error names \"%s\"", rows[i].label, err.file);
        nb_store_close(s);
    }
}

static void short_files(void **state)
{
    (void)state;
    for (size_t n = 0; n < 8; n++) { /* ST-01, FS-05 */
        nb_err err = { 0 };
        nb_store *s = NULL;
        expect("ST-01 short file", nb_st_open(scratch_file("short.safetensors", "\2\0\0\0\0\0\0", n), &s, &err), &err, NB_EFORMAT,
               "st.header_too_small");
    }
}

static void places(void **state)
{
    static const struct {
        const char *label, *path;
        const char *cls;
    } bad[] = { { "FS-01 absent", "/tmp/nibble-no-such-file", "io.not_found" },
                { "FS-03 a directory", "/tmp", "io.not_regular" },
                { "FS-04 /dev/zero", "/dev/zero", "io.not_regular" },
                { "FS-04 /dev/full", "/dev/full", "io.not_regular" } };
    char fifo[400], loop[400];
    nb_store *s = NULL;

    (void)state;
    for (size_t i = 0; i < NB_LEN(bad); i++) {
        nb_err err = { 0 };
        expect(bad[i].label, nb_st_open(bad[i].path, &s, &err), &err, NB_EOPEN, bad[i].cls);
    }
    snprintf(fifo, sizeof fifo, "%s", scratch("fifo.safetensors"));
    assert_int_equal(mkfifo(fifo, 0600), 0);
    {
        nb_err err = { 0 };
        expect("FS-04 FIFO does not block", nb_st_open(fifo, &s, &err), &err, NB_EOPEN, "io.not_regular");
    }
    snprintf(loop, sizeof loop, "%s", scratch("loop.safetensors"));
    assert_int_equal(symlink(loop, loop), 0);
    {
        nb_err err = { 0 };
        expect("FS-06 symlink loop", nb_st_open(loop, &s, &err), &err, NB_EOPEN, "io.symlink_loop");
    }
    {
        nb_err err = { 0 };
        const char *odd = scratch_file("-a b\n%s\x1b\xff.safetensors", "\2\0\0\0\0\0\0\0{}", 10);
        expect("FS-08 odd path", nb_st_open(odd, &s, &err), &err, NB_OK, "");
        nb_store_close(s);
    }
}

static void lfs_pointer(void **state)
{
    static const char text[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n";
    nb_err err = { 0 };
    nb_store *s = NULL;
    nb_container kind;
    const char *path = scratch_file("lfs.safetensors", text, sizeof text - 1);

    (void)state;
    expect("FIL-009 pointer", nb_open(path, &s, &err), &err, NB_EFORMAT, "fmt.mismatch");
    assert_string_equal(err.rule, "FIL-009");
    nb_err_clear(&err);
    expect("FIL-009 pointer as shard", nb_st_open(path, &s, &err), &err, NB_EFORMAT, "fmt.mismatch");
    nb_err_clear(&err);
    expect("FIL-009 sniff", nb_sniff(path, &kind, &err), &err, NB_EFORMAT, "fmt.mismatch");
}

static void values_and_places(void **state)
{
    nb_err err = { 0 };
    nb_store *s = NULL;
    const nb_tensor *t;
    float v[2];

    (void)state;
    expect("ST-27 values",
           nb_st_open(st_file("{" E("a", 3, 0, 3) ",\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[3,11]}}", -1, 11), &s, &err),
           &err, NB_OK, "");
    assert_int_equal(s->n_tensors, 2);
    assert_string_equal(s->tensors[0].name, "a");
    t = nb_store_find(s, "w");
    assert_non_null(t);
    assert_int_equal(nb_store_read_f32(s, t, 0, 2, v, &err), NB_OK);
    assert_int_equal(nb_bits_from_f32(v[0]), 0x06050403);
    assert_int_equal(nb_bits_from_f32(v[1]), 0x0a090807);
    assert_int_equal(nb_store_still(s, &err), NB_OK);
    assert_int_equal(truncate(s->path, 20), 0); /* FS-11, FS-12 */
    expect("FS-12 the file shrank", nb_store_still(s, &err), &err, NB_EREAD, "io.changed");
    nb_store_close(s);
}

/* ST-29: bits are not judged by the reader; GG-28: files of saved states are of no known kind. */
static void odd_bytes(void **state)
{
    static const char head[] = "\x72\0\0\0\0\0\0\0{\"b\":{\"dtype\":\"BOOL\",\"shape\":[4],\"data_offsets\":[8,12]},"
                               "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}   ";
    static const char data[] = "\x01\x02\xa0\x7f\0\0\x80\xff\0\1\2\xff"; /* a signalling NaN, -Inf, odd truth values */
    nb_buf b = { 0 };
    nb_err err = { 0 };
    nb_store *s = NULL;
    float v[2];

    (void)state;
    nb_buf_put(&b, head, sizeof head - 1);
    b.p[0] = (char)(sizeof head - 1 - 8);
    nb_buf_put(&b, data, 12);
    expect("ST-29 odd values", nb_st_open(scratch_file("odd.safetensors", b.p, b.n), &s, &err), &err, NB_OK, "");
    assert_memory_equal(nb_store_find(s, "w")->data, data, 8);
    assert_memory_equal(nb_store_find(s, "b")->data, data + 8, 4);
    assert_int_equal(nb_store_read_f32(s, nb_store_find(s, "w"), 0, 2, v, &err), NB_OK);
    assert_int_equal(memcmp(v, data, 8), 0);
    nb_store_close(s);
    nb_buf_clear(&b);
    expect("GG-28 a saved session", nb_open(scratch_file("a.session", "nsgg\x09\0\0\0\0\0\0\0", 12), &s, &err), &err, NB_EFORMAT,
           "fmt.unknown");
    nb_err_clear(&err);
    expect("GG-28 a saved sequence", nb_open(scratch_file("a.seq", "qsgg\x02\0\0\0\0\0\0\0", 12), &s, &err), &err, NB_EFORMAT,
           "fmt.unknown");
}

/* A header of the wanted size: `n` tensors that all name the same empty range, or one long name or shape. */
static void big_headers(void **state)
{
    nb_buf b = { 0 };
    nb_err err = { 0 };
    nb_store *s = NULL;

    (void)state;
    nb_buf_puts(&b, "{\"w\":{\"dtype\":\"U8\",\"shape\":[1");
    for (int i = 1; i < 65; i++)
        nb_buf_puts(&b, ",1");
    nb_buf_puts(&b, "],\"data_offsets\":[0,1]}}");
    expect("ST-23 rank 65", nb_st_open(st_file(b.p, -1, 1), &s, &err), &err, NB_ELIMIT, "limit.rank");
    nb_buf_clear(&b);
    nb_err_clear(&err);

    for (size_t n = 65535; n <= 65536; n++) {
        nb_buf_puts(&b, "{\"");
        for (size_t i = 0; i < n; i++)
            nb_buf_putc(&b, 'x');
        nb_buf_puts(&b, "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}");
        expect("ST-25 long name", nb_st_open(st_file(b.p, -1, 1), &s, &err), &err, n == 65535 ? NB_OK : NB_ELIMIT, "limit.name");
        if (n == 65535)
            nb_store_close(s);
        nb_buf_clear(&b);
    }
    nb_err_clear(&err);

    nb_buf_putc(&b, '{');
    for (int i = 0; i < 1000001; i++)
        nb_buf_printf(&b, "%s\"%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}", i ? "," : "", i);
    nb_buf_putc(&b, '}');
    expect("ST-19 1,000,001 tensors", nb_st_open(st_file(b.p, -1, 1), &s, &err), &err, NB_ELIMIT, "limit.tensors");
    nb_buf_clear(&b);
    nb_err_clear(&err);

    for (int i = 0; i < 100000; i++)
        nb_buf_puts(&b, i ? "[" : "{\"a\":");
    expect("ST-08 JS-03 depth", nb_st_open(st_file(b.p, -1, 1), &s, &err), &err, NB_ELIMIT, "json.depth");
    nb_buf_clear(&b);
}

/* FS-09, FS-10: sparse files. */
static void sparse(void **state)
{
    static const char head[] =
        "{" E("a", 6442450944, 0, 6442450944) ",\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[6442450944,6442450948]}}";
    const char *path = st_file(head, -1, 0);
    const uint64_t at = 8 + strlen(head) + 6442450944;
    nb_err err = { 0 };
    nb_store *s = NULL;
    float v = 0.0f, x = 1.5f;
    FILE *f = fopen(path, "r+b");

    (void)state;
    assert_non_null(f);
    assert_int_equal(fseeko(f, (off_t)at, SEEK_SET), 0);
    assert_int_equal(fwrite(&x, 4, 1, f), 1);
    assert_int_equal(fclose(f), 0);
    expect("FS-09 data beyond 4 GiB", nb_st_open(path, &s, &err), &err, NB_OK, "");
    assert_int_equal(nb_store_read_f32(s, nb_store_find(s, "w"), 0, 1, &v, &err), NB_OK);
    assert_float_equal(v, 1.5f, 0.0f);
    nb_store_close(s);
    s = NULL;
    if (truncate(path, (off_t)1 << 43) == 0) {
        expect("FS-10 an apparent size of 8 TB", nb_st_open(path, &s, &err), &err, NB_EFORMAT, "st.trailing_bytes");
        nb_err_clear(&err);
    }
    unlink(path);
}

/* Every allocation fails once: no crash, no leak, NB_ENOMEM. */
static void allocations(void **state)
{
    const char *path = st_file("{\"__metadata__\":{\"format\":\"pt\"}," E("a", 4, 0, 4) "," E("b", 4, 4, 8) "}", -1, 8);

    (void)state;
    for (uint64_t i = 1;; i++) {
        nb_err err = { 0 };
        nb_store *s = NULL;
        nb_status rc;
        nb_mem_fail_at(i);
        rc = nb_st_open(path, &s, &err);
        if (nb_mem_fail_at(0) < i && rc == NB_OK) {
            nb_store_close(s);
            break;
        }
        if (rc != NB_ENOMEM && rc != NB_OK)
            fail_msg("allocation %llu: got %d %s", (unsigned long long)i, (int)rc, err.what);
        nb_store_close(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(header_rows),       cmocka_unit_test(short_files), cmocka_unit_test(places),      cmocka_unit_test(lfs_pointer),
        cmocka_unit_test(values_and_places), cmocka_unit_test(odd_bytes),   cmocka_unit_test(big_headers), cmocka_unit_test(sparse),
        cmocka_unit_test(allocations),
    };

    return cmocka_run_group_tests(tests, NULL, scratch_remove);
}

/* Rows GG of hardening 5.11 that concern reading, and the values of every block type. */
#include "gguf_build.h"

#include "base/map.h"
#include "io/io.h"

/* Each builder writes one file that is wrong in one way. */
static void magic(nb_buf *b)
{
    nb_buf_puts(b, "GGUX");
    zeros(b, 20);
}
static void tiny(nb_buf *b)
{
    nb_buf_puts(b, "GGUF");
    zeros(b, 19);
}
static void version_0(nb_buf *b)
{
    head(b, 0, 0, 0);
}
static void version_1(nb_buf *b)
{
    head(b, 1, 0, 0);
}
static void version_4(nb_buf *b)
{
    head(b, 4, 0, 0);
}
static void swapped(nb_buf *b)
{
    head(b, 0x03000000, 0, 0);
}
static void tensors_negative(nb_buf *b)
{
    head(b, 3, UINT64_MAX, 0);
}
static void keys_2_63(nb_buf *b)
{
    head(b, 3, 0, (uint64_t)1 << 63);
}
static void keys_too_many_for_file(nb_buf *b)
{
    head(b, 3, 0, 3);
    zeros(b, 30);
}
static void keys_over_limit(nb_buf *b)
{
    head(b, 3, 0, 65537);
    zeros(b, 65537 * 13);
}
static void tensors_over_limit(nb_buf *b)
{
    head(b, 3, 1000001, 0);
    zeros(b, 1000001 * 24);
}
static void string_max(nb_buf *b)
{
    head(b, 3, 0, 1);
    u64(b, UINT64_MAX);
    zeros(b, 20);
}
static void string_2_63(nb_buf *b)
{
    head(b, 3, 0, 1);
    u64(b, (uint64_t)1 << 63);
    zeros(b, 20);
}
static void string_one_more(nb_buf *b)
{
    head(b, 3, 0, 1);
    u64(b, 21);
    zeros(b, 20);
}
static void key_empty(nb_buf *b)
{
    head(b, 3, 0, 1);
    kv_u32(b, "", 1);
}
static void key_control(nb_buf *b)
{
    head(b, 3, 0, 1);
    kv_u32(b, "a\nb", 1);
}
static void key_utf8(nb_buf *b)
{
    head(b, 3, 0, 1);
    kv_u32(b, "\xC3\xA9", 1);
}
static void key_twice(nb_buf *b)
{
    head(b, 3, 0, 2);
    kv_u32(b, "a", 1);
    kv_u32(b, "a", 1);
}
static void type_13(nb_buf *b)
{
    head(b, 3, 0, 1);
    str(b, "a");
    u32(b, 13);
    zeros(b, 20);
}
static void type_negative(nb_buf *b)
{
    head(b, 3, 0, 1);
    str(b, "a");
    u32(b, 0xFFFFFFFF);
    zeros(b, 20);
}
static void bool_2(nb_buf *b)
{
    head(b, 3, 0, 1);
    kv_bool(b, "a", 2);
}
static void nested(nb_buf *b)
{
    head(b, 3, 0, 1);
    kv_arr(b, "a", 9, 1);
    zeros(b, 40);
}
static void array_overflow(nb_buf *b)
{
    head(b, 3, 0, 1);
    kv_arr(b, "a", 10, (uint64_t)1 << 61);
    zeros(b, 40);
}
static void array_one_more(nb_buf *b)
{
    head(b, 3, 0, 1);
    kv_arr(b, "a", 4, 11);
    zeros(b, 40);
}
static void array_type(nb_buf *b)
{
    head(b, 3, 0, 1);
    kv_arr(b, "a", 14, 1);
    zeros(b, 40);
}
static void align_text(nb_buf *b)
{
    head(b, 3, 0, 1);
    kv_str(b, "general.alignment", "32");
}
static void align_0(nb_buf *b)
{
    head(b, 3, 0, 1);
    kv_u32(b, "general.alignment", 0);
}
static void align_7(nb_buf *b)
{
    head(b, 3, 0, 1);
    kv_u32(b, "general.alignment", 7);
}
static void align_12(nb_buf *b)
{
    head(b, 3, 0, 1);
    kv_u32(b, "general.alignment", 12);
}
static void align_2_31(nb_buf *b)
{
    head(b, 3, 0, 1);
    kv_u32(b, "general.alignment", 0x80000000);
}
static void name_empty(nb_buf *b)
{
    head(b, 3, 1, 0);
    tensor(b, "", 1, 0, 0, 0);
    zeros(b, 64);
}
static void name_65(nb_buf *b)
{
    head(b, 3, 1, 0);
    tensor(b, "0123456789012345678901234567890123456789012345678901234567890123+", 1, 0, 0, 0);
    zeros(b, 64);
}
static void name_nul(nb_buf *b)
{
    head(b, 3, 1, 0);
    u64(b, 3);
    nb_buf_put(b, "a\0b", 3);
    u32(b, 1);
    u64(b, 1);
    u32(b, 0);
    u64(b, 0);
    zeros(b, 64);
}
static void name_twice(nb_buf *b)
{
    head(b, 3, 2, 0);
    tensor(b, "a", 1, 0, 0, 0);
    tensor(b, "a", 1, 0, 0, 32);
    zeros(b, 128);
}
static void dims_5(nb_buf *b)
{
    head(b, 3, 1, 0);
    str(b, "a");
    u32(b, 5);
    zeros(b, 128);
}
static void dims_max(nb_buf *b)
{
    head(b, 3, 1, 0);
    str(b, "a");
    u32(b, UINT32_MAX);
    zeros(b, 128);
}
static void dim_negative(nb_buf *b)
{
    head(b, 3, 1, 0);
    tensor(b, "a", UINT64_MAX, 0, 0, 0);
    zeros(b, 64);
}
static void dim_product(nb_buf *b)
{
    head(b, 3, 1, 0);
    tensor(b, "a", (uint64_t)1 << 32, (uint64_t)1 << 32, 0, 0);
    zeros(b, 64);
}
static void dim_product_zero(nb_buf *b)
{
    head(b, 3, 1, 0);
    str(b, "a");
    u32(b, 3);
    u64(b, (uint64_t)1 << 40);
    u64(b, (uint64_t)1 << 40);
    u64(b, 0);
    u32(b, 0);
    u64(b, 0);
    zeros(b, 64);
}
static void total_overflow(nb_buf *b)
{
    const uint64_t big = (uint64_t)1 << 58;
    head(b, 3, 3, 0);
    tensor(b, "a", big, 0, 0, 0);
    tensor(b, "b", big, 0, 0, big * 4);
    tensor(b, "c", big, 0, 0, big * 8);
    zeros(b, 64);
}
static void block_odd(nb_buf *b)
{
    head(b, 3, 1, 0);
    tensor(b, "a", 2, 33, 2, 0);
    zeros(b, 128);
}
static void type_withdrawn(nb_buf *b)
{
    head(b, 3, 1, 0);
    tensor(b, "a", 32, 0, 4, 0);
    zeros(b, 128);
}
static void type_unknown(nb_buf *b)
{
    head(b, 3, 1, 0);
    tensor(b, "a", 32, 0, 4000000000u, 0);
    zeros(b, 128);
}
static void offset_odd(nb_buf *b)
{
    head(b, 3, 1, 0);
    tensor(b, "a", 1, 0, 0, 4);
    zeros(b, 128);
}
static void offset_overlap(nb_buf *b)
{
    head(b, 3, 2, 0);
    tensor(b, "a", 8, 0, 0, 0);
    tensor(b, "b", 8, 0, 0, 0);
    zeros(b, 256);
}
static void offset_hole(nb_buf *b)
{
    head(b, 3, 2, 0);
    tensor(b, "a", 8, 0, 0, 0);
    tensor(b, "b", 8, 0, 0, 64);
    zeros(b, 256);
}
static void short_1(nb_buf *b)
{
    head(b, 3, 1, 0);
    tensor(b, "a", 8, 0, 0, 0);
    pad_to(b, 32);
    zeros(b, 31);
}
static void short_all(nb_buf *b)
{
    head(b, 3, 1, 0);
    tensor(b, "a", 8, 0, 0, 0);
}
static void cut_in_table(nb_buf *b)
{
    head(b, 3, 1, 0);
    tensor(b, "abcdefgh", 8, 0, 0, 0);
    b->n -= 5;
}
static void split_part(nb_buf *b)
{
    head(b, 3, 0, 1);
    kv_u32(b, "split.count", 3);
}
static void version_2(nb_buf *b)
{
    head(b, 2, 0, 0);
}
static void no_tensors(nb_buf *b)
{
    head(b, 3, 0, 1);
    kv_u32(b, "a", 1);
}
static void rank_0(nb_buf *b)
{
    head(b, 3, 1, 0);
    str(b, "a");
    u32(b, 0);
    u32(b, 0);
    u64(b, 0);
    pad_to(b, 32);
    zeros(b, 4);
}
static void dim_0(nb_buf *b)
{
    head(b, 3, 1, 0);
    tensor(b, "a", 3, 0, 2, 0);
    b->p[b->n - 20] = 0;
}
static void trailing(nb_buf *b)
{
    head(b, 3, 1, 0);
    tensor(b, "a", 8, 0, 0, 0);
    pad_to(b, 32);
    zeros(b, 33);
}
static void value_not_utf8(nb_buf *b)
{
    head(b, 3, 0, 1);
    kv_str(b, "a", "x\xff\xfey");
}
static void listed_type(nb_buf *b)
{
    head(b, 3, 1, 0);
    tensor(b, "a", 32, 0, 20, 0);
    pad_to(b, 32);
    zeros(b, 32);
}
static void name_64(nb_buf *b)
{
    head(b, 3, 1, 0);
    tensor(b, "0123456789012345678901234567890123456789012345678901234567890123", 1, 0, 0, 0);
    pad_to(b, 32);
    zeros(b, 4);
}

static const struct {
    const char *label;
    void (*build)(nb_buf *b);
    nb_status want;
    const char *cls;
} rows[] = {
    { "GG-01 magic", magic, NB_EFORMAT, "gguf.magic" },
    { "GG-01 23 bytes", tiny, NB_EFORMAT, "gguf.magic" },
    { "GG-02 version 0", version_0, NB_EUNSUPPORTED, "gguf.version" },
    { "GG-02 version 1", version_1, NB_EUNSUPPORTED, "gguf.version" },
    { "GG-02 version 4", version_4, NB_EUNSUPPORTED, "gguf.version" },
    { "GG-02 byte-swapped version", swapped, NB_EUNSUPPORTED, "gguf.endian" },
    { "GG-03 negative tensor count", tensors_negative, NB_EFORMAT, "gguf.count" },
    { "GG-03 2^63 keys", keys_2_63, NB_EFORMAT, "gguf.count" },
    { "GG-03 more keys than bytes", keys_too_many_for_file, NB_EFORMAT, "gguf.count" },
    { "GG-03 65,537 keys", keys_over_limit, NB_ELIMIT, "limit.gguf_keys" },
    { "GG-03 1,000,001 tensors", tensors_over_limit, NB_ELIMIT, "limit.tensors" },
    { "GG-04 string of 2^64 - 1", string_max, NB_EFORMAT, "gguf.string" },
    { "GG-04 string of 2^63", string_2_63, NB_EFORMAT, "gguf.string" },
    { "GG-04 string of one byte more", string_one_more, NB_EFORMAT, "gguf.string" },
    { "GG-05 empty key", key_empty, NB_EFORMAT, "gguf.key" },
    { "GG-05 control byte in a key", key_control, NB_EFORMAT, "gguf.key" },
    { "GG-05 key not ASCII", key_utf8, NB_EFORMAT, "gguf.key" },
    { "GG-05 key twice", key_twice, NB_EFORMAT, "gguf.duplicate_key" },
    { "GG-06 value type 13", type_13, NB_EFORMAT, "gguf.type" },
    { "GG-06 value type negative", type_negative, NB_EFORMAT, "gguf.type" },
    { "GG-06 bool 2", bool_2, NB_EFORMAT, "gguf.bool" },
    { "GG-07 array of arrays", nested, NB_EUNSUPPORTED, "gguf.nested_array" },
    { "GG-07 array bytes overflow", array_overflow, NB_EFORMAT, "gguf.array" },
    { "GG-07 array one element too long", array_one_more, NB_EFORMAT, "gguf.array" },
    { "GG-07 array of type 14", array_type, NB_EFORMAT, "gguf.type" },
    { "GG-08 alignment is text", align_text, NB_EFORMAT, "gguf.alignment" },
    { "GG-08 alignment 0", align_0, NB_EFORMAT, "gguf.alignment" },
    { "GG-08 alignment 7", align_7, NB_EFORMAT, "gguf.alignment" },
    { "GG-08 alignment 12", align_12, NB_EFORMAT, "gguf.alignment" },
    { "GG-08 alignment 2^31", align_2_31, NB_EFORMAT, "gguf.alignment" },
    { "GG-09 empty name", name_empty, NB_EFORMAT, "gguf.tensor_name" },
    { "GG-09 name of 64 bytes", name_64, NB_OK, "" },
    { "GG-09 name of 65 bytes", name_65, NB_EFORMAT, "gguf.tensor_name" },
    { "GG-09 NUL in a name", name_nul, NB_EFORMAT, "gguf.tensor_name" },
    { "GG-09 name twice", name_twice, NB_EFORMAT, "gguf.duplicate_tensor" },
    { "GG-10 five dimensions", dims_5, NB_EFORMAT, "gguf.ndims" },
    { "GG-10 2^32 - 1 dimensions", dims_max, NB_EFORMAT, "gguf.ndims" },
    { "GG-10 no dimension is one element", rank_0, NB_OK, "" },
    { "GG-11 negative dimension", dim_negative, NB_EFORMAT, "gguf.overflow" },
    { "GG-11 product overflows", dim_product, NB_EFORMAT, "gguf.overflow" },
    { "GG-11 product overflows beside a 0", dim_product_zero, NB_EFORMAT, "gguf.overflow" },
    { "GG-11 running total", total_overflow, NB_EFORMAT, "gguf.overflow" },
    { "GG-12 row of 33", block_odd, NB_EFORMAT, "gguf.block" },
    { "GG-13 withdrawn type", type_withdrawn, NB_EUNSUPPORTED, "gguf.tensor_type" },
    { "GG-13 unknown type", type_unknown, NB_EUNSUPPORTED, "gguf.tensor_type" },
    { "GG-13 a type that is only listed", listed_type, NB_OK, "" },
    { "GG-14 unaligned", offset_odd, NB_EFORMAT, "gguf.offset" },
    { "GG-14 overlap", offset_overlap, NB_EFORMAT, "gguf.offset" },
    { "GG-14 hole", offset_hole, NB_EFORMAT, "gguf.offset" },
    { "GG-15 short by one byte", short_1, NB_EFORMAT, "gguf.truncated" },
    { "GG-15 short by everything", short_all, NB_EFORMAT, "gguf.truncated" },
    { "GG-15 cut in the table", cut_in_table, NB_EFORMAT, "gguf.truncated" },
    { "GG-16 dimension 0", dim_0, NB_OK, "" },
    { "GG-17 bytes after the last tensor", trailing, NB_OK, "" },
    { "GG-23 part of a split file", split_part, NB_EUNSUPPORTED, "gguf.split" },
    { "GG-26 nothing at all, version 2", version_2, NB_OK, "" },
    { "GG-26 no tensors", no_tensors, NB_OK, "" },
    { "GG-27 text that is not UTF-8", value_not_utf8, NB_OK, "" },
};

static void file_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_buf b = { 0 };
        nb_err err = { 0 };
        nb_store *s = NULL;
        nb_status rc;
        rows[i].build(&b);
        rc = nb_gguf_open(save(&b, "row.gguf"), &s, &err);
        expect(rows[i].label, rc, &err, rows[i].want, rows[i].cls);
        if (rc == NB_OK && rows[i].build == trailing && nb_report_count(s->notes) != 1)
            fail_msg("%s: no warning", rows[i].label);
        if (rc == NB_OK && rows[i].build == listed_type) {
            float v;
            expect("GG-13 reading it", nb_store_read_f32(s, &s->tensors[0], 0, 1, &v, &err), &err, NB_EUNSUPPORTED, "gguf.tensor_type");
        }
        nb_store_close(s);
    }
}

/* A file cut at every length gives an error, never a crash, and never success. */
static void every_prefix(void **state)
{
    nb_buf b = { 0 }, cut = { 0 };
    nb_err err = { 0 };
    nb_store *s = NULL;

    (void)state;
    head(&b, 3, 2, 4);
    kv_str(&b, "general.architecture", "llama");
    kv_f32(&b, "x", 1e-5f);
    kv_arr(&b, "list", 8, 2);
    str(&b, "one");
    str(&b, "two");
    kv_bool(&b, "flag", 1);
    tensor(&b, "a", 2, 32, 2, 0);
    tensor(&b, "b", 3, 0, 0, 64);
    pad_to(&b, 32);
    zeros(&b, 64 + 12);
    for (size_t n = 0; n <= b.n; n++) {
        nb_status rc;
        nb_buf_put(&cut, b.p, n);
        nb_err_clear(&err);
        rc = nb_gguf_open(save(&cut, "cut.gguf"), &s, &err);
        if ((rc == NB_OK) != (n == b.n))
            fail_msg("%zu of %zu bytes: %d %s", n, b.n, (int)rc, err.what);
        if (rc == NB_OK) {
            assert_float_equal(nb_json_num(nb_json_get(s->meta, "x"), 0.0), 1e-5, 0.0); /* the short decimal, not the wide float */
            assert_int_equal(nb_gguf_stored_bytes(&s->tensors[0]), 36);
            assert_int_equal(s->tensors[0].shape[0], 2);
            assert_int_equal(s->tensors[0].shape[1], 32);
        }
        nb_store_close(s);
        s = NULL;
    }
    nb_buf_clear(&b);
}

/* GG-22: full tables in reasonable time. */
static void full_tables(void **state)
{
    nb_buf b = { 0 };
    nb_err err = { 0 };
    nb_store *s;

    (void)state;
    head(&b, 3, 200000, 65536);
    for (unsigned i = 0; i < 65536; i++) {
        char key[16];
        snprintf(key, sizeof key, "key.%u", i);
        kv_u32(&b, key, i);
    }
    for (unsigned i = 0; i < 200000; i++) {
        char name[16];
        snprintf(name, sizeof name, "t.%u", i);
        tensor(&b, name, 0, 0, 0, 0);
    }
    assert_int_equal(nb_gguf_open(save(&b, "full.gguf"), &s, &err), NB_OK);
    assert_int_equal(s->n_tensors, 200000);
    assert_non_null(nb_store_find(s, "t.199999"));
    assert_int_equal(nb_json_int(nb_json_get(s->meta, "key.65535"), 0), 65535);
    nb_store_close(s);
}

/* Every block type against recorded values (tests/data/gguf/README.md), whole and in odd pieces (GG-25: any bytes). */
static void block_values(void **state)
{
    char *p;
    size_t n, at = 0, types = 0;
    nb_err err = { 0 };

    (void)state;
    assert_int_equal(nb_read_file("tests/data/gguf/blocks.bin", 1 << 20, &p, &n, &err), NB_OK);
    while (at < n) {
        const uint32_t type = nb_le32(p + at), blocks = nb_le32(p + at + 4), bytes = nb_le32(p + at + 8), block = nb_le32(p + at + 12);
        const size_t count = (size_t)blocks * block;
        const char *want = p + at + 16 + (size_t)blocks * bytes;
        float *v = nb_alloc(count * 4);
        nb_buf b = { 0 };
        nb_store *s;
        head(&b, 3, 1, 0);
        tensor(&b, "w", blocks, block, type, 0);
        pad_to(&b, 32);
        nb_buf_put(&b, p + at + 16, (size_t)blocks * bytes);
        assert_int_equal(nb_gguf_open(save(&b, "blocks.gguf"), &s, &err), NB_OK);
        assert_null(s->tensors[0].data);
        assert_int_equal(s->tensors[0].dtype, NB_DT_F32);
        assert_int_equal(nb_store_read_f32(s, &s->tensors[0], 0, count, v, &err), NB_OK);
        for (size_t i = 0; i < count; i++) {
            if (nb_bits_from_f32(v[i]) != nb_le32(want + 4 * i))
                fail_msg("%s value %zu: %a, want %a", nb_gguf_type_name(type), i, (double)v[i],
                         (double)nb_f32_from_bits(nb_le32(want + 4 * i)));
        }
        for (size_t begin = 0; begin < count; begin += 37) {
            const size_t take = count - begin < 41 ? count - begin : 41;
            assert_int_equal(nb_store_read_f32(s, &s->tensors[0], begin, take, v, &err), NB_OK);
            assert_memory_equal(v, want + 4 * begin, take * 4);
        }
        nb_store_close(s);
        nb_free(v);
        at += 16 + (size_t)blocks * bytes + count * 4;
        types++;
    }
    assert_int_equal(types, 10);
    nb_free(p);
}

static void plain_values(void **state)
{
    static const unsigned char bytes[] = { 0x00, 0x3c, 0x00, 0xc0, 0x80, 0x3f, 0x00, 0x40, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f };
    static const struct {
        uint32_t type;
        size_t at, n;
        float want[2];
    } t[] = { { 1, 0, 2, { 1.0f, -2.0f } }, { 30, 4, 2, { 1.0f, 2.0f } }, { 28, 8, 1, { 1.5f, 0 } } };

    (void)state;
    for (size_t i = 0; i < NB_LEN(t); i++) {
        nb_buf b = { 0 };
        nb_err err = { 0 };
        nb_store *s;
        float v[2];
        head(&b, 3, 1, 0);
        tensor(&b, "w", t[i].n, 0, t[i].type, 0);
        pad_to(&b, 32);
        nb_buf_put(&b, bytes + t[i].at, 8);
        assert_int_equal(nb_gguf_open(save(&b, "plain.gguf"), &s, &err), NB_OK);
        assert_int_equal(nb_store_read_f32(s, &s->tensors[0], 0, t[i].n, v, &err), NB_OK);
        assert_memory_equal(v, t[i].want, t[i].n * 4);
        nb_store_close(s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(file_rows), cmocka_unit_test(every_prefix), cmocka_unit_test(full_tables),
                                        cmocka_unit_test(block_values), cmocka_unit_test(plain_values) };

    return cmocka_run_group_tests(tests, NULL, scratch_remove);
}

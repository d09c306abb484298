/* Rows PK of hardening 5.10: the pickle machine, and what it must never do. */
#include "io_test.h"
#include "pickle_build.h"

#include "io/pickle.h"

#define ROW(label, bytes, want, cls)                                                                                                       \
    {                                                                                                                                      \
        label, bytes, sizeof(bytes) - 1, want, cls                                                                                         \
    }
#define OK(label, bytes)            ROW(label, P2 bytes ".", NB_OK, "")
#define NO(label, bytes, want, cls) ROW(label, P2 bytes, want, cls)
#define OP(name, bytes)             NO("PK-01 " name, bytes ".", NB_EUNSUPPORTED, "pkl.opcode")
#define GL(module, name)            NO("PK-03 " module "." name, G(module, name) ".", NB_EUNSUPPORTED, "pkl.global")
#define UN(name, bytes)             NO("PK-18 " name, bytes ".", NB_EUNSUPPORTED, "pkl.unsupported_tensor")

static const struct {
    const char *label, *bytes;
    size_t n;
    nb_status want;
    const char *cls;
} rows[] = {
    OK("a mapping", "}" S("\1", "a") K("\1") "s"),
    OK("every plain value", "(NK\xffM\xff\xffJ\xff\xff\xff\xffG\0\0\0\0\0\0\0\0\x88\x89\x8a\2\xff\xffU\1a]}q\0h\0t"),
    OK("a tensor", FLOATS6),
    OP("INT", "I1\n"),
    OP("STRING", "S'a'\n"),
    OP("DUP", "N2"),
    OP("POP", "NN0"),
    OP("POP_MARK", "(1"),
    OP("INST", "(ios\nsystem\n"),
    OP("OBJ", "(o"),
    OP("EXT1", "\x82\1"),
    OP("EXT2", "\x83\1\0"),
    OP("EXT4", "\x84\1\0\0\0"),
    OP("STACK_GLOBAL", S("\2", "os") S("\6", "system") "\x93"),
    OP("FRAME", "\x95\0\0\0\0\0\0\0\0"),
    OP("MEMOIZE", "N\x94"),
    OP("BYTEARRAY8", "\x96\0\0\0\0\0\0\0\0"),
    OP("NEXT_BUFFER", "\x97"),
    OP("text PERSID", "Pa\n"),
    OP("text GET", "g0\n"),
    OP("text PUT", "Np0\n"),
    OP("LIST", "(l"),
    OP("DICT", "(d"),
    OP("BINBYTES", "B\0\0\0\0"),
    OP("LONG4", "\x8b\1\0\0\0\1"),
    OP("NEWOBJ_EX", "\x92"),
    OP("no opcode at all", "\xff"),
    ROW("PK-02 protocol 0", "(lp0\n.", NB_EUNSUPPORTED, "pkl.protocol"),
    ROW("PK-02 protocol 1", "\x80\1N.", NB_EUNSUPPORTED, "pkl.protocol"),
    ROW("PK-02 protocol 3", "\x80\3N.", NB_EUNSUPPORTED, "pkl.protocol"),
    ROW("PK-02 protocol 4", "\x80\4N.", NB_EUNSUPPORTED, "pkl.protocol"),
    ROW("PK-02 protocol 5", "\x80\5N.", NB_EUNSUPPORTED, "pkl.protocol"),
    ROW("PK-02 absent", "N.", NB_EUNSUPPORTED, "pkl.protocol"),
    NO("PK-02 twice", "\x80\2N.", NB_EUNSUPPORTED, "pkl.protocol"),
    GL("os", "system"),
    GL("posix", "system"),
    GL("builtins", "eval"),
    GL("__builtin__", "eval"),
    GL("torch", "load"),
    GL("torch.serialization", "load"),
    GL("collections", "OrderedDict "),
    GL("collections ", "OrderedDict"),
    GL("Collections", "OrderedDict"),
    GL("collections", "OrderedDict.fromkeys"),
    GL("collections", "Ord\xd0\xb5redDict"), /* a Cyrillic letter */
    GL("torch", "_utils._rebuild_tensor_v2"),
    GL("numpy.core.multiarray", "_reconstruct"),
    GL("numpy._core.multiarray", "scalar"),
    GL("", ""),
    NO("PK-04 a storage class called", G("torch", "FloatStorage") ")R.", NB_EUNSUPPORTED, "pkl.reduce"),
    NO("PK-04 a number called", K("\1") ")R.", NB_EUNSUPPORTED, "pkl.reduce"),
    NO("PK-04 a type called", G("torch", "float16") ")R.", NB_EUNSUPPORTED, "pkl.reduce"),
    NO("PK-04 NEWOBJ of a tensor", G("torch._utils", "_rebuild_tensor_v2") ")\x81.", NB_EUNSUPPORTED, "pkl.reduce"),
    NO("PK-04 arguments not a tuple", G("collections", "OrderedDict") "]R.", NB_EFORMAT, "pkl.args"),
    NO("PK-04 OrderedDict of a number", G("collections", "OrderedDict") K("\1") "\x85R.", NB_EFORMAT, "pkl.args"),
    NO("PK-04 tensor without arguments", G("torch._utils", "_rebuild_tensor_v2") ")R.", NB_EFORMAT, "pkl.args"),
    NO("PK-04 tensor of a number", G("torch._utils", "_rebuild_tensor_v2") "(NNNNNNtR.", NB_EFORMAT, "pkl.args"),
    NO("PK-04 parameter of nothing", G("torch._utils", "_rebuild_parameter") "NNN\x87R.", NB_EFORMAT, "pkl.args"),
    NO("PK-04 device of a number", G("torch", "device") K("\1") "\x85R.", NB_EFORMAT, "pkl.args"),
    NO("PK-04 Size of a number", G("torch", "Size") K("\1") "\x85R.", NB_EFORMAT, "pkl.args"),
    OK("PK-04 OrderedDict with NEWOBJ", G("collections", "OrderedDict") ")\x81"),
    OK("PK-04 OrderedDict as Python 2 wrote it", G("collections", "OrderedDict") "]]" S("\1", "a") "a" K("\1") "aa\x85R"),
    OK("PK-04 Size, device, type",
       "(" G("torch", "Size") K("\1") "\x85\x85R" G("torch", "device") S("\4", "cuda") K("\0") "\x86R" G("torch", "bfloat16") "t"),
    NO("PK-05 BUILD on a list", "]}b.", NB_EUNSUPPORTED, "pkl.build"),
    NO("PK-05 BUILD on a tensor", FLOATS6 "}b.", NB_EUNSUPPORTED, "pkl.build"),
    NO("PK-05 another attribute", ODICT "}" S("\x09", "__class__") "Nsb.", NB_EUNSUPPORTED, "pkl.build"),
    NO("PK-05 state not a mapping", ODICT "Nb.", NB_EUNSUPPORTED, "pkl.build"),
    OK("PK-05 PK-17 metadata", ODICT "}" S("\x09", "_metadata") ODICT "sb"),
    NO("PK-06 APPEND on nothing", "Na.", NB_EFORMAT, "pkl.stack"),
    NO("PK-06 SETITEM on nothing", "a.", NB_EFORMAT, "pkl.stack"),
    NO("PK-06 TUPLE without a mark", "Nt.", NB_EFORMAT, "pkl.stack"),
    NO("PK-06 TUPLE2 across a mark", "N(N\x86.", NB_EFORMAT, "pkl.stack"),
    NO("PK-06 APPENDS without a list", "(Ne.", NB_EFORMAT, "pkl.stack"),
    NO("PK-06 STOP with nothing", ".", NB_EFORMAT, "pkl.stack"),
    NO("PK-06 STOP with two", "NN.", NB_EFORMAT, "pkl.stack"),
    NO("PK-06 STOP with a mark", "(N.", NB_EFORMAT, "pkl.stack"),
    NO("PK-06 BINPUT of nothing", "q\0.", NB_EFORMAT, "pkl.stack"),
    NO("PK-06 no STOP", "N", NB_EFORMAT, "pkl.truncated"),
    ROW("PK-06 empty", "", NB_EFORMAT, "pkl.truncated"),
    ROW("PK-06 only PROTO", "\x80", NB_EFORMAT, "pkl.truncated"),
    NO("PK-06 cut in BININT", "J\0\0", NB_EFORMAT, "pkl.truncated"),
    NO("PK-06 cut in BINFLOAT", "G\0\0", NB_EFORMAT, "pkl.truncated"),
    NO("PK-06 cut in GLOBAL", "ctorch\nSize", NB_EFORMAT, "pkl.truncated"),
    NO("PK-06 cut in LONG1", "\x8a\4\0", NB_EFORMAT, "pkl.truncated"),
    NO("PK-07 bytes after STOP", "N.N", NB_EFORMAT, "pkl.trailing"),
    NO("PK-08 slot never written", "h\5.", NB_EFORMAT, "pkl.memo"),
    NO("PK-08 LONG_BINGET never written", "j\xff\xff\xff\xff.", NB_EFORMAT, "pkl.memo"),
    NO("PK-08 slot 2^32 - 1", "Nr\xff\xff\xff\xff.", NB_EFORMAT, "pkl.memo"),
    OK("PK-08 slot 5 before slot 0", "]q\5]q\0h\5\x87"),
    NO("PK-09 text past the end",
       "X\xff\xff\xff\x7f"
       "a.",
       NB_EFORMAT, "pkl.length"),
    NO("PK-09 length 2^32 - 1",
       "X\xff\xff\xff\xff"
       "a.",
       NB_EFORMAT, "pkl.length"),
    NO("PK-09 short text past the end",
       "U\x09"
       "a.",
       NB_EFORMAT, "pkl.length"),
    NO("PK-09 LONG1 of 9 bytes", "\x8a\x09\0\0\0\0\0\0\0\0\1.", NB_EFORMAT, "pkl.number"),
    NO("PK-09 not UTF-8", S("\1", "\xff") ".", NB_EFORMAT, "pkl.utf8"),
    NO("PK-11 a list in itself", "]q\0h\0a.", NB_EFORMAT, "pkl.cycle"),
    NO("PK-11 a circle of two", "]q\0}" S("\1", "a") "h\0sa.", NB_EFORMAT, "pkl.cycle"),
    NO("PK-12 append to a mapping", "}Na.", NB_EFORMAT, "pkl.type"),
    NO("PK-12 append to a number", K("\1") "(Ne.", NB_EFORMAT, "pkl.type"),
    NO("PK-12 item of a list", "]" S("\1", "a") "Ns.", NB_EFORMAT, "pkl.type"),
    NO("PK-12 odd number of items", "}(" S("\1", "a") "u.", NB_EFORMAT, "pkl.type"),
    NO("PK-12 a list as key", "}]Ns.", NB_EFORMAT, "pkl.key"),
    NO("PK-12 duplicate key", "}(" S("\1", "a") "N" S("\1", "a") "Nu.", NB_EFORMAT, "pkl.duplicate_key"),
    NO("PK-12 duplicate number", "}(K\1NM\1\0Nu.", NB_EFORMAT, "pkl.duplicate_key"),
    OK("PK-12 a number and a text", "}(K\1N" S("\1", "1") "Nu"),
    OK("PK-12 one key in two mappings", "}" S("\1", "a") "q\0}h\0Nss"),
    NO("PK-13 not a tuple", "NQ.", NB_EFORMAT, "pkl.storage"),
    NO("PK-13 four parts", "(NNNNtQ.", NB_EFORMAT, "pkl.storage"),
    NO("PK-13 not \"storage\"", "(" S("\6", "module") G("torch", "FloatStorage") S("\1", "0") S("\3", "cpu") K("\1") "tQ.", NB_EFORMAT,
       "pkl.storage"),
    NO("PK-13 class a text", "(" S("\7", "storage") S("\1", "a") S("\1", "0") S("\3", "cpu") K("\1") "tQ.", NB_EFORMAT, "pkl.storage"),
    NO("PK-13 class no storage", "(" S("\7", "storage") G("torch", "float16") S("\1", "0") S("\3", "cpu") K("\1") "tQ.", NB_EFORMAT,
       "pkl.storage"),
    NO("PK-13 key a number", "(" S("\7", "storage") G("torch", "FloatStorage") K("\0") S("\3", "cpu") K("\1") "tQ.", NB_EFORMAT,
       "pkl.storage"),
    NO("PK-13 key with a separator", STORE("FloatStorage", "/", K("\1")) ".", NB_EFORMAT, "pkl.storage"),
    NO("PK-13 key a dot", STORE("FloatStorage", ".", K("\1")) ".", NB_EFORMAT, "pkl.storage"),
    NO("PK-13 count negative", STORE("FloatStorage", "0", "J\xff\xff\xff\xff") ".", NB_EFORMAT, "pkl.storage"),
    NO("PK-13 count overflowing", STORE("FloatStorage", "0", "\x8a\x08\0\0\0\0\0\0\0\x7f") ".", NB_EFORMAT, "pkl.storage"),
    NO("PK-13 count a text", STORE("FloatStorage", "0", S("\1", "6")) ".", NB_EFORMAT, "pkl.storage"),
    NO("PK-14 two types", "(" STORE("FloatStorage", "0", K("\1")) STORE("IntStorage", "0", K("\1")) "t.", NB_EFORMAT,
       "pkl.storage_conflict"),
    NO("PK-14 two counts", "(" STORE("FloatStorage", "0", K("\1")) STORE("FloatStorage", "0", K("\2")) "t.", NB_EFORMAT,
       "pkl.storage_conflict"),
    OK("PK-14 the same twice", "(" STORE("FloatStorage", "0", K("\1")) STORE("FloatStorage", "0", K("\1")) "t"),
#define V(offset, size, stride) VIEW(STORE("FloatStorage", "0", K("\6")), offset, size, stride)
    NO("PK-15 one element too far", V(K("\1"), K("\2") K("\3") "\x86", K("\3") K("\1") "\x86") ".", NB_EFORMAT, "pkl.view"),
    NO("PK-15 stride too far", V(K("\0"), K("\2") "\x85", K("\6") "\x85") ".", NB_EFORMAT, "pkl.view"),
    NO("PK-15 offset behind an empty view", V(K("\7"), K("\0") "\x85", K("\1") "\x85") ".", NB_EFORMAT, "pkl.view"),
    NO("PK-15 negative size", V(K("\0"), "J\xff\xff\xff\xff\x85", K("\1") "\x85") ".", NB_EFORMAT, "pkl.view"),
    NO("PK-15 negative stride", V(K("\5"), K("\2") "\x85", "J\xff\xff\xff\xff\x85") ".", NB_EFORMAT, "pkl.view"),
    NO("PK-15 negative offset", V("J\xff\xff\xff\xff", K("\2") "\x85", K("\1") "\x85") ".", NB_EFORMAT, "pkl.view"),
    NO("PK-15 lengths differ", V(K("\0"), K("\2") "\x85", K("\1") K("\1") "\x86") ".", NB_EFORMAT, "pkl.view"),
    NO("PK-15 product overflows", V(K("\0"), "\x8a\5\0\0\0\0\1\x8a\5\0\0\0\0\1\x86", K("\0") K("\0") "\x86") ".", NB_EFORMAT, "pkl.view"),
    NO("PK-15 last element overflows", V(K("\0"), K("\3") "\x85", "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85") ".", NB_EFORMAT,
       "pkl.view"),
    NO("PK-15 size a text", V(K("\0"), S("\1", "2") "\x85", K("\1") "\x85") ".", NB_EFORMAT, "pkl.view"),
    OK("PK-15 scalar at the end", V(K("\5"), ")", ")")),
    OK("PK-15 empty at the end", V(K("\6"), K("\0") "\x85", K("\1") "\x85")),
    OK("PK-17 overlapping", V(K("\0"), K("\4") K("\3") "\x86", K("\1") K("\1") "\x86")),
    OK("PK-17 Parameter", G("torch._utils", "_rebuild_parameter") FLOATS6 "\x88" ODICT "\x87R"),
    UN("complex", STORE("ComplexFloatStorage", "0", K("\1"))),
    UN("quantized", G("torch._utils", "_rebuild_qtensor")),
    UN("sparse", G("torch._utils", "_rebuild_sparse_tensor")),
    UN("nested", G("torch._utils", "_rebuild_nested_tensor")),
    UN("meta", G("torch._utils", "_rebuild_meta_tensor_no_storage")),
    UN("conjugate",
       G("torch._utils", "_rebuild_tensor_v2") "(" STORE("FloatStorage", "0", K("\6")) K("\0") "))"
                                                                                               "\x89" ODICT "}" S("\4", "conj") "\x88stR"),
};

static nb_status run(const char *p, size_t n, nb_pkl **v, nb_err *err)
{
    return nb_pkl_run((const unsigned char *)p, n, "data.pkl", v, NULL, err);
}

static void opcode_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_err err = { 0 };
        nb_pkl *v = NULL;
        char *copy = nb_alloc(rows[i].n); /* its own block: reads past the end are seen */
        memcpy(copy, rows[i].bytes, rows[i].n);
        expect(rows[i].label, run(copy, rows[i].n, &v, &err), &err, rows[i].want, rows[i].cls);
        if (rows[i].want != NB_OK && strncmp(err.subject, "data.pkl offset ", 16) != 0)
            fail_msg("%s: no place: \"%s\"", rows[i].label, err.subject);
        nb_pkl_close(v);
        nb_free(copy);
    }
}

static void values(void **state)
{
    static const char bytes[] = P2 "}(" S("\1", "a") "J\xfe\xff\xff\xff" S("\1", "b") "\x8a\2\x00\x80" S(
        "\1", "c") "\x8a\x08\0\0\0\0\0\0\0\x80" S("\1", "d") "M\xff\xff" S("\1", "e") "\x8a\0u.";
    static const int64_t want[] = { -2, -32768, INT64_MIN, 65535, 0 };
    nb_err err = { 0 };
    nb_pkl *v = NULL;
    nb_pkl_ref key, value;
    uint32_t at = 0;
    size_t n = 0, len;

    (void)state;
    assert_int_equal(run(bytes, sizeof bytes - 1, &v, &err), NB_OK);
    for (; nb_pkl_next(v, nb_pkl_root(v), &at, &key, &value); n++) {
        assert_int_equal(nb_pkl_str(v, key, &len)[0], 'a' + (int)n);
        assert_int_equal(nb_pkl_int(v, value, 1), want[n]);
    }
    assert_int_equal(n, NB_LEN(want));
    nb_pkl_close(v);
}

/* The sentence names global and place (hardening 3.2). */
static void sentence(void **state)
{
    static const char bytes[] = P2 "}" S("\x0a", "abcdefghij") G("os", "system") ".";
    nb_err err = { 0 };
    nb_pkl *v = NULL;

    (void)state;
    expect("PK-03", run(bytes, sizeof bytes - 1, &v, &err), &err, NB_EUNSUPPORTED, "pkl.global");
    assert_string_equal(err.subject, "data.pkl offset 18");
    assert_non_null(strstr(err.what, "global \"os.system\" is not allowed"));
}

/* n times a piece, between a head and a tail. */
static char *repeat(const char *head, const char *piece, size_t each, size_t n, const char *tail, size_t *bytes)
{
    nb_buf b = { 0 };

    nb_buf_put(&b, P2, 2);
    nb_buf_puts(&b, head);
    for (size_t i = 0; i < n; i++)
        nb_buf_put(&b, piece, each);
    nb_buf_puts(&b, tail);
    assert_false(b.failed);
    *bytes = b.n;
    return b.p;
}

static void limits(void **state)
{
    nb_err err = { 0 };
    nb_pkl *v = NULL;
    nb_buf b = { 0 };
    size_t n;
    char *p;

    (void)state;
    /* PK-10: 9 levels of ten shared lists */
    nb_buf_put(&b, P2, 2);
    nb_buf_puts(&b, "(](NNNNNNNNNNe");
    for (int level = 0; level < 9; level++) {
        nb_buf_put(&b, (const char[]){ 'q', (char)level, ']', '(' }, 4);
        for (int i = 0; i < 10; i++)
            nb_buf_put(&b, (const char[]){ 'h', (char)level }, 2);
        nb_buf_puts(&b, "e");
    }
    nb_buf_puts(&b, "t."); /* the levels, as a tuple */
    expect("PK-10 shared lists", run(b.p, b.n, &v, &err), &err, NB_ELIMIT, "limit.pickle_nodes");
    nb_err_clear(&err);
    nb_buf_clear(&b);

    p = repeat("", "]", 1, 256, "", &n);
    nb_buf_put(&b, p, n);
    for (int i = 0; i < 255; i++)
        nb_buf_puts(&b, "a");
    nb_buf_puts(&b, ".");
    expect("PK-11 256 levels", run(b.p, b.n, &v, &err), &err, NB_OK, "");
    nb_pkl_close(v);
    nb_free(p);
    nb_buf_clear(&b);

    p = repeat("", "]", 1, 1000000, "", &n);
    nb_buf_put(&b, p, n);
    for (int i = 0; i < 999999; i++)
        nb_buf_putc(&b, 'a');
    nb_buf_puts(&b, ".");
    expect("PK-11 a million levels", run(b.p, b.n, &v, &err), &err, NB_ELIMIT, "limit.pickle_depth");
    nb_err_clear(&err);
    nb_free(p);
    nb_buf_clear(&b);

    p = repeat("N", "q\0", 2, NB_PKL_OPS, ".", &n);
    expect("PK-20 64 M + 1 opcodes", run(p, n, &v, &err), &err, NB_ELIMIT, "limit.pickle_ops");
    nb_err_clear(&err);
    nb_free(p);

    p = nb_calloc(1, (size_t)NB_PKL_BYTES + 1);
    expect("PK-20 256 MiB + 1 bytes", run(p, (size_t)NB_PKL_BYTES + 1, &v, &err), &err, NB_ELIMIT, "limit.pickle_bytes");
    nb_free(p);
}

/* U-02: a small multiple of the bytes, whatever they are. */
static void memory(void **state)
{
    static const char *const pieces[] = { "]", "}", "N\x85", "K\1", "(", ")", "X\0\0\0\0" };
    static const size_t sizes[] = { 1, 1, 2, 2, 1, 1, 5 };
    uint64_t last;

    (void)state;
    for (size_t i = 0; i < NB_LEN(pieces); i++) {
        nb_err err = { 0 };
        nb_pkl *v = NULL;
        size_t n;
        char *p = repeat("", pieces[i], sizes[i], 4000000, ".", &n);
        const uint64_t before = nb_mem_now();
        uint64_t peak;
        last = nb_mem_peak();
        expect(pieces[i], run(p, n, &v, &err), &err, NB_EFORMAT, "pkl.stack");
        peak = nb_mem_peak();
        nb_free(p);
        if (peak > last && peak - before > 16 * n + (16u << 20)) /* a peak of this row */
            fail_msg("U-02 \"%s\": %zu bytes took %zu", pieces[i], n, (size_t)(peak - before));
    }
}

static void allocations(void **state)
{
    static const char bytes[] = P2 "}" S("\1", "a") "q\0" FLOATS6 "s.";
    nb_status rc = NB_ENOMEM;

    (void)state;
    for (uint64_t i = 1; rc != NB_OK; i++) {
        nb_err err = { 0 };
        nb_pkl *v = NULL;
        assert_true(i < 1000);
        nb_mem_fail_at(i);
        rc = run(bytes, sizeof bytes - 1, &v, &err);
        nb_mem_fail_at(0);
        if (rc != NB_OK)
            expect("out of memory", rc, &err, NB_ENOMEM, "mem.alloc");
        nb_pkl_close(v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(opcode_rows), cmocka_unit_test(values), cmocka_unit_test(sentence),
                                        cmocka_unit_test(memory),      cmocka_unit_test(limits), cmocka_unit_test(allocations) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

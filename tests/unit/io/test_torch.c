/* Rows ZP of hardening 5.9: the zip container of torch.save; rows PK that need a whole file; what torch itself wrote. */
#include "io_test.h"
#include "pickle_build.h"

#include "io/io.h"

/* ---- archives made here ---- */

typedef struct file {
    const char *name;
    const char *p;
    size_t n;
} file;

typedef struct archive {
    nb_buf b;
    size_t local[16], data[16], central[16], zip64, end; /* offsets */
} archive;

static void le(nb_buf *b, uint64_t v, int bytes)
{
    unsigned char p[16] = { 0 };

    nb_put_le64(p, v);
    nb_buf_put(b, p, (size_t)bytes);
}

static uint32_t crc32_of(const char *p, size_t n)
{
    uint32_t c = 0xFFFFFFFFu;

    for (size_t i = 0; i < n; i++) {
        c ^= (unsigned char)p[i];
        for (int k = 0; k < 8; k++)
            c = c >> 1 ^ (c & 1 ? 0xEDB88320u : 0);
    }
    return ~c;
}

/* As PyTorch writes: descriptors behind the data and sizes of zero before it (flag 8), padding field "FB", zip64 end
 * record. Without `as_torch`: plain local headers, no zip64. */
static void build(archive *a, const file *f, size_t n, bool as_torch)
{
    nb_buf *b = &a->b;

    memset(a, 0, sizeof *a);
    for (size_t i = 0; i < n; i++) {
        const uint32_t crc = crc32_of(f[i].p, f[i].n);
        a->local[i] = b->n;
        le(b, 0x04034b50, 4);
        le(b, 0, 2);
        le(b, as_torch ? 8 : 0, 2);
        le(b, 0, 6);
        le(b, as_torch ? 0 : crc, 4);
        le(b, as_torch ? 0 : f[i].n, 4);
        le(b, as_torch ? 0 : f[i].n, 4);
        le(b, strlen(f[i].name), 2);
        le(b, as_torch ? 7 : 0, 2);
        nb_buf_puts(b, f[i].name);
        if (as_torch)
            nb_buf_put(b, "FB\3\0ZZZ", 7);
        a->data[i] = b->n;
        nb_buf_put(b, f[i].p, f[i].n);
        if (as_torch) {
            le(b, 0x08074b50, 4);
            le(b, crc, 4);
            le(b, f[i].n, 4);
            le(b, f[i].n, 4);
        }
    }
    for (size_t i = 0; i < n; i++) {
        a->central[i] = b->n;
        le(b, 0x02014b50, 4);
        le(b, 0, 4);
        le(b, as_torch ? 8 : 0, 2);
        le(b, 0, 6);
        le(b, crc32_of(f[i].p, f[i].n), 4);
        le(b, f[i].n, 4);
        le(b, f[i].n, 4);
        le(b, strlen(f[i].name), 2);
        le(b, 0, 12);
        le(b, a->local[i], 4);
        nb_buf_puts(b, f[i].name);
    }
    a->zip64 = b->n;
    if (as_torch) {
        le(b, 0x06064b50, 4);
        le(b, 44, 8);
        le(b, 0, 4);
        le(b, 0, 8);
        le(b, n, 8);
        le(b, n, 8);
        le(b, a->zip64 - a->central[0], 8);
        le(b, a->central[0], 8);
        le(b, 0x07064b50, 4);
        le(b, 0, 4);
        le(b, a->zip64, 8);
        le(b, 1, 4);
    }
    a->end = b->n;
    le(b, 0x06054b50, 4);
    le(b, 0, 4);
    le(b, n, 2);
    le(b, n, 2);
    le(b, a->zip64 - a->central[0], 4);
    le(b, a->central[0], 4);
    le(b, 0, 2);
    assert_false(b->failed);
}

#define PKL(bytes)  bytes, sizeof(bytes) - 1
#define TEXT(bytes) bytes, sizeof(bytes) - 1
static const char floats[] = "\0\0\x80\x3f\0\0\0\x40\0\0\x40\x40\0\0\x80\x40\0\0\xa0\x40\0\0\xc0\x40"; /* 1 to 6 */
static const char one_tensor[] = P2 "}" S("\1", "w") FLOATS6 "s.";

enum { PICKLE, ORDER, DATA, VERSION, N_FILES };
static const file base_files[N_FILES] = { { "m/data.pkl", one_tensor, sizeof one_tensor - 1 },
                                          { "m/byteorder", TEXT("little") },
                                          { "m/data/0", floats, sizeof floats - 1 },
                                          { "m/version", TEXT("3\n") } };

static void open_as(const char *label, const archive *a, const char *name, nb_status want, const char *cls)
{
    nb_err err = { 0 };
    nb_store *s = NULL;
    nb_status rc = nb_torch_open(scratch_file(name, a->b.p, a->b.n), &s, &err);

    if (rc == NB_OK)
        rc = nb_store_still(s, &err);
    expect(label, rc, &err, want, cls);
    nb_store_close(s);
}

/* ---- one patch each ---- */

typedef enum place { LOCAL, BODY, CENTRAL, ZIP64, END, AT } place;

static const struct {
    const char *label;
    bool as_torch;
    place place;
    int entry;  /* of LOCAL, BODY, CENTRAL */
    size_t off; /* from there */
    const char *bytes;
    size_t n;
    nb_status want;
    const char *cls;
} patches[] = {
#define TO(bytes) bytes, sizeof(bytes) - 1
    { "untouched, plain", false, AT, 0, 0, TO("P"), NB_OK, "" },
    { "untouched, as PyTorch; ZP-17 padding, unaligned data", true, AT, 0, 0, TO("P"), NB_OK, "" },
    { "ZP-01 no local header first", true, AT, 0, 0, TO("QK"), NB_EFORMAT, "zip.magic" },
    { "ZP-01 no end record", true, END, 0, 0, TO("QK"), NB_EFORMAT, "zip.eocd" },
    { "ZP-01 comment past the end", true, END, 0, 20, TO("\1"), NB_EFORMAT, "zip.eocd" },
    { "ZP-02 flagged and absent", false, END, 0, 16, TO("\xff\xff\xff\xff"), NB_EFORMAT, "zip.zip64" },
    { "ZP-02 count contradicts", true, END, 0, 8, TO("\5\0\5\0"), NB_EFORMAT, "zip.zip64" },
    { "ZP-02 size contradicts", true, ZIP64, 0, 40, TO("\1"), NB_EFORMAT, "zip.zip64" },
    { "ZP-02 locator astray", true, ZIP64, 0, 56 + 8, TO("\1"), NB_EFORMAT, "zip.zip64" },
    { "ZP-02 locator past the end", true, ZIP64, 0, 56 + 8, TO("\xff\xff\xff\xff\xff\xff\xff\xff"), NB_EFORMAT, "zip.zip64" },
    { "ZP-02 record length overflows", true, ZIP64, 0, 4, TO("\xff\xff\xff\xff\xff\xff\xff\xff"), NB_EFORMAT, "zip.zip64" },
    { "ZP-02 entry flagged, no field", false, CENTRAL, DATA, 24, TO("\xff\xff\xff\xff"), NB_EFORMAT, "zip.zip64" },
    { "ZP-03 directory outside", false, END, 0, 16, TO("\xff\xff\xff\x7f"), NB_EFORMAT, "zip.central" },
    { "ZP-03 directory too short", false, END, 0, 12, TO("\1\0"), NB_EFORMAT, "zip.central" },
    { "ZP-03 one entry more", false, END, 0, 8, TO("\5\0\5\0"), NB_EFORMAT, "zip.central" },
    { "ZP-03 one entry less", false, END, 0, 8, TO("\3\0\3\0"), NB_EFORMAT, "zip.central" },
    { "ZP-03 disk number", false, END, 0, 4, TO("\1"), NB_EFORMAT, "zip.central" },
    { "ZP-03 entry on another disk", false, CENTRAL, DATA, 34, TO("\1"), NB_EFORMAT, "zip.central" },
    { "ZP-05 local name", true, LOCAL, DATA, 30, TO("n"), NB_EFORMAT, "zip.name_mismatch" },
    { "ZP-06 local size", false, LOCAL, DATA, 22, TO("\1"), NB_EFORMAT, "zip.header_mismatch" },
    { "ZP-06 local method", true, LOCAL, DATA, 8, TO("\x08"), NB_EFORMAT, "zip.header_mismatch" },
    { "ZP-06 local checksum", false, LOCAL, DATA, 14, TO("\1"), NB_EFORMAT, "zip.header_mismatch" },
    { "ZP-06 local flags", false, LOCAL, DATA, 6, TO("\x08"), NB_EFORMAT, "zip.header_mismatch" },
    { "ZP-06 no local header there", false, CENTRAL, DATA, 42, TO("\1\0\0\0"), NB_EFORMAT, "zip.header_mismatch" },
    { "ZP-06 descriptor", true, LOCAL, VERSION, (size_t)-1, TO("\1"), NB_EFORMAT, "zip.header_mismatch" },
    { "ZP-08 deflated", false, CENTRAL, DATA, 10, TO("\x08"), NB_EUNSUPPORTED, "zip.method" },
    { "ZP-09 encrypted", false, CENTRAL, DATA, 8, TO("\1"), NB_EUNSUPPORTED, "zip.flags" },
    { "ZP-09 patch data", false, CENTRAL, DATA, 8, TO("\x20"), NB_EUNSUPPORTED, "zip.flags" },
    { "ZP-09 strong encryption", false, CENTRAL, DATA, 8, TO("\x40"), NB_EUNSUPPORTED, "zip.flags" },
    { "ZP-09 masked headers", false, CENTRAL, DATA, 8, TO("\0\x20"), NB_EUNSUPPORTED, "zip.flags" },
    { "ZP-10 symbolic link", false, CENTRAL, DATA, 5, TO("\3"), NB_OK, "" }, /* made on Unix; no mode is no link */
    { "ZP-15 checksum of a storage", true, BODY, DATA, 0, TO("\1"), NB_EFORMAT, "zip.crc" },
    { "ZP-15 checksum of data.pkl", true, BODY, PICKLE, 5, TO("\2"), NB_EFORMAT, "zip.crc" },
    { "ZP-16 two sizes", false, CENTRAL, DATA, 20, TO("\1"), NB_EFORMAT, "zip.size" },
    { "ZP-16 past the end", false, CENTRAL, DATA, 20, TO("\0\0\0\1\0\0\0\1"), NB_EFORMAT, "zip.size" },
    { "ZP-16 offset past the end", false, CENTRAL, DATA, 42, TO("\0\0\0\x7f"), NB_EFORMAT, "zip.size" },
    { "ZP-17 local extra field overruns", true, LOCAL, DATA, 30 + 8 + 2, TO("\4"), NB_EFORMAT, "zip.extra" },
};

static void patch_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(patches); i++) {
        archive a;
        size_t at;
        build(&a, base_files, N_FILES, patches[i].as_torch);
        at = patches[i].place == LOCAL     ? a.local[patches[i].entry]
             : patches[i].place == BODY    ? a.data[patches[i].entry]
             : patches[i].place == CENTRAL ? a.central[patches[i].entry]
             : patches[i].place == ZIP64   ? a.zip64
             : patches[i].place == END     ? a.end
                                           : 0;
        memcpy(a.b.p + at + patches[i].off, patches[i].bytes, patches[i].n);
        open_as(patches[i].label, &a, "patch.bin", patches[i].want, patches[i].cls);
        nb_buf_clear(&a.b);
    }
}

/* ---- one record changed or added ---- */

#define NESTED P2 "}" S("\5", "model") "}" S("\1", "w") FLOATS6 "ss."
static const struct {
    const char *label;
    int which; /* of base_files; N_FILES: one more */
    file to;
    nb_status want;
    const char *cls;
} variants[] = {
    { "ZP-07 two entries of one name", N_FILES, { "m/data.pkl", TEXT("x") }, NB_EFORMAT, "zip.duplicate_name" },
    { "ZP-07 equal ignoring case", N_FILES, { "m/DATA.PKL", TEXT("x") }, NB_EFORMAT, "zip.duplicate_name" },
    { "ZP-10 empty name", N_FILES, { "", TEXT("x") }, NB_EFORMAT, "zip.name" },
    { "ZP-10 absolute", N_FILES, { "/m/x", TEXT("x") }, NB_EFORMAT, "zip.name" },
    { "ZP-10 drive", N_FILES, { "c:/m/x", TEXT("x") }, NB_EFORMAT, "zip.name" },
    { "ZP-10 upwards", N_FILES, { "m/../x", TEXT("x") }, NB_EFORMAT, "zip.name" },
    { "ZP-10 upwards at the end", N_FILES, { "m/..", TEXT("x") }, NB_EFORMAT, "zip.name" },
    { "ZP-10 backslash", N_FILES, { "m\\x", TEXT("x") }, NB_EFORMAT, "zip.name" },
    { "ZP-10 control byte", N_FILES, { "m/\x1b", TEXT("x") }, NB_EFORMAT, "zip.name" },
    { "ZP-10 not UTF-8", N_FILES, { "m/\xff", TEXT("x") }, NB_EFORMAT, "zip.name" },
    { "ZP-10 two dots inside a name", N_FILES, { "m/a..b", TEXT("x") }, NB_OK, "" },
    { "ZP-11 another top folder", N_FILES, { "n/data.pkl", TEXT("x") }, NB_EFORMAT, "zip.prefix" },
    { "ZP-11 no folder", N_FILES, { "data.pkl", TEXT("x") }, NB_EFORMAT, "zip.prefix" },
    { "ZP-12 no data.pkl", PICKLE, { "m/date.pkl", TEXT("x") }, NB_EFORMAT, "torch.missing_record" },
    { "ZP-12 no storage", DATA, { "m/data/1", floats, sizeof floats - 1 }, NB_EFORMAT, "torch.missing_record" },
    { "ZP-13 big-endian", ORDER, { "m/byteorder", TEXT("big") }, NB_EUNSUPPORTED, "torch.byteorder" },
    { "ZP-13 some order", ORDER, { "m/byteorder", TEXT("middle") }, NB_EFORMAT, "torch.byteorder" },
    { "ZP-13 no order, as old archives", ORDER, { "m/other", TEXT("x") }, NB_OK, "" },
    { "ZP-13 version 11", VERSION, { "m/version", TEXT("11\n") }, NB_EUNSUPPORTED, "torch.version" },
    { "ZP-13 version 10", VERSION, { "m/version", TEXT("10\n") }, NB_OK, "" },
    { "ZP-13 version 0", VERSION, { "m/version", TEXT("0\n") }, NB_EUNSUPPORTED, "torch.version" },
    { "ZP-13 version a word", VERSION, { "m/version", TEXT("three") }, NB_EUNSUPPORTED, "torch.version" },
    { "ZP-13 version absent", VERSION, { "m/other", TEXT("3\n") }, NB_EUNSUPPORTED, "torch.version" },
    { "ZP-14 storage too short", DATA, { "m/data/0", floats, sizeof floats - 2 }, NB_EFORMAT, "torch.record_size" },
    { "ZP-14 storage too long", DATA, { "m/data/0", floats, sizeof floats }, NB_EFORMAT, "torch.record_size" },
    { "ZP-18 a nested archive", N_FILES, { "m/inner.zip", TEXT("PK\3\4junk") }, NB_OK, "" },
    { "ZP-18 unknown records", N_FILES, { "m/.data/serialization_id", TEXT("0") }, NB_OK, "" },
    { "ZP-19 TorchScript code", N_FILES, { "m/code/__torch__.py", TEXT("x") }, NB_EUNSUPPORTED, "torch.torchscript" },
    { "ZP-19 TorchScript constants", N_FILES, { "m/constants.pkl", TEXT("x") }, NB_EUNSUPPORTED, "torch.torchscript" },
    { "ZP-19 numpy archive", N_FILES, { "m/w.npy", TEXT("x") }, NB_EFORMAT, "fmt.mismatch" },
    { "PK-03 a global", PICKLE, { "m/data.pkl", PKL(P2 G("os", "system") ".") }, NB_EUNSUPPORTED, "pkl.global" },
    { "PK-07 bytes after STOP", PICKLE, { "m/data.pkl", PKL(P2 "N.N") }, NB_EFORMAT, "pkl.trailing" },
    { "PK-16 expanded to 16 MiB",
      PICKLE,
      { "m/data.pkl", PKL(P2 "}" S("\1", "w") VIEW(STORE("FloatStorage", "0", K("\6")), K("\0"), "J\0\0\x40\0\x85", K("\0") "\x85") "s.") },
      NB_OK,
      "" },
    { "PK-16 expanded to 32 MiB",
      PICKLE,
      { "m/data.pkl", PKL(P2 "}" S("\1", "w") VIEW(STORE("FloatStorage", "0", K("\6")), K("\0"), "J\0\0\x80\0\x85", K("\0") "\x85") "s.") },
      NB_ELIMIT,
      "limit.expand" },
    { "PK-16 expanded to 2^60 bytes",
      PICKLE,
      { "m/data.pkl", PKL(P2 "}" S("\1", "w")
                              VIEW(STORE("FloatStorage", "0", K("\6")), K("\0"), "\x8a\x08\0\0\0\0\0\0\0\x04\x85", K("\0") "\x85") "s.") },
      NB_ELIMIT,
      "limit.expand" },
    { "PK-19 a number", PICKLE, { "m/data.pkl", PKL(P2 "K\1.") }, NB_EFORMAT, "torch.no_state_dict" },
    { "PK-19 a list of tensors", PICKLE, { "m/data.pkl", PKL(P2 "]" FLOATS6 "a.") }, NB_EFORMAT, "torch.no_state_dict" },
    { "PK-19 a mapping without tensors", PICKLE, { "m/data.pkl", PKL(P2 "}" S("\1", "w") "Ns.") }, NB_EFORMAT, "torch.no_state_dict" },
    { "PK-19 numbers as names", PICKLE, { "m/data.pkl", PKL(P2 "}K\1" FLOATS6 "s.") }, NB_EFORMAT, "torch.no_state_dict" },
    { "PK-19 one level down", PICKLE, { "m/data.pkl", PKL(NESTED) }, NB_OK, "" },
    { "PK-19 two candidates",
      PICKLE,
      { "m/data.pkl", PKL(P2 "}(" S("\1", "a") "}" S("\1", "w") FLOATS6 "s" S("\1", "b") "}" S("\1", "w") FLOATS6 "su.") },
      NB_EFORMAT,
      "torch.no_state_dict" },
    { "a name with a zero byte", PICKLE, { "m/data.pkl", PKL(P2 "}" S("\3", "a\0b") FLOATS6 "s.") }, NB_EFORMAT, "torch.name" },
    { "an empty name", PICKLE, { "m/data.pkl", PKL(P2 "}" S("\0", "") FLOATS6 "s.") }, NB_EFORMAT, "torch.name" },
};

static void variant_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(variants); i++) {
        file f[N_FILES + 1];
        archive a;
        memcpy(f, base_files, sizeof base_files);
        f[variants[i].which] = variants[i].to;
        build(&a, f, N_FILES + (variants[i].which == N_FILES), i % 2);
        open_as(variants[i].label, &a, "variant.bin", variants[i].want, variants[i].cls);
        nb_buf_clear(&a.b);
    }
}

/* ---- shapes of the container that no patch gives ---- */

static void put_at(archive *a, size_t at, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        a->b.p[at + (size_t)i] = (char)(v >> (8 * i));
}

static void container_rows(void **state)
{
    archive a;
    char name[NB_ESC_CAP * 2];
    file f[N_FILES + 1];

    (void)state;
    build(&a, base_files, N_FILES, false); /* a comment that holds a second end record */
    put_at(&a, a.end + 20, 22, 2);
    nb_buf_put(&a.b, a.b.p + a.end, 20);
    le(&a.b, 0, 2);
    open_as("ZP-01 two possible end records", &a, "x.bin", NB_EFORMAT, "zip.ambiguous");
    nb_buf_clear(&a.b);

    build(&a, base_files, N_FILES, false);
    put_at(&a, a.end + 20, 5, 2);
    nb_buf_puts(&a.b, "hello");
    open_as("ZP-01 a comment", &a, "x.bin", NB_OK, "");
    nb_buf_puts(&a.b, "!");
    open_as("ZP-01 a comment that ends early", &a, "x.bin", NB_EFORMAT, "zip.eocd");
    nb_buf_clear(&a.b);

    build(&a, base_files, N_FILES, false); /* entry VERSION is inside entry DATA */
    put_at(&a, a.central[DATA] + 20, sizeof floats + 3, 4);
    put_at(&a, a.central[DATA] + 24, sizeof floats + 3, 4);
    put_at(&a, a.local[DATA] + 18, sizeof floats + 3, 4);
    put_at(&a, a.local[DATA] + 22, sizeof floats + 3, 4);
    open_as("ZP-04 entries overlap", &a, "x.bin", NB_EFORMAT, "zip.overlap");
    nb_buf_clear(&a.b);

    build(&a, base_files, N_FILES, false); /* FS-17: bytes that belong to nobody */
    put_at(&a, a.central[DATA] + 20, sizeof floats - 3, 4);
    put_at(&a, a.central[DATA] + 24, sizeof floats - 3, 4);
    put_at(&a, a.local[DATA] + 18, sizeof floats - 3, 4);
    put_at(&a, a.local[DATA] + 22, sizeof floats - 3, 4);
    open_as("ZP-04 FS-17 a hole between entries", &a, "x.bin", NB_EFORMAT, "zip.gap");
    nb_buf_clear(&a.b);

    build(&a, base_files, N_FILES, false);
    a.b.p[a.central[DATA] + 5] = 3;
    put_at(&a, a.central[DATA] + 38, 0xA1FF0000u, 4);
    open_as("ZP-10 a symbolic link", &a, "x.bin", NB_EFORMAT, "zip.entry_type");
    put_at(&a, a.central[DATA] + 38, 0x61B60000u, 4);
    open_as("ZP-10 a block device", &a, "x.bin", NB_EFORMAT, "zip.entry_type");
    put_at(&a, a.central[DATA] + 38, 0x81A40000u, 4);
    open_as("ZP-10 a plain file with its mode", &a, "x.bin", NB_OK, "");
    nb_buf_clear(&a.b);

    memcpy(f, base_files, sizeof base_files);
    memset(name, 'a', sizeof name);
    memcpy(name, "m/", 2);
    name[1024] = '\0';
    f[N_FILES] = (file){ name, TEXT("x") };
    build(&a, f, N_FILES + 1, true);
    open_as("ZP-10 a name of 1024 bytes", &a, "x.bin", NB_OK, "");
    nb_buf_clear(&a.b);
    name[1024] = 'a';
    name[1025] = '\0';
    build(&a, f, N_FILES + 1, true);
    open_as("ZP-10 a name of 1025 bytes", &a, "x.bin", NB_EFORMAT, "zip.name");
    nb_buf_clear(&a.b);

    build(&a, base_files, N_FILES, true);
    put_at(&a, a.central[DATA] + 16, 0, 4);
    put_at(&a, a.data[DATA] + sizeof floats - 1 + 4, 0, 4);
    a.b.p[a.data[DATA]] = 1;
    open_as("ZP-15 no checksum", &a, "x.bin", NB_OK, "");
    nb_buf_clear(&a.b);

    build(&a, base_files, N_FILES, true);
    put_at(&a, a.zip64 + 24, 1000001, 8);
    put_at(&a, a.zip64 + 32, 1000001, 8);
    put_at(&a, a.end + 8, 0xFFFFFFFFu, 4);
    open_as("ZP-20 1,000,001 entries", &a, "x.bin", NB_ELIMIT, "limit.zip_entries");
    nb_buf_clear(&a.b);
}

/* ZP-19, FS-05, FS-15: other contents under these names. */
static void other_files(void **state)
{
    static char tar[512];
    static const struct {
        const char *label, *p;
        size_t n;
        nb_status want;
        const char *cls;
    } rows[] = {
        { "FS-05 empty", TEXT(""), NB_EFORMAT, "zip.magic" },
        { "three bytes", TEXT("PK\3"), NB_EFORMAT, "zip.magic" },
        { "only a magic", TEXT("PK\3\4"), NB_EFORMAT, "zip.eocd" },
        { "words", TEXT("hello, world: this is no checkpoint"), NB_EFORMAT, "zip.magic" },
        { "ZP-19 tar", tar, sizeof tar, NB_EUNSUPPORTED, "torch.legacy" },
        { "ZP-19 bare pickle", TEXT("\x80\2}q\0."), NB_EUNSUPPORTED, "torch.legacy" },
        { "ZP-19 numpy array", TEXT("\x93NUMPY\1\0v\0{}"), NB_EFORMAT, "fmt.mismatch" },
        { "FS-16 web page", TEXT("<!DOCTYPE html><html></html>"), NB_EFORMAT, "fmt.mismatch" },
        { "FIL-009 LFS pointer", TEXT("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"), NB_EFORMAT, "fmt.mismatch" },
    };

    (void)state;
    memcpy(tar + 257, "ustar", 5);
    for (size_t i = 0; i < NB_LEN(rows); i++) {
        nb_err err = { 0 };
        nb_store *s = NULL;
        expect(rows[i].label, nb_open(scratch_file("other.bin", rows[i].p, rows[i].n), &s, &err), &err, rows[i].want, rows[i].cls);
    }
}

/* ---- values ---- */

static unsigned hex(char c)
{
    return c <= '9' ? (unsigned)(c - '0') : (unsigned)(c - 'a' + 10);
}

static void check_values(const char *path, const char *note)
{
    nb_json *want = NULL;
    nb_store *s = NULL;
    nb_err err = { 0 };
    bool noted = note[0] == '\0', info = false;

    assert_int_equal(nb_json_parse_file("tests/data/torch/values.json", 1 << 20, "json", &want, &err), NB_OK);
    if (nb_open(path, &s, &err) != NB_OK)
        fail_msg("%s: %s %s", path, err.subject, err.what);
    assert_int_equal(s->n_tensors, nb_json_len(want));
    for (size_t i = 0; i < s->n_tensors; i++) { /* in the order of the mapping */
        const nb_tensor *t = &s->tensors[i];
        const char *name;
        const nb_json *v = nb_json_member(want, i, &name), *shape = nb_json_get(v, "shape");
        const char *bytes = nb_json_str(nb_json_get(v, "bytes"), "");
        if (strcmp(t->name, name) != 0 || t->dtype != nb_dtype_from_torch(nb_json_str(nb_json_get(v, "dtype"), "")) ||
            t->rank != nb_json_len(shape) || 2 * t->n_bytes != strlen(bytes) || nb_store_find(s, name) != t)
            fail_msg("%s: tensor %zu is %s, want %s", path, i, t->name, name);
        for (unsigned k = 0; k < t->rank; k++)
            assert_int_equal(t->shape[k], nb_json_int(nb_json_at(shape, k), -1));
        for (uint64_t k = 0; k < t->n_bytes; k++) {
            if (t->data[k] != (hex(bytes[2 * k]) << 4 | hex(bytes[2 * k + 1])))
                fail_msg("%s: %s differs at byte %d", path, name, (int)k);
        }
        nb_store_drop(s, t);
    }
    for (size_t i = 0; i < nb_report_count(s->notes); i++) {
        noted = noted || strcmp(nb_report_at(s->notes, i)->cls, note) == 0;
        info = info || strcmp(nb_report_at(s->notes, i)->rule, "FIL-002") == 0;
    }
    if (!noted || !info)
        fail_msg("%s: no note %s", path, noted ? "FIL-002" : note);
    assert_int_equal(nb_store_still(s, &err), NB_OK);
    assert_int_equal(nb_store_still(s, &err), NB_OK);
    nb_store_close(s);
    nb_json_free(want);
}

/* PK-17 and more: files of torch 2.13, all element types, tied, transposed, stepped, expanded. */
static void recorded(void **state)
{
    (void)state;
    check_values("tests/data/torch/zip.bin", "");
    check_values("tests/data/torch/legacy.bin", "");
    check_values("tests/data/torch/nocrc.bin", "zip.crc");
    check_values("tests/data/torch/nocrc.bin", "torch.nested");
}

/* Prefixes and single changed bytes of real files: a verdict, never a crash; what opens can be read. */
static void damaged(void **state)
{
    static const char *const names[] = { "tests/data/torch/zip.bin", "tests/data/torch/legacy.bin" };

    (void)state;
    for (size_t f = 0; f < NB_LEN(names); f++) {
        nb_err err = { 0 };
        char *p;
        size_t n;
        assert_int_equal(nb_read_file(names[f], 1 << 20, &p, &n, &err), NB_OK);
        for (size_t i = 0; i < 2 * n; i += 5) {
            nb_store *s = NULL;
            nb_err e = { 0 };
            const char *path;
            if (i >= n)
                p[i - n] ^= 0x11;
            path = scratch_file("damaged.bin", p, i < n ? i : n);
            if (i >= n)
                p[i - n] ^= 0x11;
            if (nb_torch_open(path, &s, &e) != NB_OK) {
                if (e.what[0] == '\0' || e.cls[0] == '\0')
                    fail_msg("%s: no sentence for case %zu", names[f], i);
                continue;
            }
            if (i < n)
                fail_msg("%s: opened when cut to %zu bytes", names[f], i);
            for (size_t k = 0; k < s->n_tensors; k++) {
                unsigned sum = 0;
                for (uint64_t b = 0; b < s->tensors[k].n_bytes; b++)
                    sum += s->tensors[k].data[b];
                assert_true(sum < 1u << 30);
            }
            nb_store_close(s);
        }
        nb_free(p);
    }
}

/* A stream from before zip files, in rows: what follows the object. */
static void stream_rows(void **state)
{
    nb_err err = { 0 };
    char *p;
    size_t n;
    nb_store *s = NULL;

    (void)state;
    assert_int_equal(nb_read_file("tests/data/torch/legacy.bin", 1 << 20, &p, &n, &err), NB_OK);
    expect("one byte short", nb_torch_open(scratch_file("s.bin", p, n - 1), &s, &err), &err, NB_EFORMAT, "torch.truncated");
    nb_err_clear(&err);
    p = nb_realloc(p, n + 1);
    p[n] = 0;
    expect("PK-07 one byte more", nb_torch_open(scratch_file("s.bin", p, n + 1), &s, &err), &err, NB_EFORMAT, "pkl.trailing");
    nb_err_clear(&err);
    p[18] ^= 1; /* protocol 1001 becomes 1000 */
    expect("another protocol", nb_torch_open(scratch_file("s.bin", p, n), &s, &err), &err, NB_EUNSUPPORTED, "torch.version");
    nb_free(p);
}

static void allocations(void **state)
{
    static const char *const names[] = { "tests/data/torch/zip.bin", "tests/data/torch/legacy.bin" };

    (void)state;
    for (size_t f = 0; f < NB_LEN(names); f++) {
        nb_status rc = NB_ENOMEM;
        for (uint64_t i = 1; rc != NB_OK; i++) {
            nb_err err = { 0 };
            nb_store *s = NULL;
            assert_true(i < 2000);
            nb_mem_fail_at(i);
            rc = nb_torch_open(names[f], &s, &err);
            nb_mem_fail_at(0);
            if (rc != NB_OK)
                expect(names[f], rc, &err, NB_ENOMEM, "mem.alloc");
            nb_store_close(s);
        }
    }
}

/* Sharded checkpoints of .bin files, and which file of a directory is taken. */
static void shards_and_directories(void **state)
{
    static const char index[] = "{\"metadata\":{\"total_size\":24},\"weight_map\":{\"w\":\"pytorch_model-00001-of-00001.bin\"}}";
    archive a;
    nb_err err = { 0 };
    nb_store *s = NULL;
    char dir[400];

    (void)state;
    build(&a, base_files, N_FILES, true);
    snprintf(dir, sizeof dir, "%s", scratch("model"));
    assert_int_equal(mkdir(dir, 0700), 0);
    scratch_file("model/pytorch_model-00001-of-00001.bin", a.b.p, a.b.n);
    scratch_file("model/pytorch_model.bin.index.json", index, sizeof index - 1);
    scratch_file("model/training_args.bin", "x", 1);
    expect("sharded", nb_open(dir, &s, &err), &err, NB_OK, "");
    assert_string_equal(s->kind, "torch");
    assert_int_equal(s->n_tensors, 1);
    assert_memory_equal(nb_store_find(s, "w")->data, floats, 24);
    assert_int_equal(nb_report_count(s->notes), 1); /* FIL-002, once */
    assert_int_equal(nb_store_still(s, &err), NB_OK);
    nb_store_close(s);
    assert_int_equal(remove(scratch("model/pytorch_model.bin.index.json")), 0);
    expect("the only archive of any name, beside training_args.bin", nb_open(dir, &s, &err), &err, NB_OK, "");
    nb_store_close(s);
    scratch_file("model/other.pt", a.b.p, a.b.n);
    expect("two archives", nb_open(dir, &s, &err), &err, NB_EARG, "dir.ambiguous");
    nb_err_clear(&err);
    scratch_file("model/pytorch_model.bin", a.b.p, a.b.n);
    expect("pytorch_model.bin before others", nb_open(dir, &s, &err), &err, NB_OK, "");
    assert_non_null(strstr(s->path, "pytorch_model.bin"));
    nb_store_close(s);
    nb_buf_clear(&a.b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patch_rows),  cmocka_unit_test(variant_rows), cmocka_unit_test(container_rows),
        cmocka_unit_test(other_files), cmocka_unit_test(recorded),     cmocka_unit_test(damaged),
        cmocka_unit_test(stream_rows), cmocka_unit_test(allocations),  cmocka_unit_test(shards_and_directories),
    };
    return cmocka_run_group_tests(tests, NULL, scratch_remove);
}

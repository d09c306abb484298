/* test_toksource.c - tokenizers that come from other files than tokenizer.json, against recorded vectors. */
#include "vectors.h"

#include "text/toksource.h"

typedef struct source {
    char *p[NB_TOK_N];
    nb_tokfiles f;
    nb_toksource s;
} source;

static void source_clear(source *s)
{
    nb_toksource_clear(&s->s);
    for (int i = 0; i < NB_TOK_N; i++)
        nb_free(s->p[i]);
    memset(s, 0, sizeof *s);
}

/* The files of dir, but not tokenizer.json: NULL when there are none. */
static nb_tokenizer *open_dir(const char *base, const char *name, source *s)
{
    char dir[1024];
    nb_tokenizer *t = NULL;
    nb_err err = { 0 };
    bool any = false;

    snprintf(dir, sizeof dir, "%s/%s", base, name);
    for (int i = NB_TOK_JSON + 1; i < NB_TOK_N; i++) {
        s->p[i] = slurp(dir, nb_tokfile_name[i], &s->f.f[i].n);
        s->f.f[i].p = s->p[i];
        any = any || (s->p[i] && i < NB_TOK_CONFIG);
    }
    if (!any)
        return NULL;
    if (nb_toksource_init(&s->s, &s->f, &err) != NB_OK ||
        nb_tokenizer_open(s->s.json, s->s.n_json, s->s.config, s->s.n_config, &t, &err) != NB_OK)
        fail_msg("%s: %s %s: %s", name, err.cls, err.file, err.what);
    return t;
}

static int same_ids(const nb_json *want, const int32_t *got, size_t n)
{
    if (nb_json_len(want) != n)
        return 0;
    for (size_t i = 0; i < n; i++) {
        if (nb_json_int(nb_json_at(want, i), -1) != got[i])
            return 0;
    }
    return 1;
}

/* How ids of the vector file compare: which key with which flags. */
typedef struct row {
    const char *dir, *vectors_dir, *vectors, *key;
    bool add, parse;
    const char *only_without; /* lines whose text has this are of another rule */
    const char *also_without;
} row;

static const row rows[] = {
    { "gpt2-files", "gpt2", "vectors.jsonl", "ids", false, true, NULL, NULL },
    { "gpt2-files", "gpt2", "vectors.jsonl", "ids_plain", false, false, NULL, NULL },
    { "sp-bpe", "sp-bpe", "vectors.jsonl", "ids", false, true, NULL, NULL },
    /* the class says: no BOS where the text has it; the vectors know no class */
    { "sp-bpe", "sp-bpe", "vectors.jsonl", "ids_special", true, true, "<s>", NULL },
    { "sp-bpe", "sp-bpe", "vectors.jsonl", "ids_plain", false, false, NULL, NULL },
    /* SentencePiece itself cuts user-defined pieces out of the normalized text, not out of the raw one */
    { "sp-bpe", "sp-bpe", "vectors_sentencepiece.jsonl", "ids", false, false, "<|user|>", "<|tool|>" },
    { "sp-unigram", "sp-unigram", "vectors.jsonl", "ids", false, true, "<extra_id_", NULL },
    { "sp-unigram", "sp-unigram", "vectors.jsonl", "ids_special", true, true, "<extra_id_", NULL },
    { "llama3-tiktoken", "llama3-tiktoken", "vectors.jsonl", "ids", false, true, NULL, NULL },
    { "llama3-tiktoken", "llama3-tiktoken", "vectors.jsonl", "ids_ordinary", false, false, NULL, NULL },
    { "tekken-json", "tekken-json", "vectors.jsonl", "ids", false, false, NULL, NULL },
};

static bool has(const nb_buf *text, const char *part)
{
    const size_t n = part ? strlen(part) : 0;

    for (size_t i = 0; part && i + n <= text->n; i++) {
        if (memcmp(text->p + i, part, n) == 0)
            return true;
    }
    return false;
}

static int run_row(const char *base, const row *r, const nb_tokenizer *t, int *bad)
{
    char dir[1024];
    size_t n = 0, at = 0;
    int lines = 0;
    nb_json *line;
    char *text;

    snprintf(dir, sizeof dir, "%s/%s", base, r->vectors_dir);
    text = slurp(dir, r->vectors, &n);
    while ((line = next_line(text, n, &at))) {
        const nb_json *want = nb_json_get(line, r->key);
        nb_buf in = { 0 };
        nb_ids ids = { 0 };
        nb_err err = { 0 };
        text_of(line, &in);
        if (want && !has(&in, r->only_without) && !has(&in, r->also_without)) {
            lines++;
            if (nb_tokenizer_encode(t, in.p ? in.p : "", in.n, r->add, r->parse, &ids, &err) != NB_OK || !same_ids(want, ids.p, ids.n)) {
                if ((*bad)++ < 5)
                    print_message("%s, %s, %s: %s differs %s\n", r->dir, r->vectors, r->key, nb_json_str(nb_json_get(line, "name"), "?"),
                                  err.what);
            }
        }
        nb_ids_clear(&ids);
        nb_buf_clear(&in);
        nb_json_free(line);
    }
    nb_free(text);
    return lines;
}

static void run_all(const char *base)
{
    int total = 0, bad = 0;

    for (size_t i = 0; i < NB_LEN(rows); i++) {
        source s = { 0 };
        nb_tokenizer *t = open_dir(base, rows[i].dir, &s);
        const int lines = t ? run_row(base, &rows[i], t, &bad) : 0;
        if (t)
            print_message("%s, %s, %s: %d lines\n", rows[i].dir, rows[i].vectors, rows[i].key, lines);
        total += lines;
        nb_tokenizer_close(t);
        source_clear(&s);
    }
    if (total == 0) {
        print_message("skipped: no vocabularies under %s\n", base);
        skip();
    }
    print_message("%s: %d texts, %d differ\n", base, total, bad);
    assert_int_equal(bad, 0);
}

static void recorded_in_the_tree(void **state)
{
    (void)state;
    run_all(OWN_DATA);
}

static void recorded_beside_the_tree(void **state)
{
    (void)state;
    run_all(golden_dir());
}

/* tokenizer.model becomes the very merges that the reference converter makes. */
static void same_merges(void **state)
{
    source s = { 0 };
    char dir[1024];
    size_t n = 0;
    char *text;
    nb_json *want = NULL, *got = NULL;
    nb_err err = { 0 };
    nb_tokenizer *t = open_dir(golden_dir(), "sp-bpe", &s);
    (void)state;

    snprintf(dir, sizeof dir, "%s/sp-bpe", golden_dir());
    text = slurp(dir, "tokenizer.json", &n);
    if (!t || !text) {
        print_message("skipped: no sp-bpe under %s\n", golden_dir());
        skip();
    }
    assert_int_equal(nb_json_parse(text, n, "json", 0, &want, &err), NB_OK);
    assert_int_equal(nb_json_parse(s.s.json, s.s.n_json, "json", 0, &got, &err), NB_OK);
    for (size_t i = 0; i < nb_json_len(want); i++) {
        const char *key;
        const nb_json *w = nb_json_member(want, i, &key);
        const nb_json *g = nb_json_get(got, key);
        for (size_t k = 0; strcmp(key, "model") == 0 && k < nb_json_len(w); k++) {
            const char *part;
            const nb_json *member = nb_json_member(w, k, &part);
            if (!nb_json_equal(member, nb_json_get(g, part)))
                fail_msg("model.%s differs", part);
        }
        if (!nb_json_equal(w, g))
            fail_msg("%s differs", key);
    }
    nb_json_free(want);
    nb_json_free(got);
    nb_free(text);
    nb_tokenizer_close(t);
    source_clear(&s);
}

/* ---- hostile files ---- */

#define UNK "\x0a\x09\x0a\x05<unk>\x18\x02"
#define A                                                                                                                                  \
    "\x0a\x08\x0a\x01"                                                                                                                     \
    "a\x15\x00\x00\x80\xbf"                                       /* score -1 */
#define NO_EOS "\xd0\x02\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" /* of trainer_spec: -1 */
#define BPE    "\x12\x0e\x18\x02" NO_EOS                          /* trainer_spec: model_type 2 */

typedef struct hostile {
    const char *label;
    nb_tokfile_id kind;
    const char *p;
    size_t n;
    nb_status want;
    const char *cls, *names;
} hostile;

#define BYTES(s) s, sizeof(s) - 1
#define TEKKEN(size, vocab, more)                                                                                                          \
    "{\"config\":{\"pattern\":\".\",\"default_vocab_size\":" size ",\"default_num_special_tokens\":3},\"vocab\":[" vocab "]" more "}"
#define RANK0 "{\"rank\":0,\"token_bytes\":\"YQ==\"}"

static const hostile hostiles[] = {
    { "plain", NB_TOK_MODEL, BYTES(UNK A BPE), NB_OK, "", "" },
    { "unknown fields are passed over", NB_TOK_MODEL, BYTES(UNK A BPE "\xa0\x06\x01\xaa\x06\x02xy\xad\x06xxxx\xa9\x06xxxxxxxx"), NB_OK, "",
      "" },
    { "one empty piece", NB_TOK_MODEL, BYTES("\x0a\x00" BPE), NB_EFORMAT, "tok.special_id", "" },
    { "length past the end", NB_TOK_MODEL,
      BYTES(UNK "\x0a\x7f\x0a\x01"
                "a"),
      NB_EFORMAT, "tok.protobuf", "past the end" },
    { "length of 2^63", NB_TOK_MODEL, BYTES("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"), NB_EFORMAT, "tok.protobuf", "past the end" },
    { "number without end", NB_TOK_MODEL, BYTES("\x0a\xff\xff"), NB_EFORMAT, "tok.protobuf", "inside a number" },
    { "number too long", NB_TOK_MODEL, BYTES("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"), NB_EFORMAT, "tok.protobuf",
      "64 bits" },
    { "group", NB_TOK_MODEL, BYTES(UNK "\x0b"), NB_EFORMAT, "tok.protobuf", "not used" },
    { "field 0", NB_TOK_MODEL, BYTES(UNK "\x02\x00"), NB_EFORMAT, "tok.protobuf", "number 0" },
    { "TK-14 score as a text", NB_TOK_MODEL,
      BYTES(UNK "\x0a\x06\x0a\x01"
                "a\x12\x01x"),
      NB_EFORMAT, "tok.protobuf", "another kind" },
    { "TK-14 score NaN", NB_TOK_MODEL,
      BYTES(UNK "\x0a\x08\x0a\x01"
                "a\x15\x00\x00\xc0\x7f" BPE),
      NB_EFORMAT, "tok.score", "token 1" },
    { "TK-14 score infinite", NB_TOK_MODEL,
      BYTES(UNK "\x0a\x08\x0a\x01"
                "a\x15\x00\x00\x80\xff" BPE),
      NB_EFORMAT, "tok.score", "token 1" },
    { "TK-14 unknown type", NB_TOK_MODEL,
      BYTES(UNK "\x0a\x05\x0a\x01"
                "a\x18\x07"),
      NB_EFORMAT, "tok.protobuf", "type" },
    { "piece is not UTF-8", NB_TOK_MODEL, BYTES(UNK "\x0a\x03\x0a\x01\xff"), NB_EFORMAT, "tok.protobuf", "UTF-8" },
    { "a piece twice", NB_TOK_MODEL, BYTES(UNK A A BPE), NB_EFORMAT, "tok.duplicate", "token 2" },
    { "TK-15 BOS past the pieces", NB_TOK_MODEL, BYTES(UNK A "\x12\x11\x18\x02\xc8\x02\x63" NO_EOS), NB_EFORMAT, "tok.special_id", "99" },
    { "words", NB_TOK_MODEL, BYTES(UNK A "\x12\x02\x18\x03"), NB_EUNSUPPORTED, "tok.unsupported", "type 3" },
    { "blanks as suffixes", NB_TOK_MODEL, BYTES(UNK A "\x12\x05\x18\x02\xc0\x01\x01"), NB_EUNSUPPORTED, "tok.unsupported", "suffix" },
    { "TK-16 character map cut short", NB_TOK_MODEL,
      BYTES(UNK A "\x12\x0e\x18\x01" NO_EOS "\x1a\x05\x12\x03"
                  "abc"),
      NB_EFORMAT, "tok.charsmap", "3 bytes" },
    { "empty", NB_TOK_MODEL, BYTES(""), NB_EFORMAT, "tok.tiktoken", "empty" },
    { "no base64", NB_TOK_MODEL, BYTES("YQ= 0\n"), NB_EFORMAT, "tok.tiktoken", "base64" },
    { "no rank", NB_TOK_MODEL, BYTES("YQ==\n"), NB_EFORMAT, "tok.tiktoken", "line 1" },
    { "rank left out", NB_TOK_MODEL, BYTES("YQ== 0\nYg== 2\n"), NB_EFORMAT, "tok.tiktoken", "rank 1" },
    { "TK-11 rank with a sign", NB_TOK_MODEL, BYTES("YQ== +0\n"), NB_EFORMAT, "tok.tiktoken", "rank 0" },
    { "TK-11 rank of 2^64", NB_TOK_MODEL, BYTES("YQ== 18446744073709551616\n"), NB_EFORMAT, "tok.tiktoken", "rank 0" },
    { "the same bytes twice", NB_TOK_MODEL, BYTES("YQ== 0\nYQ== 1\n"), NB_EFORMAT, "tok.duplicate", "token 1" },
    { "TK-01 tekken is no JSON", NB_TOK_TEKKEN, BYTES("{"), NB_EFORMAT, "tok.json", "" },
    { "tekken without pattern", NB_TOK_TEKKEN, BYTES("{}"), NB_EFORMAT, "tok.type", "pattern" },
    { "tekken", NB_TOK_TEKKEN, BYTES(TEKKEN("4", RANK0, "")), NB_OK, "", "" },
    { "tekken with fewer entries than it says", NB_TOK_TEKKEN, BYTES(TEKKEN("5", RANK0, "")), NB_EFORMAT, "tok.arrays", "2 entries" },
    { "tekken of 2^40 tokens", NB_TOK_TEKKEN, BYTES(TEKKEN("1099511627776", RANK0, "")), NB_EFORMAT, "tok.arrays", "tokens" },
    { "tekken with a rank out of order", NB_TOK_TEKKEN, BYTES(TEKKEN("5", RANK0 "," RANK0, "")), NB_EFORMAT, "tok.arrays", "entry 1" },
    { "tekken with a special rank too high", NB_TOK_TEKKEN,
      BYTES(TEKKEN("4", RANK0, ",\"special_tokens\":[{\"rank\":3,\"token_str\":\"<x>\"}]")), NB_EFORMAT, "tok.arrays", "special token 0" },
};

static void hostile_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < NB_LEN(hostiles); i++) {
        const hostile *h = &hostiles[i];
        nb_tokfiles f = { 0 };
        nb_toksource s = { 0 };
        nb_tokenizer *t = NULL;
        nb_err err = { 0 };
        nb_status rc;
        f.f[h->kind].p = h->p;
        f.f[h->kind].n = h->n;
        rc = nb_toksource_init(&s, &f, &err);
        if (rc == NB_OK)
            rc = nb_tokenizer_open(s.json, s.n_json, s.config, s.n_config, &t, &err);
        if (rc != h->want || strcmp(err.cls, h->cls) != 0 || !strstr(err.what, h->names))
            fail_msg("%s: got %d %s (%s), want %d %s", h->label, rc, err.cls, err.what, h->want, h->cls);
        nb_tokenizer_close(t);
        nb_toksource_clear(&s);
    }
}

/* Lines of merges.txt and the small files beside it. */
static void hostile_small_files(void **state)
{
    static const struct {
        const char *label;
        nb_tokfile_id kind;
        const char *text;
        nb_status want;
        const char *cls, *file;
    } bad[] = {
        { "good", NB_TOK_MERGES, "a b\n", NB_OK, "", "" },
        { "TK-04 one part", NB_TOK_MERGES, "a b\nab\n", NB_EFORMAT, "tok.merge", "merges.txt" },
        { "TK-04 three parts", NB_TOK_MERGES, "a b b\n", NB_EFORMAT, "tok.merge", "merges.txt" },
        { "TK-04 blank line inside", NB_TOK_MERGES, "a b\n\na b\n", NB_EFORMAT, "tok.merge", "merges.txt" },
        { "TK-04 absent piece", NB_TOK_MERGES, "a z\n", NB_EFORMAT, "tok.merge", "tokenizer.json" },
        { "no UTF-8", NB_TOK_MERGES, "a \xff\n", NB_EFORMAT, "tok.merge", "merges.txt" },
        { "vocabulary is a list", NB_TOK_VOCAB, "[]", NB_EFORMAT, "tok.type", "vocab.json" },
        { "vocabulary goes on behind its end", NB_TOK_VOCAB, "{\"a\":0},\"merges\":{", NB_EFORMAT, "tok.json", "vocab.json" },
        { "TK-03 negative id", NB_TOK_VOCAB, "{\"a\":-1}", NB_EFORMAT, "tok.id", "vocab.json" },
        { "unknown class", NB_TOK_CONFIG, "{\"tokenizer_class\":\"FooTokenizer\"}", NB_EUNSUPPORTED, "tok.unsupported", "" },
        { "configuration is a list", NB_TOK_CONFIG, "[]", NB_EFORMAT, "tok.type", "tokenizer_config.json" },
        { "TK-11 added id with a sign", NB_TOK_CONFIG, "{\"added_tokens_decoder\":{\"+5\":{\"content\":\"<x>\"}}}", NB_EFORMAT, "tok.id",
          "" },
        { "special map is no JSON", NB_TOK_SPECIALS, "{", NB_EFORMAT, "tok.json", "special_tokens_map.json" },
        { "TK-03 added id negative", NB_TOK_ADDED, "{\"<x>\":-1}", NB_EFORMAT, "tok.id", "" },
        { "TK-03 added id is a text", NB_TOK_ADDED, "{\"<x>\":\"5\"}", NB_EFORMAT, "tok.id", "" },
        { "TK-03 two added tokens one id", NB_TOK_ADDED, "{\"<x>\":3,\"<y>\":3}", NB_EFORMAT, "tok.duplicate_id", "" },
    };
    (void)state;

    for (size_t i = 0; i < NB_LEN(bad); i++) {
        nb_tokfiles f = { 0 };
        nb_toksource s = { 0 };
        nb_tokenizer *t = NULL;
        nb_err err = { 0 };
        nb_status rc;
        f.f[NB_TOK_VOCAB].p = "{\"a\":0,\"b\":1,\"ab\":2}";
        f.f[NB_TOK_MERGES].p = "a b\n";
        f.f[bad[i].kind].p = bad[i].text;
        for (int k = 0; k < NB_TOK_N; k++)
            f.f[k].n = f.f[k].p ? strlen(f.f[k].p) : 0;
        rc = nb_toksource_init(&s, &f, &err);
        if (rc == NB_OK && (rc = nb_tokenizer_open(s.json, s.n_json, s.config, s.n_config, &t, &err)) != NB_OK)
            nb_err_at(&err, "tokenizer.json", NULL);
        if (rc != bad[i].want || strcmp(err.cls, bad[i].cls) != 0 || (bad[i].file[0] && strcmp(err.file, bad[i].file) != 0))
            fail_msg("%s: got %d %s in %s (%s), want %d %s", bad[i].label, rc, err.cls, err.file, err.what, bad[i].want, bad[i].cls);
        nb_tokenizer_close(t);
        nb_toksource_clear(&s);
    }
}

/* A SentencePiece file cut short anywhere: an error, or a tokenizer of fewer pieces; never anything else. */
static void cut_short(void **state)
{
    size_t n = 0;
    char *p = slurp("tests/data/fuzz", "small-unigram.spm", &n);
    (void)state;

    assert_non_null(p);
    for (size_t k = 1; k < n; k += k < 600 ? 1 : 37) {
        nb_tokfiles f = { 0 };
        nb_toksource s = { 0 };
        nb_err err = { 0 };
        char *copy = nb_strndup(p, k); /* a block of its own: reading past its end shows */
        f.f[NB_TOK_MODEL].p = copy;
        f.f[NB_TOK_MODEL].n = k;
        if (nb_toksource_init(&s, &f, &err) != NB_OK && (err.code != NB_EFORMAT || !err.what[0]))
            fail_msg("%zu bytes: %s %s", k, err.cls, err.what);
        nb_toksource_clear(&s);
        nb_free(copy);
    }
    nb_free(p);
}

/* Every allocation may fail: an error, nothing lost. */
static void no_memory(void **state)
{
    static const char *const seeds[] = { "small-bpe.spm", "small-unigram.spm", "small.tiktoken", "small-tekken.json" };
    (void)state;

    for (size_t k = 0; k < NB_LEN(seeds); k++) {
        nb_tokfiles f = { 0 };
        size_t n = 0;
        char *p = slurp("tests/data/fuzz", seeds[k], &n);
        const nb_tokfile_id kind = p && p[0] == '{' ? NB_TOK_TEKKEN : NB_TOK_MODEL;
        bool through = false;
        assert_non_null(p);
        f.f[kind].p = p;
        f.f[kind].n = n;
        f.f[NB_TOK_ADDED].p = "{\"<new>\":290}";
        f.f[NB_TOK_ADDED].n = 13;
        for (uint64_t i = 1; !through; i += i < 200 ? 1 : 1 + i / 16) {
            nb_toksource s = { 0 };
            nb_tokenizer *t = NULL;
            nb_ids ids = { 0 };
            nb_err err = { 0 };
            nb_status rc;
            nb_mem_fail_at(i);
            rc = nb_toksource_init(&s, &f, &err);
            if (rc == NB_OK)
                rc = nb_tokenizer_open(s.json, s.n_json, s.config, s.n_config, &t, &err);
            if (rc == NB_OK)
                rc = nb_tokenizer_encode(t, "Hello \xc3\xa9", 8, true, true, &ids, &err);
            nb_mem_fail_at(0);
            nb_tokenizer_close(t);
            nb_toksource_clear(&s);
            nb_ids_clear(&ids);
            through = rc == NB_OK;
            if (rc != NB_OK && rc != NB_ENOMEM)
                fail_msg("%s: %d %s %s", seeds[k], rc, err.cls, err.what);
        }
        nb_free(p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_in_the_tree),
        cmocka_unit_test(recorded_beside_the_tree),
        cmocka_unit_test(same_merges),
        cmocka_unit_test(hostile_files),
        cmocka_unit_test(hostile_small_files),
        cmocka_unit_test(cut_short),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* calib_read.c - calibration tokens from ids, text or JSON Lines. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "io/io.h"
#include "job/calib.h"
#include "job/ids.h"
#include "job/load.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

enum { DEFAULT_ROWS = 128, DEFAULT_LEN = 512, LEAST_TOKENS = 128, SEED = 42 };
#define TEXT_LIMIT ((size_t)1 << 30)

void nb_calib_clear(nb_calib *c)
{
    nb_free(c->ids);
    memset(c, 0, sizeof *c);
}

static nb_status take_rows(nb_calib *c, size_t rows, size_t len, nb_err *err)
{
    size_t n;

    c->rows = rows;
    c->len = len;
    c->ids = nb_mul_size(rows, len, &n) ? nb_alloc_array(n, sizeof *c->ids) : NULL;
    return c->ids ? NB_OK : nb_enomem(err, "the calibration tokens");
}

/* ---- choosing ---- */

/* 0 .. n-1 in a seeded order. */
static size_t *shuffled(size_t n, nb_err *err)
{
    size_t *all = nb_alloc_array(n ? n : 1, sizeof *all);

    if (!all)
        nb_enomem(err, "the choice of calibration rows");
    for (size_t i = 0; all && i < n; i++)
        all[i] = i;
    for (size_t i = 0; all && i + 1 < n; i++) {
        const size_t j = i + (size_t)(nb_rng_uniform(SEED, 0, i) * (double)(n - i)), t = all[i];
        all[i] = all[j];
        all[j] = t;
    }
    return all;
}

/* Which of `windows` windows become rows: all, or a sample without repetition in ascending order. */
static nb_status pick_windows(size_t *pick, size_t windows, size_t rows, nb_err *err)
{
    size_t *all = shuffled(windows, err);
    size_t n = 0;
    bool *use = nb_calloc(windows, sizeof *use);

    if (!all || !use) {
        nb_free(all);
        nb_free(use);
        return nb_enomem(err, "the choice of calibration rows");
    }
    for (size_t i = 0; i < rows; i++)
        use[all[i]] = true;
    for (size_t i = 0; i < windows; i++)
        if (use[i])
            pick[n++] = i;
    nb_free(use);
    nb_free(all);
    return NB_OK;
}

static nb_status too_short(const nb_calib *c, size_t tokens, nb_err *err)
{
    const char *cls = tokens < 2 ? "calib.empty" : "calib.short";

    if (c->docs > 1)
        return nb_fail(err, NB_EFORMAT, cls, "",
                       "%zu documents (%zu of them empty) give %zu tokens, at least %d are needed and ten thousand are useful; give more "
                       "text of the kind that the model will see",
                       c->docs, c->empty, tokens, LEAST_TOKENS);
    return nb_fail(err, NB_EFORMAT, cls, "",
                   "the calibration text gives %zu tokens, at least %d are needed and ten thousand are useful; give a longer text of "
                   "the kind that the model will see",
                   tokens, LEAST_TOKENS);
}

/* Rows out of a stream of tokens: windows of len; sample: any of them, else the first ones. */
static nb_status cut_stream(nb_calib *c, const nb_ids *ids, size_t rows, size_t len, bool sample, nb_err *err)
{
    size_t windows, *pick;
    nb_status rc;

    if (ids->n < LEAST_TOKENS)
        return too_short(c, ids->n, err);
    if (len > ids->n)
        len = ids->n;
    windows = ids->n / len;
    if (rows > windows)
        rows = windows;
    rc = take_rows(c, rows, len, err);
    if (rc != NB_OK)
        return rc;
    pick = nb_alloc_array(rows, sizeof *pick);
    rc = pick ? pick_windows(pick, sample ? windows : rows, rows, err) : nb_enomem(err, "the choice of calibration rows");
    for (size_t i = 0; rc == NB_OK && i < rows; i++)
        memcpy(c->ids + i * len, ids->p + pick[i] * len, len * sizeof *c->ids);
    nb_free(pick);
    return rc;
}

/* ---- ids ---- */

/* Tokens that an "attention_mask" beside the ids leaves out are padding: what is left of the rows is packed one after another. *some:
 * there is such a mask, and it leaves out some. */
static nb_status without_padding(nb_calib *c, const nb_idrows *all, const char *path, size_t rows, size_t len, bool *some, nb_err *err)
{
    nb_buf spec = { 0 };
    nb_idrows mask = { 0 };
    nb_ids ids = { 0 };
    nb_err local = { 0 };
    nb_status rc;

    const size_t n = strlen(path), ext = strlen(".safetensors");

    *some = false;
    if (n < ext || strcmp(path + n - ext, ".safetensors") != 0) /* a tensor was named, and has no other beside it */
        return NB_OK;
    nb_buf_printf(&spec, "%s:attention_mask", path);
    rc = spec.failed ? nb_enomem(err, "a path") : nb_idrows_read(&mask, spec.p, 0, &local);
    if (!spec.failed && rc != NB_OK) {
        if (strcmp(local.cls, "ids.tensor") == 0) /* there is none */
            rc = NB_OK;
        else if (err)
            *err = local;
    } else if (rc == NB_OK && (mask.rows != all->rows || mask.len != all->len)) {
        rc = nb_fail(err, NB_EFORMAT, "calib.mask", "", "attention_mask has %zu rows of %zu, the ids %zu of %zu", mask.rows, mask.len,
                     all->rows, all->len);
    } else if (rc == NB_OK) {
        for (size_t i = 0; rc == NB_OK && i < all->rows * all->len; i++) {
            *some = *some || mask.ids[i] == 0;
            if (mask.ids[i] != 0)
                rc = nb_ids_push(&ids, all->ids[i], err);
        }
        if (rc == NB_OK && *some)
            rc = cut_stream(c, &ids, rows ? rows : all->rows, len ? len : all->len, false, err);
    }
    nb_ids_clear(&ids);
    nb_idrows_clear(&mask);
    nb_buf_clear(&spec);
    return rc;
}

/* The first rows of the file, each cut to its first tokens. */
static nb_status from_ids(nb_calib *c, const char *path, size_t rows, size_t len, size_t vocab, nb_err *err)
{
    nb_idrows all;
    nb_status rc = nb_idrows_read(&all, path, vocab, err);

    bool padded;

    if (rc != NB_OK)
        return rc;
    rc = without_padding(c, &all, path, rows, len, &padded, err);
    if (rc != NB_OK || padded) {
        nb_idrows_clear(&all);
        return rc;
    }
    rc = take_rows(c, rows && rows < all.rows ? rows : all.rows, len && len < all.len ? len : all.len, err);
    for (size_t i = 0; rc == NB_OK && i < c->rows; i++)
        memcpy(c->ids + i * c->len, all.ids + i * all.len, c->len * sizeof *c->ids);
    nb_idrows_clear(&all);
    return rc;
}

/* ---- text ---- */

static nb_status from_text(nb_calib *c, const char *text, size_t n, const nb_tokenizer *tok, size_t rows, size_t len, nb_err *err)
{
    nb_ids ids = { 0 };
    nb_status rc = nb_u8_text(text, n, NB_U8_WAY, err);

    c->docs = c->used = 1;
    if (rc == NB_OK)
        rc = nb_tokenizer_encode(tok, text, n, true, false, &ids, err);
    if (rc == NB_OK)
        rc = cut_stream(c, &ids, rows, len, true, err);
    nb_ids_clear(&ids);
    return rc;
}

/* ---- JSON Lines ---- */

typedef struct line {
    const char *p;
    size_t n, number;
} line;

typedef struct lines {
    line *v;
    size_t n, cap;
} lines;

static bool blank(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != ' ' && p[i] != '\t' && p[i] != '\r')
            return false;
    return true;
}

static nb_status split(lines *l, const char *text, size_t n, nb_err *err)
{
    size_t number = 0;

    for (size_t at = 0; at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        const size_t m = end ? (size_t)(end - text) - at : n - at;

        number++;
        if (!blank(text + at, m)) {
            if (l->n == l->cap) {
                const size_t cap = l->cap ? 2 * l->cap : 1024;
                line *more = nb_realloc(l->v, cap * sizeof *more);
                if (!more)
                    return nb_enomem(err, "the lines of the calibration file");
                l->v = more;
                l->cap = cap;
            }
            l->v[l->n++] = (line){ text + at, m, number };
        }
        at += m + 1;
    }
    return NB_OK;
}

/* Append the tokens of one record: {"text": ...} with what the tokenizer puts around a text, {"messages": [...]} through the
 * chat template, which brings its own. */
static nb_status add_record(const nb_loaded *m, const nb_json *v, nb_ids *out, nb_err *err)
{
    const nb_json *text = nb_json_get(v, "text"), *messages = nb_json_get(v, "messages");
    nb_buf prompt = { 0 };
    nb_status rc;

    if (nb_json_typeof(text) == NB_JSTR) {
        const size_t n = nb_json_str_len(text);
        return n ? nb_tokenizer_encode(m->tok, nb_json_str(text, ""), n, true, false, out, err) : NB_OK;
    }
    if (nb_json_typeof(messages) != NB_JARR)
        return nb_fail(err, NB_EFORMAT, "calib.record", "",
                       "a record needs \"text\" (a string) or \"messages\" (a list with role and content)");
    if (nb_json_len(messages) == 0)
        return NB_OK;
    rc = nb_chat_render(m->chat, v, false, NULL, &prompt, err);
    if (rc == NB_OK && prompt.n)
        rc = nb_tokenizer_encode(m->tok, prompt.p, prompt.n, false, true, out, err);
    nb_buf_clear(&prompt);
    return rc;
}

static nb_status add_line(nb_calib *c, const nb_loaded *m, const line *l, nb_ids *out, nb_err *err)
{
    const size_t before = out->n;
    char where[32];
    nb_json *v = NULL;
    nb_status rc = nb_json_parse(l->p, l->n, "calib", 0, &v, err);

    if (rc == NB_OK)
        rc = add_record(m, v, out, err);
    nb_json_free(v);
    if (rc != NB_OK) {
        snprintf(where, sizeof where, "line %zu", l->number);
        nb_err_at(err, NULL, where);
    }
    c->used += out->n > before;
    c->empty += out->n == before;
    return rc;
}

/* Records in a seeded order, one after another, until there are enough tokens: short ones share a row, long ones go on in the next. */
static nb_status from_lines(nb_calib *c, const char *text, size_t n, const nb_loaded *m, size_t rows, size_t len, nb_err *err)
{
    lines l = { 0 };
    nb_ids ids = { 0 };
    size_t enough, *order = NULL;
    nb_status rc = split(&l, text, n, err);

    if (!nb_mul_size(rows, len, &enough))
        enough = SIZE_MAX;
    if (rc == NB_OK && !(order = shuffled(l.n, err)))
        rc = NB_ENOMEM;
    c->docs = l.n;
    for (size_t i = 0; rc == NB_OK && i < l.n && ids.n < enough; i++)
        rc = add_line(c, m, &l.v[order[i]], &ids, err);
    if (rc == NB_OK)
        rc = cut_stream(c, &ids, rows, len, false, err);
    nb_free(order);
    nb_free(l.v);
    nb_ids_clear(&ids);
    return rc;
}

/* By name, or because the first line is a record. */
static bool is_lines(const char *path, const char *text, size_t n)
{
    const char *dot = strrchr(path, '.'), *end;
    nb_err ignored = { 0 };
    nb_json *v = NULL;
    bool yes;

    if (dot && (strcmp(dot, ".jsonl") == 0 || strcmp(dot, ".ndjson") == 0))
        return true;
    if (n == 0 || text[0] != '{')
        return false;
    end = memchr(text, '\n', n);
    if (nb_json_parse(text, end ? (size_t)(end - text) : n, "calib", 0, &v, &ignored) != NB_OK)
        return false;
    yes = nb_json_get(v, "text") || nb_json_get(v, "messages");
    nb_json_free(v);
    return yes;
}

/* Containers that are not text, and the way out. */
static nb_status refuse_binary(const char *text, size_t n, nb_err *err)
{
    static const struct {
        const char *magic;
        size_t n;
        const char *what, *way;
    } rows[] = {
        { "PAR1", 4, "a Parquet file",
          "write it as JSON Lines first: python3 -c 'import pandas, sys; pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], "
          "orient=\"records\", lines=True)' IN.parquet OUT.jsonl" },
        { "ARROW1", 6, "an Arrow file", "write it as JSON Lines first, with datasets: load_from_disk(DIR).to_json(\"OUT.jsonl\")" },
        { "\x1f\x8b", 2, "compressed with gzip", "unpack it first: gunzip" },
        { "\x28\xb5\x2f\xfd", 4, "compressed with zstd", "unpack it first: unzstd" },
        { "PK\x03\x04", 4, "a zip archive", "unpack it first: unzip" },
    };

    for (size_t i = 0; i < NB_LEN(rows); i++)
        if (n >= rows[i].n && memcmp(text, rows[i].magic, rows[i].n) == 0)
            return nb_fail(err, NB_EUNSUPPORTED, i < 2 ? "calib.parquet" : "calib.packed", "",
                           "it is %s; calibration reads text, JSON Lines and token ids; %s", rows[i].what, rows[i].way);
    return NB_OK;
}

static nb_status from_file(nb_calib *c, const char *path, const char *model, size_t rows, size_t len, nb_err *err)
{
    nb_loaded m = { 0 };
    char *text = NULL;
    size_t n = 0;
    bool records = false;
    nb_status rc = nb_read_file(path, TEXT_LIMIT, &text, &n, err);

    rows = rows ? rows : DEFAULT_ROWS;
    len = len ? len : DEFAULT_LEN;
    if (rc == NB_OK)
        rc = refuse_binary(text, n, err);
    if (rc == NB_OK) {
        records = is_lines(path, text, n);
        /* the tokenizer alone when that is enough: a broken chat template is no reason not to quantize */
        rc = nb_hfdir_open(model, &m.dir, err);
        if (rc == NB_OK)
            rc = records ? nb_load_text(&m, model, err) : nb_load_tokenizer(m.dir, &m.tok, err);
        nb_err_at(err, model, NULL);
    }
    if (rc == NB_OK)
        rc = records ? from_lines(c, text, n, &m, rows, len, err) : from_text(c, text, n, m.tok, rows, len, err);
    nb_load_close(&m);
    nb_free(text);
    return rc;
}

/* ---- what it is like ---- */

enum { FEW = 4096, GRAM = 8, LOOK = 1 << 20 };

/* Share of distinct runs of GRAM tokens among the first LOOK; 1 when there is no memory to find out. */
static double distinct(const int32_t *ids, size_t n)
{
    const size_t runs = n < LOOK ? n - GRAM + 1 : LOOK - GRAM + 1;
    size_t cap = 64, found = 0;
    uint64_t *set;

    while (cap < 2 * runs)
        cap *= 2;
    set = nb_calloc(cap, sizeof *set);
    for (size_t i = 0; set && i < runs; i++) {
        uint64_t h = UINT64_C(0x9e3779b97f4a7c15);
        size_t at;
        for (size_t k = 0; k < GRAM; k++) {
            h = (h ^ (uint32_t)ids[i + k]) * UINT64_C(0xff51afd7ed558ccd);
            h ^= h >> 32;
        }
        h += h == 0;
        for (at = (size_t)h & (cap - 1); set[at] && set[at] != h;)
            at = (at + 1) & (cap - 1);
        found += set[at] == 0;
        set[at] = h;
    }
    nb_free(set);
    return set ? (double)found / (double)runs : 1;
}

void nb_calib_judge(nb_calib *c, size_t vocab)
{
    const size_t n = c->rows * c->len;
    bool *seen = nb_calloc(vocab, sizeof *seen);
    size_t kinds = 0;

    for (size_t i = 0; seen && i < n; i++) {
        kinds += !seen[c->ids[i]];
        seen[c->ids[i]] = true;
    }
    nb_free(seen);
    c->kinds = kinds;
    c->distinct = n >= GRAM ? distinct(c->ids, n) : 1;
    if (c->distinct < 0.5)
        snprintf(c->warning, sizeof c->warning,
                 "calib.uniform: the calibration text repeats itself: of its %zu runs of %d tokens only %.0f %% are distinct, and %zu of "
                 "the %zu tokens of the vocabulary occur; give more varied text",
                 n - GRAM + 1, (int)GRAM, 100 * c->distinct, kinds, vocab);
    else if (n < FEW)
        snprintf(c->warning, sizeof c->warning, "calib.few: %zu calibration tokens; %d or more make a better result", n, (int)FEW);
}

nb_status nb_calib_open(nb_calib *c, const char *path, const char *model, size_t rows, size_t len, size_t vocab, nb_err *err)
{
    nb_container kind = NB_IO_UNKNOWN;
    nb_err ignored = { 0 };
    nb_status rc;

    memset(c, 0, sizeof *c);
    if (nb_sniff(path, &kind, &ignored) == NB_OK && kind == NB_IO_SAFETENSORS)
        rc = from_ids(c, path, rows, len, vocab, err);
    else
        rc = from_file(c, path, model, rows, len, err);
    for (size_t i = 0; rc == NB_OK && i < c->rows * c->len; i++)
        if (c->ids[i] < 0 || (size_t)c->ids[i] >= vocab)
            rc = nb_fail(
                err, NB_EFORMAT, "calib.token", "",
                "row %zu, token %zu is %d, which is not below the vocabulary size %zu of the model: the tokenizer is of another model",
                i / c->len, i % c->len, (int)c->ids[i], vocab);
    if (rc == NB_OK)
        nb_calib_judge(c, vocab);
    if (rc != NB_OK) {
        nb_err_at(err, path, NULL);
        nb_calib_clear(c);
    }
    return rc;
}

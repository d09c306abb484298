/* eval_set.c - protocols: text or rows to windows of ids. */
#include "job/eval_set.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "base/num.h"
#include "text/utf8.h"

enum { TEXT_LIMIT = 1 << 30 };

void nb_evalset_clear(nb_evalset *s)
{
    for (size_t i = 0; i < s->n_blocks; i++)
        nb_free(s->blocks[i]);
    for (size_t i = 0; i < s->n_parts; i++)
        nb_free(s->parts[i]);
    nb_free(s->blocks);
    nb_free(s->parts);
    nb_free(s->win);
    memset(s, 0, sizeof *s);
}

/* Room for one more in a list that doubles at powers of two. */
static bool grow(void **list, size_t n, size_t size)
{
    void *p;

    if (n & (n - 1)) /* not a power of two: there is room */
        return true;
    p = nb_realloc(*list, (n ? 2 * n : 1) * size);
    if (p)
        *list = p;
    return p != NULL;
}

static nb_status add_window(nb_evalset *s, nb_window w, nb_err *err)
{
    if (!grow((void **)&s->win, s->n_win, sizeof *s->win))
        return nb_enomem(err, "the windows");
    s->win[s->n_win++] = w;
    return NB_OK;
}

static nb_status add_part(nb_evalset *s, const char *name, nb_err *err)
{
    char esc[NB_ESC_CAP];
    char *copy = nb_strdup(nb_esc(esc, sizeof esc, name, strlen(name)));

    if (!copy || !grow((void **)&s->parts, s->n_parts, sizeof *s->parts)) {
        nb_free(copy);
        return nb_enomem(err, "a file name");
    }
    s->parts[s->n_parts++] = copy;
    return NB_OK;
}

/* A block of n ids that lives as long as the set. */
static int32_t *take(nb_evalset *s, size_t n)
{
    int32_t *p = grow((void **)&s->blocks, s->n_blocks, sizeof *s->blocks) ? nb_alloc_array(n, sizeof *p) : NULL;

    if (p)
        s->blocks[s->n_blocks++] = p;
    return p;
}

static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * UINT64_C(0x9e3779b97f4a7c15);
    return h ^ h >> 29;
}

static nb_status finish(nb_evalset *s, size_t limit, nb_err *err)
{
    if (limit && s->n_win > limit) {
        s->n_win = limit;
        s->words = s->bytes = 0;
    }
    for (size_t i = 0; i < s->n_win; i++) {
        const nb_window *w = &s->win[i];
        s->max_len = w->feed > s->max_len ? w->feed : s->max_len;
        s->positions += w->feed - (w->first - 1);
        s->scored += w->n - w->first;
        s->n_docs = w->doc + 1 > s->n_docs ? w->doc + 1 : s->n_docs;
        s->print = mix(mix(mix(s->print, w->n), w->first), w->feed);
        for (size_t j = 0; j < w->n; j++)
            s->print = mix(s->print, (uint32_t)w->ids[j]);
    }
    return s->scored ? NB_OK
                     : nb_fail(err, NB_EFORMAT, "ids.empty", "", "the text has no token that can be scored; a few thousand are useful");
}

nb_status nb_evalset_rows(nb_evalset *s, const nb_idrows *r, const char *name, size_t limit, nb_err *err)
{
    nb_status rc;

    memset(s, 0, sizeof *s);
    if (r->len < 2)
        return nb_fail(err, NB_EARG, "eval.rows", "", "rows of %zu tokens have nothing to predict", r->len);
    rc = add_part(s, name, err);
    for (size_t i = 0; rc == NB_OK && i < r->rows; i++)
        rc = add_window(s, (nb_window){ .ids = r->ids + i * r->len, .n = r->len, .feed = r->len, .first = 1, .doc = i }, err);
    s->doc_is = "row";
    snprintf(s->protocol, sizeof s->protocol, "rows-%zu", r->len);
    snprintf(s->about, sizeof s->about, "rows of %zu tokens, each from position 0, likelihood of all but the first token of each", r->len);
    return rc == NB_OK ? finish(s, limit, err) : rc;
}

/* ---- texts ---- */

typedef struct cut {
    nb_evalset *s;
    const nb_tokenizer *t;
    size_t window, stride;
    int32_t bos;    /* of the tokenizer, -1: it adds none          */
    int32_t prefix; /* what stands in front of a document, -1: none */
    size_t part;
} cut;

typedef struct protocol {
    const char *name;
    size_t window, stride; /* defaults */
    bool by_document;      /* else documents are joined by an empty line */
    nb_status (*cut)(cut *c, const int32_t *ids, size_t n, nb_err *err);
    const char *cuts, *of, *scored; /* "CUTS of N tokensOF, SCORED" */
} protocol;

static nb_status push(cut *c, const int32_t *ids, size_t n, size_t feed, size_t first, size_t doc, nb_err *err)
{
    return add_window(c->s, (nb_window){ .ids = ids, .n = n, .feed = feed, .first = first, .doc = doc, .part = c->part }, err);
}

/* A copy of n ids with `lead` in front unless it is -1. */
static int32_t *led(cut *c, int32_t lead, const int32_t *ids, size_t n)
{
    int32_t *p = take(c->s, n + 1);

    if (!p)
        return NULL;
    if (lead >= 0)
        p[0] = lead;
    memcpy(p + (lead >= 0), ids, n * sizeof *p);
    return p;
}

static nb_status cut_windows(cut *c, const int32_t *ids, size_t n, nb_err *err)
{
    const size_t lead = c->bos >= 0, body = n < c->window - lead ? n : c->window - lead;
    nb_status rc = NB_OK;

    for (size_t at = 0; rc == NB_OK && body + lead >= 2 && n - at >= body; at += body) {
        const int32_t *row = led(c, c->bos, ids + at, body);
        rc = row ? push(c, row, body + lead, body + lead, 1, c->s->n_win, err) : nb_enomem(err, "the windows");
    }
    return rc;
}

static nb_status cut_gptq(cut *c, const int32_t *ids, size_t n, nb_err *err)
{
    const size_t lead = c->bos >= 0;
    const int32_t *all = led(c, c->bos, ids, n);
    nb_status rc = all ? NB_OK : nb_enomem(err, "the text");

    for (size_t at = 0; rc == NB_OK && n + lead - at >= c->window; at += c->window)
        rc = push(c, all + at, c->window, c->window, 1, c->s->n_win, err);
    return rc;
}

static nb_status cut_llama_cpp(cut *c, const int32_t *ids, size_t n, nb_err *err)
{
    const size_t lead = c->bos >= 0, w = c->window;
    int32_t *all = led(c, c->bos, ids, n);
    nb_status rc = all ? NB_OK : nb_enomem(err, "the text");

    for (size_t at = 0; rc == NB_OK && n + lead - at >= w; at += w) {
        if (lead)
            all[at] = c->bos;
        rc = push(c, all + at, w, w - 1, w / 2 + 1, c->s->n_win, err);
    }
    return rc;
}

static nb_status cut_strided(cut *c, const int32_t *ids, size_t n, nb_err *err)
{
    const size_t total = n + (c->bos >= 0);
    const int32_t *all = led(c, c->bos, ids, n);
    nb_status rc = all ? NB_OK : nb_enomem(err, "the text");
    size_t done = 1; /* ids before are scored, the first never is */

    for (size_t at = 0; rc == NB_OK && done < total; at += c->stride) {
        const size_t end = total - at < c->window ? total : at + c->window;
        rc = push(c, all + at, end - at, end - at - 1, done - at, c->s->n_win, err);
        done = end;
    }
    return rc;
}

/* Windows of one document: each predicts up to `window` ids, behind one id of context; the last one behind as many as fit. */
static nb_status cut_document(cut *c, const int32_t *ids, size_t n, nb_err *err)
{
    const int32_t *all = led(c, c->prefix, ids, n);
    const size_t total = n + (c->prefix >= 0), doc = c->s->n_win ? c->s->win[c->s->n_win - 1].doc + 1 : 0;
    nb_status rc = all ? NB_OK : nb_enomem(err, "a document");

    for (size_t done = 1; rc == NB_OK && done < total;) { /* ids before are scored */
        const size_t end = total - done < c->window ? total : done + c->window;
        const size_t at = end > c->window + 1 ? end - c->window - 1 : 0;
        rc = push(c, all + at, end - at, end - at - 1, done - at, doc, err);
        done = end;
    }
    return rc;
}

static const protocol protocols[] = {
    { "windows", 512, 0, false, cut_windows, "disjoint windows", "", "likelihood of all but the first token of each" },
    { "gptq", 2048, 0, false, cut_gptq, "disjoint windows", " of the whole text", "likelihood of all but the first token of each" },
    { "llama.cpp", 512, 0, false, cut_llama_cpp, "disjoint windows", "", "likelihood of the second half of each" },
    { "strided", 1024, 512, false, cut_strided, "windows", "", "every token scored once" },
    { "documents", 2048, 0, true, cut_document, "documents in windows", "", "likelihood of every token" },
};

/* "strided-1024-512" -> row and numbers. */
static nb_status find_protocol(const char *name, const protocol **out, size_t *window, size_t *stride, nb_err *err)
{
    char esc[NB_ESC_CAP], list[128] = "";
    size_t at = 0;

    for (size_t i = 0; i < NB_LEN(protocols); i++) {
        const protocol *p = &protocols[i];
        const size_t n = strlen(p->name);
        const char *end = name + n;
        uint64_t v[2] = { 0, 0 };
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s-N%s", i ? ", " : "", p->name, p->stride ? "-S" : "");
        if (strncmp(name, p->name, n) != 0)
            continue;
        for (int k = 0; k < (p->stride ? 2 : 1) && end && end[0] == '-' && end[1] != '0'; k++)
            end = nb_num_u64(end + 1, 1 << 24, &v[k]);
        if (!end || *end)
            continue;
        *out = p;
        *window = (size_t)v[0];
        *stride = (size_t)v[1];
        return NB_OK;
    }
    return nb_fail(err, NB_EARG, "eval.protocol", "", "no protocol \"%s\"; there are: %s", nb_esc(esc, sizeof esc, name, strlen(name)),
                   list);
}

static bool is_space(uint32_t c) /* what \s matches in Python */
{
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Pieces between runs of white space, empty ones at the ends included, as len(re.split(r"\s+", text)). */
static uint64_t count_words(const char *p, size_t n)
{
    uint64_t words = 1;
    bool before = false;

    for (size_t i = 0; i < n;) {
        uint32_t c;
        const int len = nb_u8_next(p + i, n - i, &c, NULL);
        const bool space = is_space(c);
        words += space && !before;
        before = space;
        i += (size_t)(len < 0 ? -len : len);
    }
    return words;
}

/* ---- files ---- */

static nb_status one_text(cut *c, const protocol *p, const char *text, size_t n, nb_err *err)
{
    nb_ids ids = { 0 };
    nb_status rc = nb_tokenizer_encode(c->t, text, n, false, false, &ids, err);

    if (rc == NB_OK && p->by_document && ids.n + (c->prefix >= 0) >= 2) {
        c->s->words += count_words(text, n);
        c->s->bytes += n;
    }
    if (rc == NB_OK)
        rc = p->cut(c, ids.p, ids.n, err);
    nb_ids_clear(&ids);
    return rc;
}

static nb_status line_text(const nb_json *line, size_t number, const char **text, size_t *n, nb_err *err)
{
    const nb_json *v = nb_json_get(line, "text");

    if (!v)
        v = nb_json_get(line, "content");
    if (nb_json_typeof(v) != NB_JSTR)
        return nb_fail(err, NB_EFORMAT, "json.text", "", "line %zu has no string \"text\" or \"content\"", number);
    *text = nb_json_str(v, "");
    *n = nb_json_str_len(v);
    return NB_OK;
}

/* One text a line: each a document, or all joined by an empty line when the protocol wants a stream. */
static nb_status jsonl(cut *c, const protocol *p, const char *bytes, size_t n, nb_err *err)
{
    nb_buf all = { 0 };
    size_t number = 0;
    nb_status rc = NB_OK;

    for (size_t at = 0; rc == NB_OK && at < n;) {
        const char *nl = memchr(bytes + at, '\n', n - at);
        const size_t len = (nl ? (size_t)(nl - bytes) : n) - at;
        nb_json *line = NULL;
        const char *text = "";
        size_t n_text = 0;
        number++;
        if (strspn(bytes + at, " \t\r") < len) {
            rc = nb_json_parse(bytes + at, len, "json", 0, &line, err);
            if (rc == NB_OK)
                rc = line_text(line, number, &text, &n_text, err);
            if (rc == NB_OK && p->by_document) {
                rc = one_text(c, p, text, n_text, err);
            } else if (rc == NB_OK) {
                if (all.n)
                    nb_buf_puts(&all, "\n\n");
                nb_buf_put(&all, text, n_text);
            }
            nb_json_free(line);
        }
        at += len + 1;
    }
    if (rc == NB_OK && all.failed)
        rc = nb_enomem(err, "the text");
    if (rc == NB_OK && !p->by_document)
        rc = one_text(c, p, all.p ? all.p : "", all.n, err);
    nb_buf_clear(&all);
    return rc;
}

static nb_status read_file(cut *c, const protocol *p, const char *path, nb_err *err)
{
    const size_t len = strlen(path);
    const bool lines = len > 6 && strcmp(path + len - 6, ".jsonl") == 0; /* whose parser looks at the bytes itself */
    char *bytes = NULL;
    size_t n;
    nb_status rc = nb_read_file(path, TEXT_LIMIT, &bytes, &n, err);

    if (rc == NB_OK)
        rc = add_part(c->s, path, err);
    c->part = c->s->n_parts - 1;
    if (rc == NB_OK && !lines)
        rc = nb_u8_text(bytes, n, NB_U8_WAY, err);
    if (rc == NB_OK)
        rc = lines ? jsonl(c, p, bytes, n, err) : one_text(c, p, bytes, n, err);
    nb_err_at(err, path, NULL);
    nb_free(bytes);
    return rc;
}

static nb_status settle(cut *c, const protocol *p, const nb_evalset_text *o, nb_err *err)
{
    const bool given = o->window || c->window;

    c->window = o->window ? o->window : c->window ? c->window : p->window;
    if (!given && o->context && c->window > o->context)
        c->window = o->context;
    c->stride = o->stride ? o->stride : c->stride ? c->stride : given ? c->window / 2 : p->stride;
    if (c->window < 2 || (p->stride && (c->stride < 1 || c->stride > c->window)))
        return nb_fail(err, NB_EARG, "eval.window", "", "windows of %zu tokens every %zu; at least 2, and no gap between them", c->window,
                       c->stride);
    if (o->stride && !p->stride)
        return nb_fail(err, NB_EARG, "eval.window", "", "only protocol strided has a stride");
    return NB_OK;
}

nb_status nb_evalset_read(nb_evalset *s, const nb_tokenizer *t, const nb_evalset_text *o, nb_err *err)
{
    cut c = { .s = s, .t = t, .bos = -1 };
    const protocol *p = protocols;
    const char *bos;
    nb_ids frame = { 0 };
    nb_status rc;

    memset(s, 0, sizeof *s);
    rc = find_protocol(o->protocol ? o->protocol : "windows", &p, &c.window, &c.stride, err);
    if (rc == NB_OK)
        rc = settle(&c, p, o, err);
    if (rc == NB_OK)
        rc = nb_tokenizer_encode(t, "", 0, true, false, &frame, err); /* what surrounds plain text: BOS, or nothing */
    if (frame.n)
        c.bos = frame.p[0];
    c.prefix = c.bos >= 0 ? c.bos : o->bos >= 0 ? o->bos : o->eos;
    nb_ids_clear(&frame);
    for (size_t i = 0; rc == NB_OK && i < o->n_files; i++)
        rc = read_file(&c, p, o->files[i], err);
    if (rc != NB_OK)
        return rc;
    s->doc_is = p->by_document ? "document" : "window";
    if (p->stride)
        snprintf(s->protocol, sizeof s->protocol, "%s-%zu-%zu", p->name, c.window, c.stride);
    else
        snprintf(s->protocol, sizeof s->protocol, "%s-%zu", p->name, c.window);
    bos = p->by_document                                ? (c.prefix < 0 ? ""
                                                           : c.bos >= 0 ? " behind a BOS"
                                                                        : " behind the BOS or EOS of the configuration")
          : c.bos < 0                                   ? ", no BOS"
          : p->cut == cut_gptq || p->cut == cut_strided ? ", one BOS in front"
          : p->cut == cut_llama_cpp                     ? " whose first is replaced by BOS"
                                                        : " with BOS in front";
    snprintf(s->about, sizeof s->about, "%s of %zu tokens%s%s, %s", p->cuts, c.window, p->of, bos, p->scored);
    if (p->stride)
        snprintf(s->about + strlen(s->about), sizeof s->about - strlen(s->about), ", a window every %zu", c.stride);
    return finish(s, o->limit, err);
}

#include "text/norm.h"

#include <string.h>
#include <utf8proc.h>

#include "text/charsmap.h"

/* ---- character classes ---- */

static utf8proc_category_t category(uint32_t cp)
{
    return utf8proc_category((utf8proc_int32_t)cp);
}

bool nb_uc_space(uint32_t cp)
{
    if (cp < 0x80)
        return cp == 0x20 || (cp >= 0x09 && cp <= 0x0D);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F ||
           cp == 0x205F || cp == 0x3000;
}

const char *nb_uc_category(uint32_t cp)
{
    return utf8proc_category_string((utf8proc_int32_t)cp);
}

uint32_t nb_uc_upper(uint32_t cp)
{
    return (uint32_t)utf8proc_toupper((utf8proc_int32_t)cp);
}

uint32_t nb_uc_lower(uint32_t cp)
{
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
}

uint32_t nb_uc_title(uint32_t cp)
{
    return (uint32_t)utf8proc_totitle((utf8proc_int32_t)cp);
}

static bool is_mark(uint32_t cp)
{
    const utf8proc_category_t c = category(cp);

    return c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME;
}

bool nb_uc_word(uint32_t cp)
{
    if (cp < 0x80)
        return (cp >= '0' && cp <= '9') || (cp >= 'A' && cp <= 'Z') || (cp >= 'a' && cp <= 'z') || cp == '_';
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default: /* joiners; letters in circles and squares are Alphabetic though symbols */
        return cp == 0x200C || cp == 0x200D || (cp >= 0x24B6 && cp <= 0x24E9) || (cp >= 0x1F130 && cp <= 0x1F149) ||
               (cp >= 0x1F150 && cp <= 0x1F169) || (cp >= 0x1F170 && cp <= 0x1F189);
    }
}

bool nb_uc_number(uint32_t cp)
{
    if (cp < 0x80)
        return cp >= '0' && cp <= '9';
    switch (category(cp)) {
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return true;
    default:
        return false;
    }
}

bool nb_uc_punct(uint32_t cp)
{
    utf8proc_category_t c;

    if (cp < 0x80)
        return (cp >= 0x21 && cp <= 0x2F) || (cp >= 0x3A && cp <= 0x40) || (cp >= 0x5B && cp <= 0x60) || (cp >= 0x7B && cp <= 0x7E);
    c = category(cp);
    return c >= UTF8PROC_CATEGORY_PC && c <= UTF8PROC_CATEGORY_PO;
}

/* ---- Unicode normalization ---- */

typedef struct points {
    utf8proc_int32_t *v;
    size_t n, cap;
} points;

static bool points_room(points *p, size_t more)
{
    size_t cap = p->cap ? p->cap : 256, bytes;
    utf8proc_int32_t *v;

    if (p->n + more <= p->cap)
        return true;
    while (cap < p->n + more)
        cap *= 2;
    if (!nb_mul_size(cap, sizeof *v, &bytes) || !(v = nb_realloc(p->v, bytes)))
        return false;
    p->v = v;
    p->cap = cap;
    return true;
}

static unsigned ccc(utf8proc_int32_t cp)
{
    return (unsigned)utf8proc_get_property(cp)->combining_class;
}

/* Stable order of marks v[n] by combining class: counting sort, so that a long run of marks takes linear time. */
static bool order_marks(utf8proc_int32_t *v, size_t n, points *tmp)
{
    size_t count[257] = { 0 };
    bool sorted = true;

    for (size_t i = 1; i < n && sorted; i++)
        sorted = ccc(v[i - 1]) <= ccc(v[i]);
    if (sorted)
        return true;
    tmp->n = 0;
    if (!points_room(tmp, n))
        return false;
    for (size_t i = 0; i < n; i++)
        count[(ccc(v[i]) & 255) + 1]++;
    for (size_t c = 0; c < 256; c++)
        count[c + 1] += count[c];
    for (size_t i = 0; i < n; i++)
        tmp->v[count[ccc(v[i]) & 255]++] = v[i];
    memcpy(v, tmp->v, n * sizeof *v);
    return true;
}

static bool decompose(const char *s, size_t n, bool compat, points *p)
{
    const utf8proc_option_t opt = UTF8PROC_DECOMPOSE | (compat ? UTF8PROC_COMPAT : 0);
    points tmp = { 0 };
    bool ok = true;

    for (size_t i = 0; i < n && ok;) {
        uint32_t cp;
        int bound = 0;
        utf8proc_ssize_t k;

        i += (size_t)nb_u8_next(s + i, n - i, &cp, NULL);
        if (!(ok = points_room(p, 64)))
            break;
        k = utf8proc_decompose_char((utf8proc_int32_t)cp, p->v + p->n, 64, opt, &bound);
        if (k < 0 || k > 64) { /* cannot happen with valid code points; keep the character */
            p->v[p->n] = (utf8proc_int32_t)cp;
            k = 1;
        }
        p->n += (size_t)k;
    }
    for (size_t i = 0; i < p->n && ok;) {
        size_t k = i;
        while (k < p->n && ccc(p->v[k]) != 0)
            k++;
        if (k > i + 1)
            ok = order_marks(p->v + i, k - i, &tmp);
        i = k > i ? k : i + 1;
    }
    nb_free(tmp.v);
    return ok;
}

/* Below U+0300 everything is NFC; only ASCII is NFKC, NFD and NFKD without looking. */
static bool is_quick(const char *s, size_t n, bool nfc)
{
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)s[i] >= (nfc ? 0xCC : 0x80))
            return false;
    }
    return true;
}

static nb_status unicode_form(const char *s, size_t n, bool compat, bool compose, nb_buf *out, nb_err *err)
{
    points p = { 0 };
    bool ok = decompose(s, n, compat, &p);
    utf8proc_ssize_t len = (utf8proc_ssize_t)p.n;

    if (ok && compose)
        len = utf8proc_normalize_utf32(p.v, len, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    for (utf8proc_ssize_t i = 0; ok && i < len; i++)
        nb_u8_append(out, (uint32_t)p.v[i]);
    nb_free(p.v);
    return ok && !out->failed ? NB_OK : nb_enomem(err, "normalizing a text");
}

/* ---- the other steps ---- */

static void lowercase(const char *s, size_t n, nb_buf *out)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;

        i += (size_t)nb_u8_next(s + i, n - i, &cp, NULL);
        if (cp == 0x130) { /* the only character whose lower case is two */
            nb_buf_puts(out, "i\xcc\x87");
            continue;
        }
        if (cp < 0x80)
            nb_buf_putc(out, cp >= 'A' && cp <= 'Z' ? (char)(cp + 32) : (char)cp);
        else
            nb_u8_append(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp));
    }
}

static void strip_marks(const char *s, size_t n, bool only_mn, nb_buf *out)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        const size_t k = (size_t)nb_u8_next(s + i, n - i, &cp, NULL);

        if (cp < 0x80 || (only_mn ? category(cp) != UTF8PROC_CATEGORY_MN : !is_mark(cp)))
            nb_buf_put(out, s + i, k);
        i += k;
    }
}

static void nmt(const char *s, size_t n, nb_buf *out)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        const size_t k = (size_t)nb_u8_next(s + i, n - i, &cp, NULL);

        if ((cp >= 0x01 && cp <= 0x08) || cp == 0x0B || (cp >= 0x0E && cp <= 0x1F) || cp == 0x7F || cp == 0x8F || cp == 0x9F) {
            /* deleted */
        } else if (cp == 0x09 || cp == 0x0A || cp == 0x0C || cp == 0x0D || cp == 0x1680 || (cp >= 0x200B && cp <= 0x200F) || cp == 0x2028 ||
                   cp == 0x2029 || cp == 0x2581 || cp == 0xFEFF || cp == 0xFFFD) {
            nb_buf_putc(out, ' ');
        } else {
            nb_buf_put(out, s + i, k);
        }
        i += k;
    }
}

static void strip_view(bool left, bool right, const char **s, size_t *n)
{
    uint32_t cp;

    while (left && *n > 0) {
        const size_t k = (size_t)nb_u8_next(*s, *n, &cp, NULL);
        if (!nb_uc_space(cp))
            break;
        *s += k;
        *n -= k;
    }
    while (right && *n > 0) {
        const size_t k = nb_u8_prev(*s, *n, &cp);
        if (!nb_uc_space(cp))
            break;
        *n -= k;
    }
}

static nb_status over_budget(nb_err *err)
{
    return nb_fail(err, NB_ELIMIT, "limit.normalize", "", "the normalizer makes the text more than 18 times as long (and 64 KiB)");
}

nb_status nb_replace(const nb_pattern *p, nb_finder *f, const char *s, size_t n, const char *by, size_t n_by, size_t left, nb_buf *out,
                     nb_err *err)
{
    size_t at = 0, b = 0, e = 0;
    bool found;
    nb_status rc;

    if (n == 0) /* the reference finds nothing in an empty text, not even an empty match */
        return NB_OK;
    nb_finder_begin(f, p, s, n);
    while ((rc = nb_finder_next(f, &found, &b, &e, err)) == NB_OK && found) {
        nb_buf_put(out, s + at, b - at);
        nb_buf_put(out, by, n_by);
        at = e;
        if (out->n > left)
            return over_budget(err);
    }
    if (rc == NB_OK)
        nb_buf_put(out, s + at, n - at);
    return rc != NB_OK ? rc : out->failed ? nb_enomem(err, "normalizing a text") : NB_OK;
}

/* ---- the pipeline ---- */

typedef enum kind {
    NFC,
    NFD,
    NFKC,
    NFKD,
    LOWERCASE,
    REPLACE,
    PREPEND,
    STRIP,
    STRIP_ACCENTS,
    STRIP_MN,
    NMT,
    BYTES,
    BERT_CLEAN,
    BERT_CHINESE,
    CHARSMAP
} kind;

typedef struct step {
    kind kind;
    nb_pattern *pattern;
    nb_charsmap *map;
    char *content;
    size_t n_content;
    bool left, right;
} step;

struct nb_norm {
    step *v;
    size_t n, cap;
};

static nb_status add(nb_norm *nm, kind k, step **out, nb_err *err)
{
    if (nm->n >= 256)
        return nb_fail(err, NB_ELIMIT, "limit.steps", "", "more than 256 normalizer steps");
    if (nm->n == nm->cap) {
        const size_t cap = nm->cap ? nm->cap * 2 : 8;
        step *v = nb_realloc(nm->v, cap * sizeof *v);
        if (!v)
            return nb_enomem(err, "the normalizer");
        nm->v = v;
        nm->cap = cap;
    }
    *out = &nm->v[nm->n++];
    memset(*out, 0, sizeof **out);
    (*out)->kind = k;
    return NB_OK;
}

static nb_status set_content(step *s, const nb_json *v, nb_err *err)
{
    if (nb_json_typeof(v) != NB_JSTR)
        return nb_fail(err, NB_EFORMAT, "tok.type", "", "a normalizer needs a text to put in, \"content\" or \"prepend\" is none");
    s->n_content = nb_json_str_len(v);
    s->content = nb_strndup(nb_json_str(v, ""), s->n_content);
    return s->content ? NB_OK : nb_enomem(err, "the normalizer");
}

static nb_status open_replace(nb_norm *nm, const nb_json *v, nb_err *err)
{
    step *s = NULL;
    nb_status rc = add(nm, REPLACE, &s, err);

    if (rc == NB_OK)
        rc = set_content(s, nb_json_get(v, "content"), err);
    if (rc == NB_OK)
        rc = nb_pattern_open(nb_json_get(v, "pattern"), &s->pattern, err);
    if (rc == NB_OK && nb_pattern_is_empty(s->pattern))
        rc = nb_fail(err, NB_EFORMAT, "tok.regex", "", "a Replace normalizer with an empty pattern; name the text to replace");
    return rc;
}

static nb_status open_prepend(nb_norm *nm, const nb_json *v, nb_err *err)
{
    step *s = NULL;
    nb_status rc = add(nm, PREPEND, &s, err);

    return rc == NB_OK ? set_content(s, nb_json_get(v, "prepend"), err) : rc;
}

static nb_status open_strip(nb_norm *nm, const nb_json *v, nb_err *err)
{
    step *s = NULL;
    nb_status rc = add(nm, STRIP, &s, err);

    if (rc == NB_OK) {
        s->left = nb_json_bool(nb_json_get(v, "strip_left"), true);
        s->right = nb_json_bool(nb_json_get(v, "strip_right"), true);
    }
    return rc;
}

static nb_status open_bert(nb_norm *nm, const nb_json *v, nb_err *err)
{
    const bool lower = nb_json_bool(nb_json_get(v, "lowercase"), true);
    const bool strip = nb_json_bool(nb_json_get(v, "strip_accents"), lower);
    step *s = NULL;
    nb_status rc = NB_OK;

    if (nb_json_bool(nb_json_get(v, "clean_text"), true))
        rc = add(nm, BERT_CLEAN, &s, err);
    if (rc == NB_OK && nb_json_bool(nb_json_get(v, "handle_chinese_chars"), true))
        rc = add(nm, BERT_CHINESE, &s, err);
    if (rc == NB_OK && strip && (rc = add(nm, NFD, &s, err)) == NB_OK)
        rc = add(nm, STRIP_MN, &s, err);
    if (rc == NB_OK && lower)
        rc = add(nm, LOWERCASE, &s, err);
    return rc;
}

static nb_status open_charsmap(nb_norm *nm, const nb_json *v, nb_err *err)
{
    const nb_json *text = nb_json_get(v, "precompiled_charsmap");
    step *s = NULL;
    nb_status rc = add(nm, CHARSMAP, &s, err);

    return rc == NB_OK ? nb_charsmap_open(nb_json_str(text, ""), nb_json_str_len(text), &s->map, err) : rc;
}

static nb_status open_one(nb_norm *nm, const nb_json *v, nb_err *err)
{
    static const struct {
        const char *type;
        kind kind;
        nb_status (*open)(nb_norm *, const nb_json *, nb_err *); /* NULL: just the kind */
    } types[] = {
        { "NFC", NFC, NULL },
        { "NFD", NFD, NULL },
        { "NFKC", NFKC, NULL },
        { "NFKD", NFKD, NULL },
        { "Lowercase", LOWERCASE, NULL },
        { "Replace", REPLACE, open_replace },
        { "Prepend", PREPEND, open_prepend },
        { "Strip", STRIP, open_strip },
        { "StripAccents", STRIP_ACCENTS, NULL },
        { "Nmt", NMT, NULL },
        { "ByteLevel", BYTES, NULL },
        { "BertNormalizer", BERT_CLEAN, open_bert },
        { "Precompiled", CHARSMAP, open_charsmap },
    };
    const char *type = nb_json_str(nb_json_get(v, "type"), "");
    char esc[NB_ESC_CAP];
    nb_status rc = NB_OK;
    step *s = NULL;

    if (strcmp(type, "Sequence") == 0) {
        const nb_json *list = nb_json_get(v, "normalizers");
        for (size_t i = 0; rc == NB_OK && i < nb_json_len(list); i++)
            rc = open_one(nm, nb_json_at(list, i), err);
        return rc;
    }
    for (size_t i = 0; i < NB_LEN(types); i++) {
        if (strcmp(types[i].type, type) == 0)
            return types[i].open ? types[i].open(nm, v, err) : add(nm, types[i].kind, &s, err);
    }
    return nb_fail(err, NB_EUNSUPPORTED, "tok.unsupported", "", "normalizer type \"%s\" is not supported",
                   nb_esc(esc, sizeof esc, type, strlen(type)));
}

nb_status nb_norm_open(const nb_json *spec, nb_norm **out, nb_err *err)
{
    nb_norm *nm = nb_calloc(1, sizeof *nm);
    nb_status rc = NB_OK;

    *out = NULL;
    if (!nm)
        return nb_enomem(err, "the normalizer");
    if (!nb_json_is_null(spec))
        rc = open_one(nm, spec, err);
    if (rc == NB_OK) {
        *out = nm;
        nm = NULL;
    }
    nb_norm_close(nm);
    return rc;
}

void nb_norm_close(nb_norm *nm)
{
    if (!nm)
        return;
    for (size_t i = 0; i < nm->n; i++) {
        nb_pattern_close(nm->v[i].pattern);
        nb_charsmap_close(nm->v[i].map);
        nb_free(nm->v[i].content);
    }
    nb_free(nm->v);
    nb_free(nm);
}

bool nb_norm_is_none(const nb_norm *nm)
{
    return nm->n == 0;
}

void nb_norm_work_clear(nb_norm_work *w)
{
    nb_flip_clear(&w->flip);
    nb_finder_clear(&w->finder);
    memset(w, 0, sizeof *w);
}

static void bert_clean(const char *s, size_t n, nb_buf *out)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        const size_t k = (size_t)nb_u8_next(s + i, n - i, &cp, NULL);
        const utf8proc_category_t c = category(cp);
        const bool blank = cp == '\t' || cp == '\n' || cp == '\r';
        const bool drop =
            cp == 0 || cp == 0xFFFD || (!blank && (c == UTF8PROC_CATEGORY_CC || c == UTF8PROC_CATEGORY_CF || c == UTF8PROC_CATEGORY_CO));

        if (!drop && nb_uc_space(cp))
            nb_buf_putc(out, ' ');
        else if (!drop)
            nb_buf_put(out, s + i, k);
        i += k;
    }
}

static bool is_ideograph(uint32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

static void bert_chinese(const char *s, size_t n, nb_buf *out)
{
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        const size_t k = (size_t)nb_u8_next(s + i, n - i, &cp, NULL);
        const bool cjk = is_ideograph(cp);

        if (cjk)
            nb_buf_putc(out, ' ');
        nb_buf_put(out, s + i, k);
        if (cjk)
            nb_buf_putc(out, ' ');
        i += k;
    }
}

/* Bytes of the grapheme cluster (extended) at s. */
static size_t cluster(const char *s, size_t n)
{
    utf8proc_int32_t state = 0;
    uint32_t cp, next;
    size_t k = (size_t)nb_u8_next(s, n, &cp, NULL);

    while (k < n) {
        const size_t len = (size_t)nb_u8_next(s + k, n - k, &next, NULL);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)cp, (utf8proc_int32_t)next, &state))
            break;
        k += len;
        cp = next;
    }
    return k;
}

/* Short clusters as a whole where the table knows how they begin, everything else character by character: the reference
 * does the same. */
static void map_chars(const nb_charsmap *m, const char *s, size_t n, nb_buf *out)
{
    for (size_t i = 0; i < n;) {
        const size_t k = cluster(s + i, n - i);
        size_t c = k < 6 && nb_charsmap_find(m, s + i, k, out) ? k : 0;
        while (c < k) {
            uint32_t cp;
            const size_t len = (size_t)nb_u8_next(s + i + c, k - c, &cp, NULL);
            if (!nb_charsmap_find(m, s + i + c, len, out))
                nb_buf_put(out, s + i + c, len);
            c += len;
        }
        i += k;
    }
}

/* One step: *s[*n] becomes a view into out, or stays where nothing changes. */
static nb_status run_step(const step *st, nb_norm_work *w, const char **s, size_t *n, nb_err *err)
{
    const bool nfc = st->kind == NFC;
    nb_buf *out;
    nb_status rc = NB_OK;

    if (st->kind == STRIP) {
        strip_view(st->left, st->right, s, n);
        return NB_OK;
    }
    if (st->kind <= NFKD && is_quick(*s, *n, nfc))
        return NB_OK;
    out = nb_flip_next(&w->flip);
    switch (st->kind) {
    case NFC:
    case NFD:
    case NFKC:
    case NFKD:
        rc = unicode_form(*s, *n, st->kind >= NFKC, nfc || st->kind == NFKC, out, err);
        break;
    case LOWERCASE:
        lowercase(*s, *n, out);
        break;
    case REPLACE:
        rc = nb_replace(st->pattern, &w->finder, *s, *n, st->content, st->n_content, w->left, out, err);
        break;
    case PREPEND:
        if (*n > 0)
            nb_buf_put(out, st->content, st->n_content);
        nb_buf_put(out, *s, *n);
        break;
    case STRIP_ACCENTS:
    case STRIP_MN:
        strip_marks(*s, *n, st->kind == STRIP_MN, out);
        break;
    case NMT:
        nmt(*s, *n, out);
        break;
    case BYTES:
        for (size_t i = 0; i < *n; i++)
            nb_u8_append(out, nb_byte_char((unsigned char)(*s)[i]));
        break;
    case BERT_CLEAN:
        bert_clean(*s, *n, out);
        break;
    case BERT_CHINESE:
        bert_chinese(*s, *n, out);
        break;
    case CHARSMAP:
        map_chars(st->map, *s, *n, out);
        break;
    case STRIP:
        break; /* above */
    }
    if (rc == NB_OK && out->failed)
        rc = nb_enomem(err, "normalizing a text");
    if (rc == NB_OK && out->n > w->left)
        rc = over_budget(err);
    *s = out->p ? out->p : "";
    *n = out->n;
    return rc;
}

nb_status nb_norm_run(const nb_norm *nm, nb_norm_work *w, const char **s, size_t *n, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < nm->n; i++)
        rc = run_step(&nm->v[i], w, s, n, err);
    if (rc == NB_OK && nm->n > 0)
        w->left -= *n < w->left ? *n : w->left;
    return rc;
}

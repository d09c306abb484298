#include "base/spm.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/json.h"

#define MARK "\xe2\x96\x81" /* U+2581 stands for a blank */
/* Texts of tokenizer.json that never change. */
#define NO_PADDING     "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":["
#define BLANK_TO_MARK  "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"}"
#define MARK_TO_BLANK  "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" MARK "\"},\"content\":\" \"}"
#define RUN_OF_BLANKS  "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":"
#define STRIP(left)    "{\"type\":\"Strip\",\"strip_left\":" left ",\"strip_right\":true}"
#define META(scheme)   "{\"type\":\"Metaspace\",\"replacement\":\"" MARK "\",\"prepend_scheme\":\"" scheme "\",\"split\":true}"
#define FALLBACK(more) "{\"type\":\"Sequence\",\"decoders\":[" MARK_TO_BLANK ",{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}" more "]}"
#define STRIP_ONE      ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}"

static void put_special(nb_buf *out, const char *s, size_t n, int64_t id, bool comma)
{
    if (comma)
        nb_buf_putc(out, ',');
    nb_json_put_str(out, s, n);
    nb_buf_puts(out, ":{\"id\":");
    nb_json_put_str(out, s, n);
    nb_buf_printf(out, ",\"ids\":[%" PRId64 "],\"tokens\":[", id);
    nb_json_put_str(out, s, n);
    nb_buf_puts(out, "]}");
}

static void put_piece(nb_buf *out, const char *kind, const char *s, size_t n, int type, bool comma)
{
    nb_buf_printf(out, "%s{\"%s\":{\"id\":", comma ? "," : "", kind);
    nb_json_put_str(out, s, n);
    nb_buf_printf(out, ",\"type_id\":%d}}", type);
}

void nb_tok_put_template(nb_buf *out, const char *bos, size_t n_bos, int64_t bos_id, const char *eos, size_t n_eos, int64_t eos_id)
{
    nb_buf_puts(out, "{\"type\":\"TemplateProcessing\"");
    for (int pair = 0; pair < 2; pair++) {
        nb_buf_puts(out, pair ? "],\"pair\":[" : ",\"single\":[");
        for (int k = 0; k <= pair; k++) {
            if (bos)
                put_piece(out, "SpecialToken", bos, n_bos, k, k > 0);
            put_piece(out, "Sequence", k ? "B" : "A", 1, k, k > 0 || bos);
            if (eos)
                put_piece(out, "SpecialToken", eos, n_eos, k, true);
        }
    }
    nb_buf_puts(out, "],\"special_tokens\":{");
    if (bos)
        put_special(out, bos, n_bos, bos_id, false);
    if (eos && !(bos && bos_id == eos_id))
        put_special(out, eos, n_eos, eos_id, bos != NULL);
    nb_buf_puts(out, "}}");
}

void nb_tok_put_added(nb_buf *out, const char *s, size_t n, int64_t id, bool special)
{
    nb_buf_putc(out, '{');
    if (id >= 0)
        nb_buf_printf(out, "\"id\":%" PRId64 ",", id);
    nb_buf_puts(out, "\"content\":");
    nb_json_put_str(out, s, n);
    nb_buf_printf(out, ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":%s}",
                  special ? "true" : "false");
}

void nb_tok_put_merges(nb_buf *out, const nb_scored *v, const nb_merge *m, size_t n)
{
    nb_buf_putc(out, '[');
    for (size_t i = 0; i < n; i++) {
        nb_buf_puts(out, i ? ",[" : "[");
        nb_json_put_str(out, v[m[i].left].s, v[m[i].left].n);
        nb_buf_putc(out, ',');
        nb_json_put_str(out, v[m[i].right].s, v[m[i].right].n);
        nb_buf_putc(out, ']');
    }
    nb_buf_putc(out, ']');
}

static void put_base64(nb_buf *out, const char *s, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    for (size_t i = 0; i < n; i += 3) {
        const size_t k = n - i < 3 ? n - i : 3;
        uint32_t v = 0;
        for (size_t b = 0; b < 3; b++)
            v = v << 8 | (b < k ? (unsigned char)s[i + b] : 0);
        for (size_t d = 0; d < 4; d++)
            nb_buf_putc(out, d <= k ? digits[v >> (18 - 6 * d) & 63] : '=');
    }
}

static void put_added(const nb_spm *v, nb_buf *out)
{
    bool some = false;

    for (size_t i = 0; i < v->n; i++) {
        const int t = v->type[i];
        if ((t != NB_SPM_UNKNOWN && t != NB_SPM_CONTROL && t != NB_SPM_USER) || v->piece[i].n == 0)
            continue;
        if (some)
            nb_buf_putc(out, ',');
        nb_tok_put_added(out, v->piece[i].s, v->piece[i].n, (int64_t)i, t != NB_SPM_USER);
        some = true;
    }
    if (v->more)
        nb_buf_puts(out, v->more + (some ? 0 : strspn(v->more, ",")));
}

/* Byte pairs: blanks become marks before anything else. Unigram: Metaspace does that after the normalizer. */
static void put_steps(const nb_spm *v, nb_buf *out)
{
    nb_buf_puts(out, "],\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    if (v->n_charsmap > 0) {
        nb_buf_puts(out, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"");
        put_base64(out, v->charsmap, v->n_charsmap);
        nb_buf_puts(out, "\"}");
        if (!v->unigram || v->collapse)
            nb_buf_putc(out, ',');
    }
    if (v->unigram && v->collapse)
        nb_buf_puts(out, STRIP("false") "," RUN_OF_BLANKS "\"" MARK "\"}");
    if (!v->unigram && v->collapse)
        nb_buf_puts(out, STRIP("true") "," RUN_OF_BLANKS "\" \"},");
    if (!v->unigram && v->dummy_prefix)
        nb_buf_puts(out, "{\"type\":\"Prepend\",\"prepend\":\"" MARK "\"},");
    if (!v->unigram)
        nb_buf_puts(out, BLANK_TO_MARK);
    nb_buf_puts(out, "]},\"pre_tokenizer\":");
    nb_buf_puts(out, !v->unigram ? "null" : v->dummy_prefix ? META("always") : META("never"));
    nb_buf_puts(out, ",\"decoder\":");
    if (!v->unigram || v->byte_fallback)
        nb_buf_puts(out, v->dummy_prefix ? FALLBACK(STRIP_ONE) : FALLBACK(""));
    else
        nb_buf_puts(out, v->dummy_prefix ? META("always") : META("never"));
    nb_buf_puts(out, ",\"post_processor\":");
}

static nb_status put_bpe(const nb_spm *v, nb_buf *out, nb_err *err)
{
    nb_merge *m = NULL;
    size_t n_m = 0;
    nb_status rc = nb_merges_of(v->piece, v->n, true, &m, &n_m, err);

    nb_buf_puts(out, ",\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    if (v->unk >= 0)
        nb_json_put_str(out, v->piece[v->unk].s, v->piece[v->unk].n);
    else
        nb_buf_puts(out, "null");
    nb_buf_printf(out,
                  ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":true,\"byte_fallback\":%s,"
                  "\"ignore_merges\":false,\"vocab\":{",
                  v->byte_fallback ? "true" : "false");
    for (size_t i = 0; i < v->n; i++) {
        if (i > 0)
            nb_buf_putc(out, ',');
        nb_json_put_str(out, v->piece[i].s, v->piece[i].n);
        nb_buf_printf(out, ":%zu", i);
    }
    nb_buf_puts(out, "},\"merges\":");
    nb_tok_put_merges(out, v->piece, m, n_m);
    nb_buf_puts(out, "}}");
    nb_free(m);
    return rc;
}

static void put_unigram(const nb_spm *v, nb_buf *out)
{
    nb_buf_puts(out, ",\"model\":{\"type\":\"Unigram\",\"unk_id\":");
    if (v->unk >= 0)
        nb_buf_printf(out, "%" PRId64, v->unk);
    else
        nb_buf_puts(out, "null");
    nb_buf_printf(out, ",\"byte_fallback\":%s,\"vocab\":[", v->byte_fallback ? "true" : "false");
    for (size_t i = 0; i < v->n; i++) {
        nb_buf_puts(out, i ? ",[" : "[");
        nb_json_put_str(out, v->piece[i].s, v->piece[i].n);
        nb_buf_putc(out, ',');
        nb_json_put_real(out, v->piece[i].score);
        nb_buf_putc(out, ']');
    }
    nb_buf_puts(out, "]}}");
}

nb_status nb_spm_json(const nb_spm *v, nb_buf *out, nb_err *err)
{
    const int64_t n = (int64_t)v->n;
    const bool bos = v->add_bos && v->bos >= 0, eos = v->add_eos && v->eos >= 0;
    nb_status rc = NB_OK;

    if (v->unk >= n || v->bos >= n || v->eos >= n)
        return nb_fail(err, NB_EFORMAT, "tok.special_id", "", "ids of unk, BOS and EOS are %lld, %lld and %lld of %zu tokens",
                       (long long)v->unk, (long long)v->bos, (long long)v->eos, v->n);
    for (size_t i = 0; i < v->n; i++) {
        if (!isfinite(v->piece[i].score))
            return nb_fail(err, NB_EFORMAT, "tok.score", "", "the score of token %zu is not finite", i);
    }
    nb_buf_puts(out, NO_PADDING);
    put_added(v, out);
    put_steps(v, out);
    if (bos || eos)
        nb_tok_put_template(out, bos ? v->piece[v->bos].s : NULL, bos ? v->piece[v->bos].n : 0, v->bos, eos ? v->piece[v->eos].s : NULL,
                            eos ? v->piece[v->eos].n : 0, v->eos);
    else
        nb_buf_puts(out, "null");
    if (v->unigram)
        put_unigram(v, out);
    else
        rc = put_bpe(v, out, err);
    return rc == NB_OK && out->failed ? nb_enomem(err, "tokenizer.json") : rc;
}

/* eval_choice.c - see eval_choice.h. */
#include "job/eval_choice.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/map.h"
#include "base/mem.h"
#include "model/exec.h"
#include "text/utf8.h"

enum { FILE_LIMIT = 1 << 30, MAX_ANSWERS = 64, PIECE = 256 };

void nb_choiceset_clear(nb_choiceset *s)
{
    nb_free(s->choice);
    nb_free(s->begin);
    nb_free(s->gold);
    nb_ids_clear(&s->ids);
    memset(s, 0, sizeof *s);
}

/* ---- lines ---- */

typedef struct reader {
    nb_choiceset *s;
    const nb_tokenizer *t;
    const nb_choice_opts *o;
    int32_t bos;
    size_t line, cap_choices, cap_questions;
} reader;

typedef struct question {
    const char *context;
    size_t n_context, n;
    const char *answer[MAX_ANSWERS];
    size_t n_answer[MAX_ANSWERS];
    const nb_json *labels; /* or NULL */
    size_t gold;
} question;

static nb_status bad(const reader *r, const char *what, nb_err *err)
{
    return nb_fail(err, NB_EFORMAT, "choice.line", "", "line %zu %s", r->line, what);
}

static const nb_json *first_of(const nb_json *o, const char *const *keys, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (nb_json_get(o, keys[i]))
            return nb_json_get(o, keys[i]);
    return NULL;
}

static nb_status find_gold(const reader *r, const nb_json *v, question *q, nb_err *err)
{
    const char *s = nb_json_str(v, NULL);
    int64_t at = nb_json_int(v, -1);

    for (size_t i = 0; s && q->labels && i < q->n; i++)
        if (strcmp(s, nb_json_str(nb_json_at(q->labels, i), "")) == 0)
            at = (int64_t)i;
    if (s && at < 0 && s[0] && !s[1])
        at = s[0] >= 'A' && s[0] <= 'Z' ? s[0] - 'A' : s[0] >= '0' && s[0] <= '9' ? s[0] - '0' : -1;
    if (at < 0 || (size_t)at >= q->n)
        return bad(r, "has no right answer (\"gold\", \"answer\", \"label\" or \"answerKey\": an index from 0, a letter, or a label)", err);
    q->gold = (size_t)at;
    return NB_OK;
}

static nb_status parse(const reader *r, const nb_json *o, question *q, nb_err *err)
{
    static const char *const contexts[] = { "query", "context", "question", "prompt", "ctx" }, *const lists[] = { "choices", "endings" },
                             *const golds[] = { "gold", "answer", "label", "answerKey" };
    const nb_json *c = first_of(o, contexts, NB_LEN(contexts)), *a = first_of(o, lists, NB_LEN(lists));

    memset(q, 0, sizeof *q);
    if (nb_json_typeof(c) != NB_JSTR)
        return bad(r, "has no string \"query\", \"context\", \"question\", \"prompt\" or \"ctx\"", err);
    q->context = nb_json_str(c, "");
    q->n_context = nb_json_str_len(c);
    if (nb_json_typeof(a) == NB_JOBJ) {
        q->labels = nb_json_get(a, "label");
        a = nb_json_get(a, "text");
    }
    q->n = nb_json_typeof(a) == NB_JARR ? nb_json_len(a) : 0;
    if (q->n < 2 || q->n > MAX_ANSWERS)
        return bad(r, "needs an array \"choices\" of 2 to 64 answers", err);
    for (size_t i = 0; i < q->n; i++) {
        if (nb_json_typeof(nb_json_at(a, i)) != NB_JSTR || nb_json_str_len(nb_json_at(a, i)) == 0)
            return bad(r, "has an answer that is no text", err);
        q->answer[i] = nb_json_str(nb_json_at(a, i), "");
        q->n_answer[i] = nb_json_str_len(nb_json_at(a, i));
    }
    return find_gold(r, first_of(o, golds, NB_LEN(golds)), q, err);
}

/* ---- ids ---- */

static size_t count_chars(const char *p, size_t n)
{
    size_t chars = 0;

    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)p[i] & 0xc0) != 0x80;
    return chars;
}

static nb_status append(nb_ids *to, const int32_t *p, size_t n, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < n; i++)
        rc = nb_ids_push(to, p[i], err);
    return rc;
}

/* Context and answer as one text, and where the answer begins. */
static nb_status add_answer(reader *r, const question *q, size_t i, nb_err *err)
{
    nb_choiceset *s = r->s;
    nb_choice *c = &s->choice[s->n_choices];
    nb_ids head = { 0 }, all = { 0 };
    nb_buf text = { 0 };
    size_t n_head = q->n_context, cut;
    nb_status rc;

    while (n_head && strchr(" \t\r\n\v\f", q->context[n_head - 1]))
        n_head--;
    nb_buf_put(&text, q->context, q->n_context);
    if (q->n_context == 0 || n_head == q->n_context)
        nb_buf_putc(&text, ' ');
    nb_buf_put(&text, q->answer[i], q->n_answer[i]);
    rc = text.failed ? nb_enomem(err, "a question") : nb_tokenizer_encode(r->t, q->context, n_head, false, false, &head, err);
    if (rc == NB_OK)
        rc = nb_tokenizer_encode(r->t, text.p, text.n, false, false, &all, err);
    if (rc == NB_OK && head.n >= all.n)
        rc = bad(r, "has an answer without tokens of its own", err);
    if (rc == NB_OK && r->bos < 0 && head.n == 0 && r->o->prefix < 0)
        rc = bad(r, "has an empty context, and the tokenizer has no BOS or EOS to stand for it", err);
    if (rc == NB_OK) {
        const int32_t lead = r->bos >= 0 ? r->bos : head.n == 0 ? r->o->prefix : -1;
        const size_t total = all.n + (lead >= 0), room = r->o->context ? r->o->context + 1 : total;
        cut = total > room ? total - room : 0; /* ids lost at the front */
        *c = (nb_choice){ .at = s->ids.n, .n = total - cut, .chars = count_chars(q->answer[i], q->n_answer[i]) };
        const size_t first = head.n + (lead >= 0);
        c->first = first > cut + 1 ? first - cut : 1;
        if (lead >= 0 && cut == 0)
            rc = nb_ids_push(&s->ids, lead, err);
        if (rc == NB_OK)
            rc = append(&s->ids, all.p + (cut ? cut - (lead >= 0) : 0), all.n - (cut ? cut - (lead >= 0) : 0), err);
        s->max_len = c->n > s->max_len ? c->n : s->max_len;
        s->n_choices++;
    }
    nb_ids_clear(&head);
    nb_ids_clear(&all);
    nb_buf_clear(&text);
    return rc;
}

static nb_status reserve(reader *r, size_t answers, nb_err *err)
{
    nb_choiceset *s = r->s;

    if (s->n_choices + answers > r->cap_choices) {
        const size_t cap = 2 * (s->n_choices + answers);
        nb_choice *p = nb_realloc(s->choice, cap * sizeof *p);
        if (!p)
            return nb_enomem(err, "the questions");
        s->choice = p;
        r->cap_choices = cap;
    }
    if (s->n + 2 > r->cap_questions) {
        const size_t cap = 2 * s->n + 16;
        size_t *begin = nb_realloc(s->begin, cap * sizeof *begin);
        if (begin)
            s->begin = begin;
        size_t *gold = nb_realloc(s->gold, cap * sizeof *gold);
        if (gold)
            s->gold = gold;
        if (!begin || !gold)
            return nb_enomem(err, "the questions");
        r->cap_questions = cap;
    }
    return NB_OK;
}

static nb_status add_line(reader *r, const char *p, size_t n, nb_err *err)
{
    nb_choiceset *s = r->s;
    nb_json *o = NULL;
    question q;
    nb_status rc = nb_json_parse(p, n, "json", 0, &o, err);

    if (rc == NB_OK)
        rc = parse(r, o, &q, err);
    if (rc == NB_OK)
        rc = reserve(r, q.n, err);
    if (rc == NB_OK) {
        s->begin[s->n] = s->n_choices;
        s->gold[s->n] = q.gold;
    }
    for (size_t i = 0; rc == NB_OK && i < q.n; i++)
        rc = add_answer(r, &q, i, err);
    if (rc == NB_OK)
        s->begin[++s->n] = s->n_choices;
    nb_json_free(o);
    return rc;
}

nb_status nb_choiceset_read(nb_choiceset *s, const nb_tokenizer *t, const char *path, const nb_choice_opts *o, nb_err *err)
{
    reader r = { .s = s, .t = t, .o = o, .bos = -1 };
    nb_ids frame = { 0 };
    char *bytes = NULL;
    size_t n = 0;
    nb_status rc;

    memset(s, 0, sizeof *s);
    rc = nb_read_file(path, FILE_LIMIT, &bytes, &n, err);
    if (rc == NB_OK)
        rc = nb_tokenizer_encode(t, "", 0, true, false, &frame, err);
    if (frame.n)
        r.bos = frame.p[0];
    for (size_t at = 0; rc == NB_OK && at < n && (o->limit == 0 || s->n < o->limit);) {
        const char *nl = memchr(bytes + at, '\n', n - at);
        const size_t len = (nl ? (size_t)(nl - bytes) : n) - at;
        r.line++;
        if (strspn(bytes + at, " \t\r") < len)
            rc = add_line(&r, bytes + at, len, err);
        at += len + 1;
    }
    if (rc == NB_OK && s->n == 0)
        rc = nb_fail(err, NB_EFORMAT, "choice.line", "", "there are no questions in it");
    nb_err_at(err, path, NULL);
    nb_ids_clear(&frame);
    nb_free(bytes);
    return rc;
}

/* ---- running ---- */

typedef struct run {
    nb_exec *exec;
    nb_pool *pool;
    size_t vocab, piece, n_pages;
    uint32_t *pages, *pos, *seq;
    uint8_t *want;
    float *logits;
    const int32_t *next; /* of the rows being scored */
    double *row;         /* [piece] */
} run;

static void score(void *ctx, size_t begin, size_t end, int thread)
{
    run *r = ctx;

    (void)thread;
    for (size_t i = begin; i < end; i++)
        r->row[i] = nb_position_of(NULL, r->logits + i * r->vocab, r->vocab, (size_t)r->next[i]).nll;
}

/* Positions [from, n - 1) of an answer's ids; those before `from` are in the cache. */
static nb_status run_answer(run *r, const int32_t *ids, const nb_choice *c, size_t from, double *ll, nb_err *err)
{
    const nb_seq_view view = { .pages = r->pages, .n_pages = r->n_pages, .total = c->n };
    nb_status rc = NB_OK;

    *ll = 0;
    for (size_t p = from; rc == NB_OK && p < c->n - 1; p += r->piece) {
        const size_t m = c->n - 1 - p < r->piece ? c->n - 1 - p : r->piece;
        const nb_batch b = { .m = m, .token = ids + p, .pos = r->pos, .seq = r->seq, .want = r->want, .seqs = &view, .n_seqs = 1 };
        size_t rows = 0;
        for (size_t i = 0; i < m; i++) {
            r->pos[i] = (uint32_t)(p + i);
            r->want[i] = p + i + 1 >= c->first;
            rows += r->want[i];
        }
        rc = nb_exec_run(r->exec, &b, rows ? r->logits : NULL, err);
        r->next = ids + p + m - rows + 1;
        if (rc == NB_OK)
            nb_parallel_for(r->pool, rows, 4, score, r);
        for (size_t i = 0; rc == NB_OK && i < rows; i++)
            *ll -= r->row[i];
    }
    return rc;
}

/* Ids that both answers of a question begin with, at most n. */
static size_t common(const int32_t *a, const int32_t *b, size_t n)
{
    size_t i = 0;

    while (i < n && a[i] == b[i])
        i++;
    return i;
}

static nb_status run_question(run *r, const nb_choiceset *s, size_t q, bool reuse, double *ll, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = s->begin[q]; rc == NB_OK && i < s->begin[q + 1]; i++) {
        const nb_choice *c = &s->choice[i], *before = i > s->begin[q] ? c - 1 : NULL;
        size_t from = 0;
        if (reuse && before) { /* the cache has what the answer before began with; its last id and the context's are run again */
            const size_t shorter = before->n - 1 < c->n - 1 ? before->n - 1 : c->n - 1;
            from = common(s->ids.p + before->at, s->ids.p + c->at, shorter);
            from = from < c->first - 1 ? from : c->first - 1;
        }
        rc = run_answer(r, s->ids.p + c->at, c, from, &ll[i], err);
    }
    return rc;
}

static nb_status check_ids(const nb_choiceset *s, size_t vocab, nb_err *err)
{
    for (size_t i = 0; i < s->ids.n; i++)
        if (s->ids.p[i] < 0 || (size_t)s->ids.p[i] >= vocab)
            return nb_fail(err, NB_EFORMAT, "ids.token", "", "a question has id %d, the model has %zu tokens", s->ids.p[i], vocab);
    return NB_OK;
}

static nb_status open_run(run *r, nb_model *m, const nb_choiceset *s, const nb_eval_opts *o, nb_err *err)
{
    nb_exec_opts xo = { .pool = o->pool, .kv_dtype = NB_DT_F32, .exact_fp32 = o->exact_fp32, .a8 = o->a8 };

    r->pool = o->pool;
    r->vocab = nb_model_config(m)->vocab;
    r->piece = ((size_t)16 << 20) / r->vocab;
    r->piece = r->piece < 1 ? 1 : r->piece > PIECE ? PIECE : r->piece;
    r->n_pages = (s->max_len + NB_PAGE - 1) / NB_PAGE;
    xo.max_m = r->piece;
    xo.n_pages = r->n_pages;
    r->pages = nb_alloc_array(r->n_pages, sizeof *r->pages);
    r->pos = nb_alloc_array(r->piece, sizeof *r->pos);
    r->seq = nb_calloc(r->piece, sizeof *r->seq);
    r->want = nb_alloc_array(r->piece, 1);
    r->row = nb_alloc_array(r->piece, sizeof *r->row);
    r->logits = nb_alloc_array(r->piece * r->vocab, sizeof *r->logits);
    if (!r->pages || !r->pos || !r->seq || !r->want || !r->row || !r->logits)
        return nb_enomem(err, "the logits");
    for (size_t i = 0; i < r->n_pages; i++)
        r->pages[i] = (uint32_t)i;
    return nb_exec_cpu_open(m, &xo, &r->exec, err);
}

nb_status nb_choice_run(nb_model *m, const nb_choiceset *s, const nb_eval_opts *o, double *ll, nb_err *err)
{
    nb_progress at = { .what = "choices", .unit = "questions", .total = s->n };
    bool reuse;
    run r = { 0 };
    nb_status rc = check_ids(s, nb_model_config(m)->vocab, err);

    if (rc == NB_OK)
        rc = open_run(&r, m, s, o, err);
    reuse = rc == NB_OK && nb_exec_state_bytes(r.exec) == 0 && /* a recurrent state cannot go back, a rope of another length neither */
            nb_rope_key(nb_model_config(m), s->max_len) == nb_rope_key(nb_model_config(m), 1);
    for (size_t q = 0; rc == NB_OK && q < s->n; q++) {
        at.done = q;
        nb_report_progress(o->host, &at);
        rc = nb_cancelled(o->host) ? nb_fail(err, NB_ECANCELED, "canceled", "", "stopped at question %zu of %zu", q, s->n)
                                   : run_question(&r, s, q, reuse, ll, err);
        for (size_t i = s->begin[q]; rc == NB_OK && i < s->begin[q + 1]; i++)
            if (!isfinite(ll[i]))
                rc = nb_fail(err, NB_ENUMERIC, "eval.numeric", "", "some logits are not finite; run nibble check on the model");
    }
    nb_exec_close(r.exec);
    nb_free(r.pages);
    nb_free(r.pos);
    nb_free(r.seq);
    nb_free(r.want);
    nb_free(r.row);
    nb_free(r.logits);
    return rc;
}

/* ---- accuracy ---- */

static size_t chosen(const nb_choiceset *s, const double *ll, size_t q, bool norm)
{
    size_t best = s->begin[q];
    double top = -INFINITY;

    for (size_t i = s->begin[q]; i < s->begin[q + 1]; i++) {
        const double v = norm ? ll[i] / (double)s->choice[i].chars : ll[i];
        if (v > top) {
            top = v;
            best = i;
        }
    }
    return best - s->begin[q];
}

nb_status nb_choice_sum(const nb_choiceset *s, const double *ll, const double *ref_ll, const nb_eval_opts *o, nb_choice_score *out,
                        nb_err *err)
{
    const nb_boot boot = { .n = s->n, .resamples = o->resamples ? o->resamples : 1000, .seed = o->seed, .pool = o->pool };
    double *hit = nb_alloc_array(s->n, sizeof *hit), *norm = nb_alloc_array(s->n, sizeof *norm), *one = nb_alloc_array(s->n, sizeof *one);
    const nb_ratio a = { hit, one }, b = { norm, one };
    nb_boot_fn *const fn[] = { nb_boot_ratio, nb_boot_ratio };
    const void *const ctx[] = { &a, &b };
    nb_mean *const to[] = { &out->acc, &out->acc_norm };
    size_t same = 0;
    nb_status rc = hit && norm && one ? NB_OK : nb_enomem(err, "the answers");

    memset(out, 0, sizeof *out);
    out->n = s->n;
    for (size_t q = 0; rc == NB_OK && q < s->n; q++) {
        one[q] = 1;
        hit[q] = chosen(s, ll, q, false) == s->gold[q];
        norm[q] = chosen(s, ll, q, true) == s->gold[q];
        same += ref_ll && chosen(s, ll, q, false) == chosen(s, ref_ll, q, false);
        out->acc.mean += hit[q] / (double)s->n;
        out->acc_norm.mean += norm[q] / (double)s->n;
        out->guess += 1 / (double)(s->begin[q + 1] - s->begin[q]) / (double)s->n;
    }
    out->same = ref_ll ? (double)same / (double)s->n : -1;
    if (s->n > 1) {
        out->se = sqrt(out->acc.mean * (1 - out->acc.mean) / (double)(s->n - 1));
        out->se_norm = sqrt(out->acc_norm.mean * (1 - out->acc_norm.mean) / (double)(s->n - 1));
    }
    if (rc == NB_OK)
        rc = nb_bootstrap(&boot, fn, ctx, 2, to, err);
    nb_free(hit);
    nb_free(norm);
    nb_free(one);
    return rc;
}

/* request.c - checking a request and taking all the memory it will ever need. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "base/sha256.h"
#include "engine/engine_priv.h"

static nb_status check_ids(const char *what, const int32_t *ids, size_t n, size_t vocab, nb_err *err)
{
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= vocab)
            return nb_fail(err, NB_EARG, "request.token", "", "%s: token %d at place %zu is outside the vocabulary of %zu", what, ids[i], i,
                           vocab);
    return NB_OK;
}

static nb_status check_lists(const nb_engine *e, const nb_request *q, nb_err *err)
{
    nb_status rc = check_ids("the prompt", q->ids, q->n_ids, e->vocab, err);

    if (rc == NB_OK && q->n_named)
        rc = check_ids("the named tokens", q->named, q->n_named, e->vocab, err);
    if (rc == NB_OK && q->allowed)
        rc = check_ids("the allowed ids", q->allowed, q->n_allowed, e->vocab, err);
    if (rc == NB_OK && q->allowed && q->n_allowed == 0)
        rc = nb_fail(err, NB_EARG, "request.allowed", "", "the list of allowed ids is empty");
    for (size_t i = 0; rc == NB_OK && i < q->n_bias; i++) {
        rc = check_ids("the biases", &q->bias[i].id, 1, e->vocab, err);
        if (rc == NB_OK && isnan(q->bias[i].value))
            rc = nb_fail(err, NB_EARG, "request.bias", "", "the bias of token %d is not a number", q->bias[i].id);
    }
    for (size_t i = 0; rc == NB_OK && i < q->n_bad_words; i++) {
        rc = check_ids("a bad word", q->bad_words[i].ids, q->bad_words[i].n, e->vocab, err);
        if (rc == NB_OK && q->bad_words[i].n == 0)
            rc = nb_fail(err, NB_EARG, "request.bad_words", "", "bad word %zu has no tokens", i);
    }
    return rc;
}

static nb_status check(const nb_engine *e, const nb_request *q, nb_err *err)
{
    const size_t n = q->n ? q->n : 1, most = e->o.max_seqs < NB_MAX_CHOICES ? e->o.max_seqs : NB_MAX_CHOICES;
    nb_status rc = nb_sampling_check(&q->sampling, err);

    if (rc != NB_OK)
        return rc;
    if (q->n_ids == 0)
        return nb_fail(err, NB_EARG, "request.empty", "", "the prompt has no tokens");
    if (n > most)
        return nb_fail(err, NB_EARG, "request.n", "", "%zu choices are asked for, at most %zu run together", n, most);
    if (q->top > NB_MAX_TOP)
        return nb_fail(err, NB_EARG, "request.logprobs", "", "%u likeliest tokens are asked for, at most %d are told", q->top, NB_MAX_TOP);
    if (q->n_named > NB_MAX_TOP)
        return nb_fail(err, NB_EARG, "request.logprobs", "", "%zu tokens are named, at most %d are told", q->n_named, NB_MAX_TOP);
    if (q->n_ids >= e->o.context)
        return nb_fail(err, NB_ELIMIT, "limit.context", "KV-20",
                       "the prompt has %zu tokens, the context holds %zu with the answer; shorten the prompt or raise --context", q->n_ids,
                       e->o.context);
    return check_lists(e, q, err);
}

static nb_status copy_lists(const nb_engine *e, nb_req *r, const nb_request *q, nb_err *err)
{
    r->stop_ids = nb_alloc_array(q->n_stop_ids, sizeof *r->stop_ids);
    r->bias = nb_alloc_array(q->n_bias, sizeof *r->bias);
    r->words = nb_calloc(q->n_bad_words + 1, sizeof *r->words);
    if (!r->stop_ids || !r->bias || !r->words)
        return nb_enomem(err, "a request");
    r->n_stop_ids = q->n_stop_ids;
    r->n_bias = q->n_bias;
    r->n_words = q->n_bad_words;
    if (q->n_stop_ids)
        memcpy(r->stop_ids, q->stop_ids, q->n_stop_ids * sizeof *r->stop_ids);
    if (q->n_bias)
        memcpy(r->bias, q->bias, q->n_bias * sizeof *r->bias);
    for (size_t i = 0; i < q->n_bad_words; i++) {
        int32_t *ids = nb_alloc_array(q->bad_words[i].n, sizeof *ids);
        if (!ids)
            return nb_enomem(err, "a request");
        memcpy(ids, q->bad_words[i].ids, q->bad_words[i].n * sizeof *ids);
        r->words[i] = (nb_word){ .ids = ids, .n = q->bad_words[i].n };
    }
    if (q->allowed) {
        r->allowed = nb_calloc(e->words, sizeof *r->allowed);
        if (!r->allowed)
            return nb_enomem(err, "a request");
        for (size_t i = 0; i < q->n_allowed; i++)
            r->allowed[q->allowed[i] / 32] |= 1u << q->allowed[i] % 32;
    }
    return NB_OK;
}

static nb_status make_seqs(const nb_engine *e, nb_req *r, const nb_request *q, nb_err *err)
{
    const size_t blocks = nb_blocks(r->max_ids);

    r->seq = nb_calloc(r->n, sizeof *r->seq);
    for (size_t c = 0; r->seq && c < r->n; c++) {
        nb_seq *s = &r->seq[c];
        s->req = r;
        s->choice = c;
        s->n_ids = q->n_ids;
        s->ids = nb_alloc_array(r->max_ids, sizeof *s->ids);
        s->pages = nb_alloc_array(blocks, sizeof *s->pages);
        s->hash = e->o.no_prefix_cache || r->no_cache ? NULL : nb_alloc_array(blocks, sizeof *s->hash);
        s->near = e->near ? nb_alloc_array(blocks, sizeof *s->near) : NULL;
        s->times = (nb_times){ .arrival = r->arrival, .queued = r->queued };
        if (!s->ids || !s->pages || (!s->near && e->near) || (!s->hash && !e->o.no_prefix_cache && !r->no_cache))
            return nb_enomem(err, "a request");
        memcpy(s->ids, q->ids, q->n_ids * sizeof *s->ids);
    }
    if (r->seq && q->prompt_logprobs)
        r->prompt = nb_calloc(q->n_ids, (1 + r->top) * sizeof *r->prompt);
    return r->seq && (r->prompt || !q->prompt_logprobs) ? NB_OK : nb_enomem(err, "a request");
}

/* Rope tables that depend on the planned length give other keys: such a prefix has another root (PC-02). */
static nb_hash root_of(const nb_engine *e, const nb_req *r, const uint8_t *ns)
{
    static const uint8_t common[32];
    const size_t rope = e->o.config ? nb_rope_key(e->o.config, r->max_ids) : 0;
    nb_kv_identity id = { .secret = e->o.secret, .fingerprint = e->o.fingerprint, .ns = ns ? ns : common, .adapter = "" };
    nb_sha256 s;
    uint8_t mixed[32];

    id.kv_dtype = (uint32_t)e->o.kv_dtype | (uint32_t)e->o.a8 << 8; /* both change the keys */
    if (rope) {
        nb_sha256_init(&s);
        nb_sha256_add(&s, id.ns, 32);
        nb_sha256_add_le32(&s, (uint32_t)rope);
        nb_sha256_end(&s, mixed);
        id.ns = mixed;
    }
    return nb_kv_root(&id);
}

nb_status nb_req_make(const nb_engine *e, const nb_request *q, nb_req **out, nb_err *err)
{
    const double now = nb_engine_now(e);
    nb_req *r;
    nb_status rc = check(e, q, err);
    size_t room;

    *out = NULL;
    if (rc != NB_OK)
        return rc;
    r = nb_calloc(1, sizeof *r);
    if (!r)
        return nb_enomem(err, "a request");
    room = e->o.context - q->n_ids;
    r->n = q->n ? q->n : 1;
    r->n_prompt = q->n_ids;
    r->max_ids = q->n_ids + (q->max_tokens && q->max_tokens < room ? q->max_tokens : room);
    r->min_tokens = q->min_tokens;
    r->first_choice = q->first_choice;
    r->held = q->hold;
    r->no_cache = q->no_cache;
    r->logprobs = q->logprobs;
    r->prompt_logprobs = q->prompt_logprobs;
    r->top = q->top;
    r->n_named = q->n_named;
    if (q->n_named)
        memcpy(r->named, q->named, q->n_named * sizeof *r->named);
    r->priority = q->priority;
    r->key = q->key;
    r->sampling = q->sampling;
    r->queued = now;
    r->arrival = q->arrival > 0 ? q->arrival : now;
    r->queue_timeout = q->queue_timeout;
    r->timeout = q->timeout;
    r->limit = q->limit ? *q->limit : (nb_constraint){ 0 };
    r->root = root_of(e, r, q->ns);
    rc = nb_blocks(r->max_ids) > e->kv.n_pages - 1
             ? nb_fail(err, NB_ELIMIT, "limit.context", "KV-20", "prompt and answer of %zu tokens, the cache holds %zu", r->max_ids,
                       (e->kv.n_pages - 1) * NB_PAGE)
             : copy_lists(e, r, q, err);
    if (rc == NB_OK)
        rc = make_seqs(e, r, q, err);
    if (rc != NB_OK) {
        nb_req_free(r);
        return rc;
    }
    *out = r;
    return NB_OK;
}

void nb_req_free(nb_req *r)
{
    if (!r)
        return;
    for (size_t c = 0; r->seq && c < r->n; c++) {
        nb_free(r->seq[c].ids);
        nb_free(r->seq[c].pages);
        nb_free(r->seq[c].near);
        nb_free(r->seq[c].hash);
    }
    for (size_t i = 0; r->words && i < r->n_words; i++)
        nb_free((void *)r->words[i].ids);
    nb_free(r->seq);
    nb_free(r->stop_ids);
    nb_free(r->bias);
    nb_free(r->allowed);
    nb_free(r->words);
    nb_free(r->prompt);
    nb_free(r);
}

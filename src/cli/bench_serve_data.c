/* bench_serve_data.c - what the load client of `nibble bench serve` asks: random tokens, shared prefixes, files of prompts. */
#include <math.h>
#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/rng.h"
#include "cli/bench_serve.h"

const char *const nb_bench_sampling[NB_BENCH_SAMPLING] = {
    "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"
};

static void put_common(nb_buf *b, const nb_bench *s, size_t n_output)
{
    nb_buf_puts(b, "{\"model\":");
    nb_json_put_str(b, s->model_id, strlen(s->model_id));
    nb_buf_printf(b, ",\"max_tokens\":%zu,\"temperature\":%.9g,\"stream\":true,\"stream_options\":{\"include_usage\":true}", n_output,
                  s->temperature);
    if (!s->no_ignore_eos)
        nb_buf_puts(b, ",\"ignore_eos\":true");
    for (size_t i = 0; i < NB_BENCH_SAMPLING; i++)
        if (!isnan(s->sampling[i]))
            nb_buf_printf(b, ",\"%s\":%.9g", nb_bench_sampling[i], s->sampling[i]);
    if (s->extra) /* an object, as parse_options saw */
        nb_buf_printf(b, ",%.*s", (int)(strrchr(s->extra, '}') - strchr(s->extra, '{') - 1), strchr(s->extra, '{') + 1);
}

bool nb_bench_chat(const nb_bench *s)
{
    return strstr(s->endpoint, "chat") != NULL;
}

/* Uniform in [len (1 - ratio), len (1 + ratio)]. */
static size_t draw_length(const nb_bench *s, int64_t len, uint64_t stream, size_t i)
{
    const double lo = floor((double)len * (1 - s->range_ratio)), hi = ceil((double)len * (1 + s->range_ratio));
    const double v = lo + floor(nb_rng_uniform((uint64_t)s->seed, stream, i) * (hi - lo + 1));

    return v < 1 ? 1 : (size_t)fmin(v, hi);
}

typedef struct part {
    uint64_t seed, stream; /* of random numbers */
    size_t n;
} part;

/* Random token ids, two parts one after the other. A chat gets them as numbers spelled out. */
static bool random_request(nb_bench *s, size_t i, const part parts[2], size_t n_out)
{
    const uint64_t low = s->vocab > 2000 ? 1000 : 0;
    const bool chat = nb_bench_chat(s);
    bool first = true;
    nb_buf b = { 0 };

    put_common(&b, s, n_out);
    nb_buf_puts(&b, chat ? ",\"messages\":[{\"role\":\"user\",\"content\":\"" : ",\"prompt\":[");
    for (int p = 0; p < 2; p++)
        for (size_t k = 0; k < parts[p].n; k++, first = false) {
            const uint64_t id = low + (uint64_t)(nb_rng_uniform(parts[p].seed, parts[p].stream, k) * (double)((uint64_t)s->vocab - low));

            nb_buf_printf(&b, "%s%llu", first ? "" : chat ? " " : ",", (unsigned long long)id);
        }
    nb_buf_puts(&b, chat ? "\"}]}" : "]}");
    s->q[i] = (nb_load_request){ .body = b.p, .n_input = parts[0].n + parts[1].n };
    return !b.failed;
}

/* "random": own tokens behind a prefix that all requests share. */
static bool random_requests(nb_bench *s)
{
    const uint64_t seed = (uint64_t)s->seed;

    for (size_t i = 0; i < s->n; i++) {
        const part parts[2] = { { (uint64_t)(s->prefix_seed < 0 ? s->seed : s->prefix_seed), 3, (size_t)s->prefix_len },
                                { seed, 100 + i, draw_length(s, s->input_len, 1, i) } };

        if (!random_request(s, i, parts, draw_length(s, s->output_len, 2, i)))
            return false;
    }
    return true;
}

/* "prefix_repetition": as many requests for each of the prefixes, in random order. */
static bool repeated_requests(nb_bench *s)
{
    size_t *order = nb_calloc(s->n, sizeof *order);
    bool ok = order != NULL;

    for (size_t i = 0; ok && i < s->n; i++)
        order[i] = i;
    for (size_t i = s->n; ok && i-- > 1;) {
        const size_t k = (size_t)(nb_rng_uniform((uint64_t)s->seed, 4, i) * (double)(i + 1)), t = order[i];

        order[i] = order[k];
        order[k] = t;
    }
    for (size_t i = 0; ok && i < s->n; i++) {
        const part parts[2] = { { (uint64_t)s->seed, ((uint64_t)1 << 32) + order[i] % (uint64_t)s->rep_prefixes,
                                  (size_t)s->rep_prefix_len },
                                { (uint64_t)s->seed, 100 + i, (size_t)s->rep_suffix_len } };

        ok = random_request(s, i, parts, (size_t)s->rep_output_len);
    }
    nb_free(order);
    return ok;
}

/* Tokens of ShareGPT's answer, as the server counts them. */
static int64_t answer_length(const nb_bench *s, const nb_json *talk)
{
    const nb_json *said = nb_json_get(nb_json_at(talk, 1), "value");
    char *text = s->share_output_len ? NULL : nb_json_is_null(said) ? NULL : nb_json_dump(said, 0, true);
    nb_buf body = { 0 };
    int64_t n = s->share_output_len ? s->share_output_len : s->output_len;
    nb_json *v = NULL;

    nb_buf_printf(&body, "{\"prompt\":%s,\"add_special_tokens\":false}", text ? text : "");
    if (text && !body.failed && nb_load_json(&s->load, "/tokenize", body.p, &v, NULL) == NB_OK)
        n = nb_json_int(nb_json_get(v, "count"), n);
    nb_json_free(v);
    nb_buf_clear(&body);
    nb_free(text);
    return n;
}

/* {"prompt": text or ids, "output_len": N, "offset": seconds} or ShareGPT's {"conversations":[{"value"}...]}. False: not a request. */
static bool line_request(nb_bench *s, size_t i, const nb_json *line, double *offset)
{
    const nb_json *prompt = nb_json_get(line, "prompt"), *talk = nb_json_get(line, "conversations");
    int64_t n_out = nb_json_int(nb_json_get(line, "output_len"), nb_json_int(nb_json_get(line, "output_tokens"), s->output_len));
    nb_buf b = { 0 };
    char *text;

    if (nb_json_is_null(prompt)) {
        prompt = nb_json_get(nb_json_at(talk, 0), "value");
        n_out = nb_json_is_null(prompt) ? n_out : answer_length(s, talk);
    }
    text = nb_json_is_null(prompt) ? NULL : nb_json_dump(prompt, 0, true);
    if (!text)
        return false;
    put_common(&b, s, (size_t)(n_out > 0 ? n_out : 1));
    if (nb_bench_chat(s))
        nb_buf_printf(&b, ",\"messages\":[{\"role\":\"user\",\"content\":%s}]}", text);
    else
        nb_buf_printf(&b, ",\"prompt\":%s}", text);
    nb_free(text);
    *offset = nb_json_num(nb_json_get(line, "offset"), nb_json_num(nb_json_get(line, "timestamp"), 0));
    s->q[i] = (nb_load_request){ .body = b.p };
    return !b.failed;
}

static void add_line(nb_bench *s, size_t *i, const nb_json *line, bool trace)
{
    double offset;

    if (*i < s->n && line_request(s, *i, line, &offset)) {
        s->q[*i].at = trace ? offset : 0;
        ++*i;
    }
}

/* Windows of a plain text, each about input_len tokens of 4 bytes. */
static void text_requests(nb_bench *s, const char *text, size_t n, size_t *i)
{
    const size_t window = (size_t)s->input_len * 4;

    for (size_t at = 0; *i < s->n && at < n;) {
        const size_t len = n - at < window ? n - at : window;
        nb_json *line = nb_json_new_obj();

        if (nb_json_set(line, "prompt", nb_json_new_strn(text + at, len))) {
            add_line(s, i, line, false);
            at += len;
        } else { /* a window may cut a character: shift it */
            at++;
        }
        nb_json_free(line);
    }
}

/* Requests of a file: a JSON array (as ShareGPT's), JSON lines (a trace has offsets), or a plain text. */
static nb_status file_requests(nb_bench *s, bool trace, nb_err *err)
{
    char *text;
    size_t n, i = 0, at = 0;
    nb_status rc = nb_read_file(s->dataset_path, (size_t)1 << 30, &text, &n, err);
    nb_json *v = NULL;

    while (rc == NB_OK && at < n && strchr(" \t\r\n", text[at]))
        at++;
    if (rc == NB_OK && strcmp(s->dataset, "sonnet") == 0) {
        text_requests(s, text, n, &i);
    } else if (rc == NB_OK && at < n && text[at] == '[') {
        rc = nb_json_parse(text, n, "dataset", 0, &v, err);
        for (size_t k = 0; rc == NB_OK && i < s->n && k < nb_json_len(v); k++)
            add_line(s, &i, nb_json_at(v, k), trace);
        nb_json_free(v);
    } else {
        while (rc == NB_OK && i < s->n && at < n) {
            const char *eol = memchr(text + at, '\n', n - at);
            const size_t len = eol ? (size_t)(eol - (text + at)) : n - at;

            rc = len ? nb_json_parse(text + at, len, "dataset", 0, &v, err) : NB_OK;
            if (rc == NB_OK && len) {
                add_line(s, &i, v, trace);
                nb_json_free(v);
            }
            at += len + 1;
        }
    }
    if (rc == NB_OK && i == 0)
        rc = nb_fail(err, NB_EFORMAT, "dataset.empty", "", "no prompt in it; lines are {\"prompt\": ..., \"output_len\": N}");
    s->n = i;
    nb_err_at(err, s->dataset_path, NULL);
    nb_free(text);
    return rc;
}

nb_status nb_bench_requests(nb_bench *s, nb_err *err)
{
    const bool trace = strcmp(s->dataset, "trace") == 0;
    nb_status rc = NB_OK;

    s->n = (size_t)s->n_prompts;
    s->q = nb_calloc(s->n, sizeof *s->q);
    if (!s->q)
        return nb_enomem(err, "the requests");
    if (strcmp(s->dataset, "random") == 0) {
        rc = random_requests(s) ? NB_OK : nb_enomem(err, "the requests");
    } else if (strcmp(s->dataset, "prefix_repetition") == 0) {
        rc = repeated_requests(s) ? NB_OK : nb_enomem(err, "the requests");
    } else if (!s->dataset_path) {
        rc = nb_fail(err, NB_EARG, "arg.missing", "", "--dataset-name %s needs --dataset-path FILE", s->dataset);
    } else {
        rc = file_requests(s, trace, err);
    }
    if (rc == NB_OK && !trace)
        nb_load_schedule(s->q, s->n, &s->pace, (uint64_t)s->seed);
    s->a = nb_calloc(s->n, sizeof *s->a);
    return rc == NB_OK && !s->a ? nb_enomem(err, "the answers") : rc;
}

void nb_bench_clear_run(nb_bench *s)
{
    for (size_t i = 0; s->q && i < (size_t)s->n_prompts; i++)
        nb_free(s->q[i].body);
    for (size_t i = 0; s->a && i < s->n; i++) {
        nb_free(s->a[i].itl);
        nb_free(s->a[i].text);
    }
    for (int m = 0; m < NB_BENCH_METRICS; m++) {
        nb_free(s->values[m]);
        s->values[m] = NULL;
        s->n_values[m] = 0;
    }
    nb_free(s->q);
    nb_free(s->a);
    s->q = NULL;
    s->a = NULL;
    s->n = 0;
}

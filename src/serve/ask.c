/* ask.c - tables of fields, then what needs more than a range, then how fields relate. */
#include "serve/ask_priv.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_STOPS = 16,
    MAX_STOP_BYTES = 1024,
    MAX_STOP_IDS = 64,
    MAX_BIAS = 1024,
    MAX_BAD_WORDS = 128,
    MAX_SEQUENCES = 64,
    MAX_NAME = 512,
    MAX_SALT = 256
};

bool nb_refuse(nb_refusal *f, int status, const char *code, const char *param, const char *fmt, ...)
{
    va_list ap;

    if (f->status)
        return false;
    f->status = status;
    f->code = code;
    snprintf(f->param, sizeof f->param, "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(f->message, sizeof f->message, fmt, ap);
    va_end(ap);
    return false;
}

bool nb_refuse_memory(nb_refusal *f)
{
    return nb_refuse(f, 503, "out_of_memory", NULL, "There is no memory for this request now; try again.");
}

bool nb_refuse_err(nb_refusal *f, int status, const char *code, const char *param, const nb_err *err)
{
    if (err->code == NB_ENOMEM)
        return nb_refuse_memory(f);
    return nb_refuse(f, status, code, param, "%s%s%s", err->subject, err->subject[0] ? ": " : "", err->what);
}

/* ---- values ---- */

bool nb_ask_type(nb_refusal *f, const char *name, const char *want)
{
    return nb_refuse(f, 400, "invalid_type", name, "%s must be %s.", name, want);
}

const nb_json *nb_ask_field(const nb_json *o, const char *name)
{
    const nb_json *v = nb_json_get(o, name);

    return nb_json_is_null(v) ? NULL : v;
}

bool nb_ask_bool(const nb_json *o, const char *name, bool *out, nb_refusal *f)
{
    const nb_json *v = nb_ask_field(o, name);

    if (!v)
        return true;
    if (nb_json_typeof(v) != NB_JBOOL)
        return nb_ask_type(f, name, "true or false");
    *out = nb_json_bool(v, false);
    return true;
}

static bool is_number(const nb_json *v)
{
    return nb_json_typeof(v) == NB_JINT || nb_json_typeof(v) == NB_JREAL;
}

static bool get_num(const nb_json *o, const char *name, double lo, double hi, bool open_lo, double *out, nb_refusal *f)
{
    const nb_json *v = nb_ask_field(o, name);
    double x;

    if (!v)
        return true;
    if (!is_number(v))
        return nb_ask_type(f, name, "a number");
    x = nb_json_num(v, NAN);
    if (!(x >= lo && x <= hi) || (open_lo && x == lo)) /* NaN fails the first test */
        return nb_refuse(f, 400, "invalid_value", name, "%s must be %s %g and at most %g, got %g.", name, open_lo ? "above" : "at least",
                         lo, hi, x);
    *out = x;
    return true;
}

/* An integer, also when written 1.0. */
static bool as_int(const nb_json *v, const char *name, int64_t lo, int64_t hi, int64_t *out, nb_refusal *f)
{
    const double x = nb_json_num(v, NAN);

    if (!is_number(v))
        return nb_ask_type(f, name, "an integer");
    if (nb_json_wide(v))
        return nb_refuse(f, 400, "invalid_value", name, "%s must be between %" PRId64 " and %" PRId64 ", got %.40s.", name, lo, hi,
                         nb_json_wide(v));
    if (nb_json_typeof(v) == NB_JREAL && (x != floor(x) || fabs(x) > 9007199254740992.0))
        return nb_refuse(f, 400, isfinite(x) && fabs(x) <= 9007199254740992.0 ? "invalid_type" : "invalid_value", name,
                         "%s must be an integer, got %g.", name, x);
    *out = nb_json_int(v, 0);
    if (*out < lo || *out > hi)
        return nb_refuse(f, 400, "invalid_value", name, "%s must be between %" PRId64 " and %" PRId64 ", got %" PRId64 ".", name, lo, hi,
                         *out);
    return true;
}

static bool get_int(const nb_json *o, const char *name, int64_t lo, int64_t hi, int64_t *out, nb_refusal *f)
{
    const nb_json *v = nb_ask_field(o, name);

    return !v || as_int(v, name, lo, hi, out, f);
}

bool nb_ask_str(const nb_json *o, const char *name, size_t max, const char **out, nb_refusal *f)
{
    const nb_json *v = nb_ask_field(o, name);

    if (!v)
        return true;
    if (nb_json_typeof(v) != NB_JSTR)
        return nb_ask_type(f, name, "a string");
    if (nb_json_str_len(v) > max)
        return nb_refuse(f, 400, "invalid_value", name, "%s has %zu bytes, at most %zu are accepted.", name, nb_json_str_len(v), max);
    if (strlen(nb_json_str(v, "")) != nb_json_str_len(v))
        return nb_refuse(f, 400, "invalid_value", name, "%s has a NUL character.", name);
    *out = nb_json_str(v, "");
    return true;
}

static void *room(nb_ask *a, size_t n, size_t size, nb_refusal *f)
{
    void *p = nb_arena_calloc(&a->arena, n ? n : 1, size);

    if (!p)
        nb_refuse_memory(f);
    return p;
}

bool nb_ask_ids(nb_ask *a, const char *name, size_t max, size_t vocab, const int32_t **out, size_t *n, nb_refusal *f)
{
    const nb_json *v = nb_ask_field(a->root, name);
    int32_t *ids;

    if (!v)
        return true;
    if (nb_json_typeof(v) != NB_JARR)
        return nb_ask_type(f, name, "a list of token ids");
    if (nb_json_len(v) > max)
        return nb_refuse(f, 400, "invalid_value", name, "%s has %zu entries, at most %zu are accepted.", name, nb_json_len(v), max);
    ids = room(a, nb_json_len(v), sizeof *ids, f);
    for (size_t i = 0; ids && i < nb_json_len(v); i++) {
        int64_t id;

        if (!as_int(nb_json_at(v, i), name, 0, (int64_t)vocab - 1, &id, f))
            return false;
        ids[i] = (int32_t)id;
    }
    *out = ids;
    *n = nb_json_len(v);
    return ids != NULL;
}

/* ---- groups of fields ---- */

static bool refused_fields(const nb_ask *a, nb_refusal *f)
{
    static const struct {
        const char *name, *why;
    } table[] = {
        { "audio", "this server answers with text only" },
        { "web_search_options", "this server searches nothing" },
        { "functions", "use tools" },
        { "function_call", "use tool_choice" },
        { "prompt_embeds", "prompts are text or token ids" },
        { "inputs_embeds", "prompts are text or token ids" },
        { "multi_modal_data", "prompts are text or token ids" },
        { "prediction", "predicted outputs are not built" },
        { "logits_processors", "no code comes in by requests" },
    };

    for (size_t i = 0; i < NB_LEN(table); i++)
        if (nb_ask_field(a->root, table[i].name))
            return nb_refuse(f, 400, "unsupported_parameter", table[i].name, "%s is not supported: %s.", table[i].name, table[i].why);
    for (size_t i = 0; i < nb_json_len(nb_ask_field(a->root, "modalities")); i++)
        if (strcmp(nb_json_str(nb_json_at(nb_ask_field(a->root, "modalities"), i), ""), "text") != 0)
            return nb_refuse(f, 400, "unsupported_parameter", "modalities", "modalities: this server answers with text only.");
    return true;
}

/* Samplers that are not built are refused unless their value changes nothing. */
static bool neutral_fields(const nb_ask *a, nb_refusal *f)
{
    static const struct {
        const char *name;
        double neutral, other;
    } table[] = {
        { "typical_p", 1, 1 },       { "typical", 1, 1 },        { "xtc_probability", 0, 0 }, { "dry_multiplier", 0, 0 },
        { "mirostat", 0, 0 },        { "top_n_sigma", -1, 0 },   { "dynatemp_range", 0, 0 },  { "length_penalty", 1, 1 },
        { "use_beam_search", 0, 0 }, { "early_stopping", 0, 0 },
    };

    for (size_t i = 0; i < NB_LEN(table); i++) {
        const nb_json *v = nb_ask_field(a->root, table[i].name);
        const double x = nb_json_typeof(v) == NB_JBOOL ? nb_json_bool(v, false) : nb_json_num(v, NAN);

        if (v && !(x == table[i].neutral || x == table[i].other))
            return nb_refuse(f, 400, "unsupported_parameter", table[i].name, "%s is not supported; leave it out.", table[i].name);
    }
    return true;
}

static bool sampling_fields(nb_ask *a, const nb_ask_rules *rules, nb_refusal *f)
{
    nb_sampling *s = &a->sampling;
    double temperature, top_p, min_p, repetition, presence = 0, frequency = 0;
    int64_t top_k, seed = -1;

    *s = *rules->defaults;
    temperature = (double)s->temperature;
    top_p = (double)s->top_p;
    min_p = (double)s->min_p;
    repetition = (double)s->repetition_penalty;
    top_k = s->top_k;
    if (!get_num(a->root, "temperature", 0, rules->lenient ? 1e6 : 2, false, &temperature, f) ||
        !get_num(a->root, "top_p", 0, 1, true, &top_p, f) || !get_int(a->root, "top_k", -1, INT32_MAX, &top_k, f) ||
        !get_num(a->root, "min_p", 0, 1, false, &min_p, f) || !get_num(a->root, "repeat_penalty", 0, 1e6, true, &repetition, f) ||
        !get_num(a->root, "repetition_penalty", 0, 1e6, true, &repetition, f) ||
        !get_num(a->root, "presence_penalty", -2, 2, false, &presence, f) ||
        !get_num(a->root, "frequency_penalty", -2, 2, false, &frequency, f) || !get_int(a->root, "seed", INT64_MIN, INT64_MAX, &seed, f))
        return false;
    s->temperature = (float)temperature;
    s->top_p = (float)top_p;
    s->min_p = (float)min_p;
    s->top_k = (int)(top_k < 0 ? 0 : top_k);
    s->repetition_penalty = (float)repetition;
    s->presence_penalty = (float)presence;
    s->frequency_penalty = (float)frequency;
    a->has_seed = seed != -1;
    s->seed = (uint64_t)seed;
    return true;
}

static bool length_fields(nb_ask *a, nb_refusal *f)
{
    const nb_json *old = nb_ask_field(a->root, "max_tokens"), *new = nb_ask_field(a->root, "max_completion_tokens"),
                  *native = nb_ask_field(a->root, "n_predict");
    const int64_t least = a->echo ? 0 : 1;
    int64_t min = 0, first = -1;

    a->max_tokens = -1;
    a->max_tokens_name = new ? "max_completion_tokens" : "max_tokens";
    if (native && !old && !new &&nb_json_int(native, 0) != -1 && !as_int(native, "n_predict", least, INT64_MAX, &a->max_tokens, f))
        return false;
    if ((old && !as_int(old, "max_tokens", least, INT64_MAX, &first, f)) ||
        (new && !as_int(new, "max_completion_tokens", least, INT64_MAX, &a->max_tokens, f)))
        return false;
    if (old && new &&first != a->max_tokens)
        return nb_refuse(f, 400, "invalid_value", "max_tokens", "max_tokens and max_completion_tokens differ; send one of them.");
    if (old)
        a->max_tokens = first;
    if (!get_int(a->root, "min_tokens", 0, INT32_MAX, &min, f))
        return false;
    if (a->max_tokens >= 0 && min > a->max_tokens)
        return nb_refuse(f, 400, "invalid_value", "min_tokens", "min_tokens %" PRId64 " is above %s %" PRId64 ".", min, a->max_tokens_name,
                         a->max_tokens);
    a->min_tokens = (size_t)min;
    return true;
}

static bool stop_fields(nb_ask *a, size_t vocab, nb_refusal *f)
{
    const nb_json *v = nb_ask_field(a->root, "stop");
    const bool one = nb_json_typeof(v) == NB_JSTR;
    const size_t n = one ? 1 : nb_json_len(v);

    if (v && !one && nb_json_typeof(v) != NB_JARR)
        return nb_ask_type(f, "stop", "a string or a list of strings");
    if (n > MAX_STOPS)
        return nb_refuse(f, 400, "invalid_value", "stop", "stop has %zu strings, at most %d are accepted.", n, MAX_STOPS);
    a->stop = room(a, n, sizeof *a->stop, f);
    if (!a->stop)
        return false;
    for (size_t i = 0; i < n; i++) {
        const nb_json *s = one ? v : nb_json_at(v, i);

        if (nb_json_typeof(s) != NB_JSTR)
            return nb_ask_type(f, "stop", "a string or a list of strings");
        if (nb_json_str_len(s) == 0 || nb_json_str_len(s) > MAX_STOP_BYTES || strlen(nb_json_str(s, "")) != nb_json_str_len(s))
            return nb_refuse(f, 400, "invalid_value", "stop", "A stop string has %zu bytes; 1 to %d without NUL are accepted.",
                             nb_json_str_len(s), MAX_STOP_BYTES);
        a->stop[a->n_stop++] = nb_json_str(s, "");
    }
    return nb_ask_ids(a, "stop_token_ids", MAX_STOP_IDS, vocab, &a->stop_ids, &a->n_stop_ids, f) &&
           nb_ask_bool(a->root, "ignore_eos", &a->ignore_eos, f) &&
           nb_ask_bool(a->root, "include_stop_str_in_output", &a->include_stop, f) &&
           nb_ask_bool(a->root, "skip_special_tokens", &a->skip_special, f) &&
           nb_ask_bool(a->root, "spaces_between_special_tokens", &a->spaces_between, f);
}

/* Digits only: " 1", "1e3" and "+1" are no ids. */
static bool id_of_key(const char *s, size_t vocab, int32_t *out)
{
    int64_t v = 0;

    if (!*s || strlen(s) > 10)
        return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9')
            return false;
        v = v * 10 + (*s - '0');
    }
    *out = (int32_t)v;
    return v < (int64_t)vocab;
}

static bool bias_fields(nb_ask *a, size_t vocab, nb_refusal *f)
{
    const nb_json *v = nb_ask_field(a->root, "logit_bias"), *w = nb_ask_field(a->root, "bad_words");
    const size_t n = nb_json_len(v);
    nb_bias *bias;

    if (v && nb_json_typeof(v) != NB_JOBJ)
        return nb_ask_type(f, "logit_bias", "an object of token ids and numbers");
    if (n > MAX_BIAS)
        return nb_refuse(f, 400, "invalid_value", "logit_bias", "logit_bias has %zu entries, at most %d are accepted.", n, MAX_BIAS);
    bias = room(a, n, sizeof *bias, f);
    for (size_t i = 0; bias && i < n; i++) {
        const char *key;
        const nb_json *x = nb_json_member(v, i, &key);
        const double value = nb_json_num(x, NAN);
        char esc[NB_ESC_CAP];

        if (!id_of_key(key, vocab, &bias[i].id))
            return nb_refuse(f, 400, "invalid_value", "logit_bias", "logit_bias: \"%s\" is not a token id below %zu.",
                             nb_esc(esc, sizeof esc, key, strlen(key)), vocab);
        if (!is_number(x) || !isfinite(value))
            return nb_ask_type(f, "logit_bias", "an object of token ids and numbers");
        bias[i].value = (float)fmax(-100, fmin(100, value));
    }
    a->bias = bias;
    a->n_bias = n;
    if (w && nb_json_typeof(w) != NB_JARR)
        return nb_ask_type(f, "bad_words", "a list of strings");
    if (nb_json_len(w) > MAX_BAD_WORDS)
        return nb_refuse(f, 400, "invalid_value", "bad_words", "bad_words has %zu entries, at most %d are accepted.", nb_json_len(w),
                         MAX_BAD_WORDS);
    for (size_t i = 0; i < nb_json_len(w); i++)
        if (nb_json_str_len(nb_json_at(w, i)) == 0 || nb_json_str_len(nb_json_at(w, i)) > MAX_STOP_BYTES)
            return nb_refuse(f, 400, "invalid_value", "bad_words", "bad_words must be strings of 1 to %d bytes.", MAX_STOP_BYTES);
    a->bad_words = w;
    if (nb_ask_field(a->root, "allowed_token_ids") && nb_json_len(nb_ask_field(a->root, "allowed_token_ids")) == 0)
        return nb_refuse(f, 400, "invalid_value", "allowed_token_ids", "allowed_token_ids is empty: no token could follow.");
    return bias && nb_ask_ids(a, "allowed_token_ids", vocab, vocab, &a->allowed, &a->n_allowed, f);
}

static bool logprob_fields(nb_ask *a, size_t vocab, nb_refusal *f)
{
    const nb_json *v = nb_ask_field(a->root, "logprobs");
    int64_t top = -1, prompt = -1;

    if (a->chat) {
        if (!nb_ask_bool(a->root, "logprobs", &a->logprobs, f) || !get_int(a->root, "top_logprobs", 0, NB_MAX_TOP, &top, f))
            return false;
        if (top >= 0 && !a->logprobs)
            return nb_refuse(f, 400, "invalid_value", "top_logprobs", "top_logprobs needs logprobs: true.");
    } else if (v) {
        if (nb_json_typeof(v) == NB_JBOOL)
            return nb_ask_type(f, "logprobs", "an integer");
        if (!get_int(a->root, "logprobs", 0, NB_MAX_TOP, &top, f))
            return false;
        a->logprobs = true;
    }
    a->top_logprobs = top > 0 ? (unsigned)top : 0;
    if (!nb_ask_ids(a, "logprob_token_ids", NB_MAX_TOP, vocab, &a->named, &a->n_named, f))
        return false;
    if (a->n_named && !a->logprobs)
        return nb_refuse(f, 400, "invalid_value", "logprob_token_ids", "logprob_token_ids needs logprobs.");
    if (!get_int(a->root, "prompt_logprobs", 0, NB_MAX_TOP, &prompt, f))
        return false;
    a->prompt_logprobs = (int)prompt;
    if (prompt >= 0 && a->stream)
        return nb_refuse(f, 400, "invalid_value", "prompt_logprobs", "prompt_logprobs is not available with stream.");
    return true;
}

static bool stream_fields(nb_ask *a, nb_refusal *f)
{
    const nb_json *o = nb_ask_field(a->root, "stream_options");

    if (!nb_ask_bool(a->root, "stream", &a->stream, f))
        return false;
    if (!o)
        return true;
    if (nb_json_typeof(o) != NB_JOBJ)
        return nb_ask_type(f, "stream_options", "an object");
    if (!a->stream)
        return nb_refuse(f, 400, "invalid_value", "stream_options", "stream_options needs stream: true.");
    return nb_ask_bool(o, "include_usage", &a->include_usage, f) && nb_ask_bool(o, "continuous_usage_stats", &a->continuous_usage, f);
}

static bool identity_fields(nb_ask *a, const nb_ask_rules *rules, nb_refusal *f)
{
    int64_t priority = 0;

    a->model = "";
    if (!nb_ask_str(a->root, "model", MAX_NAME, &a->model, f) || !nb_ask_str(a->root, "cache_salt", MAX_SALT, &a->salt, f) ||
        !nb_ask_str(a->root, "prompt_cache_key", MAX_SALT, &a->cache_key, f) || !nb_ask_str(a->root, "user", MAX_NAME, &a->user, f) ||
        !nb_ask_str(a->root, "request_id", 128, &a->request_id, f) || !get_int(a->root, "priority", INT32_MIN, INT32_MAX, &priority, f))
        return false;
    if (a->salt && !*a->salt)
        return nb_refuse(f, 400, "invalid_value", "cache_salt", "cache_salt is empty; leave it out or give some text.");
    for (const char *p = a->salt ? a->salt : ""; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return nb_refuse(f, 400, "invalid_value", "cache_salt", "cache_salt has a control character.");
    if (priority && !rules->priorities)
        return nb_refuse(f, 400, "unsupported_parameter", "priority", "priority needs a server started with --schedule-policy priority.");
    a->priority = (int)priority;
    return true;
}

/* ---- completions ---- */

static bool prompt_ids(nb_ask *a, const nb_json *v, size_t vocab, nb_prompt *out, nb_refusal *f)
{
    int32_t *ids = room(a, nb_json_len(v), sizeof *ids, f);

    for (size_t i = 0; ids && i < nb_json_len(v); i++) {
        int64_t id;

        if (!as_int(nb_json_at(v, i), "prompt", 0, (int64_t)vocab - 1, &id, f))
            return false;
        ids[i] = (int32_t)id;
    }
    *out = (nb_prompt){ .ids = ids, .n_ids = nb_json_len(v) };
    if (ids && out->n_ids == 0)
        return nb_refuse(f, 400, "empty_prompt", "prompt", "A prompt has no tokens.");
    return ids != NULL;
}

static bool prompt_fields(nb_ask *a, size_t vocab, nb_refusal *f)
{
    const nb_json *v = nb_ask_field(a->root, "prompt");
    const nb_json *first = nb_json_at(v, 0);
    const bool is_list = nb_json_typeof(v) == NB_JARR && !is_number(first);
    nb_prompt *p;

    if (!v)
        return nb_refuse(f, 400, "missing_required_parameter", "prompt", "prompt is missing.");
    if (nb_json_typeof(v) != NB_JSTR && nb_json_typeof(v) != NB_JARR)
        return nb_ask_type(f, "prompt", "a string, a list of strings, or token ids");
    if (nb_json_typeof(v) == NB_JARR && nb_json_len(v) == 0)
        return nb_refuse(f, 400, "empty_prompt", "prompt", "prompt is empty.");
    a->n_prompts = is_list ? nb_json_len(v) : 1;
    if (a->n_prompts * a->n > MAX_SEQUENCES)
        return nb_refuse(f, 400, "invalid_value", "prompt", "prompts times n are %zu sequences, at most %d are accepted.",
                         a->n_prompts * a->n, MAX_SEQUENCES);
    a->prompts = p = room(a, a->n_prompts, sizeof *p, f);
    for (size_t i = 0; p && i < a->n_prompts; i++) {
        const nb_json *one = is_list ? nb_json_at(v, i) : v;

        if (nb_json_typeof(one) != (is_list ? nb_json_typeof(first) : nb_json_typeof(one)) ||
            (nb_json_typeof(one) != NB_JSTR && nb_json_typeof(one) != NB_JARR))
            return nb_ask_type(f, "prompt", "a string, a list of strings, or token ids");
        if (nb_json_typeof(one) == NB_JSTR)
            p[i] = (nb_prompt){ .text = nb_json_str(one, ""), .n_text = nb_json_str_len(one) };
        else if (!prompt_ids(a, one, vocab, &p[i], f))
            return false;
    }
    return p != NULL;
}

static bool completion_fields(nb_ask *a, nb_refusal *f)
{
    if (nb_ask_field(a->root, "suffix") && nb_json_str_len(nb_ask_field(a->root, "suffix")))
        return nb_refuse(f, 400, "unsupported_parameter", "suffix", "suffix is not supported by this model.");
    return nb_ask_bool(a->root, "echo", &a->echo, f);
}

/* ---- the whole ---- */

/* Fields that mean something to this server; others are counted. */
static const char *const known[] = {
    "model",
    "messages",
    "prompt",
    "stream",
    "stream_options",
    "temperature",
    "top_p",
    "n",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "logprob_token_ids",
    "seed",
    "user",
    "echo",
    "suffix",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "stop_token_ids",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "add_special_tokens",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "truncate_prompt_tokens",
    "prompt_logprobs",
    "cache_salt",
    "request_id",
    "return_token_ids",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "bad_words",
    "allowed_token_ids",
    "priority",
    "reasoning_effort",
    "reasoning",
    "thinking_token_budget",
    "return_tokens_as_token_ids",
    "n_predict",
    "cache_prompt",
    "repeat_penalty",
    "store",
    "metadata",
    "service_tier",
    "verbosity",
    "prediction",
    "safety_identifier",
    "prompt_cache_key",
    "best_of",
    "modalities",
};

const char *nb_ask_known(size_t i)
{
    return i < NB_LEN(known) ? known[i] : NULL;
}

static void count_unknown(nb_ask *a)
{
    for (size_t i = 0; i < nb_json_len(a->root); i++) {
        const char *key;
        bool hit = false;

        nb_json_member(a->root, i, &key);
        for (size_t k = 0; !hit && k < NB_LEN(known); k++)
            hit = strcmp(key, known[k]) == 0;
        a->n_ignored += !hit;
    }
}

static bool choices(nb_ask *a, const nb_ask_rules *rules, nb_refusal *f)
{
    int64_t n = 1, best;

    if (!get_int(a->root, "n", 1, (int64_t)rules->max_n, &n, f))
        return false;
    best = n;
    if (!get_int(a->root, "best_of", 1, (int64_t)rules->max_n, &best, f))
        return false;
    if (best < n)
        return nb_refuse(f, 400, "invalid_value", "best_of", "best_of %" PRId64 " is below n %" PRId64 ".", best, n);
    if (best > n && a->stream)
        return nb_refuse(f, 400, "invalid_value", "best_of",
                         "best_of above n is not available with stream: the best are known at the end.");
    a->n = (size_t)best;
    a->keep = (size_t)n;
    return true;
}

bool nb_body_parse(const char *body, size_t n, nb_json **out, nb_refusal *f)
{
    nb_err err = { 0 };
    nb_status rc;

    *out = NULL;
    if (n == 0)
        return nb_refuse(f, 400, "invalid_json", NULL, "The body is empty; send a JSON object.");
    rc = nb_json_parse(body, n, "body", NB_ASK_DEPTH, out, &err);
    if (rc != NB_OK)
        return nb_refuse_err(f, 400,
                             strcmp(err.cls, "json.depth") == 0           ? "json_too_deep"
                             : strcmp(err.cls, "body.duplicate_key") == 0 ? "duplicate_key"
                                                                          : "invalid_json",
                             NULL, &err);
    if (nb_json_typeof(*out) != NB_JOBJ)
        return nb_refuse(f, 400, "invalid_json", NULL, "The body must be a JSON object.");
    return true;
}

bool nb_ask_parse(nb_ask *a, bool chat, const char *body, size_t n, const nb_ask_rules *rules, nb_refusal *f)
{
    memset(a, 0, sizeof *a);
    a->chat = chat;
    a->skip_special = a->spaces_between = true;
    a->add_special = !chat;
    a->truncate = -2;
    a->thinking_budget = -1;
    if (!nb_body_parse(body, n, &a->root, f))
        return false;
    count_unknown(a);
    if (!refused_fields(a, f) || !neutral_fields(a, f) || !identity_fields(a, rules, f) || !stream_fields(a, f) || !choices(a, rules, f))
        return false;
    if (chat ? !nb_ask_messages(a, rules, f) || !nb_ask_tools(a, f) : !completion_fields(a, f) || !prompt_fields(a, rules->vocab, f))
        return false;
    if (!sampling_fields(a, rules, f) || !length_fields(a, f) || !stop_fields(a, rules->vocab, f) || !bias_fields(a, rules->vocab, f) ||
        !logprob_fields(a, rules->vocab, f) || !nb_ask_constraints(a, f))
        return false;
    return nb_ask_bool(a->root, "add_special_tokens", &a->add_special, f) &&
           get_int(a->root, "truncate_prompt_tokens", -1, INT32_MAX, &a->truncate, f) &&
           nb_ask_bool(a->root, "return_token_ids", &a->return_token_ids, f) &&
           nb_ask_bool(a->root, "return_tokens_as_token_ids", &a->tokens_as_ids, f) &&
           get_int(a->root, "thinking_token_budget", 0, INT32_MAX, &a->thinking_budget, f);
}

void nb_ask_clear(nb_ask *a)
{
    nb_json_free(a->root);
    nb_arena_clear(&a->arena);
    memset(a, 0, sizeof *a);
}

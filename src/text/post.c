#include "text/post.h"

#include <string.h>

#include "base/mem.h"

void nb_post_clear(nb_post *p)
{
    nb_ids_clear(&p->before);
    nb_ids_clear(&p->after);
}

static nb_status push_known(nb_ids *v, const nb_tokenizer *t, const nb_json *id, nb_err *err)
{
    const int64_t k = nb_json_typeof(id) == NB_JINT ? nb_json_int(id, -1) : -1;
    size_t n;

    if (k < 0 || k > INT32_MAX || !nb_tokenizer_piece(t, (int32_t)k, &n))
        return nb_fail(err, NB_EFORMAT, "tok.special_id", "", "the post-processor adds id %lld, which no token has", (long long)k);
    return nb_ids_push(v, (int32_t)k, err);
}

/* A special token of a template: its name stands for one or more ids. */
static nb_status push_special(nb_ids *v, const nb_json *table, const nb_json *name, const nb_tokenizer *t, nb_err *err)
{
    const char *s = nb_json_str(name, "");
    const nb_json *ids = nb_json_get(nb_json_get(table, s), "ids");
    char esc[NB_ESC_CAP];
    nb_status rc = NB_OK;

    if (nb_json_typeof(ids) != NB_JARR || nb_json_len(ids) == 0)
        return nb_fail(err, NB_EFORMAT, "tok.special_id", "", "the template names special token \"%s\", which its special_tokens lack",
                       nb_esc(esc, sizeof esc, s, strlen(s)));
    for (size_t i = 0; rc == NB_OK && i < nb_json_len(ids); i++)
        rc = push_known(v, t, nb_json_at(ids, i), err);
    return rc;
}

static nb_status open_template(nb_post *p, const nb_json *v, const nb_tokenizer *t, nb_err *err)
{
    const nb_json *single = nb_json_get(v, "single"), *table = nb_json_get(v, "special_tokens");
    bool seen = false;
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < nb_json_len(single); i++) {
        const nb_json *e = nb_json_at(single, i), *special = nb_json_get(e, "SpecialToken");
        if (special) {
            rc = push_special(seen ? &p->after : &p->before, table, nb_json_get(special, "id"), t, err);
        } else if (nb_json_get(e, "Sequence") && !seen) {
            seen = true;
        } else {
            rc = nb_fail(err, NB_EUNSUPPORTED, "tok.unsupported", "", "a post-processor template with the text twice or an unknown part");
        }
    }
    if (rc == NB_OK && !seen)
        rc = nb_fail(err, NB_EFORMAT, "tok.type", "", "a post-processor template without the text");
    return rc;
}

static nb_status open_cls_sep(nb_post *p, const nb_json *v, const nb_tokenizer *t, nb_err *err)
{
    nb_status rc = push_known(&p->before, t, nb_json_at(nb_json_get(v, "cls"), 1), err);

    return rc == NB_OK ? push_known(&p->after, t, nb_json_at(nb_json_get(v, "sep"), 1), err) : rc;
}

static nb_status open_one(nb_post *p, const nb_json *v, const nb_tokenizer *t, nb_err *err);

/* Each processor wraps what the ones before it made. */
static nb_status open_sequence(nb_post *p, const nb_json *v, const nb_tokenizer *t, nb_err *err)
{
    const nb_json *list = nb_json_get(v, "processors");
    nb_status rc = NB_OK;

    for (size_t i = 0; rc == NB_OK && i < nb_json_len(list); i++) {
        nb_post one = { 0 };
        rc = open_one(&one, nb_json_at(list, i), t, err);
        for (size_t k = 0; rc == NB_OK && k < p->before.n; k++)
            rc = nb_ids_push(&one.before, p->before.p[k], err);
        for (size_t k = 0; rc == NB_OK && k < one.after.n; k++)
            rc = nb_ids_push(&p->after, one.after.p[k], err);
        if (rc == NB_OK) {
            nb_ids swap = p->before;
            p->before = one.before;
            one.before = swap;
        }
        nb_post_clear(&one);
    }
    return rc;
}

static nb_status open_none(nb_post *p, const nb_json *v, const nb_tokenizer *t, nb_err *err)
{
    (void)p, (void)v, (void)t, (void)err;
    return NB_OK;
}

static nb_status open_one(nb_post *p, const nb_json *v, const nb_tokenizer *t, nb_err *err)
{
    static const struct {
        const char *type;
        nb_status (*open)(nb_post *, const nb_json *, const nb_tokenizer *, nb_err *);
    } types[] = {
        { "Sequence", open_sequence },         { "TemplateProcessing", open_template }, { "ByteLevel", open_none }, /* offsets only */
        { "RobertaProcessing", open_cls_sep }, { "BertProcessing", open_cls_sep },
    };
    const char *type = nb_json_str(nb_json_get(v, "type"), "");
    char esc[NB_ESC_CAP];

    for (size_t i = 0; i < NB_LEN(types); i++) {
        if (strcmp(types[i].type, type) == 0)
            return types[i].open(p, v, t, err);
    }
    return nb_fail(err, NB_EUNSUPPORTED, "tok.unsupported", "", "post-processor type \"%s\" is not supported",
                   nb_esc(esc, sizeof esc, type, strlen(type)));
}

/* Classes whose tokenizers are built from the flags instead of the post-processor (spec 12, rule 1). */
static const struct {
    const char *prefix;
    bool bos, eos; /* when the flags are absent */
} by_flags[] = {
    { "Llama", true, false },  { "CodeLlama", true, false }, { "Gemma", true, false },
    { "Cohere", true, false }, { "GPTNeoX", false, false },
};

static nb_status push_named(nb_ids *v, const nb_json *config, const char *key, const nb_tokenizer *t, nb_err *err)
{
    const nb_json *tok = nb_json_get(config, key);
    char esc[NB_ESC_CAP];
    const char *s;
    int32_t id;

    if (nb_json_typeof(tok) == NB_JOBJ)
        tok = nb_json_get(tok, "content");
    if (nb_json_typeof(tok) != NB_JSTR)
        return NB_OK; /* nothing to add */
    s = nb_json_str(tok, "");
    id = nb_tokenizer_id(t, s, nb_json_str_len(tok));
    if (id < 0)
        return nb_fail(err, NB_EFORMAT, "tok.special_id", "", "%s \"%s\" of tokenizer_config.json is no token", key,
                       nb_esc(esc, sizeof esc, s, nb_json_str_len(tok)));
    return nb_ids_push(v, id, err);
}

nb_status nb_post_init(nb_post *out, const nb_json *spec, const nb_json *config, const nb_tokenizer *t, nb_err *err)
{
    const char *cls = nb_json_str(nb_json_get(config, "tokenizer_class"), "");
    nb_status rc = nb_json_is_null(spec) ? NB_OK : open_one(out, spec, t, err);

    for (size_t i = 0; rc == NB_OK && i < NB_LEN(by_flags); i++) {
        if (strncmp(cls, by_flags[i].prefix, strlen(by_flags[i].prefix)) != 0)
            continue;
        out->before.n = out->after.n = 0;
        out->not_twice = true;
        if (nb_json_bool(nb_json_get(config, "add_bos_token"), by_flags[i].bos))
            rc = push_named(&out->before, config, "bos_token", t, err);
        if (rc == NB_OK && nb_json_bool(nb_json_get(config, "add_eos_token"), by_flags[i].eos))
            rc = push_named(&out->after, config, "eos_token", t, err);
        break;
    }
    return rc;
}

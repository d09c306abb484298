/* gram_request.c - the constraint that a request body asks for. */
#include <string.h>

#include "text/tool_grammar.h"

static nb_status wrong(nb_err *err, const char *field, const char *what)
{
    nb_fail(err, NB_EARG, "grammar.invalid", "", "%s", what);
    nb_err_at(err, NULL, field);
    return NB_EARG;
}

static nb_status get(nb_gcache *c, nb_gkind kind, const nb_json *v, const char *field, nb_grammar **out, nb_err *err)
{
    const nb_status rc = nb_gcache_get(c, kind, v, out, err);

    if (rc != NB_OK)
        nb_err_at(err, NULL, field);
    return rc;
}

static nb_status from_format(nb_gcache *c, const nb_json *f, nb_grammar **out, nb_err *err)
{
    const nb_json *type = nb_json_get(f, "type"), *schema = nb_json_get(nb_json_get(f, "json_schema"), "schema");
    const char *t = nb_json_str(type, "");
    char esc[NB_ESC_CAP];

    if (nb_json_typeof(f) != NB_JOBJ || nb_json_typeof(type) != NB_JSTR)
        return wrong(err, "response_format", "response_format is an object with a type");
    if (strcmp(t, "text") == 0)
        return NB_OK;
    if (strcmp(t, "json_object") == 0)
        return get(c, NB_G_JSON, NULL, "response_format", out, err);
    if (strcmp(t, "json_schema") != 0) {
        nb_fail(err, NB_EUNSUPPORTED, "grammar.unsupported", "",
                "response_format of type \"%s\", known are text, json_object and json_schema",
                nb_esc(esc, sizeof esc, t, nb_json_str_len(type)));
        nb_err_at(err, NULL, "response_format.type");
        return NB_EUNSUPPORTED;
    }
    if (nb_json_is_null(schema))
        return wrong(err, "response_format.json_schema", "a json_schema needs its schema");
    return get(c, NB_G_SCHEMA, schema, "response_format.json_schema.schema", out, err);
}

/* A schema may come as text. */
static nb_status from_schema(nb_gcache *c, const nb_json *v, nb_grammar **out, nb_err *err)
{
    static const char *const field = "structured_outputs.json";
    nb_json *parsed = NULL;
    nb_status rc;

    if (nb_json_typeof(v) != NB_JSTR)
        return get(c, NB_G_SCHEMA, v, field, out, err);
    if (nb_json_parse(nb_json_str(v, ""), nb_json_str_len(v), "json", 0, &parsed, NULL) != NB_OK)
        return wrong(err, field, "the schema is a text that is no JSON");
    rc = get(c, NB_G_SCHEMA, parsed, field, out, err);
    nb_json_free(parsed);
    return rc;
}

static nb_status from_outputs(nb_gcache *c, const char *key, const nb_json *v, nb_grammar **out, nb_err *err)
{
    if (strcmp(key, "json") == 0)
        return from_schema(c, v, out, err);
    if (strcmp(key, "json_object") == 0)
        return get(c, NB_G_JSON, NULL, "structured_outputs.json_object", out, err);
    if (strcmp(key, "regex") == 0)
        return get(c, NB_G_REGEX, v, "structured_outputs.regex", out, err);
    if (strcmp(key, "choice") == 0)
        return get(c, NB_G_CHOICE, v, "structured_outputs.choice", out, err);
    return get(c, NB_G_EBNF, v, "structured_outputs.grammar", out, err);
}

nb_status nb_gcache_request(nb_gcache *c, const nb_json *request, nb_grammar **out, nb_err *err)
{
    static const char *const kinds[] = { "json", "json_object", "regex", "choice", "grammar" };
    const nb_json *format = nb_json_get(request, "response_format"), *outputs = nb_json_get(request, "structured_outputs");
    const nb_json *v = NULL;
    const char *kind = NULL;
    size_t n = 0;

    *out = NULL;
    if (!nb_json_is_null(outputs) && nb_json_typeof(outputs) != NB_JOBJ)
        return wrong(err, "structured_outputs", "structured_outputs is an object");
    for (size_t i = 0; i < NB_LEN(kinds); i++) {
        const nb_json *x = nb_json_get(outputs, kinds[i]);
        if (nb_json_is_null(x) || (strcmp(kinds[i], "json_object") == 0 && !nb_json_bool(x, true)))
            continue;
        v = x;
        kind = kinds[i];
        n++;
    }
    if (!nb_json_is_null(format) && strcmp(nb_json_str(nb_json_get(format, "type"), ""), "text") != 0)
        n++;
    if (n > 1) {
        nb_fail(err, NB_EUNSUPPORTED, "grammar.unsupported", "SO-02", "a request has one constraint at most, this one has %zu", n);
        nb_err_at(err, NULL, kind ? "structured_outputs" : "response_format");
        return NB_EUNSUPPORTED;
    }
    if (kind)
        return from_outputs(c, kind, v, out, err);
    return nb_json_is_null(format) ? NB_OK : from_format(c, format, out, err);
}

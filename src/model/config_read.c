#include "model/config_read.h"

const nb_json *nb_cfg_find(const nb_cfg_reader *r, const char *const *keys, const char **key)
{
    *key = keys[0];
    for (; *keys; keys++) {
        const nb_json *v = nb_json_get(r->in, *keys);
        if (v && !nb_json_is_null(v)) {
            *key = *keys;
            return v;
        }
    }
    return NULL;
}

const nb_json *nb_cfg_outer(const nb_cfg_reader *r, const char *key)
{
    const nb_json *v = nb_json_get(r->in, key);

    return v && !nb_json_is_null(v) ? v : nb_json_get(r->outer, key);
}

const char *nb_cfg_show(char out[NB_ESC_CAP], const nb_json *v)
{
    char *text;

    if (!v)
        return "absent";
    text = nb_json_dump(v, 0, true);
    nb_esc(out, NB_ESC_CAP, text ? text : "?", text ? strlen(text) : 1);
    nb_free(text);
    return out;
}

nb_status nb_cfg_bad(const nb_cfg_reader *r, const char *key, const nb_json *v, const char *want)
{
    char buf[NB_ESC_CAP];

    return nb_fail(r->err, NB_EFORMAT, "cfg.value", "", "\"%s\" is %s, expected %s", key, nb_cfg_show(buf, v), want);
}

nb_status nb_cfg_unsupported(const nb_cfg_reader *r, const char *key, const nb_json *v, const char *known)
{
    char buf[NB_ESC_CAP];

    return nb_fail(r->err, NB_EUNSUPPORTED, "cfg.unsupported", "", "\"%s\" is %s; nibble knows %s", key, nb_cfg_show(buf, v), known);
}

nb_status nb_cfg_size(const nb_cfg_reader *r, const char *const *keys, int64_t hi, size_t dflt, size_t *out)
{
    const char *key;
    const nb_json *v = nb_cfg_find(r, keys, &key);
    char want[64];
    int64_t n;

    if (!v && dflt) {
        *out = dflt;
        return NB_OK;
    }
    n = v ? nb_json_int(v, INT64_MIN) : INT64_MIN;
    if (n < 1 || n > hi) {
        snprintf(want, sizeof want, "an integer from 1 to %lld", (long long)hi);
        return nb_cfg_bad(r, key, v, want);
    }
    *out = (size_t)n;
    return NB_OK;
}

nb_status nb_cfg_num(const nb_cfg_reader *r, const nb_json *obj, const char *key, double lo, double hi, bool closed, double *out)
{
    const nb_json *v = nb_json_get(obj, key);
    char want[64];
    double x;

    if (!v || nb_json_is_null(v))
        return NB_OK;
    x = nb_json_num(v, NAN);
    if (!(x <= hi && (x > lo || (closed && x == lo)))) { /* NaN fails */
        snprintf(want, sizeof want, "a number %s %g%s", closed ? "from" : "above", lo, hi < 1e30 ? "" : " and finite");
        if (hi < 1e30)
            snprintf(want + strlen(want), sizeof want - strlen(want), " up to %g", hi);
        return nb_cfg_bad(r, key, v, want);
    }
    *out = x;
    return NB_OK;
}

nb_status nb_cfg_bool(const nb_cfg_reader *r, const char *key, const nb_json *v, bool *out)
{
    if (!v || nb_json_is_null(v))
        return NB_OK;
    if (nb_json_typeof(v) != NB_JBOOL)
        return nb_cfg_bad(r, key, v, "true or false");
    *out = nb_json_bool(v, false);
    return NB_OK;
}

nb_status nb_cfg_flag(const nb_cfg_reader *r, const char *key, bool dflt, bool *out)
{
    *out = dflt;
    return nb_cfg_bool(r, key, nb_json_get(r->in, key), out);
}

/* explain.c - see explain.h. Rules speak from the rule table, classes and families from data/errors.json. */
#include "job/explain.h"

#include <ctype.h>
#include <string.h>

#include "job/check.h"
#include "job/embedded.h"
#include "quant/quant.h"

static bool set_str(nb_json *o, const char *key, const char *v)
{
    return nb_json_set(o, key, nb_json_new_str(v));
}

static nb_status load(nb_json **out, nb_err *err)
{
    return nb_json_parse((const char *)nb_data_errors, nb_data_errors_size, "json", 0, out, err);
}

/* "shp-3" is not "SHP-003": ids are compared whole, in any case. */
static const nb_rule *find_rule(const char *what)
{
    char id[16];
    const size_t n = strlen(what);

    if (n == 0 || n >= sizeof id)
        return NULL;
    for (size_t i = 0; i <= n; i++)
        id[i] = (char)toupper((unsigned char)what[i]);
    return nb_rule_find(id);
}

static nb_json *rule_row(const nb_rule *r, bool with_class)
{
    nb_json *o = nb_json_new_obj();

    if (o && set_str(o, "id", r->id) && (!with_class || set_str(o, "class", r->cls)) && set_str(o, "severity", nb_check_severity(r->sev)) &&
        set_str(o, "text", r->text))
        return o;
    nb_json_free(o);
    return NULL;
}

/* Rules whose class is `cls`. NULL: no memory. */
static nb_json *rules_of(const char *cls)
{
    nb_json *a = nb_json_new_arr();

    for (size_t i = 0; a && i < nb_rule_count(); i++)
        if (strcmp(nb_rule_at(i)->cls, cls) == 0 && !nb_json_push(a, rule_row(nb_rule_at(i), false))) {
            nb_json_free(a);
            return NULL;
        }
    return a;
}

static const nb_json *family_of(const nb_json *root, const char *cls)
{
    char name[32];
    const size_t n = strcspn(cls, ".");

    if (n >= sizeof name)
        return NULL;
    memcpy(name, cls, n);
    name[n] = '\0';
    return nb_json_get(nb_json_get(root, "families"), name);
}

static nb_status explain_rule(const nb_rule *r, nb_json *o, nb_err *err)
{
    bool ok = set_str(o, "name", r->id) && set_str(o, "kind", "rule") && set_str(o, "title", r->cls) &&
              set_str(o, "severity", nb_check_severity(r->sev)) && set_str(o, "text", r->text);

    if (ok && r->code != NB_OK)
        ok = nb_json_set(o, "exit", nb_json_new_int(r->code));
    return ok ? NB_OK : nb_enomem(err, "the answer");
}

/* A class has its own text, rules, or at least a family. */
static nb_status explain_class(const nb_json *root, const char *what, nb_json *o, nb_err *err)
{
    const nb_json *text = nb_json_get(nb_json_get(root, "classes"), what), *family = family_of(root, what);
    const bool whole = family && !strchr(what, '.');
    nb_json *rules = rules_of(what);
    char esc[NB_ESC_CAP];
    bool ok = rules != NULL;

    if (ok && !family && !text && nb_json_len(rules) == 0) {
        nb_json_free(rules);
        return nb_fail(err, NB_EARG, "arg.value", "", "no rule and no class \"%s\"; nibble explain lists all",
                       nb_esc(esc, sizeof esc, what, strlen(what)));
    }
    ok = ok && set_str(o, "name", what) && set_str(o, "kind", whole ? "family" : "class");
    if (ok && family)
        ok = nb_json_set(o, "title", nb_json_copy(nb_json_get(family, "title")));
    if (ok && (text || nb_json_len(rules) == 0))
        ok = nb_json_set(o, "text", nb_json_copy(text ? text : nb_json_get(family, "text")));
    if (ok && nb_json_len(rules) > 0) {
        ok = nb_json_set(o, "rules", rules);
        rules = NULL;
    }
    nb_json_free(rules);
    return ok ? NB_OK : nb_enomem(err, "the answer");
}

nb_status nb_explain(const char *what, nb_json **out, nb_err *err)
{
    const nb_rule *r = find_rule(what);
    nb_json *root = NULL, *o = nb_json_new_obj();
    nb_status rc = o ? load(&root, err) : nb_enomem(err, "the answer");

    *out = NULL;
    if (rc == NB_OK)
        rc = r ? explain_rule(r, o, err) : explain_class(root, what, o, err);
    nb_json_free(root);
    if (rc == NB_OK)
        *out = o;
    else
        nb_json_free(o);
    return rc;
}

nb_status nb_explain_list(nb_json **out, nb_err *err)
{
    nb_json *root = NULL, *o = nb_json_new_obj(), *rules = nb_json_new_arr(), *families = nb_json_new_arr();
    nb_status rc = load(&root, err);
    bool ok = rc == NB_OK && o && rules && families;

    *out = NULL;
    for (size_t i = 0; i < nb_rule_count() && ok; i++)
        ok = nb_json_push(rules, rule_row(nb_rule_at(i), true));
    for (size_t i = 0; ok && i < nb_json_len(nb_json_get(root, "families")); i++) {
        const char *name;
        const nb_json *f = nb_json_member(nb_json_get(root, "families"), i, &name);
        nb_json *row = nb_json_new_obj();
        ok = row && set_str(row, "name", name) && nb_json_set(row, "title", nb_json_copy(nb_json_get(f, "title")));
        if (ok)
            ok = nb_json_push(families, row);
        else
            nb_json_free(row);
    }
    if (ok) {
        ok = nb_json_set(o, "rules", rules);
        rules = NULL;
        ok = nb_json_set(o, "families", families) && ok;
        families = NULL;
    }
    nb_json_free(rules);
    nb_json_free(families);
    nb_json_free(root);
    if (ok) {
        *out = o;
        return NB_OK;
    }
    nb_json_free(o);
    return rc != NB_OK ? rc : nb_enomem(err, "the list");
}

/* ---- the table of layouts -------------------------------------------------------------------------------------- */

/* Widths that pack() takes, by asking it: one output group of zeros. */
static unsigned writable_bits(const nb_format *f)
{
    enum { N = 64, K = 64, G = 32 };
    unsigned set = 0;

    for (unsigned bits = 2; f->pack && bits <= 8; bits++) {
        const nb_qspec spec = { .bits = bits, .group_size = G };
        void *out[NB_MAX_PARTS] = { NULL };
        nb_qlin q = { 0 };
        bool ok = nb_qlin_init(&q, N, K, G, bits, NULL) == NB_OK;
        for (size_t p = 0; p < NB_MAX_PARTS && ok; p++)
            if (nb_format_stores(f, p, &spec))
                ok = (out[p] = nb_calloc(1, 1 << 16)) != NULL;
        if (ok) {
            memset(q.codes, 0, (size_t)N * K);
            memset(q.zeros, 1 << (bits - 1), q.n * q.n_groups);
            for (size_t i = 0; i < q.n * q.n_groups; i++)
                q.scales[i] = 1.0f;
            q.scale_dtype = NB_DT_F16;
            set |= f->pack(&q, 0, N, out, NULL) == NB_OK ? 1u << bits : 0;
        }
        for (size_t p = 0; p < NB_MAX_PARTS; p++)
            nb_free(out[p]);
        nb_qlin_clear(&q);
    }
    return set;
}

static bool has_role(const nb_format *f, nb_part_role role)
{
    for (size_t p = 0; p < NB_MAX_PARTS && f->parts[p].suffix; p++)
        if (f->parts[p].role == role)
            return true;
    return false;
}

static nb_json *format_row(const nb_format *f)
{
    nb_json *o = nb_json_new_obj(), *bits = nb_json_new_arr();
    const unsigned set = writable_bits(f);
    bool ok = o && bits && set_str(o, "name", f->name) && set_str(o, "method", f->method) && set_str(o, "version", f->version);

    for (unsigned b = 2; b <= 8 && ok; b++)
        if (set >> b & 1 || (!f->pack && b == 4)) /* layouts that are only read here have 4 bits */
            ok = nb_json_push(bits, nb_json_new_int(b));
    if (ok) {
        ok = nb_json_set(o, "bits", bits);
        bits = NULL;
    }
    ok = ok && nb_json_set(o, "read", nb_json_new_bool(f->unpack != NULL)) && nb_json_set(o, "write", nb_json_new_bool(f->pack != NULL)) &&
         nb_json_set(o, "act_order", nb_json_new_bool(has_role(f, NB_PART_G_IDX))) &&
         nb_json_set(o, "zero_points", nb_json_new_bool(has_role(f, NB_PART_ZEROS))) &&
         nb_json_set(o, "per_module", nb_json_new_bool(f->override != NULL));
    nb_json_free(bits);
    if (ok)
        return o;
    nb_json_free(o);
    return NULL;
}

nb_json *nb_formats_json(void)
{
    nb_json *a = nb_json_new_arr();

    for (size_t i = 0; a && i < nb_format_count(); i++)
        if (!nb_json_push(a, format_row(nb_format_at(i)))) {
            nb_json_free(a);
            return NULL;
        }
    return a;
}

/* check_sarif.c - the findings of a check as SARIF 2.1.0 (OASIS standard, 2020), for code review and CI. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "job/check.h"
#include "quant/quant.h"

static nb_json *text_json(const char *text)
{
    nb_json *o = nb_json_new_obj();

    if (o && nb_json_set(o, "text", nb_json_new_str(text)))
        return o;
    nb_json_free(o);
    return NULL;
}

/* Where a finding's file lies, seen from where the check was started: findings name files of the checked directory alone. */
static void put_place(nb_buf *b, const char *path, const char *file)
{
    const size_t n = strlen(path), m = strlen(file);
    const bool same = n >= m && strcmp(path + n - m, file) == 0; /* the file itself was checked, or nothing is named */

    nb_buf_puts(b, strchr(file, '/') ? "" : path);
    if (!strchr(file, '/') && !same)
        nb_buf_puts(b, n && path[n - 1] == '/' ? "" : "/");
    nb_buf_puts(b, same && !strchr(file, '/') ? "" : file);
    nb_buf_putc(b, '\0');
}

/* A path as a URI reference: bytes beyond the unreserved ones and '/' as %XX (RFC 3986). */
static nb_json *uri_json(const char *path)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/";
    nb_buf b = { 0 };
    nb_json *v;

    nb_buf_puts(&b, path[0] == '/' ? "file://" : "");
    for (const unsigned char *p = (const unsigned char *)path; *p; p++) {
        if (strchr(plain, *p))
            nb_buf_putc(&b, (char)*p);
        else
            nb_buf_printf(&b, "%%%02X", *p);
    }
    v = b.failed ? NULL : nb_json_new_strn(b.p ? b.p : "", b.n);
    nb_buf_clear(&b);
    return v;
}

static nb_json *rule_json(const nb_finding *f)
{
    const nb_rule *r = f->rule[0] ? nb_rule_find(f->rule) : NULL;
    nb_json *o = nb_json_new_obj(), *level = nb_json_new_obj();
    bool ok = o && level && nb_json_set(o, "id", nb_json_new_str(f->rule[0] ? f->rule : f->cls)) &&
              nb_json_set(o, "name", nb_json_new_str(f->cls));

    if (ok && r)
        ok = nb_json_set(o, "fullDescription", text_json(r->text)) &&
             nb_json_set(level, "level", nb_json_new_str(nb_check_severity(r->sev)));
    if (ok && r) {
        ok = nb_json_set(o, "defaultConfiguration", level);
        level = NULL;
    }
    nb_json_free(level);
    if (ok)
        return o;
    nb_json_free(o);
    return NULL;
}

static nb_json *location_json(const nb_finding *f, const char *path)
{
    nb_json *o = nb_json_new_obj(), *physical = nb_json_new_obj(), *artifact = nb_json_new_obj();
    nb_buf place = { 0 };
    bool ok;

    put_place(&place, path, f->file);
    ok = o && physical && artifact && !place.failed && nb_json_set(artifact, "uri", uri_json(place.p));
    nb_buf_clear(&place);
    if (ok) {
        ok = nb_json_set(physical, "artifactLocation", artifact);
        artifact = NULL;
    }
    if (ok) {
        ok = nb_json_set(o, "physicalLocation", physical);
        physical = NULL;
    }
    if (ok && f->subject[0]) { /* the tensor, module or key */
        nb_json *logical = nb_json_new_obj(), *list = nb_json_new_arr();
        ok = logical && list && nb_json_set(logical, "fullyQualifiedName", nb_json_new_str(f->subject));
        if (ok) {
            ok = nb_json_push(list, logical);
            logical = NULL;
        }
        if (ok) {
            ok = nb_json_set(o, "logicalLocations", list);
            list = NULL;
        }
        nb_json_free(logical);
        nb_json_free(list);
    }
    nb_json_free(physical);
    nb_json_free(artifact);
    if (ok)
        return o;
    nb_json_free(o);
    return NULL;
}

static nb_json *result_json(const nb_finding *f, const char *path)
{
    nb_json *o = nb_json_new_obj(), *places = nb_json_new_arr();
    nb_buf message = { 0 };
    bool ok;

    nb_buf_puts(&message, f->what);
    if (f->next[0])
        nb_buf_printf(&message, " \xe2\x86\x92 %s", f->next);
    nb_buf_putc(&message, '\0');
    ok = o && places && !message.failed && nb_json_set(o, "ruleId", nb_json_new_str(f->rule[0] ? f->rule : f->cls)) &&
         nb_json_set(o, "level", nb_json_new_str(nb_check_severity(f->sev))) && nb_json_set(o, "message", text_json(message.p)) &&
         nb_json_push(places, location_json(f, path));
    if (ok) {
        ok = nb_json_set(o, "locations", places);
        places = NULL;
    }
    nb_buf_clear(&message);
    nb_json_free(places);
    if (ok)
        return o;
    nb_json_free(o);
    return NULL;
}

/* Is the rule of finding i one that an earlier finding of the list has? */
static bool seen_before(const nb_report *r, size_t i, nb_severity least)
{
    const nb_finding *f = nb_report_at(r, i);

    for (size_t k = 0; k < i; k++) {
        const nb_finding *g = nb_report_at(r, k);
        if (g->sev >= least && strcmp(f->rule, g->rule) == 0 && (f->rule[0] || strcmp(f->cls, g->cls) == 0))
            return true;
    }
    return false;
}

nb_json *nb_check_sarif(const char *path, const nb_report *r, nb_severity least, const char *version)
{
    nb_json *root = nb_json_new_obj(), *runs = nb_json_new_arr(), *run = nb_json_new_obj(), *tool = nb_json_new_obj();
    nb_json *driver = nb_json_new_obj(), *rules = nb_json_new_arr(), *results = nb_json_new_arr();
    bool ok = root && runs && run && tool && driver && rules && results;

    for (size_t i = 0; ok && i < nb_report_count(r); i++) {
        const nb_finding *f = nb_report_at(r, i);
        if (f->sev < least)
            continue;
        ok = (seen_before(r, i, least) || nb_json_push(rules, rule_json(f))) && nb_json_push(results, result_json(f, path));
    }
    ok = ok && nb_json_set(driver, "name", nb_json_new_str("nibble")) && nb_json_set(driver, "version", nb_json_new_str(version)) &&
         nb_json_set(root, "version", nb_json_new_str("2.1.0"));
    if (ok) { /* from the inside out; each set takes what it is given */
        ok = nb_json_set(driver, "rules", rules);
        rules = NULL;
        ok = nb_json_set(tool, "driver", driver) && ok;
        driver = NULL;
        ok = nb_json_set(run, "tool", tool) && ok;
        tool = NULL;
        ok = nb_json_set(run, "results", results) && ok;
        results = NULL;
        ok = nb_json_push(runs, run) && ok;
        run = NULL;
        ok = nb_json_set(root, "runs", runs) && ok;
        runs = NULL;
    }
    nb_json_free(rules);
    nb_json_free(driver);
    nb_json_free(tool);
    nb_json_free(results);
    nb_json_free(run);
    nb_json_free(runs);
    if (ok)
        return root;
    nb_json_free(root);
    return NULL;
}

/* report.c - the list of findings. */
#include "tensor/report.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/strmap.h"

#define RULE_MOST 10000 /* findings kept per rule (per class where no rule applies) */

struct nb_report {
    nb_finding *list; /* [cap] */
    size_t n, cap;
    size_t by_sev[3];
    nb_strmap *rules; /* rule or class -> index of per_rule */
    size_t *per_rule; /* [cap_rules] */
    size_t n_rules, cap_rules;
    nb_arena arena;
};

nb_report *nb_report_new(void)
{
    nb_report *r = nb_calloc(1, sizeof *r);

    if (r)
        r->rules = nb_strmap_new(0);
    if (r && !r->rules) {
        nb_free(r);
        return NULL;
    }
    return r;
}

void nb_report_free(nb_report *r)
{
    if (!r)
        return;
    nb_strmap_free(r->rules);
    nb_arena_clear(&r->arena);
    nb_free(r->per_rule);
    nb_free(r->list);
    nb_free(r);
}

/* Grow *list of *cap elements of `size` bytes so that index n is inside. */
static bool room(void **list, size_t *cap, size_t n, size_t size)
{
    const size_t more = *cap ? 2 * *cap : 16;
    size_t bytes;
    void *p;

    if (n < *cap)
        return true;
    p = nb_mul_size(more, size, &bytes) ? nb_realloc(*list, bytes) : NULL;
    if (!p)
        return false;
    *list = p;
    *cap = more;
    return true;
}

/* Counter of a rule, made when new. NULL when out of memory. */
static size_t *rule_count(nb_report *r, const char *rule)
{
    void *list = r->per_rule;
    const size_t n = strlen(rule);
    uint64_t i;

    if (nb_strmap_get(r->rules, rule, n, &i))
        return &r->per_rule[i];
    if (!room(&list, &r->cap_rules, r->n_rules, sizeof *r->per_rule))
        return NULL;
    r->per_rule = list;
    if (nb_strmap_put(r->rules, rule, n, r->n_rules, NULL) != NB_OK)
        return NULL;
    r->per_rule[r->n_rules] = 0;
    return &r->per_rule[r->n_rules++];
}

static const char *keep(nb_report *r, const char *s)
{
    return s && s[0] ? nb_arena_strdup(&r->arena, s) : "";
}

static nb_status add(nb_report *r, nb_severity sev, const char *cls, const char *rule, const char *file, const char *subject,
                     const char *next, const char *what)
{
    void *list = r->list;
    nb_finding f = { .sev = (unsigned)sev <= NB_SEV_REJECT ? sev : NB_SEV_REJECT };
    size_t *count;

    rule = rule ? rule : "";
    cls = cls ? cls : "";
    count = rule_count(r, rule[0] ? rule : cls);
    if (!count)
        return NB_ENOMEM;
    if (*count < RULE_MOST) {
        snprintf(f.rule, sizeof f.rule, "%s", rule);
        snprintf(f.cls, sizeof f.cls, "%s", cls);
        f.file = keep(r, file);
        f.subject = keep(r, subject);
        f.what = keep(r, what);
        f.next = keep(r, next);
        if (!f.file || !f.subject || !f.what || !f.next || !room(&list, &r->cap, r->n, sizeof *r->list))
            return NB_ENOMEM;
        r->list = list;
        r->list[r->n++] = f;
    }
    ++*count;
    r->by_sev[f.sev]++;
    return NB_OK;
}

nb_status nb_report_add(nb_report *r, nb_severity sev, const char *cls, const char *rule, const char *file, const char *subject,
                        const char *next, const char *fmt, ...)
{
    char what[2048];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return add(r, sev, cls, rule, file, subject, next, what);
}

nb_status nb_report_err(nb_report *r, const nb_err *err)
{
    return add(r, NB_SEV_REJECT, err->cls, err->rule, err->file, err->subject, NULL, err->what);
}

size_t nb_report_count(const nb_report *r)
{
    return r->n;
}

const nb_finding *nb_report_at(const nb_report *r, size_t i)
{
    return i < r->n ? &r->list[i] : NULL;
}

size_t nb_report_count_sev(const nb_report *r, nb_severity sev)
{
    return (unsigned)sev <= NB_SEV_REJECT ? r->by_sev[sev] : 0;
}

nb_status nb_report_merge(nb_report *into, const nb_report *from)
{
    size_t sum[3] = { 0 };

    for (size_t i = 0; i < from->n; i++) {
        const nb_finding *f = &from->list[i];
        const nb_status rc = add(into, f->sev, f->cls, f->rule, f->file, f->subject, f->next, f->what);
        if (rc != NB_OK)
            return rc;
        sum[f->sev]++;
    }
    for (int s = 0; s < 3; s++) /* those that `from` only counted */
        into->by_sev[s] += from->by_sev[s] - sum[s];
    return NB_OK;
}

void nb_report_log(const nb_report *r, const nb_host *host)
{
    for (size_t i = 0; r && i < nb_report_count(r); i++) {
        const nb_finding *f = nb_report_at(r, i);
        nb_log(host, f->sev == NB_SEV_INFO ? NB_LOG_INFO : NB_LOG_WARN, "%s%s%s%s: %s%s%s%s%s", f->cls, *f->rule ? " [" : "", f->rule,
               *f->rule ? "]" : "", f->file, *f->file ? ": " : "", f->subject, *f->subject ? ": " : "", f->what);
    }
}

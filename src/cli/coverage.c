/* coverage.c - see coverage.h. Rows come layer by layer, and in a layer expert by expert. */
#include "cli/coverage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"

bool nb_coverage_add(nb_coverage *c, const nb_quantize_row *r)
{
    static const char mark[] = ".experts.";
    const char *at = r->expert ? strstr(r->name, mark) : NULL;
    struct nb_cover one = { .tokens = r->tokens };
    uint64_t expert;

    if (!at)
        return true;
    snprintf(one.where, sizeof one.where, "%.*s", (int)(at - r->name), r->name);
    if (nb_num_u64(at + strlen(mark), SIZE_MAX, &expert))
        one.expert = (size_t)expert;
    if (c->n && c->seen[c->n - 1].expert == one.expert && strcmp(c->seen[c->n - 1].where, one.where) == 0)
        return true; /* another linear of the same one */
    if (c->n == c->cap) {
        const size_t cap = c->cap ? 2 * c->cap : 256;
        struct nb_cover *p = nb_realloc(c->seen, cap * sizeof *p);
        if (!p)
            return false;
        c->seen = p;
        c->cap = cap;
    }
    c->seen[c->n++] = one;
    return true;
}

/* Rows [i, end) are of one layer. */
static size_t layer_end(const nb_coverage *c, size_t i)
{
    size_t end = i;

    while (end < c->n && strcmp(c->seen[end].where, c->seen[i].where) == 0)
        end++;
    return end;
}

static int by_size(const void *a, const void *b)
{
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;

    return (x > y) - (x < y);
}

typedef struct spread {
    size_t least, median, most, none;
} spread;

static spread spread_of(const nb_coverage *c, size_t begin, size_t end)
{
    const size_t n = end - begin;
    size_t *t = nb_alloc_array(n, sizeof *t);
    spread s = { 0 };

    for (size_t i = 0; i < n; i++)
        s.none += c->seen[begin + i].tokens == 0;
    if (!t)
        return s;
    for (size_t i = 0; i < n; i++)
        t[i] = c->seen[begin + i].tokens;
    qsort(t, n, sizeof *t, by_size);
    s.least = t[0];
    s.median = t[n / 2];
    s.most = t[n - 1];
    nb_free(t);
    return s;
}

void nb_coverage_print(const nb_coverage *c, const nb_cli *cli)
{
    if (c->n)
        nb_cli_note(cli, "calibration tokens of each expert:");
    for (size_t i = 0, end; i < c->n; i = end) {
        char none[160] = "";
        size_t len = 0;

        end = layer_end(c, i);
        for (size_t e = i; e < end && len + 24 < sizeof none; e++)
            if (c->seen[e].tokens == 0)
                len += (size_t)snprintf(none + len, sizeof none - len, "%s%zu", len ? ", " : "; none: ", c->seen[e].expert);
        const spread s = spread_of(c, i, end);
        nb_cli_note(cli, "  %-28s %4zu experts  least %6zu  median %6zu  most %6zu%s", c->seen[i].where, end - i, s.least, s.median, s.most,
                    none);
    }
}

nb_json *nb_coverage_json(const nb_coverage *c)
{
    nb_json *all = nb_json_new_arr();
    bool ok = all != NULL;

    for (size_t i = 0, end; i < c->n && ok; i = end) {
        const spread s = spread_of(c, i, end = layer_end(c, i));
        nb_json *o = nb_json_new_obj(), *list = nb_json_new_arr();

        for (size_t e = i; e < end && ok; e++)
            ok = nb_json_push(list, nb_json_new_int((int64_t)c->seen[e].tokens));
        ok = nb_json_set(o, "tokens", list) && ok;
        ok = ok && nb_json_set(o, "layer", nb_json_new_str(c->seen[i].where)) &&
             nb_json_set(o, "without", nb_json_new_int((int64_t)s.none)) && nb_json_set(o, "least", nb_json_new_int((int64_t)s.least)) &&
             nb_json_set(o, "median", nb_json_new_int((int64_t)s.median)) && nb_json_set(o, "most", nb_json_new_int((int64_t)s.most));
        ok = nb_json_push(all, o) && ok;
    }
    if (ok)
        return all;
    nb_json_free(all);
    return NULL;
}

void nb_coverage_clear(nb_coverage *c)
{
    nb_free(c->seen);
    *c = (nb_coverage){ 0 };
}

/* check_numbers.c - layers and experts are numbered without a gap (NAM-010), and experts kept as one tensor (NAM-011). Goes by names
 * alone, so that it holds for architectures we do not know. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "job/check_priv.h"

enum { MAX_LAYERS = 4096, MAX_EXPERTS = 4096, LAYER = MAX_EXPERTS / 8 + 1 };

/* A bit for every number that occurs: layers, and the experts of each. */
typedef struct numbers {
    uint8_t layers[MAX_LAYERS / 8];
    uint8_t *experts[MAX_LAYERS]; /* NULL: the layer has none */
} numbers;

/* The number behind "<word>." in a name, after *at; -1 when there is none. *at moves behind it. */
static long number_after(const char **at, const char *word, long max)
{
    const size_t n = strlen(word);

    for (const char *s = *at; (s = strstr(s, word)); s += n) {
        const char *d = s + n;
        const char *end;
        uint64_t v;
        if ((s != *at && s[-1] != '.') || *d < '0' || *d > '9')
            continue;
        end = nb_num_u64(d, (uint64_t)max - 1, &v);
        if (!end || *end != '.')
            return -1;
        *at = end;
        return (long)v;
    }
    return -1;
}

static nb_status note(numbers *v, const nb_tensor *t, nb_err *err)
{
    const char *at = t->name;
    long layer = number_after(&at, "layers.", MAX_LAYERS), expert;

    if (layer < 0)
        layer = number_after(&at, "h.", MAX_LAYERS);
    if (layer < 0)
        return NB_OK;
    v->layers[layer / 8] |= (uint8_t)(1u << layer % 8);
    expert = number_after(&at, "experts.", MAX_EXPERTS);
    if (expert < 0)
        return NB_OK;
    if (!v->experts[layer] && !(v->experts[layer] = nb_calloc(LAYER, 1)))
        return nb_enomem(err, "the numbers of experts");
    v->experts[layer][expert / 8] |= (uint8_t)(1u << expert % 8);
    return NB_OK;
}

/* How many of `max` bits are set; *top is one above the highest, *hole the first that is not set. */
static size_t count(const uint8_t *bits, size_t max, size_t *top, size_t *hole)
{
    size_t n = 0;

    *top = 0;
    *hole = max;
    for (size_t i = 0; i < max; i++) {
        if (bits[i / 8] >> i % 8 & 1) {
            n++;
            *top = i + 1;
        } else if (*hole == max) {
            *hole = i;
        }
    }
    return n;
}

static nb_status judge(const nb_checker *c, const numbers *v, nb_err *err)
{
    const size_t declared = c->has_plan && c->cfg.moe.n_experts < MAX_EXPERTS ? c->cfg.moe.n_experts : 0;
    size_t top, hole, n = count(v->layers, MAX_LAYERS, &top, &hole);
    char name[48];
    nb_status rc = NB_OK;

    if (n < top && !c->has_plan) { /* a plan names what is missing */
        snprintf(name, sizeof name, "layers.%zu", hole);
        rc = nb_rule_hit(c->report, err, "NAM-010", "", name, "Layer %zu is missing (%zu of %zu present).", hole, n, top);
    }
    for (size_t l = 0; rc == NB_OK && l < MAX_LAYERS; l++) {
        if (!v->experts[l])
            continue;
        n = count(v->experts[l], MAX_EXPERTS, &top, &hole);
        top = top < declared ? declared : top;
        if (n == top)
            continue;
        snprintf(name, sizeof name, "layers.%zu.experts.%zu", l, hole);
        rc = nb_rule_hit(c->report, err, "NAM-010", "", name, "Layer %zu: expert %zu is missing (%zu of %zu present).", l, hole, n, top);
    }
    return rc;
}

nb_status nb_check_numbers(nb_checker *c, nb_err *err)
{
    numbers *v = nb_calloc(1, sizeof *v);
    const nb_tensor *stacked = NULL;
    nb_status rc = v ? NB_OK : nb_enomem(err, "the numbers of layers");

    for (size_t i = 0; rc == NB_OK && i < c->store->n_tensors; i++) {
        const nb_tensor *t = &c->store->tensors[i];
        rc = note(v, t, err);
        if (!stacked && t->rank == 3 && strstr(t->name, ".experts."))
            stacked = t;
    }
    if (rc == NB_OK)
        rc = judge(c, v, err);
    if (rc == NB_OK && stacked)
        rc = nb_rule_hit(c->report, err, "NAM-011", stacked->file, stacked->name,
                         "Experts are stored as one 3-D tensor; programs that look for a matrix per expert do not find them.");
    for (size_t l = 0; v && l < MAX_LAYERS; l++)
        nb_free(v->experts[l]);
    nb_free(v);
    return rc;
}

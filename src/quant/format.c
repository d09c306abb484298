/* format.c - the format table, what layouts look like (formats 3.16), and shapes written as text ("k/g n/8"). */
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "quant/formats.h"

static const nb_format *const formats[] = {
    &nb_fmt_awq_gemm,
};

size_t nb_format_count(void)
{
    return NB_LEN(formats);
}

const nb_format *nb_format_at(size_t i)
{
    return i < NB_LEN(formats) ? formats[i] : NULL;
}

const nb_format *nb_format_find(const char *name)
{
    for (size_t i = 0; name && i < NB_LEN(formats); i++)
        if (strcmp(formats[i]->name, name) == 0)
            return formats[i];
    return NULL;
}

/* One dimension: "k", "n/8", "k/g", "n*b/32"; division rounds up. Returns the first byte behind it. */
static const char *eval_dim(const char *p, const uint64_t var[4], uint64_t *out)
{
    static const char names[] = "nkgb";
    uint64_t v = 1;
    char op = '*';

    for (;;) {
        const char *name = *p ? strchr(names, *p) : NULL;
        uint64_t x;
        if (name) {
            x = var[name - names];
            p++;
        } else {
            char *end;
            x = strtoull(p, &end, 10);
            p = end;
        }
        if (op == '*')
            v *= x;
        else
            v = x ? (v + x - 1) / x : 0;
        if (*p != '*' && *p != '/')
            break;
        op = *p++;
    }
    *out = v;
    return p;
}

unsigned nb_format_part_shape(const nb_format *f, size_t part, size_t n, size_t k, size_t g, unsigned bits, uint64_t shape[4])
{
    const uint64_t var[4] = { n, k, g, bits };
    const char *p = part < NB_MAX_PARTS ? f->parts[part].shape : NULL;
    unsigned rank = 0;

    while (p && *p && rank < 4) {
        p = eval_dim(p, var, &shape[rank++]);
        while (*p == ' ')
            p++;
    }
    return rank;
}

/* Layouts this version recognises but does not read yet. A layout that gets its own file leaves this list. */

static bool word32(const nb_tensor *t)
{
    return t && t->rank == 2 && (t->dtype == NB_DT_I32 || t->dtype == NB_DT_U32);
}

static bool matrix(const nb_tensor *t)
{
    return t && t->rank == 2;
}

static bool is_gptq(const nb_evidence *e) /* [K*b/32, N], scales [Gn, N] */
{
    return word32(e->qweight) && word32(e->qzeros) && matrix(e->scales) && e->qweight->shape[1] == e->scales->shape[1];
}

static bool is_gemv(const nb_evidence *e) /* [N, K/8], scales [N, 8Z] */
{
    return word32(e->qweight) && word32(e->qzeros) && matrix(e->scales) && e->qweight->shape[0] == e->scales->shape[0] &&
           e->qzeros->shape[0] == e->qweight->shape[0] && e->scales->shape[1] % 8 == 0 && e->scales->shape[1] / 8 == e->qzeros->shape[1];
}

static bool is_marlin(const nb_evidence *e) /* [K/16, 2N], scales [Gn, N], no zeros */
{
    return word32(e->qweight) && !e->qzeros && matrix(e->scales) && e->qweight->shape[1] % 2 == 0 &&
           e->qweight->shape[1] / 2 == e->scales->shape[1];
}

static bool is_fast(const nb_evidence *e)
{
    return matrix(e->qweight) && e->qweight->dtype == NB_DT_I16 && e->qzeros;
}

static bool is_llm_awq(const nb_evidence *e)
{
    return matrix(e->qweight) && e->qweight->dtype == NB_DT_I16 && e->scaled_zeros;
}

static bool is_bitblas(const nb_evidence *e)
{
    return e->qweight && e->qweight->dtype == NB_DT_I8;
}

static bool is_gptq_marlin(const nb_evidence *e)
{
    return word32(e->b) && e->s && !e->qweight;
}

static bool is_ct(const nb_evidence *e)
{
    return word32(e->packed) && !e->qweight;
}

static bool is_nvfp4(const nb_evidence *e)
{
    return e->packed && e->packed->dtype == NB_DT_U8 && !e->qweight;
}

static const struct {
    const char *name;
    bool (*match)(const nb_evidence *e);
} later[] = {
    { "gptq", is_gptq },       { "awq-gemv", is_gemv },   { "awq-marlin", is_marlin },       { "awq-gemv-fast", is_fast },
    { "llm-awq", is_llm_awq }, { "bitblas", is_bitblas }, { "gptq-marlin", is_gptq_marlin }, { "compressed-tensors", is_ct },
    { "nvfp4", is_nvfp4 },
};

const char *nb_format_detect(const nb_evidence *e)
{
    const char *found = NULL;
    int n = 0;

    for (size_t i = 0; i < NB_LEN(formats); i++)
        if (formats[i]->match(e)) {
            found = formats[i]->name;
            n++;
        }
    for (size_t i = 0; i < NB_LEN(later); i++)
        if (later[i].match(e)) {
            found = later[i].name;
            n++;
        }
    return n == 1 ? found : NULL;
}

/* format.c - the format table, what layouts look like (formats 3.16), and shapes written as text ("k/g n/8"). */
#include <assert.h>
#include <string.h>

#include "base/mem.h"
#include "base/num.h"
#include "quant/awq.h"
#include "quant/formats.h"

static const nb_format *const formats[] = {
    &nb_fmt_awq_gemm, &nb_fmt_awq_gemv, &nb_fmt_awq_gemv_fast, &nb_fmt_llm_awq,     &nb_fmt_awq_marlin,
    &nb_fmt_gptq,     &nb_fmt_gptq_v2,  &nb_fmt_gptq_p,        &nb_fmt_gptq_marlin, &nb_fmt_ct,
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

bool nb_format_stores(const nb_format *f, size_t part, const nb_qspec *spec)
{
    if (part >= NB_MAX_PARTS || !f->parts[part].suffix)
        return false;
    switch (f->parts[part].when) {
    case NB_STORE_ASYM:
        return !spec->sym;
    case NB_STORE_ACT_ORDER:
        return spec->desc_act;
    default:
        return true;
    }
}

/* One dimension: "k", "n/8", "k/g", "n*b/32", "8*z"; division rounds up. Returns the first byte behind it. */
static const char *eval_dim(const char *p, const uint64_t var[5], uint64_t *out)
{
    static const char names[] = "nkgbz";
    uint64_t v = 1;
    char op = '*';

    for (;;) {
        const char *name = *p ? strchr(names, *p) : NULL;
        uint64_t x;
        if (name) {
            x = var[name - names];
            p++;
        } else {
            p = nb_num_u64(p, UINT32_MAX, &x);
            assert(p); /* the rows of the table are ours */
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
    const uint64_t var[5] = { n, k, g, bits, nb_awq_zeros_width(k, g) };
    const char *p = part < NB_MAX_PARTS ? f->parts[part].shape : NULL;
    unsigned rank = 0;

    while (p && *p && rank < 4) {
        p = eval_dim(p, var, &shape[rank++]);
        while (*p == ' ')
            p++;
    }
    return rank;
}

nb_status nb_format_holds(const nb_format *f, size_t n, size_t k, size_t g, const nb_qspec *spec, nb_err *err)
{
    enum { SOME = 64 }; /* room for outputs; none is written, only what does not depend on them */
    void *part[NB_MAX_PARTS] = { NULL };
    nb_qlin q = { 0 };
    nb_status rc = nb_qlin_init(&q, 1, k, g, spec->bits, err);

    for (size_t p = 0; rc == NB_OK && p < NB_MAX_PARTS && f->parts[p].suffix; p++) {
        const nb_dtype t = f->parts[p].dtype != NB_DT_NONE ? f->parts[p].dtype : spec->scale_dtype;
        uint64_t shape[4], count = 0, bytes = 0;
        const unsigned rank = nb_format_part_shape(f, p, SOME, k, g, spec->bits, shape);

        if (!nb_format_stores(f, p, spec))
            continue;
        if (nb_shape_count(shape, rank, &count) && nb_dtype_bytes(t, count, &bytes))
            part[p] = nb_calloc(bytes ? (size_t)bytes : 1, 1); /* none: pack has a word for it */
        if (!part[p])
            rc = nb_enomem(err, "a packed linear");
    }
    q.n = 0;
    q.scale_dtype = spec->scale_dtype;
    if (rc == NB_OK)
        rc = f->pack(&q, 0, n, part, err);
    for (size_t p = 0; p < NB_MAX_PARTS; p++)
        nb_free(part[p]);
    nb_qlin_clear(&q);
    return rc;
}

/* Layouts this version recognises but does not read yet. A layout that gets its own file leaves this list. */

static bool is_bitblas(const nb_evidence *e)
{
    return e->qweight && e->qweight->dtype == NB_DT_I8;
}

static bool is_nvfp4(const nb_evidence *e)
{
    return e->packed && e->packed->dtype == NB_DT_U8 && !e->qweight;
}

static const struct {
    const char *name;
    bool (*match)(const nb_evidence *e);
} later[] = {
    { "bitblas", is_bitblas },
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

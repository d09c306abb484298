/* inferred.c - opening packed tensors without a quantization config. */
#include "job/inferred.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "job/convert.h"
#include "quant/convention.h"

/* Shapes do not tell stream from planar 3-bit words, nor how zero points were stored unless their values do. */
static nb_status trust(const nb_store *s, const nb_scan *scan, nb_err *err)
{
    nb_zero_verdict v = { .reading = -1 };
    nb_status rc = NB_OK;

    if (!scan->format || strcmp(scan->format->method, "gptq") != 0)
        return NB_OK;
    if (scan->spec.bits != 3)
        rc = nb_zero_convention(s, scan->linears, scan->n_linears, &v, err);
    if (rc == NB_OK && v.reading < 0)
        rc = nb_rule_hit(NULL, err, "CFG-001", NULL, NULL,
                         "Found packed GPTQ tensors but no quantization_config or quantize_config.json, and their values do not tell how "
                         "they were stored. \xe2\x86\x92 Restore the file, or write one with bits, group_size and checkpoint_format.");
    return rc;
}

static nb_status no_fit(const nb_qhint *h, nb_err *err)
{
    char bits[32] = "any width", group[40] = "any group size";

    if (h->bits)
        snprintf(bits, sizeof bits, "%u bits", h->bits);
    if (h->group_size)
        snprintf(group, sizeof group, "group size %" PRId64, h->group_size);
    return nb_rule_hit(
        NULL, err, "CFG-001", NULL, NULL,
        "The packed tensors do not have the shapes of %s, %s, %s, and there is no quantization config. \xe2\x86\x92 Leave the "
        "options out to see what the shapes say.",
        h->format ? h->format->name : "a layout known here", bits, group);
}

bool nb_infer_said(const nb_qhint *hint)
{
    return hint && (hint->format || hint->bits || hint->group_size);
}

nb_status nb_infer_scan(const nb_store *s, const nb_qhint *hint, nb_json **own, nb_scan *scan, char *note, size_t cap, nb_err *err)
{
    nb_status rc;

    note[0] = '\0';
    memset(scan, 0, sizeof *scan);
    rc = nb_quant_infer(s, hint, own, note, cap, err);
    if (rc == NB_OK)
        rc = nb_scan_open(s, *own, "", NULL, scan, err); /* without *own: CFG-001 when something is packed */
    if (rc != NB_OK && rc != NB_ENOMEM && !*own && nb_infer_said(hint)) {
        nb_err_clear(err);
        rc = no_fit(hint, err);
    }
    if (rc == NB_OK && !*own && nb_infer_said(hint))
        rc = nb_fail(
            err, NB_EUNSUPPORTED, "conv.dense", "",
            "these tensors are dense: nothing here is packed, and --format, --bits and --group-size say how packed tensors are read");
    if (rc == NB_OK && *own && !(hint && hint->format))
        rc = trust(s, scan, err);
    if (rc != NB_OK) {
        nb_scan_clear(scan);
        nb_json_free(*own);
        *own = NULL;
    }
    return rc;
}

nb_status nb_infer_hint(const char *format, int64_t bits, int64_t group_size, nb_qhint *out, nb_err *err)
{
    nb_convert_opts o = { 0 };
    nb_err e = { 0 };
    char esc[NB_ESC_CAP];

    *out = (nb_qhint){ .bits = (unsigned)bits, .group_size = group_size };
    if (format && (nb_convert_target(format, &o, &e) != NB_OK || !o.format))
        return nb_fail(err, NB_EARG, "arg.value", "",
                       "--format is \"%s\"; expected awq-gemm, awq-gemv, awq-gemv-fast, llm-awq, gptq-v1, gptq-v2, gptq-p or "
                       "compressed-tensors",
                       nb_esc(esc, sizeof esc, format, strlen(format)));
    out->format = o.format;
    return NB_OK;
}

nb_status nb_infer_conflict(const char *source, nb_err *err)
{
    return nb_fail(err, NB_EARG, "arg.conflict", "",
                   "--format, --bits and --group-size are for models without a quantization config; this one has %s", source);
}

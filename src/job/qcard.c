/* qcard.c - QUANTIZATION.md: a fragment for the model card, made of the recipe and the numbers of the job; no time, host or path. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "job/quantize_priv.h"

static void field(nb_buf *b, const char *key, const nb_json *v)
{
    if (nb_json_typeof(v) == NB_JSTR)
        nb_buf_printf(b, "| %s | %s |\n", key, nb_json_str(v, ""));
    else if (nb_json_typeof(v) == NB_JBOOL)
        nb_buf_printf(b, "| %s | %s |\n", key, nb_json_bool(v, false) ? "yes" : "no");
    else if (nb_json_typeof(v) == NB_JINT)
        nb_buf_printf(b, "| %s | %lld |\n", key, (long long)nb_json_int(v, 0));
    else
        nb_buf_printf(b, "| %s | %g |\n", key, nb_json_num(v, 0));
}

nb_status nb_qcard_write(nb_qjob *j, nb_err *err)
{
    const double n = (double)(j->res.modules ? j->res.modules : 1);
    nb_buf b = { 0 };
    nb_status rc;

    nb_buf_printf(&b, "## Quantization\n\n%u-bit %s weights (%s grid, ", j->o->bits, nb_quantize_method(j->o->method).title,
                  j->o->sym ? "symmetric" : "asymmetric");
    if (j->o->group_size > 0)
        nb_buf_printf(&b, "groups of %lld inputs", (long long)j->o->group_size);
    else
        nb_buf_puts(&b, "one group per output");
    nb_buf_printf(&b, ") in the layout `%s`, made with nibble " NB_VERSION ".\n\n", j->fmt->name);
    nb_buf_printf(&b, "%zu linears are quantized%s norms keep their 16 bits. ", j->res.modules,
                  nb_qmods_head(&j->mods) ? ", the head too; embedding and" : "; embedding, head and");
    nb_buf_printf(&b, "Mean relative output error of a linear on the calibration data: %.3e, with plain rounding %.3e. ",
                  j->res.mean_after / n, j->res.mean_before / n);
    nb_buf_printf(&b, "%zu linears were rounded plainly because their numbers asked for it.\n\n", j->res.fallbacks);
    nb_buf_puts(&b, "| recipe | |\n|---|---|\n");
    for (size_t i = 0; i < nb_json_len(j->recipe); i++) {
        const char *key;
        const nb_json *v = nb_json_member(j->recipe, i, &key);
        field(&b, key, v);
    }
    nb_buf_puts(&b,
                "\nThe same recipe on the same files gives the same bytes, on any number of threads. Check what loads it, and how good it "
                "is:\n\n    nibble inspect DIR --engines\n    nibble eval DIR --ref ORIGINAL --text TEXT\n");
    rc = b.failed ? nb_enomem(err, "the model card") : nb_qout_put(j->out, "QUANTIZATION.md", b.p, err);
    nb_buf_clear(&b);
    return rc;
}

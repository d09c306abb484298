/* infer.c - the quantization config of packed tensors that come without one: the layout, bits and groups whose shapes they have. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "quant/quant.h"

/* Does the store scan as this? *rc: NB_ENOMEM only. */
static bool fits(const nb_store *s, const nb_format *f, const nb_qspec *spec, nb_json **config, nb_status *rc)
{
    nb_json *q = f->config(spec, NULL, 0);
    nb_scan scan;
    nb_err e = { 0 };
    bool ok;

    if (!q) {
        *rc = NB_ENOMEM;
        return false;
    }
    ok = nb_scan_open(s, q, "", NULL, &scan, &e) == NB_OK && scan.n_linears > 0;
    if (e.code == NB_ENOMEM)
        *rc = NB_ENOMEM;
    nb_scan_clear(&scan);
    if (ok)
        *config = q;
    else
        nb_json_free(q);
    return ok;
}

static bool has_packed(const nb_store *s)
{
    static const char *const ends[] = { ".qweight", ".weight_packed" };

    for (size_t i = 0; i < s->n_tensors; i++)
        for (size_t k = 0; k < NB_LEN(ends); k++) {
            const size_t n = strlen(ends[k]);
            if (s->tensors[i].name_len > n && strcmp(s->tensors[i].name + s->tensors[i].name_len - n, ends[k]) == 0)
                return true;
        }
    return false;
}

nb_status nb_quant_infer(const nb_store *s, const nb_qhint *hint, nb_json **config, char *note, size_t cap, nb_err *err)
{
    static const unsigned all_bits[] = { 4, 8, 3, 2, 5, 6, 7 };
    static const int64_t all_groups[] = { 128, 64, 32, -1, 16, 256, 512, 1024 };
    const nb_qhint h = hint ? *hint : (nb_qhint){ 0 };
    const unsigned *bits = h.bits ? &h.bits : all_bits;
    const int64_t *groups = h.group_size ? &h.group_size : all_groups;
    const size_t n_bits = h.bits ? 1 : NB_LEN(all_bits), n_groups = h.group_size ? 1 : NB_LEN(all_groups);
    nb_status rc = NB_OK;

    *config = NULL;
    if (!has_packed(s))
        return NB_OK;
    for (size_t b = 0; b < n_bits; b++)
        for (size_t g = 0; g < n_groups; g++)
            for (size_t f = 0; f < nb_format_count(); f++)
                for (int sym = 0; sym < 2; sym++) {
                    const nb_qspec spec = { .bits = bits[b], .group_size = groups[g], .sym = sym, .scale_dtype = NB_DT_F16 };
                    const nb_format *fmt = nb_format_at(f);
                    if (!fmt->config || (h.format && fmt != h.format) || !fits(s, fmt, &spec, config, &rc)) {
                        if (rc != NB_OK)
                            return nb_enomem(err, "the layout of packed tensors");
                        continue;
                    }
                    snprintf(note, cap, "no quantization config was found; shapes say %s, %u bits, group size %" PRId64, fmt->name, bits[b],
                             groups[g]);
                    return NB_OK;
                }
    return NB_OK;
}

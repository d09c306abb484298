/* awq.c - see awq.h. */
#include "quant/awq.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "quant/parts.h"

uint64_t nb_awq_zeros_width(uint64_t k, uint64_t g)
{
    const uint64_t mult = g >= 128 ? 1 : g == 64 ? 2 : g == 32 ? 4 : g == 16 ? 8 : 0;
    const uint64_t groups = g ? k / g : 0, base = groups / 8 + (groups % 8 != 0);

    return mult ? (base / mult + (base % mult != 0)) * mult : 0;
}

bool nb_awq_is_word(nb_dtype t)
{
    return t == NB_DT_I32 || t == NB_DT_U32;
}

nb_status nb_awq_check_group(const nb_linear *lin, uint64_t k, uint64_t *g, nb_err *err)
{
    char list[64], name[NB_ESC_CAP];

    *g = lin->spec.group_size < 0 ? k : (uint64_t)lin->spec.group_size;
    if (*g && k % *g == 0)
        return NB_OK;
    nb_esc(name, sizeof name, lin->prefix, strlen(lin->prefix));
    return nb_rule_hit(NULL, err, "SHP-004", lin->parts[0]->file, name,
                       "%s: %" PRIu64 " inputs are not a multiple of group size %" PRIu64 ". \xe2\x86\x92 "
                       "Pad the layer or use a group size that divides it (%s).",
                       name, k, *g, nb_fitting_groups(list, sizeof list, k));
}

nb_status nb_awq_check_bits(const nb_linear *lin, nb_err *err)
{
    if (lin->spec.bits == 4)
        return NB_OK;
    return nb_rule_hit(NULL, err, "CFG-004", lin->parts[0]->file, lin->prefix,
                       "bits = %u is not usable (the %s layout holds 4 bits). \xe2\x86\x92 Correct bits in the config.", lin->spec.bits,
                       lin->format->name);
}

nb_status nb_awq_check_stripe(const nb_linear *lin, size_t n0, const nb_qlin *q, nb_err *err)
{
    const size_t unit = lin->format->stripe;

    if (n0 % unit || (q->n % unit && n0 + q->n != lin->n))
        return nb_fail(err, NB_EARG, "arg.stripe", "", "outputs %zu .. %zu do not fall on stripes of %zu", n0, n0 + q->n, unit);
    return nb_check_stripe(lin, n0, q, err);
}

nb_status nb_awq_check_pack(const nb_qlin *q, size_t n0, size_t n, unsigned bits, nb_err *err)
{
    if (q->g_idx)
        return nb_fail(err, NB_EUNSUPPORTED, "conv.act_order", "CNV-010",
                       "the linear uses a reordered g_idx; AWQ has no g_idx. \xe2\x86\x92 Keep GPTQ/compressed-tensors, or re-quantize.");
    if (q->k % q->g)
        return nb_fail(err, NB_EFORMAT, "cfg.group_size", "SHP-004", "%zu inputs are not a multiple of group size %zu.", q->k, q->g);
    if (q->bits != bits)
        return nb_fail(err, NB_EUNSUPPORTED, "conv.bits", "CNV-060",
                       "Changing bits (%u to %u) is not a conversion. \xe2\x86\x92 Re-quantize from the original weights.", q->bits, bits);
    if (n0 > n || q->n > n - n0)
        return nb_fail(err, NB_EARG, "arg.stripe", "", "outputs %zu .. %zu of a linear with %zu outputs", n0, n0 + q->n, n);
    return NB_OK;
}

void nb_awq_read_floats(const nb_tensor *t, nb_awq_at at, size_t n0, size_t n, size_t gn, float *values)
{
    const size_t item = nb_dtype_info(t->dtype)->bits / 8;
    float row[256];

    if (at.group == 1) {
        for (size_t o = 0; o < n; o++)
            nb_to_f32(values + o * gn, t->data + (n0 + o) * at.out * item, t->dtype, gn);
        return;
    }
    for (size_t g = 0; g < gn; g++)
        for (size_t o = 0; o < n; o += NB_LEN(row)) {
            const size_t w = n - o < NB_LEN(row) ? n - o : NB_LEN(row);
            nb_to_f32(row, t->data + (g * at.group + n0 + o) * item, t->dtype, w);
            for (size_t x = 0; x < w; x++)
                values[(o + x) * gn + g] = row[x];
        }
}

nb_status nb_awq_write_floats(const float *values, nb_awq_at at, size_t n0, size_t n, size_t gn, nb_dtype to, unsigned char *out,
                              nb_err *err)
{
    const size_t item = nb_dtype_info(to)->bits / 8;
    float row[256], back[256];

    for (size_t g = 0; g < gn; g++)
        for (size_t o = 0; o < n; o += NB_LEN(row)) {
            const size_t w = n - o < NB_LEN(row) ? n - o : NB_LEN(row);
            unsigned char buf[256 * 4];
            for (size_t x = 0; x < w; x++)
                row[x] = values[(o + x) * gn + g];
            if (!nb_from_f32(buf, row, to, w))
                return nb_fail(err, NB_EARG, "arg.dtype", "", "scales cannot be stored as %s", nb_dtype_info(to)->name);
            nb_to_f32(back, buf, to, w);
            for (size_t x = 0; x < w; x++) {
                if (!(back[x] == row[x]))
                    return nb_fail(err, NB_ENUMERIC, "num.scale_inexact", "CNV-030",
                                   "scale %.9g of output %zu, group %zu is not exact in %s", (double)row[x], n0 + o + x, g,
                                   nb_dtype_info(to)->name);
                memcpy(out + ((n0 + o + x) * at.out + g * at.group) * item, buf + x * item, item);
            }
        }
    return NB_OK;
}

nb_json *nb_awq_config(const nb_qspec *spec, const char *version, bool int16, const char *const *skip, size_t n_skip)
{
    nb_json *o = nb_json_new_obj(), *list = nb_json_new_arr();
    bool ok = o && list;

    for (size_t i = 0; i < n_skip && ok; i++)
        ok = nb_json_push(list, nb_json_new_str(skip[i]));
    ok = ok && nb_json_set(o, "quant_method", nb_json_new_str("awq")) && nb_json_set(o, "bits", nb_json_new_int(spec->bits)) &&
         nb_json_set(o, "group_size", nb_json_new_int(spec->group_size)) && nb_json_set(o, "zero_point", nb_json_new_bool(!spec->sym)) &&
         nb_json_set(o, "version", nb_json_new_str(version)) && nb_json_set(o, "format", nb_json_new_str(version));
    if (int16)
        ok = ok && nb_json_set(o, "pack_dtype", nb_json_new_str("int16"));
    if (ok) {
        ok = nb_json_set(o, "modules_to_not_convert", list);
        list = NULL;
    }
    ok = ok && nb_json_set(o, "lm_head", nb_json_new_bool(false)) && nb_json_set(o, "meta", nb_config_meta());
    nb_json_free(list);
    if (!ok) {
        nb_json_free(o);
        return NULL;
    }
    return o;
}

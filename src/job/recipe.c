/* recipe.c - everything that decides the bytes of a quantized model, as a flat object: it is written into the result, and a job is
 * resumed only by the same one. No path, time, host, thread count or memory cap: they change nothing. */
#include <stdio.h>
#include <string.h>

#include "base/sha256.h"
#include "job/quantize_priv.h"

enum { WHOLE = 4096, SAMPLES = 32, SAMPLE = 64 };

static void hex(nb_sha256 *s, char out[65])
{
    uint8_t sum[32];

    nb_sha256_end(s, sum);
    for (int i = 0; i < 32; i++)
        snprintf(out + 2 * i, 3, "%02x", sum[i]);
}

/* Small tensors whole, of large ones evenly spread pieces: a fine-tuned model has the names and shapes of its parent. */
static void add_tensor(nb_sha256 *s, const nb_tensor *t)
{
    nb_sha256_add(s, t->name, t->name_len + 1);
    nb_sha256_add_le32(s, (uint32_t)t->dtype);
    nb_sha256_add_le32(s, (uint32_t)t->rank);
    for (unsigned i = 0; i < t->rank; i++) {
        nb_sha256_add_le32(s, (uint32_t)t->shape[i]);
        nb_sha256_add_le32(s, (uint32_t)(t->shape[i] >> 32));
    }
    if (!t->data)
        return;
    if (t->n_bytes <= WHOLE) {
        nb_sha256_add(s, t->data, t->n_bytes);
        return;
    }
    for (uint64_t i = 0; i < SAMPLES; i++)
        nb_sha256_add(s, t->data + (t->n_bytes - SAMPLE) / (SAMPLES - 1) * i, SAMPLE);
}

static bool source_sum(const nb_qjob *j, char out[65])
{
    char *config = nb_json_dump(j->src.config, 0, true);
    nb_sha256 s;

    nb_sha256_init(&s);
    if (config)
        nb_sha256_add(&s, config, strlen(config));
    for (size_t i = 0; i < j->src.store->n_tensors; i++) {
        add_tensor(&s, &j->src.store->tensors[i]);
        nb_store_drop(j->src.store, &j->src.store->tensors[i]); /* pages that came along must not count until their layer */
    }
    hex(&s, out);
    nb_free(config);
    return config != NULL;
}

static void calib_sum(const nb_calib *c, char out[65])
{
    nb_sha256 s;

    nb_sha256_init(&s);
    for (size_t i = 0; i < c->rows * c->len; i++)
        nb_sha256_add_le32(&s, (uint32_t)c->ids[i]);
    hex(&s, out);
}

/* What differs from linear to linear: a hash over all of them. */
static bool put_selection(const nb_qjob *j, nb_json *r)
{
    char sum[65];
    nb_sha256 s;

    if (!j->select)
        return true;
    nb_sha256_init(&s);
    for (size_t i = 0; i < j->mods.n; i++) {
        const nb_qmod *m = &j->mods.mods[i];
        nb_sha256_add(&s, m->at.name, strlen(m->at.name) + 1);
        nb_sha256_add_le32(&s, m->quantized ? m->spec.bits | (unsigned)m->spec.sym << 8 | (unsigned)m->spec.desc_act << 9 : 0);
        nb_sha256_add_le32(&s, (uint32_t)m->spec.group_size);
    }
    hex(&s, sum);
    return nb_json_set(r, "selection_sha256", nb_json_new_str(sum));
}

nb_status nb_qjob_recipe(const nb_qjob *j, nb_json **out, nb_err *err)
{
    static const char *const orders[] = { [NB_GPTQ_NATURAL] = "natural", [NB_GPTQ_DESC] = "desc_act", [NB_GPTQ_GAR] = "act_group_aware" };
    const nb_quantize_opts *o = j->o;
    nb_json *r = nb_json_new_obj();
    char sum[65];
    bool ok = source_sum(j, sum);

    ok = ok && nb_json_set(r, "nibble", nb_json_new_str(NB_VERSION)) && nb_json_set(r, "source_sha256", nb_json_new_str(sum)) &&
         nb_json_set(r, "method", nb_json_new_str(j->method->name)) && nb_json_set(r, "layout", nb_json_new_str(j->fmt->name)) &&
         nb_json_set(r, "bits", nb_json_new_int(o->bits)) && nb_json_set(r, "group_size", nb_json_new_int(o->group_size)) &&
         nb_json_set(r, "sym", nb_json_new_bool(o->sym)) &&
         nb_json_set(r, "scale_dtype", nb_json_new_str(nb_dtype_info(o->scale_dtype)->name));
    if (j->method->calibrates) {
        calib_sum(&j->calib, sum);
        ok = ok && nb_json_set(r, "calib_rows", nb_json_new_int((int64_t)j->calib.rows)) &&
             nb_json_set(r, "calib_len", nb_json_new_int((int64_t)j->calib.len)) && nb_json_set(r, "calib_sha256", nb_json_new_str(sum)) &&
             nb_json_set(r, "calib_replay", nb_json_new_str(o->replay_original ? "original" : "quantized"));
    }
    ok = ok && put_selection(j, r) && (!o->lm_head || nb_json_set(r, "lm_head", nb_json_new_bool(true)));
    if (j->method->calibrates && j->cfg.moe.n_experts)
        ok = ok && nb_json_set(r, "moe_calib", nb_json_new_str(o->all_experts ? "all" : "routed")) &&
             nb_json_set(r, "least_tokens", nb_json_new_int((int64_t)j->least_tokens));
    if (nb_quant_scales(o->method))
        ok = ok && nb_json_set(r, "awq_plain", nb_json_new_bool(o->plain)) && nb_json_set(r, "awq_clip", nb_json_new_int(o->clip)) &&
             nb_json_set(r, "awq_gqa_vo", nb_json_new_bool(o->shared_v)) && nb_json_set(r, "awq_inspect", nb_json_new_bool(o->inspect)) &&
             nb_json_set(r, "refine", nb_json_new_int(o->refine));
    if (nb_quant_solves(o->method))
        ok = ok && nb_json_set(r, "order", nb_json_new_str(orders[o->order])) &&
             nb_json_set(r, "static_groups", nb_json_new_bool(o->static_groups)) &&
             nb_json_set(r, "damp", nb_json_new_real(o->damp > 0 ? o->damp : NB_QUANTIZE_DAMP)) &&
             nb_json_set(r, "mse", nb_json_new_real(o->mse)) && nb_json_set(r, "gptaq", nb_json_new_real(o->gptaq)) &&
             nb_json_set(r, "refine", nb_json_new_int(o->refine));
    if (o->method == NB_QUANT_RTN)
        ok = ok && nb_json_set(r, "mse", nb_json_new_real(o->mse));
    if (!ok) {
        nb_json_free(r);
        return nb_enomem(err, "the recipe");
    }
    *out = r;
    return NB_OK;
}

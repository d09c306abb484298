/* api_jobs.c - offline work on checkpoints under its public names. */
#include <string.h>

#include "api/api_priv.h"
#include "base/mem.h"
#include "job/check.h"
#include "job/inspect.h"
#include "job/quantize.h"

/* The text that the program prints; frees `o`. */
static nb_status give_json(nb_json *o, char **out, nb_err *err)
{
    *out = o ? nb_json_dump(o, 2, false) : NULL;
    nb_json_free(o);
    return *out ? NB_OK : nb_enomem(err, "the report");
}

int nibble_inspect(const char *path, char **json, nibble_error *e)
{
    nb_err err = { 0 };
    nb_fp fp;
    nb_inspect in;
    nb_status rc;

    if (!path || !json)
        return nb_api_end(nb_api_null(&err, path ? "json" : "path"), &err, e);
    nb_fp_enter(&fp);
    *json = NULL;
    rc = nb_inspect_path(path, 0, &in, &err);
    if (rc == NB_OK)
        rc = give_json(nb_inspect_json(&in), json, &err);
    return nb_api_leave(&fp, rc, &err, e);
}

int nibble_check(const char *path, int threads, const nibble_host *host, char **json, nibble_error *e)
{
    nb_api_host bridge;
    nb_check_opts o = { .host = nb_api_bridge(&bridge, host) };
    nb_err err = { 0 };
    nb_fp fp;
    nb_check_sum sum;
    nb_report *report;
    nb_status rc;

    if (!path || !json)
        return nb_api_end(nb_api_null(&err, path ? "json" : "path"), &err, e);
    nb_fp_enter(&fp);
    *json = NULL;
    report = nb_report_new();
    rc = report ? nb_pool_open(&o.pool, threads, &err) : nb_enomem(&err, "the report");
    if (rc == NB_OK)
        rc = nb_check(path, &o, report, &sum, &err);
    if ((rc == NB_OK || rc == NB_NO) && give_json(nb_check_json(path, report, &sum, NB_SEV_WARN), json, &err) != NB_OK)
        rc = NB_ENOMEM;
    nb_pool_close(o.pool);
    nb_report_free(report);
    return nb_api_leave(&fp, rc, &err, e);
}

static nb_status quantize_opts(const nibble_quantize_options *o, nb_quantize_opts *to, nb_err *err)
{
    nb_status rc;

    if (!o || !o->method)
        return nb_api_null(err, o ? "o->method" : "o");
    rc = nb_quantize_method_find(o->method, &to->method, err);
    if (rc != NB_OK)
        return rc;
    to->order = NB_GPTQ_GAR;
    to->mse = NB_QUANTIZE_MSE;
    if (o->bits < 0)
        return nb_fail(err, NB_EARG, "quantize.bits", "", "%d bits; use 4", o->bits);
    to->bits = (unsigned)o->bits;
    to->group_size = o->group_size;
    to->sym = o->symmetric != 0;
    to->scale_dtype = NB_DT_F16;
    to->calib = o->calibration;
    to->clip = NB_QUANTIZE_CLIPS;
    to->force = o->force != 0;
    return NB_OK;
}

int nibble_quantize(const char *model, const char *out, const nibble_quantize_options *o, nibble_error *e)
{
    nb_api_host bridge;
    nb_quantize_opts qo = { .host = nb_api_bridge(&bridge, o ? o->host : NULL) };
    nb_quantize_result res;
    nb_err err = { 0 };
    nb_fp fp;
    nb_status rc;

    if (!model || !out)
        return nb_api_end(nb_api_null(&err, model ? "out" : "model"), &err, e);
    nb_fp_enter(&fp);
    rc = quantize_opts(o, &qo, &err);
    if (rc == NB_OK)
        rc = nb_pool_open(&qo.pool, o->threads, &err);
    if (rc == NB_OK)
        rc = nb_quantize(model, out, &qo, &res, &err);
    nb_pool_close(qo.pool);
    return nb_api_leave(&fp, rc, &err, e);
}

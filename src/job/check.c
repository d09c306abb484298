/* check.c - the order of the stages, and the verdict. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "job/check_priv.h"
#include "job/inferred.h"

/* The container: what cannot be opened is no finding but an error of its own class. */
static nb_status open_all(nb_checker *c, const char *path, nb_err *err)
{
    nb_status rc;

    if ((rc = nb_hfdir_open(path, &c->dir, err)) != NB_OK || (rc = nb_hfdir_config(c->dir, &c->config, err)) != NB_OK ||
        (rc = nb_open(path, &c->store, err)) != NB_OK || (rc = nb_hfdir_quant_config(c->dir, &c->qjson, &c->qsource, err)) != NB_OK)
        return rc;
    return c->store->notes ? nb_report_merge(c->report, c->store->notes) : NB_OK;
}

/* Packed tensors, if any, without a quantization config. */
static nb_status scan_inferred(nb_checker *c, nb_err *err)
{
    const bool told = nb_infer_said(&c->o->hint);
    char note[160];
    nb_err e = { 0 };
    const nb_status rc = nb_infer_scan(c->store, &c->o->hint, &c->inferred, &c->scan, note, sizeof note, &e);
    const nb_qspec *q = &c->scan.spec;
    const size_t n = c->scan.n_linears;

    if (rc != NB_OK) {
        if (strcmp(e.rule, "CFG-001") != 0)
            return nb_fail(err, rc, e.cls, e.rule, "%s", e.what);
        nb_err_at(&e, c->store->path, NULL);
        return nb_rule_report_err(c->report, &e);
    }
    if (!c->inferred)
        return NB_OK;
    if (told)
        return nb_report_add(c->report, NB_SEV_INFO, "cfg.quant_missing", "CFG-001", c->store->path, "", "",
                             "%zu linears without a quantization config are read as %s, %u bits, group size %" PRId64 ", as asked for.", n,
                             c->scan.format->name, q->bits, q->group_size);
    return nb_rule_warn(c->report, "CFG-001", c->store->path, NULL,
                        "Found %zu packed linears but no quantization_config, quantize_config.json or quant_config.json. Their shapes say "
                        "%s, %u bits, group size %" PRId64
                        "; they are checked as that, and other programs will not load them. \xe2\x86\x92 "
                        "Write a configuration: nibble convert MODEL --to %s -o DIR; or confirm with --format, --bits and --group-size.",
                        n, c->scan.format->name, q->bits, q->group_size, c->scan.format->name);
}

/* Quantization config and tensors. What the rules refuse is a finding; a layout that cannot be read yet is an error. */
static nb_status open_scan(nb_checker *c, nb_err *err)
{
    const size_t before = nb_report_count_sev(c->report, NB_SEV_REJECT);
    nb_err quiet = { 0 };
    nb_status rc;

    if (nb_json_is_null(c->qjson))
        return scan_inferred(c, err);
    if (nb_infer_said(&c->o->hint))
        return nb_infer_conflict(c->qsource, err);
    if (c->qjson)
        c->has_qcfg = nb_qconfig_parse(c->qjson, c->qsource, NULL, &c->qcfg, &quiet) == NB_OK;
    if (c->has_qcfg)
        nb_qrules_open(&c->qcfg, NULL, &c->rules, &quiet);
    rc = nb_scan_open(c->store, c->qjson, c->qsource, c->report, &c->scan, err);
    if (rc == NB_OK || rc == NB_ENOMEM)
        return rc;
    if (nb_report_count_sev(c->report, NB_SEV_REJECT) > before) { /* already told as findings */
        nb_err_clear(err);
        return NB_OK;
    }
    return rc;
}

/* The architecture, for names and sizes. Another one than ours leaves those rules out and says so. */
static nb_status open_plan(nb_checker *c, nb_err *err)
{
    nb_err local = { 0 };
    nb_status rc = nb_config_parse(c->config, &c->cfg, &local);

    if (rc == NB_OK) {
        rc = nb_plan_build(&c->cfg, c->store, &c->plan, &local);
        if (rc == NB_OK)
            c->has_plan = true;
        else
            nb_config_clear(&c->cfg);
    } else {
        nb_config_nearest(c->config, c->store, &local);
    }
    if (rc == NB_OK)
        return NB_OK;
    if (rc == NB_ENOMEM)
        return nb_enomem(err, "the plan of the model");
    if (rc == NB_EUNSUPPORTED)
        return nb_report_add(c->report, NB_SEV_WARN, local.cls, "", "config.json", "", "",
                             "%s; names and sizes were not compared with the architecture.", local.what);
    nb_err_at(&local, "config.json", NULL);
    if (strcmp(local.cls, "cfg.missing_tensor") == 0)
        snprintf(local.rule, sizeof local.rule, "NAM-003");
    return nb_rule_report_err(c->report, &local);
}

static void fill_sum(const nb_checker *c, nb_check_sum *sum)
{
    if (c->scan.format)
        snprintf(sum->format, sizeof sum->format, "%s", c->scan.format->name);
    sum->bits = c->scan.spec.bits;
    sum->group_size = c->scan.spec.group_size;
    sum->n_linears = c->scan.n_linears;
    sum->n_tensors = c->store->n_tensors;
    sum->n_files = c->store->n_files;
    sum->n_bytes = c->store->total_bytes;
}

nb_status nb_check(const char *path, const nb_check_opts *o, nb_report *report, nb_check_sum *sum, nb_err *err)
{
    nb_checker c = { .o = o, .report = report };
    nb_status rc;

    memset(sum, 0, sizeof *sum);
    if ((rc = open_all(&c, path, err)) != NB_OK || (rc = open_scan(&c, err)) != NB_OK || (rc = open_plan(&c, err)) != NB_OK ||
        (rc = nb_check_config(&c, err)) != NB_OK || (rc = nb_check_names(&c, err)) != NB_OK || (rc = nb_check_numbers(&c, err)) != NB_OK ||
        (rc = nb_check_values(&c, err)) != NB_OK || (rc = nb_check_order(&c, err)) != NB_OK || (rc = nb_store_still(c.store, err)) != NB_OK)
        goto done;
    fill_sum(&c, sum);
    rc = nb_report_count_sev(report, NB_SEV_REJECT) ? NB_NO : NB_OK;
done:
    nb_err_at(err, path, NULL);
    if (c.has_plan) {
        nb_plan_clear(&c.plan);
        nb_config_clear(&c.cfg);
    }
    nb_qrules_close(c.rules);
    nb_scan_clear(&c.scan);
    nb_json_free(c.inferred);
    nb_store_close(c.store);
    nb_hfdir_close(c.dir);
    return rc;
}

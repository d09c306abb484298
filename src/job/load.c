/* load.c - opening order of a model. */
#include "job/load.h"

#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"

static void log_notes(const nb_report *notes, const nb_host *host)
{
    for (size_t i = 0; notes && i < nb_report_count(notes); i++) {
        const nb_finding *f = nb_report_at(notes, i);
        nb_log(host, NB_LOG_WARN, "%s%s%s%s: %s%s%s", f->cls, *f->rule ? " [" : "", f->rule, *f->rule ? "]" : "", f->file,
               *f->file ? ": " : "", f->what);
    }
}

nb_status nb_load_store(nb_loaded *l, const char *path, const nb_host *host, nb_err *err)
{
    const nb_json *qcfg = NULL;
    const char *source = NULL;
    nb_status rc = l->dir ? NB_OK : nb_hfdir_open(path, &l->dir, err);

    if (rc == NB_OK)
        rc = nb_hfdir_config(l->dir, &l->config, err);
    if (rc == NB_OK)
        rc = nb_open(path, &l->store, err);
    if (rc == NB_OK)
        rc = nb_hfdir_quant_config(l->dir, &qcfg, &source, err);
    if (rc == NB_OK)
        rc = nb_scan_open(l->store, qcfg, source, NULL, &l->scan, err);
    if (rc == NB_OK)
        log_notes(l->store->notes, host);
    if (rc == NB_OK && l->scan.note[0])
        nb_log(host, NB_LOG_WARN, "%s", l->scan.note);
    nb_err_at(err, path, NULL);
    return rc;
}

nb_status nb_load_model(nb_loaded *l, const nb_model_opts *opts, nb_err *err)
{
    nb_status rc = nb_model_open(l->store, l->config, &l->scan, opts, &l->model, err);

    if (rc == NB_OK && !opts->lazy) {
        nb_scan_clear(&l->scan);
        memset(&l->scan, 0, sizeof l->scan);
        nb_store_close(l->store);
        l->store = NULL;
    }
    return rc;
}

nb_status nb_load_text(nb_loaded *l, const char *path, nb_err *err)
{
    const char *json, *config, *jinja;
    size_t n_json, n_config, n_jinja;
    nb_status rc = NB_OK;

    if (!l->dir)
        rc = nb_hfdir_open(path, &l->dir, err);
    if (rc == NB_OK)
        rc = nb_hfdir_file(l->dir, "tokenizer.json", &json, &n_json, err);
    if (rc != NB_OK)
        return rc;
    if (!json)
        return nb_fail(err, NB_EOPEN, "tok.missing", "FIL-010",
                       "no tokenizer.json in %s; the model can be inspected and converted but not chatted with", nb_hfdir_path(l->dir));
    rc = nb_hfdir_file(l->dir, "tokenizer_config.json", &config, &n_config, err);
    if (rc == NB_OK)
        rc = nb_hfdir_file(l->dir, "chat_template.jinja", &jinja, &n_jinja, err);
    if (rc == NB_OK)
        rc = nb_tokenizer_open(json, n_json, config, n_config, &l->tok, err);
    if (rc == NB_OK)
        rc = nb_chat_open(config, n_config, jinja, n_jinja, &l->chat, err);
    nb_err_at(err, path, NULL);
    return rc;
}

nb_status nb_load_kern(const char *cap, const nb_kern **out, nb_err *err)
{
    const unsigned have = nb_cpu_features();
    char esc[NB_ESC_CAP], names[128] = "";

    *out = cap ? nb_kern_find(cap) : nb_kern_pick(have);
    if (!*out) {
        for (size_t i = 0; i < nb_kern_count(); i++) {
            const size_t n = strlen(names);
            snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", nb_kern_at(i)->name);
        }
        return nb_fail(err, NB_EARG, "arg.cpu", "", "this build has no kernels named \"%s\"; it has %s",
                       nb_esc(esc, sizeof esc, cap, strlen(cap)), names);
    }
    if ((*out)->need & ~have)
        return nb_fail(err, NB_EUNSUPPORTED, "cpu.features", "", "this processor cannot run the %s kernels; the best here is %s",
                       (*out)->name, nb_kern_pick(have)->name);
    return NB_OK;
}

void nb_load_close(nb_loaded *l)
{
    nb_chat_close(l->chat);
    nb_tokenizer_close(l->tok);
    nb_model_close(l->model);
    nb_scan_clear(&l->scan);
    nb_store_close(l->store);
    nb_hfdir_close(l->dir);
    memset(l, 0, sizeof *l);
}

/* load.c - opening order of a model. */
#include "job/load.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "base/mem.h"
#include "job/inferred.h"
#include "text/toksource.h"

nb_status nb_load_store(nb_loaded *l, const char *path, const nb_host *host, nb_err *err)
{
    const nb_json *qcfg = NULL;
    const char *source = NULL;
    nb_status rc = l->dir ? NB_OK : nb_hfdir_open(path, &l->dir, err);

    if (rc == NB_OK)
        rc = nb_hfdir_config(l->dir, &l->config, err);
    if (rc == NB_OK && nb_hfdir_warning(l->dir))
        nb_log(host, NB_LOG_WARN, "%s: %s: %s", nb_hfdir_warning(l->dir)->cls, nb_hfdir_warning(l->dir)->file,
               nb_hfdir_warning(l->dir)->what);
    if (rc == NB_OK)
        rc = nb_open(path, &l->store, err);
    if (rc == NB_OK)
        rc = nb_hfdir_quant_config(l->dir, &qcfg, &source, err);
    if (rc == NB_OK && nb_json_is_null(qcfg)) {
        char note[160];
        rc = nb_infer_scan(l->store, NULL, &l->inferred, &l->scan, note, sizeof note, err);
        if (rc == NB_OK && l->inferred)
            nb_log(host, NB_LOG_WARN, "%s", note);
    } else if (rc == NB_OK) {
        rc = nb_scan_open(l->store, qcfg, source, NULL, &l->scan, err);
    }
    if (rc == NB_OK)
        nb_report_log(l->store->notes, host);
    if (rc == NB_OK && l->scan.note[0])
        nb_log(host, NB_LOG_WARN, "%s", l->scan.note);
    nb_err_at(err, path, NULL);
    return rc;
}

/* Every token of the vocabulary must have a row of the embedding. Special tokens added later without one (a padding token
 * by a quantizer) are common, and harmless until a prompt has them: only a warning. */
static nb_status check_vocab(const nb_loaded *l, const nb_host *host, nb_err *err)
{
    const size_t rows = nb_model_config(l->model)->vocab, size = nb_tokenizer_size(l->tok);
    char esc[NB_ESC_CAP];
    size_t n;

    for (size_t id = rows; id < size && id <= INT32_MAX; id++) {
        const char *piece = nb_tokenizer_piece(l->tok, (int32_t)id, &n);
        if (!piece)
            continue;
        nb_esc(esc, sizeof esc, piece, n);
        if (!nb_tokenizer_is_special(l->tok, (int32_t)id))
            return nb_fail(
                err, NB_EFORMAT, "cfg.vocab_mismatch", "",
                "the tokenizer has token %zu (\"%s\"), the model %zu embedding rows: tokenizer and weights are of different models; "
                "fetch the files again from one revision",
                id, esc, rows);
        nb_log(host, NB_LOG_WARN, "cfg.vocab_mismatch: special token %zu (\"%s\") has no embedding row (%zu rows)", id, esc, rows);
    }
    return NB_OK;
}

nb_status nb_load_model(nb_loaded *l, const nb_model_opts *opts, nb_err *err)
{
    nb_status rc = nb_model_open(l->store, l->config, &l->scan, opts, &l->model, err);

    if (rc == NB_OK && l->tok)
        rc = check_vocab(l, opts->host, err);
    if (rc == NB_OK && !opts->lazy) {
        nb_scan_clear(&l->scan);
        memset(&l->scan, 0, sizeof l->scan);
        nb_store_close(l->store);
        l->store = NULL;
    }
    return rc;
}

/* Files of the directory that matter, one after the other: a large vocabulary that will not be used is not read. */
static nb_status read_source(nb_hfdir *d, nb_toksource *src, nb_err *err)
{
    nb_tokfiles f = { 0 };
    nb_status rc = NB_OK;

    for (int i = 0; rc == NB_OK && i < NB_TOK_N; i++) {
        if (!nb_tokfiles_skip(&f, (nb_tokfile_id)i))
            rc = nb_hfdir_file(d, nb_tokfile_name[i], &f.f[i].p, &f.f[i].n, err);
    }
    return rc == NB_OK ? nb_toksource_init(src, &f, err) : rc;
}

nb_status nb_load_tokenizer(nb_hfdir *d, nb_tokenizer **out, nb_err *err)
{
    nb_toksource src = { 0 };
    nb_status rc = read_source(d, &src, err);

    *out = NULL;
    if (rc == NB_OK)
        rc = nb_tokenizer_open(src.json, src.n_json, src.config, src.n_config, out, err);
    nb_toksource_clear(&src);
    nb_err_at(err, nb_hfdir_path(d), NULL);
    return rc;
}

nb_status nb_load_text(nb_loaded *l, const char *path, nb_err *err)
{
    nb_toksource src = { 0 };
    const char *jinja;
    size_t n_jinja;
    nb_status rc = NB_OK;

    if (!l->dir)
        rc = nb_hfdir_open(path, &l->dir, err);
    if (rc == NB_OK)
        rc = read_source(l->dir, &src, err);
    if (rc == NB_OK)
        rc = nb_hfdir_file(l->dir, "chat_template.jinja", &jinja, &n_jinja, err);
    if (rc == NB_OK)
        rc = nb_tokenizer_open(src.json, src.n_json, src.config, src.n_config, &l->tok, err);
    if (rc == NB_OK)
        rc = nb_chat_open(src.config, src.n_config, jinja, n_jinja, &l->chat, err);
    nb_toksource_clear(&src);
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
    nb_json_free(l->inferred);
    nb_store_close(l->store);
    nb_hfdir_close(l->dir);
    memset(l, 0, sizeof *l);
}

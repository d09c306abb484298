/* qresume.c - finished layers into the journal, and back after a job that ended early. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "job/quantize_priv.h"

/* Work of methods that keep no activations is recorded when so many seconds of it would be lost. */
#define LOSS 20.0

/* ---- rows ---- */

nb_status nb_qresume_row(nb_qjob *j, const nb_quantize_row *r, nb_err *err)
{
    nb_json *o = nb_json_new_obj();
    const bool ok = nb_json_set(o, "name", nb_json_new_str(r->name)) && nb_json_set(o, "n", nb_json_new_int((int64_t)r->n)) &&
                    nb_json_set(o, "k", nb_json_new_int((int64_t)r->k)) && nb_json_set(o, "before", nb_json_new_real(r->before)) &&
                    nb_json_set(o, "after", nb_json_new_real(r->after)) && nb_json_set(o, "ratio", nb_json_new_real(r->ratio)) &&
                    nb_json_set(o, "damp", nb_json_new_real(r->damp)) && nb_json_set(o, "tokens", nb_json_new_int((int64_t)r->tokens)) &&
                    nb_json_set(o, "expert", nb_json_new_bool(r->expert)) && nb_json_set(o, "zeros", nb_json_new_int((int64_t)r->zeros)) &&
                    nb_json_set(o, "note", nb_json_new_str(r->note)) && nb_json_set(o, "seconds", nb_json_new_real(r->seconds));

    if (!j->rows)
        j->rows = nb_json_new_arr();
    if (ok)
        return nb_json_push(j->rows, o) ? NB_OK : nb_enomem(err, "the record of the job");
    nb_json_free(o);
    return nb_enomem(err, "the record of the job");
}

static void tell_again(nb_qjob *j, const nb_json *block)
{
    const nb_json *rows = nb_json_get(block, "rows");
    const int64_t resident = nb_json_int(nb_json_get(block, "resident"), 0), peak = nb_json_int(nb_json_get(block, "peak"), 0);
    const nb_quantize_layer l = { .layer = (size_t)nb_json_int(nb_json_get(block, "layer"), 0),
                                  .seconds = nb_json_num(nb_json_get(block, "seconds"), (double)NAN),
                                  .resident = resident > 0 ? (uint64_t)resident : 0,
                                  .peak = peak > 0 ? (uint64_t)peak : 0,
                                  .resumed = true };

    for (size_t i = 0; i < nb_json_len(rows); i++) {
        const nb_json *o = nb_json_at(rows, i);
        nb_quantize_row r = { .name = nb_json_str(nb_json_get(o, "name"), ""),
                              .n = (size_t)nb_json_int(nb_json_get(o, "n"), 0),
                              .k = (size_t)nb_json_int(nb_json_get(o, "k"), 0),
                              .before = nb_json_num(nb_json_get(o, "before"), 0),
                              .after = nb_json_num(nb_json_get(o, "after"), 0),
                              .ratio = nb_json_num(nb_json_get(o, "ratio"), -1),
                              .damp = nb_json_num(nb_json_get(o, "damp"), -1),
                              .tokens = (size_t)nb_json_int(nb_json_get(o, "tokens"), 0),
                              .zeros = (size_t)nb_json_int(nb_json_get(o, "zeros"), 0),
                              .expert = nb_json_bool(nb_json_get(o, "expert"), false),
                              .note = nb_json_str(nb_json_get(o, "note"), ""),
                              .seconds = nb_json_num(nb_json_get(o, "seconds"), 0),
                              .resumed = true };
        nb_qjob_tell(j, &r);
    }
    if (j->o->on_layer)
        j->o->on_layer(j->o->user, &l);
}

/* ---- recording ---- */

/* Sums of what the layers since the last record wrote, then the record. */
static nb_status record(nb_qjob *j, size_t layer, nb_err *err)
{
    nb_block *b = j->method->block ? j->method->block(j) : NULL;
    const bool last = layer + 1 == j->cfg.n_layers && !nb_qjob_solves_head(j);
    nb_json *blocks = j->pending, *done = nb_json_new_arr();
    bool ok = done != NULL;
    nb_status rc = nb_qout_sync(j->out, err);

    j->pending = NULL;
    for (size_t i = 0; rc == NB_OK && ok && i < nb_json_len(blocks); i++) {
        nb_json *o = nb_json_copy(nb_json_at(blocks, i));
        char sum[65];

        rc = nb_qout_sum(j->out, nb_json_get(o, "tensors"), sum, err);
        ok = nb_json_set(o, "sha256", nb_json_new_str(sum)) && nb_json_push(done, o);
    }
    nb_json_free(blocks);
    if (rc == NB_OK && !ok)
        rc = nb_enomem(err, "the record of the job");
    if (rc != NB_OK) {
        nb_json_free(done);
        return rc;
    }
    j->recorded_at = nb_now();
    return nb_journal_add(j->journal, done, b && !last ? &b->h_mem : NULL, b ? b->tokens * b->width : 0, err);
}

nb_status nb_qresume_layer(nb_qjob *j, const nb_quantize_layer *l, nb_err *err)
{
    nb_json *o = nb_json_new_obj(), *names = nb_qout_taken(j->out);
    bool ok = names && nb_json_set(o, "layer", nb_json_new_int((int64_t)l->layer)) && nb_json_set(o, "tensors", names) &&
              nb_json_set(o, "rows", j->rows ? j->rows : nb_json_new_arr()) && nb_json_set(o, "seconds", nb_json_new_real(l->seconds)) &&
              nb_json_set(o, "resident", nb_json_new_int((int64_t)l->resident)) &&
              nb_json_set(o, "peak", nb_json_new_int((int64_t)l->peak));

    j->rows = NULL;
    if (!j->pending)
        j->pending = nb_json_new_arr();
    ok = ok && nb_json_push(j->pending, o);
    if (!ok)
        return nb_enomem(err, "the record of the job");
    return j->method->block || nb_now() - j->recorded_at > LOSS ? record(j, l->layer, err) : NB_OK;
}

/* ---- going on ---- */

/* Are the tensors of every finished layer in the files as they were written? */
static nb_status check(nb_qjob *j, size_t *bad, nb_err *err)
{
    nb_status rc = NB_OK;

    *bad = SIZE_MAX;
    for (size_t i = 0; rc == NB_OK && *bad == SIZE_MAX && i < nb_journal_blocks(j->journal); i++) {
        const nb_json *o = nb_journal_block(j->journal, i);
        nb_err local = { 0 };
        char sum[65] = "";

        if (nb_cancelled(j->o->host))
            return nb_fail(err, NB_ECANCELED, "canceled", "", "stopped on request");
        rc = nb_qout_sum(j->out, nb_json_get(o, "tensors"), sum, &local);
        if (rc == NB_EREAD || rc == NB_EINTERNAL || strcmp(sum, nb_json_str(nb_json_get(o, "sha256"), "")) != 0) {
            rc = NB_OK;
            *bad = i;
        } else if (rc != NB_OK && err) {
            *err = local;
        }
    }
    return rc;
}

nb_status nb_qresume_open(nb_qjob *j, const char *out, nb_err *err)
{
    char *recipe = nb_json_dump(j->recipe, 0, true);
    size_t bad = SIZE_MAX;
    nb_status rc =
        recipe ? nb_qout_begin(j->out, out, nb_journal_staging(j->journal), j->o->force, recipe, err) : nb_enomem(err, "the recipe");

    if (rc == NB_OK)
        rc = check(j, &bad, err);
    if (rc == NB_OK && bad == SIZE_MAX && !nb_journal_good_inputs(j->journal))
        bad = nb_journal_blocks(j->journal);
    if (rc == NB_OK && bad != SIZE_MAX) {
        nb_log(j->o->host, NB_LOG_WARN, "job.damaged: what the unfinished job kept of layer %zu is not what was written; it begins anew",
               bad);
        rc = nb_journal_forget(j->journal, err);
        if (rc == NB_OK)
            rc = nb_qout_begin(j->out, out, nb_journal_staging(j->journal), j->o->force, recipe, err);
    }
    nb_free(recipe);
    for (size_t i = 0; rc == NB_OK && i < nb_journal_blocks(j->journal); i++)
        rc = nb_qout_have(j->out, nb_json_get(nb_journal_block(j->journal, i), "tensors"), err);
    return rc;
}

/* Rows of finished layers, told once more. */
void nb_qresume_tell(nb_qjob *j)
{
    j->first = j->res.resumed = nb_journal_blocks(j->journal);
    for (size_t i = 0; i < j->first; i++)
        tell_again(j, nb_journal_block(j->journal, i));
}

nb_status nb_qresume_inputs(nb_qjob *j, nb_err *err)
{
    nb_block *b = j->method->block ? j->method->block(j) : NULL;

    j->recorded_at = nb_now();
    if (!b || j->first == 0 || (j->first == j->cfg.n_layers && !nb_qjob_solves_head(j)))
        return NB_OK;
    return nb_journal_inputs(j->journal, &b->h_mem, b->tokens * b->width, err);
}

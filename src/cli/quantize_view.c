/* quantize_view.c - see quantize_view.h. */
#include "cli/quantize_view.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/mem.h"

/* ---- plan ---- */

static void put_time(char out[32], double seconds)
{
    if (seconds < 90)
        snprintf(out, 32, "%.0f s", seconds < 1 ? 1 : seconds);
    else if (seconds < 5400)
        snprintf(out, 32, "%.0f min", seconds / 60);
    else
        snprintf(out, 32, "%.1f h", seconds / 3600);
}

static nb_json *plan_json(const nb_qview *v, const nb_quantize_plan *p)
{
    nb_json *j = nb_json_new_obj();

    if (nb_json_set(j, "event", nb_json_new_str("plan")) && nb_json_set(j, "method", nb_json_new_str(nb_quantize_method(p->method).name)) &&
        nb_json_set(j, "bits", nb_json_new_int(v->o->bits)) && nb_json_set(j, "group_size", nb_json_new_int(v->o->group_size)) &&
        nb_json_set(j, "sym", nb_json_new_bool(v->o->sym)) && nb_json_set(j, "layout", nb_json_new_str(p->layout)) &&
        nb_json_set(j, "layers", nb_json_new_int((int64_t)p->layers)) && nb_json_set(j, "modules", nb_json_new_int((int64_t)p->modules)) &&
        nb_json_set(j, "weights", nb_json_new_int((int64_t)p->params)) && nb_json_set(j, "rows", nb_json_new_int((int64_t)p->rows)) &&
        nb_json_set(j, "tokens", nb_json_new_int((int64_t)(p->rows * p->len))) &&
        nb_json_set(j, "documents", nb_json_new_int((int64_t)p->docs)) &&
        nb_json_set(j, "empty_documents", nb_json_new_int((int64_t)p->empty)) &&
        nb_json_set(j, "bytes_in", nb_json_new_int((int64_t)p->in_bytes)) &&
        nb_json_set(j, "bytes_out", nb_json_new_int((int64_t)p->out_bytes)) &&
        nb_json_set(j, "disk_bytes", nb_json_new_int((int64_t)p->disk_bytes)) &&
        nb_json_set(j, "peak_bytes", nb_json_new_int((int64_t)p->peak_bytes)) &&
        nb_json_set(j, "least_bytes", nb_json_new_int((int64_t)p->least_bytes)) &&
        nb_json_set(j, "activations", nb_json_new_str(p->spill ? "files" : "memory")) &&
        nb_json_set(j, "seconds", nb_json_new_real(p->seconds)) && nb_json_set(j, "kernel", nb_json_new_str(p->kernel)) &&
        nb_json_set(j, "threads", nb_json_new_int(p->threads)))
        return j;
    nb_json_free(j);
    return NULL;
}

static void log_line(nb_qview *v, const nb_json *j)
{
    char *text = j ? nb_json_dump(j, 0, true) : NULL;

    v->failed = v->failed || !text;
    if (text)
        fprintf(v->log, "%s\n", text);
    nb_free(text);
    fflush(v->log);
}

void nb_qview_plan(void *user, const nb_quantize_plan *p)
{
    nb_qview *v = user;
    char a[32], b[32], docs[96] = "";

    nb_cli_note(v->cli, "plan: %s, %u bits, %s, layout %s", nb_quantize_method(p->method).title, v->o->bits,
                v->o->sym ? "symmetric" : "asymmetric", p->layout);
    nb_cli_note(v->cli, "  linears      %zu in %zu layers, %.1f M weights", p->modules, p->layers, (double)p->params / 1e6);
    if (v->o->group_size > 0)
        nb_cli_note(v->cli, "  groups       %lld inputs", (long long)v->o->group_size);
    else
        nb_cli_note(v->cli, "  groups       one per output");
    if (p->docs > 1)
        snprintf(docs, sizeof docs, ", from %zu documents (%zu empty ones left out)", p->docs, p->empty);
    if (p->rows)
        nb_cli_note(v->cli, "  calibration  %zu rows of %zu tokens%s", p->rows, p->len, docs);
    nb_cli_note(v->cli, "  size         %s -> %s", nb_human_bytes(a, sizeof a, p->in_bytes), nb_human_bytes(b, sizeof b, p->out_bytes));
    nb_human_bytes(a, sizeof a, p->peak_bytes);
    if (p->cap_bytes == UINT64_MAX)
        nb_cli_note(v->cli, "  memory       about %s at peak", a);
    else
        nb_cli_note(v->cli, "  memory       about %s at peak, cap %s%s", a, nb_human_bytes(b, sizeof b, p->cap_bytes),
                    p->spill ? "; activations are in files" : "");
    nb_cli_note(v->cli, "  disk         %s while it runs", nb_human_bytes(a, sizeof a, p->disk_bytes));
    put_time(a, p->seconds);
    nb_cli_note(v->cli, "  time         about %s (%s kernels, %d thread%s)", a, p->kernel, p->threads, p->threads == 1 ? "" : "s");
    if (v->log || (v->rows && v->o->plan_only)) {
        v->plan = plan_json(v, p);
        v->failed = v->failed || !v->plan;
    }
    if (v->log)
        log_line(v, v->plan);
    if (v->page)
        nb_qpage_plan(v->page, p);
}

/* ---- modules ---- */

static nb_json *row_json(const nb_quantize_row *r)
{
    nb_json *j = nb_json_new_obj();

    if (nb_json_set(j, "module", nb_json_new_str(r->name)) && nb_json_set(j, "n", nb_json_new_int((int64_t)r->n)) &&
        nb_json_set(j, "k", nb_json_new_int((int64_t)r->k)) && nb_json_set(j, "error_rtn", nb_json_new_real(r->before)) &&
        nb_json_set(j, "error", nb_json_new_real(r->after)) &&
        nb_json_set(j, "ratio", r->ratio < 0 ? nb_json_new_null() : nb_json_new_real(r->ratio)) &&
        nb_json_set(j, "damp", r->damp < 0 ? nb_json_new_null() : nb_json_new_real(r->damp)) &&
        nb_json_set(j, "samples", nb_json_new_int((int64_t)r->tokens)) && nb_json_set(j, "expert", nb_json_new_bool(r->expert)) &&
        nb_json_set(j, "zero_groups", nb_json_new_int((int64_t)r->zeros)) && nb_json_set(j, "note", nb_json_new_str(r->note)) &&
        nb_json_set(j, "seconds", nb_json_new_real(r->seconds)) && nb_json_set(j, "resumed", nb_json_new_bool(r->resumed)))
        return j;
    nb_json_free(j);
    return NULL;
}

void nb_qview_row(void *user, const nb_quantize_row *r)
{
    nb_qview *v = user;
    char how[32] = "ratio    -", size[32], zeros[48] = "";
    nb_json *j;

    if (v->page)
        nb_qpage_row(v->page, r);
    if (r->damp >= 0)
        snprintf(how, sizeof how, "damp %.2f", r->damp);
    else if (r->ratio >= 0)
        snprintf(how, sizeof how, "ratio %.2f", r->ratio);
    snprintf(size, sizeof size, "%zux%zu", r->n, r->k);
    if (r->zeros)
        snprintf(zeros, sizeof zeros, "  %zu groups are zero", r->zeros);
    if (!r->resumed && (!v->cli->tty_err || v->cli->verbose || *r->note)) /* on a terminal the bar tells */
        nb_cli_note(v->cli, "%4zu/%-4zu %-36s %11s  error %.3e -> %.3e  %s  %6.2f s%s%s%s", r->done, r->total, r->name, size, r->before,
                    r->after, how, r->seconds, zeros, *r->note ? "  " : "", r->note);
    v->failed = !nb_coverage_add(&v->cover, r) || v->failed;
    if (!v->rows && !v->log)
        return;
    j = row_json(r);
    if (v->log) {
        if (!nb_json_set(j, "event", nb_json_new_str("module")))
            v->failed = true;
        log_line(v, j);
        nb_json_remove(j, "event");
    }
    if (v->rows)
        v->failed = !nb_json_push(v->rows, j) || v->failed;
    else
        nb_json_free(j);
}

void nb_qview_layer(void *user, const nb_quantize_layer *l)
{
    nb_qview *v = user;
    nb_json *j;

    if (v->page)
        nb_qpage_layer(v->page, l);
    if (!v->log)
        return;
    j = nb_json_new_obj();
    if (nb_json_set(j, "event", nb_json_new_str("layer")) && nb_json_set(j, "layer", nb_json_new_int((int64_t)l->layer)) &&
        nb_json_set(j, "seconds", isfinite(l->seconds) ? nb_json_new_real(l->seconds) : nb_json_new_null()) &&
        nb_json_set(j, "resident_bytes", nb_json_new_int((int64_t)l->resident)) &&
        nb_json_set(j, "peak_bytes", nb_json_new_int((int64_t)l->peak)) && nb_json_set(j, "resumed", nb_json_new_bool(l->resumed)))
        log_line(v, j);
    else
        v->failed = true;
    nb_json_free(j);
}

/* ---- log ---- */

nb_status nb_qview_open_log(nb_qview *v, const char *path, nb_err *err)
{
    v->log = fopen(path, "we");
    if (v->log)
        return NB_OK;
    nb_fail(err, NB_EWRITE, "out.write", "", "the log cannot be written: %s", strerror(errno));
    nb_err_at(err, path, NULL);
    return NB_EWRITE;
}

static nb_json *result_json(const nb_quantize_result *res)
{
    nb_json *j = nb_json_new_obj();

    if (nb_json_set(j, "seconds", nb_json_new_real(res->seconds)) &&
        nb_json_set(j, "peak_bytes", nb_json_new_int((int64_t)res->peak_bytes)) &&
        nb_json_set(j, "fallbacks", nb_json_new_int((int64_t)res->fallbacks)) &&
        nb_json_set(j, "resumed_layers", nb_json_new_int((int64_t)res->resumed)) &&
        nb_json_set(j, "mean_error", nb_json_new_real(res->mean_after)) &&
        nb_json_set(j, "mean_error_rtn", nb_json_new_real(res->mean_before)))
        return j;
    nb_json_free(j);
    return NULL;
}

nb_status nb_qview_close_log(nb_qview *v, const char *path, const nb_quantize_result *res, nb_err *err)
{
    nb_status rc = NB_OK;
    bool bad;

    if (!v->log)
        return NB_OK;
    if (res) {
        nb_json *j = result_json(res);
        v->failed = !nb_json_set(j, "event", nb_json_new_str("end")) || v->failed;
        log_line(v, j);
        nb_json_free(j);
    }
    bad = ferror(v->log) != 0;
    if ((fclose(v->log) != 0 || bad) && res) {
        rc = nb_fail(err, NB_EWRITE, "out.write", "", "the log could not be written; the model is complete");
        nb_err_at(err, path, NULL);
    }
    v->log = NULL;
    return rc;
}

/* ---- end ---- */

nb_status nb_qview_finish(nb_qview *v, const char *out, const nb_quantize_result *res, nb_err *err)
{
    char peak[32];
    bool ok;
    nb_json *j;

    if (v->o->plan_only) {
        if (v->plan && v->rows) {
            nb_json_remove(v->plan, "event");
            nb_cli_json(v->plan);
        }
        return v->failed ? nb_enomem(err, "the plan") : NB_OK;
    }
    nb_coverage_print(&v->cover, v->cli);
    nb_cli_note(v->cli, "%s: %zu linears in %.1f s, mean error %.3e (plain rounding %.3e), %zu fell back, peak memory %s", out,
                res->modules, res->seconds, res->mean_after, res->mean_before, res->fallbacks,
                nb_human_bytes(peak, sizeof peak, res->peak_bytes));
    if (!v->rows)
        return NB_OK;
    j = result_json(res);
    ok = nb_json_set(j, "output", nb_json_new_str(out)) &&
         nb_json_set(j, "method", nb_json_new_str(nb_quantize_method(v->o->method).name)) &&
         nb_json_set(j, "bits", nb_json_new_int(v->o->bits)) && nb_json_set(j, "group_size", nb_json_new_int(v->o->group_size)) &&
         nb_json_set(j, "sym", nb_json_new_bool(v->o->sym)) && nb_json_set(j, "experts", nb_coverage_json(&v->cover)) &&
         nb_json_set(j, "modules", v->rows);
    v->rows = NULL; /* j's now, or freed by the failed set */
    if (ok && !v->failed)
        nb_cli_json(j);
    nb_json_free(j);
    return ok && !v->failed ? NB_OK : nb_enomem(err, "the result");
}

/* check_json.c - the findings of a check as JSON. */
#include <string.h>

#include "job/check.h"

const char *nb_check_severity(nb_severity s)
{
    static const char *const name[] = { [NB_SEV_INFO] = "note", [NB_SEV_WARN] = "warning", [NB_SEV_REJECT] = "error" };

    return name[s];
}

const char *nb_check_short_file(const char *path, const char *file)
{
    const size_t n = strlen(path);

    if (n == 0 || strncmp(file, path, n) != 0 || (file[n] != '/' && path[n - 1] != '/'))
        return file;
    for (file += n; *file == '/';)
        file++;
    return file;
}

static nb_json *finding_json(const nb_finding *f, const char *path)
{
    nb_json *o = nb_json_new_obj();

    if (o && nb_json_set(o, "severity", nb_json_new_str(nb_check_severity(f->sev))) && nb_json_set(o, "rule", nb_json_new_str(f->rule)) &&
        nb_json_set(o, "class", nb_json_new_str(f->cls)) && nb_json_set(o, "file", nb_json_new_str(nb_check_short_file(path, f->file))) &&
        nb_json_set(o, "subject", nb_json_new_str(f->subject)) && nb_json_set(o, "message", nb_json_new_str(f->what)) &&
        nb_json_set(o, "next", nb_json_new_str(f->next)))
        return o;
    nb_json_free(o);
    return NULL;
}

/* A path need not be UTF-8; a JSON string must. */
static nb_json *path_json(const char *path)
{
    char esc[NB_ESC_CAP];
    nb_json *s = nb_json_new_str(path);

    return s ? s : nb_json_new_str(nb_esc(esc, sizeof esc, path, strlen(path)));
}

nb_json *nb_check_json(const char *path, const nb_report *r, const nb_check_sum *s, nb_severity least)
{
    const size_t errors = nb_report_count_sev(r, NB_SEV_REJECT);
    nb_json *o = nb_json_new_obj(), *list = nb_json_new_arr();
    bool ok = o && list;

    for (size_t i = 0; ok && i < nb_report_count(r); i++)
        if (nb_report_at(r, i)->sev >= least)
            ok = nb_json_push(list, finding_json(nb_report_at(r, i), path));
    ok = ok && nb_json_set(o, "path", path_json(path)) && nb_json_set(o, "ok", nb_json_new_bool(errors == 0)) &&
         nb_json_set(o, "format", s->format[0] ? nb_json_new_str(s->format) : nb_json_new_null());
    if (ok && s->format[0])
        ok = nb_json_set(o, "bits", nb_json_new_int(s->bits)) && nb_json_set(o, "group_size", nb_json_new_int(s->group_size));
    ok = ok && nb_json_set(o, "linears", nb_json_new_int((int64_t)s->n_linears)) &&
         nb_json_set(o, "tensors", nb_json_new_int((int64_t)s->n_tensors)) &&
         nb_json_set(o, "bytes", nb_json_new_int((int64_t)s->n_bytes)) && nb_json_set(o, "errors", nb_json_new_int((int64_t)errors)) &&
         nb_json_set(o, "warnings", nb_json_new_int((int64_t)nb_report_count_sev(r, NB_SEV_WARN)));
    if (ok) {
        ok = nb_json_set(o, "findings", list);
        list = NULL;
    }
    if (ok)
        return o;
    nb_json_free(list);
    nb_json_free(o);
    return NULL;
}

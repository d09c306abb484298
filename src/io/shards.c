/* shards.c - model.safetensors.index.json, or pytorch_model.bin.index.json, and its shards as one store.
 *
 * The index alone decides which file a tensor comes from (IX-07). Names from it are single path components (IX-02).
 * Every shard header is checked before the store is handed out. Rules IX of hardening 5.4, FIL of formats 7.1. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/strmap.h"
#include "io/io.h"
#include "io/io_priv.h"

typedef struct shard {
    const char *name;
    const char *first; /* a tensor mapped to it */
    size_t n_mapped;
    nb_store *store;
} shard;

typedef struct shards_store {
    nb_store base;
    nb_arena arena;
    nb_report *notes;
    shard *shards;
    size_t n_shards;
    const char *dir;
    const char *index; /* path of the index */
    bool torch;        /* shards are PyTorch archives */
} shards_store;

static void shards_close(nb_store *base)
{
    shards_store *s = (shards_store *)base;

    nb_store_unindex(base);
    for (size_t i = 0; i < s->n_shards; i++)
        nb_store_close(s->shards[i].store);
    nb_report_free(s->notes);
    nb_arena_clear(&s->arena);
    nb_free(s);
}

static void shards_drop(const nb_store *base, const nb_tensor *t)
{
    nb_store_drop(((const shards_store *)base)->shards[t->index].store, t);
}

static nb_status shards_still(nb_store *base, nb_err *err)
{
    shards_store *s = (shards_store *)base;
    nb_status rc = NB_OK;

    for (size_t i = 0; i < s->n_shards && rc == NB_OK; i++)
        rc = nb_store_still(s->shards[i].store, err);
    return rc;
}

static const nb_store_ops shards_ops = { .close = shards_close, .drop = shards_drop, .still = shards_still };

/* IX-02: a plain file name, nothing that could lead elsewhere. */
static bool plain_name(const char *s, size_t n)
{
    if (n == 0 || n > 255 || strlen(s) != n || strcmp(s, ".") == 0 || strcmp(s, "..") == 0)
        return false;
    return !strchr(s, '/') && !strchr(s, '\\') && !strchr(s, ':');
}

static nb_status check_name(const char *tensor, const nb_json *v, bool *torch, nb_err *err)
{
    const char *name = nb_json_str(v, NULL);
    char esc[NB_ESC_CAP];
    nb_status rc = NB_OK;

    if (!name)
        rc = nb_fail(err, NB_EFORMAT, "idx.type", "", "the shard of a tensor is not a text");
    else if (!plain_name(name, nb_json_str_len(v)))
        rc = nb_fail(err, NB_EFORMAT, "idx.unsafe_path", "", "shard name \"%s\" is not a plain file name",
                     nb_esc(esc, sizeof esc, name, nb_json_str_len(v)));
    else if (nb_torch_name(name))
        *torch = true;
    else if (!nb_ends_with(name, ".safetensors"))
        rc = nb_fail(err, NB_EFORMAT, "idx.shard_name", "", "shard name \"%s\" does not end in .safetensors",
                     nb_esc(esc, sizeof esc, name, strlen(name)));
    if (rc != NB_OK)
        nb_err_at(err, NULL, tensor);
    return rc;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const shard *)a)->name, ((const shard *)b)->name);
}

/* The distinct shards of the weight map, in name order. */
static nb_status list_shards(shards_store *s, const nb_json *map, nb_err *err)
{
    const size_t n = nb_json_len(map);
    nb_strmap *seen = nb_strmap_new(64);
    bool torch = false, tensors = false, had;
    uint64_t at;
    size_t cap = 0;
    nb_status rc = seen ? NB_OK : nb_enomem(err, "the shard list");

    for (size_t i = 0; i < n && rc == NB_OK; i++) {
        const char *key, *name;
        const nb_json *v = nb_json_member(map, i, &key);
        bool is_torch = false;
        rc = check_name(key, v, &is_torch, err);
        if (rc != NB_OK)
            break;
        torch = torch || is_torch;
        tensors = tensors || !is_torch;
        name = nb_json_str(v, "");
        rc = nb_strmap_put(seen, name, strlen(name), s->n_shards, &had);
        if (rc != NB_OK)
            rc = nb_enomem(err, "the shard list");
        if (rc != NB_OK)
            break;
        if (had) {
            nb_strmap_get(seen, name, strlen(name), &at);
            s->shards[at].n_mapped++;
            continue;
        }
        if (s->n_shards == NB_LIMIT_SHARDS) {
            rc = nb_fail(err, NB_ELIMIT, "limit.shards", "", "more than %d shards", NB_LIMIT_SHARDS);
            break;
        }
        if (s->n_shards == cap) {
            shard *more = nb_arena_calloc(&s->arena, cap ? 4 * cap : 64, sizeof *more);
            if (!more) {
                rc = nb_enomem(err, "the shard list");
                break;
            }
            if (cap)
                memcpy(more, s->shards, cap * sizeof *more);
            s->shards = more;
            cap = cap ? 4 * cap : 64;
        }
        s->shards[s->n_shards].name = nb_arena_strdup(&s->arena, name);
        s->shards[s->n_shards].first = nb_arena_strdup(&s->arena, key);
        s->shards[s->n_shards].n_mapped = 1;
        if (!s->shards[s->n_shards].name || !s->shards[s->n_shards].first)
            rc = nb_enomem(err, "the shard list");
        s->n_shards++;
    }
    nb_strmap_free(seen);
    if (rc == NB_OK && torch && tensors)
        rc = nb_fail(err, NB_EUNSUPPORTED, "idx.mixed", "", "some shards are .safetensors, some are PyTorch archives");
    s->torch = torch;
    if (rc == NB_OK)
        qsort(s->shards, s->n_shards, sizeof *s->shards, by_name);
    return rc;
}

/* Open every shard. Short ones are named together (IX-06), so that one look tells what to download again. */
static nb_status open_shards(shards_store *s, nb_err *err)
{
    nb_buf more = { 0 };
    nb_err first = { 0 };
    size_t n_short = 0;
    nb_status rc = NB_OK;

    for (size_t i = 0; i < s->n_shards; i++) {
        shard *sh = &s->shards[i];
        nb_err e = { 0 };
        char *path = nb_join(s->dir, sh->name);
        nb_status r = path ? (s->torch ? nb_torch_open : nb_st_open)(path, &sh->store, &e) : nb_enomem(&e, "a path");

        nb_free(path);
        if (r == NB_OK)
            continue;
        if (r == NB_EOPEN && strcmp(e.cls, "io.not_found") == 0) {
            nb_err_clear(&e);
            r = nb_fail(&e, NB_EOPEN, "idx.missing_shard", "FIL-003",
                        "listed in the index but not on disk; %zu tensors are missing (%.200s)", sh->n_mapped, sh->first);
            nb_err_at(&e, sh->name, NULL);
        }
        if (rc == NB_OK) {
            rc = r;
            first = e;
        }
        if (strcmp(e.cls, "st.truncated") == 0 && strcmp(first.cls, "st.truncated") == 0) {
            if (n_short > 0 && n_short < 5)
                nb_buf_printf(&more, "%s%s", n_short > 1 ? ", " : "", sh->name);
            n_short++;
        } else if (strcmp(first.cls, "st.truncated") != 0) {
            break; /* any other fault of the first bad shard is the verdict */
        }
    }
    if (rc != NB_OK) {
        nb_fail(err, rc, first.cls, first.rule, "%s%s%s%s", first.what, n_short > 1 ? "; also short: " : "", n_short > 1 ? more.p : "",
                n_short > 5 ? " ..." : "");
        nb_err_at(err, first.file, first.subject);
    }
    nb_buf_clear(&more);
    return rc;
}

/* The views the index names; what else a shard holds is ignored with a note when another file has it too (FIL-007). */
static nb_status take_views(shards_store *s, const nb_json *map, nb_err *err)
{
    const size_t n = nb_json_len(map);
    nb_tensor *views = nb_arena_calloc(&s->arena, n, sizeof *views);
    const char **files = nb_arena_calloc(&s->arena, s->n_shards, sizeof *files);
    size_t at = 0;

    if (!views || !files)
        return nb_enomem(err, "tensor views");
    for (size_t i = 0; i < s->n_shards; i++) {
        const nb_store *one = s->shards[i].store;
        files[i] = one->path;
        for (size_t j = 0; j < one->n_tensors; j++) {
            const nb_tensor *t = &one->tensors[j];
            const char *owner = nb_json_str(nb_json_get(map, t->name), NULL);
            if (owner && strcmp(owner, s->shards[i].name) == 0) {
                views[at] = *t;
                views[at].index = i;
                s->base.total_bytes += t->n_bytes;
                at++;
            } else if (owner) {
                char e1[NB_ESC_CAP];
                nb_status rc =
                    nb_report_add(s->notes, NB_SEV_WARN, "idx.twice", "FIL-007", s->index, nb_esc(e1, sizeof e1, t->name, t->name_len), "",
                                  "stored in both %.255s and %.255s; the index names %.255s; other engines may read the other one", owner,
                                  s->shards[i].name, owner);
                if (rc != NB_OK)
                    return nb_enomem(err, "notes");
            }
        }
    }
    s->base.tensors = views;
    s->base.n_tensors = at;
    s->base.files = files;
    s->base.n_files = s->n_shards;
    s->base.meta = s->shards[0].store->meta;
    for (size_t i = 0; i < n && at < n; i++) { /* something is missing: say what */
        const char *key;
        const char *owner = nb_json_str(nb_json_member(map, i, &key), "");
        const shard want = { .name = owner };
        const shard *sh = bsearch(&want, s->shards, s->n_shards, sizeof want, by_name);
        if (!sh || !nb_store_find(sh->store, key)) {
            nb_fail(err, NB_EFORMAT, "idx.missing_tensor", "FIL-004", "the index says it is in %.255s, but that file does not contain it",
                    owner);
            nb_err_at(err, NULL, key);
            return NB_EFORMAT;
        }
    }
    return NB_OK;
}

/* IX-08, FIL-005: weight files in the directory that the index does not list. */
static nb_status note_strays(shards_store *s, nb_err *err)
{
    DIR *d = opendir(s->dir);
    const struct dirent *e;
    nb_status rc = NB_OK;

    if (!d)
        return NB_OK; /* a directory that may be searched but not listed */
    while (rc == NB_OK && (e = readdir(d)) != NULL) {
        shard key = { .name = e->d_name };
        char esc[NB_ESC_CAP];
        if (!(s->torch ? strncmp(e->d_name, "pytorch_model", 13) == 0 && nb_ends_with(e->d_name, ".bin")
                       : nb_ends_with(e->d_name, ".safetensors")) ||
            bsearch(&key, s->shards, s->n_shards, sizeof key, by_name))
            continue;
        rc = nb_report_add(s->notes, NB_SEV_WARN, "idx.stray", "FIL-005", nb_esc(esc, sizeof esc, e->d_name, strlen(e->d_name)), "", "",
                           "not listed in the index and ignored");
    }
    closedir(d);
    return rc == NB_OK ? NB_OK : nb_enomem(err, "notes");
}

/* What opening PyTorch shards had to say; what every one says (FIL-002) once. */
static nb_status note_torch(shards_store *s, nb_err *err)
{
    nb_status rc = NB_OK;

    for (size_t i = 0; i < s->n_shards && s->torch; i++) {
        const nb_report *r = s->shards[i].store->notes;
        for (size_t k = 0; k < nb_report_count(r) && rc == NB_OK; k++) {
            const nb_finding *f = nb_report_at(r, k);
            if (i == 0 || strcmp(f->rule, "FIL-002") != 0)
                rc = nb_report_add(s->notes, f->sev, f->cls, f->rule, f->file, f->subject, f->next, "%s", f->what);
        }
    }
    return rc == NB_OK ? NB_OK : nb_enomem(err, "notes");
}

static nb_status check_total(shards_store *s, const nb_json *root, nb_err *err)
{
    const nb_json *v = nb_json_get(nb_json_get(root, "metadata"), "total_size");
    const int64_t claim = nb_json_int(v, -1);

    if (claim >= 0 && (uint64_t)claim == s->base.total_bytes)
        return NB_OK;
    if (nb_report_add(s->notes, NB_SEV_WARN, "idx.total_size", "FIL-008", s->index, "", "",
                      v ? "claims %lld bytes of tensors, files contain %llu" : "does not state total_size (%lld); files contain %llu",
                      (long long)claim, (unsigned long long)s->base.total_bytes) != NB_OK)
        return nb_enomem(err, "notes");
    return NB_OK;
}

static nb_status read_index(shards_store *s, const nb_json *root, nb_err *err)
{
    const nb_json *map = nb_json_get(root, "weight_map");
    size_t dup;
    nb_status rc;

    if (nb_json_typeof(root) != NB_JOBJ || nb_json_typeof(map) != NB_JOBJ)
        return nb_fail(err, NB_EFORMAT, "idx.type", "", "weight_map is %s", map ? "not an object" : "missing");
    if (nb_json_len(map) == 0)
        return nb_fail(err, NB_EFORMAT, "idx.empty", "", "weight_map names no tensor");
    if (nb_json_len(map) > NB_LIMIT_MODEL_TENSORS)
        return nb_fail(err, NB_ELIMIT, "limit.tensors", "", "%zu tensors, limit %d", nb_json_len(map), NB_LIMIT_MODEL_TENSORS);
    rc = list_shards(s, map, err);
    if (rc == NB_OK)
        rc = open_shards(s, err);
    if (rc == NB_OK)
        rc = take_views(s, map, err);
    if (rc == NB_OK)
        rc = note_strays(s, err);
    if (rc == NB_OK)
        rc = note_torch(s, err);
    if (rc == NB_OK)
        rc = check_total(s, root, err);
    if (s->torch)
        s->base.kind = "torch";
    if (rc == NB_OK)
        rc = nb_store_index(&s->base, &dup, err); /* JSON keys: no two are equal */
    return rc;
}

nb_status nb_shards_open(const char *index, nb_store **out, nb_err *err)
{
    shards_store *s = nb_calloc(1, sizeof *s);
    nb_json *root = NULL;
    char *dir = nb_dirname(index);
    nb_status rc = NB_OK;

    *out = NULL;
    if (!s || !dir) {
        nb_free(s);
        nb_free(dir);
        return nb_enomem(err, "the index");
    }
    s->base.ops = &shards_ops;
    s->base.kind = "safetensors";
    s->dir = nb_arena_strdup(&s->arena, dir);
    s->index = nb_arena_strdup(&s->arena, index);
    s->notes = nb_report_new();
    s->base.path = s->index;
    s->base.notes = s->notes;
    nb_free(dir);
    if (!s->dir || !s->index || !s->notes)
        rc = nb_enomem(err, "the index");
    if (rc == NB_OK)
        rc = nb_json_parse_file(index, NB_LIMIT_INDEX, "idx", &root, err);
    if (rc == NB_OK)
        rc = read_index(s, root, err);
    nb_json_free(root);
    if (rc == NB_OK)
        *out = &s->base;
    else
        shards_close(&s->base);
    nb_err_at(err, index, NULL);
    return rc;
}

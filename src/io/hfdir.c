/* hfdir.c - the small files of a model directory, read on demand and kept; or what a GGUF file says in their place. */
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/mem.h"
#include "io/io.h"
#include "io/io_priv.h"

/* Files that have a meaning to us; a GGUF file stands for the first four. */
static const char *const known[] = { "config.json",
                                     "tokenizer.json",
                                     "tokenizer_config.json",
                                     "generation_config.json",
                                     "chat_template.jinja",
                                     "special_tokens_map.json",
                                     "quantize_config.json",
                                     "quant_config.json",
                                     "quantization_config.json" };
enum { N_GENERATED = 4 };

typedef struct small_file {
    char *name, *bytes;
    size_t n;
    bool loaded;
} small_file;

struct nb_hfdir {
    char *path;
    nb_store *gguf; /* NULL for a directory */
    nb_json *config, *quant;
    bool quant_read;
    nb_err doubled; /* a key that config.json has twice */
    const char *quant_source;
    const nb_json *quant_value;
    char **names; /* of the files to copy, sorted */
    size_t n_names, cap_names, n_skipped;
    small_file *files;
    size_t n_files;
};

void nb_hfdir_close(nb_hfdir *d)
{
    if (!d)
        return;
    nb_store_close(d->gguf);
    nb_json_free(d->config);
    nb_json_free(d->quant);
    for (size_t i = 0; i < d->n_names; i++)
        nb_free(d->names[i]);
    for (size_t i = 0; i < d->n_files; i++) {
        nb_free(d->files[i].name);
        nb_free(d->files[i].bytes);
    }
    nb_free(d->names);
    nb_free(d->files);
    nb_free(d->path);
    nb_free(d);
}

const char *nb_hfdir_path(const nb_hfdir *d)
{
    return d->path;
}

bool nb_hfdir_is_gguf(const nb_hfdir *d)
{
    return d->gguf != NULL;
}

size_t nb_hfdir_count(const nb_hfdir *d)
{
    return d->n_names;
}

const char *nb_hfdir_name(const nb_hfdir *d, size_t i)
{
    return i < d->n_names ? d->names[i] : NULL;
}

size_t nb_hfdir_skipped(const nb_hfdir *d)
{
    return d->n_skipped;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static nb_status add_name(nb_hfdir *d, const char *name, nb_err *err)
{
    if (d->n_names == d->cap_names) {
        const size_t cap = d->cap_names ? 2 * d->cap_names : 32;
        char **more = nb_realloc(d->names, cap * sizeof *more);
        if (!more)
            return nb_enomem(err, "the file list");
        d->names = more;
        d->cap_names = cap;
    }
    d->names[d->n_names] = nb_strdup(name);
    if (!d->names[d->n_names])
        return nb_enomem(err, "the file list");
    d->n_names++;
    return NB_OK;
}

static bool is_weights(const char *name)
{
    static const char *const ends[] = { ".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".index.json" };

    for (size_t i = 0; i < NB_LEN(ends); i++) {
        if (nb_ends_with(name, ends[i]))
            return true;
    }
    return false;
}

static bool below(const char *dir, const char *path)
{
    const size_t n = strlen(dir);
    return strncmp(path, dir, n) == 0 && (path[n] == '/' || (n > 0 && dir[n - 1] == '/'));
}

/* May a copy carry this file? A link may lead to a file of the same directory, or into the blob store of a hub cache
 * (snapshots/REV/file -> ../../blobs/HASH, FS-07); a link elsewhere could carry a stranger's secrets into an output. */
static bool may_copy(const char *real_dir, const char *path)
{
    char *real = realpath(path, NULL), *up = NULL, *up2 = NULL, *blobs = NULL;
    bool ok = false;

    if (!real)
        return false;
    if (below(real_dir, real)) {
        ok = true;
    } else {
        up = nb_dirname(real_dir);
        up2 = up ? nb_dirname(up) : NULL;
        blobs = up2 ? nb_join(up2, "blobs") : NULL;
        ok = blobs && below(blobs, real);
    }
    nb_free(up);
    nb_free(up2);
    nb_free(blobs);
    free(real);
    return ok;
}

static nb_status list_names(nb_hfdir *d, nb_err *err)
{
    DIR *dir = opendir(d->path);
    char *real = realpath(d->path, NULL);
    const struct dirent *e;
    nb_status rc = NB_OK;

    if (!dir || !real)
        rc = nb_fail(err, NB_EOPEN, errno == EACCES ? "io.permission" : "io.not_found", "", "cannot list the directory: %s",
                     strerror(errno));
    while (rc == NB_OK && (e = readdir(dir)) != NULL) {
        struct stat st;
        char *path;
        if (e->d_name[0] == '.' || is_weights(e->d_name))
            continue;
        path = nb_join(d->path, e->d_name);
        if (!path)
            rc = nb_enomem(err, "a path");
        else if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
            ; /* not a file */
        else if (may_copy(real, path))
            rc = add_name(d, e->d_name, err);
        else
            d->n_skipped++;
        nb_free(path);
    }
    if (dir)
        closedir(dir);
    free(real);
    if (rc == NB_OK && d->n_names > 1)
        qsort(d->names, d->n_names, sizeof *d->names, by_text);
    return rc;
}

nb_status nb_hfdir_open(const char *path, nb_hfdir **out, nb_err *err)
{
    nb_hfdir *d = nb_calloc(1, sizeof *d);
    nb_container kind;
    nb_status rc;

    *out = NULL;
    if (!d)
        return nb_enomem(err, "a model directory");
    rc = nb_sniff(path, &kind, err);
    if (rc != NB_OK)
        goto done;
    d->path = kind == NB_IO_DIR || kind == NB_IO_GGUF ? nb_strdup(path) : nb_dirname(path);
    if (!d->path) {
        rc = nb_enomem(err, "a path");
    } else if (kind == NB_IO_GGUF) {
        rc = nb_gguf_open(path, &d->gguf, err);
        for (size_t i = 0; i < N_GENERATED && rc == NB_OK; i++)
            rc = add_name(d, known[i], err);
    } else {
        rc = list_names(d, err);
    }
    if (rc != NB_OK)
        goto done;
    *out = d;
    d = NULL;
done:
    nb_err_at(err, path, NULL);
    nb_hfdir_close(d);
    return rc;
}

static size_t limit_of(const char *name)
{
    static const char *const vocabularies[] = { "tekken.json", "vocab.json", "added_tokens.json" };
    bool large = strncmp(name, "tokenizer", 9) == 0 || !nb_ends_with(name, ".json");

    for (size_t i = 0; i < NB_LEN(vocabularies); i++)
        large = large || strcmp(name, vocabularies[i]) == 0;
    return large ? NB_LIMIT_TOKENIZER : NB_LIMIT_CONFIG;
}

/* Bytes of one file; *out NULL when it is absent. */
static nb_status load(nb_hfdir *d, const char *name, char **out, size_t *n, nb_err *err)
{
    struct stat st;
    char *path;
    nb_status rc = NB_OK;

    *out = NULL;
    *n = 0;
    if (d->gguf) {
        rc = nb_gguf_text(d->gguf, name, out, n, err);
        nb_err_at(err, d->path, NULL);
        return rc;
    }
    path = nb_join(d->path, name);
    if (!path)
        return nb_enomem(err, "a path");
    if (stat(path, &st) == 0 || (errno != ENOENT && errno != ENOTDIR))
        rc = nb_read_file(path, limit_of(name), out, n, err);
    if (rc == NB_OK && *out)
        rc = nb_lfs_check((const unsigned char *)*out, *n, err);
    if (rc != NB_OK) {
        nb_free(*out);
        *out = NULL;
        nb_err_at(err, path, NULL);
    }
    nb_free(path);
    return rc;
}

nb_status nb_hfdir_file(nb_hfdir *d, const char *name, const char **out, size_t *n, nb_err *err)
{
    small_file *more;
    nb_status rc;

    *out = NULL;
    *n = 0;
    if (strchr(name, '/') || strcmp(name, "..") == 0)
        return nb_fail(err, NB_EARG, "arg.name", "", "not a plain file name");
    for (size_t i = 0; i < d->n_files; i++) {
        if (strcmp(d->files[i].name, name) == 0) {
            *out = d->files[i].bytes;
            *n = d->files[i].n;
            return NB_OK;
        }
    }
    more = nb_realloc(d->files, (d->n_files + 1) * sizeof *more);
    if (!more)
        return nb_enomem(err, "a small file");
    d->files = more;
    more += d->n_files;
    *more = (small_file){ .name = nb_strdup(name) };
    if (!more->name)
        return nb_enomem(err, "a small file");
    rc = load(d, name, &more->bytes, &more->n, err);
    if (rc != NB_OK) {
        nb_free(more->name);
        return rc;
    }
    d->n_files++;
    *out = more->bytes;
    *n = more->n;
    return NB_OK;
}

/* Parse a small file; *out NULL when it is absent. Only config.json may have a key twice (JS-08). */
static nb_status parse(nb_hfdir *d, const char *name, nb_json **out, nb_err *err)
{
    const char *p;
    size_t n;
    nb_status rc = nb_hfdir_file(d, name, &p, &n, err);

    *out = NULL;
    if (rc != NB_OK || !p)
        return rc;
    if (strcmp(name, "config.json") == 0) {
        rc = nb_json_parse_config(p, n, "cfg", out, &d->doubled, err);
        nb_err_at(&d->doubled, name, NULL);
    } else {
        rc = nb_json_parse(p, n, "cfg", 0, out, err);
    }
    if (rc == NB_OK && nb_json_typeof(*out) != NB_JOBJ) {
        nb_json_free(*out);
        *out = NULL;
        rc = nb_fail(err, NB_EFORMAT, "cfg.type", "", "the file is not a JSON object");
    }
    nb_err_at(err, name, NULL);
    return rc;
}

nb_status nb_hfdir_config(nb_hfdir *d, const nb_json **out, nb_err *err)
{
    nb_status rc = NB_OK;

    *out = NULL;
    if (!d->config)
        rc = parse(d, "config.json", &d->config, err);
    if (rc == NB_OK && !d->config) {
        rc = nb_fail(err, NB_EOPEN, "cfg.missing_file", "FIL-001", "No config.json: this is not a Hugging Face checkpoint directory.");
        nb_err_at(err, d->path, NULL);
    }
    *out = d->config;
    return rc;
}

const nb_err *nb_hfdir_warning(const nb_hfdir *d)
{
    return d->doubled.code == NB_OK ? NULL : &d->doubled;
}

nb_status nb_hfdir_quant_config(nb_hfdir *d, const nb_json **out, const char **source, nb_err *err)
{
    static const char *const files[] = { "quantize_config.json", "quant_config.json", "quantization_config.json" };
    static const char *const nests[] = { "text_config", "llm_config" };
    nb_status rc = NB_OK;

    *out = NULL;
    if (!d->quant_read) {
        const nb_json *v;
        if (!d->config)
            rc = parse(d, "config.json", &d->config, err);
        v = nb_json_get(d->config, "quantization_config");
        for (size_t i = 0; nb_json_is_null(v) && i < NB_LEN(nests); i++)
            v = nb_json_get(nb_json_get(d->config, nests[i]), "quantization_config");
        d->quant_source = "config.json";
        for (size_t i = 0; rc == NB_OK && nb_json_is_null(v) && i < NB_LEN(files) && !d->gguf; i++) {
            rc = parse(d, files[i], &d->quant, err);
            v = d->quant;
            d->quant_source = files[i];
        }
        if (rc != NB_OK)
            return rc;
        d->quant_value = nb_json_is_null(v) ? NULL : v;
        d->quant_read = true;
    }
    *out = d->quant_value;
    if (source)
        *source = d->quant_value ? d->quant_source : NULL;
    return NB_OK;
}

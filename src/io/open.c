/* open.c - from what the user names to a store: the sniff table, and the order in which a directory is searched. */
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/map.h"
#include "base/mem.h"
#include "io/io.h"
#include "io/io_priv.h"

static nb_container by_content(const unsigned char *p, size_t n, const char *path)
{
    if (n >= 4 && (memcmp(p, "GGUF", 4) == 0 || memcmp(p, "FUGG", 4) == 0))
        return NB_IO_GGUF;
    if (n >= 4 && (memcmp(p, "PK\003\004", 4) == 0 || (p[0] == 0x80 && p[1] >= 2 && p[1] <= 5 && p[7 < n ? 7 : 3] != 0)))
        return NB_IO_TORCH;
    if (nb_ends_with(path, ".json"))
        return NB_IO_INDEX;
    if (nb_ends_with(path, ".safetensors") || (n > 8 && p[8] == '{' && p[7] == 0))
        return NB_IO_SAFETENSORS;
    if (nb_ends_with(path, ".gguf"))
        return NB_IO_GGUF; /* its reader says what is wrong */
    if (nb_torch_name(path))
        return NB_IO_TORCH; /* likewise */
    return NB_IO_UNKNOWN;
}

nb_status nb_sniff(const char *path, nb_container *out, nb_err *err)
{
    struct stat st;
    nb_map m = { .fd = -1 };
    nb_status rc;

    *out = NB_IO_UNKNOWN;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        *out = NB_IO_DIR;
        return NB_OK;
    }
    rc = nb_map_open(&m, path, err);
    if (rc == NB_OK)
        rc = nb_lfs_check(m.base, m.size, err);
    if (rc == NB_OK)
        *out = by_content(m.base, m.size, path);
    nb_map_close(&m);
    nb_err_at(err, path, NULL);
    return rc;
}

/* What a directory holds: counts and the first name of each kind in byte order. */
typedef struct contents {
    size_t n_st, n_gguf, n_torch;
    char st[256], gguf[256], torch[256];
    bool index, single, bin_index, bin;
} contents;

/* Files that trainers leave beside the weights. */
static bool trainer_file(const char *name)
{
    static const char *const starts[] = { "training_args.", "optimizer.", "scheduler.", "scaler.", "rng_state" };

    for (size_t i = 0; i < NB_LEN(starts); i++) {
        if (strncmp(name, starts[i], strlen(starts[i])) == 0)
            return true;
    }
    return false;
}

static void count(size_t *n, char first[256], const char *name)
{
    if ((*n)++ == 0 || strcmp(name, first) < 0)
        memcpy(first, name, strlen(name) + 1); /* d_name: 255 bytes at most */
}

static nb_status look(const char *dir, contents *c, nb_err *err)
{
    DIR *d = opendir(dir);
    const struct dirent *e;

    if (!d)
        return nb_fail(err, NB_EOPEN, errno == EACCES ? "io.permission" : "io.not_found", "", "cannot list the directory: %s",
                       strerror(errno));
    while ((e = readdir(d)) != NULL) {
        if (e->d_name[0] == '.' || strlen(e->d_name) > 255)
            continue;
        c->index = c->index || strcmp(e->d_name, "model.safetensors.index.json") == 0;
        c->bin_index = c->bin_index || strcmp(e->d_name, "pytorch_model.bin.index.json") == 0;
        c->bin = c->bin || strcmp(e->d_name, "pytorch_model.bin") == 0;
        c->single = c->single || strcmp(e->d_name, "model.safetensors") == 0;
        if (nb_ends_with(e->d_name, ".safetensors"))
            count(&c->n_st, c->st, e->d_name);
        else if (nb_ends_with(e->d_name, ".gguf"))
            count(&c->n_gguf, c->gguf, e->d_name);
        else if (nb_torch_name(e->d_name) && !trainer_file(e->d_name))
            count(&c->n_torch, c->torch, e->d_name);
    }
    closedir(d);
    return NB_OK;
}

static nb_status open_dir(const char *dir, nb_store **out, nb_err *err)
{
    contents c = { 0 };
    const char *name = NULL;
    char *path;
    nb_status rc = look(dir, &c, err);

    if (rc != NB_OK)
        return rc;
    if (c.index)
        name = "model.safetensors.index.json";
    else if (c.single)
        name = "model.safetensors";
    else if (c.n_st == 1)
        name = c.st;
    else if (c.n_st > 1)
        return nb_fail(err, NB_EFORMAT, "idx.missing", "",
                       "%zu safetensors files but no model.safetensors.index.json that says what is where", c.n_st);
    else if (c.bin_index)
        name = "pytorch_model.bin.index.json";
    else if (c.bin)
        name = "pytorch_model.bin";
    else if (c.n_gguf == 1)
        name = c.gguf;
    else if (c.n_gguf > 1)
        return nb_fail(err, NB_EARG, "dir.ambiguous", "", "%zu GGUF files; name one of them, for example %s", c.n_gguf, c.gguf);
    else if (c.n_torch == 1)
        name = c.torch;
    else if (c.n_torch > 1)
        return nb_fail(err, NB_EARG, "dir.ambiguous", "", "%zu PyTorch archives; name one of them, for example %s", c.n_torch, c.torch);
    else
        return nb_fail(err, NB_EOPEN, "dir.no_weights", "", "no weights here: no .safetensors, no .bin or .pt and no .gguf file");
    path = nb_join(dir, name);
    rc = path ? nb_open(path, out, err) : nb_enomem(err, "a path");
    nb_free(path);
    return rc;
}

/* Is this the name of a file that is being written, by us ("X.part", "X.nibble-ab12cd") or by a program that fetches it (DU-04)? */
static bool unfinished(const char *path)
{
    const size_t n = strlen(path), tag = strlen(".nibble-XXXXXX");

    return nb_ends_with(path, ".part") || nb_ends_with(path, ".incomplete") || (n > tag && strncmp(path + n - tag, ".nibble-", 8) == 0);
}

nb_status nb_open(const char *path, nb_store **out, nb_err *err)
{
    nb_container kind;
    nb_status rc = nb_sniff(path, &kind, err);

    *out = NULL;
    if (rc == NB_OK && kind != NB_IO_DIR && unfinished(path)) {
        rc = nb_fail(err, NB_EFORMAT, "fmt.unfinished", "",
                     "the name of a file that is still being written; let what writes it end, or give the file its own name");
        nb_err_at(err, path, NULL);
    }
    if (rc != NB_OK)
        return rc;
    switch (kind) {
    case NB_IO_DIR:
        rc = open_dir(path, out, err);
        break;
    case NB_IO_SAFETENSORS:
        rc = nb_st_open(path, out, err);
        break;
    case NB_IO_INDEX:
        rc = nb_shards_open(path, out, err);
        break;
    case NB_IO_GGUF:
        rc = nb_gguf_hf_open(path, out, err);
        break;
    case NB_IO_TORCH:
        if (nb_ends_with(path, ".safetensors"))
            rc = nb_fail(err, NB_EFORMAT, "fmt.mismatch", "", "expected a safetensors file, found a PyTorch archive");
        else
            rc = nb_torch_open(path, out, err);
        break;
    case NB_IO_UNKNOWN:
        rc = nb_fail(err, NB_EFORMAT, "fmt.unknown", "",
                     "not a model directory, a safetensors file, an index, a PyTorch archive or a GGUF file");
        break;
    }
    nb_err_at(err, path, NULL);
    return rc;
}

/* fuzz_index.c - any bytes as model.safetensors.index.json beside two shards: a verdict, and only those two are opened. */
#include "fuzz_file.h"

#include <string.h>
#include <sys/stat.h>

#include "io/io.h"

static void shard(const char *dir, const char *name, const char *header)
{
    const unsigned char length[8] = { (unsigned char)strlen(header) };
    char path[128];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    f = fopen(path, "wb");
    if (!f || fwrite(length, 1, 8, f) != 8 || fputs(header, f) < 0 || fwrite("abcd", 1, 4, f) != 4 || fclose(f) != 0)
        abort();
}

static char dir[64], path[128];

static void tidy(void)
{
    static const char *const names[] = { "a.safetensors", "b.safetensors", "model.safetensors.index.json" };
    char p[128];

    for (int i = 0; i < 3; i++) {
        snprintf(p, sizeof p, "%s/%s", dir, names[i]);
        unlink(p);
    }
    rmdir(dir);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    nb_err err = { 0 };
    nb_store *s = NULL;
    unsigned sum = 0;
    FILE *f;

    if (dir[0] == '\0') {
        snprintf(dir, sizeof dir, "/tmp/nibble-fuzz-index-%ld", (long)getpid());
        if (mkdir(dir, 0700) != 0 || atexit(tidy) != 0)
            abort();
        shard(dir, "a.safetensors",
              "{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"b\":{\"dtype\":\"U8\",\"shape\":[2],"
              "\"data_offsets\":[2,4]}}");
        shard(dir, "b.safetensors", "{\"c\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}");
        snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    }
    f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0)
        abort();
    if (nb_open(dir, &s, &err) == NB_OK) {
        for (size_t i = 0; i < s->n_tensors; i++)
            for (uint64_t k = 0; k < s->tensors[i].n_bytes; k++)
                sum += s->tensors[i].data[k];
        if (s->n_tensors == 0 || s->n_tensors > 3 || nb_store_find(s, s->tensors[0].name) != &s->tensors[0])
            abort();
    } else if (err.what[0] == '\0') {
        abort();
    }
    nb_store_close(s);
    return sum == 1u << 31; /* 0, but the reads must happen */
}

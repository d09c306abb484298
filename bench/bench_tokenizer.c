/* bench_tokenizer.c - one measurement of a tokenizer: seconds to load it, seconds to encode a text on one thread.
 *
 *   nb_bench_tokenizer TOKENIZER.json TEXT [BYTES]
 *
 * The text is cut at the first line end after every BYTES (default 8192) into documents, which are encoded one by one, without
 * BOS and EOS, special tokens of the text as themselves. Prints load and encode seconds, bytes, documents, ids, and a checksum of
 * the ids: FNV-1a over their 32-bit little-endian bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "text/tokenizer.h"

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static char *read_all(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    long size = -1;
    char *p = NULL;

    if (f && fseek(f, 0, SEEK_END) == 0 && (size = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0 && (p = malloc((size_t)size + 1)))
        if (fread(p, 1, (size_t)size, f) != (size_t)size) {
            free(p);
            p = NULL;
        }
    if (f)
        fclose(f);
    if (!p) {
        fprintf(stderr, "cannot read %s\n", path);
        exit(3);
    }
    *n = (size_t)size;
    return p;
}

static uint64_t fnv(uint64_t h, const nb_ids *ids)
{
    for (size_t i = 0; i < ids->n; i++)
        for (int b = 0; b < 32; b += 8)
            h = (h ^ ((uint32_t)ids->p[i] >> b & 255)) * 0x100000001b3u;
    return h;
}

int main(int argc, char **argv)
{
    const size_t step = argc > 3 ? (size_t)strtoul(argv[3], NULL, 10) : 8192;
    size_t n, n_text, docs = 0, total = 0;
    uint64_t sum = 0xcbf29ce484222325u;
    nb_tokenizer *t = NULL;
    nb_ids ids = { 0 };
    nb_err err = { 0 };
    double spent = 0;

    if (argc < 3 || step == 0) {
        fprintf(stderr, "usage: nb_bench_tokenizer TOKENIZER.json TEXT [BYTES]\n");
        return 2;
    }
    char *text = read_all(argv[2], &n_text);
    const double begin = now();
    char *json = read_all(argv[1], &n);
    nb_status rc = nb_tokenizer_open(json, n, NULL, 0, &t, &err);
    const double load = now() - begin;
    free(json);
    for (size_t at = 0; at < n_text && rc == NB_OK; docs++) {
        const char *line = n_text - at > step ? memchr(text + at + step, '\n', n_text - at - step) : NULL;
        const size_t len = line ? (size_t)(line - text) + 1 - at : n_text - at;
        const double start = now();
        ids.n = 0;
        rc = nb_tokenizer_encode(t, text + at, len, false, true, &ids, &err);
        spent += now() - start;
        total += ids.n;
        sum = fnv(sum, &ids);
        at += len;
    }
    if (rc != NB_OK)
        fprintf(stderr, "%s: %s\n", err.cls, err.what);
    else
        printf("load %.6f encode %.6f bytes %zu docs %zu ids %zu sum %016llx\n", load, spent, n_text, docs, total, (unsigned long long)sum);
    nb_ids_clear(&ids);
    nb_tokenizer_close(t);
    free(text);
    return rc == NB_OK ? 0 : 1;
}

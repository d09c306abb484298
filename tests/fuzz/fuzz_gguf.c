/* fuzz_gguf.c - any bytes as a GGUF file: the reader, the mapped names, the generated files, the values. */
#include "fuzz_file.h"

#include "io/io.h"

static void read_all(nb_store *s)
{
    float v[300];
    nb_err err = { 0 };

    for (size_t i = 0; i < s->n_tensors; i++) {
        const nb_tensor *t = &s->tensors[i];
        uint64_t n;
        if (!nb_shape_count(t->shape, t->rank, &n))
            abort();
        nb_store_read_f32(s, t, 0, n < 300 ? n : 300, v, &err);
        nb_err_clear(&err);
        nb_store_read_f32(s, t, n < 7 ? 0 : n - 7, n < 7 ? n : 7, v, &err);
        nb_err_clear(&err);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = { "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json" };
    const char *path = fuzz_file(data, size, ".gguf"), *p;
    nb_err err = { 0 };
    nb_store *s = NULL;
    nb_hfdir *d = NULL;
    size_t n;

    if (nb_gguf_open(path, &s, &err) == NB_OK)
        read_all(s);
    else if (err.what[0] == '\0')
        abort();
    nb_store_close(s);
    nb_err_clear(&err);
    if (nb_gguf_hf_open(path, &s, &err) == NB_OK)
        read_all(s);
    nb_store_close(s);
    nb_err_clear(&err);
    if (nb_hfdir_open(path, &d, &err) == NB_OK) {
        for (size_t i = 0; i < 4 && nb_hfdir_is_gguf(d); i++) {
            nb_err_clear(&err);
            nb_hfdir_file(d, names[i], &p, &n, &err);
        }
    }
    nb_hfdir_close(d);
    unlink(path);
    return 0;
}

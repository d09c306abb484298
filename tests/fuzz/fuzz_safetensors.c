/* fuzz_safetensors.c - any bytes as a .safetensors file: a verdict, and every accepted byte readable. */
#include "fuzz_file.h"

#include "io/io.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *path = fuzz_file(data, size, ".safetensors");
    nb_err err = { 0 };
    nb_store *s = NULL;
    unsigned sum = 0;

    if (nb_st_open(path, &s, &err) == NB_OK) {
        for (size_t i = 0; i < s->n_tensors; i++)
            for (uint64_t k = 0; k < s->tensors[i].n_bytes; k++)
                sum += s->tensors[i].data[k];
        if (s->n_tensors > 0 && nb_store_find(s, s->tensors[0].name) != &s->tensors[0])
            abort();
    } else if (err.code == NB_OK || err.what[0] == '\0') {
        abort();
    }
    nb_store_close(s);
    unlink(path);
    return sum == 1u << 31; /* 0, but the reads must happen */
}

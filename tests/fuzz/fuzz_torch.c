/* fuzz_torch.c - any bytes as a PyTorch archive: a verdict, and every accepted byte readable. */
#include "fuzz_file.h"

#include "io/io.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *path = fuzz_file(data, size, ".bin");
    nb_err err = { 0 };
    nb_store *s = NULL;
    unsigned sum = 0;

    if (nb_torch_open(path, &s, &err) == NB_OK) {
        for (size_t i = 0; i < s->n_tensors; i++)
            for (uint64_t k = 0; k < s->tensors[i].n_bytes; k++)
                sum += s->tensors[i].data[k];
        if (nb_store_still(s, &err) != NB_OK && err.what[0] == '\0')
            abort();
    } else if (err.what[0] == '\0') {
        abort();
    }
    nb_store_close(s);
    unlink(path);
    return sum == 1u << 31; /* 0, but the reads must happen */
}

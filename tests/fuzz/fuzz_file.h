/* fuzz_file.h - the bytes of one run as a file, for readers that map files. */
#ifndef NB_TESTS_FUZZ_FILE_H
#define NB_TESTS_FUZZ_FILE_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Path of a file with these bytes; the same path in every run of a process. */
static inline const char *fuzz_file(const uint8_t *data, size_t size, const char *suffix)
{
    static char path[64];
    FILE *f;

    if (path[0] == '\0')
        snprintf(path, sizeof path, "/tmp/nibble-fuzz-%ld%s", (long)getpid(), suffix);
    f = fopen(path, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0)
        abort();
    return path;
}

#endif

/* inspect.c - what a checkpoint is, as JSON.
 *
 *   cc inspect.c $(pkg-config --cflags --libs nibble) -o inspect
 *   ./inspect MODEL */
#include <nibble/nibble.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    nibble_error e;
    char *json;
    int rc;

    if (argc != 2) {
        fprintf(stderr, "usage: inspect MODEL\n");
        return NIBBLE_ARGUMENT;
    }
    rc = nibble_inspect(argv[1], &json, &e);
    if (rc != NIBBLE_OK) {
        fprintf(stderr, "inspect: %s: %s\n", e.file, e.message);
        return rc;
    }
    puts(json);
    nibble_free(json);
    return NIBBLE_OK;
}

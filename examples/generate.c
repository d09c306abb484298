/* generate.c - continue a text, printing as the tokens come.
 *
 *   cc generate.c $(pkg-config --cflags --libs nibble) -o generate
 *   ./generate MODEL "It is a truth" 40 */
#include <nibble/nibble.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int print_piece(void *user, const char *text, size_t n)
{
    (void)user;
    fwrite(text, 1, n, stdout);
    return fflush(stdout) != 0; /* nobody listens any more: stop */
}

int main(int argc, char **argv)
{
    nibble_sampling how = nibble_greedy();
    nibble_model *model = NULL;
    nibble_error e;
    int32_t *ids = NULL;
    size_t n_ids, n_answer;
    int rc;

    if (argc < 3) {
        fprintf(stderr, "usage: generate MODEL TEXT [TOKENS]\n");
        return NIBBLE_ARGUMENT;
    }
    how.max_tokens = argc > 3 ? strtoul(argv[3], NULL, 10) : 40;
    rc = nibble_open(argv[1], NULL, &model, &e);
    if (rc == NIBBLE_OK)
        rc = nibble_tokenize(model, argv[2], strlen(argv[2]), 1, 0, &ids, &n_ids, &e);
    if (rc == NIBBLE_OK)
        rc = nibble_generate(model, ids, n_ids, &how, print_piece, NULL, &n_answer, &e);
    if (rc == NIBBLE_OK)
        printf("\n");
    else
        fprintf(stderr, "generate: %s: %s\n", e.cls, e.message);
    nibble_free(ids);
    nibble_close(model);
    return rc;
}

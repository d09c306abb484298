/* logits.c - the five likeliest next tokens of a text, with their probabilities.
 *
 *   cc logits.c $(pkg-config --cflags --libs nibble) -lm -o logits
 *   ./logits MODEL "It is a truth" */
#include <math.h>
#include <nibble/nibble.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Print the best token of row[vocab] and take it out. */
static int print_best(nibble_model *model, float *row, size_t vocab, double log_sum, nibble_error *e)
{
    int32_t best = 0;
    char *piece;
    int rc;

    for (size_t i = 1; i < vocab; i++)
        if (row[i] > row[best])
            best = (int32_t)i;
    rc = nibble_detokenize(model, &best, 1, 0, &piece, NULL, e);
    if (rc != NIBBLE_OK)
        return rc;
    printf("%5.1f %%  %6d  \"%s\"\n", 100 * exp((double)row[best] - log_sum), (int)best, piece);
    row[best] = -INFINITY;
    nibble_free(piece);
    return NIBBLE_OK;
}

int main(int argc, char **argv)
{
    nibble_model *model = NULL;
    nibble_error e;
    int32_t *ids = NULL;
    float *logits = NULL, *last;
    size_t n, vocab;
    double sum = 0;
    int rc;

    if (argc != 3) {
        fprintf(stderr, "usage: logits MODEL TEXT\n");
        return NIBBLE_ARGUMENT;
    }
    rc = nibble_open(argv[1], NULL, &model, &e);
    if (rc == NIBBLE_OK)
        rc = nibble_tokenize(model, argv[2], strlen(argv[2]), 1, 0, &ids, &n, &e);
    if (rc != NIBBLE_OK)
        goto done;
    vocab = nibble_vocab(model);
    logits = malloc(n * vocab * sizeof *logits);
    if (!logits) {
        fprintf(stderr, "logits: out of memory\n");
        rc = NIBBLE_MEMORY;
        goto out;
    }
    rc = nibble_logits(model, ids, n, logits, &e);
    if (rc != NIBBLE_OK)
        goto done;
    last = logits + (n - 1) * vocab;
    for (size_t i = 0; i < vocab; i++)
        sum += exp(last[i]);
    for (int i = 0; i < 5 && rc == NIBBLE_OK; i++)
        rc = print_best(model, last, vocab, log(sum), &e);
done:
    if (rc != NIBBLE_OK)
        fprintf(stderr, "logits: %s: %s\n", e.cls, e.message);
out:
    free(logits);
    nibble_free(ids);
    nibble_close(model);
    return rc;
}

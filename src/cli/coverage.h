/* coverage.h - how many calibration tokens reached each expert, layer by layer. */
#ifndef NB_CLI_COVERAGE_H
#define NB_CLI_COVERAGE_H

#include "cli/cli.h"
#include "job/quantize.h"

typedef struct nb_coverage {
    struct nb_cover {
        char where[192]; /* "model.layers.3.mlp" */
        size_t expert, tokens;
    } * seen;
    size_t n, cap;
} nb_coverage;

/* One row of the job; rows that are not of an expert are passed over. false: no memory. */
bool nb_coverage_add(nb_coverage *c, const nb_quantize_row *r);
/* A line per layer: least, median, most, and which experts saw nothing. Nothing when there are no experts. */
void nb_coverage_print(const nb_coverage *c, const nb_cli *cli);
/* The same as an array of objects, the caller's; NULL: no memory. */
nb_json *nb_coverage_json(const nb_coverage *c);
void nb_coverage_clear(nb_coverage *c);

#endif

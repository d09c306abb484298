/* embedded.h - files of data/ as bytes of the program (cmake/embed.cmake). */
#ifndef NB_JOB_EMBEDDED_H
#define NB_JOB_EMBEDDED_H

#include <stddef.h>

extern const unsigned char nb_data_engines[]; /* data/engines.json */
extern const size_t nb_data_engines_size;
extern const unsigned char nb_data_errors[]; /* data/errors.json */
extern const size_t nb_data_errors_size;
extern const unsigned char nb_data_gpus[]; /* data/gpus.json */
extern const size_t nb_data_gpus_size;

#endif

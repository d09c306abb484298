/* html.h - one HTML page without outside resources: frame and style, escaped text, tables. Charts: chart.h.
 *
 * Everything is appended to a growing buffer, whose errors stick (base/mem.h). The page is valid as XML too, needs no script, follows
 * the reader's light or dark setting and prints. Text that is not ours goes through nb_html_text. */
#ifndef NB_JOB_HTML_H
#define NB_JOB_HTML_H

#include <stddef.h>
#include <stdint.h>

#include "base/mem.h"

/* Escaped for element content and quoted attributes; bytes that are no characters of XML become U+FFFD. */
void nb_html_text(nb_buf *b, const char *s);

/* Head, style, and the header: a small line above, the title, a sentence below. */
void nb_html_begin(nb_buf *b, const char *small, const char *title, const char *below);
/* The footer says what wrote the page. */
void nb_html_end(nb_buf *b, const char *program);

void nb_html_section(nb_buf *b, const char *title, const char *about); /* about may be NULL; closes the one before */
void nb_html_notice(nb_buf *b, const char *text);

/* Large figures in a row: begin, one card each, end. note may be "". */
void nb_html_cards(nb_buf *b);
void nb_html_card(nb_buf *b, const char *name, const char *value, const char *note);
void nb_html_cards_end(nb_buf *b);

/* A table: begin with its caption and columns (numbers, here and in cells, have '#' in front and go right), rows of cells, end. The first
 * cell of a row is its head. */
void nb_html_table(nb_buf *b, const char *caption, const char *const *columns, size_t n);
void nb_html_row(nb_buf *b, const char *const *cells, size_t n);
void nb_html_table_end(nb_buf *b);

/* Numbers for people, 4 digits: 0.02652, 1.20e-05, 12345. Into out, which is returned. */
const char *nb_html_num(char out[32], double v);
const char *nb_html_bytes(char out[32], double bytes); /* "4.1 MB" */

#endif

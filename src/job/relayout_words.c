/* relayout_words.c - codes of a linear between two layouts that hold the same words (quant/words.h): a tile is read, summed for the
 * comparison, and written where it belongs, so that a code is never alone in a byte. Zero points and scales go through the hub. */
#include "job/relayout.h"
#include "quant/words.h"

enum { TILE = 1 << 19 }; /* bytes: a tile and its copy stay in the cache of a core */

bool nb_relay_words(const nb_relay *j, const nb_linear *lin)
{
    return j->o->repair == NB_REPAIR_NONE && j->to->words != NB_WORDS_NONE && j->to->pack && nb_words_fit(lin);
}

/* How a linear is cut, so that the bytes of a tile are contiguous in a layout of this kind. */
typedef struct cut {
    size_t rows, cols, n;
} cut;

static cut cut_of(nb_words_kind kind, const nb_linear *lin)
{
    const size_t k8 = lin->k / 8;
    cut c = { .rows = k8, .cols = lin->n };

    if (kind == NB_WORDS_BY_OUTPUT) {
        c.cols = TILE / (4 * k8) / NB_WORDS_SEGMENT * NB_WORDS_SEGMENT;
        c.cols = c.cols == 0 ? NB_WORDS_SEGMENT : c.cols;
        c.cols = c.cols < lin->n ? c.cols : lin->n;
        c.n = (lin->n + c.cols - 1) / c.cols;
    } else {
        c.rows = TILE / (4 * lin->n);
        c.rows = c.rows == 0 ? 1 : c.rows < k8 ? c.rows : k8;
        c.n = (k8 + c.rows - 1) / c.rows;
    }
    return c;
}

size_t nb_relay_tiles(const nb_relay *j, const nb_linear *lin)
{
    return cut_of(j->to->words, lin).n;
}

size_t nb_relay_tile_bytes(const nb_relay *j, const nb_linear *lin)
{
    const cut c = cut_of(j->to->words, lin);

    return c.rows * c.cols * 4;
}

/* A sum over segments of rows, each with its place: it does not depend on how the linear was cut. */
static uint64_t print_tile(const unsigned char *tile, size_t r0, size_t rows, size_t n0, size_t cols, size_t n)
{
    const size_t segments = (n + NB_WORDS_SEGMENT - 1) / NB_WORDS_SEGMENT;
    uint64_t sum = 0;

    for (size_t r = 0; r < rows; r++)
        for (size_t c = 0; c < cols; c += NB_WORDS_SEGMENT) {
            const size_t m = cols - c < NB_WORDS_SEGMENT ? cols - c : NB_WORDS_SEGMENT;
            sum += nb_print_bytes(tile + (r * cols + c) * 4, m * 4, (r0 + r) * segments + (n0 + c) / NB_WORDS_SEGMENT);
        }
    return sum;
}

uint64_t nb_relay_tile(nb_relay *j, const nb_linear *lin, size_t i, int thread, const char *name, nb_err *err)
{
    const nb_words_kind kind = j->to->words;
    const cut c = cut_of(kind, lin);
    const size_t r0 = kind == NB_WORDS_BY_OUTPUT ? 0 : i * c.rows, n0 = kind == NB_WORDS_BY_OUTPUT ? i * c.cols : 0;
    const size_t rows = lin->k / 8 - r0 < c.rows ? lin->k / 8 - r0 : c.rows, cols = lin->n - n0 < c.cols ? lin->n - n0 : c.cols;
    unsigned char *room = j->tiles + 2 * (size_t)thread * j->tile_cap;
    const unsigned char *tile = nb_words_get(lin, r0, rows, n0, cols, room);

    if (name) {
        const unsigned char *bytes = nb_words_put(kind, tile, rows, cols, room + j->tile_cap);
        if (nb_sink_write(j->sink, name, (uint64_t)(r0 * lin->n + n0 * (lin->k / 8)) * 4, bytes, (uint64_t)rows * cols * 4, err) != NB_OK)
            return 0;
    }
    return j->o->no_verify ? 0 : print_tile(tile, r0, rows, n0, cols, lin->n);
}

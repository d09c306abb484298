/* drive.c - runs a fuzz target without a fuzzer: every seed file as it is, then COUNT changed copies of each, the same
 * ones every time. usage: drive COUNT SEED... */
#include <string.h>

#include "fuzz_file.h"

static uint64_t state = 0x9E3779B97F4A7C15u;

static uint64_t next(void) /* xorshift64* */
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return state * 0x2545F4914F6CDD1Du;
}

/* One to four changes; returns the new size. The buffer has room for twice the seed. */
static size_t mutate(uint8_t *p, size_t n)
{
    static const uint64_t odd[] = { 0, 1, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, (uint64_t)1 << 63, UINT64_MAX };

    for (uint64_t k = 1 + next() % 4; k > 0 && n > 0; k--) {
        const size_t at = (size_t)(next() % n), width = (size_t)1 << next() % 4, len = (size_t)(next() % 64);
        const uint64_t v = odd[next() % (sizeof odd / sizeof odd[0])];
        switch (next() % 6) {
        case 0:
            p[at] ^= (uint8_t)(1u << next() % 8);
            break;
        case 1:
            p[at] = (uint8_t)next();
            break;
        case 2:
            memcpy(p + at, &v, width < n - at ? width : n - at);
            break;
        case 3:
            n = at;
            break;
        case 4: /* take a piece out */
            if (at + len < n) {
                memmove(p + at, p + at + len, n - at - len);
                n -= len;
            }
            break;
        default: /* repeat a piece */
            if (at + len < n) {
                memmove(p + at + len, p + at, n - at);
                n += len;
            }
        }
    }
    return n;
}

int main(int argc, char **argv)
{
    const long count = argc > 1 ? atol(argv[1]) : 0;

    for (int i = 2; i < argc; i++) {
        FILE *f = fopen(argv[i], "rb");
        uint8_t *seed = malloc(1 << 20), *work = malloc((1 << 20) + 1024);
        const size_t n = f && seed ? fread(seed, 1, 1 << 19, f) : 0;
        if (!f || !seed || !work)
            return 1;
        fclose(f);
        LLVMFuzzerTestOneInput(seed, n);
        for (long k = 0; k < count; k++) {
            memcpy(work, seed, n);
            LLVMFuzzerTestOneInput(work, mutate(work, n));
        }
        free(seed);
        free(work);
    }
    return argc > 2 ? 0 : 1;
}

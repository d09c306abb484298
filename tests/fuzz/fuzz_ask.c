/* fuzz_ask.c - bodies of requests: chat, completions, responses. Whatever comes, the answer is a request or one refusal. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "serve/ask.h"
#include "serve/items.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const nb_sampling defaults = { .temperature = 1, .top_p = 1, .repetition_penalty = 1 };
    const nb_ask_rules rules = { .vocab = 1000, .max_n = 16, .defaults = &defaults };

    for (int chat = 0; chat < 2; chat++) {
        nb_refusal f = { 0 };
        nb_ask a;
        const bool ok = nb_ask_parse(&a, chat, (const char *)data, size, &rules, &f);

        if (ok != (f.status == 0) || (!ok && (!f.code || !f.message[0])))
            abort();
        nb_ask_clear(&a);
    }
    {
        nb_refusal f = { 0 };
        nb_json *body = NULL, *asked = NULL;

        if (nb_body_parse((const char *)data, size, &body, &f) && !(asked = nb_items_to_chat(body, &f)) && !f.status)
            abort();
        nb_json_free(asked);
        nb_json_free(body);
    }
    return 0;
}

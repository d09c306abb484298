/* gguf_pre.c - which name of tokenizer.ggml.pre stands for which way of splitting text, in both directions.
 *
 * Patterns: spec tokenizers 7; which name means which pattern: llama.cpp src/llama-vocab.cpp. */
#include <string.h>

#include "base/mem.h"
#include "io/gguf_meta.h"

#define TAIL   " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define LLAMA3 "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|" TAIL
#define QWEN2  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|" TAIL
#define UPPER  "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER  "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define SHORT  "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define SLASH  " ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define ONE    "[^\\r\\n\\p{L}\\p{N}]?"
#define O200K  ONE UPPER "*" LOWER "+" SHORT "|" ONE UPPER "+" LOWER "*" SHORT "|\\p{N}{1,3}|" SLASH
#define TEKKEN ONE UPPER "*" LOWER "+|" ONE UPPER "+" LOWER "*|\\p{N}|" SLASH
#define DEEPSEEK                                                                                                                           \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"            \
    "\\s*[\r\n]+|\\s+(?!\\S)|\\s+"

static const nb_gguf_pre pres[] = {
    { .names = "gpt-2 phi-2 mpt olmo jais gigachat mellum" },
    { .names = "smollm starcoder refact command-r codeshell exaone minerva-7b", .digits = true },
    { .names = "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 glm4", .split = { LLAMA3 }, .ignore_merges = true, .bos = true },
    { .names = "dbrx smaug-bpe chatglm-bpe", .split = { LLAMA3 } },
    { .names = "qwen2 megrez deepseek-r1-qwen", .split = { QWEN2 }, .nfc = true },
    { .names = "stablelm2", .split = { QWEN2 } },
    { .names = "gpt-4o llama4", .split = { O200K } },
    { .names = "tekken", .split = { TEKKEN }, .ignore_merges = true },
    { .names = "deepseek-v3",
      .split = { "\\p{N}{1,3}", "[\xe4\xb8\x80-\xe9\xbe\xa5\xe3\x81\x80-\xe3\x82\x9f\xe3\x82\xa0-\xe3\x83\xbf]+", DEEPSEEK } },
};

const nb_gguf_pre *nb_gguf_pre_named(const char *name)
{
    const size_t n = strlen(name);

    for (size_t i = 0; i < NB_LEN(pres) && n > 0; i++) {
        for (const char *p = pres[i].names; (p = strstr(p, name)) != NULL; p += n) {
            if ((p == pres[i].names || p[-1] == ' ') && (p[n] == ' ' || p[n] == '\0'))
                return &pres[i];
        }
    }
    return NULL;
}

/* One step of a tokenizer.json pre-tokenizer. */
static bool is_split(const nb_json *v, const char *regex)
{
    return strcmp(nb_json_str(nb_json_get(v, "type"), ""), "Split") == 0 &&
           strcmp(nb_json_str(nb_json_get(nb_json_get(v, "pattern"), "Regex"), ""), regex) == 0 &&
           strcmp(nb_json_str(nb_json_get(v, "behavior"), ""), "Isolated") == 0 && !nb_json_bool(nb_json_get(v, "invert"), false);
}

static bool is_digits(const nb_json *v)
{
    return strcmp(nb_json_str(nb_json_get(v, "type"), ""), "Digits") == 0 && nb_json_bool(nb_json_get(v, "individual_digits"), false);
}

static bool is_bytes(const nb_json *v, bool regex)
{
    return strcmp(nb_json_str(nb_json_get(v, "type"), ""), "ByteLevel") == 0 && !nb_json_bool(nb_json_get(v, "add_prefix_space"), true) &&
           nb_json_bool(nb_json_get(v, "use_regex"), true) == regex;
}

static bool splits_like(const nb_gguf_pre *row, const nb_json *pre)
{
    const nb_json *list = nb_json_get(pre, "pretokenizers");
    const size_t n = list ? nb_json_len(list) : 1;
    size_t at = 0;

    if (row->digits && !is_digits(list && at < n ? nb_json_at(list, at++) : NULL))
        return false;
    for (size_t i = 0; i < NB_LEN(row->split) && row->split[i]; i++) {
        if (!is_split(list && at < n ? nb_json_at(list, at++) : NULL, row->split[i]))
            return false;
    }
    return at + 1 == n && is_bytes(list ? nb_json_at(list, at) : pre, !row->split[0]);
}

bool nb_gguf_pre_name(const nb_json *tokenizer, char *out, size_t cap)
{
    const nb_json *norm = nb_json_get(tokenizer, "normalizer");
    const bool nfc = strcmp(nb_json_str(nb_json_get(norm, "type"), ""), "NFC") == 0;
    const bool ignore = nb_json_bool(nb_json_get(nb_json_get(tokenizer, "model"), "ignore_merges"), false);

    if (!nb_json_is_null(norm) && !nfc)
        return false;
    for (size_t i = 0; i < NB_LEN(pres); i++) {
        const size_t n = strcspn(pres[i].names, " ");
        if (pres[i].nfc != nfc || pres[i].ignore_merges != ignore || n >= cap ||
            !splits_like(&pres[i], nb_json_get(tokenizer, "pre_tokenizer")))
            continue;
        memcpy(out, pres[i].names, n);
        out[n] = '\0';
        return true;
    }
    return false;
}

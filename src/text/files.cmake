nb_floor(text
  FILES utf8.c vocab.c norm.c onig.c pattern.c presplit.c tokjson.c tokmodel.c bpe.c bpe_encode.c unigram.c wordpiece.c trie.c charsmap.c base64.c added.c post.c decoder.c detok.c tokenizer.c
    toksource.c spmodel.c ranked.c
    gram_build.c gram_value.c gram_number.c gram_regex.c gram_ebnf.c gram_lark.c gram_schema.c gram_object.c gram_code.c gram_run.c gram_mask.c
    gram_vocab.c gram_cache.c gram_tools.c stop.c reply.c reply_channels.c reply_calls.c reply_live.c reply_values.c
    jinja_lex.c jinja_tokens.c jinja_parse.c jinja_stmt.c jinja_value.c jinja_math.c jinja_text.c jinja_case.c jinja_format.c jinja_date.c jinja_attr.c
    jinja_eval.c jinja_exec.c
    jinja_funcs.c jinja_tests.c jinja_methods.c jinja_search.c jinja_filters.c jinja_lists.c chat.c chat_encode.c
  DEPS base
  LIBS PkgConfig::PCRE2 PkgConfig::UTF8PROC m)

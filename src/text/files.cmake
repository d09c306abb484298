nb_floor(text
  FILES utf8.c vocab.c norm.c onig.c presplit.c tokjson.c tokmodel.c bpe.c added.c post.c decoder.c detok.c tokenizer.c
  DEPS base
  LIBS PkgConfig::PCRE2 PkgConfig::UTF8PROC m)

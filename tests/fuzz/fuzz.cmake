# Fuzz targets. Each is driven here by drive.c over its seeds; with clang and -fsanitize=fuzzer the same file is a
# libFuzzer target: clang -fsanitize=fuzzer,address -Isrc tests/fuzz/fuzz_X.c + libraries.
function(nb_fuzz name count)
  cmake_parse_arguments(Z "" "" "SEEDS;LIBS" ${ARGN})
  add_executable(fuzz_${name} ${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz_${name}.c ${PROJECT_SOURCE_DIR}/tests/fuzz/drive.c)
  target_compile_options(fuzz_${name} PRIVATE ${NB_WARN})
  target_link_libraries(fuzz_${name} PRIVATE ${Z_LIBS})
  add_test(NAME fuzz.${name} COMMAND fuzz_${name} ${count} ${Z_SEEDS} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(fuzz.${name} PROPERTIES LABELS fuzz TIMEOUT 300)
endfunction()

nb_fuzz(safetensors 20000 LIBS nb_io SEEDS tests/data/fuzz/small.safetensors)
nb_fuzz(gguf 10000 LIBS nb_io SEEDS tests/data/fuzz/small.gguf)
nb_fuzz(template 20000 LIBS nb_text SEEDS tests/data/fuzz/small.jinja)
nb_fuzz(pickle 30000 LIBS nb_io SEEDS tests/data/fuzz/small.pkl)
nb_fuzz(torch 10000 LIBS nb_io SEEDS tests/data/torch/zip.bin tests/data/torch/legacy.bin)
nb_fuzz(tokenizer 3000 LIBS nb_text SEEDS tests/data/fuzz/small-bpe.tok tests/data/fuzz/small-unigram.tok tests/data/fuzz/small-wordpiece.tok)
nb_fuzz(sentencepiece 3000 LIBS nb_text SEEDS tests/data/fuzz/small-bpe.spm tests/data/fuzz/small-unigram.spm tests/data/fuzz/small.tiktoken
  tests/data/fuzz/small-tekken.json)

# Fuzz targets. Each is driven here by drive.c over its seeds: the same changed copies in every run. With NB_FUZZ (preset
# fuzz, clang) they are libFuzzer targets instead, which tools/fuzz.sh runs; "fuzz" builds all.
add_custom_target(fuzz)
if(NB_FUZZ) # kernels are no readers, and take minutes to compile with coverage and checks
  get_property(isas GLOBAL PROPERTY NB_ISAS)
  foreach(isa IN LISTS isas)
    target_compile_options(${isa} PRIVATE -fno-sanitize=all)
  endforeach()
endif()
function(nb_fuzz name count)
  cmake_parse_arguments(Z "" "" "SEEDS;LIBS" ${ARGN})
  add_executable(fuzz_${name} ${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz_${name}.c)
  add_dependencies(fuzz fuzz_${name})
  target_compile_options(fuzz_${name} PRIVATE ${NB_WARN})
  target_link_libraries(fuzz_${name} PRIVATE ${Z_LIBS})
  if(NB_FUZZ)
    target_link_options(fuzz_${name} PRIVATE -fsanitize=fuzzer)
    string(REPLACE ";" "\n" seeds "${Z_SEEDS}")
    file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/fuzz_${name}.seeds CONTENT "${seeds}\n")
    return()
  endif()
  target_sources(fuzz_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/fuzz/drive.c)
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
nb_fuzz(index 3000 LIBS nb_io SEEDS tests/data/fuzz/small.index.json)
nb_fuzz(config 20000 LIBS nb_model
  SEEDS models/pemberley-4m/config.json tests/data/fuzz/rope.config.json)
nb_fuzz(qconfig 40000 LIBS nb_quant
  SEEDS tests/data/fuzz/awq.qconfig tests/data/fuzz/gptq.qconfig tests/data/fuzz/dynamic.qconfig tests/data/fuzz/ct.qconfig)
nb_fuzz(schema 8000 LIBS nb_text SEEDS tests/data/fuzz/object.schema tests/data/fuzz/tree.schema)
nb_fuzz(regex 20000 LIBS nb_text SEEDS tests/data/fuzz/small.regex)
nb_fuzz(ebnf 10000 LIBS nb_text SEEDS tests/data/fuzz/small.gbnf tests/data/fuzz/small.lark)
nb_fuzz(reply 3000 LIBS nb_text SEEDS tests/data/fuzz/hermes.reply tests/data/fuzz/xml.reply tests/data/fuzz/mistral.reply
  tests/data/fuzz/deepseek.reply tests/data/fuzz/pythonic.reply tests/data/fuzz/channels.reply tests/data/fuzz/glm.reply)

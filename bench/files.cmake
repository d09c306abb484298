# A random AWQ checkpoint of a given shape, for whole-model benchmarks.
add_executable(nibble_gen_model tests/gen/gen_model.c)
target_compile_options(nibble_gen_model PRIVATE ${NB_WARN})
target_link_libraries(nibble_gen_model PRIVATE nb_io)

# Wall and processor time and peak memory of a command, for bench_convert.sh.
add_executable(nibble_timed EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/timed.c)
target_compile_options(nibble_timed PRIVATE ${NB_WARN})

# nb_bench_kern [threads [table [what]]]: kernels beside read bandwidth and arithmetic peak. Not built by default.
add_executable(nb_bench_kern EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/bench_kern.c)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  target_sources(nb_bench_kern PRIVATE ${CMAKE_CURRENT_LIST_DIR}/peak_vnni.c)
  set_source_files_properties(${CMAKE_CURRENT_LIST_DIR}/peak_vnni.c PROPERTIES COMPILE_OPTIONS "-mavx512f;-mavx512vnni")
endif()
target_compile_options(nb_bench_kern PRIVATE ${NB_WARN})
target_include_directories(nb_bench_kern PRIVATE ${PROJECT_SOURCE_DIR}/src ${CMAKE_CURRENT_LIST_DIR})
target_link_libraries(nb_bench_kern PRIVATE nb_kern)

# nb_bench_dense [table [threads [rounds [what]]]]: float matrices, attention, elementwise. Not built by default.
add_executable(nb_bench_dense EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/bench_dense.c)
target_compile_options(nb_bench_dense PRIVATE ${NB_WARN})
target_link_libraries(nb_bench_dense PRIVATE nb_kern)

# nb_bench_tokenizer TOKENIZER.json TEXT [BYTES]: load and encode times. Not built by default.
add_executable(nb_bench_tokenizer EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/bench_tokenizer.c)
target_compile_options(nb_bench_tokenizer PRIVATE ${NB_WARN})
target_link_libraries(nb_bench_tokenizer PRIVATE nb_text)

# nb_bench_grammar TOKENIZER.json SCHEMA.json REPLY.txt: masks of structured output. Not built by default.
add_executable(nb_bench_grammar EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/bench_grammar.c)
target_compile_options(nb_bench_grammar PRIVATE ${NB_WARN})
target_link_libraries(nb_bench_grammar PRIVATE nb_text)

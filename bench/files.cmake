# A random AWQ checkpoint of a given shape, for whole-model benchmarks.
add_executable(nibble_gen_model tests/gen/gen_model.c)
target_compile_options(nibble_gen_model PRIVATE ${NB_WARN})
target_link_libraries(nibble_gen_model PRIVATE nb_io)

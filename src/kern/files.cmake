nb_floor(kern
  FILES pick.c q4_layout.c
    scalar/table.c scalar/pack_q4.c scalar/act.c scalar/gemm_q4.c scalar/probe.c
  DEPS tensor base
  LIBS m)
target_compile_options(nb_kern PRIVATE ${NB_FP})

# if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
# endif()

nb_floor(solve
  FILES gemm.c linalg.c chol.c solve_rtn.c solve_awq.c solve_gptq.c solve_refine.c solve_shift.c
  DEPS kern tensor base
  LIBS m)
# Comparisons may be turned into vector selections: nobody looks at floating-point exceptions, values stay the same.
target_compile_options(nb_solve PRIVATE -fno-trapping-math ${NB_HOT})

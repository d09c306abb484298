nb_floor(solve
  FILES linalg.c chol.c solve_rtn.c solve_awq.c solve_gptq.c solve_refine.c solve_shift.c
  DEPS tensor base
  LIBS m)
if(OPENBLAS_FOUND)
  target_link_libraries(nb_solve PRIVATE PkgConfig::OPENBLAS)
  target_compile_definitions(nb_solve PRIVATE NB_HAVE_CBLAS)
endif()
# Comparisons may be turned into vector selections: nobody looks at floating-point exceptions, values stay the same.
target_compile_options(nb_solve PRIVATE -fno-trapping-math)

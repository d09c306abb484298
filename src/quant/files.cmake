nb_floor(quant
  FILES format.c scan.c qconfig.c rules.c fmt_awq_gemm.c
  DEPS tensor base
  LIBS m)
target_compile_definitions(nb_quant PRIVATE NB_VERSION="${PROJECT_VERSION}")

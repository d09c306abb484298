nb_floor(quant
  FILES format.c infer.c scan.c qconfig.c qrules.c rx.c rules.c parts.c bitpack.c marlin.c
    awq.c fmt_awq_gemm.c fmt_awq_gemv.c fmt_awq_fast.c fmt_awq_marlin.c
    convention.c words.c fmt_gptq.c fmt_gptq_marlin.c fmt_ct.c
  DEPS tensor base
  LIBS m)
target_compile_definitions(nb_quant PRIVATE NB_VERSION="${PROJECT_VERSION}")

nb_floor(kern
  FILES pick.c q4_layout.c dense_layout.c attn_size.c
    scalar/dense.c scalar/attn.c scalar/misc.c scalar/recur.c
    scalar/table.c scalar/pack_q4.c scalar/act.c scalar/gemm_q4.c scalar/panel.c scalar/probe.c
  DEPS tensor base
  LIBS m)
target_compile_options(nb_kern PRIVATE ${NB_FP})

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  set(avx2 -mavx2 -mfma -mf16c)
  nb_isa(avx2 NB_HAVE_AVX2
    FLAGS ${avx2}
    FILES table.c pack_q4.c pack_dense.c act.c gemm_q4.c gemm_q8.c gemm_q4_f32.c probe.c dense.c panel.c attn.c misc.c recur.c)
  nb_isa(avx2vnni NB_HAVE_AVX2VNNI
    FLAGS ${avx2} -mavxvnni
    FILES table.c gemm_q4.c gemm_q8.c)
  set(avx512 ${avx2} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
  nb_isa(avx512bw NB_HAVE_AVX512BW
    FLAGS ${avx512}
    FILES table.c gemm_q4.c)
  nb_isa(avx512vnni NB_HAVE_AVX512VNNI
    FLAGS ${avx512}
    FILES table.c act.c gemm_q4.c gemm_q8.c gemm_q4_f32.c probe.c dense.c attn.c misc.c recur.c panel.c)
  foreach(f gemm_q4 gemm_q8) # the rest also serves the tier without VNNI
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/kern/avx512vnni/${f}.c PROPERTIES COMPILE_OPTIONS -mavx512vnni)
  endforeach()
  nb_isa(amx NB_HAVE_AMX
    FLAGS ${avx512} -mavx512vnni -mamx-tile -mamx-int8 -mprfchw -mtune=sapphirerapids
    FILES table.c gemm_q4.c gemm_q8.c)
  nb_isa(sha NB_HAVE_SHA
    FLAGS -msha -msse4.1
    FILES sha256.c)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64|ARM64")
  nb_isa(neon NB_HAVE_NEON
    FILES table.c pack_q4.c act.c gemm_q4.c gemm_q8.c gemm_q4_f32.c probe.c dense.c panel.c attn.c misc.c recur.c)
  nb_isa(neondot NB_HAVE_NEONDOT
    FLAGS -march=armv8.2-a+dotprod
    FILES table.c gemm_q4.c gemm_q8.c)
  nb_isa(neoni8mm NB_HAVE_NEONI8MM
    FLAGS -march=armv8.2-a+dotprod+i8mm
    FILES table.c gemm_q4.c gemm_q8.c)
endif()

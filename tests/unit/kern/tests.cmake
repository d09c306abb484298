nb_test(kern test_dense.c)
nb_test(kern test_q4.c THREADS)
nb_test(kern test_act.c)
nb_test(kern test_pack.c)
nb_test(kern test_attn.c)
nb_test(kern test_misc.c)
nb_test(kern test_recur.c)
nb_test(kern test_hash.c)

# The hot loops keep their sums in registers: a property of optimised code without sanitizers. What the compiler may keep on the
# stack besides, in a hundred products: spills.sh.
foreach(tier avx512vnni=0 avx512bw=0 avx2=75 avx2vnni=75 neon=15 neondot=15 neoni8mm=15)
  string(REGEX MATCH "^(.*)=(.*)$" _ ${tier})
  if(TARGET nb_kern_${CMAKE_MATCH_1} AND CMAKE_BUILD_TYPE STREQUAL "Release")
    add_test(NAME unit.kern.spills.${CMAKE_MATCH_1}
      COMMAND sh ${CMAKE_CURRENT_LIST_DIR}/spills.sh ${CMAKE_MATCH_2} ${CMAKE_OBJDUMP} $<TARGET_OBJECTS:nb_kern_${CMAKE_MATCH_1}>
      COMMAND_EXPAND_LISTS)
    set_tests_properties(unit.kern.spills.${CMAKE_MATCH_1} PROPERTIES LABELS unit SKIP_RETURN_CODE 77)
  endif()
endforeach()

nb_test(kern test_dense.c)
nb_test(kern test_q4.c THREADS)
nb_test(kern test_act.c)
nb_test(kern test_pack.c)
nb_test(kern test_attn.c)
nb_test(kern test_misc.c)
nb_test(kern test_recur.c)

# The hot loops keep their sums in registers: a property of optimised code without sanitizers.
if(TARGET nb_kern_avx512vnni AND CMAKE_BUILD_TYPE STREQUAL "Release")
  add_test(NAME unit.kern.spills COMMAND ${CMAKE_CURRENT_LIST_DIR}/spills.sh $<TARGET_OBJECTS:nb_kern_avx512vnni> COMMAND_EXPAND_LISTS)
  set_tests_properties(unit.kern.spills PROPERTIES LABELS unit SKIP_RETURN_CODE 77)
endif()

nb_test(solve test_rtn.c LIBS nb_io)
nb_test(solve test_awq.c LIBS nb_io)
nb_test(solve test_gptq.c THREADS LIBS nb_io)
nb_test(solve test_refine.c THREADS LIBS nb_io)

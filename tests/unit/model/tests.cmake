nb_test(model test_golden.c LIBS nb_io)

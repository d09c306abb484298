nb_test(model test_config.c)
nb_test(model test_bind.c LIBS nb_io)
nb_test(model test_golden.c LIBS nb_io)
nb_test(model test_bits.c THREADS LIBS nb_io)

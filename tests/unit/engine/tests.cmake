nb_test(engine test_kv.c)
nb_test(engine test_sampler.c)
nb_test(engine test_engine.c THREADS)
nb_test(engine test_serving.c)

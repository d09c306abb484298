nb_test(engine test_sampler.c)

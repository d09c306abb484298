nb_test(api test_api.c THREADS)

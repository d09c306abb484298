nb_test(job test_check.c)

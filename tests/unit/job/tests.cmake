nb_test(job test_check.c)
nb_test(job test_dump.c)
nb_test(job test_convert.c)

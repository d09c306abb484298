nb_test(tensor test_dtype.c)
nb_test(tensor test_qlin.c)
nb_test(tensor test_report.c)
nb_test(tensor test_store.c)

nb_test(serve test_head.c)
nb_test(serve test_ask.c)
nb_test(serve test_http.c THREADS)
nb_test(serve test_server.c THREADS LIBS nb_job)

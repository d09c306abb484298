nb_floor(tensor
  FILES dtype.c memstore.c qlin.c report.c sink.c store.c tensor.c
  DEPS base
  LIBS m)

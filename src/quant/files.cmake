nb_floor(quant
  FILES
  DEPS tensor base
  LIBS m)

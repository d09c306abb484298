nb_floor(model
  FILES
  DEPS quant kern tensor base
  LIBS m)

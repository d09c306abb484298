nb_floor(model
  FILES arch.c config.c rope.c plan.c
  DEPS quant kern tensor base
  LIBS m)

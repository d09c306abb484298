nb_floor(engine
  FILES kv.c sampler.c engine.c
  DEPS model kern tensor base
  LIBS m)

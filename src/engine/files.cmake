nb_floor(engine
  FILES
  DEPS model kern tensor base
  LIBS m)

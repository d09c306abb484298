nb_floor(solve
  FILES
  DEPS tensor base
  LIBS m)

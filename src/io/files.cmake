nb_floor(io
  FILES
  DEPS tensor base
  LIBS m)

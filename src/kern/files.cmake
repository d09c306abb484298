nb_floor(kern
  FILES
  DEPS tensor base
  LIBS m)

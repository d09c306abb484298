nb_floor(tensor
  FILES
  DEPS base
  LIBS m)

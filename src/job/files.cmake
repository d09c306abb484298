nb_floor(job
  FILES load.c speed.c
  DEPS engine model solve quant kern io text tensor base
  LIBS m)

nb_floor(job
  FILES
  DEPS engine model solve quant kern io text tensor base
  LIBS m)

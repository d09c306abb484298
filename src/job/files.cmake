nb_floor(job
  FILES check.c check_config.c check_names.c check_values.c load.c speed.c
  DEPS engine model solve quant kern io text tensor base
  LIBS m)

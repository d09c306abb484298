nb_floor(engine
  FILES kv.c prefix.c sampler.c request.c sched.c state.c near.c disk.c step.c engine_open.c engine.c
  DEPS model kern tensor base
  LIBS m)

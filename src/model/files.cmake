nb_floor(model
  FILES arch.c config.c rope.c plan.c source.c bind.c exec_ops.c exec.c exec_cpu.c fit.c
  DEPS quant kern tensor base
  LIBS m)

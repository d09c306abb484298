nb_floor(model
  FILES arch.c config.c config_read.c config_rope.c config_family.c moe.c rope.c plan.c source.c bind.c exec_ops.c exec.c exec_cpu.c exec_moe.c exec_mla.c latent.c fit.c
  DEPS quant kern tensor base
  LIBS m)

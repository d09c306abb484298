nb_floor(model
  FILES arch.c config.c config_read.c config_rope.c config_family.c rope.c plan.c nearest.c source.c mod.c moe.c latent.c bind.c bind_top.c
        exec.c exec_cpu.c exec_ops.c exec_moe.c exec_mla.c fit.c
  DEPS quant kern tensor base
  LIBS m)

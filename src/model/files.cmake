nb_floor(model
  FILES arch.c arch_2026.c arch_hybrid.c config.c config_2026.c config_hybrid.c config_gemma.c config_v4.c config_read.c config_rope.c config_family.c rope.c plan.c plan_names.c plan_size.c plan_mix.c plan_gemma.c plan_shared.c plan_v4.c nearest.c source.c mod.c moe.c latent.c bind.c bind_codes.c bind_set.c bind_top.c bind_gemma.c bind_v4.c
        exec.c exec_cpu.c exec_open.c exec_ops.c exec_rows.c exec_moe.c exec_mla.c
        exec_state.c exec_carry.c exec_gemma.c exec_shared.c exec_v4.c exec_v4_attn.c exec_index.c exec_conv.c exec_delta.c exec_ssm.c fit.c
  DEPS quant kern tensor base
  LIBS m)

nb_floor(job
  FILES answer.c check.c check_config.c check_json.c check_names.c check_values.c check_order.c convert.c relayout.c fingerprint.c dump.c inspect.c load.c logits.c ids.c eval_ppl.c eval_kl.c speed.c calib.c groups.c awq_block.c qout.c quantize.c
  DEPS engine model solve quant kern io text tensor base
  LIBS m)

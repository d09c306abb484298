nb_floor(job
  FILES answer.c check.c check_config.c check_json.c check_sarif.c check_names.c check_values.c check_scan.c check_order.c convert.c convert_gguf.c relayout.c relayout_plan.c relayout_words.c repair.c fingerprint.c diff.c engines.c explain.c dump.c inferred.c inspect.c load.c logits.c ids.c speed.c streams.c calib.c qmods.c qselect.c groups.c block.c awq_block.c awq_search.c awq_fold.c gptq_block.c gptq_walk.c moments.c method_rtn.c method_awq.c method_gptq.c qout.c quantize.c
    eval_set.c eval_stat.c eval_position.c eval_run.c eval_sum.c eval_layers.c eval_choice.c eval_json.c topk.c html.c chart.c page_eval.c page_quant.c capacity.c capacity_model.c gpus.c doctor.c doctor_ops.c
    calib_read.c calib_self.c spill.c journal.c recipe.c qplan.c qresume.c qout_check.c qcard.c
    check_numbers.c
  DEPS engine model solve quant kern io text tensor base
  LIBS m)
nb_embed(nb_job data/engines.json nb_data_engines)
nb_embed(nb_job data/errors.json nb_data_errors)
nb_embed(nb_job data/gpus.json nb_data_gpus)
target_compile_definitions(nb_job PRIVATE NB_VERSION="${PROJECT_VERSION}")

add_executable(nibble
  src/cli/main.c src/cli/opt.c src/cli/progress.c
  src/cli/cmd_inspect.c src/cli/cmd_check.c src/cli/cmd_convert.c src/cli/cmd_quantize.c src/cli/quantize_view.c src/cli/coverage.c
  src/cli/cmd_eval.c src/cli/eval_print.c src/cli/cmd_plan.c src/cli/cmd_doctor.c src/cli/cmd_run.c src/cli/cmd_serve.c
  src/cli/cmd_bench.c src/cli/cmd_bench_serve.c src/cli/bench_serve_data.c src/cli/bench_serve_result.c src/cli/bench_serve_report.c src/cli/cmd_tokenize.c src/cli/cmd_template.c src/cli/cmd_diff.c
  src/cli/cmd_explain.c src/cli/cmd_formats.c src/cli/cmd_completion.c)
target_compile_options(nibble PRIVATE ${NB_WARN} ${NB_GUARD})
target_compile_definitions(nibble PRIVATE NB_VERSION="${PROJECT_VERSION}")
execute_process(COMMAND git rev-parse --short=12 HEAD WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} OUTPUT_VARIABLE commit
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
set_source_files_properties(src/cli/main.c src/cli/cmd_serve.c PROPERTIES COMPILE_DEFINITIONS NB_COMMIT="${commit}")
target_link_libraries(nibble PRIVATE nb_job nb_serve)
nb_embed(nibble src/serve/page.html nb_page_html)

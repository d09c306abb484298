set(NB_VERBS inspect check convert quantize eval run bench tokenize template diff explain formats)
set(cli_files src/cli/main.c src/cli/opt.c src/cli/progress.c)
foreach(verb IN LISTS NB_VERBS)
  if(EXISTS ${PROJECT_SOURCE_DIR}/src/cli/cmd_${verb}.c)
    list(APPEND cli_files src/cli/cmd_${verb}.c)
  else()
    file(WRITE ${PROJECT_BINARY_DIR}/cmd_${verb}.c
"#include \"cli/cli.h\"
static nb_status run(nb_cli *c, int n, char **v, nb_err *e) { (void)c; (void)n; (void)v; return nb_fail(e, NB_EUNSUPPORTED, \"verb\", \"\", \"${verb} is not built yet\"); }
const nb_cmd nb_cmd_${verb};
const nb_cmd nb_cmd_${verb} = { .name = \"${verb}\", .usage = \"${verb}\", .brief = \"(not built yet)\", .help = \"\", .run = run };
")
    list(APPEND cli_files ${PROJECT_BINARY_DIR}/cmd_${verb}.c)
  endif()
endforeach()
add_executable(nibble ${cli_files})
target_compile_options(nibble PRIVATE ${NB_WARN})
target_compile_definitions(nibble PRIVATE NB_VERSION="${PROJECT_VERSION}")
target_link_libraries(nibble PRIVATE nb_job)

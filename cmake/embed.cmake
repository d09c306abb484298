# nb_embed(target file symbol): the bytes of a data file as `const unsigned char symbol[]` and `const size_t symbol_size`, so that the
# program needs nothing beside itself. Run as a script (cmake -P) it writes the C file.
if(CMAKE_SCRIPT_MODE_FILE)
  file(READ ${IN} hex HEX)
  string(LENGTH "${hex}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "(..)(..)(..)(..)(..)(..)(..)(..)" "0x\\1,0x\\2,0x\\3,0x\\4,0x\\5,0x\\6,0x\\7,0x\\8,\n" body "${hex}")
  math(EXPR rest "${size} % 8")
  if(rest)
    math(EXPR at "${digits} - ${rest} * 2")
    string(SUBSTRING "${hex}" 0 ${at} head)
    string(SUBSTRING "${hex}" ${at} -1 tail)
    string(REGEX REPLACE "(..)(..)(..)(..)(..)(..)(..)(..)" "0x\\1,0x\\2,0x\\3,0x\\4,0x\\5,0x\\6,0x\\7,0x\\8,\n" head "${head}")
    string(REGEX REPLACE "(..)" "0x\\1," tail "${tail}")
    set(body "${head}${tail}\n")
  endif()
  file(WRITE ${OUT} "#include <stddef.h>\nextern const unsigned char ${SYMBOL}[];\nextern const size_t ${SYMBOL}_size;\n"
    "const unsigned char ${SYMBOL}[] = {\n${body}};\nconst size_t ${SYMBOL}_size = ${size};\n")
  return()
endif()
include_guard()

set(NB_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})
function(nb_embed target file symbol)
  set(out ${PROJECT_BINARY_DIR}/embed/${symbol}.c)
  add_custom_command(OUTPUT ${out} DEPENDS ${PROJECT_SOURCE_DIR}/${file} ${NB_EMBED_SCRIPT} VERBATIM
    COMMAND ${CMAKE_COMMAND} -DIN=${PROJECT_SOURCE_DIR}/${file} -DOUT=${out} -DSYMBOL=${symbol} -P ${NB_EMBED_SCRIPT})
  target_sources(${target} PRIVATE ${out})
endfunction()

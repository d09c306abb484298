# What `make install` copies: component nibble. The pkg-config file finds its prefix from where it lies.
include(GNUInstallDirs)

file(RELATIVE_PATH NB_PC_UP /x/${CMAKE_INSTALL_LIBDIR}/pkgconfig /x)
string(REGEX REPLACE "/$" "" NB_PC_UP "${NB_PC_UP}")
configure_file(${PROJECT_SOURCE_DIR}/cmake/nibble.pc.in ${PROJECT_BINARY_DIR}/nibble.pc @ONLY)

install(TARGETS nibble_static nibble_shared
  ARCHIVE COMPONENT nibble
  LIBRARY COMPONENT nibble NAMELINK_COMPONENT nibble)
install(FILES ${PROJECT_SOURCE_DIR}/include/nibble/nibble.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/nibble COMPONENT nibble)
install(FILES ${PROJECT_BINARY_DIR}/nibble.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT nibble)
foreach(page README.md LICENSE)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${page})
    install(FILES ${PROJECT_SOURCE_DIR}/${page} DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT nibble)
  endif()
endforeach()

if(NB_CLI)
  install(TARGETS nibble RUNTIME COMPONENT nibble)
  # Man pages and completion come from the program's own help, so only where it runs.
  if(CMAKE_BUILD_TYPE STREQUAL Release AND NOT CMAKE_CROSSCOMPILING)
    set(man ${PROJECT_BINARY_DIR}/man)
    add_custom_command(OUTPUT ${man}/nibble.1
      COMMAND ${PROJECT_SOURCE_DIR}/tools/man.sh $<TARGET_FILE:nibble> ${man}
      DEPENDS nibble ${PROJECT_SOURCE_DIR}/tools/man.sh VERBATIM)
    add_custom_target(man ALL DEPENDS ${man}/nibble.1)
    install(DIRECTORY ${man}/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT nibble FILES_MATCHING PATTERN "*.1")
    foreach(place bash:bash-completion/completions/nibble zsh:zsh/site-functions/_nibble fish:fish/vendor_completions.d/nibble.fish)
      string(REGEX MATCH "^([a-z]+):(.*)/([^/]+)$" whole ${place})
      set(shell ${CMAKE_MATCH_1})
      set(script ${PROJECT_BINARY_DIR}/completion/${shell}/${CMAKE_MATCH_3})
      set(folder ${CMAKE_MATCH_2})
      file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/completion/${shell})
      add_custom_command(OUTPUT ${script} COMMAND nibble completion ${shell} >${script} DEPENDS nibble)
      add_custom_target(completion_${shell} ALL DEPENDS ${script})
      install(FILES ${script} DESTINATION ${CMAKE_INSTALL_DATADIR}/${folder} COMPONENT nibble)
    endforeach()
  endif()
endif()

nb_floor(base
  FILES
  DEPS
  LIBS PkgConfig::JANSSON Threads::Threads m)

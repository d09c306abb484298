nb_floor(text
  FILES
  DEPS base
  LIBS PkgConfig::PCRE2 PkgConfig::UTF8PROC m)

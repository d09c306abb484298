nb_floor(base
  FILES comm_self.c cpu.c err.c json.c log.c map.c mem.c merges.c num.c outdir.c pool.c rng.c sha256.c spm.c strmap.c thread.c u8.c
  DEPS
  LIBS PkgConfig::JANSSON Threads::Threads m)

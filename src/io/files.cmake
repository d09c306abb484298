nb_floor(io
  FILES gguf.c gguf_blocks.c gguf_hf.c gguf_map.c hfdir.c open.c probe.c safetensors.c shards.c st_write.c
  DEPS tensor base
  LIBS Threads::Threads m)

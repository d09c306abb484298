nb_floor(io
  FILES gguf.c gguf_blocks.c gguf_hf.c gguf_keys.c gguf_map.c gguf_pack.c gguf_pre.c gguf_write.c hfdir.c open.c
    pickle.c pickle_pool.c pickle_torch.c probe.c safetensors.c shards.c st_write.c torch.c torch_zip.c zip_layout.c
  DEPS tensor base
  LIBS Threads::Threads PkgConfig::LIBZIP m)

nb_test(io test_gguf.c)
nb_test(io test_safetensors.c)
nb_test(io test_shards.c)
nb_test(io test_st_write.c)

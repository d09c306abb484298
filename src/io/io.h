/* io.h - opening what the user names: a directory, a .safetensors file, an index, a .gguf file,
 * a PyTorch archive.
 *
 * Rules ST, IX, JS, FS, ZP, PK, GG of hardening 5. No tensor byte is read while opening; but of PyTorch tensors that are
 * not row-major a row-major copy is made. */
#ifndef NB_IO_IO_H
#define NB_IO_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/json.h"
#include "base/map.h"
#include "tensor/sink.h"
#include "tensor/store.h"

typedef enum nb_container { NB_IO_UNKNOWN, NB_IO_DIR, NB_IO_SAFETENSORS, NB_IO_INDEX, NB_IO_GGUF, NB_IO_TORCH } nb_container;

/* What is at `path`, by its first bytes and name (open.c sniff table). NB_EOPEN when it cannot be opened. Git-LFS
 * pointers are refused here (FIL-009, "fmt.mismatch"). */
nb_status nb_sniff(const char *path, nb_container *out, nb_err *err);

/* Open any supported container as a store with Hugging Face tensor names. For a directory: model.safetensors.index.json,
 * else model.safetensors, else the only *.safetensors, else pytorch_model.bin.index.json, else pytorch_model.bin, else the
 * only *.gguf, else the only *.bin, *.pt or *.pth with weights. Caller closes. */
nb_status nb_open(const char *path, nb_store **out, nb_err *err);

nb_status nb_st_open(const char *path, nb_store **out, nb_err *err);      /* safetensors.c */
nb_status nb_shards_open(const char *index, nb_store **out, nb_err *err); /* shards.c: .safetensors or .bin shards */
nb_status nb_torch_open(const char *path, nb_store **out, nb_err *err);   /* torch.c: pytorch_model.bin, .pt, .pth */
nb_status nb_gguf_open(const char *path, nb_store **out, nb_err *err);    /* gguf.c: tensors carry GGUF names, shapes outermost first */

/* The same file in Hugging Face terms: names, and q and k rows in rotate-half order (gguf_map.c). What nb_open gives. */
nb_status nb_gguf_hf_open(const char *path, nb_store **out, nb_err *err);
/* Name ("Q4_1") of a GGUF element type, and how many bytes a tensor takes in its file (for any store: n_bytes, except for
 * GGUF blocks). */
const char *nb_gguf_type_name(unsigned file_type);
uint64_t nb_gguf_stored_bytes(const nb_tensor *t);

/* The small files of a model directory, or what a GGUF file says in their place (gguf_hf.c builds config.json,
 * tokenizer.json, tokenizer_config.json, generation_config.json from its key-values). */
typedef struct nb_hfdir nb_hfdir;
nb_status nb_hfdir_open(const char *path, nb_hfdir **out, nb_err *err); /* directory, any file inside one, or a .gguf file */
void nb_hfdir_close(nb_hfdir *d);
const char *nb_hfdir_path(const nb_hfdir *d); /* the directory, or the gguf file */
bool nb_hfdir_is_gguf(const nb_hfdir *d);
/* config.json parsed (owned by d). FIL-001 when absent. */
nb_status nb_hfdir_config(nb_hfdir *d, const nb_json **out, nb_err *err);
/* What is odd about config.json but no error: "cfg.duplicate_key", once nb_hfdir_config has read it; or NULL. */
const nb_err *nb_hfdir_warning(const nb_hfdir *d);
/* The quantization config as loaders find it: config.json "quantization_config" (also nested under text_config), else
 * quantize_config.json, quant_config.json, quantization_config.json. *out NULL when there is none. *source names the file. */
nb_status nb_hfdir_quant_config(nb_hfdir *d, const nb_json **out, const char **source, nb_err *err);
/* Bytes of a small file ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja",
 * "special_tokens_map.json"), owned by d, terminated; *out NULL and *n 0 when absent (not an error). */
nb_status nb_hfdir_file(nb_hfdir *d, const char *name, const char **out, size_t *n, nb_err *err);
/* Names of all small files a copy of the model must carry (everything but weights, index and hidden files; no
 * subdirectories, no symlinks leaving the directory). */
size_t nb_hfdir_count(const nb_hfdir *d);
const char *nb_hfdir_name(const nb_hfdir *d, size_t i);
/* How many small files were left out of that list because they are links that lead out of the directory. */
size_t nb_hfdir_skipped(const nb_hfdir *d);

/* Sink into safetensors shards inside the staging directory of `dir` (st_write.c): one model.safetensors, or
 * model-00001-of-0000N.safetensors with index when more than shard_bytes (0: 5 GB). metadata {"format":"pt"}. */
nb_status nb_st_sink_open(nb_sink **out, nb_outdir *dir, uint64_t shard_bytes, nb_err *err);
/* For jobs that can be resumed, on a sink of nb_st_sink_open before declare: files keep the name "<shard>.part" until finish, are opened
 * again when they are there, and stay when the sink is closed. */
void nb_st_sink_resume(nb_sink *s);
nb_status nb_st_sink_have(nb_sink *s, const char *name, nb_err *err); /* after begin: an earlier process wrote this tensor */
nb_status nb_st_sink_read(nb_sink *s, const char *name, uint64_t off, void *p, uint64_t n, nb_err *err); /* what was written */
uint64_t nb_st_sink_size(const nb_sink *s, const char *name);                                            /* bytes of a tensor; 0: unknown */
nb_status nb_st_sink_sync(nb_sink *s, nb_err *err);                                                      /* all files so far */
/* One more string for the metadata of every file, before begin. */
nb_status nb_st_sink_meta(nb_sink *s, const char *key, const char *value, nb_err *err);
/* Sink into one .safetensors file that appears at finish (for --dump). */
nb_status nb_st_sink_file(nb_sink **out, const char *path, bool force, nb_err *err);

#endif

"""Random models of given shapes: an AWQ checkpoint for nibble, GGUF files and a 16-bit directory for the peers."""
import json
import os
import random
import shutil
import struct

from .util import call

SHAPES = {
    "1b": dict(hidden=2048, layers=16, heads=32, kv_heads=8, ffn=8192, vocab=32000, context=32768, group=128),
    "135m": dict(hidden=576, layers=30, heads=9, kv_heads=3, ffn=1536, vocab=49152, context=8192, group=64),
    # The active bytes of a token are those of the 1B shape.
    "moe": dict(hidden=2048, layers=16, heads=32, kv_heads=8, ffn=4096, vocab=32000, context=8192, group=128, kind="mixtral", experts=8,
                active=2),
    # Mixers are wider than attention: a feed-forward part that much narrower makes the weights of a step those of the 1B shape.
    "delta": dict(hidden=2048, layers=16, heads=16, kv_heads=4, ffn=6656, vocab=32000, context=8192, group=128, kind="delta"),
    "mamba": dict(hidden=2048, layers=16, heads=32, kv_heads=8, ffn=6272, vocab=32000, context=8192, group=128, kind="mamba"),
}
for _n in (2, 4, 8, 16, 32, 64):
    SHAPES[f"layers{_n}"] = dict(SHAPES["135m"], layers=_n, vocab=8192)


def byte_alphabet():
    """The 256 characters that byte-level vocabularies write bytes with."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    chars, n = {}, 0
    for b in range(256):
        if b in shown:
            chars[b] = chr(b)
        else:
            chars[b] = chr(256 + n)
            n += 1
    return [chars[b] for b in range(256)]


def put_tokenizer(folder, vocab):
    """One token a byte and fillers: prompts of any length, every id has a text."""
    words = byte_alphabet() + [f"<{i}>" for i in range(256, vocab)]
    tok = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
           "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
           "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
           "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                     "fuse_unk": False, "byte_fallback": False, "vocab": {w: i for i, w in enumerate(words)}, "merges": []}}
    for name, what in (("tokenizer.json", tok), ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"}),
                       ("generation_config.json", {"bos_token_id": 1, "eos_token_id": 2})):
        with open(os.path.join(folder, name), "w") as f:
            json.dump(what, f)


class Gguf:
    """A GGUF file of F16 matrices and F32 vectors, version 3."""

    def __init__(self):
        self.keys, self.tensors = [], []

    @staticmethod
    def text(s):
        b = s.encode()
        return struct.pack("<Q", len(b)) + b

    def key(self, name, value):
        kind = 8 if isinstance(value, str) else 6 if isinstance(value, float) else 4
        self.keys.append(self.text(name) + struct.pack("<I", kind) +
                         (self.text(value) if kind == 8 else struct.pack("<f" if kind == 6 else "<I", value)))

    def write(self, path):
        rng = random.Random(1)
        normal = b"".join(struct.pack("<e", rng.gauss(0, 1)) for _ in range(1 << 19))
        with open(path + ".new", "wb") as f:
            f.write(struct.pack("<4sIQQ", b"GGUF", 3, len(self.tensors), len(self.keys)) + b"".join(self.keys))
            at = 0
            for name, shape, size in self.tensors:
                f.write(self.text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", n) for n in shape) +
                        struct.pack("<IQ", 1 if size else 0, at))
                at += (self.bytes_of(shape, size) + 31) // 32 * 32
            f.write(bytes(-f.tell() % 32))
            scaled = {}
            for name, shape, size in self.tensors:
                left = self.bytes_of(shape, size)
                if not size:
                    f.write(struct.pack("<f", 1.0) * (left // 4))
                else:
                    if size not in scaled:
                        scaled[size] = b"".join(struct.pack("<e", v[0] * size) for v in struct.iter_unpack("<e", normal))
                    turn = rng.randrange(1 << 18) * 2  # every matrix begins elsewhere in the pool
                    while left:
                        part = scaled[size][turn:turn + left]
                        f.write(part)
                        left -= len(part)
                        turn = 0
                f.write(bytes(-self.bytes_of(shape, size) % 32))
        os.replace(path + ".new", path)

    @staticmethod
    def bytes_of(shape, size):
        n = 1
        for s in shape:
            n *= s
        return n * (2 if size else 4)


def write_gguf(path, s):
    g = Gguf()
    head = s["hidden"] // s["heads"]
    kv = s["kv_heads"] * head
    for name, value in (("general.architecture", "llama"), ("llama.context_length", s["context"]), ("llama.embedding_length", s["hidden"]),
                        ("llama.block_count", s["layers"]), ("llama.feed_forward_length", s["ffn"]),
                        ("llama.attention.head_count", s["heads"]), ("llama.attention.head_count_kv", s["kv_heads"]),
                        ("llama.attention.layer_norm_rms_epsilon", 1e-5), ("llama.rope.freq_base", 10000.0),
                        ("llama.rope.dimension_count", head), ("llama.vocab_size", s["vocab"]), ("general.file_type", 1),
                        ("tokenizer.ggml.model", "no_vocab")):
        g.key(name, value)
    h, f = s["hidden"], s["ffn"]
    matrices = [("attn_q", h, h), ("attn_k", kv, h), ("attn_v", kv, h), ("attn_output", h, h), ("ffn_gate", f, h), ("ffn_up", f, h), ("ffn_down", h, f)]
    g.tensors = [("token_embd.weight", (h, s["vocab"]), 1.0), ("output.weight", (h, s["vocab"]), h**-0.5), ("output_norm.weight", (h,), 0)]
    for i in range(s["layers"]):
        g.tensors += [(f"blk.{i}.{n}.weight", (h,), 0) for n in ("attn_norm", "ffn_norm")]
        g.tensors += [(f"blk.{i}.{n}.weight", (k, rows), k**-0.5) for n, rows, k in matrices]
    g.write(path)


def has_shape(path, s):
    """Was the checkpoint made of these sizes?"""
    with open(os.path.join(path, "config.json")) as f:
        c = json.load(f)
    return (c["hidden_size"], c["num_hidden_layers"], c["intermediate_size"], c["vocab_size"]) == (s["hidden"], s["layers"], s["ffn"], s["vocab"])


class Models:
    def __init__(self, folder, bin_dir, peers):
        self.folder, self.bin, self.peers = folder, bin_dir, peers
        os.makedirs(folder, exist_ok=True)

    def awq(self, shape):
        s = SHAPES[shape]
        path = os.path.join(self.folder, f"{shape}-awq-g{s['group']}")
        if os.path.isdir(path) and not has_shape(path, s):
            shutil.rmtree(path)
        if not os.path.isdir(path):
            call([os.path.join(self.bin, "nibble_gen_model"), path] + [f"{k}={v}" for k, v in s.items()])
        if not os.path.exists(os.path.join(path, "tokenizer.json")):
            put_tokenizer(path, s["vocab"])
        return path

    def gguf(self, shape, kind, peer="llama.cpp"):
        """A GGUF file of that type, quantized by the peer's own program with its defaults."""
        path = os.path.join(self.folder, f"{shape}-{kind}.gguf")
        wide = os.path.join(self.folder, f"{shape}-f16.gguf")
        if not os.path.exists(path):
            if not os.path.exists(wide):
                write_gguf(wide, SHAPES[shape])
            tool = self.peers.tool(peer, "llama-quantize")
            call([tool, wide, path + ".new", kind.upper()], env=self.peers.env(peer))
            os.replace(path + ".new", path)
        return path

    def hf16(self, shape):
        """A 16-bit Hugging Face directory with the values of the AWQ checkpoint."""
        path = os.path.join(self.folder, f"{shape}-f16")
        if not os.path.isdir(path):
            call([os.path.join(self.bin, "nibble"), "convert", self.awq(shape), "--to", "f16", "-o", path, "-q"])
            put_tokenizer(path, SHAPES[shape]["vocab"])
        return path

    def vllm(self, shape):
        """The same weights for vLLM with zentorch, whose fast path with 8-bit activations wants symmetric compressed-tensors."""
        s = SHAPES[shape]
        path = os.path.join(self.folder, f"{shape}-ct-g{s['group']}")
        if not os.path.isdir(path):
            call([os.path.join(self.bin, "nibble"), "quantize", self.hf16(shape), "--method", "rtn", "--sym", "--group-size", str(s["group"]),
                  "--format", "compressed-tensors", "-o", path, "-q"])
        return path

    def openvino(self, shape):
        """The same weights for OpenVINO: 4 bits, asymmetric, groups as in the AWQ checkpoint."""
        s = SHAPES[shape]
        path = os.path.join(self.folder, f"{shape}-openvino-int4")
        if not os.path.isdir(path):
            tool = self.peers.tool("openvino", "optimum-cli")
            call([tool, "export", "openvino", "--model", self.hf16(shape), "--task", "text-generation-with-past", "--weight-format", "int4",
                  "--group-size", str(s["group"]), "--ratio", "1.0", path + ".new"], timeout=3000)
            os.replace(path + ".new", path)
        return path


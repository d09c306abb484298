"""What is measured: a set is a list of probes that take turns, round after round. A probe gives numbers by name."""
import json
import os
import re
import shlex
import sys
import time

from .util import Skip, call
from .workers import Worker

HERE = os.path.dirname(os.path.abspath(__file__))
DEPTHS = (0, 1024, 4096, 16384)
BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
LAYERS = (2, 4, 8, 16, 32, 64)


class Probe:
    """name, and measure() -> {metric: number}; `shown` is what a reader types for the same figure."""

    def __init__(self, name, shown, measure):
        self.name, self.shown, self.measure = name, shown, measure


class Sets:
    def __init__(self, bin_dir, models, peers, threads):
        self.bin, self.models, self.peers, self.threads = bin_dir, models, peers, threads
        self.workers = {}
        self.hide = [(models.folder + "/", ""), (bin_dir + "/", ""), (peers.folder + "/", "")]

    def shown(self, cmd):
        text = shlex.join(cmd)
        for path, to in self.hide:
            text = text.replace(path, to)
        return re.sub(r"\S*/(llama-[a-z-]+)", r"\1", text)

    def close(self):
        for w in self.workers.values():
            w.close()

    # ---- probes ----

    def nibble(self, name, shape, threads=None, prompt=512, decode=64, depth="0", batch="1", more=()):
        cmd = [os.path.join(self.bin, "nibble"), "bench", self.models.awq(shape), "--json", "-q", "--rounds", "1", "--threads",
               str(threads or self.threads), "--prompt", str(prompt), "--decode", str(decode), "--depth", depth, "--batch", batch, *more]

        def measure():
            r = json.loads(call(cmd))
            out = {"prefill": r["prefill_tok_s"], "read": r["read_bytes_s"], "bytes": r["step_bytes"], "share": r["decode_share_of_read"]}
            for row in r["rows"]:
                if row["what"] == "decode":
                    out[f"decode x{row['batch']} @{row['depth']}"] = row["tok_s"]
            if "decode x1 @0" in out:
                out["weights"] = r["step_bytes"] * out["decode x1 @0"]
            return out

        return Probe(name, self.shown(cmd), measure)

    def llama(self, name, peer, model, threads=None, prompt=512, decode=64, depth=0, more=()):
        tool = self.peers.tool(peer, "llama-bench")
        if peer == "llama.cpp":
            still = ["-lm", "none", "-lzm", "off"]
        else:
            still = ["-mmp", "0", "-fa", "1"]
        deep = ["-d", str(depth)] if depth and peer == "llama.cpp" else []
        cmd = [tool, "-m", model, "-t", str(threads or self.threads), "-r", "1", *still, "-p", str(0 if depth else prompt), "-n", str(decode), *deep,
               *more, "-o", "json"]

        def measure():
            out = {}
            for r in json.loads(call(cmd, env=self.peers.env(peer))):
                out["prefill" if r["n_prompt"] and not r["n_gen"] else f"decode x1 @{r.get('n_depth', 0)}"] = r["avg_ts"]
            return out

        return Probe(name, self.shown(cmd), measure)

    def llama_batch(self, name, peer, model, batches, prompt=128, decode=64, more=()):
        tool = self.peers.tool(peer, "llama-batched-bench")
        most = max(int(b) for b in batches.split(","))
        cmd = [tool, "-m", model, "-t", str(self.threads), "-tb", str(self.threads), "-c", str(most * (prompt + decode) + 64), "-b", "2048", "-ub", "512",
               "-npp", str(prompt), "-ntg", str(decode), "-npl", batches, *(["-lm", "none"] if peer == "llama.cpp" else ["--no-mmap", "-fa"]), *more]

        def measure():
            out = {}
            for line in call(cmd, env=self.peers.env(peer)).split("\n"):
                cells = [c.strip() for c in line.split("|")]
                if len(cells) > 10 and cells[1].isdigit():
                    out[f"decode x{cells[3]} @{prompt}"] = float(cells[8])
            if not out:
                raise Skip(f"{name}: no figures in its output")
            return out

        return Probe(name, self.shown(cmd), measure)

    def worker(self, name, peer, model, jobs):
        """A peer that takes long to start stays up between rounds and waits on its input."""
        script = os.path.join(HERE, f"peer_{peer}.py")
        key = (peer, model)

        def measure():
            if key not in self.workers:
                self.workers[key] = Worker([self.peers.python(peer), script, model, str(self.threads)], self.threads)
            out = {}
            for what, batch, prompt, decode in jobs:
                out["prefill" if what == "prefill" else f"decode x{batch} @{prompt}"] = self.workers[key].ask(what, batch, prompt, decode)
            return out

        self.peers.python(peer)
        return Probe(name, self.shown(["python", f"bench/runall/peer_{peer}.py", model, str(self.threads)]), measure)

    def kernels(self, name, table, threads):
        if table == "amx" and "amx_int8" not in call(["lscpu"]):
            raise Skip("no AMX on this processor")
        cmd = [os.path.join(self.bin, "nb_bench_kern"), str(threads), table, "q4"]

        def measure():
            out = {}
            for line in call(cmd).split("\n"):
                r = json.loads(line) if line.startswith("{") else {}
                act = r.get("act", "a16")
                if r.get("bench") == "q4_stream":
                    out[f"{act} stream m{r['m']} k{r['k']} g{r['g']}"] = r["of_read"]
                    out["read"] = r["read_gb_s"] * 1e9
                elif r.get("bench") == "q4_tiles":
                    out[f"{act} tiles m{r['m']} g{r['g']} gmac"] = r["gmac_s"]
                    if "vpdpbusd_gmac_s" in r:
                        out["peak"] = r["vpdpbusd_gmac_s"]
                        out[f"{act} tiles m{r['m']} g{r['g']}"] = r.get("of_peak", r.get("of_half_peak"))
            return out

        return Probe(name, self.shown(cmd), measure)

    def plain_read(self, name, path):
        def measure():
            buf = bytearray(1 << 20)
            for _ in range(2):  # the first pass brings the file into the cache
                t = time.perf_counter()
                with open(path, "rb", buffering=0) as f:
                    while f.readinto(buf):
                        pass
            return {"seconds": time.perf_counter() - t}

        return Probe(name, f"read() of {os.path.basename(os.path.dirname(path))}/{os.path.basename(path)}, 1 MB at a time, in the page cache", measure)

    def first_token(self, name, shape):
        model = self.models.awq(shape)
        need = os.path.getsize(os.path.join(model, "model.safetensors")) * 5 // 4 >> 20
        cmd = [os.path.join(self.bin, x) for x in ("nibble_timed", "nibble")]
        cmd[1:1] = ["-m", str(need)]
        cmd += ["run", model, "x", "--raw", "-n", "1", "--temperature", "0", "--ignore-eos", "-q", "--context", "256"]

        def measure():
            return {"seconds": float(call(cmd).split()[0])}

        return Probe(name, self.shown(cmd), measure)

    def run_memory(self, name, shape, context):
        model = self.models.awq(shape)
        cmd = [os.path.join(self.bin, "nibble"), "run", model, "x" * 200, "--raw", "-n", "50", "--temperature", "0", "--ignore-eos", "-q", "--context", str(context)]

        def measure():
            _, _, kb = call([os.path.join(self.bin, "nibble_timed"), *cmd]).split()
            plan = json.loads(call([os.path.join(self.bin, "nibble"), "plan", model, "--json", "-q"]))
            held = plan["weights"] + context * plan["kv_bytes_per_token"]
            return {"peak": int(kb) * 1024, "held": held, "over": int(kb) * 1024 / held}

        return Probe(name, self.shown(["nibble_timed", *cmd]).replace("x" * 200, "TEXT"), measure)

    def profile(self, name, shape):
        """Samples of the decode loop, sorted into kernels and the rest."""
        def cmd(data, decode):
            return ["perf", "record", "-q", "-F", "999", "-o", data, os.path.join(self.bin, "nibble"), "bench", self.models.awq(shape), "--json", "-q",
                    "--rounds", "1", "--threads", str(self.threads), "--prompt", "1", "--decode", str(decode), "--depth", "0", "--batch", "1"]

        def measure():
            data = os.path.join(self.models.folder, "perf.data")
            call(cmd(data, 300))
            seen = {"product": 0.0, "attention": 0.0, "wait": 0.0, "other": 0.0}
            for line in call(["perf", "report", "-i", data, "--stdio", "-F", "overhead,sym", "-g", "none"]).split("\n"):
                m = re.match(r"\s*([\d.]+)%\s+\[([.k])\]\s+(\S+)", line)
                if m:
                    kind = kind_of(m.group(3), m.group(2) == "k")
                    if kind:
                        seen[kind] += float(m.group(1))
            os.remove(data)
            total = sum(seen.values())
            if not total:
                raise Skip("perf shows no samples of the program")
            return dict({k: v / total for k, v in seen.items()}, rest=(seen["wait"] + seen["other"]) / total)

        return Probe(name, self.shown(cmd("perf.data", 300)) + "; perf report -F overhead,sym", measure)

    # ---- sets ----

    def probes(self, name):
        """A list of (probe name, function that makes it); making one may Skip."""
        t, m, p = self.threads, self.models, self.peers
        two = sorted({1, t})
        return {
            "kernels": lambda: [(f"{table} {n}", lambda table=table, n=n: self.kernels(f"{table} {n}", table, n))
                                for table in ("amx", "avx512-vnni", "avx2") for n in two],
            "1b": lambda: [
                ("nibble", lambda: self.nibble("nibble", "1b")),
                ("nibble a8", lambda: self.nibble("nibble a8", "1b", more=["--act", "a8"])),
                ("nibble 1 thread", lambda: self.nibble("nibble 1 thread", "1b", threads=1)),
                *[(f"llama.cpp {q}", lambda q=q: self.llama(f"llama.cpp {q}", "llama.cpp", m.gguf("1b", q))) for q in ("q4_0", "q4_1", "q4_k_m")],
                ("ik q4_0", lambda: self.llama("ik q4_0", "ik_llama.cpp", m.gguf("1b", "q4_0"), more=["-rtr", "1"])),
                ("ik iq4_ks", lambda: self.llama("ik iq4_ks", "ik_llama.cpp", m.gguf("1b", "iq4_ks", "ik_llama.cpp"), more=["-rtr", "1"])),
            ],
            "135m": lambda: [
                *[(f"nibble {n}", lambda n=n: self.nibble(f"nibble {n}", "135m", threads=n, decode=128)) for n in two],
                *[(f"llama.cpp q4_0 {n}", lambda n=n: self.llama(f"llama.cpp q4_0 {n}", "llama.cpp", m.gguf("135m", "q4_0"), threads=n, decode=128)) for n in two],
                *[(f"ik q4_0 {n}", lambda n=n: self.llama(f"ik q4_0 {n}", "ik_llama.cpp", m.gguf("135m", "q4_0"), threads=n, decode=128, more=["-rtr", "1"]))
                  for n in two],
            ],
            "depth": lambda: [
                ("nibble", lambda: self.nibble("nibble", "1b", decode=32, depth="4096")),
                ("llama.cpp q4_0", lambda: self.llama("llama.cpp q4_0", "llama.cpp", m.gguf("1b", "q4_0"), decode=32, depth=4096)),
            ],
            "batch": lambda: [
                ("nibble", lambda: self.nibble("nibble", "1b", prompt=1, decode=32, depth="128", batch="8,16")),
                ("nibble a8", lambda: self.nibble("nibble a8", "1b", prompt=1, decode=32, depth="128", batch="8,16", more=["--act", "a8"])),
                ("llama.cpp q4_0", lambda: self.llama_batch("llama.cpp q4_0", "llama.cpp", m.gguf("1b", "q4_0"), "8,16", decode=32)),
                ("ik q4_0", lambda: self.llama_batch("ik q4_0", "ik_llama.cpp", m.gguf("1b", "q4_0"), "8,16", decode=32, more=["-rtr"])),
            ],
            "others": lambda: [
                ("nibble", lambda: self.nibble("nibble", "1b", decode=32, depth="128", batch="1,8,16")),
                ("nibble a8", lambda: self.nibble("nibble a8", "1b", decode=32, depth="128", batch="1,8,16", more=["--act", "a8"])),
                ("llama.cpp q4_0", lambda: self.llama("llama.cpp q4_0", "llama.cpp", m.gguf("1b", "q4_0"), decode=32)),
                ("ik wheel", lambda: self.worker("ik wheel", "ik", m.gguf("1b", "q4_0"), JOBS)),
                ("openvino", lambda: self.worker("openvino", "openvino", m.openvino("1b"), JOBS)),
                ("vllm", lambda: self.worker("vllm", "vllm", m.vllm("1b"), JOBS)),
            ],
            "others-135m": lambda: [
                ("nibble", lambda: self.nibble("nibble", "135m", decode=64, depth="128")),
                ("nibble a8", lambda: self.nibble("nibble a8", "135m", decode=64, depth="128", more=["--act", "a8"])),
                ("llama.cpp q4_0", lambda: self.llama("llama.cpp q4_0", "llama.cpp", m.gguf("135m", "q4_0"), decode=64)),
                ("ik wheel", lambda: self.worker("ik wheel", "ik", m.gguf("135m", "q4_0"), JOBS[:2])),
                ("openvino", lambda: self.worker("openvino", "openvino", m.openvino("135m"), JOBS[:2])),
                ("vllm", lambda: self.worker("vllm", "vllm", m.vllm("135m"), JOBS[:2])),
            ],
            "start": lambda: [
                ("read", lambda: self.plain_read("read", os.path.join(m.awq("1b"), "model.safetensors"))),
                ("nibble", lambda: self.first_token("nibble", "1b")),
            ],
            "memory": lambda: [("nibble", lambda: self.run_memory("nibble", "1b", 2048))],
            "profile": lambda: [("nibble", lambda: self.profile("nibble", "1b"))],
            "moe": lambda: [("nibble", lambda: self.nibble("nibble", "moe", prompt=128))],
            "hybrid": lambda: [(shape, lambda shape=shape: self.nibble(shape, shape, decode=16, depth="0,4096")) for shape in ("1b", "delta", "mamba")],
            "growth-depth": lambda: [
                ("nibble", lambda: self.nibble("nibble", "1b", prompt=1, decode=16, depth=",".join(map(str, DEPTHS)))),
                *[(f"llama.cpp q4_0 @{d}", lambda d=d: self.llama(f"llama.cpp q4_0 @{d}", "llama.cpp", m.gguf("1b", "q4_0"), prompt=0, decode=16, depth=d))
                  for d in DEPTHS[:3]],
            ],
            "growth-batch": lambda: [
                ("nibble", lambda: self.nibble("nibble", "1b", prompt=1, decode=8, depth="128", batch=",".join(map(str, BATCHES)))),
                ("nibble a8", lambda: self.nibble("nibble a8", "1b", prompt=1, decode=8, depth="128", batch=",".join(map(str, BATCHES)), more=["--act", "a8"])),
                ("llama.cpp q4_0", lambda: self.llama_batch("llama.cpp q4_0", "llama.cpp", m.gguf("1b", "q4_0"), ",".join(map(str, BATCHES)), prompt=32, decode=8)),
            ],
            "growth-layers": lambda: [(f"nibble {n}", lambda n=n: self.nibble(f"nibble {n}", f"layers{n}", prompt=128, decode=64)) for n in LAYERS],
        }[name]()


JOBS = [("prefill", 1, 512, 0), ("decode", 1, 128, 32), ("decode", 8, 128, 32), ("decode", 16, 128, 32)]
NAMES = ["kernels", "1b", "135m", "depth", "batch", "others", "others-135m", "start", "memory", "profile", "moe", "hybrid", "growth-depth", "growth-batch",
         "growth-layers"]


def kind_of(symbol, in_kernel):
    """Where a sample of a decoding step belongs; None: reading the file, packing, measuring the read."""
    if in_kernel or re.search(r"pack|probe|touch|hash|mem(set|move|cpy)|put_rows|nb_st_|qlin|awq|load|philox|parse|scan|vdso|syscall|malloc|free", symbol):
        return None
    if re.search(r"^block_|gemm|gemv|dense|strips|q[48]_", symbol):
        return "product"
    if re.search(r"^att_|attn|softmax|kv_put", symbol):
        return "attention"
    if re.search(r"^(worker_main|run|do_work)$|pool|spin|barrier|wait", symbol):
        return "wait"
    return "other"


def measure_round(probes, data, say):
    """One round of all probes that can be made; a probe that skips is left out of this round, with its reason."""
    row = {}
    for name, make in probes:
        try:
            probe = make()
            row[name] = probe.measure()
            row[name]["at"] = round(time.time())
            data["commands"][name] = probe.shown
            data["skipped"].pop(name, None)
            say(f"    {name:20s} " + "  ".join(f"{k} {v:.4g}" for k, v in list(row[name].items())[:6] if k not in ("at", "bytes")))
        except Skip as why:
            data["skipped"][name] = str(why)
            say(f"    {name:20s} skipped: {why}")
    if row:
        data["rounds"].append(row)
    sys.stderr.flush()

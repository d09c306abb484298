#!/usr/bin/env python3
"""nibble's quantizers beside the reference programs: same models, calibration rows and evaluation ids, one evaluation.

  python3 bench/quantize_peers.py --nibble BUILD/nibble --golden ../shared/golden --data ../shared/data [--smollm2 DIR]
      [--work DIR] [--only REGEX] [--runs N] [--threads N] [--check PYTHON] [--peers DIR] [--note TEXT] [-o bench/QUALITY.md]
  python3 bench/quantize_peers.py --install DIR

Every row of golden/quantizers/peers.json is answered by one nibble command with the same grid, group size, order, damping and
rows; its KL is that of `nibble eval --ref` on the ids the row was measured with. Besides them the best of nibble for each
model and group size, plain GPTQ for the cost of what nibble adds to it, and other widths. The table says what was typed.

--smollm2 is SmolLM2-135M-Instruct as a 16-bit directory; without it its rows are left out. --work keeps results between runs: a
row that has one is not run again (delete DIR/results.json to start over). Processor seconds are user and system time, the median of
--runs. The peers' seconds are recorded ones, less the imports (7 s GPTQModel, 5.5 s llm-compressor). --check evaluates what was
written a second time, with evalq.py of the golden folder under PYTHON (torch, transformers, safetensors). --note is a sentence for the head of the table.

--install makes a directory outside the tree with a virtual environment for each peer (they ask for different releases of torch), says
which of them could be installed, and ends; 8 GB, for torch 2.14 brings its libraries for GPUs, and GPTQModel wants a C++ compiler when it
first runs. PIP_FIND_LINKS may name a folder with a torch for processors. --peers is that directory: rows
of AWQ and GPTQ are then run again by their own programs (bench/peers/quantizers.py) beside nibble, with as many threads, and the
seconds in the table are theirs on this machine; one that does not run has none, and the script says why.
"""
import argparse
import json
import os
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile

IMPORTS = {"gptqmodel": 7.0, "llm-compressor": 5.5}
PEERS = {"llmcompressor==0.14.0": "torch==2.13.0", "gptqmodel==7.7.0": "torch==2.14.1"}  # those they were recorded with
ENVS = {"gptqmodel": "gptqmodel", "llm-compressor": "llmcompressor"}
# In favour of the peers: with the default allocator half of their AWQ time is page faults (notes of peers.json).
MALLOC = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000", "MALLOC_TOP_PAD_": "67108864",
          "THP_MEM_ALLOC_ENABLE": "1"}
# Beyond the peers' rows: model, label, options, calibration rows.
OWN = [
    ("pemberley", "gptq, nothing added", "--method gptq --asym --group-size 128 --gptaq 0 --refine 0", 32),
    ("pemberley", "awq, modules replayed", "--method awq --asym --group-size 128 --awq-inspect --refine 0", 32),
    ("pemberley", "awq, nothing added", "--method awq --asym --group-size 128 --refine 0", 32),
    ("pemberley", "awq+gptq", "--method awq+gptq --asym --group-size 128", 32),
    ("pemberley", "best, g128", "--method gptq --asym --group-size 128", 32),
    ("pemberley", "best, g64", "--method gptq --asym --group-size 64", 32),
    ("pemberley", "best, g32", "--method gptq --asym --group-size 32", 32),
    ("pemberley", "8 bits, one group", "--method gptq --bits 8 --group-size -1", 32),
    ("pemberley", "6 bits", "--method gptq --bits 6 --group-size 128", 32),
    ("pemberley", "5 bits", "--method gptq --bits 5 --group-size 128", 32),
    ("pemberley", "3 bits", "--method gptq --asym --bits 3 --group-size 64", 32),
    ("pemberley", "2 bits", "--method gptq --asym --bits 2 --group-size 32", 32),
    ("pemberley", "4 bits, one group", "--method gptq --asym --group-size -1", 32),
    ("smollm2", "gptq, nothing added", "--method gptq --asym --group-size 64 --gptaq 0 --refine 0", 8),
    ("smollm2", "awq, nothing added", "--method awq --asym --group-size 64 --refine 0", 8),
    ("smollm2", "awq+gptq", "--method awq+gptq --asym --group-size 64", 8),
    ("smollm2", "best, g64", "--method gptq --asym --group-size 64", 8),
]


def method(row):
    s = row["settings"]
    if row["program"] == "rtn" or s.get("rtn"):
        return "rtn"
    return s.get("quant_method") or s["method"]


def options(row):
    """The nibble options that ask for what a row of peers.json asked for."""
    s, m = row["settings"], method(row)
    o = ["--method", m, "--sym" if s["sym"] else "--asym", "--group-size", str(s["group_size"])]
    if m == "gptq":
        if s.get("desc_act"):
            o.append("--desc-act")
        elif s.get("act_group_aware") is False:
            o.append("--natural-order")
        if "damp_percent" in s:
            o += ["--damp", str(s["damp_percent"])]
        if s.get("mse"):
            o += ["--mse", str(s["mse"])]
    if m == "awq":
        if s.get("duo") is False or s.get("duo_scaling") is False:
            o.append("--awq-plain")
        if s.get("clip") is False:
            o += ["--awq-clip", "0"]
    return " ".join(o)


def again(envs, row, model, calib, out, threads):
    """A row by its own program, here: {"cpu": seconds without imports}, or {"why": it did not run}."""
    shutil.rmtree(out, ignore_errors=True)
    python = os.path.abspath(os.path.join(envs, ENVS[row["program"]], "bin", "python"))
    if not os.path.exists(python):
        return {"why": python + " is not there (--install)"}
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers", "quantizers.py")
    files = [os.path.abspath(f) for f in (model, calib, out)]
    env = dict(os.environ, OMP_NUM_THREADS=str(threads), **MALLOC)
    with tempfile.TemporaryDirectory() as logs:  # GPTQModel leaves a folder of logs where it runs
        p = subprocess.run([python, script, row["program"], json.dumps(row["settings"]), *files[:2], str(row["calibration_rows"]), files[2]],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=logs)
    lines = [s for s in (p.stderr if p.returncode else p.stdout).splitlines() if s.strip()]
    return {"why": lines[-1] if lines else "nothing printed"} if p.returncode else {"cpu": json.loads(lines[-1])["cpu_s"]}


def run(cmd):
    """Run; return (stdout, processor seconds, peak MiB)."""
    p = subprocess.Popen(cmd, stdout=subprocess.PIPE)
    out = p.stdout.read()
    _, status, use = os.wait4(p.pid, 0)
    p.returncode = os.waitstatus_to_exitcode(status)
    if p.returncode:
        sys.exit("failed: " + shlex.join(cmd))
    return out, use.ru_utime + use.ru_stime, use.ru_maxrss / 1024


def install(where):
    """One virtual environment a peer; the number of those that could not be installed."""
    bad = 0
    for peer, torch in PEERS.items():
        env = os.path.join(where, peer.split("==")[0])
        subprocess.check_call([sys.executable, "-m", "venv", env])
        failed = subprocess.call([os.path.join(env, "bin", "pip"), "install", "-q", torch, peer])
        print(f"{peer}: {'not installed' if failed else 'installed'} in {env}", flush=True)
        bad += failed != 0
    return bad


class Bench:
    def __init__(self, a):
        self.a = a
        self.work = a.work or tempfile.mkdtemp(prefix="nibble-quantize-")
        os.makedirs(self.work, exist_ok=True)
        self.store = os.path.join(self.work, "results.json")
        self.done = json.load(open(self.store)) if os.path.exists(self.store) else {}
        calib = os.path.join(a.data, "calib")
        self.models = {"pemberley": (os.path.join(a.data, "pemberley-4m"), calib + "/pemberley_calib.safetensors",
                                     calib + "/pemberley_eval.safetensors"),
                       "smollm2": (a.smollm2, calib + "/smollm2_calib.safetensors", calib + "/smollm2_eval.safetensors")}

    def measure(self, model, opts, rows):
        key = f"{model} {opts} rows {rows}"
        if key in self.done:
            return self.done[key]
        src, calib, ids = self.models[model]
        out = os.path.join(self.work, "out")
        cmd = [self.a.nibble, "quantize", src, *opts.split(), "-o", out, "-q", "--force", "--threads", str(self.a.threads)]
        if "rtn" not in opts:
            cmd += ["--calib", calib, "--calib-rows", str(rows)]
        cpu, peak = [], 0
        for _ in range(self.a.runs):
            shutil.rmtree(out, ignore_errors=True)
            _, s, peak = run(cmd)
            cpu.append(s)
        text, _, _ = run([self.a.nibble, "eval", out, "--ids", ids, "--ref", src, "--json", "-q"])
        e = json.loads(text)
        r = {"kl": mean(e["kl"]), "kl_sem": e["kl_sem"], "kl_999": e["kl_999"], "kl_999_lo": e["kl_999_lo"], "kl_999_hi": e["kl_999_hi"],
             "top1": mean(e["top1"]), "ppl": e["ppl"], "cpu": statistics.median(cpu), "peak": peak, "cmd": opts, "rows": rows}
        if self.a.check:
            script = os.path.join(self.a.golden, "quantizers", "evalq.py")
            cache = os.path.join(self.work, model + ".npy")
            text, _, _ = run([self.a.check, script, src, ids, cache, out])
            r["kl_transformers"] = json.loads(text.splitlines()[-1])["kl_mean"]
        self.keep(key, r)
        print(f"{model:10} {opts:70} KL {r['kl']:.5f}  {r['cpu']:.1f} s", flush=True)
        return r

    def keep(self, key, r):
        self.done[key] = r
        json.dump(self.done, open(self.store, "w"), indent=1)

    def peer(self, row):
        """Processor seconds of a row's program without its imports: measured here with --peers, else recorded."""
        if not self.a.peers or row["program"] not in ENVS or method(row) == "rtn":
            return row["cpu_s"] - IMPORTS[row["program"]] if "cpu_s" in row else None
        src, calib, ids = self.models[row["model"]]
        key, out = f"peer {row['model']} {row['name']}", os.path.join(self.work, "peer")
        if key not in self.done:
            r = again(self.a.peers, row, src, calib, out, self.a.threads)
            if "cpu" in r:
                e = json.loads(run([self.a.nibble, "eval", out, "--ids", ids, "--ref", src, "--json", "-q"])[0])
                r["kl"], r["kl_999"] = mean(e["kl"]), e["kl_999"]
            self.keep(key, r)
        r = self.done[key]
        print(f"{row['model']:10} {row['name']:70} " + (f"KL {r['kl']:.5f} ({row['kl_mean']:.5f} recorded)  {r['cpu']:.1f} s" if "cpu" in r
                                                        else "not run: " + r["why"]), flush=True)
        return r.get("cpu")


def line(cells):
    return "| " + " | ".join(cells) + " |\n"


def table(head, rows):
    return line(head) + line(["---"] + ["---:" if h != "options" else "---" for h in head[1:]]) + "".join(line(r) for r in rows)


def mean(x):
    return x["mean"] if isinstance(x, dict) else x


def above(r, o):
    """A row whose 99.9th percentile is not below the peer's: is the difference one?"""
    if "kl_999_lo" not in o:
        return ""
    says = "within which lies" if o["kl_999_lo"] <= r["kl_999"] else "which is worse than"
    return (f"\n99.9 % of {r['model']} {r['name']}: {o['kl_999']:.3f}, interval of 95 % {o['kl_999_lo']:.3f} to {o['kl_999_hi']:.3f} (bootstrap "
            f"over rows), {says} the peer's {r['kl_999']:.3f}.\n")


def pct(x):
    return f"{100 * x:.2f} %"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--nibble", default="nibble")
    p.add_argument("--golden", default="../shared/golden")
    p.add_argument("--data", default="../shared/data")
    p.add_argument("--smollm2")
    p.add_argument("--work")
    p.add_argument("--only", default="")
    p.add_argument("--runs", type=int, default=1)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--check")
    p.add_argument("--install")
    p.add_argument("--peers")
    p.add_argument("--note", default="")
    p.add_argument("-o", "--output")
    a = p.parse_args()
    if a.install:
        sys.exit(install(a.install))
    b = Bench(a)
    peers = json.load(open(os.path.join(a.golden, "quantizers", "peers.json")))["rows"]
    have = [m for m in b.models if b.models[m][0]]
    lines, worst, best, least = [], [], {}, {}
    for row in peers:
        if "settings" not in row or row["model"] not in have or not re.search(a.only, row["model"] + " " + row["name"]):
            continue
        ours = b.measure(row["model"], options(row), row.get("calibration_rows") or 0)
        lines.append((row, ours, b.peer(row)))
        g = (row["model"], method(row), row["settings"]["sym"], row["settings"]["group_size"])
        best[g] = min(best.get(g, row), row, key=lambda r: r["kl_mean"])
        least[g] = min(least.get(g, ours), ours, key=lambda r: r["kl"])
    own = [(m, label, b.measure(m, o, rows)) for m, label, o, rows in OWN if m in have and re.search(a.only, m + " " + label)]

    head = ["peer row", "KL", "99.9 %", "top-1", "s", "nibble: KL", "99.9 %", "top-1", "s", "KL ratio", "s ratio", "options"]
    body = [[f"{r['model']} {r['name']}", f"{r['kl_mean']:.5f}", f"{r['kl_999']:.3f}", pct(r["top1"]), f"{c:.1f}" if c else "",
             f"{o['kl']:.5f}", f"{o['kl_999']:.3f}", pct(o["top1"]), f"{o['cpu']:.1f}", f"{o['kl'] / r['kl_mean']:.2f}",
             f"{o['cpu'] / c:.2f}" if c and c > 1 else "", f"`{o['cmd']}`" + (f", {o['rows']} rows" if o["rows"] else "")]
            for r, o, c in lines]
    for g, r in best.items():
        o = least[g]
        worst.append(["%s %s %s g%d" % (g[0], g[1], "sym" if g[2] else "asym", g[3]), f"{r['kl_mean']:.5f} ({r['name']})",
                      f"{o['kl']:.5f}", f"{o['kl'] / r['kl_mean']:.2f}", f"`{o['cmd']}`"])
    text = "# Quality of the quantizers beside the reference programs\n\n"
    text += "Written by `bench/quantize_peers.py`; its head says how to run it and what is compared. KL in nats a token to the 16-bit model, its\n"
    text += "99.9th percentile, share of equal most likely tokens; s: processor seconds (peers: %s, less imports).\n\n" % (
        "measured in the same run" if a.peers else "recorded")
    text += a.note + "\n\n" if a.note else ""
    text += "## Best of each method\n\n" + table(["method", "best peer", "nibble", "ratio", "options"], worst)
    text += "\n## Best of all\n\n"
    rows = []
    for m in have:
        for g in sorted({k[3] for k in best if k[0] == m}):
            r = min((v for k, v in best.items() if k[0] == m and k[3] == g), key=lambda r: r["kl_mean"])
            mine = [x for k, x in least.items() if k[0] == m and k[3] == g]
            mine += [o for n, _, o in own if n == m and f"--group-size {g}" in o["cmd"] and "--bits" not in o["cmd"]]
            o = min(mine, key=lambda x: x["kl"])
            rows.append([f"{m} g{g}", f"{r['kl_mean']:.5f} ({r['name']})", f"{o['kl']:.5f}", f"{o['kl'] / r['kl_mean']:.2f}", f"`{o['cmd']}`"])
    text += table(["model", "best peer of any method", "best of nibble", "ratio", "options"], rows)
    text += "\n## What nibble adds, and other widths\n\n"
    text += table(["case", "KL", "99.9 %", "top-1", "perplexity", "s", "peak MiB", "options"],
                  [[f"{m} {label}", f"{o['kl']:.5f}", f"{o['kl_999']:.3f}", pct(o["top1"]), f"{o['ppl']:.2f}", f"{o['cpu']:.1f}",
                    f"{o['peak']:.0f}", f"`{o['cmd']}`"] for m, label, o in own])
    text += "\n## Every row\n\n" + table(head, body) + "".join(above(r, o) for r, o, _ in lines if o["kl_999"] > r["kl_999"])
    checked = [o for _, o, _ in lines if "kl_transformers" in o]
    if checked:
        far = max(abs(o["kl_transformers"] / o["kl"] - 1) for o in checked)
        text += f"\nThe same checkpoints evaluated by transformers: KL differs by {100 * far:.2f} % at most ({len(checked)} of them).\n"
    print(text)
    if a.output:
        if os.path.exists(a.output):  # what was measured otherwise stays
            text += "".join(re.findall(r"\n## Speed and memory\n.*", open(a.output).read(), re.S))
        open(a.output, "w").write(text)


if __name__ == "__main__":
    main()

"""RESULTS.md and its plots, out of the kept figures."""
import os
import re

from . import plots, table
from .sets import BATCHES, DEPTHS, LAYERS, NAMES

ABOUT = {
    "kernels": "kernels alone, of random weights; each line is the median of seven rounds of its own, the yardstick measured in turn",
    "1b": "prefill of 512 and decode of 64 tokens, 1B shape",
    "135m": "the same on the 135M shape, 128 tokens",
    "depth": "decode of 32 tokens behind 4096 others",
    "batch": "8 and 16 sequences of 128 tokens that decode 32 more together",
    "others": "peers that stay up between rounds: prefill of 512, then 1, 8 and 16 sequences behind 128 tokens",
    "others-135m": "the same on the 135M shape, one sequence",
    "start": "from the command to the first token, the file in the page cache, as much free memory as it takes touched before (-m)",
    "memory": "resident peak of run, context 2048",
    "profile": "share of samples of the decode loop",
    "moe": "8 experts of width 4096, 2 active, else the 1B shape",
    "hybrid": "1B shapes, three recurrent layers to one of attention, as many weight bytes a step as the plain one: prefill of 512, decode of 16 tokens at depths 0 and 4096",
    "growth-depth": "decode of 16 tokens at depths",
    "growth-batch": "sequences together, 8 tokens each",
    "growth-layers": "layers of the 135M shape",
}
UNITS = {"read": (1e-9, "GB/s"), "peak": (1, ""), "share": (100, "%"), "bytes": (1e-6, "MB")}


def figure(metric, v):
    if metric in ("share", "rest", "product", "attention", "wait", "other") or " stream " in metric or re.search(r"tiles m\d+ g\d+$", metric):
        return f"{100 * v:.1f} %"
    if metric in ("read", "weights"):
        return f"{v / 1e9:.1f} GB/s"
    if metric == "peak" and v < 1e6:
        return f"{v:.0f} GMAC/s"
    if metric in ("bytes", "peak", "held"):
        return f"{v / 1e6:.0f} MB"
    if metric == "seconds":
        return f"{v:.3f} s"
    if metric == "over":
        return f"{v:.3f}x"
    return f"{v:.1f}" if v < 1000 else f"{v:.0f}"


def label(metric):
    m = re.match(r"decode x(\d+) @(\d+)$", metric)
    if m:
        return "decode" + (f", {m.group(1)} sequences" if m.group(1) != "1" else "") + (f", depth {m.group(2)}" if m.group(2) != "0" else "") + ", tok/s"
    return {"prefill": "prefill, tok/s", "read": "read", "bytes": "weights of a step", "weights": "weights a second", "share": "weights a second over the read",
            "rest": "outside products and attention", "peak": "peak"}.get(metric, metric)


def causes(folder):
    """Paragraphs about missed musts, written by hand: "## id" and text."""
    path = os.path.join(folder, "causes.md")
    if not os.path.exists(path):
        return {}
    with open(path) as f:
        parts = re.split(r"^## +(.+)$", f.read(), flags=re.M)
    return {i.strip(): text.strip() for ids, text in zip(parts[1::2], parts[2::2]) for i in ids.split(",")}


def target_table(rows, f, zen):
    out = ["| what | median (min .. max) | must | goal | verdict | rounds |", "|---|---|---|---|---|---|"]
    for r in rows:
        n = max((len(f.set(s)["rounds"]) for s in r.sets), default=0)
        shown = f"**{r.show(r.of[0])}** ({r.show(r.of[1])} .. {r.show(r.of[2])})" if r.of else "-"
        other = " (Zen 5's)" if r.foreign(zen) else ""
        sign = "at most " if r.less else ""
        out.append(f"| {r.what} | {shown} | {sign}{r.show(r.target('must', zen))}{other} | {r.show(r.target('goal', zen))} | {r.verdict(zen)} | {n or '-'} |")
    return out


def set_tables(f):
    out = []
    for name in NAMES:
        data = f.set(name)
        if not data["rounds"] and not data["skipped"]:
            continue
        out += ["", f"### {name}", "", f"{ABOUT[name]}; {len(data['rounds'])} rounds, {data.get('saved', '')}.", ""]
        probes = [p for p in data["commands"] if any(p in r for r in data["rounds"])]
        if probes:
            out += ["| probe | figure | median | min | max |", "|---|---|---|---|---|"]
        for p in probes:
            metrics = list(dict.fromkeys(m for r in data["rounds"] for m in r.get(p, {}) if m != "at"))
            for i, m in enumerate(metrics):
                v = f.of(name, p, m)
                out.append(f"| {p if i == 0 else ''} | {label(m)} | {figure(m, v[0])} | {figure(m, v[1])} | {figure(m, v[2])} |")
        if probes:
            out += ["", "```", *[f"{p + ':':22s} {data['commands'][p]}" for p in probes], "```"]
        for p, why in data["skipped"].items():
            out.append(f"\nSkipped: {p}: {why}.")
    return out


def write(path, f, about, note):
    folder = os.path.dirname(os.path.abspath(path))
    m = about["machine"]
    rows = table.rows(f, about["threads"])
    said = causes(os.path.join(folder))
    read = f.of("1b", "nibble", "read")
    read1 = f.of("1b", "nibble 1 thread", "read")
    peak = f.of("kernels", f"avx512-vnni {about['threads']}", "peak")
    met = sum(r.verdict(m["zen"]) in ("goal met", "must met") for r in rows)
    missed = [r for r in rows if r.verdict(m["zen"]) == "missed"]
    only = sum(r.verdict(m["zen"]).startswith("only") for r in rows)
    out = ["# Speed beside the other CPU engines", "",
           "Written by `bench/run-all`; `bench/run-all --help` says how to run it. Programs take turns, round after round; a ratio is that of two",
           "figures of one round, and the tables show its median and its spread over rounds. Weights of every program sit in private memory.", ""]
    out += [f"- machine: {m['name']}, family {m['family']} model {m['model']}" + (f" ({m['zen']})" if m["zen"] else "") +
            f", {m['cores']} cores, L3 {m['l3']}, {m['memory_gb']} GB, Linux {m['kernel']}"]
    if read:
        out.append(f"- plain read, same run: {figure('read', read[0])} ({figure('read', read[1])} .. {figure('read', read[2])})" +
                   (f"; one thread {figure('read', read1[0])}" if read1 else ""))
    if peak:
        out.append(f"- `vpdpbusd` peak, same run: {peak[0]:.0f} GMAC/s, {about['threads']} threads")
    out += [f"- nibble {about['nibble']}, threads {about['threads']}", *[f"- {p}: {v or 'not installed'}" for p, v in about["peers"].items()]]
    if note:
        out += ["", note]
    out += ["", "## Targets", "", f"{met} of {len(rows)} musts met, {len(missed)} missed" + (f", {only} reached only against some of the peers" if only else "") +
            ". A must marked Zen 5's is not that of this machine.", ""]
    out += target_table(rows, f, m["zen"])
    if missed:
        out += ["", "## Where a must is missed", ""]
        for r in missed:
            far = r.of[0] / r.target("must", m["zen"]) - 1
            out += [f"**{r.what}**: {r.show(r.of[0])}, must {r.show(r.target('must', m['zen']))} ({100 * far:+.0f} %). " + said.get(r.id, ""), ""]
    drawn = plots.all_plots(f, about["threads"], DEPTHS, BATCHES, LAYERS)
    if drawn:
        os.makedirs(os.path.join(folder, "plots"), exist_ok=True)
        out += ["", "## Growth", ""]
        for name, caption, svg in drawn:
            with open(os.path.join(folder, "plots", name), "w") as g:
                g.write(svg)
            out += [f"![{caption}](plots/{name})", ""]
        out += ["Thin lines are the spread over rounds. Cached tokens beyond the first 512 are copies of their keys and values in nibble's", "runs; llama.cpp reads every one."]
    out += ["", "## All figures, with their commands", "", "Names of models are those that `bench/run-all` makes; programs are in the build folder or the peer's own."]
    out += set_tables(f)
    with open(path, "w") as g:
        g.write("\n".join(out).rstrip() + "\n")
    return rows

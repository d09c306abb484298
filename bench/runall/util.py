"""Running commands, keeping their figures between runs, medians."""
import json
import os
import re
import shlex
import statistics
import subprocess
import time


class Skip(Exception):
    """Something cannot be measured here; the text says why."""


def call(cmd, env=None, timeout=3600):
    """Standard output of a command; Skip with the end of its messages when it fails."""
    try:
        p = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace", timeout=timeout,
                           env=dict(os.environ, **env) if env else None)
    except FileNotFoundError:
        raise Skip(f"{cmd[0]} is not installed")
    except subprocess.TimeoutExpired:
        raise Skip(f"{shlex.join(cmd)}: no end after {timeout} s")
    if p.returncode:
        said = [line for line in p.stderr.strip().split("\n") if line.strip()]
        raise Skip(f"{os.path.basename(cmd[0])} ended with {p.returncode}: {' '.join(said[-2:])[:300]}")
    return p.stdout


def spread(values):
    values = [v for v in values if v is not None]
    return (statistics.median(values), min(values), max(values)) if values else None


def machine():
    """What the tables say about where they were made."""
    rows = {}
    for line in call(["lscpu"], env={"LC_ALL": "C"}).split("\n"):
        name, _, value = line.partition(":")
        rows[name.strip()] = value.strip()
    with open("/proc/meminfo") as f:
        kb = int(re.search(r"MemTotal:\s+(\d+)", f.read()).group(1))
    family = int(rows.get("CPU family", "0"))
    zen = {23: "Zen 1 or 2", 25: "Zen 3 or 4", 26: "Zen 5"}.get(family) if rows.get("Vendor ID") == "AuthenticAMD" else None
    if family == 25 and "avx512_vnni" in rows.get("Flags", ""):
        zen = "Zen 4"
    return {"name": rows.get("Model name", "unknown"), "family": family, "model": rows.get("Model", "?"), "zen": zen,
            "cores": len(os.sched_getaffinity(0)), "l3": rows.get("L3 cache", "?"), "memory_gb": round(kb / 1e6, 1), "kernel": os.uname().release}


class Store:
    """One JSON file a set: {"rounds": [{probe: {metric: number}}], "skipped": {probe: why}, "commands": {probe: text}}."""

    def __init__(self, folder):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)

    def path(self, name):
        return os.path.join(self.folder, name + ".json")

    def load(self, name):
        try:
            with open(self.path(name)) as f:
                return json.load(f)
        except FileNotFoundError:
            return {"rounds": [], "skipped": {}, "commands": {}}

    def save(self, name, data):
        data["saved"] = time.strftime("%Y-%m-%d %H:%M")
        with open(self.path(name) + ".new", "w") as f:
            json.dump(data, f, indent=1)
        os.replace(self.path(name) + ".new", self.path(name))

    def drop(self, name):
        if os.path.exists(self.path(name)):
            os.remove(self.path(name))


class Figures:
    """The rounds of all sets, for tables and plots."""

    def __init__(self, store):
        self.store = store
        self.sets = {}

    def set(self, name):
        if name not in self.sets:
            self.sets[name] = self.store.load(name)
        return self.sets[name]

    def values(self, name, probe, metric):
        return [r[probe][metric] for r in self.set(name)["rounds"] if metric in r.get(probe, {})]

    def of(self, name, probe, metric):
        """(median, min, max), or None when it was not measured."""
        return spread(self.values(name, probe, metric))

    def median(self, name, probe, metric):
        v = self.of(name, probe, metric)
        return v[0] if v else None

    def ratio(self, name, ours, theirs):
        """Spread over rounds of one figure over another of the same round; each is (probe, metric) or a list, the best of it."""
        def best(r, what):
            found = [r[p][m] for p, m in (what if isinstance(what, list) else [what]) if m in r.get(p, {})]
            return max(found) if found else None

        pairs = [(best(r, ours), best(r, theirs)) for r in self.set(name)["rounds"]]
        return spread([a / b for a, b in pairs if a and b])

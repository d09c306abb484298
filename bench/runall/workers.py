"""A peer that stays up between rounds: one JSON line in, one out. It waits on its input, so it costs no processor time meanwhile."""
import json
import os
import select
import subprocess
import tempfile

from .util import Skip


class Worker:
    def __init__(self, cmd, threads):
        self.said = tempfile.TemporaryFile(mode="w+", errors="replace")
        self.p = subprocess.Popen(cmd, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.said, text=True, bufsize=1,
                                  env=dict(os.environ, OMP_NUM_THREADS=str(threads)))
        self.ready = self.reply(1200)
        if "error" in self.ready:
            raise Skip(self.ready["error"])

    def reply(self, timeout):
        while True:
            ready, _, _ = select.select([self.p.stdout], [], [], timeout)
            line = self.p.stdout.readline() if ready else ""
            if not line:
                self.said.seek(0)
                lines = [x for x in self.said.read().split("\n") if x.strip()]
                self.p.kill()
                raise Skip("the peer ended or did not answer: " + " ".join(lines[-1:])[:250])
            if line.startswith("{\"bench"):
                return json.loads(line)["bench"]

    def ask(self, what, batch, prompt, decode):
        if self.p.poll() is not None:
            raise Skip("the peer is no longer running")
        self.p.stdin.write(json.dumps({"what": what, "batch": batch, "prompt": prompt, "decode": decode}) + "\n")
        self.p.stdin.flush()
        r = self.reply(600)
        if "error" in r:
            raise Skip(r["error"])
        return r["tok_s"]

    def close(self):
        self.p.stdin.close()
        try:
            self.p.wait(20)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()

"""An executable that is installed in place of vLLM. It takes vLLM's arguments and answers on vLLM's port."""

from __future__ import annotations

import sys
from pathlib import Path

SERVER = """
import argparse, http.server, json, os, pathlib, signal, sys, time
parser = argparse.ArgumentParser()
for name in (
    "host port model tensor-parallel-size max-model-len tool-call-parser reasoning-parser logprobs-mode "
    "gpu-memory-utilization dtype served-model-name allowed-origins"
).split():
    parser.add_argument("--" + name)
parser.add_argument("--chat-template")
parser.add_argument("--enable-auto-tool-choice", action="store_true")
parser.add_argument("--no-enable-chunked-prefill", action="store_true")
parser.add_argument("--die", action="store_true")
parser.add_argument("--wait-for", type=pathlib.Path)
parser.add_argument("words", nargs="*")
options = parser.parse_args()
print("loading", os.getpid(), os.environ.get("VLLM_CPU_KVCACHE_SPACE"), flush=True)
if options.die:
    sys.exit("CUDA out of memory, says the stand-in")

model = options.model or options.words[-1]
card = {"id": options.served_model_name or model, "root": model, "max_model_len": int(options.max_model_len or 4096)}

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({"data": [card]} if self.path == "/v1/models" else None)
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer({"pid": os.getpid(), "gpus": os.environ.get("CUDA_VISIBLE_DEVICES")})
    def answer(self, body):
        answer = b"" if body is None else json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *words):
        pass

def end(*_):
    print("ended cleanly", flush=True)
    os._exit(0)

signal.signal(signal.SIGTERM, end)
time.sleep(0.3)
while options.wait_for and not options.wait_for.exists():
    time.sleep(0.05)
http.server.ThreadingHTTPServer((options.host, int(options.port)), Handler).serve_forever()
"""


def vllm_environment(root: Path, distribution: str) -> Path:
    """Create an environment with the stand-in under vLLM's name. Returns its interpreter."""
    site = root / "site"
    (site / f"{distribution.replace('-', '_')}-0.99.0.dist-info").mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.99.0\n"
    (site / f"{distribution.replace('-', '_')}-0.99.0.dist-info" / "METADATA").write_text(metadata)
    module = site / "vllm" / "entrypoints" / "openai"
    module.mkdir(parents=True)
    (module / "api_server.py").write_text(SERVER)
    bin_ = root / "bin"
    bin_.mkdir()
    _script(bin_ / "python", f'#!/bin/sh\nPYTHONPATH="{site}" exec "{sys.executable}" "$@"\n')
    _script(bin_ / "vllm", f"#!{sys.executable}\n{SERVER}")
    return bin_ / "python"


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)

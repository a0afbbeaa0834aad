"""A stand-in for the Hugging Face Hub: serves folders over HTTP, and counts the bytes sent per file.

It answers the requests of `huggingface_hub` and `datasets`: a data set's information, its file tree, information on
paths, and whole files or byte ranges of files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

REVISION = hashlib.sha1(b"the only revision").hexdigest()
_API = re.compile(
    r"/api/datasets/(?P<id>[^/]+/[^/]+?)(?:/(?P<what>auth-check|(?:revision|tree|paths-info)/[^/]+)(?P<path>/.*)?)?$"
)
_RESOLVE = re.compile(r"/datasets/(?P<id>[^/]+/[^/]+)/resolve/[^/]+/(?P<path>.+)$")
TOKEN = "hf_reader"
"""The token of a user who has accepted the terms of every gated set."""


class Hub:
    """Serves the folders `root/OWNER/NAME`. `gated` names the sets whose files need `TOKEN`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.gated: set[str] = set()
        self.sent: Counter[str] = Counter()
        """Bytes of the sent bodies, keyed by `OWNER/NAME/PATH`. The key `api` counts all responses that are not
        files."""
        self.requests: list[str] = []
        self.url = ""

    def env(self, home: Path, token: str | None = None) -> dict[str, str]:
        """Return the environment of a process that uses this hub and a separate cache in `home`."""
        names = {"HF_HUB_OFFLINE", "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_CACHE", "HF_DATASETS_CACHE"}
        environment = {key: value for key, value in os.environ.items() if key not in names}
        environment |= {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}
        return environment | ({"HF_TOKEN": token} if token else {})


@contextmanager
def serving_hub(root: Path) -> Iterator[Hub]:
    """Run a hub on this machine until the block ends."""
    hub = Hub(root)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: object) -> None: ...

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(body=True, request_body=text)

    def _answer(self, body: bool, request_body: bytes = b"") -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {self.path}")
        match = _API.match(path) or _RESOLVE.match(path)
        if match is None or not (folder := self.hub.root / match["id"]).is_dir():
            self._send(404, b'{"error": "Repository not found"}', {"X-Error-Code": "RepoNotFound"}, body)
        elif path.startswith("/api") and match["what"] != "auth-check":
            self._send(200, json.dumps(self._facts(match, folder, request_body)).encode(), {}, body)
        elif match["id"] in self.hub.gated and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._send(
                401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."}, body
            )
        elif path.startswith("/api"):
            self._send(200, b"{}", {}, body)
        elif not (file := folder / match["path"]).is_file():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": REVISION}, body)
        else:
            self._send_file(f"{match['id']}/{match['path']}", file.read_bytes(), body)

    def _facts(self, match: re.Match[str], folder: Path, request_body: bytes) -> Any:
        entries = [_entry(folder, each) for each in sorted(folder.rglob("*"))]
        files = [each for each in entries if each["type"] == "file"]
        below = (match["path"] or "").strip("/")
        what = (match["what"] or "").partition("/")[0]
        if what == "paths-info":
            requested_paths = (
                json.loads(request_body)["paths"]
                if request_body.startswith(b"{")
                else parse_qs(request_body.decode())["paths"]
            )
            return [each for each in entries if each["path"] in requested_paths]
        if what == "tree":
            recursive = "recursive=true" in urlsplit(self.path).query.lower()
            inside = [each for each in entries if not below or each["path"].startswith(f"{below}/")]
            depth = below.count("/") + bool(below)
            return [each for each in inside if recursive or each["path"].count("/") == depth]
        gated = match["id"] in self.hub.gated
        return {
            "_id": "1",
            "id": match["id"],
            "sha": REVISION,
            "private": False,
            "gated": "auto" if gated else False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
            "siblings": [{"rfilename": each["path"], "size": each["size"]} for each in files],
        }

    def _send_file(self, name: str, content: bytes, body: bool) -> None:
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": REVISION}
        headers |= {"Accept-Ranges": "bytes", "Content-Disposition": "inline"}
        status = 200
        if match := re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            first, last = int(match[1]), min(int(match[2] or len(content)), len(content) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            status, content = 206, content[first : last + 1]
        self._send(status, content, headers, body, name)

    def _send(
        self, status: int, content: bytes, headers: dict[str, str], body: bool, name: str = "api"
    ) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.hub.sent[name] += len(content)
            self.wfile.write(content)


def _entry(folder: Path, path: Path) -> dict[str, Any]:
    name = path.relative_to(folder).as_posix()
    if path.is_dir():
        return {"type": "directory", "path": name, "size": 0, "oid": hashlib.sha1(name.encode()).hexdigest()}
    content = path.read_bytes()
    return {"type": "file", "path": name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}

"""Creates a simulated next version of the judge: a copy of the package with one more field in each message."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

import rstar2
from rstar2.judge.protocol_version import PROTOCOL
from rstar2.processes import start_bound

_MODELS = (
    "schema.py",
    "queue/tasks.py",
    "server/settings.py",
    "worker/settings.py",
    "service/settings.py",
)
"""Modules whose models get an additional field."""
_EDITS = {
    "protocol_version.py": [
        (r"PROTOCOL = ProtocolVersion\((\d+), \d+\)", r"PROTOCOL = ProtocolVersion(\1, 99)")
    ],
    # Tasks, notices, the results of cells of a dead worker.
    "queue/scripts.py": [
        (r"'at', ARGV\[1\]\)", "'at', ARGV[1], 'added_later', 'next')"),
        (r"ARGV\[at \+ 5\], inline", "ARGV[at + 5], 'next', inline"),
        (r"' 0 0 '", "' 0 0 next '"),
        (r"outcome = 'lost',", "outcome = 'lost', added_later = 'next',"),
    ],
    "queue/requirements.py": [(r"protocol = ARGV\[5\],", "protocol = ARGV[5], added_later = 'next',")],
    # Heartbeats, /health.
    "worker/consumer.py": [(r'"protocol": str\(PROTOCOL\),', r'\g<0> "added_later": "next",')],
    "server/metrics.py": [(r'"protocol": str\(PROTOCOL\),', r'\g<0> "added_later": "next",')],
    # Both directions of the WebSocket.
    "client/connection.py": [
        (r'"cancel":true\}', '"cancel":true,"added_later":"next"}'),
        (r'"run":%b\}', '"run":%b,"added_later":"next"}'),
    ],
    "server/websocket.py": [(r"\{self\.text\}\}\}", r'{self.text},"added_later":"next"}}')],
}


@dataclass(frozen=True)
class Version:
    """A version of the package. Its processes import this version only."""

    name: str
    folder: Path
    """The folder that contains the package."""

    def start(
        self, module: str, settings: BaseModel, log: Path, pass_fds: tuple[int, ...] = ()
    ) -> subprocess.Popen[bytes]:
        """Start a process of the judge, as its supervisor does."""
        text = settings.model_dump_json() + "\n"
        return start_bound([sys.executable, "-P", "-m", module], log, text, pass_fds, self._environment)

    def python(self, code: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a program that uses this version. Its input and output are pipes."""
        return subprocess.Popen(
            [sys.executable, "-P", "-c", code, *arguments],
            env={**os.environ, **self._environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def _environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.folder)}


def this_version() -> Version:
    return Version("this", Path(rstar2.__file__).parents[1])


def next_version(folder: Path) -> Version:
    """Copy the package to a folder, and add a field to each message.

    Raises:
        AssertionError: An edit no longer matches the source of a message.
    """
    copy = folder / "rstar2"
    shutil.copytree(Path(rstar2.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name in _MODELS:
        path = copy / "judge" / name
        path.write_text(_with_fields(path.read_text()))
    for name, edits in _EDITS.items():
        path = copy / "judge" / name
        text = path.read_text()
        for pattern, replacement in edits:
            text, count = re.subn(pattern, replacement, text)
            assert count, f"{path} has no match for {pattern!r}"
        path.write_text(text)
    return Version("next", folder)


def next_major_version(folder: Path) -> Version:
    """Copy the package to a folder, and change its protocol to the next major version."""
    version = next_version(folder)
    path = folder / "rstar2" / "judge" / "protocol_version.py"
    text, count = re.subn(
        r"ProtocolVersion\(\d+, \d+\)", f"ProtocolVersion({PROTOCOL.major + 1}, 0)", path.read_text()
    )
    assert count == 1, path
    path.write_text(text)
    return version


def _with_fields(source: str) -> str:
    """Add a field to each model of a module, after the model's docstring if there is one.

    Models that are derived from another model of the module inherit the field.
    """
    lines = source.splitlines()
    models = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and base.id in _BASES for base in node.bases)
    ]
    assert models
    for model in reversed(models):
        first = model.body[0]
        is_docstring = isinstance(first, ast.Expr)
        place = (first.end_lineno or 0) if is_docstring else first.lineno - 1
        lines.insert(place, '    added_later: str = "next"')
    return "\n".join(lines) + "\n"


_BASES = {"BaseModel", "Handle", "SupervisionSettings"}

"""Writes the page: markup, style and script from this folder, and the run's data packed inside.

Traces are packed in chunks, gzip in base64, each in a script element of its own. A browser keeps such text as
it is until the viewer asks for a trace, so that a page with ten thousand of them opens at once.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any, TextIO

from rstar2.errors import Failure
from rstar2.files import whole_file
from rstar2.report.collect import RunPage, collect
from rstar2.report.segments import trace_parts
from rstar2.trace import Trace, read_traces

_CHUNK_BYTES = 1 << 19
_SCRIPTS = ("kit.js", "plots.js", "viewer.js", "main.js")


def write_report(run: Path, output: Path | None = None) -> Path:
    """Make the page of a run's folder.

    Args:
        output: the file; `run/report.html` by default.

    Returns:
        The file.

    Raises:
        UserError: there is no run, or its data is damaged.
        Failure: the page cannot be written.
    """
    page = collect(run)
    output = output or run / "report.html"
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(output) as file:
            _write(page, file)
    except OSError as error:
        raise Failure(
            f"cannot write {output}: {error.strerror or error}", "Make room, or use --output."
        ) from error
    return output


def _write(page: RunPage, file: TextIO) -> None:
    head, _, tail = _asset("page.html").partition("{{data}}")
    file.write(head.replace("{{title}}", _text(page.title)).replace("{{style}}", _asset("style.css")))
    index = _Index()
    for number, chunk in enumerate(_chunks(page, index)):
        file.write(f'<script type="text/plain" id="chunk-{number}">{_packed(chunk)}</script>\n')
    file.write(f'<script type="text/plain" id="index">{_packed(index.columns())}</script>\n')
    about = {
        "title": page.title,
        "kind": page.kind,
        "config": page.config,
        "summary": page.summary,
        "charts": page.charts,
        "sections": [{"name": section.name, **section.results} for section in page.sections],
    }
    file.write(f'<script type="text/plain" id="about">{_packed(about)}</script>\n')
    file.write(tail.replace("{{script}}", "\n".join(map(_asset, _SCRIPTS))))


class _Index:
    """One row a trace, kept by columns: what the list of traces shows and sorts by."""

    def __init__(self) -> None:
        self._problems: dict[tuple[int, str], int] = {}
        self._texts: list[dict[str, Any]] = []
        self._rows: dict[str, list[Any]] = {
            name: []
            for name in ("section", "problem", "sample", "verdict", "tokens", "calls", "failed", "finish")
        }
        self._rows |= {"extracted": [], "chunk": [], "place": []}

    def add(self, section: int, trace: Trace, chunk: int, place: int) -> None:
        problem = self._problems.setdefault((section, trace.problem_id), len(self._texts))
        if problem == len(self._texts):
            self._texts.append({"id": trace.problem_id, "text": trace.problem, "gold": trace.gold})
        row = {
            "section": section,
            "problem": problem,
            "sample": trace.sample,
            "verdict": _verdict(trace),
            "tokens": trace.tokens,
            "calls": len(trace.calls),
            "failed": trace.failed_calls,
            "finish": trace.finish,
            "extracted": (trace.extracted or "")[:60],
            "chunk": chunk,
            "place": place,
        }
        for name, value in row.items():
            self._rows[name].append(value)

    def columns(self) -> dict[str, Any]:
        return {"problems": self._texts, "rows": self._rows}


def _verdict(trace: Trace) -> str:
    """The grader's word, with 'no answer' told apart from 'could not verify'."""
    if trace.verdict is None:
        return "ungraded"
    return "no answer" if trace.verdict == "unparsed" and trace.extracted is None else trace.verdict


def _chunks(page: RunPage, index: _Index) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    size = number = 0
    for section, where in enumerate(page.sections):
        for trace in read_traces(where.traces):
            index.add(section, trace, number, len(chunk))
            packed = _detail(trace)
            chunk.append(packed)
            size += sum(len(turn.text) + sum(len(call.output) for call in turn.calls) for turn in trace.turns)
            if size >= _CHUNK_BYTES:
                yield chunk
                chunk, size, number = [], 0, number + 1
    if chunk:
        yield chunk


def _detail(trace: Trace) -> dict[str, Any]:
    return {
        "turns": [
            {"tokens": turn.end - turn.start, "parts": parts}
            for turn, parts in zip(trace.turns, trace_parts(trace), strict=True)
        ],
        "extracted": trace.extracted,
        "rule": trace.rule,
        "wall_s": round(trace.wall_s, 2),
        "prompt_tokens": len(trace.prompt_ids),
    }


def _packed(value: object) -> str:
    raw = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
    return base64.b64encode(gzip.compress(raw, 6, mtime=0)).decode()


def _asset(name: str) -> str:
    return files("rstar2.report").joinpath(name).read_text(encoding="utf-8")


def _text(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")

"""Writes the report page of a run or of prepared data: one HTML file with its style, scripts and data inside.

Traces are packed in chunks (gzip in base64), each in a script element of its own. The browser leaves such text
alone until the viewer asks for a trace, so a page with ten thousand of them opens at once.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, TextIO

from rstar2.errors import UserError
from rstar2.eval.grader.outcomes import LABELS, missed
from rstar2.eval.quoted import beside_paper, quoted
from rstar2.eval.stored import Measurement
from rstar2.files import output_file
from rstar2.loop.trace import Trace
from rstar2.report.collect import RunPage, collect
from rstar2.report.formulas import with_formulas
from rstar2.report.segments import turn_parts
from rstar2.report.shading import Shading, shaded_traces

_ASSETS = files("rstar2.report").joinpath("assets")
_CHUNK_CHARACTERS = 1 << 19
_END_OF_TITLE = " · rstar2</title>"
"""As page.html has it, within the first `_HEAD` bytes of every page, which tells a page from a user's other files."""
_HEAD = 4096
_STYLES = ("theme.css", "page.css", "viewer.css", "entropy.css")
_SCRIPTS = (
    "elements.js",
    "formulas.js",
    "format.js",
    "plots.js",
    "training_plots.js",
    "summary.js",
    "scores.js",
    "data_card.js",
    "trace_parts.js",
    "entropy.js",
    "search.js",
    "viewer.js",
    "main.js",
)
_COLUMNS = (
    "section",
    "problem",
    "sample",
    "verdict",
    "tokens",
    "calls",
    "failed",
    "finish",
    "extracted",
    "chunk",
    "place",
    "step",
)


OnTraces = Callable[[int], None]


def write_report(run: Path, output: Path | None = None, on_traces: OnTraces = lambda traces: None) -> Path:
    """Write the report page of a run or of prepared data.

    Args:
        run: the run's folder, or one that `rstar2 data prepare` made.
        output: the page's file; `run/report.html` by default.
        on_traces: called with the number of traces written so far, once in a while.

    Returns:
        The page's file.

    Raises:
        UserError: `run` is neither, its data is damaged, or the file holds something else; or as of `output_file`.
        Failure: as of `output_file`.
    """
    page = collect(run)
    output = output or run / "report.html"
    if output.is_file() and output.stat().st_size and not _is_page(output):
        raise UserError(
            f"{output} is not a report page, so it is not replaced", "Move that file, or name another one."
        )
    with output_file(output) as file:
        _write(page, file, on_traces)
    return output


def _is_page(file: Path) -> bool:
    try:
        with file.open("rb") as content:
            return _END_OF_TITLE.encode() in content.read(_HEAD)
    except OSError:
        return False


def _write(page: RunPage, file: TextIO, on_traces: OnTraces) -> None:
    head, _, tail = _asset("page.html").partition("<!-- data -->")
    head = head.replace("<!-- title -->", escape(page.title, quote=False))
    file.write(head.replace("/* style */", _style()))
    index = _TraceIndex()
    for number, chunk in enumerate(_chunks(page, index)):
        file.write(_data_element(f"chunk-{number}", chunk))
        on_traces(len(index))
    file.write(_data_element("index", _json(index.columns())))
    about = {
        "title": page.title,
        "kind": page.kind,
        "models": page.models,
        "config": page.config,
        "summary": page.summary,
        "charts": page.charts,
        "training": page.training,
        "chosen": page.chosen,
        "analysis": page.analysis,
        "card": page.card,
        "paper": _beside_paper(page),
        "sections": [
            *(
                {"name": section.name, "quoted": _quoted(section), **section.results}
                for section in page.sections
            ),
            *(
                {"name": stage.name, "folder": str(stage.folder.relative_to(page.folder))}
                for stage in page.kept
            ),
        ],
    }
    file.write(_data_element("about", _json(about)))
    library = f"/*\n{_asset('vendor/LICENSE.temml')}*/\n{_asset('vendor/temml.min.js')}"
    tail = tail.replace("/* library */", library)
    file.write(tail.replace("/* script */", script()))


def _style() -> str:
    """The page's style sheet, with the font of temml's inside."""
    font = base64.b64encode(_ASSETS.joinpath("vendor/Temml.woff2").read_bytes()).decode()
    formulas = _asset("vendor/Temml-Local.css").replace(
        "url('Temml.woff2')", f"url(data:font/woff2;base64,{font})"
    )
    return "\n".join((formulas, *(_asset(f"styles/{name}") for name in _STYLES)))


def script() -> str:
    """The page's JavaScript, which is one script made of several files."""
    return "\n".join(_asset(f"scripts/{name}") for name in _SCRIPTS)


def _quoted(section: Measurement) -> dict[str, Any] | None:
    """A section's one number: `label`, `value` and `interval`."""
    found = quoted(section.name, section.results["summary"])
    return None if found is None else asdict(found)


def _beside_paper(page: RunPage) -> list[dict[str, Any]]:
    """The rows of the table 'paper | this run': `name`, `paper`, `run` as of `_quoted`, and `difference`."""
    rows = beside_paper((section.name, section.results["summary"]) for section in page.sections)
    return [{**asdict(row), "difference": row.difference} for row in rows]


class _TraceIndex:
    """What the list of traces shows and sorts by: columns with one value per trace."""

    def __init__(self) -> None:
        self._problem_numbers: dict[tuple[int, str], int] = {}
        self._problem_texts: list[dict[str, Any]] = []
        self._asked: list[tuple[str, str | None]] = []
        """The text and the gold answer of each problem in its first trace."""
        self._columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}

    def add(self, section: int, trace: Trace, chunk: int, place: int) -> bool:
        """Add a trace of a section, whose details stand at a place in a chunk; whether it was asked as the index says.

        GPQA asks each sample with its choices in another order.
        """
        problem = self._problem_numbers.setdefault((section, trace.problem_id), len(self._problem_texts))
        asked = (trace.problem, trace.gold)
        if problem == len(self._problem_texts):
            self._asked.append(asked)
            self._problem_texts.append({"id": trace.problem_id, **_problem(trace)})
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
            "step": trace.step,
        }
        for name, value in row.items():
            self._columns[name].append(value)
        return asked == self._asked[problem]

    def __len__(self) -> int:
        return len(self._columns["section"])

    def columns(self) -> dict[str, Any]:
        """JSON-able: `problems` with id, text and gold, and `rows`, the columns by name."""
        return {"problems": self._problem_texts, "rows": self._columns}


def _chunks(page: RunPage, index: _TraceIndex) -> Iterator[str]:
    """The details of all traces in JSON lists of about `_CHUNK_CHARACTERS`; fills the index on the way."""
    chunk: list[str] = []
    size = number = 0
    sections = [shaded_traces(measurement.traces) for measurement in page.sections]
    for section, traces in enumerate([*sections, *(stage.shown() for stage in page.kept)]):
        for trace, shading in traces:
            own = {} if index.add(section, trace, number, len(chunk)) else {"problem": _problem(trace)}
            chunk.append(_json({**_detail(trace, shading), **own}))
            size += len(chunk[-1])
            if size >= _CHUNK_CHARACTERS:
                yield f"[{','.join(chunk)}]"
                chunk, size, number = [], 0, number + 1
    if chunk:
        yield f"[{','.join(chunk)}]"


def _problem(trace: Trace) -> dict[str, Any]:
    return {"text": with_formulas(trace.problem), "gold": trace.gold}


def _verdict(trace: Trace) -> str:
    if trace.finish == "error":
        return "engine failed"
    if trace.verdict is None:
        return "ungraded"
    why = missed(trace)
    if why is None:
        return "correct"
    return LABELS[why] if why in ("wrong", "no_answer") else f"could not verify ({LABELS[why]})"


def _detail(trace: Trace, shading: Shading | None) -> dict[str, Any]:
    """What the viewer shows of an opened trace beside its row of the index."""
    shaded = {} if shading is None else {"shading": shading}
    return {
        "turns": [
            {
                "tokens": turn.end - turn.start if trace.counted_tokens is None else None,
                "parts": turn_parts(turn, chat=trace.counted_tokens is not None),
                **({"text": turn.text} if shaded else {}),
            }
            for turn in trace.turns
        ],
        **shaded,
        "cause": trace.cause,
        "extracted": trace.extracted,
        "rule": trace.rule,
        "wall_s": round(trace.wall_s, 2),
        "reward": trace.reward,
        "kept": trace.kept,
    }


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _data_element(name: str, value: str) -> str:
    """A script element that no browser runs, with JSON as gzip in base64."""
    packed = base64.b64encode(gzip.compress(value.encode(errors="replace"), 6, mtime=0)).decode()
    return f'<script type="text/plain" id="{name}">{packed}</script>\n'


def _asset(name: str) -> str:
    return _ASSETS.joinpath(name).read_text(encoding="utf-8")

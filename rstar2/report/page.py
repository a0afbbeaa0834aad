"""Writes the report page of a run or of prepared data: one HTML file with its style, scripts and data inside.

Traces are packed in chunks (gzip in base64), each in its own script element. The browser does not parse a chunk until
the viewer needs one of its traces, so a page with ten thousand traces opens immediately.
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
"""Text from page.html that is in the first `_HEAD` bytes of every page. This text identifies a file as a report
page."""
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
        run: the run's folder, or a folder that `rstar2 data prepare` made.
        output: the page's file; `run/report.html` by default.
        on_traces: called from time to time with the number of traces written so far.

    Returns:
        The path of the page's file.

    Raises:
        UserError: `run` is neither a run nor prepared data, its data is damaged, `output` is a file that is no report
            page, or `output_file` raises this error.
        Failure: `output_file` raises this error.
    """
    page = collect(run)
    output = output or run / "report.html"
    if output.is_file() and output.stat().st_size and not _is_page(output):
        raise UserError(
            f"{output} is not a report page, so it is not replaced", "Move that file, or name another output."
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
                for stage in page.stage_traces
            ),
        ],
    }
    file.write(_data_element("about", _json(about)))
    library = f"/*\n{_asset('vendor/LICENSE.temml')}*/\n{_asset('vendor/temml.min.js')}"
    tail = tail.replace("/* library */", library)
    file.write(tail.replace("/* script */", script()))


def _style() -> str:
    """The page's style sheet, which includes temml's font."""
    font = base64.b64encode(_ASSETS.joinpath("vendor/Temml.woff2").read_bytes()).decode()
    formulas = _asset("vendor/Temml-Local.css").replace(
        "url('Temml.woff2')", f"url(data:font/woff2;base64,{font})"
    )
    return "\n".join((formulas, *(_asset(f"styles/{name}") for name in _STYLES)))


def script() -> str:
    """The page's JavaScript: several files joined into one script."""
    return "\n".join(_asset(f"scripts/{name}") for name in _SCRIPTS)


def _quoted(section: Measurement) -> dict[str, Any] | None:
    """The number to quote for a section, with `label`, `value` and `interval`.

    The result is None if the section has no number to quote.
    """
    number = quoted(section.name, section.results["summary"])
    return None if number is None else asdict(number)


def _beside_paper(page: RunPage) -> list[dict[str, Any]]:
    """The rows of the table "paper | this run": `name`, `paper`, `run` (as from `_quoted`), and `difference`."""
    rows = beside_paper((section.name, section.results["summary"]) for section in page.sections)
    return [{**asdict(row), "difference": row.difference} for row in rows]


class _TraceIndex:
    """The data of the page's list of traces: columns with one value per trace."""

    def __init__(self) -> None:
        self._problem_numbers: dict[tuple[int, str], int] = {}
        self._problem_texts: list[dict[str, Any]] = []
        self._first_versions: list[tuple[str, str | None]] = []
        """The text and the gold answer of each problem, taken from the first trace of the problem."""
        self._columns: dict[str, list[Any]] = {name: [] for name in _COLUMNS}

    def add(self, section: int, trace: Trace, chunk: int, place: int) -> bool:
        """Add a trace.

        Args:
            section: number of the trace's section.
            trace: the trace.
            chunk: number of the chunk that has the trace's details.
            place: place of the details in the chunk.

        Returns:
            Whether the trace has the same problem text and gold answer as the first trace of its problem. In GPQA the
            texts and gold answers differ, because each sample has its choices in another order.
        """
        problem = self._problem_numbers.setdefault((section, trace.problem_id), len(self._problem_texts))
        version = (trace.problem, trace.gold)
        if problem == len(self._problem_texts):
            self._first_versions.append(version)
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
        return version == self._first_versions[problem]

    def __len__(self) -> int:
        return len(self._columns["section"])

    def columns(self) -> dict[str, Any]:
        """The JSON-able index: `problems` with id, text and gold, and `rows`, a dict from name to column."""
        return {"problems": self._problem_texts, "rows": self._columns}


def _chunks(page: RunPage, index: _TraceIndex) -> Iterator[str]:
    """Yields the details of all traces as JSON lists, and adds each trace to the index.

    A list has about `_CHUNK_CHARACTERS` characters.
    """
    chunk: list[str] = []
    size = number = 0
    sections = [shaded_traces(measurement.traces) for measurement in page.sections]
    for section, traces in enumerate([*sections, *(stage.selected() for stage in page.stage_traces)]):
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
    """The data that the viewer needs for a trace, in addition to the trace's row in the index."""
    shading_entry = {} if shading is None else {"shading": shading}
    return {
        "turns": [
            {
                "tokens": turn.end - turn.start if trace.counted_tokens is None else None,
                "parts": turn_parts(turn, chat=trace.counted_tokens is not None),
                **({"text": turn.text} if shading_entry else {}),
            }
            for turn in trace.turns
        ],
        **shading_entry,
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
    """A script element of type text/plain, which browsers do not run.

    The element contains JSON, compressed with gzip and encoded in base64.
    """
    packed = base64.b64encode(gzip.compress(value.encode(errors="replace"), 6, mtime=0)).decode()
    return f'<script type="text/plain" id="{name}">{packed}</script>\n'


def _asset(name: str) -> str:
    return _ASSETS.joinpath(name).read_text(encoding="utf-8")

"""The report of the checks: a JSON file for programs, and Markdown to paste into an issue.

The report has no private data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rstar2 import __version__
from rstar2.doctor.gpu_check.check import Device, Number, Result
from rstar2.doctor.gpu_check.private import scrubbed, scrubbed_values

SCHEMA = 1
"""Version of the JSON file. The version is increased whenever a key changes its meaning or is removed."""
JSON_FILE, MARKDOWN_FILE = "gpu-check.json", "gpu-check.md"
NO_GPU = "CPU stack, no GPU"
_MARKS = {"passed": "✓ passed", "failed": "✗ failed", "not run": "– not run"}


@dataclass(frozen=True)
class Report:
    """The results of the checks on one machine."""

    device: Device
    results: Sequence[Result]
    interrupted: bool = False

    @property
    def machine(self) -> list[Number]:
        """The measurements of the check `environment`."""
        return self.results[0].measured.numbers if self.results else []

    @property
    def title(self) -> str:
        if self.device == "cpu":
            return NO_GPU
        return str(next((each.value for each in self.machine if each.name == "GPU"), "GPU"))

    def record(self) -> dict[str, Any]:
        """Returns the contents of the JSON file."""
        results = [result.record() for result in self.results]
        record: dict[str, Any] = scrubbed_values(
            {
                "schema": SCHEMA,
                "rstar2": __version__,
                "date": datetime.now(UTC).date().isoformat(),
                "title": self.title,
                "device": self.device,
                "interrupted": self.interrupted,
                "checks": results,
            }
        )
        return record

    def markdown(self) -> str:
        """Returns the Markdown report, which the user can paste into an issue."""
        return scrubbed("\n".join(self._lines()) + "\n")

    def _lines(self) -> Iterator[str]:
        yield f"# GPU check: {self.title}"
        yield ""
        counts = ", ".join(
            f"{sum(result.outcome == outcome for result in self.results)} {outcome}" for outcome in _MARKS
        )
        stopped = " Ctrl-C ended the checks." if self.interrupted else ""
        yield f"rstar2 {__version__}, {datetime.now(UTC).date().isoformat()}: {counts}.{stopped}"
        yield ""
        yield "| check | outcome | seconds | result |"
        yield "|---|---|---|---|"
        for result in self.results:
            text = _cell(result.reason or result.measured.summary)
            yield f"| {result.title} | {_MARKS[result.outcome]} | {result.seconds:.0f} | {text} |"
        for result in self.results:
            yield from _details(result)


def _details(result: Result) -> Iterator[str]:
    """Yield the lines about one check: its measurements, and its log if it failed."""
    measurements = result.measured
    if not measurements.numbers and not measurements.notes and result.outcome == "passed":
        return
    yield ""
    yield f"## {result.title}"
    if result.outcome != "passed":
        yield ""
        yield f"**{result.outcome}**: {result.reason}. {result.remedy}".rstrip()
    if measurements.numbers:
        planned = any(number.planned is not None for number in measurements.numbers)
        yield ""
        yield "| what | measured |" + (" plan | measured / plan |" if planned else "")
        yield "|---|---|" + ("---|---|" if planned else "")
        for number in measurements.numbers:
            yield f"| {_cell(number.name)} | {_with_unit(number.value, number.unit)} |" + (
                _plan(number) if planned else ""
            )
    for note in measurements.notes:
        yield ""
        yield note
    if result.outcome == "failed":
        name = result.log.rpartition("/")[2]
        yield ""
        if not result.last_lines:
            yield f"The check's log, `{name}`, is empty."
            return
        yield f"The end of the check's log, `{name}`:"
        yield ""
        yield "```text"
        yield from (line.replace("```", "'''") for line in result.last_lines)
        yield "```"


def _plan(number: Number) -> str:
    if number.planned is None:
        return "  |  |"
    ratio = (
        number.value / number.planned if isinstance(number.value, int | float) and number.planned else None
    )
    return f" {_with_unit(number.planned, number.unit)} | {'' if ratio is None else f'{ratio:.2f}'} |"


def _with_unit(value: Any, unit: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        value = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    elif isinstance(value, int):
        value = f"{value:,}"
    return f"{_cell('–' if value is None else str(value))} {unit}".rstrip()


def _cell(text: str) -> str:
    """Returns a text for a cell of a Markdown table: on one line, with each `|` escaped."""
    return " ".join(text.split()).replace("|", "\\|")

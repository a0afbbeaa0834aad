"""Turns the result of a tool call into the text that the model reads. A format selects one of two layouts."""

from __future__ import annotations

from typing import Literal

from rstar2.judge.schema import CellResult, RunResult
from rstar2.loop.tool import ToolLimits

Layout = Literal["plain", "labelled"]
"""plain: the text that a terminal would show. labelled: lines such as `stdout: …`, as in the authors' released code
(microsoft/rStar)."""


def result_text(result: RunResult, layout: Layout, limits: ToolLimits) -> str:
    """Returns the text of a result for the model. If the text has more than `limits.characters` characters, its middle
    is left out."""
    if layout == "labelled":
        return _cut(_labelled(result, limits), limits.characters, "...(truncated)...")
    text = _plain(result, limits)
    omitted = len(text) - limits.characters // 2 * 2
    return _cut(text, limits.characters, f"\n... {omitted} characters left out ...\n")


def refused_text(reason: str, error: str, layout: Layout, *, decoded: bool = True) -> str:
    """Returns the text that the model reads if a call does not run.

    Args:
        reason: why the call does not run, for the layout `plain`.
        error: the Python error that the call causes in the authors' released code, for the layout `labelled`.
        layout: the layout of the text.
        decoded: whether the name and arguments of the call could be read.
    """
    if layout == "plain":
        return reason
    return f"{'Error when executing tool' if decoded else 'Failed to decode tool call'}: {error}"


def _plain(result: RunResult, limits: ToolLimits) -> str:
    """Returns the program's output or `(no output)`, and the error with its traceback or the limit that the program
    reached."""
    parts = [result.stdout.rstrip("\n"), result.value or ""]
    if result.outcome in ("timeout", "memory", "output_limit"):
        parts.append(f"Error: {_reason(result, limits)}")
    elif result.outcome != "ok":
        parts.append(_traceback(result, limits) or f"Error: the code ended with exit code {result.exit_code}")
    parts.append(_end_of_session(result))
    return "\n".join(part for part in parts if part) or "(no output)"


def _labelled(result: RunResult, limits: ToolLimits) -> str:
    lines = [f"Tool call {'success' if result.outcome == 'ok' else 'failure'}"]
    if result.outcome != "ok":
        lines.append(f"reason: {_reason(result, limits)}")
    output = "\n".join(part for part in (result.stdout.rstrip("\n"), result.value or "") if part)
    if output:
        lines.append(f"stdout: {output}")
    if errors := _traceback(result, limits):
        lines.append(f"stderr: {errors}")
    return "\n".join(
        [*lines, *filter(None, [_end_of_session(result)]), f"execution time: {result.wall_s:.2f}s"]
    )


def _reason(result: RunResult, limits: ToolLimits) -> str:
    reasons = {
        "timeout": f"the code did not end within {limits.seconds:g} seconds",
        "memory": "the code needed more memory than it may have",
        "output_limit": "the code printed or wrote more than it may",
    }
    return reasons.get(result.outcome, result.outcome)


def _end_of_session(result: RunResult) -> str:
    """Returns a line that says that the notebook ended. Returns an empty string if the notebook is alive, or if the
    tool uses no notebook."""
    if not isinstance(result, CellResult) or result.session_alive:
        return ""
    return f"The notebook is gone with its variables: {result.session_end}"


def _traceback(result: RunResult, limits: ToolLimits) -> str:
    return "\n".join(result.stderr.rstrip("\n").splitlines()[-limits.traceback_lines :])


def _cut(text: str, characters: int, mark: str) -> str:
    """Returns the text. If the text has more than `characters` characters, `mark` replaces the middle of the text."""
    half = characters // 2
    return text if len(text) <= characters else f"{text[:half]}{mark}{text[-half:]}"

"""The Python tool: runs the program in a model's tool call on the judge, and words the result for the model."""

from __future__ import annotations

import time
from typing import Any

from rstar2.errors import RStarError
from rstar2.judge.client import JudgeClient
from rstar2.judge.schema import RunRequest, RunResult
from rstar2.trace import CallStatus, ToolCall


class PythonTool:
    """Runs `python_code_with_standard_io` calls through a judge.

    Args:
        timeout_s: wall-clock seconds a program may take.
        traceback_lines: how many of a traceback's last lines the model is shown.
        max_characters: how much output the model is shown; the middle of a longer one is left out.
    """

    def __init__(
        self,
        client: JudgeClient,
        timeout_s: float = 10.0,
        traceback_lines: int = 20,
        max_characters: int = 4000,
    ) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._traceback_lines = traceback_lines
        self._max_characters = max_characters

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        started = time.monotonic()
        try:
            request = RunRequest.model_construct(
                code=arguments["code"], stdin=arguments["input"], timeout_s=self._timeout_s, memory_mb=1024
            )
            result = await self._client.run(request)
            status: CallStatus = "invalid_arguments" if result.outcome == "invalid" else result.outcome
            output = self._shown(result)
        except RStarError as error:
            status, output = "lost", f"The code could not be run: {error.message}"
        return ToolCall(
            name=name, arguments=arguments, status=status, output=output, wall_s=time.monotonic() - started
        )

    def _shown(self, result: RunResult) -> str:
        """What the model sees of a result: its output, then the traceback or the limit that ended it."""
        parts = [result.stdout.rstrip("\n")]
        if result.value is not None:
            parts.append(result.value)
        if result.outcome == "timeout":
            parts.append(f"Error: the code did not end within {self._timeout_s:g} seconds")
        elif result.outcome == "memory":
            parts.append("Error: the code needed more memory than it may have")
        elif result.outcome == "output_limit":
            parts.append("Error: the code printed or wrote more than it may")
        elif result.outcome != "ok":
            lines = result.stderr.rstrip("\n").splitlines()[-self._traceback_lines :]
            parts.append("\n".join(lines) or f"Error: the code ended with exit code {result.exit_code}")
        shown = "\n".join(part for part in parts if part) or "(no output)"
        if len(shown) > self._max_characters:
            half = self._max_characters // 2
            shown = f"{shown[:half]}\n... {len(shown) - 2 * half} characters left out ...\n{shown[-half:]}"
        return shown

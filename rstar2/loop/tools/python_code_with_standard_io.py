"""The tool that runs a Python program with standard input, and shows what it prints."""

from __future__ import annotations

from typing import Any

from rstar2.judge.schema import RunRequest, RunResult
from rstar2.loop.tools import ToolContext

NAME = "python_code_with_standard_io"
ALIASES = ("execute_python_code_with_standard_io",)
"""The name in the paper (arXiv 2508.20722); the released code has `NAME`."""
SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": NAME,
        "description": "Run Python code with the given standard input and return what it prints.",
        "parameters": {
            "type": "object",
            "properties": {
                "code": {"type": "string", "description": "The Python code to execute."},
                "input": {
                    "type": "string",
                    "description": "The standard input of the program, if it reads any.",
                },
            },
            "required": ["code"],
        },
    },
}


class Tool:
    """Every call is a program of its own on the judge."""

    def __init__(self, context: ToolContext) -> None:
        self._judge, self._limits = context.judge, context.limits

    async def run(self, arguments: dict[str, Any]) -> RunResult:
        # Checked by the judge, whose answer says what is wrong with a program.
        request = RunRequest.model_construct(
            code=arguments["code"],
            stdin=arguments.get("input") or "",
            timeout_s=self._limits.seconds,
            memory_mb=self._limits.memory_mb,
        )
        return await self._judge.run(request)

    async def aclose(self) -> None:
        return

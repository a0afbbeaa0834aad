"""The tool that runs a Python program with standard input and returns the program's output."""

from __future__ import annotations

from rstar2.judge.schema import RunRequest, RunResult
from rstar2.loop.tool import ToolContext, tool

NAME = "python_code_with_standard_io"


# The alias is the name in the paper (arXiv 2508.20722). `NAME` is the name in the authors' released code.
@tool(aliases=("execute_python_code_with_standard_io",))
async def python_code_with_standard_io(code: str, context: ToolContext, input: str = "") -> RunResult:
    """Run Python code with the given standard input and return what it prints.

    Args:
        code: The Python code to execute.
        input: The standard input of the program, if it reads any.
    """
    # Not validated here: the judge validates the request, and its answer says what is wrong.
    request = RunRequest.model_construct(
        code=code, stdin=input, timeout_s=context.limits.seconds, memory_mb=context.limits.memory_mb
    )
    return await context.judge.run(request)

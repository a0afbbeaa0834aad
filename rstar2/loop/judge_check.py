"""Checks a judge before a run depends on it. The check runs programs with the same tools and access token as the
model's calls.

A request to `/health` is not enough: it needs no access token and runs no program.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from rstar2.errors import UserError, as_user_error
from rstar2.judge.client import JudgeClient
from rstar2.judge.client.http import JudgeError
from rstar2.judge.schema import ISOLATION_ORDER, Isolation, RunRequest
from rstar2.loop.formats.format import Format
from rstar2.loop.toolbox import Toolbox
from rstar2.loop.tools import shipped_tool
from rstar2.loop.trace import ToolCall

PACKAGES = ("numpy", "scipy", "sympy")
"""Packages that models expect in the judge. The extra `judge` of rstar2 installs these packages."""
WAIT_S = 120.0
"""Seconds that a working judge may take for a program, on top of the program's own time limit."""
_ATTEMPTS = 3
"""Maximum number of attempts. A program that reaches its time limit is run again, because the machine may have been
busy."""
_NUMBER = 42
_EXCEPTION = re.compile(r"\b\w+(?:Error|Exception)\b.*")


@dataclass(frozen=True)
class JudgeReport:
    """Result of checking a judge."""

    isolation: Isolation | None
    """The weakest isolation tier of the judge's workers. The value is None if the judge reports no isolation tier."""
    missing: dict[str, str] = field(default_factory=dict)
    """Packages that programs cannot import, each with the reason."""

    @property
    def missing_text(self) -> str:
        """The missing packages and the reasons, for a message."""
        return "; ".join(f"{name} ({why})" for name, why in self.missing.items())


def check_judge(
    url: str, token: str | None, fmt: Format | None = None, packages: Sequence[str] = ()
) -> JudgeReport:
    """Check the judge at `url`, see `judge_report`. Raises UserError for every failure."""
    with as_user_error():
        return try_judge(url, token, fmt, packages)


def try_judge(
    url: str, token: str | None, fmt: Format | None = None, packages: Sequence[str] = ()
) -> JudgeReport:
    """Check the judge at `url`, and distinguish mistakes of the user from failures that may be temporary.

    Raises:
        UserError: the judge refuses the token, or the server at `url` is not a judge.
        JudgeError: no server answers at `url`, or the server runs no program. A later attempt to check the judge may
            succeed.
    """

    async def report() -> JudgeReport:
        async with JudgeClient(url, token, wait_s=WAIT_S) as judge:
            return await judge_report(judge, fmt, packages)

    try:
        return asyncio.run(report())
    except JudgeError as error:
        if error.exit_code == UserError.exit_code:
            raise UserError(error.message, error.hint) from error
        raise


def require(report: JudgeReport, url: str, isolation: Isolation | None) -> None:
    """Raise UserError if the judge lacks packages, or if its isolation is weaker than the tier `isolation`."""
    if report.missing:
        raise UserError(
            f"programs on the judge at {url} cannot import {report.missing_text}",
            "Install these packages where the judge runs and restart the judge, or remove the packages from the "
            "recipe's judge.packages.",
        )
    tiers = ISOLATION_ORDER
    if isolation and (report.isolation is None or tiers.index(report.isolation) < tiers.index(isolation)):
        raise UserError(
            f"the judge at {url} has isolation {report.isolation or 'unknown'}, but the recipe's judge.isolation is "
            f"{isolation}",
            f"Start the judge with --isolation {isolation}, or lower judge.isolation.",
        )


async def judge_report(
    judge: JudgeClient, fmt: Format | None = None, packages: Sequence[str] = ()
) -> JudgeReport:
    """Run a program with each tool of the format that takes code, and try to import `packages` with each of these
    tools.

    If `fmt` is None, or if no tool of the format takes code, one plain program runs and no package is imported.

    Raises:
        UserError: a tool of the format cannot be loaded.
        AccessRefused: the judge refuses the token.
        JudgeError: the judge does not answer, or the test program does not print the
            expected number.
    """
    if fmt is not None:
        fmt.load_tools()
    isolation = (await judge.health()).get("isolation")
    code_tools = [name for name in (fmt.tool_names if fmt else ()) if _takes_code(name)]
    if not code_tools:
        result = await judge.run(RunRequest(code=f"print({_NUMBER})"))
        if result.outcome != "ok" or result.stdout.strip() != str(_NUMBER):
            raise _broken(judge.url, result.outcome, result.stderr)
    missing: dict[str, str] = {}
    if fmt is not None:
        for name in code_tools:
            missing |= await _missing_packages(judge, fmt, name, packages)
    return JudgeReport(isolation if isolation in ISOLATION_ORDER else None, missing)


async def _missing_packages(
    judge: JudgeClient, fmt: Format, tool: str, packages: Sequence[str]
) -> dict[str, str]:
    """Returns the packages that programs of a tool cannot import, each with the reason.

    Raises JudgeError if the tool runs no program at all.
    """
    async with Toolbox(judge, fmt).opened() as tools:

        async def run(code: str) -> ToolCall:
            for _ in range(_ATTEMPTS):
                call = await tools.run(tool, {"code": code})
                if call.status != "timeout":
                    break
            return call

        first = await run(f"print({_NUMBER})")
        if first.status != "ok":
            raise _broken(judge.url, first.status, first.output, f" with the tool {tool}")
        calls = await asyncio.gather(*(run(f"import {package}") for package in packages))
    lost_calls = [call for call in calls if call.status == "lost"]
    if lost_calls:
        raise _broken(judge.url, "lost", lost_calls[0].output)
    imports = zip(packages, calls, strict=True)
    return {package: _import_error(call) for package, call in imports if call.status != "ok"}


def _takes_code(called: str) -> bool:
    """Whether the tool can be tested with a program: rstar2 ships the tool, and `code` is the tool's only required
    argument."""
    tool = shipped_tool(called)
    return tool is not None and tool.parameters["required"] == ["code"]


def _import_error(call: ToolCall) -> str:
    """Returns why an import failed: the exception in the tool's output, or else the status of the call."""
    exceptions = _EXCEPTION.findall(call.output) if call.status == "error" else []
    return str(exceptions[-1])[:200] if exceptions else call.status


def _broken(url: str, outcome: str, output: str, how: str = "") -> JudgeError:
    reason = " ".join(output.split())[:300]
    return JudgeError(
        f"the judge at {url} answers, but a program that prints a number{how} ended with the status {outcome}"
        + (f": {reason}" if reason else ""),
        "Read the judge's own log. `rstar2 judge status` shows the judge's workers.",
    )

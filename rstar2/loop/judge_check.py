"""Checks a judge before anything depends on it: runs programs as a model's calls will, with the same token.

`/health` answers without a token and without running anything.
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
"""Packages that models expect in the judge; the extra `judge` of rstar2 installs them there."""
WAIT_S = 120.0
"""How long a judge that works may keep a program waiting, beyond the program's own limit."""
_ATTEMPTS = 3
"""A program that reaches its time limit is run again: the machine may have been busy for a moment."""
_NUMBER = 42
_EXCEPTION = re.compile(r"\b\w+(?:Error|Exception)\b.*")


@dataclass(frozen=True)
class JudgeReport:
    """What programs on a judge find."""

    isolation: Isolation | None
    """The weakest tier of its workers; None if the judge does not say."""
    missing: dict[str, str] = field(default_factory=dict)
    """By package that programs cannot import, why."""

    @property
    def missing_text(self) -> str:
        """The missing packages and the reasons, for a message."""
        return "; ".join(f"{name} ({why})" for name, why in self.missing.items())


def check_judge(
    url: str, token: str | None, fmt: Format | None = None, packages: Sequence[str] = ()
) -> JudgeReport:
    """Run programs on the judge at `url`; see `judge_report`. Every failure is a UserError."""
    with as_user_error():
        return try_judge(url, token, fmt, packages)


def try_judge(
    url: str, token: str | None, fmt: Format | None = None, packages: Sequence[str] = ()
) -> JudgeReport:
    """Run programs on the judge at `url`, for a command that scripts start again after a Failure.

    Raises:
        UserError: the judge refuses the token, or what answers at `url` is no judge.
        JudgeError: nothing answers, or no program runs; this may pass.
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
    """Raise a UserError if a judge lacks packages, or isolates programs less than the tier `isolation`."""
    if report.missing:
        raise UserError(
            f"programs on the judge at {url} cannot import {report.missing_text}",
            "Install them where the judge runs and start it again, or take them out of the recipe's judge.packages.",
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
    """Run a program with each tool of a format that takes code, and import `packages`; without a format, a plain one.

    Raises:
        UserError: a tool of the format cannot be loaded.
        AccessRefused: the judge refuses the token.
        JudgeError: nothing answers, or a program that prints a number does not print it.
    """
    if fmt is not None:
        fmt.load_tools()
    isolation = (await judge.health()).get("isolation")
    codes = [name for name in (fmt.tool_names if fmt else ()) if _takes_code(name)]
    if not codes:
        result = await judge.run(RunRequest(code=f"print({_NUMBER})"))
        if result.outcome != "ok" or result.stdout.strip() != str(_NUMBER):
            raise _broken(judge.url, result.outcome, result.stderr)
    missing: dict[str, str] = {}
    if fmt is not None:
        for name in codes:
            missing |= await _missing(judge, fmt, name, packages)
    return JudgeReport(isolation if isolation in ISOLATION_ORDER else None, missing)


async def _missing(judge: JudgeClient, fmt: Format, tool: str, packages: Sequence[str]) -> dict[str, str]:
    """The packages that a tool's programs cannot import; JudgeError if it runs no program at all."""
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
    lost = [call for call in calls if call.status == "lost"]
    if lost:
        raise _broken(judge.url, "lost", lost[0].output)
    found = zip(packages, calls, strict=True)
    return {package: _why(call) for package, call in found if call.status != "ok"}


def _takes_code(called: str) -> bool:
    """Whether a tool can be tried with a program: it is one of the package that requires only `code`."""
    tool = shipped_tool(called)
    return tool is not None and tool.parameters["required"] == ["code"]


def _why(call: ToolCall) -> str:
    """Why an import failed: the exception in what the model would be shown, or how the program ended."""
    found = _EXCEPTION.findall(call.output) if call.status == "error" else []
    return str(found[-1])[:200] if found else call.status


def _broken(url: str, outcome: str, said: str, how: str = "") -> JudgeError:
    reason = " ".join(said.split())[:300]
    return JudgeError(
        f"the judge at {url} answers, but a program that prints a number{how} ended as {outcome}"
        + (f": {reason}" if reason else ""),
        "See the judge's own log; `rstar2 judge status` shows its workers.",
    )

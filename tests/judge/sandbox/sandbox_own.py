"""Helpers to write this repository's attack programs. Each program is one call of `case`."""

from __future__ import annotations

from support.judge.attacks import Case, expectation

FAILED = ("runtime_error", "killed", "memory", "timeout")
ANY = ("ok", "output_limit", *FAILED)
PROCESSES = "starts processes, which the landlock tier refuses"
SPACE = "needs a private file system, which the landlock tier has not"

_ENDLESS_S = 0.3
"""Time limit of programs that never end and print nothing."""
_SHORT_S = 0.7
"""Time limit of programs that may or may not reach it."""
_PRINTING_S = 1.5
"""Time limit of programs that never end but must print something first. Tests repeat it with more time if needed."""
_AMPLE_S = 120.0
"""Time limit of programs that must not reach it, however busy the machine is."""
SOON_S = 50.0
"""A program must end, or be killed, within this time, however busy the machine is."""

CASES: list[Case] = []
NOT_IN_LANDLOCK: dict[str, str] = {}
"""Case id → reason why the landlock tier does not have to pass this case."""


def case(
    name: str,
    code: str,
    status: tuple[str, ...] | str = "ok",
    printed: str | None = None,
    *,
    has: str | None = None,
    within: float | None = None,
    checks: tuple[str, ...] = (),
    stdin: str = "",
    strict_only: str = "",
) -> None:
    """Add a case. `name` has the form CLASS/DESCRIPTION."""
    statuses = [status] if isinstance(status, str) else list(status)
    expect = expectation(statuses, printed, has, within, checks)
    if statuses == ["timeout"]:
        limit = _PRINTING_S if printed or has else _ENDLESS_S
    else:
        limit = _SHORT_S if "timeout" in statuses and not (printed or has) else _AMPLE_S
    CASES.append(Case(name, name.split("/")[0], code.strip() + "\n", stdin, expect, limit, 256))
    if strict_only:
        NOT_IN_LANDLOCK[name] = strict_only


def attempt(name: str, statement: str, header: str = "import os", **options: object) -> None:
    """Add a case in which one statement must raise an error such as OSError."""
    body = f"try:\n    {statement}\n    print('PWNED')\nexcept Exception:\n    print('blocked')"
    case(name, f"{header}\n{body}", "ok", "blocked\n", **options)  # type: ignore[arg-type]

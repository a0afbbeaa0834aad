"""How the attack programs of this repository's own are written down: one call of `case` each."""

from __future__ import annotations

from support.attacks import Case

FAILED = ("runtime_error", "killed", "memory", "timeout")
ANY = ("ok", "output_limit", *FAILED)
PROCESSES = "starts processes, which the landlock tier refuses"
SPACE = "needs a private file system, which the landlock tier has not"

_LIMIT_S = 0.7
"""The limit of programs that may run into it."""
_AMPLE_S = 30.0
"""The limit of programs that must not run into it, however busy the machine is."""
SOON_S = 6.0
"""How long a program may take that has to be ended from outside, on a busy machine."""

CASES: list[Case] = []
NOT_IN_LANDLOCK: dict[str, str] = {}
"""Case id → why the landlock tier cannot be held to it."""


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
    """Add a case. `name` is class/what; what got out prints PWNED, which no case may print."""
    wanted = [status] if isinstance(status, str) else list(status)
    expect = {
        "status_any": wanted,
        "stdout_eq": printed,
        "stdout_has": has,
        "stdout_lacks": ["PWNED"],
        "wall_max_s": within,
        "checks": list(checks),
    }
    limit = _LIMIT_S if "timeout" in wanted else _AMPLE_S
    CASES.append(Case(name, name.split("/")[0], code.strip() + "\n", stdin, expect, limit, 256))
    if strict_only:
        NOT_IN_LANDLOCK[name] = strict_only


def attempt(name: str, statement: str, header: str = "import os", **options: object) -> None:
    """Add a case in which one statement must raise OSError or the like."""
    body = f"try:\n    {statement}\n    print('PWNED')\nexcept Exception:\n    print('blocked')"
    case(name, f"{header}\n{body}", "ok", "blocked\n", **options)  # type: ignore[arg-type]

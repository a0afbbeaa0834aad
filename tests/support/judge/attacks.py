"""Runs attack programs, and checks their outcome from outside the sandbox."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.judge.ordinary_user import OrdinaryUser
from support.process_table import descendants
from support.waiting import TIMEOUT_S

from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.schema import RunRequest, RunResult

SECRET = "HOST_SECRET_CANARY"
SECRET_MODE = 0o666
LEFTOVER = "rstar2_leftover"
_SURVIVOR_S = TIMEOUT_S
"""Seconds that killed processes may take to disappear on a busy machine."""
_LONGER = (1, 4, 16, 64)
"""Factors of the time limit. If a program reaches its limit before it prints its text, it is retried with the next
factor."""
_STARTS_PROCESSES = re.compile(r"\b(fork|subprocess|multiprocessing|ProcessPoolExecutor|popen|system)\b")


@dataclass
class Case:
    id: str
    attack_class: str
    code: str
    stdin: str
    expect: dict[str, Any]
    """The result of `expectation`, which must hold for the outcome."""
    timeout_s: float = 30.0
    memory_mb: int = 512


def expectation(
    statuses: Sequence[str],
    printed: str | None,
    has: str | None,
    within_s: float | None,
    checks: Sequence[str],
) -> dict[str, Any]:
    """Returns `Case.expect`. A successful attack prints PWNED, which no case may print."""
    return {
        "status_any": list(statuses),
        "stdout_eq": printed,
        "stdout_has": has,
        "stdout_lacks": ["PWNED"],
        "wall_max_s": within_s,
        "checks": list(checks),
    }


@dataclass
class Surroundings:
    """Real targets on the host for attacks: files, listeners and processes."""

    folder: Path
    tcp: socket.socket = field(init=False)
    udp: socket.socket = field(init=False)
    unix: socket.socket = field(init=False)
    processes: set[int] = field(init=False)

    def __post_init__(self) -> None:
        self.folder.chmod(0o777)
        self.outside = self.folder / "outside"
        self.outside.mkdir()
        self.outside.chmod(0o777)
        self.secret = self.folder / "secret.txt"
        self.secret.write_text(SECRET)
        self.secret.chmod(SECRET_MODE)
        (self.folder / "task").mkdir()
        (self.folder / "task" / "data.txt").write_text("OTHER_TASK_CANARY")
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(self.tcp.getsockname())
        self.unix = socket.socket(socket.AF_UNIX)
        self.unix.bind(str(self.folder / "listener"))
        self.unix.listen()
        os.chmod(self.folder / "listener", 0o777)
        for listener in (self.tcp, self.udp, self.unix):
            listener.setblocking(False)
        os.environ["RSTAR2_CANARY_SECRET"] = "CANARY"

    def close(self) -> None:
        for listener in (self.tcp, self.udp, self.unix):
            listener.close()
        del os.environ["RSTAR2_CANARY_SECRET"]

    def fill_in(self, code: str) -> str:
        """Replace the placeholders of a case by paths and the port of this host."""
        values = {
            "OUTSIDE_DIR": self.outside,
            "SECRET_FILE": self.secret,
            "UNIX_SOCK": self.folder / "listener",
            "PORT": self.tcp.getsockname()[1],
            "TASK_DIR": self.folder / "task",
            "PID": os.getpid(),
        }
        for name, value in values.items():
            code = code.replace(f"@@{name}@@", str(value))
        return code


def _untouched(listener: socket.socket, receive: Callable[[], object]) -> bool:
    try:
        receive()
    except BlockingIOError:
        return True
    return False


def run_case(sandbox: Sandbox | OrdinaryUser, case: Case, host: Surroundings) -> list[str]:
    """Run one case. Returns descriptions of everything that is wrong with its outcome."""
    code = host.fill_in(case.code)
    before = descendants(os.getpid())
    for time_factor in _LONGER:
        began = time.monotonic()
        # The request is not validated, because the sandbox must withstand more than the service accepts.
        request = RunRequest.model_construct(
            code=code, stdin=case.stdin, timeout_s=time_factor * case.timeout_s, memory_mb=case.memory_mb
        )
        result = sandbox.run(request, case.id)
        wall = time.monotonic() - began
        if not _ended_before_output(case, result):
            break
    faults = _compare(case, result, wall)
    for name in case.expect.get("checks", []):
        if problem := _check(name, sandbox, host, before):
            faults.append(f"check {name}: {problem}")
    return [f"{case.id}: {fault} ({result!r:.600})" for fault in faults]


def _ended_before_output(case: Case, result: RunResult) -> bool:
    """Returns whether a program that may reach its time limit did so before it printed its expected text."""
    if result.outcome != "timeout" or "timeout" not in case.expect["status_any"]:
        return False
    expected = case.expect.get("stdout_eq") or case.expect.get("stdout_has") or ""
    return len(result.stdout) < len(expected)


def _statuses(result: RunResult) -> set[str]:
    if result.outcome == "error":
        return {"killed"} if (result.exit_code or 0) < 0 else {"runtime_error"}
    return {result.outcome}


def _compare(case: Case, result: RunResult, wall: float) -> list[str]:
    expect = case.expect
    faults = []
    allowed = set(expect["status_any"])
    if not _statuses(result) & allowed:
        faults.append(f"its outcome is {result.outcome}, not one of {sorted(allowed)}")
    if expect.get("stdout_eq") is not None and result.stdout != expect["stdout_eq"]:
        faults.append(f"printed {result.stdout!r:.200} instead of {expect['stdout_eq']!r}")
    if expect.get("stdout_has") is not None and expect["stdout_has"] not in result.stdout:
        faults.append(f"did not print {expect['stdout_has']!r}")
    for text in expect.get("stdout_lacks") or []:
        if text in result.stdout:
            faults.append(f"printed {text!r}")
    if expect.get("wall_max_s") is not None and wall > expect["wall_max_s"]:
        faults.append(f"took {wall:.1f} s")
    return faults


def _check(name: str, sandbox: Sandbox | OrdinaryUser, host: Surroundings, before: set[int]) -> str:
    """Make one host-side check. Returns a description of what is wrong, or an empty string.

    Raises:
        ValueError: The check is unknown. A case that cannot be checked counts as failed.
    """
    match name:
        case "outside_clean":
            return "" if not any(host.outside.iterdir()) else "there are files"
        case "no_leftover":
            places = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
            leftovers = [str(place) for place in places if (place / LEFTOVER).exists()]
            return (
                f"left in {leftovers}"
                if leftovers
                else _unlike(_next(sandbox, _LOOK_FOR_LEFTOVERS), r"\[\] \[\]\n")
            )
        case "secret_intact":
            mode = host.secret.stat().st_mode & 0o777
            return "" if (host.secret.read_text(), mode) == (SECRET, SECRET_MODE) else "it was changed"
        case "listener_untouched":
            touched = not (_untouched(host.tcp, host.tcp.accept) and _untouched(host.unix, host.unix.accept))
            return "somebody connected" if touched else ""
        case "udp_untouched":
            return "" if _untouched(host.udp, lambda: host.udp.recv(16)) else "somebody sent"
        case "no_survivors":
            return f"processes {leftovers}" if (leftovers := _survivors(before)) else ""
        case "worker_ok":
            return _unlike(_next(sandbox, "print(6*7)"), r"42\n")
        case "next_clean":
            traces = "[k for k in os.environ if '/tmp/evil' in os.environ[k]], len([1]), math.pi"
            return _unlike(_next(sandbox, f"import os, math\nprint({traces})"), r"\[\] 1 3\.14159\d*\n")
        case "next_numpy_clean":
            code = "import numpy as np\nprint(np.array([1]).sum(), *np.random.randint(10**9, size=3))"
            first, second = _next(sandbox, code), _next(sandbox, code)
            problem = _unlike(first, r"1( \d+){3}\n") or _unlike(second, r"1( \d+){3}\n")
            return problem or ("two programs drew the same numbers" if first.stdout == second.stdout else "")
    raise ValueError(f"unknown check {name!r}")


def _survivors(before: set[int]) -> set[int]:
    """Return the processes that did not exist before and do not end soon."""
    deadline = time.monotonic() + _SURVIVOR_S
    while (survivors := descendants(os.getpid()) - before) and time.monotonic() < deadline:
        time.sleep(0.02)
    return survivors


_LOOK_FOR_LEFTOVERS = f"""
import os
def names(place):
    try: return os.listdir(place)
    except OSError: return []
print([place for place in ('/tmp', '/var/tmp', '/dev/shm') if '{LEFTOVER}' in names(place)], names('.'))
"""


def _next(sandbox: Sandbox | OrdinaryUser, code: str) -> RunResult:
    """Run another program after the program of the case."""
    return sandbox.run(RunRequest(code=code, timeout_s=TIMEOUT_S), "next")


def _unlike(result: RunResult, pattern: str) -> str:
    """Return a description of the output if it does not match the pattern, or an empty string if it does."""
    return "" if re.fullmatch(pattern, result.stdout) else f"the next program ended so: {result!r:.600}"


def not_in_landlock(case: Case) -> str:
    """Return the documented limitation of the landlock tier that keeps a case from succeeding, or an empty string."""
    must_succeed = case.expect["status_any"] == ["ok"]
    return "Programs cannot start processes" if must_succeed and _STARTS_PROCESSES.search(case.code) else ""

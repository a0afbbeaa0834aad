"""The types of the GPU check: a check, its settings, its measurements and its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rstar2.errors import Failure, RStarError

Device = Literal["cuda", "cpu"]
Outcome = Literal["passed", "failed", "not run"]
Value = float | int | str | bool | None


@dataclass(frozen=True)
class Settings:
    """Settings that all checks share."""

    device: Device
    """cuda: GPUs by NVIDIA or AMD; PyTorch uses this name for both."""
    gpus: int
    """How many GPUs training uses; on a CPU, how many ranks."""
    work: Path
    """Folder for models and runs. It is removed at the end."""
    logs: Path
    """Folder for logs. It stays."""

    def record(self) -> dict[str, Any]:
        return {**asdict(self), "work": str(self.work), "logs": str(self.logs)}

    @classmethod
    def of(cls, record: dict[str, Any]) -> Settings:
        return cls(**{**record, "work": Path(record["work"]), "logs": Path(record["logs"])})


@dataclass(frozen=True)
class Number:
    """One measured value."""

    name: str
    value: Value
    unit: str = ""
    planned: float | None = None
    """The value that `rstar2 plan` expects."""


@dataclass
class Measured:
    """All that a check measured."""

    summary: str = ""
    """One sentence for the table of the report."""
    numbers: list[Number] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Sentences for the reader of the numbers."""

    def add(self, name: str, value: Value, unit: str = "", planned: float | None = None) -> None:
        self.numbers.append(Number(name, value, unit, planned))


class CheckFailed(Failure):
    """A check found something wrong. `measured` has the values up to then."""

    def __init__(self, message: str, hint: str = "", measured: Measured | None = None) -> None:
        super().__init__(message, hint)
        self.measured = measured or Measured()


class NotRun(RStarError):
    """A check cannot run on this machine; the message says why."""


@dataclass(frozen=True)
class Check:
    """One check. `run` returns its measurements, or raises CheckFailed or NotRun."""

    name: str
    title: str
    run: Callable[[Settings], Measured]
    limit_s: float
    """Seconds after which it is stopped."""
    needs: tuple[str, ...] = ()
    """Modules that it imports. If one is missing, the check is not run."""
    needs_on_gpu: tuple[str, ...] = ()
    """Modules that it needs as well if the device is cuda."""


@dataclass
class Result:
    """The result of a check."""

    name: str
    title: str
    outcome: Outcome
    seconds: float
    limit_s: float
    reason: str = ""
    """Why it failed or was not run."""
    remedy: str = ""
    """What the user can do about it."""
    measured: Measured = field(default_factory=Measured)
    log: str = ""
    """The file with all its output."""
    last_lines: Sequence[str] = ()
    """The end of that file, if the check failed."""

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def of(cls, record: dict[str, Any]) -> Result:
        seen = record["measured"]
        numbers = [Number(**each) for each in seen["numbers"]]
        return cls(**{**record, "measured": Measured(seen["summary"], numbers, seen["notes"])})

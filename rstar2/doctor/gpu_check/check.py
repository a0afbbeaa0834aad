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
    """cuda: NVIDIA or AMD GPUs. PyTorch uses the name cuda for both."""
    gpus: int
    """The number of GPUs that training uses. On a CPU, the number of ranks."""
    work: Path
    """Folder for models and runs. The folder is removed at the end."""
    logs: Path
    """Folder for logs. The folder for logs is kept at the end."""

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
class Measurements:
    """The measurements of a check. The report shows them whether the check passes or not."""

    summary: str = ""
    """One sentence for the table of the report."""
    numbers: list[Number] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Sentences that explain the numbers to the reader."""

    def add(self, name: str, value: Value, unit: str = "", planned: float | None = None) -> None:
        self.numbers.append(Number(name, value, unit, planned))

    @classmethod
    def of(cls, record: dict[str, Any]) -> Measurements:
        return cls(record["summary"], [Number(**each) for each in record["numbers"]], record["notes"])


class CheckFailed(Failure):
    """A check failed."""


class NotRun(RStarError):
    """A check cannot run on this machine. The message of the exception is the reason."""


@dataclass(frozen=True)
class Check:
    """One check."""

    name: str
    title: str
    run: Callable[[Settings, Measurements], None]
    """Adds the measurements to the second argument. Raises CheckFailed or NotRun. A ModuleNotFoundError means that the
    check cannot run, because a package is not installed."""
    limit_s: float
    """Seconds after which the check is stopped."""


@dataclass
class Result:
    """The result of a check."""

    name: str
    title: str
    outcome: Outcome
    seconds: float
    limit_s: float
    reason: str = ""
    """Why the check failed or was not run."""
    remedy: str = ""
    """What the user can do about the failure."""
    measured: Measurements = field(default_factory=Measurements)
    log: str = ""
    """The file with the check's output."""
    last_lines: Sequence[str] = ()
    """The last lines of the log, if the check failed."""

    def record(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, record: dict[str, Any]) -> Result:
        return cls(**{**record, "measured": Measurements.of(record["measured"])})

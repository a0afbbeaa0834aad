"""What a rule has decided about a stage, see `rstar2.train.rules`: kept in the stage's folder, and taken once."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rstar2.files import read_json, write_json

DECISION_FILE = "decision.json"
Action = Literal["advance", "stop", "back"]
"""advance: the stage ends with the model of its last step, and the next stage begins. stop: the stage ends likewise,
and no further stage is run. back: the stage ends with the model of the checkpoint that was best on the held-out
problems, from which the next stage begins."""


@dataclass(frozen=True)
class Decision:
    """That a stage ends, and how."""

    step: int
    """The step of the stage whose measurements the rule was applied to. The stage ends after it, or after the one that
    was under way by then."""
    action: Action
    reason: str
    """The rule with its values and keys, for people."""
    model_step: int | None = None
    """The step whose model the stage returns; None for its last."""
    last_step: int | None = None
    """The stage's last step; None until it has ended."""

    @property
    def text(self) -> str:
        """For people."""
        ends = f"the stage ended with step {self.last_step}" if self.last_step else "the stage ends"
        match self.action:
            case "advance":
                done = f"{ends}, and the next one begins"
            case "stop":
                done = f"{ends}, and no further stage is run"
            case "back":
                done = f"{ends}, and its model is that of step {self.model_step}"
        return f"{self.reason}: {done}"


def read_decision(folder: Path) -> Decision | None:
    """The decision in a stage's folder; None if there is none."""
    held = read_json(folder / DECISION_FILE)
    return None if held is None else Decision(**held)


def write_decision(folder: Path, decision: Decision) -> None:
    """Keep a decision in a stage's folder."""
    write_json(folder / DECISION_FILE, asdict(decision))

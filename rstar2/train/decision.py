"""The decision of a rule to end a stage (`rstar2.train.rules`). The decision is stored in the stage's folder and is
final."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rstar2.files import read_json, write_json

DECISION_FILE = "decision.json"
Action = Literal["advance", "stop", "back"]
"""The action of a rule. advance: the stage ends with the model of its last step, and the next stage begins. stop: the
stage ends in the same way, and no further stage runs. back: the stage ends with the model of the checkpoint that was
best on the held-out problems, and the next stage begins from this model."""


@dataclass(frozen=True)
class Decision:
    """A rule's decision to end a stage."""

    step: int
    """The step whose measurement led to the decision. The stage ends after this step, or after the step that was in
    progress when the rule decided."""
    action: Action
    reason: str
    """The measured values and the keys of the rule, as a sentence."""
    model_step: int | None = None
    """The step whose model the stage returns, or None if the stage returns the model of its last step."""
    last_step: int | None = None
    """The last step of the stage; None while the stage has not ended."""

    @property
    def text(self) -> str:
        """Returns the reason and the action, as a sentence."""
        ends = f"the stage ended with step {self.last_step}" if self.last_step else "the stage ends"
        match self.action:
            case "advance":
                action = f"{ends}, and the next stage begins"
            case "stop":
                action = f"{ends}, and no further stage is run"
            case "back":
                action = f"{ends}, and its model is that of step {self.model_step}"
        return f"{self.reason}: {action}"


def read_decision(folder: Path) -> Decision | None:
    """Returns the decision in a stage's folder, or None if there is none."""
    stored = read_json(folder / DECISION_FILE)
    return None if stored is None else Decision(**stored)


def write_decision(folder: Path, decision: Decision) -> None:
    """Writes a decision to a stage's folder."""
    write_json(folder / DECISION_FILE, asdict(decision))

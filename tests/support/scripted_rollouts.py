"""Groups of rollouts whose turns are written down, and what `support.train.verl_trainer` says of a training on them.

VERL is imported by `in_trainer` alone.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch

ANSWER = "42"
TOOL = "python_code_with_standard_io"
Labels = Literal["as they are", "tool output changed", "own tokens changed"]


@dataclass(frozen=True)
class Group:
    """The rollouts of one problem, of a call and an answer each."""

    name: str
    rollouts: str
    """One character each: 1 right, 0 wrong, e wrong after a call that failed, x right but with a call that the judge
    lost, f one whose engine fails."""
    output: str = "7"
    """What the judge answers to every call."""
    says: dict[str, str] | None = None
    """What rollouts of a kind say besides."""
    recoveries: str = ""
    """The rollouts that begin after each failed call, in the same way."""

    def turn(self, session: int, number: int) -> str:
        """What the model writes in a turn, from 0, of one of the rollouts."""
        outcome = self.rollouts[session]
        if number == 0:
            thought = "So. " * ((len(self.name) + 3 * session) % 5) + (self.says or {}).get(outcome, "")
            call = json.dumps({"name": TOOL, "arguments": {"code": f"print({session})", "input": ""}})
            return f"{thought}</reason>\n<tool_call>\n{call}\n</tool_call>"
        return f"Seen {session}.</reason>\n<answer>\\boxed{{{int(ANSWER) - (outcome in '0e')}}}</answer>"


@dataclass
class Update:
    """What one step of the optimizer was given, and what VERL reports of the step."""

    lr: float
    gradient: dict[str, torch.Tensor]
    """By parameter, after VERL has clipped its norm."""
    metrics: dict[str, Any] = field(default_factory=dict)
    advantages: dict[str, tuple[float, torch.Tensor]] = field(default_factory=dict)
    """By trajectory, named GROUP_SESSION_0: its reward, and the advantages of the tokens that count."""
    tokens: int = 0
    """How many tokens count in the loss."""
    micro_batches: list[list[int]] = field(default_factory=list)
    """Tokens of each row of each."""


@dataclass
class Trained:
    """A finished training."""

    updates: list[Update]
    weights: dict[str, torch.Tensor]
    moments: list[torch.Tensor]
    """AdamW's first moments."""
    moments_before: list[torch.Tensor]
    """Those it started from; none for a fresh optimizer."""
    relabelled: int
    """Labels that were changed."""


@dataclass
class FailedStep:
    """A step that ended in a Failure."""

    failure: str
    updates: int
    attempts: int
    """How often the step was rolled out."""
    faults: list[str]
    """What the user's terminal was told before that."""


def in_trainer(name: str, *args: Any) -> Any:
    """Call a function of `support.train.verl_trainer`, in a process made for it."""
    return getattr(importlib.import_module("support.train.verl_trainer"), name)(*args)

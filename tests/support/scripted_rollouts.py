"""Groups of scripted rollouts, and the results of `support.train.verl_trainer` on them.

Only `in_trainer` imports VERL.
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
    """The rollouts of one problem. Each has a call and an answer."""

    name: str
    rollouts: str
    """One character per rollout:

    1 right, 0 wrong, e wrong after a failed call, x right with a call that the judge lost, f a rollout whose engine
    fails.
    """
    output: str = "7"
    """The judge's answer to every call."""
    says: dict[str, str] | None = None
    """Extra text that the rollouts write, keyed by outcome."""
    recoveries: str = ""
    """The rollouts that start after each failed call, in the same notation."""

    def turn(self, session: int, number: int) -> str:
        """Return the text that the model writes in a turn of one rollout. Turns count from 0."""
        outcome = self.rollouts[session]
        if number == 0:
            thought = "So. " * ((len(self.name) + 3 * session) % 5) + (self.says or {}).get(outcome, "")
            call = json.dumps({"name": TOOL, "arguments": {"code": f"print({session})", "input": ""}})
            return f"{thought}</reason>\n<tool_call>\n{call}\n</tool_call>"
        return f"Seen {session}.</reason>\n<answer>\\boxed{{{int(ANSWER) - (outcome in '0e')}}}</answer>"


@dataclass
class Update:
    """The input of one optimizer step, and VERL's metrics of the step."""

    lr: float
    gradient: dict[str, torch.Tensor]
    """The gradient of each parameter, after VERL has clipped the norm."""
    metrics: dict[str, Any] = field(default_factory=dict)
    advantages: dict[str, tuple[float, torch.Tensor]] = field(default_factory=dict)
    """Dict from a trajectory, named GROUP_SESSION_0, to its reward and the advantages of its tokens in the loss."""
    tokens: int = 0
    """The number of tokens in the loss."""
    micro_batches: list[list[int]] = field(default_factory=list)
    """For each micro-batch, the number of tokens of each row."""


@dataclass
class Trained:
    """A finished training run."""

    updates: list[Update]
    weights: dict[str, torch.Tensor]
    moments: list[torch.Tensor]
    """AdamW's first moments."""
    moments_before: list[torch.Tensor]
    """AdamW's first moments at the start; empty for a fresh optimizer."""
    relabelled: int
    """The number of labels that were changed."""


@dataclass
class FailedStep:
    """A step that ended in a Failure."""

    failure: str
    updates: int
    attempts: int
    """The number of attempts to generate the rollouts of the step."""
    faults: list[str]
    """The lines that the user's terminal showed before the failure."""


def in_trainer(name: str, *args: Any) -> Any:
    """Call a function of `support.train.verl_trainer` in a new process."""
    return getattr(importlib.import_module("support.train.verl_trainer"), name)(*args)

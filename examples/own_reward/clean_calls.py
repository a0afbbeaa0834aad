"""A reward of your own: 1 for a correct answer, or 0.75 if a tool call failed.

Run `python clean_calls.py` to see the rewards of three invented traces.
"""

from __future__ import annotations

from typing import Literal

from rstar2 import Problem, ToolCall, Trace, Turn


def reward(problem: Problem, trace: Trace) -> float:
    """Return the reward, which may be any finite number. `trace.correct` is the grader's verdict."""
    if not trace.correct:
        return 0.0
    return 0.75 if trace.failed_calls else 1.0


def invented(verdict: str, status: Literal["ok", "error"]) -> Trace:
    """Return a trace with one call."""
    turns = [
        Turn(text="Let me compute that.", start=0, end=1, calls=[ToolCall(status=status, output="")]),
        Turn(text=r"<answer>\boxed{42}</answer>", start=1, end=2),
    ]
    return Trace(
        problem_id="p", prompt_ids=[1], response_ids=[2, 3], response_mask=[1, 1], turns=turns, finish="answer",
        verdict=verdict,
    )  # fmt: skip


def main() -> None:
    problem = Problem("p", "What is 6 times 7?", "42")
    print("correct:", reward(problem, invented("correct", "ok")))
    print("correct, with a failed call:", reward(problem, invented("correct", "error")))
    print("wrong:", reward(problem, invented("wrong", "ok")))


if __name__ == "__main__":
    main()

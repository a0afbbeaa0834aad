"""The walks of docs/architecture.md follow the code: the step before, or an earlier one, leads to each step."""

from __future__ import annotations

import ast
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
MOST = {"Out": 40, "Back": 24, "A reward, from a finished rollout to the update": 31}
"""Steps of each walk; longer ones are hard to follow, and a reason to simplify the code."""
_JUDGE, _TRAIN, _GRADER = "rstar2/judge/", "rstar2/train/verl/", "rstar2/eval/grader/"
BETWEEN = {
    "Connection._flush": [_JUDGE + "client/connection.py:Connection._flush_soon"],
    "Dispatcher._send_batch": [".unsent"],
    "main": [
        _JUDGE + "sandbox/inside/zygote.py:Zygote._start",
        _JUDGE + "sandbox/inside/zygote.py:Zygote.serve",
        _JUDGE + "sandbox/inside/zygote.py:serve",
        _JUDGE + "sandbox/inside/main.py:_serve",
    ],
    "run_task": [_JUDGE + "sandbox/sandbox.py:Sandbox.run"],
    "LocalQueue.finish": [_JUDGE + "worker/main.py:work"],
    "Consumer._exchange": [".results"],
    "Dispatcher._handle_notices": [_JUDGE + "server/dispatcher.py:Dispatcher._receive_loop"],
    "StreamConnection._queue_result": [".result", _JUDGE + "server/websocket.py:StreamConnection._submit"],
    "StreamConnection._send_message": [
        ".has_responses",
        _JUDGE + "server/websocket.py:StreamConnection.send_responses",
    ],
    "RolloutTools.run": [
        ".calls",
        _JUDGE + "client/connection.py:Connection.submit",
        _JUDGE + "client/client.py:JudgeClient.run",
        "rstar2/tools/python_code_with_standard_io.py:Tool.run",
    ],
    "ChatCodec.tool_turn": ["rstar2/agent.py:_run_all", "rstar2/agent.py:_take_turns"],
    "grade": [_GRADER + "worker.py:_graded"],
    "tokenize": [_GRADER + "parse/reader.py:_parsed"],
    "Arithmetic._sum": [
        _GRADER + "parse/answer.py:Answer._listing",
        _GRADER + "parse/answer.py:Answer._relation",
        _GRADER + "parse/answer.py:Answer._chain",
        _GRADER + "parse/answer.py:Answer._side",
        _GRADER + "parse/answer.py:Answer._set_expression",
    ],
    "Expression._operand": [
        _GRADER + "parse/arithmetic.py:Arithmetic._signed_term",
        _GRADER + "parse/arithmetic.py:Arithmetic._term",
        _GRADER + "parse/arithmetic.py:Arithmetic._factor",
    ],
    "compare": [_GRADER + "grade.py:_by_type"],
    "flattened": [_GRADER + "compare/answers.py:_with_signs"],
    "equal": [_GRADER + "compare/answers.py:_compare", _GRADER + "compare/answers.py:_values"],
    "evaluate": [
        _GRADER + "values/equality.py:_identical",
        _GRADER + "values/equality.py:_agree",
        _GRADER + "values/equality.py:_difference",
    ],
    "RStarAgentLoop._rewarded": [
        _GRADER + "pool.py:_Worker.grade",
        _GRADER + "pool.py:GraderPool._grade_in_worker",
        _GRADER + "pool.py:GraderPool.agrade",
    ],
    "to_extra_fields": [_TRAIN + "agent_loop.py:RStarAgentLoop.run"],
    "RocReplayBuffer._materialize_batch": [".super"],  # VERL's own class calls it
    "sample_down": [_TRAIN + "sampler.py:RocReplayBuffer._sample_down"],
}
"""For a step that no earlier one of its process calls, or is called by: what is in between.

Functions that the page does not list, or the attribute by which one hands over to the other: a queue, a future.
"""
Function = tuple[str, str]
"""File and qualified name."""


def _steps(title: str) -> list[list[list[Function]]]:
    """The steps of a walk, in the parts that one process does; each the functions that its line names."""
    section = re.split(rf"^##+ {re.escape(title)}$", PAGE, flags=re.MULTILINE)[1]
    section = re.split(r"^##+ ", section, flags=re.MULTILINE)[0]
    parts: list[list[list[Function]]] = [[]]
    for step, process in re.findall(r"^(\d+\. .*(?:\n +.*)*)|^([A-Z].*:)$", section, re.MULTILINE):
        if process:
            parts.append([])
        else:
            parts[-1].append(re.findall(r"`([\w/]+\.py):([\w.]+)`", step))
    return [part for part in parts if part]


@cache
def _definition(file: str, name: str) -> ast.AST:
    node: ast.AST = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    for part in name.split("."):
        node = next(
            inner
            for inner in ast.walk(node)
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and inner.name == part
        )
    return node


@cache
def _mentioned(file: str, name: str) -> frozenset[str]:
    """The names that a function's body uses."""
    nodes = ast.walk(_definition(file, name))
    return frozenset(
        getattr(node, "attr", None) or getattr(node, "id", "")
        for node in nodes
        if isinstance(node, ast.Name | ast.Attribute)
    )


def _are_linked(one: Function, other: Function) -> bool:
    """Whether a function calls the other, or they use one attribute."""
    if not (one[0] and other[0]):
        named, function = (one, other) if not one[0] else (other, one)
        return named[1] in _mentioned(*function)
    return _calls(one, other) or _calls(other, one)


def _calls(one: Function, other: Function) -> bool:
    return other[1].rpartition(".")[2] in _mentioned(*one)


def _leads(way: list[list[Function]]) -> bool:
    """Whether each place of a way has a function that is linked with one of the place before."""
    return all(
        any(_are_linked(one, other) for one in here for other in before) for before, here in pairwise(way)
    )


def _unlinked(title: str) -> list[str]:
    """The steps of a walk that neither the step before leads to, nor an earlier one calls."""
    found = []
    for part in _steps(title):
        for number, step in enumerate(part[1:], 1):
            before, earlier = part[number - 1], [each for one in part[:number] for each in one]
            way = [[_function(each)] for each in BETWEEN.get(step[0][1], [])]
            called = any(_calls(one, step[0]) for one in earlier)
            if not (called or _leads([before, step]) or _leads([earlier, *way, step])):
                found.append(step[0][1])
    return found


def _function(written: str) -> Function:
    file, _, name = written.rpartition(":")
    return file, name.removeprefix(".")


@pytest.mark.parametrize("title", MOST)
def test_each_step_of_a_walk_is_linked_with_one_before_it(title: str) -> None:
    assert _unlinked(title) == []


@pytest.mark.parametrize(("title", "most"), MOST.items())
def test_a_walk_is_no_longer_than_can_be_followed(title: str, most: int) -> None:
    steps = [step for part in _steps(title) for step in part]
    assert 20 < len(steps) <= most
    assert all(steps)


def test_a_step_that_does_not_follow_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = PAGE.replace(
        "`rstar2/judge/client/client.py:JudgeClient.run`", "`rstar2/eval/grader/extract.py:extract_answer`"
    )
    monkeypatch.setattr(f"{__name__}.PAGE", wrong)
    assert "extract_answer" in _unlinked("Out")

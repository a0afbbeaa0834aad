"""GPQA-Diamond: each sample has a random, reproducible order of choices. An answer may be the letter of a choice or the
choice's text."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.tools import SharedTools

from rstar2.data.benchmarks import fingerprint
from rstar2.data.problem import Problem
from rstar2.engines.oracle import byte_codec
from rstar2.engines.pool import EnginePool
from rstar2.errors import UserError
from rstar2.eval.benchmarks import BenchmarkFiles, find
from rstar2.eval.benchmarks.gpqa_diamond import GPQAMethod, order
from rstar2.eval.compare import compare_runs
from rstar2.eval.grader import GraderPool
from rstar2.eval.methods.agent import Agent, RetryingTools
from rstar2.eval.progress import Services
from rstar2.eval.run import EvalResult, Part, run_parts
from rstar2.eval.settings import EvalSettings
from rstar2.loop.engine import Generation, OnTokens, Sampling
from rstar2.loop.trace import ToolCall, read_traces
from rstar2.loop.turns.codec import ChatCodec
from rstar2.retry import RetryPolicy

QUESTIONS = 40
SAMPLES = 16


class NoTools(SharedTools):
    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        raise AssertionError("nothing calls a tool here")


class FixedAnswerEngine:
    """Answers every question with the same text. A `#` in the text is replaced by the letter of the choice that ends
    with `reads`."""

    name = "says"

    def __init__(self, codec: ChatCodec, answer: str, reads: str = "") -> None:
        self._codec = codec
        self._answer = answer
        self._reads = reads

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        answer = self._answer
        if self._reads:
            lines = self._codec.tokenizer.decode(list(prompt_ids)).splitlines()
            answer = answer.replace("#", next(line for line in lines if line.endswith(self._reads))[1])
        text = f"Well.</reason><answer>\\boxed{{{answer}}}</answer>"
        return Generation([*self._codec.tokenizer.encode(text), self._codec.end_id], None, "stop")

    async def aclose(self) -> None:
        return


@pytest.fixture(scope="module")
def codec() -> ChatCodec:
    return byte_codec()


@pytest.fixture(scope="module")
def grader() -> Iterator[GraderPool]:
    with GraderPool() as pool:
        yield pool


def rows(count: int = QUESTIONS) -> list[dict[str, str]]:
    return [
        {
            "Record ID": f"q{number}",
            "Question": f"Which metal is number {number}?",
            "Correct Answer": "iron and gold",
            "Incorrect Answer 1": "tin",
            "Incorrect Answer 2": "lead",
            "Incorrect Answer 3": "zinc",
        }
        for number in range(count)
    ]


@pytest.fixture
def problems(tmp_path: Path) -> list[Problem]:
    path = tmp_path / "gpqa.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    return find("gpqa-diamond").load(BenchmarkFiles(path), EvalSettings())


async def measure(
    out: Path, problems: list[Problem], engine: FixedAnswerEngine, codec: ChatCodec, grader: GraderPool
) -> EvalResult:
    settings = EvalSettings(samples=SAMPLES, wait_s=5)
    retries = RetryPolicy(5)
    engines, tools = EnginePool([engine], retries), RetryingTools(NoTools(), retries)
    method = GPQAMethod(Agent(engines, tools, codec, grader), settings)
    services = Services(retries, (engines,), tools)
    (result,) = await run_parts({"gpqa": Part(problems, out, method)}, 64, services)
    return result


@pytest.mark.slow
async def test_a_model_that_always_says_a_scores_a_quarter(
    tmp_path: Path, problems: list[Problem], codec: ChatCodec, grader: GraderPool
) -> None:
    result = await measure(tmp_path / "a", problems, FixedAnswerEngine(codec, "A"), codec, grader)
    low, high = result.summary["interval_run_to_run"]
    assert low <= 0.25 <= high
    golds = Counter(trace.gold for trace in read_traces(tmp_path / "a" / "traces.jsonl"))
    assert set(golds) == set("ABCD")


@pytest.mark.parametrize("answer", ["#", "(#) iron and gold", "\\text{iron and gold}", "iron and gold"])
async def test_the_letter_and_the_content_of_the_right_choice_are_accepted(
    tmp_path: Path, problems: list[Problem], codec: ChatCodec, grader: GraderPool, answer: str
) -> None:
    engine = FixedAnswerEngine(codec, answer, reads="iron and gold")
    result = await measure(tmp_path / "r", problems[:2], engine, codec, grader)
    assert result.summary["accuracy"] == 1.0


@pytest.mark.parametrize("answer", ["#", "tin", "iron or tin"])
async def test_another_choice_is_wrong_by_letter_and_by_content(
    tmp_path: Path, problems: list[Problem], codec: ChatCodec, grader: GraderPool, answer: str
) -> None:
    result = await measure(
        tmp_path / "w", problems[:2], FixedAnswerEngine(codec, answer, reads=" tin"), codec, grader
    )
    assert result.summary["accuracy"] == 0.0


class MostlyTin(FixedAnswerEngine):
    """Names the right choice by its letter in a third of the samples. In the others, answers tin: by its letter or by
    the word."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        assert sampling.seed is not None
        self._reads = "iron and gold" if sampling.seed % 3 == 0 else " tin"
        self._answer = "tin" if sampling.seed % 3 == 1 else "#"
        return await super().generate(prompt_ids, sampling, on_tokens)


async def test_a_choice_has_one_vote_in_every_order(
    tmp_path: Path, problems: list[Problem], codec: ChatCodec, grader: GraderPool
) -> None:
    result = await measure(tmp_path / "m", problems[:6], MostlyTin(codec, ""), codec, grader)
    right = {row["id"]: row["correct"] for row in result.per_problem}
    assert 0 < sum(right.values()) < 6 * SAMPLES / 2
    expected = [(count > SAMPLES / 2) + (count == SAMPLES / 2) / 2 for count in right.values()]
    assert result.summary["maj@n"] == pytest.approx(sum(expected) / 6)
    resumed = await measure(tmp_path / "m", problems[:6], MostlyTin(codec, ""), codec, grader)
    assert resumed.summary == result.summary


async def test_a_run_that_was_stopped_is_compared_with_one_of_fewer_questions(
    tmp_path: Path, problems: list[Problem], codec: ChatCodec, grader: GraderPool
) -> None:
    for name, count in (("few", 2), ("stopped", 3)):
        await measure(tmp_path / name, problems[:count], FixedAnswerEngine(codec, "A"), codec, grader)
    results_file = tmp_path / "stopped" / "results.json"
    results_file.write_text(json.dumps({**json.loads(results_file.read_text()), "complete": False}))
    (comparison,) = compare_runs(tmp_path / "few", tmp_path / "stopped")
    assert (len(comparison.pairs), comparison.unpaired) == (2, 1)


async def test_a_run_that_was_killed_is_compared_by_its_questions(
    tmp_path: Path, problems: list[Problem], codec: ChatCodec, grader: GraderPool
) -> None:
    for name, answer in (("whole", "#"), ("killed", "A")):
        engine = FixedAnswerEngine(codec, answer, reads="iron and gold" if answer == "#" else "")
        await measure(tmp_path / name, problems[:3], engine, codec, grader)
    (tmp_path / "killed" / "results.json").unlink()
    (comparison,) = compare_runs(tmp_path / "whole", tmp_path / "killed")
    assert (len(comparison.pairs), comparison.unpaired, comparison.a) == (3, 0, 1.0)
    assert comparison.changed == []


def test_the_order_is_kept_by_the_seed_and_every_place_is_as_likely() -> None:
    assert order(0, "q", 3) == order(0, "q", 3)
    placed = Counter(
        order(1, f"q{question}", sample).index(0) for question in range(100) for sample in range(40)
    )
    # For 4,000 draws with a chance of one in four, three standard deviations are 82.
    assert all(abs(placed[at] - 1000) < 82 for at in range(4))
    assert {tuple(order(2, "q", sample)) for sample in range(400)} == {
        tuple(order(2, "p", sample)) for sample in range(400)
    }


def test_the_gated_file_is_read_as_csv_too(tmp_path: Path) -> None:
    path = tmp_path / "gpqa_diamond.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows(1)[0]))
        writer.writeheader()
        writer.writerows(rows(3))
    loaded = find("gpqa-diamond").load(BenchmarkFiles(path), EvalSettings())
    assert [problem.id for problem in loaded] == ["q0", "q1", "q2"]
    assert loaded[0].answer == "iron and gold"


def test_other_wrong_choices_make_other_problems(tmp_path: Path) -> None:
    path = tmp_path / "gpqa.jsonl"
    digests = set()
    for wrong in ("tin", "clay"):
        path.write_text(json.dumps({**rows(1)[0], "Incorrect Answer 1": wrong}) + "\n")
        digests.add(fingerprint(find("gpqa-diamond").load(BenchmarkFiles(path), EvalSettings())))
    assert len(digests) == 2


def test_a_row_without_a_choice_is_named(tmp_path: Path) -> None:
    path = tmp_path / "gpqa.jsonl"
    path.write_text(json.dumps({**rows(1)[0], "Incorrect Answer 2": " "}) + "\n")
    with pytest.raises(UserError, match='row 1: no text in column "Incorrect Answer 2"'):
        find("gpqa-diamond").load(BenchmarkFiles(path), EvalSettings())

"""Tests of the built-in problems. They can be solved, training and held-out ones are disjoint, and their tool outputs
equal those of the judge."""

from __future__ import annotations

import asyncio
from itertools import islice

import pytest
from support.call_parsing import parse_calls

from rstar2.data import builtin
from rstar2.errors import UserError
from rstar2.eval.grader import grade
from rstar2.judge.client import JudgeClient
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.toolbox import Toolbox

FLAWS = {"repaired": 0.2, "guessed": 0.2, "wrong": 0.2, "missing": 0.2, "repeated": 0.1}


def test_held_out_problems_are_in_no_training_set_whatever_the_seeds() -> None:
    held_out = {problem.problem for problem in builtin.held_out(1, 300)}
    for seed in (1, 2):
        assert held_out.isdisjoint(problem.problem for problem in builtin.training(seed, 500))


def test_a_seed_repeats_and_another_differs() -> None:
    assert builtin.held_out(5, 40) == builtin.held_out(5, 40)
    assert builtin.held_out(5, 40) != builtin.held_out(6, 40)


def test_problems_are_distinct_of_every_family_and_have_integer_answers() -> None:
    problems = builtin.held_out(1, 300)
    assert len({problem.id for problem in problems}) == 300
    assert {problem.id.partition("-")[0] for problem in problems} == set(builtin.FAMILIES)
    assert all(str(int(problem.answer)) == problem.answer for problem in problems)


def test_more_problems_than_there_are_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtin, "OPERANDS", range(90, 99))
    with pytest.raises(
        UserError, match=r"there are only \d+ different problems, fewer than the requested 1000"
    ):
        builtin.held_out(1, 1000)


def test_sft_conversations_have_their_flaws_in_the_shares_asked_for() -> None:
    conversations = list(builtin.traces(1, 700, FLAWS))
    texts = [
        "".join(m["content"] for m in conversation if m["role"] == "assistant")
        for conversation in conversations
    ]
    without_answer = sum("<answer>" not in text for text in texts) / len(texts)
    twice = sum(text.count("<answer>") == 2 for text in texts) / len(texts)
    without_call = sum("<tool_call>" not in text for text in texts) / len(texts)
    assert without_answer == pytest.approx(0.2, abs=0.04)
    assert twice == pytest.approx(0.1, abs=0.03)
    assert without_call == pytest.approx(0.2, abs=0.04)


def test_clean_conversations_answer_rightly_and_their_calls_parse() -> None:
    questions = islice(builtin.questions(1, held_out=False), 60)
    for question, conversation in zip(questions, builtin.traces(1, 60, {}), strict=True):
        assert grade(question.problem.answer, conversation[-1]["content"]).verdict == "correct"
        calls = [
            call
            for m in conversation
            if m["role"] == "assistant"
            for call in parse_calls(m["content"], builtin.FORMAT)
        ]
        assert all(isinstance(call, tuple) for call in calls)


def test_tool_output_in_conversations_is_what_the_judge_shows(judge: JudgeHandle) -> None:
    programs = {
        code: output
        for question in islice(builtin.questions(2, held_out=False), 20)
        for code in (question.code, question.broken)
        for output in [builtin.run_trusted(code)[0]]
    }

    async def outputs() -> dict[str, str]:
        client = JudgeClient(judge.url)
        # On a busy machine, short programs can take longer than a model's programs may.
        limits = builtin.FORMAT.limits.model_copy(update={"seconds": 300.0})
        patient = builtin.FORMAT.model_copy(update={"limits": limits})
        async with Toolbox(client, patient).opened() as tools:
            name = builtin.FORMAT.tool_names[0]
            calls = await asyncio.gather(*(tools.run(name, {"code": code}) for code in programs))
        await client.aclose()
        return dict(zip(programs, [call.output for call in calls], strict=True))

    assert asyncio.run(outputs()) == programs

"""Arena-Hard: two games against the baseline, the benchmark's weighted win rate, and judge models that fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from support.servers.chat_standin import TOKENS, ChatStandIn
from support.servers.vllm_standin import serving
from support.waiting import TIMEOUT_S, wait_until

from rstar2.errors import Failure, UserError
from rstar2.eval.benchmarks import BenchmarkFiles, find
from rstar2.eval.benchmarks.arena_hard import ArenaMethod
from rstar2.eval.methods.chat import JUDGE_MODEL, Reply, ServerChat
from rstar2.eval.progress import Services
from rstar2.eval.run import EvalResult, OnProgress, Part, run_parts
from rstar2.eval.settings import EvalSettings
from rstar2.loop.trace import read_traces
from rstar2.processes import free_port
from rstar2.retry import RetryPolicy, ServiceGone

WORDS = {"system": "Judge.", "template": "Q {question}\nFIRST {answer_1}\nSECOND {answer_2}\n"}
SETTINGS = EvalSettings(samples=1, temperature=0.0, wait_s=TIMEOUT_S)


def files(folder: Path, count: int = 8) -> BenchmarkFiles:
    """Write questions and the baseline's answers in the dataset's format."""
    questions = [{"question_id": f"q{at}", "turns": [{"content": f"Question {at}?"}]} for at in range(count)]
    answers = [
        {"question_id": f"q{at}", "choices": [{"turns": [{"content": f"baseline {at}"}]}]}
        for at in range(count)
    ]
    for name, rows in (("question", questions), ("baseline", answers)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return BenchmarkFiles(folder / "question.jsonl", folder / "baseline.jsonl")


def wins(body: dict[str, Any]) -> str:
    """Judge that the baseline loses clearly."""
    return "[[B>>A]]" if "FIRST baseline" in body["messages"][1]["content"] else "[[A>>B]]"


def judging(label: Callable[[bool], str]) -> ChatStandIn:
    """Returns a judge model that answers `label(first)`. `first` is true if the baseline's answer comes first."""

    def judge(body: dict[str, Any]) -> str:
        return f"My verdict is {label('FIRST baseline' in body['messages'][1]['content'])}."

    return ChatStandIn(judge)


def constant_model() -> ChatStandIn:
    return ChatStandIn(lambda body: "<think>hm</think>mine")


class AfterAllAnswers(ServerChat):
    """A judge model that gets no request before the model has answered every question."""

    everything: Callable[[], bool]

    async def reply(self, *arguments: Any) -> Reply:
        await asyncio.to_thread(wait_until, self.everything)
        return await super().reply(*arguments)


async def measure(
    folder: Path,
    judge: ChatStandIn,
    model: ChatStandIn | None = None,
    away: str = "",
    on_progress: OnProgress | None = None,
) -> EvalResult:
    problems = find("arena-hard").load(files(folder), SETTINGS)
    model = model or constant_model()
    retries = RetryPolicy(0.5 if away else TIMEOUT_S)
    with serving(model), serving(judge):
        async with (
            aclosing(ServerChat(model.url, None, RetryPolicy(TIMEOUT_S), TIMEOUT_S)) as chat,
            aclosing(
                AfterAllAnswers(away, "judge", retries, TIMEOUT_S, JUDGE_MODEL)
                if away
                else ServerChat(judge.url, "judge", retries, TIMEOUT_S, JUDGE_MODEL)
            ) as grader,
        ):
            if isinstance(grader, AfterAllAnswers):
                grader.everything = lambda: chat.tokens == len(problems) * TOKENS
            method = ArenaMethod(chat, SETTINGS, grader, WORDS)
            services = Services(retries, (chat,))
            part = Part(problems, folder / "out", method)
            (result,) = await run_parts({"arena": part}, 4, services, on_progress)
    return result


WINS = [
    ("[[B>>A]]", "[[A>>B]]", 1.0, 1.0),
    ("[[A>>B]]", "[[B>>A]]", 0.0, 0.0),
    ("[[A=B]]", "[[A=B]]", 0.5, 0.0),
    ("[[B>A]]", "[[B>A]]", 0.5, 0.0),
    # A clear win counts three times and a narrow loss once.
    ("[[B>>A]]", "[[B>A]]", 0.75, 1.0),
]


@pytest.mark.parametrize(("baseline_first", "answer_first", "rate", "accuracy"), WINS)
async def test_the_win_rate_is_the_benchmarks(
    tmp_path: Path, baseline_first: str, answer_first: str, rate: float, accuracy: float
) -> None:
    judge = judging(lambda first: baseline_first if first else answer_first)
    result = await measure(tmp_path, judge)
    assert result.summary["scores"]["win rate"]["value"] == rate
    assert result.summary["accuracy"] == accuracy
    prompts = [body["messages"][1]["content"] for body in judge.requests]
    assert len(prompts) == 16
    assert all("hm" not in text for text in prompts), "the reasoning is not judged"


async def test_a_judge_without_a_verdict_is_asked_once_more(tmp_path: Path) -> None:
    def judge(body: dict[str, Any]) -> str:
        return "[[A=B]]" if len(body["messages"]) == 4 else "Both are fine."

    result = await measure(tmp_path, ChatStandIn(judge))
    assert result.summary["scores"]["win rate"]["value"] == 0.5


async def test_a_judge_that_answers_nonsense_ends_the_run_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"gave no verdict such as .*begins: 'I like both.'"):
        await measure(tmp_path, ChatStandIn(lambda body: "I like both."))


async def test_one_unreadable_judgment_is_not_verified_and_not_scored(tmp_path: Path) -> None:
    def judge(body: dict[str, Any]) -> str:
        return "no idea" if "Question 3?" in body["messages"][1]["content"] else "[[B>A]]"

    result = await measure(tmp_path, ChatStandIn(judge))
    assert result.summary["could_not_verify_share"] == 1 / 8
    assert result.summary["scores"]["win rate"]["problems"] == 7
    unread_traces = [
        trace for trace in read_traces(tmp_path / "out" / "traces.jsonl") if trace.verdict == "invalid"
    ]
    assert [trace.problem_id for trace in unread_traces] == ["q3"]


async def test_a_judge_model_that_is_away_is_named_and_no_answer_is_asked_for_twice(tmp_path: Path) -> None:
    away_url, model, progress_reports = f"http://127.0.0.1:{free_port()}", constant_model(), []
    with pytest.raises(ServiceGone, match=f"no judge model answers at {away_url}") as error:
        await measure(tmp_path, ChatStandIn(wins), model, away_url, progress_reports.append)
    assert "start the same command again" in error.value.hint
    assert any(f"no judge model answers at {away_url}" in (each.trouble or "") for each in progress_reports)
    assert len(model.requests) == 8
    result = await measure(tmp_path, ChatStandIn(wins), model)
    assert len(model.requests) == 8, "the second start judges the answers of the first one"
    assert result.complete
    assert result.summary["scores"]["win rate"]["value"] == 1.0
    assert sorted(path.name for path in (tmp_path / "out").glob("*.jsonl")) == ["traces.jsonl"]


async def test_a_judgment_that_is_refused_is_left_for_the_next_start_with_the_answer(tmp_path: Path) -> None:
    judge, model = ChatStandIn(wins), constant_model()
    judge.refuses = "Question 3?"
    with pytest.raises(
        Failure, match=r"1 of 8 samples failed: the judge model at .* refused the request: HTTP 400.*too long"
    ):
        await measure(tmp_path, judge, model)
    assert len(list(read_traces(tmp_path / "out" / "traces.jsonl"))) == 7
    judge.refuses = ""
    assert (await measure(tmp_path, judge, model)).complete
    assert len(model.requests) == 8


async def test_a_judge_model_that_refuses_everything_ends_the_run_with_its_words(tmp_path: Path) -> None:
    judge = ChatStandIn(wins)
    judge.refuses = "Question"
    with pytest.raises(Failure, match=r"gave no verdict .*judgments; the last one: .*HTTP 400"):
        await measure(tmp_path, judge)


def test_a_question_without_a_baseline_answer_is_named(tmp_path: Path) -> None:
    benchmark_files = files(tmp_path)
    assert benchmark_files.baseline is not None
    benchmark_files.baseline.write_text(benchmark_files.baseline.read_text().partition("\n")[2])
    with pytest.raises(UserError, match="has no answer to question q0"):
        find("arena-hard").load(benchmark_files, SETTINGS)

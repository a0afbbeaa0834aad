"""Arena-Hard v0.1: 500 user questions. A judge model compares each answer with GPT-4's answer twice, in both orders."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

from rstar2.data.problem import Problem
from rstar2.errors import Failure, UserError
from rstar2.eval.benchmarks import Benchmark, BenchmarkFiles, Resources
from rstar2.eval.harnesses.environment import Harness
from rstar2.eval.harnesses.process import Refused, started
from rstar2.eval.methods.chat import Chat, ChatMethod, ServerChat, answer_text
from rstar2.eval.settings import EvalSettings
from rstar2.files import read_objects
from rstar2.loop.engine import EngineError, Sampling
from rstar2.loop.trace import Trace
from rstar2.loop.turns.codec import Message
from rstar2.runs import json_digest

HARNESS = Harness(
    name="arena-hard",
    benchmarks=("arena-hard",),
    packages=(),
    modules=("evalscope",),
    data_packages=("evalscope==0.17.1",),
)
"""The harness is used only to read the judge model's prompt, which the package evalscope copied from the repository
lmarena/arena-hard-auto."""
_HUB = "lmarena-ai/arena-hard-auto"
_FILES = {
    "data": "data/arena-hard-v0.1/question.jsonl",
    "baseline": "data/arena-hard-v0.1/model_answer/gpt-4-0314.jsonl",
}
_VERDICT = re.compile(r"\[\[([AB<>=]+)\]\]")
_SHARES = {"A>>B": (0.0, 3), "A>B": (0.0, 1), "A=B": (0.5, 1), "B>A": (1.0, 1), "B>>A": (1.0, 3)}
"""Dict from the judge's label to the model's share of the win (0 to 1) and the weight of the game. In this game, the
model's answer is B.

Source: lmarena/arena-hard-auto.
"""
_JUDGE_TOKENS = 4096
_ASK_AGAIN = "continue your judgment and finish by outputting a final verdict label"
_MOST_UNREADABLE = 5
"""If the first judgments of a run all lack a verdict, the run ends after this number of judgments."""
WIN_RATE = "win rate"


def _load(files: BenchmarkFiles, settings: EvalSettings) -> list[Problem]:
    questions = _read(files.data or _from_hub("data"))
    baseline = files.baseline or _from_hub("baseline")
    answers = {
        str(_field(place, row, "uid", "question_id")): _baseline_answer(place, row)
        for place, row in _read(baseline)
    }
    problems: list[Problem] = []
    for place, row in questions:
        name = str(_field(place, row, "uid", "question_id"))
        if name not in answers:
            raise UserError(
                f"{baseline} has no answer to question {name}",
                "Give a file that has an answer to every question.",
            )
        problems.append(Problem(name, _question(place, row), answers[name]))
    if not problems:
        raise UserError(
            f"{files.data} has no questions", "The file has one JSON object per line, as on the hub."
        )
    return problems


def _read(path: Path) -> list[tuple[str, dict[str, Any]]]:
    rows = read_objects(path, f"The file has one JSON object per line, as in {_HUB}.")
    return [(f"{path}, line {number}", row) for number, row in rows]


def _from_hub(what: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(_HUB, _FILES[what], repo_type="dataset"))
    # If the hub cannot be reached, its libraries raise many types, from OSError to their own.
    except Exception as error:
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        hint = "Without a network, give both files: --data question.jsonl --baseline gpt-4-0314.jsonl."
        raise UserError(f"arena-hard: cannot load {_FILES[what]} from {_HUB}: {cause}", hint) from error


def _field(place: str, row: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        if row.get(name):
            return row[name]
    raise UserError(f'{place}: no field "{names[0]}"', f"A row must have the form of the rows in {_HUB}.")


def _question(place: str, row: Mapping[str, Any]) -> str:
    """Returns the question of a row. The row may have either of the two forms in which the dataset was published."""
    if isinstance(row.get("prompt"), str):
        return str(row["prompt"])
    try:
        return str(row["turns"][0]["content"])
    except (LookupError, TypeError) as error:
        raise UserError(
            f"{place}: no question in turns[0].content", f"A row must have the form of the rows in {_HUB}."
        ) from error


def _baseline_answer(place: str, row: Mapping[str, Any]) -> str:
    try:
        if "messages" in row:
            content = row["messages"][-1]["content"]
            return str(content["answer"] if isinstance(content, dict) else content)
        return str(row["choices"][0]["turns"][0]["content"])
    except (LookupError, TypeError) as error:
        raise UserError(
            f"{place}: no answer in choices[0].turns[0].content",
            f"A row must have the form of the rows in {_HUB}.",
        ) from error


class ArenaMethod(ChatMethod):
    """Gets one answer to each question. The judge model compares each answer with the baseline's answer in two games,
    in which the order of the two answers differs."""

    def __init__(
        self, chat: Chat, settings: EvalSettings, judge: ServerChat, words: Mapping[str, str]
    ) -> None:
        super().__init__(chat, settings)
        self._judge = judge
        self._words = words
        self._readable, self._unreadable = 0, 0
        digest = json_digest(dict(words), 64)
        self.decides = {"judge_prompt_sha256": digest, "judge_model": judge.model}

    async def graded(self, trace: Trace, problem: Problem) -> Trace:
        """The answer is correct if it wins more than half of the weighted games. If a game has no verdict, the answer's
        verdict is `invalid`."""
        answer = answer_text(trace.final_text)
        first = await self._verdict(problem.problem, problem.answer, answer)
        second = await self._verdict(problem.problem, answer, problem.answer)
        update: dict[str, Any] = {
            "extracted": answer,
            "rule": f"baseline first: {first}; answer first: {second}",
        }
        if first is None or second is None:
            return trace.model_copy(update={**update, "verdict": "invalid"})
        share, weight = _SHARES[first]
        other, other_weight = _SHARES[second]
        games = [share] * weight + [1 - other] * other_weight
        won = sum(games) / len(games) > 0.5
        return trace.model_copy(
            update={**update, "verdict": "correct" if won else "wrong", "scores": {WIN_RATE: games}}
        )

    async def _verdict(self, question: str, answer_1: str, answer_2: str) -> str | None:
        """Returns the judge's label for a game, or None if the judge gives no valid label.

        If the judge's reply has no label, the judge is asked once more, as the benchmark does.
        """
        prompt = self._words["template"].format(question=question, answer_1=answer_1, answer_2=answer_2)
        messages: list[Message] = [
            {"role": "system", "content": self._words["system"]},
            {"role": "user", "content": prompt},
        ]
        text = ""
        for _ in range(2):
            try:
                reply = await self._judge.reply(messages, Sampling(temperature=0.0, max_tokens=_JUDGE_TOKENS))
            except EngineError as error:
                self._count_unreadable(f"the last one: {error.message}")
                raise
            text = reply.text
            labels = set(_VERDICT.findall(text)) - {""}
            if len(labels) == 1 and (label := str(labels.pop())) in _SHARES:
                self._readable += 1
                return label
            if labels:
                break
            again: list[Message] = [
                {"role": "assistant", "content": text},
                {"role": "user", "content": _ASK_AGAIN},
            ]
            messages = [*messages, *again]
        self._count_unreadable(f"the last one begins: {' '.join(text.split())[:100]!r}")
        return None

    def _count_unreadable(self, last: str) -> None:
        """Count a judgment without a verdict. Raises Failure if the first judgments all lack a verdict."""
        self._unreadable += 1
        if not self._readable and self._unreadable >= _MOST_UNREADABLE:
            raise Failure(
                f"the judge model gave no verdict such as [[A>B]] in {self._unreadable} judgments; {last}",
                "Use another judge model. If the server has several models, choose one with --judge-model-name.",
            )


@contextlib.asynccontextmanager
async def _open(
    resources: Resources, settings: EvalSettings, files: BenchmarkFiles
) -> AsyncIterator[ArenaMethod]:
    assert resources.chat is not None
    assert resources.judge_model is not None
    log = resources.logs / "arena_hard.log"
    async with started(HARNESS, "arena_hard", {}, log) as process:
        try:
            words = await process.ask("words")
        except Refused as error:
            raise Failure(
                f"the harness {HARNESS.name} gives no prompt for the judge model: {error.message}",
                f"Its log: {log}",
            ) from error
    yield ArenaMethod(resources.chat, settings, resources.judge_model, words)


BENCHMARK = Benchmark(
    load=_load,
    open=_open,
    protocol={"samples": 1, "temperature": 0.0},
    harness=HARNESS,
    chat=True,
    judged=True,
    headline=WIN_RATE,
)

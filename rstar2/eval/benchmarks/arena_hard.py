"""Arena-Hard v0.1: 500 users' questions; a judge model compares each answer with that of GPT-4, twice."""

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
"""evalscope has the judge's prompt as lmarena/arena-hard-auto has it."""
_HUB = "lmarena-ai/arena-hard-auto"
_FILES = {
    "data": "data/arena-hard-v0.1/question.jsonl",
    "baseline": "data/arena-hard-v0.1/model_answer/gpt-4-0314.jsonl",
}
_VERDICT = re.compile(r"\[\[([AB<>=]+)\]\]")
_SHARES = {"A>>B": (0.0, 3), "A>B": (0.0, 1), "A=B": (0.5, 1), "B>A": (1.0, 1), "B>>A": (1.0, 3)}
"""The model's share of a game in which it is B, and how often the game counts, as lmarena/arena-hard-auto has it."""
_JUDGE_TOKENS = 4096
_ASK_AGAIN = "continue your judgment and finish by outputting a final verdict label"
_NONSENSE = 5
"""Judgments without a verdict, and none with one, after which the judge model is taken to be unfit."""
WIN_RATE = "win rate"


def _load(given: BenchmarkFiles, settings: EvalSettings) -> list[Problem]:
    questions = _read(given.data or _from_hub("data"))
    baseline = given.baseline or _from_hub("baseline")
    answers = {
        str(_field(where, row, "uid", "question_id")): _baseline_answer(where, row)
        for where, row in _read(baseline)
    }
    problems: list[Problem] = []
    for where, row in questions:
        name = str(_field(where, row, "uid", "question_id"))
        if name not in answers:
            raise UserError(
                f"{baseline} has no answer to question {name}", "Give a file with answers to these questions."
            )
        problems.append(Problem(name, _question(where, row), answers[name]))
    if not problems:
        raise UserError(
            f"{given.data} holds no questions", "The file has one JSON object per line, as on the hub."
        )
    return problems


def _read(path: Path) -> list[tuple[str, dict[str, Any]]]:
    rows = read_objects(path, f"The file has one JSON object per line, as in {_HUB}.")
    return [(f"{path}, line {number}", row) for number, row in rows]


def _from_hub(what: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(_HUB, _FILES[what], repo_type="dataset"))
    # The hub's libraries raise anything from OSError to their own types when it cannot be reached.
    except Exception as error:
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        hint = "Without a network, give both files: --data question.jsonl --baseline gpt-4-0314.jsonl."
        raise UserError(f"arena-hard: cannot load {_FILES[what]} from {_HUB}: {cause}", hint) from error


def _field(where: str, row: Mapping[str, Any], *names: str) -> Any:
    for name in names:
        if row.get(name):
            return row[name]
    raise UserError(f'{where}: no field "{names[0]}"', f"Rows must be as in {_HUB}.")


def _question(where: str, row: Mapping[str, Any]) -> str:
    """In either form that the dataset has had."""
    if isinstance(row.get("prompt"), str):
        return str(row["prompt"])
    try:
        return str(row["turns"][0]["content"])
    except (LookupError, TypeError) as error:
        raise UserError(f"{where}: no question in turns[0].content", f"Rows must be as in {_HUB}.") from error


def _baseline_answer(where: str, row: Mapping[str, Any]) -> str:
    try:
        if "messages" in row:
            content = row["messages"][-1]["content"]
            return str(content["answer"] if isinstance(content, dict) else content)
        return str(row["choices"][0]["turns"][0]["content"])
    except (LookupError, TypeError) as error:
        raise UserError(
            f"{where}: no answer in choices[0].turns[0].content", f"Rows must be as in {_HUB}."
        ) from error


class ArenaMethod(ChatMethod):
    """One answer to each question, and two games against the baseline, in either order."""

    def __init__(
        self, chat: Chat, settings: EvalSettings, judge: ServerChat, words: Mapping[str, str]
    ) -> None:
        super().__init__(chat, settings)
        self._judge = judge
        self._words = words
        self._read, self._unread = 0, 0
        digest = json_digest(dict(words), 64)
        self.decides = {"judge_prompt_sha256": digest, "judge_model": judge.model}

    async def graded(self, trace: Trace, problem: Problem) -> Trace:
        """Correct where it wins more than it loses; a game without a verdict leaves the answer unverified."""
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
        """The judge's label for a game; asked once more where it gave none, as the benchmark does."""
        shown = self._words["template"].format(question=question, answer_1=answer_1, answer_2=answer_2)
        messages: list[Message] = [
            {"role": "system", "content": self._words["system"]},
            {"role": "user", "content": shown},
        ]
        text = ""
        for _ in range(2):
            try:
                reply = await self._judge.reply(messages, Sampling(temperature=0.0, max_tokens=_JUDGE_TOKENS))
            except EngineError as error:
                self._count_unread(f"the last one: {error.message}")
                raise
            text = reply.text
            labels = set(_VERDICT.findall(text)) - {""}
            if len(labels) == 1 and (label := str(labels.pop())) in _SHARES:
                self._read += 1
                return label
            if labels:
                break
            again: list[Message] = [
                {"role": "assistant", "content": text},
                {"role": "user", "content": _ASK_AGAIN},
            ]
            messages = [*messages, *again]
        self._count_unread(f"the last one begins: {' '.join(text.split())[:100]!r}")
        return None

    def _count_unread(self, last: str) -> None:
        """A judgment without a verdict; a Failure where the judge model has never given one."""
        self._unread += 1
        if not self._read and self._unread >= _NONSENSE:
            raise Failure(
                f"the judge model gave no verdict such as [[A>B]] in {self._unread} judgments; {last}",
                "Use a judge model that gives such verdicts; choose one of several with --judge-model-name.",
            )


@contextlib.asynccontextmanager
async def _open(
    resources: Resources, settings: EvalSettings, given: BenchmarkFiles
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

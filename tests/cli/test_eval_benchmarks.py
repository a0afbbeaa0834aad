"""Tests of `rstar2 eval` on benchmarks other than mathematics. A harness of a few lines replaces the real ones."""

from __future__ import annotations

import json
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clock import Clock, policies_on
from support.commands import CommandResult, rstar2
from support.servers.chat_standin import ChatStandIn
from support.servers.vllm_standin import serving

from rstar2.cli.eval import GENERAL, GROUPS
from rstar2.eval import benchmarks
from rstar2.eval.benchmarks import arena_hard
from rstar2.eval.benchmarks.ifeval import HARNESS
from rstar2.eval.harnesses.environment import Harness
from rstar2.files import write_json
from rstar2.loop.trace import read_traces
from rstar2.processes import free_port

CHECKERS = """
from dataclasses import dataclass

@dataclass
class Found:
    instruction_id: str
    strict_pass: bool
    loose_pass: bool

def evaluate_output_for_sample(benchmark, sample, response):
    if "?" in response:
        raise LookupError("*****\\n Resource tagger not found.")
    return [
        Found(name, kwargs["word"] in response, kwargs["word"] in response.lower())
        for name, kwargs in zip(sample.instruction_id_list, sample.kwargs)
    ], None
"""
ADAPTER = "evalscope/benchmarks/arena_hard/arena_hard_adapter.py"
WORDS = [["one"], ["two"], ["one", "two"], ["three"], ["four"], ["ask"]]


def output_of(result: CommandResult) -> str:
    return result.stdout + result.stderr


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def environment(harness: Harness, files: dict[str, str]) -> Path:
    """Creates an environment that has these files as its packages and is recorded as set up.

    Returns the packages' folder.
    """
    venv.create(harness.folder)
    (packages,) = harness.folder.glob("lib/python*/site-packages")
    for name, text in files.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text)
    write_json(harness.folder / "environment.json", {"packages": harness.pins, "python": "", "installed": {}})
    return packages


@pytest.fixture
def harness() -> Path:
    """Creates an environment with checkers that look for words. Returns the folder of its packages."""
    rows = [
        {
            "key": f"k{at}",
            "prompt": f"Say {' and '.join(words)}.",
            "instruction_id_list": [f"say:{word}" for word in words],
            "kwargs": [{"word": word} for word in words],
        }
        for at, words in enumerate(WORDS)
    ]
    files = {
        "if_verifiable/__init__.py": "",
        "if_verifiable/api.py": CHECKERS,
        "langdetect/__init__.py": "class DetectorFactory:\n    seed = None\n",
        "llama_index/__init__.py": "",
        "nltk/__init__.py": "",
        "ifbench/__init__.py": "",
        "ifbench/data/IFBench_test.jsonl": "".join(json.dumps(row) + "\n" for row in rows),
    }
    return environment(HARNESS, files)


@pytest.fixture
def arena() -> list[str]:
    """The command that measures arena-hard on three questions, without the servers' addresses."""
    words = (
        "from evalscope.metrics import LLMJudge\n"
        'GRADER_SYSTEM_PROMPT = "Judge."\n'
        'GRADER_TEMPLATE = "{question} A:{answer_1} B:{answer_2}\\n".strip(\n)\n'
    )
    environment(arena_hard.HARNESS, {"evalscope/__init__.py": "", ADAPTER: words})
    questions = [{"question_id": name, "turns": [{"content": f"{name}?"}]} for name in "xyz"]
    answers = [{"question_id": name, "choices": [{"turns": [{"content": "theirs"}]}]} for name in "xyz"]
    for file, rows in (("question", questions), ("baseline", answers)):
        Path(f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["eval", "arena-hard", "--data", "question.jsonl", "--baseline", "baseline.jsonl"]


@pytest.fixture
def model() -> Iterator[ChatStandIn]:
    """A model that follows the first prompt, one of the third's two instructions, and the fourth only loosely. The
    checker cannot check its last reply."""
    replies = {"one.": "<think>two</think>one", "one and two.": "one", "three.": "THREE", "ask.": "what?"}

    def reply(body: dict[str, Any]) -> str:
        text = body["messages"][-1]["content"].removeprefix("Say ")
        return replies.get(text, "no")

    with serving(ChatStandIn(reply)) as server:
        yield server


@pytest.mark.slow
def test_a_harness_scores_and_the_same_command_adds_nothing(
    harness: Path, model: ChatStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rstar2.eval.measure.RetryPolicy", policies_on(Clock()))
    model.busy_answers = 2
    first = rstar2("eval", "ifbench", "--url", model.url, "--run", "r", "--max-tokens", 64)
    assert first.code == 0, output_of(first)
    request = model.requests[-1]
    assert (request["temperature"], request["max_tokens"], request["top_p"]) == (0.0, 64, 1.0)
    results = json.loads(Path("r/ifbench/results.json").read_text())
    scores = {name: score["value"] for name, score in results["summary"]["scores"].items()}
    assert scores == {
        "prompt, strict": pytest.approx(1 / 5),
        "prompt, loose": pytest.approx(2 / 5),
        "instruction, strict": pytest.approx(2 / 6),
        "instruction, loose": pytest.approx(3 / 6),
    }
    assert results["summary"]["could_not_verify_share"] == pytest.approx(1 / 6)
    assert results["settings"]["harness"] == HARNESS.pins
    traces = {trace.problem_id: trace for trace in read_traces(Path("r/ifbench/traces.jsonl"))}
    assert traces["k0"].extracted == "one"
    assert traces["k2"].rule == "not followed: say:two"
    assert traces["k5"].rule == "LookupError: Resource tagger not found."
    assert traces["k0"].tokens == 7
    assert "prompt, strict" in output_of(first)
    count = len(model.requests)
    assert rstar2("eval", "ifbench", "--url", model.url, "--run", "r", "--max-tokens", 64).code == 0
    assert len(model.requests) == count


@pytest.mark.slow
def test_what_a_server_refuses_leaves_the_numbers_and_the_page_of_the_others(
    harness: Path, model: ChatStandIn
) -> None:
    words = ("eval", "ifbench", "--url", model.url, "--run", "r")
    model.refuses = "four"
    result = rstar2(*words)
    assert result.code == 1, output_of(result)
    assert "1 of 6 samples failed: the server at" in output_of(result)
    assert "too long" in output_of(result)
    assert "prompt, strict" in result.stdout
    assert "report: r/report.html" in result.stdout
    assert Path("r/report.html").exists()
    assert json.loads(Path("r/ifbench/results.json").read_text())["missing"] == 1
    model.refuses = "Say"
    Path("r").rename("before")
    result = rstar2(*words)
    assert result.code == 1, output_of(result)
    assert "6 of 6 samples failed" in output_of(result)
    model.refuses = ""
    assert rstar2(*words).code == 0


@pytest.mark.slow
def test_a_run_with_other_settings_is_refused(harness: Path, model: ChatStandIn) -> None:
    assert rstar2("eval", "ifbench", "--url", model.url, "--run", "r", "--limit", 2).code == 0
    again = rstar2("eval", "ifbench", "--url", model.url, "--run", "r", "--limit", 2, "--temperature", 0.5)
    assert again.code == 2
    assert "settings.ifbench.temperature" in output_of(again)


def test_a_harness_that_is_not_set_up_or_broken_is_named_with_its_command(harness: Path) -> None:
    words = ("eval", "ifbench", "--model", str(harness))
    (harness / "langdetect" / "__init__.py").unlink()
    (harness / "langdetect").rmdir()
    broken = rstar2(*words)
    assert broken.code == 2
    assert "ifbench needs the harness if-verifiable: no module langdetect" in output_of(broken)
    assert "rstar2 eval setup ifeval" in output_of(broken)
    doctor = rstar2("doctor")
    assert "harness if-verifiable" in output_of(doctor)
    assert "no module langdetect" in output_of(doctor)
    absent = rstar2("eval", "bfcl-v3", "--model", str(harness))
    assert "bfcl-v3 needs the harness nvidia-bfcl: not set up" in output_of(absent)
    assert not Path("runs").exists()


@pytest.mark.slow
def test_a_judge_model_that_is_not_given_away_or_one_of_several_is_named_before_the_model_is_asked(
    arena: list[str], model: ChatStandIn
) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    with serving(ChatStandIn(lambda body: "[[A=B]]", names=("a", "b"))) as several:
        messages = {
            (): "arena-hard is graded by a judge model, but there is no --judge-model-url",
            ("--judge-model-url", away): f"no judge model answers at {away}",
            (
                "--judge-model-url",
                away,
                "--judge-model-name",
                "a",
            ): f"no judge model answers at {away}",
            ("--judge-model-url", several.url): "serves 2 models: a, b",
        }
        for words, message in messages.items():
            result = rstar2(*arena, "--url", model.url, "--wait", 0.2, *words)
            assert (result.code, message in output_of(result)) == (2, True), output_of(result)
    assert model.requests == []
    assert not Path("runs").exists()


@pytest.mark.slow
def test_a_judge_model_grades_and_its_name_belongs_to_the_settings(
    arena: list[str], model: ChatStandIn
) -> None:
    def judge(body: dict[str, Any]) -> str:
        return "[[B>>A]]" if "A:theirs" in body["messages"][1]["content"] else "[[A>>B]]"

    with serving(ChatStandIn(judge, names=("first",))) as server:
        words = (*arena, "--url", model.url, "--run", "r", "--judge-model-url", server.url)
        result = rstar2(*words)
        assert result.code == 0, output_of(result)
        lines = [" ".join(line.split()) for line in output_of(result).splitlines()]
        assert any(line.startswith("win rate 100.0 %") for line in lines), lines
        assert not any("86.6 %" in line for line in lines), "the paper's number is of all problems"
        stored_config = json.loads(Path("r/config.json").read_text())["config"]["judge_model"]
        assert stored_config == "first"
        results = json.loads(Path("r/arena-hard/results.json").read_text())
        assert results["settings"]["judge_model"] == "first", "`compare` shows in which settings runs differ"
    with serving(ChatStandIn(judge, names=("first",))) as server:
        words = (*words[:-1], server.url)
        moved = rstar2(*words)
        assert (moved.code, len(server.requests)) == (0, 0), output_of(moved)
        server.names = ("second",)
        other = rstar2(*words)
    assert (other.code, "judge_model" in output_of(other)) == (2, True), output_of(other)


@pytest.mark.slow
def test_each_server_gets_its_own_key_and_the_judge_models_goes_to_no_other(
    arena: list[str], model: ChatStandIn
) -> None:
    with serving(ChatStandIn(lambda body: "[[A=B]]")) as server:
        words = (*arena, "--url", model.url, "--judge-model-url", server.url)
        keys = {"OPENAI_API_KEY": "judges"}
        for run, env, key_sent in (
            ("a", keys, None),
            ("b", {**keys, "RSTAR2_API_KEY": "models"}, "Bearer models"),
        ):
            model.keys.clear()
            result = rstar2(*words, "--run", run, env=env)
            assert result.code == 0, output_of(result)
            assert set(model.keys) == {key_sent}
    assert set(server.keys) == {"Bearer judges"}


@pytest.mark.slow
def test_the_key_of_openai_goes_to_no_other_server(harness: Path, model: ChatStandIn) -> None:
    result = rstar2("eval", "ifbench", "--url", model.url, "--run", "r", env={"OPENAI_API_KEY": "models"})
    assert result.code == 0, output_of(result)
    assert set(model.keys) == {None}
    assert (
        "own defaults apply to them"
        in json.loads(Path("r/ifbench/results.json").read_text())["left_to_server"]
    )
    assert "own defaults apply to them" in output_of(result)


def test_a_judge_model_that_answers_nonsense_ends_the_run_in_a_line(
    arena: list[str], model: ChatStandIn
) -> None:
    with serving(ChatStandIn(lambda body: "Both are nice.")) as server:
        result = rstar2(*arena, "--url", model.url, "--run", "r", "--judge-model-url", server.url)
    assert result.code == 1
    assert "the judge model gave no verdict such as [[A>B]]" in output_of(result)
    assert "'Both are nice.'" in output_of(result)


def test_a_harness_without_the_judges_prompt_is_named_with_its_log(
    arena: list[str], model: ChatStandIn
) -> None:
    (packages,) = arena_hard.HARNESS.folder.glob("lib/python*/site-packages")
    (packages / ADAPTER).write_text('GRADER_SYSTEM_PROMPT = "Judge."\n')
    with serving(ChatStandIn(lambda body: "[[A=B]]")) as server:
        result = rstar2(*arena, "--url", model.url, "--run", "r", "--judge-model-url", server.url)
    assert result.code == 1
    assert "the harness arena-hard gives no prompt for the judge model: KeyError" in output_of(result)
    (log,) = Path("r").rglob("arena_hard.log")
    assert "Its log: r/" in output_of(result)
    assert "GRADER_TEMPLATE" in log.read_text()
    assert model.requests == []


def test_what_cannot_be_measured_is_refused_at_once(harness: Path) -> None:
    messages = {
        ("ifeval", "--oracle"): "--oracle has no answers for ifeval",
        ("ifeval", "--model", str(harness), "--data", "rows.jsonl"): "cannot read rows.jsonl",
    }
    for words, message in messages.items():
        result = rstar2("eval", *words)
        assert (result.code, message in output_of(result)) == (2, True), output_of(result)
    unknown = rstar2("eval", "bfcl-v5", "--model", str(harness))
    assert unknown.code == 2
    assert "bfcl-v4" in output_of(unknown)
    setup_messages = {
        "aime24": "aime24 needs no harness",
        "paper-math": "paper-math needs no harness",
        "nonsense": "unknown benchmark: nonsense",
    }
    for name, message in setup_messages.items():
        setup = rstar2("eval", "setup", name)
        assert (setup.code, message in output_of(setup)) == (2, True), output_of(setup)


def test_the_help_names_what_there_is() -> None:
    assert [harness.name for harness in benchmarks.harnesses_of(["paper-all"])] == [
        "nvidia-bfcl",
        "if-verifiable",
        "arena-hard",
    ]
    assert GENERAL == benchmarks.NAMES
    assert tuple(benchmarks.GROUPS) == GROUPS
    assert {name for group in benchmarks.GROUPS.values() for name in group} == set(benchmarks.PAPER)

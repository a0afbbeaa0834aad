"""`rstar2 eval` on the benchmarks beside mathematics, with a harness of a few lines in place of the real ones."""

from __future__ import annotations

import json
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.clock import Clock, policies_on
from support.commands import Ran, rstar2
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


def printed(ran: Ran) -> str:
    return ran.stdout + ran.stderr


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)


def environment(harness: Harness, files: dict[str, str]) -> Path:
    """An environment with these files as its packages, recorded as set up; the folder of the packages."""
    venv.create(harness.folder)
    (packages,) = harness.folder.glob("lib/python*/site-packages")
    for name, text in files.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text)
    write_json(harness.folder / "environment.json", {"packages": harness.pins, "python": "", "installed": {}})
    return packages


@pytest.fixture
def harness() -> Path:
    """An environment with checkers that look for words; the folder of its packages."""
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
    """The command that measures arena-hard on three questions, but for the servers."""
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
    """Follows the first prompt, half of the third, and the fourth loosely; its last reply cannot be checked."""
    replies = {"one.": "<think>two</think>one", "one and two.": "one", "three.": "THREE", "ask.": "what?"}

    def reply(body: dict[str, Any]) -> str:
        asked = body["messages"][-1]["content"].removeprefix("Say ")
        return replies.get(asked, "no")

    with serving(ChatStandIn(reply)) as server:
        yield server


@pytest.mark.slow
def test_a_harness_scores_and_the_same_command_adds_nothing(
    harness: Path, model: ChatStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rstar2.eval.measure.RetryPolicy", policies_on(Clock()))
    model.busy_answers = 2
    first = rstar2("eval", "ifbench", "--url", model.url, "--run", "r", "--max-tokens", 64)
    assert first.code == 0, printed(first)
    asked = model.asked[-1]
    assert (asked["temperature"], asked["max_tokens"], asked["top_p"]) == (0.0, 64, 1.0)
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
    assert "prompt, strict" in printed(first)
    count = len(model.asked)
    assert rstar2("eval", "ifbench", "--url", model.url, "--run", "r", "--max-tokens", 64).code == 0
    assert len(model.asked) == count


@pytest.mark.slow
def test_what_a_server_refuses_leaves_the_numbers_and_the_page_of_the_others(
    harness: Path, model: ChatStandIn
) -> None:
    asked = ("eval", "ifbench", "--url", model.url, "--run", "r")
    model.refuses = "four"
    ran = rstar2(*asked)
    assert ran.code == 1, printed(ran)
    assert "1 of 6 samples failed: the server at" in printed(ran)
    assert "too long" in printed(ran)
    assert "prompt, strict" in ran.stdout
    assert "report: r/report.html" in ran.stdout
    assert Path("r/report.html").exists()
    assert json.loads(Path("r/ifbench/results.json").read_text())["missing"] == 1
    model.refuses = "Say"
    Path("r").rename("before")
    ran = rstar2(*asked)
    assert ran.code == 1, printed(ran)
    assert "6 of 6 samples failed" in printed(ran)
    model.refuses = ""
    assert rstar2(*asked).code == 0


@pytest.mark.slow
def test_a_run_with_other_settings_is_refused(harness: Path, model: ChatStandIn) -> None:
    assert rstar2("eval", "ifbench", "--url", model.url, "--run", "r", "--limit", 2).code == 0
    again = rstar2("eval", "ifbench", "--url", model.url, "--run", "r", "--limit", 2, "--temperature", 0.5)
    assert again.code == 2
    assert "settings.ifbench.temperature" in printed(again)


def test_a_harness_that_is_not_set_up_or_broken_is_named_with_its_command(harness: Path) -> None:
    asked = ("eval", "ifbench", "--model", str(harness))
    (harness / "langdetect" / "__init__.py").unlink()
    (harness / "langdetect").rmdir()
    broken = rstar2(*asked)
    assert broken.code == 2
    assert "ifbench needs the harness if-verifiable: no module langdetect" in printed(broken)
    assert "rstar2 eval setup ifeval" in printed(broken)
    doctor = rstar2("doctor")
    assert "harness if-verifiable" in printed(doctor)
    assert "no module langdetect" in printed(doctor)
    absent = rstar2("eval", "bfcl-v3", "--model", str(harness))
    assert "bfcl-v3 needs the harness nvidia-bfcl: not set up" in printed(absent)
    assert not Path("runs").exists()


@pytest.mark.slow
def test_a_judge_model_that_is_not_given_away_or_one_of_several_is_named_before_the_model_is_asked(
    arena: list[str], model: ChatStandIn
) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    with serving(ChatStandIn(lambda body: "[[A=B]]", names=("a", "b"))) as several:
        refused = {
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
        for words, said in refused.items():
            ran = rstar2(*arena, "--url", model.url, "--wait", 0.2, *words)
            assert (ran.code, said in printed(ran)) == (2, True), printed(ran)
    assert model.asked == []
    assert not Path("runs").exists()


@pytest.mark.slow
def test_a_judge_model_grades_and_its_name_belongs_to_the_settings(
    arena: list[str], model: ChatStandIn
) -> None:
    def judge(body: dict[str, Any]) -> str:
        return "[[B>>A]]" if "A:theirs" in body["messages"][1]["content"] else "[[A>>B]]"

    with serving(ChatStandIn(judge, names=("first",))) as server:
        asked = (*arena, "--url", model.url, "--run", "r", "--judge-model-url", server.url)
        ran = rstar2(*asked)
        assert ran.code == 0, printed(ran)
        lines = [" ".join(line.split()) for line in printed(ran).splitlines()]
        assert any(line.startswith("win rate 100.0 %") for line in lines), lines
        assert not any("86.6 %" in line for line in lines), "the paper's number is of all problems"
        stored = json.loads(Path("r/config.json").read_text())["config"]["judge_model"]
        assert stored == "first"
        results = json.loads(Path("r/arena-hard/results.json").read_text())
        assert results["settings"]["judge_model"] == "first", "so that `compare` says where it differs"
    with serving(ChatStandIn(judge, names=("first",))) as server:
        asked = (*asked[:-1], server.url)
        moved = rstar2(*asked)
        assert (moved.code, len(server.asked)) == (0, 0), printed(moved)
        server.names = ("second",)
        other = rstar2(*asked)
    assert (other.code, "judge_model" in printed(other)) == (2, True), printed(other)


@pytest.mark.slow
def test_each_server_gets_its_own_key_and_the_judge_models_goes_to_no_other(
    arena: list[str], model: ChatStandIn
) -> None:
    with serving(ChatStandIn(lambda body: "[[A=B]]")) as server:
        asked = (*arena, "--url", model.url, "--judge-model-url", server.url)
        keys = {"OPENAI_API_KEY": "judges"}
        for run, env, sent in (
            ("a", keys, None),
            ("b", {**keys, "RSTAR2_API_KEY": "models"}, "Bearer models"),
        ):
            model.keys.clear()
            ran = rstar2(*asked, "--run", run, env=env)
            assert ran.code == 0, printed(ran)
            assert set(model.keys) == {sent}
    assert set(server.keys) == {"Bearer judges"}


@pytest.mark.slow
def test_the_key_of_openai_goes_to_no_other_server(harness: Path, model: ChatStandIn) -> None:
    ran = rstar2("eval", "ifbench", "--url", model.url, "--run", "r", env={"OPENAI_API_KEY": "models"})
    assert ran.code == 0, printed(ran)
    assert set(model.keys) == {None}
    assert (
        "own defaults apply to them"
        in json.loads(Path("r/ifbench/results.json").read_text())["left_to_server"]
    )
    assert "own defaults apply to them" in printed(ran)


def test_a_judge_model_that_answers_nonsense_ends_the_run_in_a_line(
    arena: list[str], model: ChatStandIn
) -> None:
    with serving(ChatStandIn(lambda body: "Both are nice.")) as server:
        ran = rstar2(*arena, "--url", model.url, "--run", "r", "--judge-model-url", server.url)
    assert ran.code == 1
    assert "the judge model gave no verdict such as [[A>B]]" in printed(ran)
    assert "'Both are nice.'" in printed(ran)


def test_a_harness_without_the_judges_prompt_is_named_with_its_log(
    arena: list[str], model: ChatStandIn
) -> None:
    (packages,) = arena_hard.HARNESS.folder.glob("lib/python*/site-packages")
    (packages / ADAPTER).write_text('GRADER_SYSTEM_PROMPT = "Judge."\n')
    with serving(ChatStandIn(lambda body: "[[A=B]]")) as server:
        ran = rstar2(*arena, "--url", model.url, "--run", "r", "--judge-model-url", server.url)
    assert ran.code == 1
    assert "the harness arena-hard gives no prompt for the judge model: KeyError" in printed(ran)
    (log,) = Path("r").rglob("arena_hard.log")
    assert "Its log: r/" in printed(ran)
    assert "GRADER_TEMPLATE" in log.read_text()
    assert model.asked == []


def test_what_cannot_be_measured_is_refused_at_once(harness: Path) -> None:
    refused = {
        ("ifeval", "--oracle"): "--oracle has no answers for ifeval",
        ("ifeval", "--model", str(harness), "--data", "rows.jsonl"): "cannot read rows.jsonl",
    }
    for words, said in refused.items():
        result = rstar2("eval", *words)
        assert (result.code, said in printed(result)) == (2, True), printed(result)
    unknown = rstar2("eval", "bfcl-v5", "--model", str(harness))
    assert unknown.code == 2
    assert "bfcl-v4" in printed(unknown)
    refused_setups = {
        "aime24": "aime24 needs no harness",
        "paper-math": "paper-math needs no harness",
        "nonsense": "unknown benchmark: nonsense",
    }
    for name, said in refused_setups.items():
        setup = rstar2("eval", "setup", name)
        assert (setup.code, said in printed(setup)) == (2, True), printed(setup)


def test_the_help_names_what_there_is() -> None:
    assert [harness.name for harness in benchmarks.harnesses_of(["paper-all"])] == [
        "nvidia-bfcl",
        "if-verifiable",
        "arena-hard",
    ]
    assert GENERAL == benchmarks.NAMES
    assert tuple(benchmarks.GROUPS) == GROUPS
    assert {name for group in benchmarks.GROUPS.values() for name in group} == set(benchmarks.PAPER)

"""Tests of `rstar2 eval` with a real judge and a server that speaks vLLM's wire format.

Most commands run in the test's process. Commands that are killed or interrupted run in their own process, on a
pseudo-terminal.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from support.clock import Clock, policies_on
from support.commands import largest_file, rstar2
from support.eval.example_runs import write_run
from support.servers.vllm_standin import StandIn, serving
from support.terminal import CTRL_C, terminal
from support.tools import patient
from support.waiting import wait_until

from rstar2.data.problem import Problem
from rstar2.eval.benchmarks import BenchmarkFiles
from rstar2.eval.plan import EvalRequest, _readable, plan_evaluation
from rstar2.eval.target import Opened, Target
from rstar2.eval.terminal.live import LiveView
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.formats.format import default_format, save_format
from rstar2.loop.trace import read_traces
from rstar2.loop.turns.codec import ChatCodec
from rstar2.processes import free_port
from rstar2.retry import RetryPolicy

COUNT = 24

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    rows = [{"id": f"p{at}", "problem": f"Say <{at}> aloud.", "answer": str(at)} for at in range(COUNT)]
    path = tmp_path / "numbers.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def model(tmp_path: Path, tokenizer: Any) -> Path:
    """A model folder. The tests use only its tokenizer and its format."""
    folder = tmp_path / "model"
    tokenizer.save_pretrained(folder)
    save_format(patient(default_format()), folder)
    return folder


@pytest.fixture
def standin(codec: ChatCodec) -> Iterator[StandIn]:
    """Calls Python once and then answers. Every fourth number is wrong."""

    def write(prompt: list[int]) -> list[int]:
        text = codec.tokenizer.decode(prompt)
        number = int(re.findall(r"<(\d+)> aloud", text)[-1])
        if "<tool_response>" not in text:
            arguments = {"code": f"print({number})", "input": ""}
            call = {"name": "python_code_with_standard_io", "arguments": arguments}
            completion = f"Let me see.</reason>\n<tool_call>{json.dumps(call)}</tool_call>"
        else:
            completion = f"Good.</reason><answer>\\boxed{{{number + (number % 4 == 0)}}}</answer>"
        return [*codec.tokenizer.encode(completion, add_special_tokens=False), codec.end_id]

    with serving(StandIn(write)) as server:
        yield server


def run(*words: object) -> tuple[int, str, str]:
    """Runs the command in this process, in the test's folder.

    Returns the exit code, standard output and standard error.
    """
    result = rstar2("eval", *words)
    return result.code, result.stdout, result.stderr


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def stable(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns the results and traces without durations. These are the same after any number of interruptions."""
    results = json.loads((folder / "results.json").read_text())
    del results["timing"]
    traces = sorted(read_traces(folder / "traces.jsonl"), key=lambda trace: (trace.problem_id, trace.sample))
    trace_data = [trace.model_dump(exclude={"wall_s"}) for trace in traces]
    for trace in trace_data:
        for call in (call for turn in trace["turns"] for call in turn["calls"]):
            del call["wall_s"]
    return results, trace_data


def test_a_benchmark_is_measured_and_the_same_command_repeats_nothing(problems: Path, tmp_path: Path) -> None:
    words = (problems, "--oracle", "-n", 2, "--per-problem", "--judge-workers", 1)
    code, out, err = run(*words)
    assert code == 0, err
    for setting in (
        "samples 2",
        "temperature 0.6",
        "max_tokens 30000",
        "max_turns 30",
        "top_p 1.0",
        "seed 0",
    ):
        assert setting in out
    assert re.search(r"avg@n\s+87\.5 %", out)  # 21 of 24
    assert re.search(r"p10\s+0/2", out)
    [folder] = (tmp_path / "runs").iterdir()
    results = json.loads((folder / "numbers" / "results.json").read_text())
    assert results["summary"]["accuracy"] == 21 / 24
    assert results["summary"]["calls_per_trace"] == 1.0
    assert results["settings"]["samples"] == 2
    assert results["versions"]["rstar2"]
    assert (folder / "report.html").stat().st_size > 10_000
    assert "48/48 samples" in err

    before = (folder / "numbers" / "traces.jsonl").read_bytes()
    code, out, err = run(*words)
    assert code == 0, err
    assert (folder / "numbers" / "traces.jsonl").read_bytes() == before
    assert list((tmp_path / "runs").iterdir()) == [folder]


def test_a_changed_setting_is_refused_by_name_and_nothing_is_touched(
    problems: Path, tmp_path: Path, judge: JudgeHandle
) -> None:
    words = (problems, "--oracle", "-n", 1, "--run", "r", "--judge", judge.url)
    assert run(*words)[0] == 0
    before = stable(tmp_path / "r" / "numbers")
    code, _, err = run(*words, "--temperature", 1, "--max-turns", 5, "--limit", 3)
    assert code == 2
    assert "problems.numbers, settings.numbers.max_turns, settings.numbers.temperature" in err
    assert stable(tmp_path / "r" / "numbers") == before


def test_a_run_is_extended_by_samples_problems_and_benchmarks(
    problems: Path, tmp_path: Path, judge: JudgeHandle
) -> None:
    others = problems.with_name("others.jsonl")
    others.write_text("".join(problems.read_text().splitlines(keepends=True)[:3]))
    words = ("--oracle", "--run", "r", "--judge", judge.url)
    assert run(problems, "-n", 1, "--limit", 4, *words)[0] == 0
    code, _, err = run(problems, "-n", 2, *words)
    assert code == 0, err
    assert "4 samples are done, 44 to go" in err
    code, _, err = run(others, "-n", 1, *words)  # the samples of the first benchmark stay too
    assert code == 0, err
    folder = tmp_path / "r"
    assert [lines(folder / name / "traces.jsonl") for name in ("numbers", "others")] == [48, 3]
    config = json.loads((folder / "config.json").read_text())["config"]
    assert list(config["problems"]) == ["numbers", "others"]
    assert {name: settings["samples"] for name, settings in config["settings"].items()} == {
        "numbers": 2,
        "others": 1,
    }
    for name in ("numbers", "others"):
        assert json.loads((folder / name / "results.json").read_text())["complete"]
    assert rstar2("runs", "show", "r").stdout.count("others") == 1

    code, _, err = run(problems, others, "-n", 1, *words, "--seed", 3)
    assert code == 2
    assert "other settings: settings.numbers.samples, settings.numbers.seed, settings.others.seed" in err


def _complete_the_rest_once_it_stops(standin: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the stand-in finish its answers once the command has reported Ctrl-C."""
    note = LiveView.note

    def record_note(view: LiveView, text: str) -> None:
        note(view, text)
        standin.complete_until = None

    monkeypatch.setattr(LiveView, "note", record_note)


def test_a_killed_run_continues_and_ends_as_if_uninterrupted(
    problems: Path, model: Path, standin: StandIn, tmp_path: Path, judge: JudgeHandle
) -> None:
    def words(folder: str) -> list[str]:
        servers = ("--url", standin.url, "--judge", judge.url, "--model", str(model))
        return [str(problems), *servers, *["-n", "2", "--in-flight", "4", "--run"], str(tmp_path / folder)]

    assert run(*words("whole"))[0] == 0
    standin.complete_until = answer_limit = len(standin.requests) + 30
    traces = tmp_path / "killed" / "numbers" / "traces.jsonl"
    with terminal("eval", *words("killed")) as screen:
        # All samples in flight wait for answers, and no further one can start.
        screen.comes_to(lambda: lines(traces) >= 10 and len(standin.requests) == answer_limit + 4)
        os.kill(screen.pid, signal.SIGKILL)
        screen.ends_with(-signal.SIGKILL)
    lines_before = lines(traces)
    assert 10 <= lines_before < 2 * COUNT
    standin.complete_until, request_count = None, len(standin.requests)
    code, out, err = run(*words("killed"))
    assert code == 0, err
    assert f"{lines_before} samples are done, {2 * COUNT - lines_before} to go" in err
    assert len(standin.requests) - request_count == 2 * (2 * COUNT - lines_before)
    assert stable(tmp_path / "killed" / "numbers") == stable(tmp_path / "whole" / "numbers")
    assert re.search(r"avg@n\s+75\.0 %", out)


def test_ctrl_c_once_finishes_what_is_in_flight_and_twice_leaves_it(
    problems: Path,
    model: Path,
    standin: StandIn,
    tmp_path: Path,
    judge: JudgeHandle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    servers = ("--url", standin.url, "--judge", judge.url, "--model", str(model))
    words = [str(problems), *servers, *["-n", "1", "--in-flight", "4", "--run"], str(tmp_path / "r")]
    traces, status = tmp_path / "r" / "numbers" / "traces.jsonl", tmp_path / "r" / "status.json"
    standin.complete_until = 12

    def interrupt() -> None:
        wait_until(lambda: lines(traces) >= 4 and len(standin.requests) == 16)
        os.kill(os.getpid(), signal.SIGINT)

    _complete_the_rest_once_it_stops(standin, monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        interrupted = pool.submit(interrupt)
        code, out, err = run(*words)
        interrupted.result()
    assert code == 130, err
    assert "stopping" in err
    assert "start the same command again" in err
    first = lines(traces)
    assert first * 2 == len(standin.requests) < 2 * COUNT  # no sample that has begun was dropped
    assert "avg@n" in out
    assert json.loads(status.read_text())["state"] == "stopped"

    standin.complete_until = request_count = len(standin.requests)
    with terminal("eval", *words) as screen:
        screen.comes_to(lambda: len(standin.requests) >= request_count + 4)
        screen.press(CTRL_C)
        screen.shows("stopping")
        # Another program stops the command with this signal.
        os.kill(screen.pid, signal.SIGINT)
        screen.ends_with(130)
        assert "Traceback" not in screen.text
    assert lines(traces) == first
    assert json.loads(status.read_text())["state"] == "stopped"

    standin.complete_until = None
    assert run(*words)[0] == 0
    assert lines(traces) == COUNT


def test_a_running_evaluation_is_controlled_from_another_terminal(
    problems: Path, model: Path, standin: StandIn, tmp_path: Path, judge: JudgeHandle
) -> None:
    servers = ("--url", standin.url, "--judge", judge.url, "--model", str(model))
    words = [str(problems), *servers, *["-n", "1", "--in-flight", "2", "--run"], str(tmp_path / "r")]
    standin.complete_until = 0
    with terminal("eval", *words) as screen:
        screen.comes_to(lambda: len(standin.requests) == 2)
        _, out, _ = run("ctl", "r")
        assert out.splitlines()[0] == "2 of at most 2 samples are running"
        samples = sorted(line.split()[-1] for line in out.splitlines()[1:])
        assert run("ctl", "r", "in-flight", 3)[1].startswith(("2 of at most 3", "3 of at most 3"))
        screen.comes_to(lambda: len(standin.requests) == 3)
        screen.shows("3 samples at once")
        assert run("ctl", "r", "pause")[1].startswith("paused, ")
        screen.shows("paused")
        code, out, err = run("ctl", "r", "cancel", samples[0])
        assert code == 0, err
        screen.shows(f"cancelled {samples[0]}")
        assert samples[0] not in out
        code, _, err = run("ctl", "r", "cancel", samples[0])
        assert code == 2
        assert f"no sample '{samples[0]}' is running" in err
        assert run("ctl", "r", "resume")[0] == 0
        standin.complete_until = None
        screen.ends_with(1)
        assert f"1 of {COUNT} samples failed: cancelled with `rstar2 eval ctl`" in " ".join(
            screen.text.split()
        )
    results = json.loads((tmp_path / "r" / "numbers" / "results.json").read_text())
    assert (results["complete"], results["missing"]) == (False, 1)
    code, _, err = run("ctl", "r")
    assert code == 2
    assert "r is not an evaluation that is running: failed" in err
    assert run(*words)[0] == 0
    assert lines(tmp_path / "r" / "numbers" / "traces.jsonl") == COUNT


def test_ctrl_c_during_the_last_samples_leaves_a_finished_run(
    problems: Path,
    model: Path,
    standin: StandIn,
    tmp_path: Path,
    judge: JudgeHandle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standin.complete_until = 2 * COUNT - 1

    def interrupt() -> None:
        wait_until(lambda: len(standin.requests) == 2 * COUNT)
        os.kill(os.getpid(), signal.SIGINT)

    _complete_the_rest_once_it_stops(standin, monkeypatch)
    servers = ("--url", standin.url, "--judge", judge.url, "--model", str(model))
    with ThreadPoolExecutor(1) as pool:
        interrupted = pool.submit(interrupt)
        code, _, err = run(problems, *servers, "-n", 1, "--run", "r")
        interrupted.result()
    assert (code, lines(tmp_path / "r" / "numbers" / "traces.jsonl")) == (0, COUNT), err
    assert "stopping" in err
    assert "start the same command again" not in err
    assert json.loads((tmp_path / "r" / "status.json").read_text())["state"] == "finished"


def test_a_server_that_goes_away_is_waited_for_then_named_with_all_kept(
    problems: Path,
    model: Path,
    codec: ChatCodec,
    tmp_path: Path,
    judge: JudgeHandle,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rstar2.eval.measure.RetryPolicy", policies_on(Clock()))
    answer = [*codec.tokenizer.encode("x</reason><answer>\\boxed{1}</answer>"), codec.end_id]
    bounds = ("-n", 1, "--in-flight", 2, "--wait", 60)
    words = ("--model", model, *bounds, "--run", "r", "--judge", judge.url, "--url")
    traces = tmp_path / "r" / "numbers" / "traces.jsonl"
    standin = StandIn(lambda prompt: answer)
    standin.complete_until = 8
    with ThreadPoolExecutor(1) as pool, ExitStack() as server:
        server.enter_context(serving(standin))

        def leave() -> None:
            wait_until(lambda: lines(traces) >= 4)
            server.close()

        leaving = pool.submit(leave)
        code, _, err = run(problems, *words, standin.url)
        leaving.result()
    assert code == 1, err
    assert "has not answered for 60 seconds" in err
    assert re.search(r"the engine did not answer for \d+ s in total\. Requests sent again: \d+ × ", err)
    assert "Every finished sample is kept" in err
    assert 4 <= lines(traces) < COUNT
    assert json.loads((tmp_path / "r" / "numbers" / "results.json").read_text())["complete"] is False


def test_a_full_disk_is_reported_and_every_written_sample_kept(
    problems: Path, tmp_path: Path, judge: JudgeHandle
) -> None:
    # A private judge would also write files, those of its queue.
    words = (problems, "--oracle", "-n", 4, "--run", "r", "--judge", judge.url)
    with largest_file(40_000):
        code, _, err = run(*words)
    assert code == 1, err
    assert "cannot write r/numbers/traces.jsonl: File too large" in err
    assert "Every sample written so far is kept" in err
    trace_count = len(list(read_traces(tmp_path / "r" / "numbers" / "traces.jsonl")))
    assert 0 < trace_count < 4 * COUNT
    assert run(*words)[0] == 0
    assert lines(tmp_path / "r" / "numbers" / "traces.jsonl") == 4 * COUNT


def test_problems_and_folders_are_named_as_they_are_whatever_is_in_brackets(
    tmp_path: Path, judge: JudgeHandle
) -> None:
    rows = [
        {"id": f"[/INST] {at}", "problem": f"Say <{at}> aloud.", "answer": f"[{at},b]"} for at in range(2)
    ]
    (tmp_path / "set[b].jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("set[b].jsonl", "--oracle", "--judge", judge.url, "-n", 1, "--per-problem", "--run", "[/x]")
    code, out, err = run(*words)
    assert code == 0, err
    for text in ("set[b] (2 problems) on", "→ [/x]", "[/INST] 1", "[1,b]", "report: [/x]/report.html"):
        assert text in out
    assert (tmp_path / "[/x]" / "report.html").exists()


def test_several_benchmarks_are_measured_at_once(problems: Path, tmp_path: Path, judge: JudgeHandle) -> None:
    other = tmp_path / "more.jsonl"
    other.write_text(problems.read_text().replace("aloud", "twice"))
    bounds = ("-n", 1, "--limit", 5)
    words = (problems, other, "--oracle", *bounds, "--run", "r", "--judge", judge.url)
    code, out, err = run(*words)
    assert code == 0, err
    assert re.search(r"numbers\s+more", out)
    assert "10/10 samples" in err
    for name in ("numbers", "more"):
        assert len(list(read_traces(tmp_path / "r" / name / "traces.jsonl"))) == 5


def test_a_file_is_its_own_set_whatever_its_name(problems: Path, tmp_path: Path, judge: JudgeHandle) -> None:
    names = ("aime24", "ifeval", "attempts")
    for name in names:
        (tmp_path / f"{name}.jsonl").write_text(problems.read_text())
    files = [f"{name}.jsonl" for name in names]
    code, out, err = run(*files, "--oracle", "-n", 1, "--limit", 2, "--run", "r", "--judge", judge.url)
    assert code == 0, err
    assert "80.6" not in out, "aime24 shows the paper's number"
    results = {path.parent.name for path in (tmp_path / "r").glob("*/results.json")}
    assert results == {f"own-{name}" for name in names}


def test_the_papers_number_stands_beside_the_whole_published_set_and_a_model_alone(
    model: Path, tmp_path: Path
) -> None:
    def is_compared(benchmark: str = "builtin", oracle: bool = False, **more: Any) -> bool:
        target = Target(None if oracle else str(model), None, None, oracle)
        files = BenchmarkFiles(more.pop("data", None))
        request = EvalRequest(target, [benchmark], files=files, **more)
        plan = plan_evaluation(request, RetryPolicy(0.0))
        return next(iter(plan.benchmarks.values())).as_published

    model_only = Opened(None, None, {"name": "made"})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("rstar2.eval.plan.open_target", lambda *_: model_only)
        assert is_compared()
        assert is_compared(limit=1000)
        assert not is_compared(limit=5)
        assert not is_compared(oracle=True)
        (tmp_path / "x.jsonl").write_text('{"problem": "1+1?", "answer": "2"}\n')
        assert not is_compared("aime24", data=tmp_path / "x.jsonl")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such-set", "--oracle"], "unknown benchmark: no-such-set"),
        (["none.jsonl", "--oracle"], "cannot read none.jsonl: No such file"),
        (["torn.jsonl", "--oracle"], "torn.jsonl, line 2: not JSON"),
        (["double.jsonl", "--oracle"], "already used at double.jsonl, line 1"),
        (["nogold.jsonl", "--oracle"], 'nogold.jsonl, line 1: field "answer" is empty'),
        (["aime24", "--data", "none.jsonl", "--oracle"], "cannot read none.jsonl"),
        (
            ["aime24", "aime25", "--data", "good.jsonl", "--oracle"],
            "--data replaces the data of one benchmark",
        ),
        (["good.jsonl", "good.jsonl", "--oracle"], "two benchmarks have the name good"),
        (["good.jsonl"], "no model to measure"),
        (["good.jsonl", "--model", "none"], "no model folder at none"),
        (["good.jsonl", "--model", "empty"], "cannot load a tokenizer from empty"),
        (["good.jsonl", "--url", "not a url"], "not a server's URL: not a url"),
        (["good.jsonl", "--model", "empty", "--model-name", "x"], "--model-name names a model on a server"),
        (
            ["good.jsonl", "--oracle", "--model", "empty"],
            "--oracle replaces the model and its format, so it excludes --model",
        ),
        (
            ["good.jsonl", "--oracle", "--format", "release"],
            "--oracle replaces the model and its format, so it excludes --format",
        ),
        (["good.jsonl", "--oracle", "--judge", "http://127.0.0.1:1"], "no judge answers at"),
        (["good.jsonl", "--oracle", "-n", "0"], "greater than or equal to 1"),
        (["good.jsonl", "--oracle", "--temperature", "-1"], "greater than or equal to 0"),
        (["good.jsonl", "--oracle", "--max-tokens", "-5"], "greater than or equal to 1"),
        (
            ["good.jsonl", "--oracle", "--top-p", "0"],
            "top_p must be a number above 0 and of at most 1, not 0",
        ),
        (["good.jsonl", "--oracle", "--run", "good.jsonl"], "good.jsonl is a file, not a run folder"),
        (["good.jsonl", "--oracle", "--run", "empty"], "empty is not empty and is not a run"),
        (["good.jsonl", "--oracle", "--run", "good.jsonl/r"], "cannot make good.jsonl/r: Not a directory"),
        (["compare", "none", "none"], "no run at none"),
    ],
)
def test_bad_input_gets_one_clear_message_exit_2_and_nothing_half_written(
    words: list[str], message: str, tmp_path: Path
) -> None:
    good = '{"problem": "1+1?", "answer": "2"}\n'
    files = {
        "good": good,
        "torn": good + '{"problem": "1+1?", "ans\n',
        "double": '{"id": "a", "problem": "x", "answer": "1"}\n' * 2,
        "nogold": '{"problem": "x", "answer": " "}\n',
    }
    for name, text in files.items():
        (tmp_path / f"{name}.jsonl").write_text(text)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run(*words)
    output = out + err
    assert code == 2, output
    assert message in re.sub(r"[\s│]+", " ", output)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_server_that_does_not_answer_is_named_within_the_wait_and_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_dataset(*words: object, **more: object) -> None:
        raise AssertionError("the benchmark was loaded first")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    monkeypatch.setattr("rstar2.eval.measure.RetryPolicy", policies_on(Clock()))
    closed = f"http://127.0.0.1:{free_port()}"
    code, _, err = run("aime24", "--url", closed, "--wait", 60)
    assert (code, err.splitlines()[0]) == (2, f"nothing answers at {closed}: connection refused")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = f"http://127.0.0.1:{listener.getsockname()[1]}"
        code, _, err = run("aime24", "--url", silent, "--wait", 0.5)
    assert code == 2
    assert err.splitlines()[0] == f"the server at {silent} accepts requests but does not answer"
    assert list(tmp_path.iterdir()) == []


def test_two_runs_are_compared_in_words_and_in_json(tmp_path: Path) -> None:
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", seed=1, lift=0.5)
    code, output, _ = run("compare", a, b)
    assert code == 0
    assert "B better" in output
    assert "gained" in output
    code, output, _ = run("compare", a, b, "--json")
    [comparison] = json.loads(output)
    assert comparison["difference"] > 0.2
    assert comparison["interval_clustered"][0] > 0
    assert comparison["problems"] == 30
    assert all(flip["b"] > 0.5 >= flip["a"] for flip in comparison["flipped"])


@pytest.mark.parametrize(
    ("problems", "hidden"), [(10, None), (11, "1 more problem flipped"), (30, "20 more problems flipped")]
)
def test_at_most_ten_flipped_problems_are_printed(tmp_path: Path, problems: int, hidden: str | None) -> None:
    a = write_run(tmp_path / "a", problems=problems, lift=-1.0)
    b = write_run(tmp_path / "b", problems=problems, lift=1.0)
    assert len(json.loads(run("compare", a, b, "--json")[1])[0]["flipped"]) == problems
    output = run("compare", a, b)[1]
    assert output.count(" gained") == 10
    last_line = output.splitlines()[-1]
    assert (
        last_line.startswith("A, B correct: ")
        if hidden is None
        else last_line == f"{hidden}: --json lists all"
    )


def test_a_comparison_says_above_the_table_that_a_run_is_incomplete(tmp_path: Path) -> None:
    a, b = (write_run(tmp_path / name, problems=10, samples=2) for name in "ab")
    assert "incomplete" not in run("compare", a, b)[1]
    assert json.loads(run("compare", a, b, "--json")[1])[0]["incomplete"] == []
    traces, results = b / "aime24" / "traces.jsonl", b / "aime24" / "results.json"
    traces.write_text("".join(traces.read_text().splitlines(keepends=True)[:-1]))
    record = json.loads(results.read_text())
    record |= {"complete": False, "missing": 1, "failed": {"the server died": 1}}
    record["summary"]["samples"] = 19
    results.write_text(json.dumps(record))
    output = " ".join(run("compare", a, b)[1].split())
    message = "aime24: B is incomplete, 1 of 20 samples is missing; failed: 1 × the server died."
    assert message in output
    assert "may come from the missing samples" in output
    assert output.index(message) < output.index("B - A")
    missing = {"run": "B", "samples": 19, "missing": 1, "failed": {"the server died": 1}}
    assert json.loads(run("compare", a, b, "--json")[1])[0]["incomplete"] == [missing]
    results.unlink()
    output = " ".join(run("compare", b, a)[1].split())
    assert "aime24: A is incomplete, it was stopped after 19 samples." in output


def test_help_shows_both_uses() -> None:
    code, output, _ = run("--help")
    assert code == 0
    assert "Usage: rstar2 eval " in output.replace("root", "rstar2")
    assert "eval compare runs/before runs/after" in output


def test_problems_whose_answer_the_grader_cannot_read_are_named_and_left_out(
    tmp_path: Path, judge: JudgeHandle
) -> None:
    rows = [{"id": "a", "problem": "1+1?", "answer": "2"}, {"id": "b", "problem": "?", "answer": "}{"}]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ("--oracle", "-n", 1, "--judge", judge.url, "--run", "r")
    code, out, err = run("own.jsonl", *words)
    assert code == 0, err
    assert (
        "own: 1 of 2 problems are left out, because no output can be graded correct against their answer: "
        "b: '}{' (it has no letters" in err
    )
    assert "own (1 problem)" in out
    assert re.search(r"problems left out +1 *\n", out), out
    results = json.loads(Path("r/own/results.json").read_text())
    why = "it has no letters, digits or mathematical signs"
    assert results["unreadable_answers"] == [{"id": "b", "answer": "}{", "why": why}]
    assert results["summary"]["left_out"] == 1
    (tmp_path / "bad.jsonl").write_text(json.dumps(rows[1]) + "\n")
    code, _, err = run("bad.jsonl", *words)
    assert (code, "graded correct against any answer of bad: b" in err) == (2, True), err
    # A published set keeps such problems, because its numbers are over the whole set.
    problems = [Problem("a", "?", "2"), Problem("b", "?", "}{")]
    sampled_problems, unreadable, note = _readable("math500", problems, published=True, limit=None)
    assert (len(sampled_problems), unreadable.left_out, "1 of 2 problems count as wrong" in note) == (
        2,
        False,
        True,
    )


def test_only_problems_before_the_last_one_sampled_count_as_left_out() -> None:
    problems = [Problem(str(n), "?", "}{" if n % 4 == 3 else "2") for n in range(100)]
    sampled_problems, unreadable, note = _readable("own", problems, published=False, limit=3)
    assert ([each.id for each in sampled_problems], unreadable.problems, note) == (["0", "1", "2"], (), "")
    sampled_problems, unreadable, note = _readable("own", problems, published=False, limit=4)
    assert [each.id for each in sampled_problems] == ["0", "1", "2", "4"]
    assert [each["id"] for each in unreadable.problems] == ["3"]
    assert "1 of the first 5 problems are left out" in note

"""Tests of `rstar2 analyze`: tables and plots for a run, and one clear message for input that cannot be analysed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.commands import rstar2
from support.servers.vllm_standin import StandIn, serving
from support.waiting import TIMEOUT_S

from rstar2.analysis.stored import place_of, read_entropies
from rstar2.eval.target import model_hash
from rstar2.files import write_json
from rstar2.loop.trace import TraceWriter
from rstar2.report.collect import collect


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, model_folder: Path, make_trace: Any) -> Path:
    """A run with two arms. Each arm has a stage with its model and traces, and a measured benchmark."""
    folder = tmp_path_factory.mktemp("runs") / "made"
    write_json(folder / "config.json", {"kind": "demo", "config": {}})
    for root in (folder, folder / "plain"):
        shutil.copytree(model_folder, root / "stage1" / "model")
        with TraceWriter(root / "eval" / "stage1" / "traces.jsonl") as writer:
            for number in range(6):
                status = "error" if number % 2 else "ok"
                trace = make_trace(
                    (status,), problem=f"p{number}", output="NameError: name 'x' is not defined"
                )
                writer.write(trace)
            writer.write(trace.model_copy(update={"finish": "error", "problem_id": "not finished"}))
        for step in (1, 2):
            with TraceWriter(root / "stage1" / "traces" / f"step-{step:06}.jsonl") as writer:
                writer.write(make_trace(("ok",), step=step, reward=1.0, kept=True))
    return folder


@pytest.fixture(scope="module")
def analysed(run: Path) -> dict[str, Any]:
    """The output of `rstar2 analyze --json` for the run."""
    result = rstar2("analyze", run, "--json")
    assert result.code == 0, result.stderr
    return dict(json.loads(result.stdout))


@pytest.mark.slow
def test_a_training_run_is_analysed_with_its_own_models_and_what_its_rollouts_kept(
    analysed: dict[str, Any], run: Path
) -> None:
    sources = {row[0]: row[1:3] for row in analysed["entropy"]["rows"]}
    assert sources == {
        "eval/stage1": ["exact", 6],
        "training stage1": ["as sampled", 2],
        "plain eval/stage1": ["exact", 6],
        "plain training stage1": ["as sampled", 2],
    }
    assert {row[1] for row in analysed["entropy_steps"]["rows"]} == {1, 2}
    kinds = {(row[0], row[1]): row[2] for row in analysed["calls_kinds"]["rows"]}
    assert kinds["eval/stage1", "NameError"] == 3


@pytest.mark.slow
def test_two_arms_of_the_same_name_are_set_side_by_side(analysed: dict[str, Any]) -> None:
    columns = analysed["entropy_arms"]["columns"]
    rows = [dict(zip(columns, row, strict=True)) for row in analysed["entropy_arms"]["rows"]]
    assert {(row["traces A"], row["traces B"]) for row in rows} == {
        ("eval/stage1", "plain eval/stage1"), ("training stage1", "plain training stage1"),
    }  # fmt: skip
    assert all(row["B - A"] == pytest.approx(0, abs=1e-4) for row in rows)


@pytest.mark.slow
def test_tables_plots_and_entropies_are_files_and_entropies_are_not_computed_twice(
    analysed: dict[str, Any], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_names = {path.name for path in (run / "analysis").iterdir()}
    assert {f"{name}.csv" for name in analysed} | {"analysis.json"} <= file_names
    assert "training-stage1-entropy-over-training.svg" in file_names
    traces = run / "eval" / "stage1" / "traces.jsonl"
    stored_entropies = read_entropies(traces)
    assert stored_entropies is not None
    assert (stored_entropies.about["source"], len(stored_entropies.sizes), len(stored_entropies.marks)) == (
        "model",
        6,
        len(stored_entropies.entropy),
    )
    from rstar2.analysis import forward

    monkeypatch.setattr(forward, "entropies", None)
    again = rstar2("analyze", run, "--json")
    assert json.loads(again.stdout) == analysed


@pytest.mark.slow
def test_a_second_analysis_loads_neither_torch_nor_transformers(analysed: dict[str, Any], run: Path) -> None:
    """Importing torch and matplotlib takes seconds. Stored entropies need neither."""
    print_modules = "print(json.dumps(sorted({'torch', 'transformers', 'matplotlib'} & sys.modules.keys())))"
    program = f"import atexit, json, sys; atexit.register(lambda: {print_modules}); from rstar2.cli import main; main()"
    command = [sys.executable, "-c", program, "analyze", str(run), "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert result.returncode == 0, result.stderr
    tables, modules = map(json.loads, result.stdout.splitlines())
    assert tables["calls"] == analysed["calls"]
    assert modules == ["matplotlib"]


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--json",)])
def test_tables_are_shown_before_plots_are_drawn(
    analysed: dict[str, Any], run: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """A folder already has the name of a plot's file. The command then fails after it has printed the tables."""
    plot, *_ = (path.name for path in (run / "analysis").glob("*.svg"))
    (tmp_path / plot).mkdir()
    result = rstar2("analyze", run, "--output", tmp_path, *words)
    assert result.code == 1
    assert f"cannot write {tmp_path}" in result.stderr
    assert "Tool calls" in result.stdout
    assert "tables and plots:" not in result.stdout


def test_the_terminal_shows_summary_tables_with_captions_and_names_the_folder(
    analysed: dict[str, Any], run: Path
) -> None:
    result = rstar2("analyze", run, env={"COLUMNS": "80"})
    assert result.code == 0, result.stderr
    *lines, last = result.stdout.splitlines()
    assert last == f"all tables and plots: {run / 'analysis'}"
    titles = [
        line.rstrip() for line in lines if line.rstrip() in {each["title"] for each in analysed.values()}
    ]
    assert titles == [
        "Entropy per token, in nats",
        "What the most uncertain tokens are",
        "Tool calls",
        "Behaviour",
    ]
    assert max(map(len, lines)) <= 80
    assert len(lines) < 100
    words = " ".join(result.stdout.split())
    assert "the ends of the 95 % interval, clustered by problem" in words
    assert "repaired: share of the turns with a failed call after which a later call was ok." in words
    assert "turns to repair" not in words  # only in the files and on the page
    assert (run / "analysis" / "calls_kinds.csv").is_file()


def test_a_file_of_traces_without_a_model_has_no_table_of_entropy(run: Path) -> None:
    result = rstar2("analyze", run / "eval" / "stage1" / "traces.jsonl", env={"COLUMNS": "80"})
    assert result.code == 0, result.stderr
    assert "Tool calls" in result.stdout
    assert "Behaviour" in result.stdout
    assert "Entropy" not in result.stdout
    assert (run / "eval" / "stage1" / "traces-analysis" / "calls.csv").is_file()


def test_every_table_of_the_page_says_what_its_figures_are(analysed: dict[str, Any]) -> None:
    for table in analysed.values():
        assert table["caption"].endswith("."), table["name"]
        assert len(table["columns"]) == len(set(table["columns"])), table["name"]


def test_a_path_without_traces_and_a_missing_one_are_named(tmp_path: Path) -> None:
    missing = rstar2("analyze", tmp_path / "none")
    assert (missing.code, "is neither a run nor a file of traces" in missing.stderr) == (2, True)
    write_json(tmp_path / "run" / "config.json", {"kind": "eval", "config": {}})
    empty = rstar2("analyze", tmp_path / "run")
    assert (empty.code, "no traces in" in empty.stderr) == (2, True)
    (tmp_path / "text.jsonl").write_text('{"no": "trace"}\n')
    other = rstar2("analyze", tmp_path / "text.jsonl")
    assert (other.code, "text.jsonl, line 1: not a trace" in other.stderr) == (2, True)


def test_where_no_trace_was_finished_nothing_is_written(make_trace: Any, run: Path, tmp_path: Path) -> None:
    for folder, traces in (("empty", []), ("failed", [make_trace().model_copy(update={"finish": "error"})])):
        with TraceWriter(tmp_path / folder / "traces.jsonl") as writer:
            for trace in traces:
                writer.write(trace)
    finished = run / "eval" / "stage1" / "traces.jsonl"
    for path in (tmp_path / "empty", tmp_path / "empty" / "traces.jsonl", tmp_path / "failed"):
        for words in ((path,), (finished, path, "--output", tmp_path / "both")):
            result = rstar2("analyze", *words)
            message = " ".join(result.stderr.split())
            assert (result.code, f"no finished traces in {path}" in message) == (2, True), message
    assert sorted(path.name for path in tmp_path.glob("**/*")) == [
        "empty", "failed", "traces.jsonl", "traces.jsonl",
    ]  # fmt: skip


def test_an_analysis_is_stale_once_the_run_has_other_traces(make_trace: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_json(run / "config.json", {"kind": "eval", "config": {}})

    def add(name: str) -> None:
        with TraceWriter(run / name / "traces.jsonl") as writer:
            writer.write(make_trace())

    def stale(folder: Path = run) -> bool:
        analysis = collect(folder).analysis
        assert analysis is not None
        return bool(analysis["stale"])

    add("aime24")
    for name in ("aime24", "aime25"):
        assert rstar2("analyze", run).code == 0
        assert not stale()
        shutil.copytree(run, tmp_path / f"copy-{name}")
        assert not stale(tmp_path / f"copy-{name}")
        add(name)
        assert stale()
    saved_analysis = json.loads((run / "analysis" / "analysis.json").read_text())
    del saved_analysis["traces"]  # earlier versions wrote this form
    write_json(run / "analysis" / "analysis.json", saved_analysis)
    assert not stale()


def test_a_name_of_a_model_without_a_server_is_refused(run: Path) -> None:
    result = rstar2("analyze", run, "--model-name", "some")
    assert (result.code, "there is no --url" in result.stderr) == (2, True)


def test_traces_of_another_tokenizer_are_named_and_nothing_is_written(
    run: Path, model_folder: Path, make_trace: Any, tmp_path: Path
) -> None:
    trace = make_trace()
    with TraceWriter(tmp_path / "foreign.jsonl") as writer:
        writer.write(trace.model_copy(update={"response_ids": [token + 1 for token in trace.response_ids]}))
    result = rstar2("analyze", tmp_path / "foreign.jsonl", "--model", model_folder)
    assert result.code == 2
    assert "were not written with the tokenizer of" in result.stderr
    assert "--model" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["foreign.jsonl"]


def test_traces_without_token_ids_are_left_out_of_the_entropies_and_alone_are_named(
    run: Path, model_folder: Path, make_trace: Any, tmp_path: Path
) -> None:
    chat_trace = make_trace().model_copy(
        update={"prompt_ids": [], "response_ids": [], "response_mask": [], "logprobs": None}
    )
    for folder, traces in (("chat", [chat_trace]), ("both", [chat_trace, make_trace()])):
        with TraceWriter(tmp_path / folder / "traces.jsonl") as writer:
            for trace in traces:
                writer.write(trace)
    alone = rstar2("analyze", tmp_path / "chat", "--model", model_folder)
    assert (alone.code, "has token ids" in alone.stderr) == (2, True), alone.stderr
    assert rstar2("analyze", tmp_path / "chat").code == 0
    both = rstar2("analyze", tmp_path / "both", "--model", model_folder)
    assert both.code == 0, both.stderr
    stored_entropies = read_entropies(tmp_path / "both" / "traces.jsonl")
    assert stored_entropies is not None
    assert [size > 0 for size in stored_entropies.sizes] == [False, True]
    assert len(stored_entropies.marks) == stored_entropies.sizes.sum()


@pytest.fixture
def standin() -> Iterator[StandIn]:
    class WithoutStops(StandIn):
        def _write(self, body: dict[str, Any]) -> tuple[list[int], str]:
            return [1], "length"

    with serving(WithoutStops(lambda prompt: [1])) as server:
        yield server


def test_a_server_without_log_probabilities_of_prompts_is_told_of(
    run: Path, model_folder: Path, standin: StandIn
) -> None:
    traces = run / "eval" / "stage1" / "traces.jsonl"
    result = rstar2("analyze", traces, "--url", standin.url, "--model", model_folder)
    assert result.code == 1
    assert "returned no log-probabilities of the prompt" in result.stderr


def test_the_temperature_of_a_server_is_not_ours_to_choose(run: Path) -> None:
    result = rstar2("analyze", run, "--url", "http://127.0.0.1:1", "--temperature", 0.6)
    assert (result.code, "--temperature 0.6 has no effect with --url" in result.stderr) == (2, True)


def test_bounds_of_another_model_at_the_same_url_are_not_taken_for_this_ones(
    model_folder: Path, make_trace: Any, standin: StandIn, tmp_path: Path
) -> None:
    with TraceWriter(tmp_path / "traces.jsonl") as writer:
        writer.write(make_trace())
    standin.prompt_logprobs = True
    for name, again in (("one", 1), ("one", 0), ("other", 1)):
        standin.names, request_count = (name,), len(standin.requests)
        result = rstar2("analyze", tmp_path / "traces.jsonl", "--url", standin.url, "--model", model_folder)
        assert result.code == 0, result.stderr
        assert len(standin.requests) == request_count + again


def test_a_server_that_is_busy_for_a_while_is_waited_for_and_that_is_said(
    model_folder: Path, make_trace: Any, standin: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rstar2.retry.FIRST_ANSWER_S", TIMEOUT_S)
    with TraceWriter(tmp_path / "traces.jsonl") as writer:
        writer.write(make_trace())
    standin.prompt_logprobs, standin.busy_answers = True, 1
    result = rstar2("analyze", tmp_path / "traces.jsonl", "--url", standin.url, "--model", model_folder)
    assert result.code == 0, result.stderr
    assert re.search(
        r"the engine did not answer for \d+ s in total\. Requests sent again: 1 × ", result.stderr
    ), result.stderr


def test_a_server_that_asks_for_a_key_or_gives_no_log_probabilities_is_said(
    model_folder: Path, make_trace: Any, standin: StandIn, tmp_path: Path
) -> None:
    with TraceWriter(tmp_path / "traces.jsonl") as writer:
        writer.write(make_trace())
    standin.key, standin.prompt_logprobs = "secret", True
    words = ("analyze", tmp_path / "traces.jsonl", "--url", standin.url, "--model", model_folder)
    result = rstar2(*words)
    assert (result.code, "--api-key" in result.stderr) == (2, True), result.stderr
    result = rstar2(*words, "--api-key", "secret")
    assert result.code == 0, result.stderr
    # A server that does not know prompt_logprobs refuses the request.
    place_of(tmp_path / "traces.jsonl").unlink()
    standin.refuses = lambda prompt: True
    result = rstar2(*words, "--api-key", "secret")
    assert (result.code, "(prompt_logprobs), which vLLM supports" in result.stderr) == (1, True), (
        result.stderr
    )


def test_a_model_whose_template_knows_no_tools_gives_entropies(
    model_folder: Path, make_trace: Any, standin: StandIn, tmp_path: Path
) -> None:
    plain = shutil.copytree(model_folder, tmp_path / "plain")
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    (plain / "chat_template.jinja").write_text(template)
    with TraceWriter(tmp_path / "traces.jsonl") as writer:
        writer.write(make_trace())
    standin.root, standin.prompt_logprobs = str(plain), True
    for source in (("--model", plain), ("--url", standin.url)):
        result = rstar2("analyze", tmp_path / "traces.jsonl", *source, "--json")
        assert result.code == 0, result.stderr
        assert json.loads(result.stdout)["entropy"]["rows"][0][2] == 1


def test_files_of_the_same_name_are_told_apart_by_where_they_lie(make_trace: Any, tmp_path: Path) -> None:
    paths = [tmp_path / run / "eval" / "stage3" / "traces.jsonl" for run in ("before", "after")]
    for path in paths:
        with TraceWriter(path) as writer:
            writer.write(make_trace())
    result = rstar2("analyze", *paths, "--json", "--output", tmp_path / "both")
    assert result.code == 0, result.stderr
    rows = json.loads(result.stdout)["behaviour"]["rows"]
    assert [row[0] for row in rows] == ["before stage3", "after stage3"]
    twice = rstar2("analyze", paths[0], paths[0], "--output", tmp_path / "both")
    assert (twice.code, "is named twice" in twice.stderr) == (2, True)


def test_several_paths_need_a_folder_for_what_is_said_of_them_together(run: Path) -> None:
    files = [run / "eval" / "stage1" / "traces.jsonl", run / "plain" / "eval" / "stage1" / "traces.jsonl"]
    result = rstar2("analyze", *files)
    assert (result.code, "Name one with --output" in result.stderr) == (2, True)


def test_it_is_said_whether_the_model_is_the_one_that_was_measured(
    model_folder: Path, make_trace: Any, tmp_path: Path
) -> None:
    with TraceWriter(tmp_path / "traces.jsonl") as writer:
        writer.write(make_trace())
    for model_record, certainty in (
        ({}, "exact, model not checked"),
        ({"sha256": model_hash(model_folder)}, "exact"),
        ({"sha256": "0" * 64}, "of another model"),
    ):
        write_json(tmp_path / "results.json", {"model": model_record})
        result = rstar2("analyze", tmp_path / "traces.jsonl", "--model", model_folder, "--json")
        assert result.code == 0, result.stderr
        assert json.loads(result.stdout)["entropy"]["rows"][0][1] == certainty


def test_a_damaged_file_beside_the_traces_is_named(run: Path, tmp_path: Path, model_folder: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    shutil.copy(run / "eval" / "stage1" / "traces.jsonl", traces)
    place_of(traces).write_bytes(b"PK")
    result = rstar2("analyze", traces, "--model", model_folder)
    assert (result.code, f"cannot read {place_of(traces)}" in result.stderr) == (2, True)

"""Tests of `rstar2 report` and `rstar2 runs`, the commands that show runs."""

from __future__ import annotations

import fcntl
import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console
from support.commands import rstar2
from support.eval.example_runs import write_run, write_staged_run
from typer.testing import CliRunner

from rstar2.cli import app
from rstar2.cli.training import ProgressRows
from rstar2.errors import Failure, UserError
from rstar2.files import write_json
from rstar2.runs import open_run


def small_run(folder: Path) -> Path:
    return write_run(folder, problems=6, samples=2)


def test_the_page_is_one_file_without_addresses_of_other_machines(tmp_path: Path) -> None:
    run = small_run(tmp_path / "night")
    result = CliRunner().invoke(app, ["report", str(run)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    page = (run / "report.html").read_text()
    assert str(run / "report.html") in result.output.replace("\n", "")
    for names_of_xml in ("http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"):
        page = page.replace(names_of_xml, "")
    assert "http" not in page
    assert "<title>night · rstar2</title>" in page
    assert not list(run.glob(".*.part"))


def test_writing_a_page_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(tmp_path / "night")
    monkeypatch.setattr("rstar2.report.page._CHUNK_CHARACTERS", 1)
    monkeypatch.setattr("rstar2.cli.common._PAGE_PROGRESS_S", float("inf"))
    assert "writing" not in CliRunner().invoke(app, ["report", str(run)]).stderr, (
        "the message appears at once"
    )
    monkeypatch.setattr("rstar2.cli.common._PAGE_PROGRESS_S", 0.0)
    message = CliRunner().invoke(app, ["report", str(run)]).stderr
    counts = [int(count) for count in re.findall(r"writing the report page: (\d+) trace", message)]
    assert counts == list(range(1, 13))


def test_output_names_another_file_and_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    run = small_run(tmp_path / "night")
    for name in ("one.html", "two.html"):
        assert CliRunner().invoke(app, ["report", str(run), "-o", str(tmp_path / "x" / name)]).exit_code == 0
    assert (tmp_path / "x" / "one.html").read_bytes() == (tmp_path / "x" / "two.html").read_bytes()
    assert not (run / "report.html").exists()


def test_a_missing_run_a_damaged_run_and_a_file_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    missing = CliRunner().invoke(app, ["report", str(tmp_path / "none")]).exception
    assert isinstance(missing, UserError)
    assert "no run at" in missing.message
    run = small_run(tmp_path / "night")
    (tmp_path / "file").write_text("")
    blocked = CliRunner().invoke(app, ["report", str(run), "-o", str(tmp_path / "file" / "x.html")]).exception
    assert isinstance(blocked, UserError)
    assert blocked.message == f"{tmp_path / 'file'} is not a folder"
    (run / "aime24" / "results.json").write_text("{")
    damaged = CliRunner().invoke(app, ["report", str(run)]).exception
    assert isinstance(damaged, UserError)
    assert "results.json" in damaged.message


def test_a_page_replaces_pages_and_no_other_file(tmp_path: Path) -> None:
    run, traces_file, page = small_run(tmp_path / "night"), tmp_path / "mine.jsonl", tmp_path / "page.html"
    traces_file.write_text('{"gold": "1", "pred": "1"}\n')
    error = CliRunner().invoke(app, ["report", str(run), "-o", str(traces_file)]).exception
    assert isinstance(error, UserError)
    assert error.message == f"{traces_file} is not a report page, so it is not replaced"
    assert traces_file.read_text() == '{"gold": "1", "pred": "1"}\n'
    for _ in range(2):
        assert CliRunner().invoke(app, ["report", str(run), "-o", str(page)]).exit_code == 0


def test_runs_are_listed_with_their_state_and_model_folders_are_not(tmp_path: Path) -> None:
    small_run(tmp_path / "night")
    write_json(tmp_path / "model" / "config.json", {"model_type": "qwen3"})
    result = CliRunner().invoke(app, ["runs", "list", "--root", str(tmp_path)], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "night" in result.output
    assert "finished" in result.output
    assert "model" not in result.output
    assert isinstance(
        CliRunner().invoke(app, ["runs", "list", "--root", str(tmp_path / "no")]).exception, UserError
    )
    (tmp_path / "bare").mkdir()
    assert (
        "no runs below" in CliRunner().invoke(app, ["runs", "list", "--root", str(tmp_path / "bare")]).output
    )


def test_a_killed_run_is_distinguished_from_a_running_one(tmp_path: Path) -> None:
    run = small_run(tmp_path / "night")
    write_json(run / "status.json", {"state": "running", "at": 0, "attempt": 1})
    arguments = ["runs", "list", "--root", str(tmp_path)]
    assert "killed" in CliRunner().invoke(app, arguments, env={"COLUMNS": "200"}).output
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "running" in CliRunner().invoke(app, arguments, env={"COLUMNS": "200"}).output


def test_a_damaged_run_is_named_and_listed(tmp_path: Path) -> None:
    run = small_run(tmp_path / "night")
    (run / "config.json").write_text('{"kind": "ev')
    for words in (["runs", "show"], ["report"]):
        error = CliRunner().invoke(app, [*words, str(run)]).exception
        assert isinstance(error, UserError)
        assert error.message.startswith(f"{run / 'config.json'} is damaged: Unterminated string")
    result = CliRunner().invoke(app, ["runs", "list", "--root", str(tmp_path)], env={"COLUMNS": "200"})
    assert re.search(r"night +damaged", result.output), result.output


def test_a_file_in_place_of_a_run_is_told_as_that(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("{}")
    for words in (["runs", "show"], ["report"], ["watch"]):
        error = CliRunner().invoke(app, [*words, str(tmp_path / "mine.jsonl")]).exception
        assert isinstance(error, UserError)
        assert error.message == f"{tmp_path / 'mine.jsonl'} is a file, not a run's folder"


def test_a_failed_run_is_shown_with_its_cause_and_its_logs(tmp_path: Path) -> None:
    with pytest.raises(Failure), open_run(tmp_path / "run", "train", {}):
        raise Failure("the trainer died", "Its log: a.log")
    message = "train, failed\nthe trainer died\nIts log: a.log\nlogs: " + str(
        tmp_path / "run/attempts/latest"
    )
    assert message in show_run(tmp_path / "run")
    assert json.loads(show_run(tmp_path / "run", "--json"))["cause"] == "the trainer died\nIts log: a.log"


def show_run(*words: object) -> str:
    """Returns the output of `runs show` on a terminal of 80 columns."""
    result = rstar2("runs", "show", *words, env={"COLUMNS": "80"})
    assert result.code == 0, result.stderr
    return result.stdout


def test_a_run_is_shown_with_its_numbers_and_its_settings_where_asked_for(tmp_path: Path) -> None:
    run = small_run(tmp_path / "night")
    accuracy = json.loads((run / "aime24" / "results.json").read_text())["summary"]["accuracy"]
    assert f"{100 * accuracy:.1f} %" in show_run(run)
    assert "problems.aime24" not in show_run(run)
    assert f"1 setting: rstar2 runs show {run} --settings" in show_run(run)
    assert "problems.aime24 made" in show_run(run, "--settings")
    assert "no run at" in rstar2("runs", "show", tmp_path / "none").stderr


def test_the_numbers_of_many_benchmarks_are_not_cut(tmp_path: Path) -> None:
    names = [f"a-benchmark-{number}" for number in range(6)]
    for name in names:
        write_run(tmp_path / "run", name, problems=6, samples=2)
    lines = show_run(tmp_path / "run").splitlines()
    assert [line.split()[0] for line in lines if "a-benchmark" in line] == names
    assert "…" not in "".join(lines)


def test_a_training_run_shows_where_its_steps_began_and_ended(tmp_path: Path) -> None:
    page = show_run(write_staged_run(tmp_path / "run"))
    assert re.search(r"failed calls, GRPO-RoC +30 +\d+\.\d % → \d+\.\d %", page), page
    assert page.index("avg@n") < page.index("in training") < page.index("settings:")


def test_everything_that_is_shown_is_in_the_json(tmp_path: Path) -> None:
    run = small_run(tmp_path / "night")
    data = json.loads(show_run(run, "--json"))
    assert (data["kind"], data["state"]) == ("eval", "finished")
    assert data["results"]["aime24"]["problems"] == 6
    assert data["settings"] == {"problems": {"aime24": "made"}}


@pytest.mark.parametrize("verb", ["report", "runs"])
def test_help_exits_with_0(verb: str) -> None:
    assert CliRunner().invoke(app, [verb, "--help"]).exit_code == 0


def test_paths_and_names_in_brackets_are_printed_as_they_are(tmp_path: Path) -> None:
    run = write_run(tmp_path / "br[" / "x]run [b]", "set[b]", problems=6, samples=2)
    other = write_run(tmp_path / "br[" / "other", "set[b]", problems=5, samples=2, lift=1.0)
    output = {
        ("report", run): str(run / "report.html"),
        ("runs", "list", "--root", run.parent): str(run),
        ("runs", "show", run): "set[b]",
        ("eval", "compare", run, other): f"A {run}",
        ("analyze", run, "--output", run / "[/x]"): f"tables and plots: {run / '[/x]'}",
    }
    for words, text in output.items():
        result = rstar2(*words)
        assert (result.code, text in result.stdout) == (0, True), (words, result.stdout, result.stderr)
    compared = rstar2("eval", "compare", run, other)
    assert "set[b]: 1 problem left out" in compared.stderr
    assert "set[b]: 5 problems are too few to find a difference of any size" in compared.stdout
    empty = tmp_path / "[/x]"
    empty.mkdir(parents=True)
    assert f"no runs below {empty}" in rstar2("runs", "list", "--root", empty).stdout


def test_the_progress_of_phases_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr("rstar2.cli.training.out", console)
    rows = ProgressRows()
    rows.start("stage3", "stage 3: GRPO-RoC, 160 tokens", 6)
    rows.update("stage3", 3, "pass rate 91 %, failed calls 12.1 %, 44 tokens")
    rows.start("filter", "  sampling, to drop solved problems", 1920)
    with rows:
        pass
    text = stream.getvalue()
    shown = " ".join(text.split())
    for part in (
        "GRPO-RoC, 160 tokens",
        "3/6",
        "0/1920",
        "0:00:00",
        "pass rate 91 %",
        "44 tokens",
        "problems",
    ):
        assert part in shown, part
    assert "…" not in text


def test_what_a_phase_says_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    rows = ProgressRows()
    rows.start("sft", "SFT of [/x]", 3)
    rows.finish("sft", "model in [b]/model")
    assert "SFT of [/x]: model in [b]/model" in capsys.readouterr().out

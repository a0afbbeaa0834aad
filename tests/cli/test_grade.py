"""Tests of `rstar2 grade` on the command line."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from support.commands import CommandResult, largest_file, rstar2
from support.process_table import children
from support.waiting import TIMEOUT_S, wait_until

from rstar2.cli.grade import command
from rstar2.loop.trace import Trace

REPOSITORY = Path(__file__).resolve().parents[2]
ROWS = [
    {"id": "a", "gold": "42", "pred": "so it is \\boxed{42}"},
    {"id": 7, "gold": "\\frac{1}{2}", "pred": "0.25"},
    {"gold": "42", "pred": None},
    {"id": None, "gold": None, "pred": "42"},
    {"id": "ü", "gold": "x^2", "pred": "\\boxed{x\\cdot x}", "more": 1},
]
GRADED = [
    {"id": "a", "verdict": "correct", "extracted": "42", "rule": "integer"},
    {"id": 7, "verdict": "wrong", "extracted": "0.25", "rule": "number"},
    {"verdict": "unparsed", "extracted": None, "rule": "no answer"},
    {"id": None, "verdict": "invalid", "extracted": None, "rule": "no gold answer"},
    {"id": "ü", "verdict": "correct", "extracted": "x\\cdot x", "rule": "expression"},
]


def run(*args: str) -> CommandResult:
    return rstar2("grade", *args)


def write(path: Path, rows: list) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_one_row_comes_out_for_each_in_order_with_its_id(tmp_path):
    result = run(write(tmp_path / "in.jsonl", ROWS))
    assert result.code == 0, result.stderr
    assert [json.loads(line) for line in result.stdout.splitlines()] == GRADED
    assert "5 rows" in result.stderr
    assert "40.0 %" in result.stderr


def test_rows_reach_a_file_while_progress_is_shown_on_the_terminal(tmp_path):
    source, out = write(tmp_path / "in.jsonl", ROWS), tmp_path / "out.jsonl"
    master, terminal_end = pty.openpty()
    command = [sys.executable, "-m", "rstar2", "grade", source]
    with out.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=terminal_end) as process:
        os.close(terminal_end)
        output = b""
        with contextlib.suppress(
            OSError
        ):  # reading a terminal raises OSError after the last process has closed it
            while part := os.read(master, 65536):
                output += part
    os.close(master)
    assert process.returncode == 0
    assert [json.loads(line) for line in out.read_text().splitlines()] == GRADED
    assert b"grading" in output
    assert b'verdict"' not in output


def test_the_output_file_holds_all_rows_and_nothing_goes_to_standard_output(tmp_path):
    source = write(tmp_path / "in.jsonl", ROWS * 60)
    result = run(source, "--output", str(tmp_path / "out.jsonl"), "--workers", "2")
    assert (result.code, result.stdout) == (0, "")
    output = (tmp_path / "out.jsonl").read_text(encoding="utf-8")
    assert [json.loads(line) for line in output.splitlines()] == GRADED * 60
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "it has no rows"),
        ([{"answer": "1", "pred": "1"}], "line 1: `gold` is missing; the row has answer, pred"),
        ([{"gold": None, "pred": "1"}] * 2, "line 1: no gold answer"),
    ],
)
def test_a_file_of_which_nothing_can_be_graded_is_the_users_mistake(tmp_path, rows, message):
    source = write(tmp_path / "in.jsonl", rows)
    result = run(source, "-o", str(tmp_path / "out.jsonl"))
    assert (result.code, result.stdout) == (2, "")
    output = " ".join(result.stderr.split())
    assert f"nothing in {source} can be graded: {message}" in output
    assert "--gold-key" in output
    assert not (tmp_path / "out.jsonl").exists()


def test_numbers_are_answers_and_keys_may_have_other_names(tmp_path):
    rows = [{"answer": 3, "output": "3"}, {"answer": 0.1, "output": 0.10}, {"answer": "1/4", "output": 0.5}]
    result = run(write(tmp_path / "in.jsonl", rows), "--gold-key", "answer", "--pred-key", "output")
    assert [json.loads(line)["verdict"] for line in result.stdout.splitlines()] == [
        "correct",
        "correct",
        "wrong",
    ]


def test_the_traces_of_an_evaluation_are_rows(tmp_path):
    turn = {"text": "<answer>\\boxed{42}</answer>", "start": 0, "end": 1, "calls": []}
    ids = {"prompt_ids": [1], "response_ids": [2], "response_mask": [1], "logprobs": [-0.5]}
    trace = Trace(problem_id="p", sample=2, gold="42", turns=[turn], finish="answer", **ids)
    source = tmp_path / "traces.jsonl"
    source.write_text(trace.model_dump_json() + "\n")
    [row] = map(json.loads, run(str(source)).stdout.splitlines())
    assert (row["id"], row["verdict"]) == ("p/2", "correct")


def test_standard_input_is_a_file_too(tmp_path):
    source = Path(write(tmp_path / "in.jsonl", ROWS))
    with source.open() as stdin:
        piped = subprocess.run(
            [sys.executable, "-m", "rstar2", "grade", "-"],
            stdin=stdin, cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    assert [json.loads(line) for line in piped.stdout.splitlines()] == GRADED, piped.stderr


def test_a_bad_row_is_told_and_the_others_are_graded(tmp_path):
    source = tmp_path / "in.jsonl"
    bad = ["[1]", "{", '{"id": 7, "gold": "1"}', '{"gold": [1], "pred": "1"}', '{"gold": true, "pred": "1"}']
    good = json.dumps(ROWS[0])
    source.write_text("\n".join([good, *bad, good]) + "\n")
    result = run(str(source))
    assert result.code == 0
    graded = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["verdict"] for row in graded] == ["correct", *["invalid"] * 5, "correct"]
    assert graded[3] == {
        "line": 4,
        "id": 7,
        "verdict": "invalid",
        "extracted": None,
        "rule": "bad row: `pred` is missing; the row has id, gold",
    }
    assert "line 2: not a JSON object but list" in result.stderr
    assert "5 of 7 rows could not be graded" in result.stderr


def test_a_row_without_a_gold_answer_is_told_with_its_line_and_stops_a_strict_grading(tmp_path):
    source = write(tmp_path / "in.jsonl", [ROWS[0], {"gold": " ", "pred": "1"}, {"gold": None, "pred": "2"}])
    result = run(source)
    assert result.code == 0
    assert "line 2: no gold answer\nline 3: no gold answer\n2 of 3 rows could not be graded" in result.stderr
    strict = run(source, "--strict")
    assert (strict.code, strict.stdout) == (2, "")
    assert "line 2: no gold answer" in strict.stderr


def test_one_row_is_a_row(tmp_path):
    assert "\n1 row " in run(write(tmp_path / "in.jsonl", ROWS[:1])).stderr


def test_a_malformed_line_stops_a_strict_grading_and_nothing_is_written(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps(ROWS[0]) + "\n[1]\n" + json.dumps(ROWS[0]) + "\n")
    result = run(str(source), "--strict", "-o", str(tmp_path / "out.jsonl"))
    assert result.code == 2
    output = " ".join(result.stderr.split())
    assert "line 2: not a JSON object but list" in output
    assert "Each line is a JSON object such as" in output
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_missing_file_is_the_users_mistake_and_a_missing_folder_is_made(tmp_path):
    missing = run(str(tmp_path / "none.jsonl"))
    assert missing.code == 2
    assert "No such file" in missing.stderr
    source = write(tmp_path / "in.jsonl", ROWS)
    below_a_file = run(source, "-o", str(tmp_path / "in.jsonl" / "out.jsonl"))
    assert below_a_file.code == 2
    assert "is not a folder" in " ".join(below_a_file.stderr.split())
    assert run(source, "-o", str(tmp_path / "new" / "out.jsonl")).code == 0
    assert (tmp_path / "new" / "out.jsonl").read_text().count("\n") == len(ROWS)


def test_the_verdicts_never_replace_the_file_that_is_graded(tmp_path):
    source = write(tmp_path / "in.jsonl", ROWS)
    (tmp_path / "link.jsonl").symlink_to("in.jsonl")
    for output in (source, str(tmp_path / "link.jsonl")):
        result = run(source, "-o", output)
        assert result.code == 2
        assert f"{output} is the file to grade" in " ".join(result.stderr.split())
    assert write(tmp_path / "again.jsonl", ROWS)
    assert Path(source).read_text() == (tmp_path / "again.jsonl").read_text()


def test_a_full_disk_is_a_failure_that_leaves_the_old_file(tmp_path):
    target = tmp_path / "out.jsonl"
    target.write_text("old\n")
    source = write(tmp_path / "many.jsonl", ROWS * 60)
    with largest_file(4096):
        limited = run(source, "-o", str(target))
    assert limited.code == 1, limited.stderr
    assert "cannot write" in limited.stderr
    assert target.read_text() == "old\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many.jsonl", "out.jsonl"]


ENDLESS = """
import os, sys, time
if "rstar2.eval.grader.worker" in sys.orig_argv:
    os.read(0, 1)
    open(__file__ + ".asked", "w").close()
    time.sleep(3600)
"""
"""A `sitecustomize` module. With it, a grading worker creates a file when it receives a request, and never answers."""


def test_ctrl_c_stops_with_130_and_leaves_neither_files_nor_processes(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(ENDLESS)
    folder = tmp_path / "rows"
    folder.mkdir()
    source = write(folder / "in.jsonl", [{"gold": "\\sqrt{2}+1", "pred": "1+\\sqrt{3}"}])
    process = subprocess.Popen(
        [sys.executable, "-m", "rstar2", "grade", source, "-o", str(folder / "out.jsonl"), "--timeout", "600"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    wait_until((tmp_path / "sitecustomize.py.asked").exists)
    assert [path.name for path in folder.iterdir() if path.suffix == ".part"] != []
    workers = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert [path.name for path in folder.iterdir()] == ["in.jsonl"]
    wait_until(lambda: not any(map(group_is_alive, [process.pid, *workers])))


def group_is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_rule_says_where_the_answer_is_read_and_finish_how_the_output_ended(tmp_path):
    pred = "</reason><answer>\\boxed{42}</answer>"
    rows = [
        {"gold": "42", "pred": pred},
        {"gold": "42", "pred": pred, "finish": "max_tokens"},
        {"gold": "42", "pred": "\\boxed{42}"},
        {"gold": "42", "pred": "so the answer is 42"},
        {"gold": "42", "pred": pred, "finish": "tired"},
    ]
    source = write(tmp_path / "in.jsonl", rows)
    correct = {"paper": [0], "boxed": [0, 2], "release": [0, 1, 2, 3], "lenient": [0, 1, 2, 3]}
    for rule, expected in correct.items():
        result = run(source, "--rule", rule)
        graded = [json.loads(line)["verdict"] for line in result.stdout.splitlines()]
        assert [at for at, verdict in enumerate(graded) if verdict == "correct"] == expected
        assert "line 5: `finish` is 'tired', not one of answer, " in result.stderr
    assert run(source, "--rule", "none").code == 2


def test_verify_confirms_correct_verdicts_by_their_certificates(tmp_path):
    result = run(write(tmp_path / "in.jsonl", ROWS), "--verify")
    assert result.code == 0, result.stderr
    verified = [json.loads(line).get("verified") for line in result.stdout.splitlines()]
    assert verified == [True, None, None, None, True]
    assert "2 of 2 correct verdicts confirmed by their certificates\n" in result.stderr
    one = run(write(tmp_path / "one.jsonl", ROWS[:1]), "--verify").stderr
    assert "1 of 1 correct verdicts confirmed by its certificate\n" in one


def test_a_correct_verdict_that_is_not_confirmed_is_shown_and_exits_with_1(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("rstar2.eval.grader.verify.verify", lambda certificate: "it is not so")
    with pytest.raises(typer.Exit) as excinfo:
        command(Path(write(tmp_path / "in.jsonl", ROWS)), verify=True)
    assert excinfo.value.exit_code == 1
    output = capsys.readouterr()
    assert json.loads(output.out.splitlines()[0])["verified"] == "it is not so"
    assert "0 of 2 correct verdicts confirmed" in output.err
    assert "line 1: it is not so" in output.err

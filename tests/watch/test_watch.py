"""Tests of `rstar2 watch`, which shows the state, the progress and the end of a run from its files."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.commands import rstar2
from support.eval.example_runs import write_run, write_staged_run
from support.eval.verdict_files import write_verdicts
from support.waiting import TIMEOUT_S, wait_until

from rstar2.errors import Failure, UserError
from rstar2.files import write_json
from rstar2.report.collect import collect
from rstar2.runs import load_status, open_run
from rstar2.terminal import encodable
from rstar2.train.choose import choose
from rstar2.train.decision import Decision, write_decision
from rstar2.train.recipe_files import sft_recipe
from rstar2.train.records.alarms import AlarmRecorder, AlarmSettings
from rstar2.train.records.progress import Activity, ActivityWriter
from rstar2.watch.snapshot import snapshot
from rstar2.watch.view import course

CONFIG: dict[str, Any] = {"recipes": {"1": {"steps": 3}}}


def add_step(run: Path, step: int, **data: float) -> None:
    stage = run / "stage1"
    stage.mkdir(exist_ok=True)
    values = {"rstar2/pass_rate": 0.25 * step, "rstar2/tokens": 90.0, "actor/entropy": 0.4 / step, **data}
    with (stage / "metrics-1.jsonl").open("a") as file:
        file.write(json.dumps({"step": step, "data": values}) + "\n")


def test_a_run_is_one_plain_table_where_nobody_looks(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", "train", CONFIG):
        for step in (1, 2):
            add_step(tmp_path / "run", step)
        progress = {
            "step": 3,
            "finished": 700,
            "wanted": 16384,
            "judge_away_s": 40.0,
            "failed": 9,
            "fault": "step 3: rollouts failed and are left out: 1 x engine: out of memory",
        }
        write_json(tmp_path / "run" / "stage1" / "rollouts.json", progress)
        alarm = {"step": 2, "sign": "entropy", "text": "entropy fell from 0.4 to 0.02"}
        (tmp_path / "run" / "stage1" / "alarms.jsonl").write_text(json.dumps(alarm) + "\n")
        write_decision(tmp_path / "run" / "stage1", Decision(2, "back", "the pass rate fell", model_step=1))
        result = rstar2("watch", tmp_path / "run")
        data = json.loads(rstar2("watch", tmp_path / "run", "--json").stdout)
    assert result.code == 0
    assert "\x1b" not in result.stdout
    assert "train, running  stage 1, step 2 of 3" in result.stdout
    assert (
        "step 3, 700 of 16384 rollouts finished, 9 of them failed, judge unreachable for 40 s"
        in result.stdout
    )
    assert "\nstep 3: rollouts failed and are left out: 1 x engine: out of memory" in result.stdout
    assert "ALARM  stage 1, step 2: entropy fell from 0.4 to 0.02" in result.stdout
    assert "▁█" in result.stdout
    assert "all with a verdict 50.0 %" in result.stdout
    assert (data["state"], data["phase"], data["step"], data["of"]) == ("running", "stage 1", 2, 3)
    assert data["latest"]["pass_rate"] == 0.5
    assert [step["entropy"] for step in data["steps"]] == [0.4, 0.2]
    assert [each["sign"] for each in data["alarms"]] == ["entropy"]
    decision_text = "the pass rate fell: the stage ends, and its model is that of step 1"
    assert f"DECIDED  stage 1, step 2: {decision_text}" in result.stdout
    assert [(each["stage"], each["action"], each["text"]) for each in data["decisions"]] == [
        (1, "back", decision_text)
    ]


def test_a_policy_that_forgets_its_problems_is_shown_while_its_pass_rate_still_holds(tmp_path: Path) -> None:
    run, warnings = tmp_path / "run", list[str]()
    with open_run(run, "train", CONFIG):
        (run / "stage1").mkdir()
        recorder = AlarmRecorder(run / "stage1", AlarmSettings(window=2), {}, warnings.append)
        for step, nats in enumerate((0.7, 0.7, 0.7, 0.5, 0.4), 1):
            metrics = {"rstar2/information": nats, "rstar2/calls": 1.2, "rstar2/dropped_groups": 0.4}
            add_step(run, step, **metrics, **{"rstar2/pass_rate": 0.6})
            recorder.on_step(step, {**metrics, "rstar2/pass_rate": 0.6})
        result = rstar2("watch", run)
        data = json.loads(rstar2("watch", run, "--json").stdout)
    [alarm] = data["alarms"]
    assert (alarm["stage"], alarm["step"], alarm["sign"]) == (1, 5, "information")
    assert warnings == [f"step 5: {alarm['text']}"]
    one_line = " ".join(result.stdout.split())
    assert f"ALARM stage 1, step 5: {alarm['text']}" in one_line
    assert data["latest"]["information"] == 0.4
    for panel in ("information", "calls", "groups"):
        assert re.search(rf"^{panel} ", result.stdout, re.MULTILINE), panel


@pytest.mark.parametrize(
    ("kl", "k3", "text"),
    [
        (-1.71e-10, 2e-10, "nats per token, mismatch KL, kept 0"),
        (-1.71e-10, 0.002, "nats per token, mismatch KL, kept 0, k3 estimate, kept 0.002"),
        (-0.001, 0.002, "nats per token, mismatch KL, kept -0.001, k3 estimate, kept 0.002"),
    ],
)
def test_rounding_errors_in_the_mismatch_are_shown_as_0(
    kl: float, k3: float, text: str, tmp_path: Path
) -> None:
    with open_run(tmp_path / "run", "train", CONFIG):
        add_step(tmp_path / "run", 1, **{"rollout_corr/kl": kl, "rollout_corr/k3_kl": k3})
        output = rstar2("watch", tmp_path / "run").stdout
    [row] = re.findall(r"^mismatch .*$", output, re.MULTILINE)
    assert f" {text} below 0.01" in " ".join(row.split())


def test_each_figure_has_its_unit_and_the_step_of_the_stage_is_told_from_that_of_the_run(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    figures = {
        "rstar2/calls": 1.09, "actor/grad_norm": 0.702, "actor/entropy": 0.124, "rstar2/tokens": 46.0,
        "rstar2/dropped_groups": 0.4, "rstar2/mixed_groups": 0.6, "rstar2/unsolved_groups": 0.25,
    }  # fmt: skip
    with open_run(run, "train", {"recipes": {"1": {"steps": 1}, "2": {"steps": 6}}}):
        add_step(run, 1, **figures)
        (run / "stage2").mkdir()
        for step in (1, 2):
            line = {"step": step, "data": {"rstar2/pass_rate": 0.5, **figures}}
            with (run / "stage2" / "metrics-1.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
        output = rstar2("watch", run).stdout
    assert "stage 2, step 2 of 6 of the stage, step 3 of the run" in output
    assert "at step 3 of the run" in output
    rows = {
        name: " ".join(text.split()) for name, text in re.findall(r"^([a-z]+) +\S+  +(.+)$", output, re.M)
    }
    assert rows["calls"].startswith("per rollout 1.09")
    assert rows["gradient"].startswith("norm 0.702")
    assert rows["entropy"].startswith("nats per token 0.124")
    assert rows["length"].startswith("tokens, mean 46")
    assert rows["groups"].startswith("share of groups, rewards differ 60.0 %")
    assert rows["unsolved"].startswith("share of problems 25.0 %")
    assert output.count("not trained on 40.0 %") == 1


def test_a_filter_is_the_phase_until_it_is_done_and_a_finished_stage_shows_no_rollouts(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    recipes = {"1": {"steps": 2}, "2": {"steps": 2}, "3": {"steps": 9}}
    with open_run(run, "train", {"recipes": recipes}):
        for step in (1, 2):
            add_step(run, step)
        rollouts = {"step": 2, "finished": 64, "wanted": 64}
        write_json(run / "stage1" / "rollouts.json", rollouts)
        assert "step 2, 64 of 64 rollouts finished" in rstar2("watch", run).stdout
        (run / "stage1" / "model").mkdir()
        assert snapshot(run).rollouts is None
        (run / "stage1").rename(run / "stage2")
        solved = run / "stage3" / "solved"
        write_json(solved / "settings.json", {"data": {"problems": 30}, "settings": {"samples": 8}})
        assert snapshot(run).record()["samples"] == {"done": 0, "wanted": 240}
        write_verdicts(solved / "verdicts.jsonl", [("p1", 0, "error")])
        write_verdicts(solved / "verdicts.jsonl", (("p1", sample, "correct") for sample in range(3)))
        with (solved / "verdicts.jsonl").open("a") as file:
            file.write('{"id": "p1", "sam')
        assert "train, running  filter before stage 3, 3 of 240 samples\n" in rstar2("watch", run).stdout
        data = json.loads(rstar2("watch", run, "--json").stdout)
        assert (data["phase"], data["samples"]) == ("filter before stage 3", {"done": 3, "wanted": 240})
        assert (data["step"], data["of"], data["rollouts"], len(data["steps"])) == (0, None, None, 2)
        write_json(solved / "card.json", {})
        state = snapshot(run)
        assert (state.phase, state.step, state.samples, state.rollouts) == ("stage 2", 2, None, None)
        (run / "stage3" / "train.parquet").touch()
        state = snapshot(run)
        assert (state.phase, state.step, state.of, len(state.steps)) == ("stage 3", 0, 9, 2)


@pytest.mark.parametrize(("kind", "folder"), [("train", "stage1"), ("sft", ".")])
def test_what_the_trainer_does_is_shown_until_rollouts_are_newer(
    tmp_path: Path, kind: str, folder: str
) -> None:
    run = tmp_path / "run"
    stage = run / folder
    with open_run(run, kind, CONFIG):
        if kind == "train":
            add_step(run, 1)
            write_json(stage / "rollouts.json", {"step": 2, "finished": 64, "wanted": 64})
            os.utime(stage / "rollouts.json", ns=(1, 1))
        ActivityWriter(stage).write(Activity("update", 37, 120, "micro-batches"))
        assert "update, 37 of 120 micro-batches" in rstar2("watch", run).stdout
        assert snapshot(run).record()["activity"] == "update, 37 of 120 micro-batches"
        if kind == "train":
            now = 1 + (stage / "alive.json").stat().st_mtime_ns
            os.utime(stage / "rollouts.json", ns=(now, now))
            assert "update" not in rstar2("watch", run).stdout
        (stage / "model").mkdir()
        assert snapshot(run).activity is None


def test_the_folder_of_a_stage_shows_that_stage_alone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    recipes = {"1": {"steps": 2}, "2": {"steps": 5}, "3": {"steps": 9}}
    with open_run(run, "train", {"recipes": recipes}):
        for step in (1, 2):
            add_step(run, step)
        (run / "stage1" / "model").mkdir()
        alarm = {"step": 2, "sign": "entropy", "text": "entropy fell"}
        (run / "stage1" / "alarms.jsonl").write_text(json.dumps(alarm) + "\n")
        write_decision(run / "stage1", Decision(2, "advance", "the pass rate has not risen", last_step=2))
        write_json(run / "stage2" / "steps_before.json", 2)
        line = {"step": 1, "data": {"rstar2/pass_rate": 0.9}}
        (run / "stage2" / "metrics-1.jsonl").write_text(json.dumps(line) + "\n")
        write_json(run / "stage2" / "rollouts.json", {"step": 2, "finished": 7, "wanted": 64})
        os.utime(run / "stage2" / "rollouts.json", ns=(1, 1))
        ActivityWriter(run / "stage2").write(Activity("update", 37, 120, "micro-batches"))
        first, second = snapshot(run / "stage1"), snapshot(run / "stage2")
        data = json.loads(rstar2("watch", run / "stage2", "--json").stdout)
        result = rstar2("watch", run / "stage1")
    assert (first.state, first.phase, first.step, first.of) == ("finished", "stage 1", 2, 2)
    assert (len(first.steps), len(first.alarms), first.rollouts, first.activity) == (2, 1, None, None)
    assert (len(first.decisions), second.decisions) == (1, [])
    assert "update" not in result.stdout
    assert data["activity"] == "update, 37 of 120 micro-batches"
    assert (second.state, second.phase, second.step, second.of) == ("running", "stage 2", 1, 5)
    assert second.alarms == []
    assert data["rollouts"] == "step 2, 7 of 64 rollouts finished"
    assert [(step["step"], step["stage"], step["pass_rate"]) for step in data["steps"]] == [(3, 2, 0.9)]
    assert (data["run"], data["kind"]) == (str(run / "stage2"), "train")
    assert (result.code, "train, finished  stage 1, step 2 of 2" in result.stdout) == (0, True), result.stderr


def test_the_cause_of_a_failure_is_shown_for_the_stage_that_failed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = {"recipes": {"1": {"steps": 1}, "2": {"steps": 5}}}
    with open_run(run, "train", config):
        add_step(run, 1)
        (run / "stage1" / "model").mkdir()
        (run / "stage2").mkdir()
        (run / "stage2" / "train.parquet").touch()
    with pytest.raises(Failure), open_run(run, "train", config):
        raise Failure("CUDA out of memory")
    first, second = snapshot(run / "stage1"), snapshot(run / "stage2")
    assert (first.state, first.cause) == ("finished", "")
    assert (second.state, second.cause) == ("failed", "CUDA out of memory")


def test_what_sft_does_before_its_first_step_is_shown_for_its_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with open_run(run, "demo", {}):
        (run / "sft").mkdir()
        ActivityWriter(run / "sft").write(Activity("loading the model"))
        activity = snapshot(run / "sft").activity
    assert activity is not None
    assert activity.text() == "loading the model"


def test_a_stage_is_found_by_a_relative_path_and_one_of_no_run_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_run(tmp_path / "run", "train", CONFIG):
        add_step(tmp_path / "run", 1)
        solved = tmp_path / "run" / "stage3" / "solved"
        write_json(solved / "settings.json", {"data": {"problems": 30}, "settings": {"samples": 8}})
        filtering = snapshot(tmp_path / "run" / "stage3")
    assert (filtering.phase, filtering.samples and filtering.samples.wanted) == ("filter before stage 3", 240)
    monkeypatch.chdir(tmp_path / "run" / "stage1")
    assert snapshot(Path()).phase == "stage 1"
    (tmp_path / "stage1").mkdir()
    with pytest.raises(UserError, match="no run at"):
        snapshot(tmp_path / "stage1")


def test_the_stages_of_both_arms_and_sft_can_be_watched(tmp_path: Path) -> None:
    run = write_staged_run(tmp_path / "demo")
    alarm = {"step": 2, "sign": "entropy", "text": "entropy fell"}
    (run / "plain" / "stage1" / "alarms.jsonl").write_text(json.dumps(alarm) + "\n")
    arms = snapshot(run / "stage1"), snapshot(run / "plain" / "stage1")
    assert [watched.phase for watched in arms] == ["stage 1", "stage 1"]
    assert [len(watched.alarms) for watched in arms] == [0, 1]
    (run / "sft").mkdir(exist_ok=True)
    line = {"step": 1, "data": {"train/loss": 0.5}}
    (run / "sft" / "metrics-1.jsonl").write_text(json.dumps(line) + "\n")
    watched = snapshot(run / "sft")
    assert (watched.phase, watched.step, watched.losses, watched.steps) == ("SFT", 1, [0.5], [])


def test_a_failed_run_says_why_and_a_killed_one_that_it_was(tmp_path: Path) -> None:
    with pytest.raises(Failure), open_run(tmp_path / "run", "train", CONFIG):
        raise Failure("the trainer ended with exit code 1: CUDA out of memory")
    output = rstar2("watch", tmp_path / "run").stdout
    assert "failed" in output
    assert "exit code 1: CUDA out of memory" in output
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    write_json(tmp_path / "run" / "status.json", {**status, "state": "running"})
    assert snapshot(tmp_path / "run").state == "killed"


def test_a_run_of_another_machine_whose_locks_are_not_seen_here_runs_while_it_writes(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", "train", CONFIG):
        add_step(tmp_path / "run", 1)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    write_json(tmp_path / "run" / "status.json", {**status, "state": "running", "host": "node-17"})
    assert load_status(tmp_path / "run")["state"] == "running"
    long_ago = time.time() - 3600
    os.utime(tmp_path / "run" / "stage1" / "metrics-1.jsonl", (long_ago, long_ago))
    assert load_status(tmp_path / "run")["state"] == "killed"


def test_the_second_arm_and_sft_are_shown_while_they_are_the_phase(tmp_path: Path) -> None:
    run = write_staged_run(tmp_path / "demo")
    assert (snapshot(run).phase, len(snapshot(run).steps)) == ("stage 1", 20), "plain GRPO comes last"
    write_json(tmp_path / "sft" / "config.json", {"kind": "sft", "config": {}})
    loss = [json.dumps({"step": n, "data": {"train/loss": 1 / n}}) + "\n" for n in (1, 2)]
    (tmp_path / "sft" / "metrics-1.jsonl").write_text("".join(loss))
    output = rstar2("watch", tmp_path / "sft").stdout
    assert "SFT, step 2" in output
    assert "loss   0.5" in output


def test_what_trains_nothing_and_what_is_no_run_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "eval", problems=1, samples=1)
    with pytest.raises(UserError, match="is a run of `eval`, not a training run"):
        snapshot(tmp_path / "eval")
    result = rstar2("watch", tmp_path / "nothing")
    assert result.code == 2
    assert "no run at" in result.stderr


def test_a_step_that_a_kill_left_without_its_line_is_counted(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", "train", CONFIG):
        add_step(tmp_path / "run", 1)
        add_step(tmp_path / "run", 3)
        assert snapshot(tmp_path / "run").step == 3


def test_a_long_course_is_drawn_as_means_and_an_even_one_as_a_line() -> None:
    assert course([0.0, 1.0]) == "▁█"
    assert course([0.5] * 4) == "▄▄▄▄"
    assert set(course([0.1] * 119)) == {"▄"}
    assert course([0.0, 0.0]) == "▄▄"
    assert course([1.0, 1.0001]) == "▁█"
    assert len(course([float(n) for n in range(510)])) <= 20


def test_in_ascii_a_course_still_rises() -> None:
    assert encodable(course([float(n) for n in range(8)]), "ascii") == "_.-~=+*#"


def strict(text: str) -> Any:
    """Parses JSON strictly: words that only Python's parser accepts, such as NaN, are errors."""

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("file_name", ["null", "NaN", "Infinity"])
def test_a_measurement_that_is_not_a_number_is_shown_as_that_and_left_out_of_the_curve(
    tmp_path: Path, file_name: str
) -> None:
    with open_run(tmp_path / "run", "train", CONFIG):
        for step in (1, 2):
            add_step(tmp_path / "run", step)
        data = f'{{"rstar2/pass_rate": 0.7, "actor/entropy": {file_name}, "actor/grad_norm": {file_name}}}'
        with (tmp_path / "run" / "stage1" / "metrics-1.jsonl").open("a") as file:  # VERL writes null for NaN
            file.write(f'{{"step": 3, "data": {data}}}\n')
        text_result, json_result = (rstar2("watch", tmp_path / "run", *words) for words in ((), ("--json",)))
    assert (text_result.code, json_result.code) == (0, 0), text_result.stderr + json_result.stderr
    [entropy] = [line for line in text_result.stdout.splitlines() if line.startswith("entropy")]
    assert entropy.split()[1] == "█▁"
    assert entropy.split("nats per token ")[1].split()[0] in ("nan", "inf")
    watch_data = strict(json_result.stdout)
    assert [step["entropy"] for step in watch_data["steps"]] == [0.4, 0.2, None]
    assert (watch_data["latest"]["entropy"], watch_data["latest"]["pass_rate"]) == (None, 0.7)


def test_a_curve_without_a_number_and_a_loss_that_is_none_are_shown(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", "train", CONFIG):
        add_step(tmp_path / "run", 1, **{"actor/entropy": float("nan")})
        result = rstar2("watch", tmp_path / "run")
    [entropy] = [line for line in result.stdout.splitlines() if line.startswith("entropy")]
    assert " ".join(entropy.split()) == "entropy nats per token nan"
    write_json(tmp_path / "sft" / "config.json", {"kind": "sft", "config": {}})
    losses = "".join(
        f'{{"step": {n}, "data": {{"train/loss": {loss}}}}}\n' for n, loss in ((1, 0.5), (2, "null"))
    )
    (tmp_path / "sft" / "metrics-1.jsonl").write_text(losses)
    assert "loss   nan   ▄" in rstar2("watch", tmp_path / "sft").stdout
    assert strict(rstar2("watch", tmp_path / "sft", "--json").stdout)["loss"] is None


def test_what_was_measured_of_an_sft_and_the_chosen_step_are_shown(tmp_path: Path) -> None:
    run = tmp_path / "sft"
    write_json(run / "config.json", {"kind": "sft", "config": {}})
    lines = [
        f'{{"step": {n}, "data": {{"train/loss": 0.5, "val/loss": {loss}}}}}\n'
        for n, loss in ((1, 0.7), (2, "null"), (3, 0.6))
    ]
    (run / "metrics-1.jsonl").write_text("".join(lines))
    summary = {"accuracy": 0.25, "pass@k": {"1": 0.25, "4": 0.5}, "mean_tokens": 80.0}
    write_json(run / "held_out" / "step-3" / "results.json", {"complete": True, "summary": summary})
    write_json(run / "held_out" / "step-4" / "results.json", {"complete": False, "summary": summary})
    output = rstar2("watch", run).stdout
    assert "validation loss   step 3: 0.6   █▁" in output
    assert "accuracy on held-out problems   step 3: 0.25" in output
    assert "mean tokens on held-out problems   step 3: 80" in output
    assert "chosen" not in output
    (run / "models" / "step-3").mkdir(parents=True)
    choose(sft_recipe("laptop", ["held_out.data=x", "held_out.every=3"]), run, 3)
    data = strict(rstar2("watch", run, "--json").stdout)
    assert data["chosen"] in rstar2("watch", run).stdout
    assert data["chosen"].startswith("step 3: highest accuracy on the held-out problems")
    assert [each["validation_loss"] for each in data["measured"]] == [0.7, None, 0.6]
    page = collect(run)
    assert page.chosen == f"The model is that of {data['chosen']}."
    assert [chart["title"] for chart in page.charts][:2] == ["Loss", "Validation loss"]
    assert all(chart["marks"] == [(3, "chosen")] for chart in page.charts)


class Terminal:
    """`rstar2 watch` on a terminal of its own."""

    def __init__(self, run: Path) -> None:
        self._screen, there = pty.openpty()
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "250", "LINES": "40"}
        command = [sys.executable, "-m", "rstar2", "watch", str(run)]
        self.process = subprocess.Popen(
            command, stdin=there, stdout=there, stderr=there, env=env, start_new_session=True
        )
        os.close(there)
        self.seen = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self._screen, 65536)
            except OSError:
                return
            self.seen += part

    def shows(self, text: str) -> bool:
        return text.encode() in self.seen


@pytest.mark.slow
def test_on_a_terminal_it_follows_the_run_and_ends_with_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with open_run(run, "train", CONFIG):
        add_step(run, 1)
        terminal = Terminal(run)
        wait_until(lambda: terminal.shows("step 1 of 3"))
        add_step(run, 2)
        wait_until(lambda: terminal.shows("step 2 of 3"))
        assert terminal.process.poll() is None
    assert terminal.process.wait(TIMEOUT_S) == 0
    wait_until(lambda: terminal.shows("finished"))


@pytest.mark.slow
def test_ctrl_c_ends_the_view_and_not_the_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with open_run(run, "train", CONFIG):
        add_step(run, 1)
        terminal = Terminal(run)
        wait_until(lambda: terminal.shows("step 1 of 3"))
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.process.wait(TIMEOUT_S) == 130
        assert load_status(run)["state"] == "running"
        assert not terminal.shows("Traceback")

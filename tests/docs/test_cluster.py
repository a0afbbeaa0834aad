"""Tests that the scripts in examples/cluster complete a run. Slurm, Ray and the command are stand-ins."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import CLUSTER, StandIns, send, wait_for_exit
from support.optional import needs
from support.process_table import session
from support.waiting import wait_until

from rstar2.processes import free_port

SCRIPTS = ("keep_going.sh", "slurm.sh")
"""The scripts that restart a failed command."""


@pytest.fixture
def stand_ins(tmp_path: Path) -> Iterator[StandIns]:
    new_stand_ins = StandIns(tmp_path)
    yield new_stand_ins
    new_stand_ins.stop()


def test_each_says_how_it_is_called() -> None:
    scripts = sorted(CLUSTER.glob("*.sh"))
    assert scripts
    for script in scripts:
        assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
        assert os.access(script, os.X_OK)
        assert f"examples/cluster/{script.name} " in script.read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing() -> None:
    # Versions of shellcheck differ only in remarks below a warning.
    result = subprocess.run(
        ["shellcheck", "--severity=warning", *CLUSTER.glob("*.sh")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == ""


def test_a_node_without_a_token_is_refused() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_TOKEN"}
    result = subprocess.run(
        [CLUSTER / "ray_node.sh", "head"], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode != 0
    assert "set it to the same long random text on every machine" in result.stderr


@pytest.mark.slow
def test_a_node_starts_ray_again_until_it_is_told_to_end(stand_ins: StandIns) -> None:
    node = stand_ins.start("ray_node.sh", "head", RAY_AUTH_TOKEN="t")
    wait_until(lambda: len(stand_ins.called("ray start")) == 1)
    [ray] = [pid for pid in session(node.pid) if pid != node.pid]
    os.kill(ray, 9)
    wait_until(lambda: len(stand_ins.called("ray start")) == 2)
    send(node, "TERM")
    code, output = wait_for_exit(node)
    assert code == 130
    assert output.count("it starts again in 10 s") == 1


@pytest.mark.parametrize("script", SCRIPTS)
def test_failures_with_progress_are_repeated_until_the_run_is_done(script: str, stand_ins: StandIns) -> None:
    stand_ins.behaves("1 1", "2 1", "1 1", "1 137", "1 0")
    code, output = wait_for_exit(stand_ins.train(script, MAX_ATTEMPTS="1"))
    assert code == 0, output
    assert len(stand_ins.called("trainer")) == 5
    assert output.count("it is started again") == 4


@pytest.mark.parametrize("script", SCRIPTS)
def test_failures_without_progress_end_after_the_bound(script: str, stand_ins: StandIns) -> None:
    stand_ins.behaves("1 1", "0 1", "0 1", "0 0")
    code, output = wait_for_exit(stand_ins.train(script, MAX_ATTEMPTS="2"))
    assert code == 1
    assert len(stand_ins.called("trainer")) == 3
    assert output.count("2 attempts in a row ended without a new step, checkpoint or sample") == 1
    assert "Remove the cause, then start the same command again." in output
    # A person who starts the script again begins with a count of zero.
    code, output = wait_for_exit(stand_ins.train(script, MAX_ATTEMPTS="2"))
    assert code == 0, output


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_users_mistake_ends_at_once(script: str, stand_ins: StandIns) -> None:
    stand_ins.behaves("0 2", "0 0")
    assert wait_for_exit(stand_ins.train(script))[0] == 2
    assert len(stand_ins.called("trainer")) == 1


@pytest.mark.slow
@needs("verl")
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_judge_that_is_away_at_a_start_is_an_outage_and_the_command_starts_again(
    script: str, stand_ins: StandIns, tokenizer: Any
) -> None:
    """The script first runs the real command, whose judge does not answer."""
    model = stand_ins.folder / "model"
    tokenizer.save_pretrained(model)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").touch()
    words = ["train", "--stage", "1", "--model", str(model), "--data", "none", "--profile", "laptop"]
    words += ["--run", str(stand_ins.run), "--judge", f"http://127.0.0.1:{free_port()}"]
    stand_ins.behaves_really(words)
    stand_ins.behaves("1 0")
    (stand_ins.folder / "judge").write_text("0\n")
    code, output = wait_for_exit(stand_ins.train(script))
    assert code == 0, output
    assert "no judge answers at" in output
    assert output.count("the command ended with exit code 1; it is started again") == 1


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_command_without_a_run_folder_is_refused(script: str, stand_ins: StandIns) -> None:
    code, output = wait_for_exit(stand_ins.start(script, "rstar2", "train", "--stage", "1"))
    assert code == 2
    assert "--run" in output
    assert stand_ins.called("") == []


def test_a_job_requeues_itself_at_each_time_limit_until_the_run_is_done(stand_ins: StandIns) -> None:
    stand_ins.behaves("1 75 waits", "2 75 waits", "1 0")
    for limits in (1, 2):
        job = stand_ins.train("slurm.sh", MAX_ATTEMPTS="1")
        stand_ins.running()
        send(job, "USR1")
        assert wait_for_exit(job)[0] == 0
        assert len(stand_ins.called("scontrol requeue 7")) == limits
    assert wait_for_exit(stand_ins.train("slurm.sh", MAX_ATTEMPTS="1"))[0] == 0
    assert len(stand_ins.called("scontrol")) == 2
    assert len(stand_ins.called("trainer got SIGUSR1")) == 2
    # Each start has its own Ray and judge, with the tokens of the first.
    assert len(stand_ins.called("ray start")) == 2 * 3
    ray_tokens = {line.split()[-1] for line in stand_ins.called("ray start")}
    judge_tokens = {line.split()[-1] for line in stand_ins.called("judge up")}
    assert [len(token) for token in (*ray_tokens, *judge_tokens)] == [64, 64]
    starts = {line.split()[-1] for line in stand_ins.called("trainer train")}
    assert starts == judge_tokens
    for file in (stand_ins.run / ".cluster").glob("*-token"):
        assert file.stat().st_mode & 0o777 == 0o600


def test_time_limits_without_a_finished_step_are_bounded(stand_ins: StandIns) -> None:
    stand_ins.behaves("0 75 waits", "0 75 waits", "0 0")
    for _ in range(2):
        job = stand_ins.train("slurm.sh", MAX_ATTEMPTS="2")
        stand_ins.running()
        send(job, "USR1")
        assert wait_for_exit(job)[0] == 0
    code, output = wait_for_exit(stand_ins.train("slurm.sh", MAX_ATTEMPTS="2"))
    assert code == 1
    assert "2 attempts in a row ended without a new step" in output
    assert len(stand_ins.called("trainer train")) == 2


def test_only_the_first_signal_reaches_the_command(stand_ins: StandIns) -> None:
    stand_ins.behaves("1 75 waits")
    job = stand_ins.train("slurm.sh")
    stand_ins.running()
    send(job, "USR1")
    wait_until((stand_ins.folder / "signalled").exists)
    for name in ("USR1", "TERM"):
        send(job, name)
    assert wait_for_exit(job)[0] == 0
    assert stand_ins.called("trainer got") == ["trainer got SIGUSR1"]
    assert stand_ins.called("scontrol") == ["scontrol requeue 7"]


@pytest.mark.slow
def test_a_step_that_does_not_end_before_the_limit_is_ended_and_the_job_requeued(
    stand_ins: StandIns,
) -> None:
    stand_ins.behaves("0 75 waits-for-two")
    # Slurm's older versions do not say in the environment when a job ends.
    job = stand_ins.train("slurm.sh", SLURM_JOB_END_TIME="", JOB_END=str(int(time.time()) + 122))
    stand_ins.running()
    send(job, "USR1")
    code, output = wait_for_exit(job)
    assert code == 0
    assert "the step did not end before the time limit" in output
    assert stand_ins.called("trainer got") == ["trainer got SIGUSR1 SIGTERM"]
    assert stand_ins.called("scontrol") == ["scontrol requeue 7"]


def test_a_signal_while_ray_starts_requeues_without_starting_the_command(stand_ins: StandIns) -> None:
    (stand_ins.folder / "ray-starts-slowly").touch()
    job = stand_ins.train("slurm.sh")
    wait_until(lambda: stand_ins.called("ray start"))
    send(job, "USR1")
    assert wait_for_exit(job)[0] == 0
    assert stand_ins.called("trainer") == []
    assert stand_ins.called("scontrol") == ["scontrol requeue 7"]


def test_a_job_that_is_cancelled_saves_and_is_not_requeued(stand_ins: StandIns) -> None:
    stand_ins.behaves("1 75 waits")
    job = stand_ins.train("slurm.sh")
    stand_ins.running()
    send(job, "TERM")
    assert wait_for_exit(job)[0] == 75
    assert stand_ins.called("trainer got") == ["trainer got SIGTERM"]
    assert stand_ins.called("scontrol") == []


def test_a_refused_requeue_says_what_to_do(stand_ins: StandIns) -> None:
    stand_ins.behaves("1 75 waits")
    job = stand_ins.train("slurm.sh", REQUEUE_CODE="1")
    stand_ins.running()
    send(job, "USR1")
    code, output = wait_for_exit(job)
    assert code == 75
    assert "submit the same command again to continue the run" in output


@pytest.mark.slow
def test_a_judge_that_dies_is_started_again_with_its_token(stand_ins: StandIns) -> None:
    stand_ins.behaves("1 75 waits")
    job = stand_ins.train("slurm.sh")
    stand_ins.running()
    os.kill(int((stand_ins.folder / "judge").read_text()), 9)
    wait_until(lambda: len(stand_ins.called("judge up")) == 2)
    first, second = stand_ins.called("judge up")
    assert first == second
    send(job, "TERM")
    assert "the judge ended with exit code 137; it starts again" in wait_for_exit(job)[1]


@pytest.mark.parametrize(("name", "code"), [("INT", 130), ("TERM", 75), ("USR1", 75)])
def test_without_slurm_a_signal_ends_the_command_and_the_script(
    name: str, code: int, stand_ins: StandIns
) -> None:
    stand_ins.behaves(f"1 {code} waits", "1 0")
    script = stand_ins.train("keep_going.sh")
    stand_ins.running()
    send(script, name)
    assert wait_for_exit(script)[0] == code
    assert stand_ins.called("trainer got") == [f"trainer got SIG{name}"]


def test_without_slurm_the_command_waits_for_the_nodes_and_the_judge(stand_ins: StandIns) -> None:
    stand_ins.behaves("1 1", "1 0")
    (stand_ins.folder / "judge").write_text("0\n")
    script = stand_ins.train("keep_going.sh", RAY_ADDRESS="127.0.0.1:6379", RSTAR2_JUDGE="http://judge")
    code, output = wait_for_exit(script)
    assert code == 0, output
    assert len(stand_ins.called("trainer train")) == 2


@pytest.mark.slow
def test_without_slurm_a_cluster_that_comes_up_late_is_waited_for_in_words(stand_ins: StandIns) -> None:
    stand_ins.behaves("1 1", "1 0")
    (stand_ins.folder / "judge").write_text("0\n")
    # At first the cluster does not answer. Before the second start, a node is missing for a moment.
    stand_ins.cluster_has("", "[8.0, 8.0]", "[8.0]", "[8.0, 8.0]")
    script = stand_ins.train("keep_going.sh", RAY_ADDRESS="127.0.0.1:6379", RSTAR2_JUDGE="http://judge")
    code, output = wait_for_exit(script)
    assert code == 0, output
    for count, nodes_needed in ((0, 1), (1, 2)):
        message = f"waiting for the Ray cluster at 127.0.0.1:6379, which has {count} of {nodes_needed} nodes"
        assert output.count(message) == 1, output
    assert (stand_ins.folder / "cluster").read_text() == ""


@pytest.mark.slow
def test_a_job_on_one_node_waits_for_a_cluster_that_does_not_answer(stand_ins: StandIns) -> None:
    stand_ins.behaves("1 0")
    stand_ins.cluster_has("", "", "[8.0]")
    code, output = wait_for_exit(
        stand_ins.train("slurm.sh", SLURM_JOB_NUM_NODES="1", SLURM_JOB_NODELIST="node1")
    )
    assert code == 0, output
    assert (stand_ins.folder / "cluster").read_text() == "", "Ray was asked until it answered"


def test_the_runs_folder_has_the_users_permissions_and_the_tokens_are_private(stand_ins: StandIns) -> None:
    stand_ins.behaves("1 0")
    assert wait_for_exit(stand_ins.train("slurm.sh"))[0] == 0
    like = stand_ins.folder / "like"
    like.mkdir()
    assert stand_ins.run.stat().st_mode == like.stat().st_mode
    assert (stand_ins.run / ".cluster").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("options", "planned_seconds", "seconds"),
    [
        ([], [600.0, 5600.4], 5900),  # the longest of the stages, and 5 minutes
        (["--time=1-00:00:00"], [80_000.0], 43_200),  # half of the time limit
        (["--time", "4:00:00"], [100.0], 400),
        (["-t", "90"], [7200.0], 2700),
        (["-t30:30"], [7200.0], 915),
        (["--time=3-12"], [200_000.0], 65_535),  # the most that Slurm takes
    ],
)
def test_a_job_is_signalled_as_early_as_the_plan_says(
    options: list[str], planned_seconds: list[float], seconds: int, stand_ins: StandIns
) -> None:
    stand_ins.plans(*planned_seconds)
    train = [
        "rstar2",
        "train",
        "--stage=1..3",
        "--model",
        "sft",
        "--data",
        "rl",
        "--set",
        "a=1",
        "--run",
        "r",
    ]
    code, output = wait_for_exit(stand_ins.start("submit.sh", "--nodes", "8", *options, "--", *train))
    assert code == 0, output
    signal, *rest = stand_ins.called("")
    assert signal == f"--signal=B:USR1@{seconds}"
    assert rest == ["--nodes", "8", *options, str(CLUSTER / "slurm.sh"), *train]
    assert stand_ins.words("plan-words") == ["--stage=1..3", "--model", "sft", "--set", "a=1", "--json"]
    limit = {"-t": 5400, "-t30:30": 1830}.get(options[0] if options else "", 10**9)
    assert ("warning: a step and its checkpoint are planned" in output) == (planned_seconds[0] >= limit)


def test_a_time_limit_that_is_none_is_refused(stand_ins: StandIns) -> None:
    stand_ins.plans(1.0)
    code, output = wait_for_exit(
        stand_ins.start("submit.sh", "--time=soon", "--", "rstar2", "train", "--run", "r")
    )
    assert code == 2
    assert "--time soon is not a time limit" in output


def test_sft_has_the_signal_of_the_script(stand_ins: StandIns) -> None:
    assert wait_for_exit(stand_ins.start("submit.sh", "--", "rstar2", "sft", "--run", "r"))[0] == 0
    assert stand_ins.called("")[0] == "--signal=B:USR1@1800"

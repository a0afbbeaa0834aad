"""A rehearsal of the recipe's three stages on 64 H100: a Slurm job completes it despite the faults of a week, in
minutes.

`examples/cluster/slurm.sh`, the pipeline, the launcher, VERL's queue, our sampler, checkpoints and signals are real.
Slurm, Ray's nodes and VERL's trainer are stand-ins: see `support.train.rehearsed_verl`. The step times of `rstar2 plan`
are divided by `SCALE`. The time limit for a hung trainer is not, because processes start at their own pace.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cluster import StandIns, send, wait_for_exit
from support.model_configs import PUBLISHED
from support.optional import needs
from support.small_disk import resize, small_disk
from support.train.rehearsed_run import STEPS
from support.train.rehearsed_verl import LONG_UPDATE, REHEARSAL
from support.waiting import wait_until

from rstar2.data import builtin
from rstar2.data.parquet import rl_rows, write_parquet
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.model_shape import shape_of
from rstar2.train.estimate.report import estimate_run
from rstar2.train.recipe_files import stage_recipes
from rstar2.train.records.steps import step_metrics

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(3600), needs("verl")]

SCALE = 1000
HUNG_AFTER_S = 120.0
"""Longer than a process of the rehearsal usually needs to start. During its start it gives no sign of life."""
FAULTS = {
    "stage1 4": "kill in rollouts",
    "stage1 8": "hung update",
    "stage1 17": "long update",
    "stage1 25": "engine fails",
    "stage2 3": "kill in the update",
    "stage3 4": "kill of the command",
}
LIMITS = {"stage1": 12, "stage3": 8}
"""For each stage, the step after which Slurm signals that its time limit is near."""
LONGEST_S = 1800.0
"""Upper limit of the seconds for the rehearsal, on a busy machine."""
TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def rehearsal(tmp_path: Path) -> Path:
    """A folder with a model, problems, faults, and durations: those of `rstar2 plan`, divided by `SCALE`."""
    folder = tmp_path / "rehearsal"
    folder.mkdir()
    size = TinyModel(vocab=512, hidden=32, layers=1, heads=2)
    make_tiny_model(folder / "model", size, builtin.traces(1, 20, {}), builtin.FORMAT, seed=1)
    write_parquet(folder / "problems.parquet", rl_rows(builtin.training(1, 80), 4, "rehearsal"))
    (folder / "faults.json").write_text(json.dumps(FAULTS))
    estimate = estimate_run(
        shape_of(PUBLISHED["Qwen3-14B"][0], "Qwen3-14B"), stage_recipes([1, 2, 3], "64xh100", [])
    )
    durations: dict[str, Any] = {
        f"stage{number}": {
            "rollouts_s": each.step.generate_s / SCALE,
            "update_s": each.step.update_s / SCALE,
        }
        for number, each in estimate.stages.items()
    }
    durations |= {"hung_after_s": HUNG_AFTER_S, "save_every_s": 1800 / SCALE}
    (folder / "durations.json").write_text(json.dumps(durations))
    return folder


@pytest.fixture
def slurm(tmp_path: Path, rehearsal: Path) -> Iterator[StandIns]:
    """Slurm's stand-ins, with the rehearsal as the command."""
    stand_ins = StandIns(tmp_path)
    (tmp_path / "trainer.py").write_text(
        "import os, sys\n"
        "os.execv(sys.executable, [sys.executable, '-m', 'support.train.rehearsed_run', *sys.argv[1:]])\n"
    )
    stand_ins.env |= {REHEARSAL: str(rehearsal), "PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    yield stand_ins
    stand_ins.stop()


def wait_for_step(stage: Path, step: int, job: subprocess.Popen[str]) -> None:
    wait_until(lambda: max(step_metrics(stage), default=0) >= step or job.poll() is not None, LONGEST_S)


def test_the_stages_end_without_anybody_and_train_on_no_fault(slurm: StandIns, rehearsal: Path) -> None:
    output = ""
    job = slurm.train("slurm.sh")
    for requeues, (stage, step) in enumerate(LIMITS.items(), 1):
        wait_for_step(slurm.run / stage, step, job)
        send(job, "USR1")
        code, stderr = wait_for_exit(job)
        output += stderr
        assert code == 0, output
        assert len(slurm.called("scontrol requeue 7")) == requeues
        job = slurm.train("slurm.sh")
    code, stderr = wait_for_exit(job, LONGEST_S)
    output += stderr
    assert code == 0, output

    assert {path.name: path.read_text() for path in (rehearsal / "struck").iterdir()} == FAULTS
    assert [(slurm.run / f"stage{number}" / "model").is_dir() for number in STEPS] == [True, True, True]
    trained = [json.loads(line) for line in (rehearsal / "trained.jsonl").read_text().splitlines()]
    for number, steps in STEPS.items():
        assert {each["step"] for each in trained if each["stage"] == f"stage{number}"} == {
            *range(1, steps + 1)
        }
    # Half of all rollouts are right even though an engine loses some, because the failed step was rolled out again.
    assert {each["metrics"]["rstar2/pass_rate"] for each in trained} == {0.5}
    assert {each["kept"] for each in trained} == {128}
    [failed] = [each for each in trained if each["metrics"]["rstar2/discarded_rollouts"]]
    assert (failed["stage"], failed["step"]) == ("stage1", 25)
    assert "rollouts that failed" in output
    assert "the engine died" in output

    # Only the hung update was stopped. The long update took longer than the limit without a message. On a very busy
    # machine, a trainer that loads its model for too long is stopped too, and started again.
    assert LONG_UPDATE > 1
    stopped = re.findall(r"it gave no sign of life, [^;]*; ([^.,]*)", output)
    assert stopped.count("update") == 1, output
    assert set(stopped) <= {"update", "loading the model"}, output
    assert output.count("it is started again") == 3 + len(stopped), (
        "three kills, and the trainers that were stopped"
    )
    assert output.count("USR1: training saves at the end of the current step") == 2


@pytest.mark.parametrize(
    ("faults", "size_mib", "message"),
    [
        ({"stage1 3": "wrong token"}, 400, "the judge at http://judge refused the token"),
        # A checkpoint needs more space than this beside its weights.
        ({}, 50, "not enough disk space for the checkpoint of step 1: it needs 64 MiB"),
    ],
    ids=["wrong token", "full disk"],
)
def test_what_starting_again_cannot_help_ends_the_job_with_one_message(
    slurm: StandIns, rehearsal: Path, faults: dict[str, str], size_mib: int, message: str
) -> None:
    (rehearsal / "faults.json").write_text(json.dumps(faults))
    durations = json.loads((rehearsal / "durations.json").read_text())
    # Every step is saved.
    (rehearsal / "durations.json").write_text(json.dumps(durations | {"save_every_s": 1e-3}))
    with small_disk(slurm.run, size_mib << 20) as disk:
        code, output = wait_for_exit(slurm.train("slurm.sh"), LONGEST_S)
        assert code == 2, output
        assert output.count(message) == 1, output
        assert output.count("error: ") == 1, output
        assert "it is started again" not in output
        assert len(slurm.called("scontrol")) == 0
        steps_done = max(step_metrics(slurm.run / "stage1"), default=0)
        resize(disk, 400 << 20)  # the user now gives the right token
        job = slurm.train("slurm.sh")
        wait_for_step(slurm.run / "stage1", steps_done + 2, job)
        send(job, "TERM")
        code, output = wait_for_exit(job)
        assert code == 75, output
        assert max(step_metrics(slurm.run / "stage1")) >= steps_done + 2

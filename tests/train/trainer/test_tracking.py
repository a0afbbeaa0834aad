"""Tests of trackers: names of runs, folders, and checks before a run begins."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest
from support.optional import needs

from rstar2.errors import UserError
from rstar2.loop.trace import Trace
from rstar2.train.command import stage_command, stage_commands, worker_environment
from rstar2.train.recipe_files import stage_recipe, stage_recipes
from rstar2.train.trainer.tracking import (
    TraceTracker,
    Tracker,
    check_trackers,
    run_name,
    tracker_environment,
    tracker_keys,
)


def test_a_run_is_named_by_run_and_phase(tmp_path: Path) -> None:
    assert run_name(tmp_path / "night" / "stage2") == "night-stage2"
    assert run_name(tmp_path / "night") == "night", "`rstar2 sft` trains in the run's folder itself"
    assert run_name(tmp_path / "sft") == "sft"
    (tmp_path / "config.json").touch()
    assert run_name(tmp_path / "sft") == f"{tmp_path.name}-sft", "the step belongs to a phase of the demo"
    keys = tracker_keys(["console", "wandb"], tmp_path / "night" / "stage2")
    assert keys["trainer.logger"] == ["file", "console", "wandb"], "watch and report read this file"


def test_a_phase_continues_its_own_run_and_its_steps_come_after_those_of_the_stages_before(
    tmp_path: Path,
) -> None:
    run = tmp_path / "night"
    one = tracker_environment(["wandb"], run / "stage1", {})
    two = tracker_environment(
        ["wandb", "tensorboard"], run / "stage2", {"WANDB_DIR": "/mine"}, first_step=300
    )
    assert (one["WANDB_RESUME"], one["WANDB_RUN_GROUP"], one["WANDB_DIR"]) == ("allow", "night", str(run))
    assert (two["WANDB_DIR"], two["TENSORBOARD_DIR"]) == ("/mine", str(run / "tensorboard" / "night-stage2"))
    recipes = stage_recipes([1, 2, 3], "laptop", ["stage1.steps=30", "stage2.steps=12"])
    firsts = [command.env["RSTAR2_FIRST_STEP"] for _, _, command in stage_commands(recipes, "m", run)]
    assert firsts == ["0", "30", "42"]


def test_workers_on_other_nodes_are_given_it_too(tmp_path: Path) -> None:
    recipe = stage_recipe(2, "64xh100", ['trackers=["wandb"]'])
    command = stage_command(recipe, tmp_path / "night" / "stage2", "m", first_step=300)
    assert any(word.endswith("env_vars.RSTAR2_FIRST_STEP='300'") for word in command.argv)
    assert any("env_vars.WANDB_RUN_GROUP='night'" in word for word in command.argv)


def test_the_sampler_is_told_where_traces_go_and_under_which_name(tmp_path: Path) -> None:
    recipe = stage_recipe(2, "laptop", ['trace_trackers=["mlflow"]'])
    command = stage_command(recipe, tmp_path / "night" / "stage2", "m")
    [kwargs] = [word for word in command.argv if word.startswith("+trainer.v1.sampler.sampler_kwargs=")]
    assert "trace_trackers:['mlflow']" in kwargs
    assert "run:'night-stage2'" in kwargs
    assert command.env["MLFLOW_TRACKING_URI"] == f"sqlite:///{tmp_path / 'night' / 'mlflow.db'}"


def test_wandb_without_a_key_is_refused_and_offline_needs_none(tmp_path: Path) -> None:
    alone = {"NETRC": str(tmp_path / "netrc")}
    with pytest.raises(UserError, match="no API key for Weights & Biases") as excinfo:
        check_trackers(["wandb"], environ=alone)
    assert "WANDB_MODE=offline" in excinfo.value.hint
    check_trackers(["wandb"], environ={**alone, "WANDB_MODE": "offline"})
    check_trackers(["wandb"], environ={**alone, "WANDB_API_KEY": "k"})
    check_trackers(["console"], environ=alone)
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password k\n")
    (tmp_path / "netrc").chmod(0o600)
    check_trackers(["wandb"], environ=alone)
    with pytest.raises(UserError, match="no API key"):
        check_trackers(["wandb"], environ={**alone, "WANDB_BASE_URL": "https://wandb.mine.org"})


CREDENTIALS: dict[Tracker | TraceTracker, list[dict[str, str]]] = {
    "weave": [{"WANDB_API_KEY": "k"}],
    "swanlab": [{"SWANLAB_API_KEY": "k"}, {"SWANLAB_MODE": "local"}],
    "clearml": [
        {"CLEARML_API_ACCESS_KEY": "k", "CLEARML_API_SECRET_KEY": "s"},
        {"CLEARML_OFFLINE_MODE": "1"},
    ],
    "vemlp_wandb": [
        {"VOLC_ACCESS_KEY_ID": "k", "VOLC_SECRET_ACCESS_KEY": "s", "MLP_TRACKING_REGION": "cn-beijing"}
    ],
    "rl_insight": [{"RL_INSIGHT_SERVER_URL": "http://127.0.0.1:18080"}],
}


@pytest.mark.parametrize(("name", "enough"), CREDENTIALS.items())
def test_each_tracker_is_refused_without_its_credentials(
    name: Any, enough: list[dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rstar2.train.trainer.tracking._installed", lambda name: True)
    nobody = {
        "NETRC": str(tmp_path / "netrc"),
        "SWANLAB_SAVE_DIR": str(tmp_path),
        "CLEARML_CONFIG_FILE": str(tmp_path / "clearml.conf"),
    }
    metrics, traces = ((), (name,)) if name in get_args(TraceTracker) else ((name,), ())
    with pytest.raises(UserError, match=f"rackers has {name}, but"):
        check_trackers(metrics, traces, environ=nobody)
    for credentials in enough:
        check_trackers(metrics, traces, environ=nobody | credentials)


def test_local_trackers_write_into_the_runs_folder_unless_the_user_says_where(tmp_path: Path) -> None:
    folder = tmp_path / "night" / "stage1"
    env = tracker_environment(["mlflow", "trackio", "swanlab"], folder, {"MLFLOW_TRACKING_URI": "http://m"})
    assert (env["MLFLOW_TRACKING_URI"], env["TRACKIO_DIR"], env["SWANLAB_LOG_DIR"]) == (
        "http://m",
        str(tmp_path / "night" / "trackio"),
        str(tmp_path / "night" / "swanlab"),
    )
    assert tracker_environment(["rl_insight"], folder, {})["VERL_RL_INSIGHT_ENABLE"] == "1"


def test_a_trackers_key_reaches_workers_in_the_file_that_only_the_user_can_read() -> None:
    plain, secret = worker_environment(
        {
            "MLFLOW_TRACKING_URI": "http://me:pw@m",
            "SWANLAB_API_KEY": "k",
            "CLEARML_WEB_HOST": "h",
            "HOME": "/",
        }
    )
    assert plain == {"CLEARML_WEB_HOST": "h"}
    assert secret == {"MLFLOW_TRACKING_URI": "http://me:pw@m", "SWANLAB_API_KEY": "k"}


def test_a_tracker_that_is_not_installed_or_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rstar2.train.trainer.tracking.find_spec", lambda name: None)
    with pytest.raises(UserError, match="trackers has tensorboard, which is not installed") as excinfo:
        check_trackers(["tensorboard"], environ={})
    assert "pip install tensorboard" in excinfo.value.hint
    with pytest.raises(UserError, match="trace_trackers has weave, which is not installed"):
        check_trackers([], ["weave"], environ={})
    with pytest.raises(UserError, match="module volcengine_ml_platform"):
        check_trackers(["vemlp_wandb"], environ={})
    with pytest.raises(UserError, match="trackers"):
        stage_recipe(1, None, ['trackers=["excel"]'])


def test_rl_insight_is_refused_for_sft_which_has_no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rstar2.train.trainer.tracking._installed", lambda name: True)
    with pytest.raises(UserError, match="SFT runs without Ray"):
        check_trackers(["rl_insight"], sft=True, environ={"RL_INSIGHT_SERVER_URL": "http://h"})


def test_a_folder_that_is_called_like_a_package_is_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "swanlab").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="swanlab, which is not installed"):
        check_trackers(["swanlab"], environ={"SWANLAB_MODE": "local"})


@pytest.mark.slow
@needs("verl")
def test_traces_are_sent_before_verl_finishes_its_trackers(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.utils.tracking import Tracking

    import rstar2.train.verl.output.trackers as ours

    order: list[str] = []

    class Tracker:
        def finish(self) -> None:
            order.append("metrics")

    tracking = Tracking.__new__(Tracking)
    tracking.logger = {"trackio": Tracker()}
    monkeypatch.setattr(ours, "before_finish", [lambda: order.append("traces")])
    tracking.finish(exit_code=0)
    tracking.finish()
    assert order == ["traces", "metrics"]


@pytest.mark.slow
@needs("verl")
def test_the_trackers_are_all_that_verl_offers() -> None:
    from verl.utils.tracking import Tracking

    assert {*get_args(Tracker), "file"} == set(Tracking.supported_backend)


@pytest.mark.slow
@needs("verl")
def test_a_phase_is_one_run_of_wandb_and_a_new_folder_of_the_same_path_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wandb = ModuleType("wandb")
    starts: list[str] = []
    wandb.__dict__.update(init=lambda **_: starts.append(os.environ["WANDB_RUN_ID"]), finish=lambda **_: None)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    from verl.utils.tracking import Tracking

    import rstar2.train.verl.output.trackers as ours

    stage = tmp_path / "night" / "stage1"
    stage.mkdir(parents=True)
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(stage / "metrics-1.jsonl"))

    def start() -> None:
        monkeypatch.delenv("WANDB_RUN_ID", raising=False)
        Tracking("rstar2", "night-stage1", ["wandb"]).finish()

    start()
    start()
    (stage / ours.RUNS_FILE).unlink()
    start()
    assert starts[0] == starts[1] != starts[2]
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    Tracking("rstar2", "night-stage1", ["wandb"]).finish()
    assert starts[3] == "mine"


@pytest.mark.slow
@needs("verl")
def test_a_tracker_that_does_not_take_traces_is_counted_and_training_goes_its_way(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rstar2.train.verl.output import traces as module

    sent_steps: list[int] = []

    starts, finished = [], []

    def broken(run: str) -> module.Sink:
        starts.append(run)
        raise ConnectionError("no server")

    def halfway(run: str) -> module.Sink:
        def send(trace: Trace, step: int) -> None:
            if trace.sample:
                raise ConnectionError("gone")
            sent_steps.append(step)

        return module.Sink(send, lambda: finished.append(run))

    monkeypatch.setattr(module, "_START", {"mlflow": broken, "trackio": halfway})
    monkeypatch.setenv("RSTAR2_FIRST_STEP", "300")
    traces = [Trace.begun([1], "p", sample).model_copy(update={"step": 7}) for sample in range(2)]
    monkeypatch.setattr(module, "before_finish", [])
    sender = module.TraceSender(["mlflow", "trackio"], "r")
    assert sender.send(traces) == 2 + 1
    assert sender.send(traces[:1]) == 1
    assert sent_steps == [307, 307]
    assert "mlflow did not start" in caplog.text
    assert "1 traces were not sent to trackio" in caplog.text
    assert starts == ["r"], "a failing start may take minutes, so it is not repeated at every step"
    [finish] = module.before_finish
    finish()
    assert finished == ["r"]


@pytest.mark.slow
@needs("verl")
def test_trackers_count_from_the_stages_before_and_our_own_file_from_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from verl.utils.tracking import Tracking

    import rstar2.train.verl.output.trackers  # noqa: F401  (has its effect when it is imported)

    records: list[tuple[str, int]] = []

    class Tracker:
        def __init__(self, name: str) -> None:
            self.name = name

        def log(self, data: dict[str, float], step: int) -> None:
            records.append((self.name, step))

    tracking = Tracking.__new__(Tracking)
    tracking.logger = {name: Tracker(name) for name in ("file", "wandb")}
    tracking._finished = True
    monkeypatch.setenv("RSTAR2_FIRST_STEP", "300")
    tracking.log({"x": 1.0}, step=7)
    tracking.log({"x": 1.0}, step=8, backend=["wandb"])
    assert records == [("file", 7), ("wandb", 307), ("wandb", 308)]

"""Gives each phase one run in each tracker, with steps counted over all stages. Every VERL process imports this module.

In our own metrics file, in contrast, steps are counted from the beginning of the stage. The ids of a phase's runs are
in `tracker_runs.json` in the phase's folder. A phase that is started again continues its runs. A phase in a new folder
gets new runs, even if the folder has the same name as an earlier folder.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from verl.utils import tracking
from verl.utils.tracking import Tracking

from rstar2.errors import Failure
from rstar2.files import write_json
from rstar2.train.trainer.tracking import FIRST_STEP

RUNS_FILE = "tracker_runs.json"
_METRICS_FILE = "VERL_FILE_LOGGER_PATH"
"""The environment variable that contains the path of our own metrics file, which is in the phase's folder."""
_METRICS_LOGGER = "file"
_open_trackers, _finish_trackers = Tracking.__init__, Tracking.finish
before_finish: list[Callable[[], None]] = []
"""Functions that are called once, when VERL finishes its trackers at the end of training."""


def first_step() -> int:
    """Returns the number of steps of all earlier stages.

    The function reads the environment at each call, because a forked process imports this module before its environment
    variables are set.
    """
    return int(os.environ.get(FIRST_STEP, "0"))


def start_mlflow(project: str) -> None:
    """Connects MLflow to the server or file at MLFLOW_TRACKING_URI. The project's name becomes the name of MLflow's
    experiment.

    If MLFLOW_TRACKING_URI names a file, artifacts are stored in the folder of that file. By itself, MLflow would store
    artifacts in the current folder.
    """
    import mlflow

    uri = os.environ["MLFLOW_TRACKING_URI"]
    mlflow.set_tracking_uri(uri)
    if uri.startswith("sqlite:///") and mlflow.get_experiment_by_name(project) is None:
        artifacts = Path(uri.removeprefix("sqlite:///")).with_name("mlflow-artifacts")
        mlflow.create_experiment(project, artifact_location=artifacts.as_uri())
    mlflow.set_experiment(project)


def start_trackio(project: str, name: str, config: Any = None) -> None:
    """Starts a trackio run, or continues the phase's run if the phase was started before."""
    import trackio
    from trackio import context_vars

    if context_vars.current_run.get() is None:
        resume = "allow" if _run_ids().get("trackio") else "never"
        trackio.init(project=project, name=name, config=config, resume=resume)
        _save_run("trackio", name)


def _run_ids() -> dict[str, str]:
    """Returns a dict from each tracker to the id of the phase's run in it."""
    path = Path(os.environ[_METRICS_FILE]).with_name(RUNS_FILE)
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _save_run(tracker: str, run: str) -> None:
    write_json(Path(os.environ[_METRICS_FILE]).with_name(RUNS_FILE), {**_run_ids(), tracker: run})


def _open(
    self: Any,
    project_name: str,
    experiment_name: str,
    default_backend: str | list[str] = "console",
    config: Any = None,
) -> None:
    """Replaces VERL's `Tracking.__init__`, so that each tracker has one run per phase.

    Raises:
        Failure: a tracker did not start. VERL itself would only log the error if MLflow did not start, and train
            without it.
    """
    names = [default_backend] if isinstance(default_backend, str) else list(default_backend)
    for name, variable in (("wandb", "WANDB_RUN_ID"), ("swanlab", "SWANLAB_RUN_ID")):
        # If the user has set the variable, it does not change.
        if name in names and variable not in os.environ:
            # SwanLab accepts ids of up to 21 characters.
            os.environ[variable] = _run_ids().get(name) or secrets.token_hex(11)[:21]
            _save_run(name, os.environ[variable])
    if "trackio" in names:
        start_trackio(project_name, experiment_name, config)
    own_mlflow_run = "mlflow" in names and "MLFLOW_RUN_ID" not in os.environ
    if own_mlflow_run:
        start_mlflow(project_name)
        if run := _run_ids().get("mlflow"):
            os.environ["MLFLOW_RUN_ID"] = run
            # MLflow rejects a parameter whose value has changed since the run began, for example a time limit.
            tracking._compute_mlflow_params_from_objects = lambda config: {}
    _open_trackers(self, project_name, experiment_name, default_backend, config)
    if missing := [name for name in names if name not in self.logger]:
        raise Failure(
            f"the tracker {missing[0]} did not start; the lines above in this log say why",
            "Correct the tracker's settings, or remove the tracker from `trackers`.",
        )
    if own_mlflow_run:
        import mlflow

        active = mlflow.active_run()
        assert active is not None, "VERL has started a run"
        _save_run("mlflow", active.info.run_id)


def _log(self: Any, data: dict[str, Any], step: int, backend: Any = None) -> None:
    """Replaces VERL's `Tracking.log`, to count steps over all stages."""
    first = first_step()
    for name, tracker in self.logger.items():
        if backend is None or name in backend:
            tracker.log(data=data, step=step if name == _METRICS_LOGGER else step + first)


def _finish(self: Any, exit_code: int = 0) -> None:
    """Wraps VERL's `Tracking.finish`, to call the functions in `before_finish`."""
    while before_finish:
        before_finish.pop()()
    _finish_trackers(self, exit_code)


Tracking.__init__ = _open
Tracking.log = _log
Tracking.finish = _finish

"""Loaded into every VERL process: makes each phase one run in a tracker, with steps counted over all stages.

Our own metrics file counts the steps of its stage. The ids of a phase's runs are in `tracker_runs.json` of its folder,
so that a phase that is started again continues them, and a new run in a folder of the same name gets new ones.
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
"""Environment variable with our own metrics file, which is in the phase's folder."""
_OWN = "file"
_open_trackers, _finish_trackers = Tracking.__init__, Tracking.finish
before_finish: list[Callable[[], None]] = []
"""Called once when VERL finishes its trackers, at the end of training."""


def first_step() -> int:
    """Steps of the stages before; read when it is needed: a forked process imports this before it has its variables."""
    return int(os.environ.get(FIRST_STEP, "0"))


def start_mlflow(project: str) -> None:
    """Point MLflow to the server or file that MLFLOW_TRACKING_URI names, with the project as the experiment.

    Files that belong to an experiment in a file of ours go beside it; MLflow would use the current folder.
    """
    import mlflow

    uri = os.environ["MLFLOW_TRACKING_URI"]
    mlflow.set_tracking_uri(uri)
    if uri.startswith("sqlite:///") and mlflow.get_experiment_by_name(project) is None:
        artifacts = Path(uri.removeprefix("sqlite:///")).with_name("mlflow-artifacts")
        mlflow.create_experiment(project, artifact_location=artifacts.as_uri())
    mlflow.set_experiment(project)


def start_trackio(project: str, name: str, config: Any = None) -> None:
    """Start trackio's run, or continue that of an earlier start of the phase."""
    import trackio
    from trackio import context_vars

    if context_vars.current_run.get() is None:
        resume = "allow" if _runs().get("trackio") else "never"
        trackio.init(project=project, name=name, config=config, resume=resume)
        _remember("trackio", name)


def _runs() -> dict[str, str]:
    """The ids of the phase's runs by tracker."""
    path = Path(os.environ[_METRICS_FILE]).with_name(RUNS_FILE)
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _remember(tracker: str, run: str) -> None:
    write_json(Path(os.environ[_METRICS_FILE]).with_name(RUNS_FILE), {**_runs(), tracker: run})


def _open(
    self: Any,
    project_name: str,
    experiment_name: str,
    default_backend: str | list[str] = "console",
    config: Any = None,
) -> None:
    """Stands in for VERL's `Tracking.__init__`.

    Raises:
        Failure: a tracker did not start; VERL only logs that of MLflow's and trains without it.
    """
    names = [default_backend] if isinstance(default_backend, str) else list(default_backend)
    for name, variable in (("wandb", "WANDB_RUN_ID"), ("swanlab", "SWANLAB_RUN_ID")):
        # A variable of the user's stays.
        if name in names and variable not in os.environ:
            # SwanLab takes 21 characters.
            os.environ[variable] = _runs().get(name) or secrets.token_hex(11)[:21]
            _remember(name, os.environ[variable])
    if "trackio" in names:
        start_trackio(project_name, experiment_name, config)
    own_mlflow_run = "mlflow" in names and "MLFLOW_RUN_ID" not in os.environ
    if own_mlflow_run:
        start_mlflow(project_name)
        if run := _runs().get("mlflow"):
            os.environ["MLFLOW_RUN_ID"] = run
            # MLflow refuses a parameter that has another value at a later start, such as a time limit.
            tracking._compute_mlflow_params_from_objects = lambda config: {}
    _open_trackers(self, project_name, experiment_name, default_backend, config)
    if missing := [name for name in names if name not in self.logger]:
        raise Failure(
            f"the tracker {missing[0]} did not start; the lines above say why",
            "Correct its settings, or leave it out of trackers.",
        )
    if own_mlflow_run:
        import mlflow

        active = mlflow.active_run()
        assert active is not None, "VERL has started a run"
        _remember("mlflow", active.info.run_id)


def _log(self: Any, data: dict[str, Any], step: int, backend: Any = None) -> None:
    """Stands in for VERL's `Tracking.log`."""
    first = first_step()
    for name, tracker in self.logger.items():
        if backend is None or name in backend:
            tracker.log(data=data, step=step if name == _OWN else step + first)


def _finish(self: Any, exit_code: int = 0) -> None:
    """Stands in for VERL's `Tracking.finish`."""
    while before_finish:
        before_finish.pop()()
    _finish_trackers(self, exit_code)


Tracking.__init__ = _open
Tracking.log = _log
Tracking.finish = _finish

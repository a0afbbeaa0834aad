"""Trackers: what runs are called, where they write, and that what cannot work is refused before a run begins."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.optional import needs

from rstar2.errors import UserError
from rstar2.train.command import stage_command, stage_commands
from rstar2.train.recipe_files import stage_recipe, stage_recipes
from rstar2.train.trainer.tracking import check_trackers, run_name, tracker_environment, tracker_keys


def test_a_run_is_named_by_run_and_phase(tmp_path: Path) -> None:
    assert run_name(tmp_path / "night" / "stage2") == "night-stage2"
    assert run_name(tmp_path / "night") == "night", "`rstar2 sft` trains in the run's folder itself"
    assert run_name(tmp_path / "sft") == "sft"
    (tmp_path / "config.json").touch()
    assert run_name(tmp_path / "sft") == f"{tmp_path.name}-sft", "a phase of the demo"
    keys = tracker_keys(["console", "wandb"], tmp_path / "night" / "stage2")
    assert keys["trainer.logger"] == ["file", "console", "wandb"], "the file is what watch and report read"


def test_a_phase_continues_its_own_run_and_its_steps_come_after_those_of_the_stages_before(
    tmp_path: Path,
) -> None:
    run = tmp_path / "night"
    one, again = (tracker_environment(["wandb"], run / "stage1", {}) for _ in range(2))
    two = tracker_environment(
        ["wandb", "tensorboard"], run / "stage2", {"WANDB_DIR": "/mine"}, first_step=300
    )
    assert one == again
    assert one["WANDB_RUN_ID"] != two["WANDB_RUN_ID"]
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


def test_wandb_without_a_key_is_refused_and_offline_needs_none(tmp_path: Path) -> None:
    alone = {"NETRC": str(tmp_path / "netrc")}
    with pytest.raises(UserError, match="no API key for Weights & Biases") as caught:
        check_trackers(["wandb"], alone)
    assert "WANDB_MODE=offline" in caught.value.hint
    check_trackers(["wandb"], {**alone, "WANDB_MODE": "offline"})
    check_trackers(["wandb"], {**alone, "WANDB_API_KEY": "k"})
    check_trackers(["console"], alone)
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password k\n")
    (tmp_path / "netrc").chmod(0o600)
    check_trackers(["wandb"], alone)
    with pytest.raises(UserError, match="no API key"):
        check_trackers(["wandb"], {**alone, "WANDB_BASE_URL": "https://wandb.mine.org"})


def test_a_tracker_that_is_not_installed_or_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rstar2.train.trainer.tracking.find_spec", lambda name: None)
    with pytest.raises(UserError, match="trackers has tensorboard, which is not installed") as caught:
        check_trackers(["tensorboard"], {})
    assert "pip install tensorboard" in caught.value.hint
    with pytest.raises(UserError, match="trackers"):
        stage_recipe(1, None, ['trackers=["mlflow"]'])


@pytest.mark.slow
@needs("verl")
def test_trackers_count_from_the_stages_before_and_our_own_file_from_1(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from verl.utils.tracking import Tracking

    import rstar2.train.verl.output.trackers  # noqa: F401  (has its effect when it is imported)

    logged: list[tuple[str, int]] = []

    class Tracker:
        def __init__(self, name: str) -> None:
            self.name = name

        def log(self, data: dict[str, float], step: int) -> None:
            logged.append((self.name, step))

    tracking = Tracking.__new__(Tracking)
    tracking.logger = {name: Tracker(name) for name in ("file", "wandb")}
    tracking._finished = True
    monkeypatch.setenv("RSTAR2_FIRST_STEP", "300")
    tracking.log({"x": 1.0}, step=7)
    tracking.log({"x": 1.0}, step=8, backend=["wandb"])
    assert logged == [("file", 7), ("wandb", 307), ("wandb", 308)]

"""Tests of checkpoints that are saved in addition to the regular steps."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rstar2.train.trainer import saving
from rstar2.train.trainer.saving import STOP_FILE, AtStepEnd, SaveTiming


def test_a_step_is_saved_when_time_is_up_or_the_user_wants_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(saving, "time", SimpleNamespace(monotonic=lambda: clock.now))
    table = {"default_local_dir": str(tmp_path / "checkpoints"), saving.SAVE_EVERY: 1800}
    config = type("Config", (dict,), {"default_local_dir": table["default_local_dir"]})(table)
    timing = SaveTiming.of_config(config)
    clock.now = 1799.0
    assert timing.at_step_end(3) == AtStepEnd(save=False, stop=False)
    clock.now = 1800.0
    assert timing.at_step_end(3) == AtStepEnd(save=True, stop=False)
    timing.saved()
    clock.now = 3599.0
    assert not timing.at_step_end(3).save
    (tmp_path / STOP_FILE).touch()
    assert timing.at_step_end(3) == AtStepEnd(save=True, stop=True)

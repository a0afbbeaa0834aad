"""The disk-space check before a save, with VERL's own checkpoint manager."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.optional import needs
from support.waiting import TIMEOUT_S

from rstar2.files import write_text
from rstar2.train.command import Command
from rstar2.train.recipe import CheckpointSettings, Hardware
from rstar2.train.records.timing import PhaseTimer
from rstar2.train.stages import Start, _removed_before_next_save
from rstar2.train.trainer.checkpoints import POINTER, prune

RANK = """
import datetime, sys, torch
from pathlib import Path
rank, folder = int(sys.argv[1]), Path(sys.argv[2])
from rstar2.train.verl.output import disk_space
from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager
class Broken(FSDPCheckpointManager):
    should_save_model = should_save_optimizer = False
    def __init__(self): self.rank = rank
    def ensure_checkpoint_capacity(self, keep): raise PermissionError(13, "Permission denied", "old")
torch.distributed.init_process_group(
    "gloo", init_method=f"file://{folder}/ranks", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=60)
)
try:
    Broken().save_checkpoint(str(folder / "new"), None, 7, 2)
except Exception as error:
    print(f"raised: {type(error).__name__}: {error}")
"""


@pytest.mark.slow
@needs("verl")
def test_an_error_of_rank_0_ends_the_save_of_every_rank(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=4 * TIMEOUT_S)[0] for rank in ranks]
    expected = (
        "raised: Failure: the disk space for the checkpoint of step 7 cannot be checked: "
        "PermissionError: [Errno 13] Permission denied: 'old'"
    )
    assert [expected in output for output in outputs] == [True, True], outputs
    assert not (tmp_path / "new").exists()


@needs("verl")
@pytest.mark.parametrize("resumed_from", [0, 2])
@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_folders_that_count_as_free_are_those_that_verl_removes_first(
    tmp_path: Path, keep: int, resumed_from: int
) -> None:
    from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager

    manager = object.__new__(BaseCheckpointManager)
    manager.previous_saved_paths = []
    settings = CheckpointSettings(keep=keep)
    log, timer = tmp_path / "log", PhaseTimer(tmp_path)
    start = Start(Command([], {}), tmp_path, 9, tmp_path, log, Hardware(), settings, timer, pytest.fail)
    actors = {step: start.checkpoints / f"global_step_{step}" / "actor" for step in range(1, 9)}
    for step, actor in actors.items():
        if step > resumed_from:
            expected = _removed_before_next_save(start, resumed_from)
            before = {each for each in actors.values() if each.exists()}
            manager.ensure_checkpoint_capacity(keep)
            assert before - {each for each in actors.values() if each.exists()} == set(expected)
        actor.mkdir(parents=True)
        if step > resumed_from:
            manager.register_checkpoint(str(actor), keep)
        write_text(start.checkpoints / POINTER, str(step))
        prune(start.checkpoints, keep)

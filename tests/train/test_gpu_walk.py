"""Tests the GPU path on a machine without a GPU: VERL's own trainer, from our command line up to the first GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.optional import needs

from rstar2.data import builtin
from rstar2.data.parquet import rl_rows
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.errors import Failure
from rstar2.machine import gpu_names
from rstar2.train.command import stage_command
from rstar2.train.launch import SignsOfLife, run_trainer
from rstar2.train.recipe_files import stage_recipe
from rstar2.train.stages import write_stage_inputs

GPUS = 8


@pytest.mark.long
@pytest.mark.timeout(3600)
@needs("verl")
def test_training_on_gpus_comes_to_the_first_call_that_needs_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs hydra, VERL's checks, Ray with our environment, the data, the model's tokenizer and the request for GPUs."""
    if gpu_names():
        pytest.skip("this machine has a GPU")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # Otherwise Ray starts one process for each processor that is claimed below.
    monkeypatch.setenv("RAY_prestart_worker_first_driver", "0")
    # A folder's name may contain these characters. Ray's own folder is elsewhere, because Ray accepts no space in its
    # path.
    root = tmp_path / "a run, with 'k'=v"
    conversations = [builtin.FORMAT.messages(each.problem) for each in builtin.held_out(1, 50)]
    make_tiny_model(root / "model", TinyModel(layers=1), conversations, builtin.FORMAT, seed=1)
    # Otherwise Ray waits for more processors than a small machine has, and starts actors for minutes.
    cpus = [
        "verl.ray_kwargs.ray_init.num_cpus=16",
        "verl.+ray_kwargs.ray_init.include_dashboard=false",
        "verl.transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
    ]
    recipe = stage_recipe(1, None, [f"hardware.gpus_per_node={GPUS}", "rollout.prompts=4", *cpus])
    folder, rows = root / "stage1", rl_rows(builtin.training(1, 8, skip=0), 32, "builtin")
    write_stage_inputs(recipe, root / "model", rows, folder, ("http://127.0.0.1:1", None))
    command = stage_command(recipe, folder, root / "model")
    log = tmp_path / "trainer.log"
    with pytest.raises(Failure, match="the trainer ended with exit code"):
        run_trainer(
            command, log, SignsOfLife(folder / "metrics-1.jsonl", folder, 3000.0), pytest.fail, pytest.fail
        )
    log_text = log.read_text(errors="replace")
    assert "All configuration checks passed" in log_text
    assert f"Total available GPUs 0 is less than total desired GPUs {GPUS}" in log_text, log_text[-3000:]

"""Tests that workers on other nodes get the environment, the hidden keys and tokens, and the timeouts.

SFT runs there too.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from support.optional import needs

from rstar2.errors import Failure
from rstar2.train.command import Command, secrets_file, sft_command, stage_command, worker_environment
from rstar2.train.launch import SignsOfLife, run_trainer
from rstar2.train.recipe_files import sft_recipe, stage_recipe


def signs(folder: Path) -> SignsOfLife:
    return SignsOfLife(folder / "metrics.jsonl", folder, 3000.0)


def test_what_wandb_the_hub_and_nccl_need_is_handed_on_and_nothing_else() -> None:
    environment = {
        "WANDB_MODE": "offline", "WANDB_API_KEY": "k1", "HF_HOME": "/hub", "HF_TOKEN": "k2", "NCCL_DEBUG": "WARN",
        "HF_TOKEN_PATH": "/t", "https_proxy": "http://u:p@proxy", "NO_PROXY": "localhost", "HOME": "/root",
        "AWS_SECRET_ACCESS_KEY": "k3", "MY_NCCL_KEY": "k4", "PATH": "/bin",
    }  # fmt: skip
    plain, secret = worker_environment(environment)
    assert set(plain) == {"WANDB_MODE", "HF_HOME", "NCCL_DEBUG", "HF_TOKEN_PATH"}
    assert set(secret) == {"WANDB_API_KEY", "HF_TOKEN", "https_proxy", "NO_PROXY"}
    assert all(environment[name] == value for name, value in [*plain.items(), *secret.items()])


def test_keys_and_tokens_are_on_no_command_line_but_in_a_file_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "hush-1")
    monkeypatch.setenv("HF_TOKEN", "hush-2")
    monkeypatch.setenv("NCCL_IB_HCA", "mlx5")
    command = stage_command(stage_recipe(1, "64xh100", []), tmp_path / "stage1", tmp_path / "m")
    assert "hush" not in json.dumps([command.argv, command.env])
    assert "+ray_kwargs.ray_init.runtime_env.env_vars.NCCL_IB_HCA='mlx5'" in command.argv
    path = Path(command.env["RSTAR2_SECRETS_FILE"])
    assert path.parent == tmp_path / "stage1"
    with secrets_file(command, os.environ):
        assert path.stat().st_mode & 0o777 == 0o600
        assert {"WANDB_API_KEY": "hush-1", "HF_TOKEN": "hush-2"}.items() <= json.loads(
            path.read_text()
        ).items()
    assert not path.exists()


def test_without_keys_there_is_no_such_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in worker_environment(os.environ)[1]:
        monkeypatch.delenv(name)
    command = stage_command(stage_recipe(1, "8xh100", []), tmp_path / "stage1", tmp_path / "m")
    with secrets_file(command, os.environ):
        pass
    assert "RSTAR2_SECRETS_FILE" not in command.env
    assert not (tmp_path / "stage1").exists()


@pytest.mark.long
@needs("verl")
def test_a_worker_reads_the_secrets_and_its_process_groups_have_the_profiles_time_out(tmp_path: Path) -> None:
    command = stage_command(stage_recipe(1, "64xh100", []), tmp_path, tmp_path / "m")
    (tmp_path / "keys.json").write_text(json.dumps({"HF_TOKEN": "from the file", "WANDB_API_KEY": "unread"}))
    code = (
        "import os, verl, torch.distributed as dist\n"
        "from verl.utils import distributed\n"
        "def timeout():\n"
        "    group = dist.distributed_c10d._get_default_group()\n"
        "    return group._get_backend(group._device_types[0]).options._timeout.total_seconds()\n"
        "dist.init_process_group('gloo', rank=0, world_size=1, store=dist.HashStore(), timeout=None)\n"
        "print(os.environ['HF_TOKEN'], os.environ['WANDB_API_KEY'], timeout(), sep='|')\n"
        "print(distributed.initialize_global_process_group.__wrapped__.keywords)\n"
    )
    env = {**os.environ, **command.env, "WANDB_API_KEY": "here before"}
    env |= {"RSTAR2_SECRETS_FILE": str(tmp_path / "keys.json")}
    env.pop("HF_TOKEN", None)
    result = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=800, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-2:] == ["from the file|here before|3600.0", "{'timeout_second': 3600}"]


def test_sft_on_several_nodes_asks_for_them_and_on_one_does_not(tmp_path: Path) -> None:
    one, eight = (
        sft_command(sft_recipe(profile, []), tmp_path, tmp_path, tmp_path)
        for profile in ("8xh100", "64xh100")
    )
    assert one.nodes == 1
    assert (eight.nodes, eight.gpus_per_node) == (8, 8)


@pytest.fixture
def two_nodes(ray_cluster: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets RAY_ADDRESS to a cluster of two nodes."""
    for name, value in ray_cluster.items():
        monkeypatch.setenv(name, value)


TRAINER = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor([1.0 + dist.get_rank()])
dist.all_reduce(total)
rank = dist.get_rank()
open(f"{sys.argv[1]}/{rank}", "w").write(f"{dist.get_world_size()} {total.item():g} {os.environ['HANDED_ON']}")
if len(sys.argv) > 2 and rank == 3:
    raise ValueError("the fourth rank fell over")
# As VERL's trainers end: a thread of gloo that is not joined aborts the process now and then.
dist.destroy_process_group()
"""


def trainer(folder: Path, *words: str) -> Command:
    """A command for two nodes with two ranks each, like that of SFT."""
    (folder / "trainer.py").write_text(TRAINER)
    argv = [
        *(sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"),
        *(str(folder / "trainer.py"), str(folder), *words),
    ]
    return Command(argv, {"HANDED_ON": secrets.token_hex(4)}, nodes=2, gpus_per_node=2)


@pytest.mark.slow
@needs("ray")
@pytest.mark.usefixtures("two_nodes")
def test_torchrun_starts_on_every_node_and_its_ranks_find_each_other(tmp_path: Path) -> None:
    command = trainer(tmp_path)
    run_trainer(command, tmp_path / "log", signs(tmp_path), lambda line: None, pytest.fail)
    outputs = {(tmp_path / str(rank)).read_text() for rank in range(4)}
    assert outputs == {f"4 10 {command.env['HANDED_ON']}"}


@pytest.mark.slow
@needs("ray")
@pytest.mark.usefixtures("two_nodes")
def test_a_rank_that_fails_on_another_node_ends_the_run_with_its_cause(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="exit code 1") as excinfo:
        run_trainer(
            trainer(tmp_path, "fail"), tmp_path / "log", signs(tmp_path), lambda line: None, pytest.fail
        )
    assert "the fourth rank fell over" in (tmp_path / "log").read_text()
    assert "exit code 1" in excinfo.value.message

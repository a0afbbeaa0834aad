"""Tests that shipped profiles name the settings that fill a machine. VERL accepts them with every recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from support.optional import needs
from support.train.verl_config import accepted, compose_config

from rstar2.errors import UserError
from rstar2.train.algorithms import ObjectiveName
from rstar2.train.command import sft_command, stage_command
from rstar2.train.recipe_files import read_recipe, sft_recipe, stage_recipe

PROFILES = ("laptop", "1xh200", "8xh100", "64xh100", "64xmi300x")
RECIPES = [(1, "paper"), (2, "paper"), (3, "paper"), (1, "release"), (1, "7b-8xh100")]
FLASH = "hardware.attention=flash_attn"
HARDWARE_KEYS = {
    *("nodes", "gpus_per_node", "tensor_parallel", "sequence_parallel", "engine_memory_share"),
    *("sequences_in_flight", "update_tokens", "log_prob_tokens", "offload", "gradient_checkpointing"),
    *("nccl_timeout_s", "router"),
}


@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_names_what_fills_its_machines(profile: str) -> None:
    hardware = read_recipe(profile, "profile")[1]["stage"]["hardware"]
    assert set(hardware) >= HARDWARE_KEYS


@pytest.mark.parametrize(
    ("profile", "gpus"), [("laptop", 1), ("1xh200", 1), ("8xh100", 8), ("64xh100", 64), ("64xmi300x", 64)]
)
def test_a_profiles_name_says_how_many_gpus_it_takes(profile: str, gpus: int) -> None:
    for hardware in (stage_recipe(1, profile, []).hardware, sft_recipe(profile, []).hardware):
        assert hardware.nodes * hardware.gpus_per_node == gpus


def test_the_agent_loops_processes_follow_the_rollouts_in_flight() -> None:
    def processes(profile: str, *changes: str) -> int:
        return stage_recipe(1, profile, list(changes)).agent_loop_processes

    assert [processes(profile) for profile in PROFILES] == [1, 1, 1, 8, 24]
    assert processes("64xh100", "hardware.sequences_in_flight=256") == 16
    # A step of 2,048 rollouts needs 4 processes, but every machine has at least one.
    assert processes("64xh100", "rollout.prompts=64") == 8
    assert processes("8xh100", "hardware.sequences_in_flight=2048", "rollout.prompts=8") == 1
    asynchronous = ["mode=separate_async", "asynchronous.rollout_nodes=4", "hardware.sequences_in_flight=16"]
    assert processes("64xh100", *asynchronous) == 12
    # VERL gives each process whole problems.
    few = ["rollout.prompts=4", "rollout.rollouts=1024", "groups.keep=512"]
    assert processes("64xh100", *few) == 4


def verl_values(config: Any) -> dict[str, Any]:
    """Returns the values that VERL reads of a profile, by the profile's own keys."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    offloaded = (actor.fsdp_config.param_offload, actor.fsdp_config.optimizer_offload)
    return {
        "nodes": config.trainer.nnodes,
        "gpus_per_node": config.trainer.n_gpus_per_node,
        "tensor_parallel": rollout.tensor_model_parallel_size,
        "sequence_parallel": actor.ulysses_sequence_parallel_size,
        "engine_memory_share": rollout.gpu_memory_utilization,
        "sequences_in_flight": rollout.max_num_seqs,
        "update_tokens": actor.ppo_max_token_len_per_gpu,
        "log_prob_tokens": rollout.log_prob_max_token_len_per_gpu,
        "offload": {(False, False): "none", (False, True): "optimizer", (True, True): "all"}[offloaded],
        "gradient_checkpointing": config.actor_rollout_ref.model.enable_gradient_checkpointing,
        "nccl_timeout_s": config.actor_rollout_ref.nccl_timeout,
        "agent_loop_processes": rollout.agent.num_workers,
    }


@pytest.mark.slow
@needs("verl")
@pytest.mark.parametrize("profile", PROFILES)
def test_verl_accepts_every_recipe_and_every_objective_on_every_profile(profile: str, tmp_path: Path) -> None:
    """All pairs of profile, recipe and objective; the keys of the three are disjoint."""
    for number, objective in enumerate(get_args(ObjectiveName)):
        stage, recipe = RECIPES[(number + PROFILES.index(profile)) % len(RECIPES)]
        full_recipe = stage_recipe(stage, profile, [f"algorithm.objective={objective}"], recipe)
        argv = stage_command(full_recipe, tmp_path / "stage1", tmp_path / "model").argv[3:]
        config = accepted(argv)
        hardware_values = {key: getattr(full_recipe.hardware, key) for key in HARDWARE_KEYS - {"router"}}
        assert verl_values(config) == {
            **hardware_values,
            "agent_loop_processes": full_recipe.agent_loop_processes,
        }
        # With one engine, the router has nothing to decide.
        several = full_recipe.hardware.engines > 1 and full_recipe.hardware.router == "sessions"
        assert bool(config.actor_rollout_ref.rollout.router_config_path) == several


@pytest.mark.slow
@needs("verl")
@pytest.mark.parametrize("profile", PROFILES)
def test_verl_accepts_sft_on_every_profile(profile: str, tmp_path: Path) -> None:
    recipe = sft_recipe(profile, [])
    argv = sft_command(recipe, tmp_path / "sft", tmp_path / "m", tmp_path / "d.parquet").argv
    config = compose_config("sft_trainer_engine", argv[argv.index("rstar2.train.verl.sft_trainer") + 1 :])
    assert config.data.max_token_len_per_gpu == recipe.update_tokens
    assert config.model.enable_gradient_checkpointing == recipe.hardware.gradient_checkpointing
    assert config.engine.ulysses_sequence_parallel_size == recipe.hardware.sequence_parallel


@pytest.mark.slow
@needs("verl")
def test_without_a_profile_the_engines_are_not_starved_either(tmp_path: Path) -> None:
    """VERL's own defaults give an engine half of the memory and 256 rollouts at a time."""
    config = accepted(stage_command(stage_recipe(1, None, []), tmp_path / "stage1", tmp_path / "m").argv[3:])
    assert config.actor_rollout_ref.rollout.gpu_memory_utilization == 0.85
    assert config.actor_rollout_ref.rollout.max_num_seqs == 64


def test_a_rollout_that_fits_no_micro_batch_is_refused_at_once() -> None:
    """VERL would report the error only in the first update, after the first step's rollouts."""
    with pytest.raises(UserError) as excinfo:
        stage_recipe(1, "8xh100", ["rollout.tokens=30000"])
    expected_message = (
        "hardware.update_tokens = 16384 times hardware.sequence_parallel = 1 is less than the longest rollout"
    )
    assert expected_message in excinfo.value.message
    longer = ["rollout.tokens=30000", "hardware.update_tokens=16384", "hardware.sequence_parallel=2", FLASH]
    assert stage_recipe(1, "8xh100", longer).update_tokens == 16384


def test_a_conversation_that_fits_no_micro_batch_is_refused_at_once() -> None:
    short = ["max_tokens=320", "hardware.update_tokens=200"]
    with pytest.raises(
        UserError, match=r"hardware\.update_tokens = 200 .* is less than the longest conversation"
    ):
        sft_recipe("laptop", short)
    assert sft_recipe("8xh100", [*short, "hardware.sequence_parallel=2", FLASH]).update_tokens == 200
    # Micro-batches that are counted in conversations have no limit in tokens.
    assert sft_recipe("laptop", [*short, "verl.data.use_dynamic_bsz=false"]).micro_batch_rows == 4


def test_micro_batches_hold_the_longest_rollout_where_no_size_is_named() -> None:
    assert stage_recipe(3, None, []).update_tokens == 2048 + 12288
    assert (
        stage_recipe(
            3, None, ["hardware.gpus_per_node=6", "hardware.sequence_parallel=3", FLASH]
        ).update_tokens
        == 4779
    )


@pytest.mark.parametrize(
    ("profile", "changes", "message"),
    [
        ("64xh100", ["hardware.nodes=6"], "batch = 128 conversations cannot be split evenly over 48 GPUs"),
        ("64xh100", ["batch=32"], "batch = 32 conversations cannot be split evenly over 64 GPUs"),
        ("laptop", ["batch=3", "hardware.gpus_per_node=2"], "batch = 3 conversations .* over 2 ranks"),
        (
            "8xh100",
            ["batch=6", "hardware.sequence_parallel=2", FLASH],
            "over 8 GPUs .*, in groups of hardware.sequence_parallel = 2",
        ),
        (
            "8xh100",
            ["hardware.sequence_parallel=3", FLASH],
            "8 GPUs .* groups of hardware.sequence_parallel = 3",
        ),
        ("laptop", ["hardware.nodes=2"], 'hardware.nodes = 2, but hardware.device = "cpu"'),
    ],
)
def test_sft_on_ranks_that_cannot_share_a_batch_is_refused(
    profile: str, changes: list[str], message: str
) -> None:
    """VERL would train on batches of a different size, and the learning rate would rise again at the end."""
    with pytest.raises(UserError, match=message):
        sft_recipe(profile, changes)


@pytest.mark.parametrize(
    ("profile", "changes", "message"),
    [
        (
            "64xh100",
            ["hardware.nodes=6"],
            r"rollout\.prompts = 512 times groups\.keep = 16 .* 48 GPUs",
        ),
        (
            "laptop",
            ["rollout.prompts=4", "groups.keep=2", "hardware.gpus_per_node=3"],
            "cannot be split evenly over 3 ranks",
        ),
        (
            "64xh100",
            ["verl.actor_rollout_ref.actor.ppo_mini_batch_size=3"],
            "ppo_mini_batch_size = 3 times groups.keep = 16 rollouts cannot be split evenly over 64",
        ),
        ("64xh100", ["hardware.tensor_parallel=16"], "hardware.gpus_per_node = 8 .*tensor_parallel = 16"),
        ("8xh100", ["hardware.tensor_parallel=3"], "cannot be split into engines of .*tensor_parallel = 3"),
        ("laptop", ["hardware.nodes=2"], 'hardware.nodes = 2, but hardware.device = "cpu"'),
    ],
)
def test_a_stage_on_gpus_that_cannot_share_its_work_is_refused(
    profile: str, changes: list[str], message: str
) -> None:
    """VERL would end in the first update, after a whole step of rollouts, or wait for GPUs that no node has."""
    with pytest.raises(UserError, match=message):
        stage_recipe(1, profile, changes)


def test_ranks_that_share_an_update_are_not_refused() -> None:
    halved = ["hardware.nodes=6", "hardware.sequence_parallel=3", FLASH]
    assert stage_recipe(1, "64xh100", halved).hardware.ranks == 48
    assert sft_recipe("64xh100", ["hardware.nodes=6", "batch=96"]).hardware.ranks == 48

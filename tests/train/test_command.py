"""Tests that recipes become command lines that VERL's own config classes accept."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.optional import needs
from support.train.verl_config import compose_config

from rstar2.errors import UserError
from rstar2.train.command import _FORWARDED, Command, agent_loop_yaml, sft_command, stage_command
from rstar2.train.curriculum import CURRICULA, PROBLEM_SAMPLER, CurriculumSettings
from rstar2.train.recipe import StageRecipe
from rstar2.train.recipe_files import sft_recipe, stage_recipe
from rstar2.train.select import SelectSettings

NEEDS_VERL = needs("verl")


def command_of(recipe: StageRecipe, root: Path) -> Command:
    return stage_command(recipe, root / "stage1", root / "a model")


@pytest.mark.slow
@NEEDS_VERL
@pytest.mark.parametrize("profile", [None, "laptop"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_verl_accepts_every_stage_on_every_profile(stage: int, profile: str | None, tmp_path: Path) -> None:
    recipe = stage_recipe(stage, profile, [])
    config = compose_config("ppo_trainer", command_of(recipe, tmp_path).argv[3:])
    from verl.utils.config import omega_conf_to_dataclass

    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    omega_conf_to_dataclass(config.algorithm)
    assert rollout.n == recipe.groups.keep
    assert rollout.name == ("vllm" if profile is None else "rstar2_cpu")
    assert config.data.max_response_length == recipe.rollout.tokens
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.2, 0.28)
    assert (actor.optim.optimizer, actor.optim.lr) == ("AdamW", recipe.optim.lr)
    assert (actor.optim.weight_decay, actor.optim.clip_grad) == (0.01, 1.0)
    assert list(actor.optim.betas) == [0.9, 0.999]
    assert not actor.use_kl_loss
    assert not config.algorithm.use_kl_in_reward
    assert actor.entropy_coeff == 0
    assert actor.loss_agg_mode == "token-mean"
    assert config.actor_rollout_ref.model.path == str(tmp_path / "a model")
    assert config.trainer.v1.sampler.sampler_kwargs.select.name == "roc"
    assert config.trainer.device == ("cuda" if profile is None else "cpu")


@pytest.mark.slow
@NEEDS_VERL
def test_the_clip_is_the_papers_and_a_second_one_bounds_what_a_wrong_token_costs(tmp_path: Path) -> None:
    import torch
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
    from verl.utils.config import omega_conf_to_dataclass

    config = compose_config("ppo_trainer", command_of(stage_recipe(1, None, []), tmp_path).argv[3:])
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)

    def loss(ratio: float, advantage: float) -> float:
        old, new = torch.zeros(1, 1), torch.tensor([[ratio]]).log()
        mask = torch.ones(1, 1, dtype=torch.bool)
        value, _ = compute_policy_loss_vanilla(old, new, torch.tensor([[advantage]]), mask, config=actor)
        return float(value)

    assert [loss(ratio, 1.0) for ratio in (0.5, 1.0, 1.2, 1.28, 1.5)] == pytest.approx(
        [-0.5, -1.0, -1.2, -1.28, -1.28]
    )
    assert [loss(ratio, -1.0) for ratio in (0.5, 0.8, 1.0, 2.9, 5.0)] == pytest.approx(
        [0.8, 0.8, 1.0, 2.9, 3.0]
    )


@pytest.mark.slow
@NEEDS_VERL
@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_a_curriculum_chooses_problems_that_no_process_loads_ahead(mode: str, tmp_path: Path) -> None:
    changes = ["groups.refill_batches=1.5", "rollout.prompts=4", f"mode={mode}"]
    data = {
        name: compose_config(
            "ppo_trainer",
            command_of(stage_recipe(1, "laptop", [*changes, f"curriculum={name}"]), tmp_path).argv[3:],
        ).data
        for name in CURRICULA.shipped()
    }
    assert PROBLEM_SAMPLER not in data["uniform"], "VERL uses its own order"
    for name in set(data) - {"uniform"}:
        settings = data[name][PROBLEM_SAMPLER]
        assert CurriculumSettings.model_validate(dict(settings["curriculum"])).name == name
        assert data[name].dataloader_num_workers == 0
        # The problems of the step, its replacements, a repeated step, and the batches ahead.
        assert settings["most_under_way"] == 4 * (2 + (mode != "sync")) + 6


@pytest.mark.slow
@NEEDS_VERL
@pytest.mark.parametrize("name", ["release", "7b-8xh100"])
def test_verl_accepts_the_recipes_of_others(name: str, tmp_path: Path) -> None:
    recipe = stage_recipe(1, None, [], name)
    config = compose_config("ppo_trainer", command_of(recipe, tmp_path).argv[3:])
    kwargs = config.trainer.v1.sampler.sampler_kwargs
    assert SelectSettings.model_validate(dict(kwargs.select)) == recipe.select
    assert (recipe.reward, recipe.select.name, recipe.rollout.max_turns) == ("release", "release", 5)
    assert config.data.train_batch_size * recipe.rollout.rollouts == 128 * 32


@pytest.mark.slow
@NEEDS_VERL
@pytest.mark.parametrize("profile", [None, "laptop"])
def test_verl_accepts_sft_on_every_profile(profile: str | None, tmp_path: Path) -> None:
    recipe = sft_recipe(profile, ["batch=32"])
    command = sft_command(recipe, tmp_path / "sft", tmp_path / "m", tmp_path)
    argv = command.argv[command.argv.index("rstar2.train.verl.sft_trainer") + 1 :]
    config = compose_config("sft_trainer_engine", argv)
    assert config.data.train_batch_size == 32
    assert config.optim.lr == 5e-6
    assert config.trainer.total_epochs == 3


STARTED_BY_HYDRA = """\
import logging, sys
from importlib.util import find_spec
import hydra
folder = find_spec("verl").submodule_search_locations[0] + "/trainer/config"
@hydra.main(config_path=folder, config_name=sys.argv.pop(1), version_base=None)
def main(config):
    logging.getLogger("verl").info("logged: %s", config.trainer.default_local_dir)
main()
"""


@pytest.mark.slow
@NEEDS_VERL
@pytest.mark.parametrize("trainer", ["ppo_trainer", "sft_trainer_engine"])
def test_hydra_takes_the_command_line_and_leaves_nothing_behind(trainer: str, tmp_path: Path) -> None:
    here, folder = tmp_path / "it's ${here}", tmp_path / "a run" / "stage1"
    here.mkdir()
    if trainer == "ppo_trainer":
        argv = stage_command(stage_recipe(1, "laptop", []), folder, tmp_path / "m").argv[3:]
    else:
        argv = sft_command(sft_recipe("laptop", []), folder, tmp_path / "m", tmp_path / "data").argv[3:]
    command = [sys.executable, "-c", STARTED_BY_HYDRA, trainer, *argv]
    result = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr
    assert f"logged: {folder / 'checkpoints'}" in result.stdout
    assert list(tmp_path.rglob("*")) == [here]


def test_one_rank_needs_no_launcher_and_several_use_torchrun(tmp_path: Path) -> None:
    one = sft_command(sft_recipe("laptop", []), *[tmp_path] * 3)
    eight = sft_command(sft_recipe(None, []), *[tmp_path] * 3)
    assert one.argv[:3] == [sys.executable, "-m", "rstar2.train.verl.sft_trainer"]
    assert "torch.distributed.run" in eight.argv
    assert "--nproc-per-node=8" in eight.argv


def test_only_the_cpu_profile_loads_the_plugin(tmp_path: Path) -> None:
    gpu = command_of(stage_recipe(1, None, []), tmp_path)
    cpu = command_of(stage_recipe(1, "laptop", []), tmp_path)
    assert "VERL_PLATFORM" not in gpu.env
    assert cpu.env["VERL_PLATFORM"] == "cpu"
    assert cpu.env["VERL_USE_EXTERNAL_MODULES"] == "rstar2.train.verl.plugin"


def test_on_a_cpu_ray_has_a_logical_device_for_each_rank_unless_the_recipe_says_otherwise(
    tmp_path: Path,
) -> None:
    for changes, devices in (
        ([], 1),
        (["hardware.gpus_per_node=2"], 2),
        (["hardware.gpus_per_node=2", "verl.+ray_kwargs.ray_init.num_gpus=3"], 3),
    ):
        argv = command_of(stage_recipe(1, "laptop", changes), tmp_path).argv
        assert f"+ray_kwargs.ray_init.num_gpus={devices}" in argv


def test_the_stages_are_the_papers() -> None:
    table = {n: stage_recipe(n, None, []) for n in (1, 2, 3)}
    values = {
        n: (
            r.steps,
            r.rollout.tokens,
            r.rollout.prompts,
            r.rollout.rollouts,
            r.groups.keep,
            r.rollout.max_turns,
        )
        for n, r in table.items()
    }
    assert values == {
        1: (300, 8192, 512, 32, 16, 10),
        2: (85, 12288, 512, 32, 16, 10),
        3: (125, 12288, 512, 32, 16, 15),
    }
    assert [table[n].drop_solved for n in (1, 2, 3)] == [0, 0, 8]


@pytest.mark.slow
@NEEDS_VERL
def test_a_cluster_hands_the_environment_to_rays_workers(tmp_path: Path) -> None:
    command = command_of(stage_recipe(1, None, []), tmp_path)
    config = compose_config("ppo_trainer", command.argv[3:])
    env_vars = config.ray_kwargs.ray_init.runtime_env.env_vars
    assert str(tmp_path / "stage1" / "metrics-1.jsonl") == env_vars.VERL_FILE_LOGGER_PATH
    assert command_of(stage_recipe(1, "laptop", []), tmp_path).env["RAY_ADDRESS"] == "local"


ODD = [
    "1",
    "false",
    "null",
    "a b",
    "a,b",
    "it's",
    'say "x"',
    "k=v",
    "$HOME",
    "${env}",
    "back\\",
    "\\'",
    "[x]",
    "日本",
    "",
]


@pytest.mark.slow
@NEEDS_VERL
@pytest.mark.parametrize("text", ODD)
def test_a_text_stays_that_text_through_hydra(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray rejects an environment variable that is a number.

    A path may contain any character that a folder's name may.
    """
    from omegaconf import OmegaConf
    from ray.runtime_env import RuntimeEnv

    monkeypatch.setattr(
        "rstar2.train.command._environment", lambda hardware, metrics: {"ODD": text, "ONE": "1"}
    )
    recipe = stage_recipe(1, None, [])
    folder = tmp_path / (text.replace("/", "") or "x")
    config = compose_config("ppo_trainer", stage_command(recipe, folder, tmp_path / "m").argv[3:])
    ray_init = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
    assert RuntimeEnv(**ray_init["runtime_env"])["env_vars"] == {
        "ODD": text,
        "ONE": "1",
        "RSTAR2_FIRST_STEP": "0",
    }
    assert OmegaConf.to_container(config.data, resolve=True)["train_files"] == str(folder / "train.parquet")


@pytest.mark.slow
@NEEDS_VERL
@pytest.mark.parametrize("nodes", [1, 2])
def test_torchrun_starts_the_ranks_and_hands_every_override_on(nodes: int, tmp_path: Path) -> None:
    """torchrun's own parser reads our command line, and VERL's SFT reads the rest.

    Folder names may contain any character.
    """
    from torch.distributed.run import parse_args

    odd = tmp_path / "it's a 'model', k=v $HOME ${env} --nnodes=9 日本"
    recipe = sft_recipe(None, [f"hardware.nodes={nodes}", "hardware.gpus_per_node=4"])
    argv = sft_command(recipe, tmp_path / "sft", odd, odd).argv
    assert argv[:3] == [sys.executable, "-m", "torch.distributed.run"]
    parsed = parse_args(argv[3:])
    assert (parsed.nnodes, parsed.nproc_per_node, parsed.standalone) == (str(nodes), "4", nodes == 1)
    assert (parsed.module, parsed.training_script) == (True, "rstar2.train.verl.sft_trainer")
    config = compose_config("sft_trainer_engine", parsed.training_script_args)
    assert (config.model.path, config.data.train_files) == (str(odd), str(odd / "train.npy"))
    assert config.trainer.n_gpus_per_node == 4


@pytest.mark.slow
@NEEDS_VERL
def test_ray_takes_the_environment_of_every_stage(tmp_path: Path) -> None:
    from omegaconf import OmegaConf
    from ray.runtime_env import RuntimeEnv

    command = command_of(stage_recipe(1, None, []), tmp_path)
    runtime_env = OmegaConf.to_container(
        compose_config("ppo_trainer", command.argv[3:]).ray_kwargs.ray_init.runtime_env, resolve=True
    )
    assert RuntimeEnv(**runtime_env)["env_vars"] == command.env


@pytest.mark.slow
@NEEDS_VERL
def test_nested_verl_keys_reach_verl_as_dotted_ones_do(tmp_path: Path) -> None:
    recipe = stage_recipe(1, None, ["verl.trainer.test_freq=5", "verl.data.seed=9"])
    config = compose_config("ppo_trainer", command_of(recipe, tmp_path).argv[3:])
    assert (config.trainer.test_freq, config.data.seed) == (5, 9)


def test_verl_keys_of_the_user_win_however_the_layers_below_write_them(tmp_path: Path) -> None:
    """A recipe's table, a profile's dotted keys, and --set: each overrides the one before."""
    key = "actor_rollout_ref.rollout"
    nested = tmp_path / "nested.toml"
    nested.write_text(f'steps = 3\n[verl.{key}]\nfree_cache_engine = true\nname = "sglang"\nseed = 3\n')
    below = command_of(stage_recipe(1, "laptop", [], str(nested)), tmp_path).argv
    assert {f"{key}.free_cache_engine=False", f"{key}.name=rstar2_cpu", f"{key}.seed=3"} <= set(below)
    changes = [f"verl.{key}.name=vllm", f"verl.{key}.free_cache_engine=true"]
    above = command_of(stage_recipe(1, "laptop", changes, str(nested)), tmp_path).argv
    assert {f"{key}.free_cache_engine=True", f"{key}.name=vllm", f"{key}.seed=3"} <= set(above)


@pytest.mark.slow
@NEEDS_VERL
def test_verl_keys_of_the_user_win(tmp_path: Path) -> None:
    recipe = stage_recipe(1, None, [], over={"verl": {"trainer.save_freq": 77}})
    assert compose_config("ppo_trainer", command_of(recipe, tmp_path).argv[3:]).trainer.save_freq == 77


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("rollout.nonsense=1", "unknown key rollout.nonsense"),
        ("steps=-1", "steps must be a whole number of at least 1, not -1"),
        ("rollout.prompts=many", "rollout.prompts must be a whole number of at least 1, not 'many'"),
        ("select=relase", "'void_turn', or 'module:object', not 'relase'; did you mean release?"),
        ("steps", "not of the form a.b=c"),
        ("groups.keep=64", "more than rollout.rollouts = 32"),
    ],
)
def test_a_wrong_change_is_refused_by_name(change: str, message: str) -> None:
    with pytest.raises(UserError) as excinfo:
        stage_recipe(1, None, [change])
    assert message in excinfo.value.message


def test_an_unknown_recipe_or_profile_names_those_there_are() -> None:
    for make, allowed in (
        (lambda: stage_recipe(1, "desktop", []), "laptop"),
        (lambda: sft_recipe(None, [], "no-such"), "sft"),
    ):
        with pytest.raises(UserError) as excinfo:
            make()
        assert allowed in excinfo.value.hint


def test_the_agent_loop_file_names_our_loop_and_the_judge(tmp_path: Path) -> None:
    (entry,) = json.loads(agent_loop_yaml(stage_recipe(1, None, []), tmp_path, "http://judge:1", "secret"))
    assert entry["name"] == "rstar2"
    assert entry["judge_url"] == "http://judge:1"
    assert entry["max_turns"] == 10


def test_the_page_lists_all_variables_that_workers_get() -> None:
    page = (Path(__file__).parents[2] / "docs" / "gpus.md").read_text()
    section = page.partition("### Environment variables of Ray's workers")[2].partition("\n\n`hardware")[0]
    prefixes = _FORWARDED.pattern.partition(")_")[0].strip("(").split("|")
    assert set(re.findall(r"`([A-Z_]+)_`", section)) == set(prefixes)

"""Builds the command lines and environments of VERL's trainers from recipes. This module starts nothing."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rstar2 import plugins
from rstar2.config import dotted
from rstar2.data.parquet import AGENT_NAME
from rstar2.files import write_text
from rstar2.loop.formats.format import FORMAT_FILE
from rstar2.runs import GRADER_SECRET
from rstar2.train import attention
from rstar2.train.algorithms import verl_keys
from rstar2.train.curriculum import PROBLEM_SAMPLER
from rstar2.train.recipe import LOADING_PROCESSES, Hardware, SftRecipe, StageRecipe
from rstar2.train.split import TRAIN, VALIDATION
from rstar2.train.trainer import modes
from rstar2.train.trainer.saving import SAVE_EVERY, STAGE_FOLDER, STOP_AFTER
from rstar2.train.trainer.tracking import run_name, tracker_environment, tracker_keys

SECRETS_FILE = "worker_secrets.json"
SFT_KEEP = 2
"""Number of most recent SFT checkpoints that stay on disk."""
_SAVED = ("model", "optimizer", "extra")
"""Parts of the trainer's state that VERL writes to a checkpoint. A Hugging Face model, which VERL could also write,
would be as large as the weights, so the model is exported separately."""
_HYDRA_KEYS: dict[str, Any] = {
    "hydra.run.dir": ".",
    "hydra.output_subdir": None,
    "hydra.job_logging.handlers.file.filename": "/dev/null",
}
"""Keys that keep Hydra from writing `outputs/DATE/TIME` in the user's folder. Hydra's log is in the trainer's log too.
"""
_ACTOR = "actor_rollout_ref.actor"
_ENGINE = "actor_rollout_ref.rollout"
ROUTER_FILE = "router.yaml"
FIRST_METRICS = "metrics-1.jsonl"
"""The first metrics file of a stage. A trainer that is started again writes a new file."""
CPU_PLUGIN = "rstar2.train.verl.plugin"
CPU_ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": CPU_PLUGIN,
    "OMP_NUM_THREADS": str(min(os.cpu_count() or 1, 4)),
    "OMP_WAIT_POLICY": "PASSIVE",
    # With several arenas, glibc would not give memory freed by the forward pass's thread to the backward pass's thread.
    "MALLOC_ARENA_MAX": "1",
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray would start workers without VERL's runtime environment, which are never used.
    "RAY_prestart_worker_first_driver": "0",
    # vLLM would bind each engine's threads to the same cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
"""Environment variables for VERL's and Ray's processes on a machine without accelerators."""

_FORWARDED = re.compile(
    r"(NCCL|RCCL|TORCH_NCCL|GLOO|UCX|FI|HF|HUGGING_FACE|TRANSFORMERS|VLLM"
    r"|WANDB|WEAVE|WF|MLFLOW|TRACKIO|SWANLAB|CLEARML|VOLC|MLP|RL_INSIGHT)_"
    rf"|{GRADER_SECRET}$|{plugins.FOLDERS}$|(?i:https?_proxy|no_proxy)$"
)
"""Pattern for the names of environment variables that are passed to workers on other nodes."""
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)$|(?i:proxy|ur[il])$")
"""Pattern for the names of environment variables that must stay secret. The address of a proxy or a server may contain
a password."""


@dataclass(frozen=True)
class Command:
    """A command line, its environment variables, and the nodes on which it runs."""

    argv: list[str]
    env: dict[str, str]
    """Environment variables in addition to the caller's environment."""
    nodes: int = 1
    """Number of nodes of the Ray cluster on which the command runs. `rstar2.train.verl.every_node` runs the command on
    each of these nodes. For VERL's RL trainer the number is 1, because the RL trainer itself starts its processes on
    the other nodes."""
    gpus_per_node: int = 0
    """Number of GPUs on each of the nodes that run the command."""


class _HydraText(str):
    """A value from a recipe's `[verl]` table that is already written in Hydra's grammar."""


def agent_loop_yaml(recipe: StageRecipe, folder: Path, judge_url: str, judge_token: str | None) -> str:
    """Returns the content of VERL's agent-loop file, which names our loop and its settings. The file is written as
    JSON, a subset of YAML."""
    entry = {
        "name": AGENT_NAME,
        "_target_": "rstar2.train.verl.agent_loop.RStarAgentLoop",
        "judge_url": judge_url,
        "judge_token": judge_token,
        "max_turns": recipe.rollout.max_turns,
        "max_bad_calls": recipe.rollout.max_bad_calls,
        "format": str(folder.absolute() / FORMAT_FILE),
        "judge_wait_s": recipe.judge.wait_s,
        "reward": recipe.reward,
        "penalty": recipe.penalty.model_dump(),
        "seed": recipe.seed,
        "trace_share": recipe.trace_share,
        "may_end_unfinished": recipe.mode != "sync",
        "recover": bool(recipe.recover.failures),
        "traces": str(folder.absolute() / "traces"),
    }
    return json.dumps([entry], indent=2) + "\n"


def router_yaml(recipe: StageRecipe) -> str:
    """Returns the content of VERL's router file, which names our scheduler and its settings
    (`rstar2.train.verl.engines.router`)."""
    settings = {
        "router_class": "rstar2.train.verl.engines.router.RolloutRouter",
        "in_flight": recipe.hardware.sequences_in_flight,
        # Longer than any turn, and longer than a tool call may wait for the judge.
        "quiet_s": 3600.0 + recipe.judge.wait_s,
        "metrics": dotted(recipe.verl).get("actor_rollout_ref.rollout.name", "vllm") == "vllm",
    }
    return json.dumps(settings, indent=2) + "\n"


def stage_command(
    recipe: StageRecipe,
    folder: Path,
    model: Path | str,
    metrics: str = FIRST_METRICS,
    first_step: int = 0,
) -> Command:
    """Returns the command `python -m verl.trainer.main_ppo` for one RL stage.

    Args:
        folder: the stage's folder, see `rstar2.train.stages`.
        model: a model's folder, or the id of a model on the Hugging Face hub.
        metrics: the name of the file in `folder` that gets a line of JSON per step.
        first_step: the number of steps that earlier stages have made. In trackers, the first step of the stage has the
            number `first_step` + 1.
    """
    env = _environment(recipe.hardware, folder / metrics)
    env |= tracker_environment((*recipe.trackers, *recipe.trace_trackers), folder, os.environ, first_step)
    overrides = {
        **_HYDRA_KEYS,
        **_stage_overrides(recipe, folder.absolute(), model),
        **_recipe_keys(recipe.verl),
    }
    if recipe.hardware.device == "cpu":
        # Ray starts a local cluster with one logical GPU per rank.
        env["RAY_ADDRESS"] = "local"
        overrides.setdefault("+ray_kwargs.ray_init.num_gpus", recipe.hardware.gpus_per_node)
    else:
        # On a cluster, Ray's workers do not inherit the environment of this process.
        overrides |= {f"+ray_kwargs.ray_init.runtime_env.env_vars.{key}": value for key, value in env.items()}
    return Command([sys.executable, "-m", "verl.trainer.main_ppo", *_hydra(overrides)], env)


def sft_command(
    recipe: SftRecipe,
    folder: Path,
    model: Path | str,
    data: Path,
    metrics: str = FIRST_METRICS,
    validated: bool = False,
    stop_after: int | None = None,
) -> Command:
    """Returns the command `python -m rstar2.train.verl.sft_trainer`, which torchrun runs if there is more than one
    rank.

    Args:
        folder: the folder of SFT, see `rstar2.train.stages`.
        model: a model's folder, or the id of a model on the Hugging Face hub.
        data: the folder with the files that `rstar2.train.split.Split.write` writes.
        metrics: the name of the file in `folder` that gets a line of JSON per step.
        validated: whether there are conversations on which the validation loss is measured.
        stop_after: the step after which the trainer saves a checkpoint and ends, or None if the trainer continues to
            the last step.
    """
    hardware = recipe.hardware
    overrides = {
        **_HYDRA_KEYS,
        **_sft_overrides(recipe, folder, model, data, validated, stop_after),
        **_recipe_keys(recipe.verl),
    }
    env = _environment(hardware, folder / metrics) | tracker_environment(recipe.trackers, folder, os.environ)
    if hardware.nodes * hardware.gpus_per_node == 1:
        # A single rank needs no launcher and no rendezvous with others.
        start = []
        env |= {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",
        }
    else:
        # With several nodes, `rstar2.train.launch` starts the command on each node and adds the rendezvous.
        ranks = [f"--nnodes={hardware.nodes}", f"--nproc-per-node={hardware.gpus_per_node}"]
        start = ["-m", "torch.distributed.run", *ranks, *(["--standalone"] if hardware.nodes == 1 else [])]
    argv = [sys.executable, *start, "-m", "rstar2.train.verl.sft_trainer", *_hydra(overrides)]
    return Command(argv, env, hardware.nodes, hardware.gpus_per_node)


def _sft_overrides(
    recipe: SftRecipe, folder: Path, model: Path | str, data: Path, validated: bool, stop_after: int | None
) -> dict[str, Any]:
    """Returns VERL's keys for SFT, see `sft_command`."""
    hardware = recipe.hardware
    return {
        "data.train_files": data / TRAIN,
        "data.val_files": data / VALIDATION if validated else None,
        "data.train_batch_size": recipe.batch,
        "data.custom_cls.path": "pkg://rstar2.train.verl.sft_dataset",
        "data.custom_cls.name": "EncodedConversations",
        "data.max_length": recipe.max_tokens,
        "data.max_token_len_per_gpu": recipe.update_tokens,
        "model.path": model,
        "model.enable_gradient_checkpointing": hardware.gradient_checkpointing,
        **attention.verl_keys(hardware.attention, "model"),
        "engine.strategy": "fsdp2",
        "engine.ulysses_sequence_parallel_size": hardware.sequence_parallel,
        "optim.lr": recipe.lr,
        "optim.lr_warmup_steps_ratio": recipe.warmup_ratio,
        "optim.lr_scheduler_type": "cosine",
        "optim.zero_indexed_step": False,
        "optim.weight_decay": recipe.weight_decay,
        "checkpoint.save_contents": _SAVED,
        "trainer.device": hardware.device,
        "trainer.nnodes": hardware.nodes,
        "trainer.n_gpus_per_node": hardware.gpus_per_node,
        "trainer.total_epochs": recipe.epochs,
        "trainer.save_freq": recipe.checkpoint_every,
        f"+trainer.{SAVE_EVERY}": 60 * recipe.checkpoint_every_minutes,
        f"+trainer.{STOP_AFTER}": stop_after,
        # rstar2 removes old checkpoints, because VERL would also remove the one whose model is chosen in the end.
        "trainer.max_ckpt_to_keep": None,
        "trainer.test_freq": recipe.validation.every if validated else -1,
        "trainer.seed": recipe.seed,
        "trainer.default_local_dir": folder / "checkpoints",
        "trainer.resume_mode": "auto",
        **tracker_keys(recipe.trackers, folder),
    }


def stage_commands(
    recipes: dict[int, StageRecipe], model: Path | str, root: Path
) -> Iterator[tuple[int, StageRecipe, Command]]:
    """Yields the number, recipe and command of each stage. The stages' folders are in `root`. Each stage starts from
    the model of the previous stage."""
    first_step = 0
    for number, recipe in recipes.items():
        folder = root / f"stage{number}"
        yield number, recipe, stage_command(recipe, folder, model, first_step=first_step)
        model = folder / "model"
        first_step += recipe.steps


def _curriculum_keys(recipe: StageRecipe, folder: Path) -> dict[str, Any]:
    """Returns VERL's keys for a curriculum, which `rstar2.train.verl.problem_sampler` reads. Returns no keys if VERL
    itself orders the problems."""
    if not recipe.curriculum.reads_outcomes:
        return {}
    ahead = recipe.asynchronous.batches_ahead if recipe.mode != "sync" else 0
    return {
        LOADING_PROCESSES: 0,
        f"+data.{PROBLEM_SAMPLER}": {
            "curriculum": recipe.curriculum.model_dump(),
            "stage": folder,
            "seed": recipe.seed,
            "steps": recipe.steps,
            "prompts": recipe.rollout.prompts,
            "rollouts": recipe.rollout.rollouts,
            "most_under_way": math.ceil(recipe.rollout.prompts * (2 + ahead + recipe.groups.refill_batches)),
        },
    }


def _stage_overrides(recipe: StageRecipe, folder: Path, model: Path | str) -> dict[str, Any]:
    """Returns VERL's keys for an RL stage."""
    return {
        **verl_keys(recipe.algorithm, recipe.rollout.tokens),
        "algorithm.use_kl_in_reward": False,
        **_data_keys(recipe, folder),
        **_curriculum_keys(recipe, folder),
        **_model_keys(recipe.hardware, model),
        **_actor_keys(recipe),
        **_engine_keys(recipe, folder),
        "trainer.v1.sampler.custom_sampler.path": "pkg://rstar2.train.verl.sampler",
        "+trainer.v1.sampler.sampler_kwargs": _sampler_settings(recipe, folder),
        **_trainer_keys(recipe, folder),
        **modes.verl_keys(recipe.mode, recipe.asynchronous, recipe.hardware.gpus_per_node),
        **tracker_keys(recipe.trackers, folder),
    }


def _data_keys(recipe: StageRecipe, folder: Path) -> dict[str, Any]:
    rollout = recipe.rollout
    fetches_singly = bool(recipe.groups.refill_batches) or recipe.mode != "sync"
    return {
        "data.train_files": folder / "train.parquet",
        "data.val_files": folder / ("held_out.parquet" if recipe.held_out.data else "train.parquet"),
        "data.train_batch_size": rollout.prompts,
        "data.max_prompt_length": rollout.prompt_tokens,
        "data.max_response_length": rollout.tokens,
        # Any number of groups may have to be replaced, so problems are fetched one by one.
        "data.gen_batch_size": 1 if fetches_singly else None,
        "data.seed": recipe.seed,
    }


def _model_keys(hardware: Hardware, model: Path | str) -> dict[str, Any]:
    return {
        "actor_rollout_ref.model.path": model,
        "actor_rollout_ref.model.enable_gradient_checkpointing": hardware.gradient_checkpointing,
        **attention.verl_keys(hardware.attention, "actor_rollout_ref.model"),
        "actor_rollout_ref.nccl_timeout": hardware.nccl_timeout_s,
    }


def _actor_keys(recipe: StageRecipe) -> dict[str, Any]:
    """Returns VERL's keys for the update: how the update is divided among GPUs, the optimizer and the loss."""
    optim, hardware, (clip_low, clip_high) = recipe.optim, recipe.hardware, recipe.clip
    return {
        f"{_ACTOR}.strategy": "fsdp2",
        f"{_ACTOR}.ppo_mini_batch_size": recipe.update_prompts,
        f"{_ACTOR}.ppo_epochs": optim.epochs,
        f"{_ACTOR}.use_dynamic_bsz": True,
        f"{_ACTOR}.ppo_max_token_len_per_gpu": recipe.update_tokens,
        f"{_ACTOR}.ulysses_sequence_parallel_size": hardware.sequence_parallel,
        f"{_ACTOR}.fsdp_config.param_offload": hardware.offload == "all",
        f"{_ACTOR}.fsdp_config.optimizer_offload": hardware.offload != "none",
        f"{_ACTOR}.optim.lr": optim.lr,
        f"{_ACTOR}.optim.lr_warmup_steps": optim.warmup_steps,
        # These two keys make the learning rate constant. With VERL's own `constant`, the rate is 0 in the first warm-up
        # step.
        f"{_ACTOR}.optim.lr_scheduler_type": "cosine",
        f"{_ACTOR}.optim.min_lr_ratio": 1.0,
        f"{_ACTOR}.optim.zero_indexed_step": False,
        f"{_ACTOR}.optim.weight_decay": optim.weight_decay,
        f"{_ACTOR}.clip_ratio": clip_low,
        f"{_ACTOR}.clip_ratio_low": clip_low,
        f"{_ACTOR}.clip_ratio_high": clip_high,
        f"{_ACTOR}.use_kl_loss": False,
        f"{_ACTOR}.entropy_coeff": 0,
        # With this key, VERL computes the entropy in chunks and in fp32. Otherwise, it uses the logits' precision, bf16
        # on GPUs.
        f"{_ACTOR}.entropy_from_logits_with_chunking": True,
        f"{_ACTOR}.checkpoint.save_contents": _SAVED,
    }


def _engine_keys(recipe: StageRecipe, folder: Path) -> dict[str, Any]:
    """Returns VERL's keys for the rollout engines, the agent loop and the router."""
    hardware = recipe.hardware
    return {
        f"{_ENGINE}.name": "vllm",
        f"{_ENGINE}.n": recipe.groups.keep,
        f"{_ENGINE}.temperature": recipe.rollout.temperature,
        f"{_ENGINE}.tensor_model_parallel_size": hardware.tensor_parallel,
        f"{_ENGINE}.gpu_memory_utilization": hardware.engine_memory_share,
        f"{_ENGINE}.max_num_seqs": hardware.sequences_in_flight,
        f"{_ENGINE}.log_prob_max_token_len_per_gpu": recipe.log_prob_tokens,
        f"{_ENGINE}.calculate_log_probs": True,
        f"{_ENGINE}.agent.agent_loop_config_path": folder / "agent_loop.yaml",
        f"{_ENGINE}.agent.default_agent_loop": AGENT_NAME,
        f"{_ENGINE}.agent.num_workers": recipe.agent_loop_processes,
        f"+{_ENGINE}.agent.agent_loop_manager_class": "rstar2.train.verl.agent_loop_manager.AgentLoopManager",
        f"{_ENGINE}.router_config_path": folder / ROUTER_FILE if recipe.schedules_sessions else None,
        # Our router reads the state of an engine's KV cache from its metrics.
        f"{_ENGINE}.disable_log_stats": not recipe.schedules_sessions,
        f"{_ENGINE}.val_kwargs.n": recipe.held_out.samples,
        f"{_ENGINE}.val_kwargs.do_sample": recipe.held_out.temperature > 0,
        f"{_ENGINE}.val_kwargs.temperature": recipe.held_out.temperature,
    }


def _sampler_settings(recipe: StageRecipe, folder: Path) -> dict[str, Any]:
    """Returns the settings that the recipe's stage passes to `rstar2.train.verl.sampler`."""
    groups, rollout = recipe.groups, recipe.rollout
    return {
        "discount": recipe.curriculum.discount,
        "select": recipe.select.model_dump(),
        "keep": groups.keep,
        "drop_equal_rewards": recipe.drops_equal_rewards,
        "refill_batches": groups.refill_batches,
        "rounds": recipe.rounds and asdict(recipe.rounds),
        "recover": recipe.recover.model_dump(),
        "seed": recipe.seed,
        "traces": folder / "traces",
        "traces_per_step": recipe.traces_per_step,
        "trace_trackers": recipe.trace_trackers,
        "run": run_name(folder),
        "prompts": rollout.prompts,
        "rollouts": rollout.rollouts,
        "held_out_samples": recipe.held_out.samples,
        "max_failed_share": rollout.max_failed_share,
        "judge": recipe.judge.model_dump(exclude={"packages", "isolation"}),
        "agent_loop": folder / "agent_loop.yaml",
    }


def _trainer_keys(recipe: StageRecipe, folder: Path) -> dict[str, Any]:
    """Returns VERL's keys for the number of steps, for checkpoints and for evaluations."""
    hardware = recipe.hardware
    return {
        "trainer.device": hardware.device,
        "trainer.nnodes": hardware.nodes,
        "trainer.n_gpus_per_node": hardware.gpus_per_node,
        "trainer.total_training_steps": recipe.steps,
        "trainer.total_epochs": 1_000_000,
        "trainer.save_freq": recipe.checkpoint.every,
        f"+trainer.{SAVE_EVERY}": 60 * recipe.checkpoint.every_minutes,
        "trainer.checkpoint_callback_class": "rstar2.train.verl.saving.SavesInTime",
        # If rstar2 removes old checkpoints, VERL must not: it might remove one that is still needed.
        "trainer.max_actor_ckpt_to_keep": None if recipe.removes_checkpoints else recipe.checkpoint.keep,
        "trainer.test_freq": recipe.held_out.every if recipe.held_out.data else -1,
        "trainer.val_before_train": False,
        "trainer.resume_mode": "auto",
        "trainer.default_local_dir": folder / "checkpoints",
    }


def _environment(hardware: Hardware, metrics: Path) -> dict[str, str]:
    env = {
        "VERL_FILE_LOGGER_PATH": str(metrics.absolute()),
        STAGE_FOLDER: str(metrics.absolute().parent),
        "HYDRA_FULL_ERROR": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_worker_register_timeout_seconds": str(hardware.worker_start_s),
    }
    kernels = attention.verl_modules(hardware.attention)
    if hardware.device == "cpu":
        return env | CPU_ENVIRONMENT | {"VERL_USE_EXTERNAL_MODULES": ",".join((CPU_PLUGIN, *kernels))}
    plain, secret = worker_environment(os.environ)
    env |= plain
    env["RSTAR2_NCCL_TIMEOUT_S"] = str(hardware.nccl_timeout_s)
    env["VERL_USE_EXTERNAL_MODULES"] = ",".join(("rstar2.train.verl.worker_setup", *kernels))
    if secret:
        env["RSTAR2_SECRETS_FILE"] = str(metrics.absolute().with_name(SECRETS_FILE))
    return env


def worker_environment(environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the environment variables that workers on other nodes need, divided into plain variables and secret
    variables."""
    forwarded = {name: value for name, value in sorted(environ.items()) if _FORWARDED.match(name)}
    secret = {name: value for name, value in forwarded.items() if _SECRET.search(name)}
    return {name: value for name, value in forwarded.items() if name not in secret}, secret


@contextmanager
def secrets_file(command: Command, environ: Mapping[str, str]) -> Iterator[None]:
    """A context manager that writes the secret variables for a command's workers to a file, and removes the file at
    its end. `command.env` names the file.

    Only the current user can read the file. If the command names no file, nothing is written.
    """
    path = command.env.get("RSTAR2_SECRETS_FILE")
    if path is None:
        yield
        return
    write_text(Path(path), json.dumps(worker_environment(environ)[1]), mode=0o600)
    try:
        yield
    finally:
        Path(path).unlink(missing_ok=True)


def _recipe_keys(table: dict[str, Any]) -> dict[str, Any]:
    """Returns the keys of a recipe's table `[verl]`. Texts in the table reach Hydra unchanged."""
    return {
        key: _HydraText(value) if isinstance(value, str) else value for key, value in dotted(table).items()
    }


def verl_overrides(table: dict[str, Any]) -> list[str]:
    """Returns the keys of a recipe's table `[verl]` as arguments for Hydra's command line."""
    return _hydra(_recipe_keys(table))


def _hydra(overrides: dict[str, Any]) -> list[str]:
    """Returns VERL's keys and values as arguments for Hydra's command line. A key that does not begin with + must
    exist in VERL's config."""
    return [f"{key}={_hydra_value(value)}" for key, value in overrides.items()]


def _hydra_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value)
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_hydra_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_hydra_value(item) for item in value) + "]"
    if isinstance(value, Path):
        return _quoted(str(value.absolute()))
    if isinstance(value, _HydraText):
        return value
    return _quoted(value) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    """Quotes a text, so that Hydra reads it as a text. Without quotes, Hydra would read 1 as a number, and false as a
    boolean.

    Source: the grammar of Hydra 1.3's overrides. `${` is escaped, because OmegaConf would otherwise replace it with
    another value.
    """
    text = re.sub(r"(\\*)'", r"\1\1\\'", text.replace("${", r"\${"))
    return "'" + re.sub(r"(\\+)$", r"\1\1", text) + "'"

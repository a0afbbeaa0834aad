"""Turns a recipe into the command line and environment of VERL's own trainers. Nothing is started here."""

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
"""How many of the last checkpoints of SFT stay."""
_SAVED = ("model", "optimizer", "extra")
"""What a checkpoint holds. The Hugging Face model, as large as the weights, is made of the last one only."""
_HYDRAS_OWN: dict[str, Any] = {
    "hydra.run.dir": ".",
    "hydra.output_subdir": None,
    "hydra.job_logging.handlers.file.filename": "/dev/null",
}
"""Hydra would leave `outputs/DATE/TIME` in the user's folder; what it logs is in the trainer's log too."""
ROUTER_FILE = "router.yaml"
FIRST_METRICS = "metrics-1.jsonl"
"""The metrics file of a trainer's first start."""
CPU_PLUGIN = "rstar2.train.verl.plugin"
CPU_ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": CPU_PLUGIN,
    "OMP_NUM_THREADS": str(min(os.cpu_count() or 1, 4)),
    "OMP_WAIT_POLICY": "PASSIVE",
    # glibc would keep what the thread of a forward pass freed apart from what the thread of the backward pass needs.
    "MALLOC_ARENA_MAX": "1",
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Workers without VERL's runtime environment, which nothing would ever use.
    "RAY_prestart_worker_first_driver": "0",
    # vLLM would bind each engine's threads to the same cores.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
"""What VERL's and Ray's processes need to know of a machine without accelerators."""


_FORWARDED = re.compile(
    r"(NCCL|RCCL|TORCH_NCCL|GLOO|UCX|FI|HF|HUGGING_FACE|TRANSFORMERS|VLLM"
    r"|WANDB|WEAVE|WF|MLFLOW|TRACKIO|SWANLAB|CLEARML|VOLC|MLP|RL_INSIGHT)_"
    rf"|{GRADER_SECRET}$|{plugins.FOLDERS}$|(?i:https?_proxy|no_proxy)$"
)
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)$|(?i:proxy|ur[il])$")
"""A proxy's or a server's address may hold a password."""


@dataclass(frozen=True)
class Command:
    """What to start."""

    argv: list[str]
    env: dict[str, str]
    """On top of the caller's environment."""
    nodes: int = 1
    """Nodes of a Ray cluster that it runs on, by `rstar2.train.verl.every_node`; VERL's RL trainer spreads itself."""
    gpus_per_node: int = 0
    """Of these nodes."""


class _InHydrasGrammar(str):
    """A value that a recipe's `[verl]` table writes in Hydra's own grammar."""


def agent_loop_yaml(recipe: StageRecipe, folder: Path, judge_url: str, judge_token: str | None) -> str:
    """VERL's agent-loop file: our loop and its settings. JSON is YAML."""
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
    """VERL's router file: our scheduler and its settings, see `rstar2.train.verl.engines.router`."""
    settings = {
        "router_class": "rstar2.train.verl.engines.router.RolloutRouter",
        "in_flight": recipe.hardware.sequences_in_flight,
        # Longer than a turn, and than a tool call may wait for the judge.
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
    """`python -m verl.trainer.main_ppo` for one RL stage in its `folder`, see `rstar2.train.stages`.

    `model` is its folder, or a hub id. The file `metrics` there gets a line of JSON per step. Trackers count the steps
    from `first_step`, those of the stages before, on.
    """
    env = _environment(recipe.hardware, folder / metrics)
    env |= tracker_environment((*recipe.trackers, *recipe.trace_trackers), folder, os.environ, first_step)
    overrides = {
        **_HYDRAS_OWN,
        **_stage_overrides(recipe, folder.absolute(), model),
        **_own_keys(recipe.verl),
    }
    if recipe.hardware.device == "cpu":
        # A cluster of its own has the logical devices, one a rank.
        env["RAY_ADDRESS"] = "local"
        overrides.setdefault("+ray_kwargs.ray_init.num_gpus", recipe.hardware.gpus_per_node)
    else:
        # On a cluster Ray's workers do not inherit our environment.
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
    """`python -m rstar2.train.verl.sft_trainer`, under torchrun if there is more than one rank; see `stage_command`.

    Args:
        data: the folder with the files of `rstar2.train.split.Split.write`.
        validated: whether there are conversations to measure the loss on.
        stop_after: the step after which the trainer saves and ends, if that is not the last one.
    """
    hardware = recipe.hardware
    overrides: dict[str, Any] = {
        **_HYDRAS_OWN,
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
        # VERL would remove the one whose model is chosen in the end; we remove the others.
        "trainer.max_ckpt_to_keep": None,
        "trainer.test_freq": recipe.validation.every if validated else -1,
        "trainer.seed": recipe.seed,
        "trainer.default_local_dir": folder / "checkpoints",
        "trainer.resume_mode": "auto",
        **tracker_keys(recipe.trackers, folder),
        **_own_keys(recipe.verl),
    }
    env = _environment(hardware, folder / metrics) | tracker_environment(recipe.trackers, folder, os.environ)
    if hardware.nodes * hardware.gpus_per_node == 1:
        # One rank needs no launcher: it is its own rendezvous.
        start = []
        env |= {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",
        }
    else:
        # On several nodes `rstar2.train.launch` starts this on each, with a rendezvous.
        ranks = [f"--nnodes={hardware.nodes}", f"--nproc-per-node={hardware.gpus_per_node}"]
        start = ["-m", "torch.distributed.run", *ranks, *(["--standalone"] if hardware.nodes == 1 else [])]
    argv = [sys.executable, *start, "-m", "rstar2.train.verl.sft_trainer", *_hydra(overrides)]
    return Command(argv, env, hardware.nodes, hardware.gpus_per_node)


def stage_commands(
    recipes: dict[int, StageRecipe], model: Path | str, root: Path
) -> Iterator[tuple[int, StageRecipe, Command]]:
    """What the stages below `root` would start, each from the model of the one before."""
    first_step = 0
    for number, recipe in recipes.items():
        folder = root / f"stage{number}"
        yield number, recipe, stage_command(recipe, folder, model, first_step=first_step)
        model = folder / "model"
        first_step += recipe.steps


def _curriculum_keys(recipe: StageRecipe, folder: Path) -> dict[str, Any]:
    """VERL's keys of a curriculum, for `rstar2.train.verl.problem_sampler`; none for VERL's own order of problems."""
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
    rollout, optim, hardware = recipe.rollout, recipe.optim, recipe.hardware
    actor, engine = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    groups, (clip_low, clip_high) = recipe.groups, recipe.clip
    return {
        **verl_keys(recipe.algorithm, rollout.tokens),
        "algorithm.use_kl_in_reward": False,
        "data.train_files": folder / "train.parquet",
        "data.val_files": folder / ("held_out.parquet" if recipe.held_out.data else "train.parquet"),
        "data.train_batch_size": rollout.prompts,
        "data.max_prompt_length": rollout.prompt_tokens,
        "data.max_response_length": rollout.tokens,
        # Dropped groups are replaced in any number, so problems are then fetched one by one.
        "data.gen_batch_size": 1 if groups.refill_batches or recipe.mode != "sync" else None,
        "data.seed": recipe.seed,
        **_curriculum_keys(recipe, folder),
        "actor_rollout_ref.model.path": model,
        f"{actor}.strategy": "fsdp2",
        f"{actor}.ppo_mini_batch_size": recipe.update_prompts,
        f"{actor}.use_dynamic_bsz": True,
        f"{actor}.ppo_max_token_len_per_gpu": recipe.update_tokens,
        f"{actor}.ulysses_sequence_parallel_size": hardware.sequence_parallel,
        f"{actor}.fsdp_config.param_offload": hardware.offload == "all",
        f"{actor}.fsdp_config.optimizer_offload": hardware.offload != "none",
        "actor_rollout_ref.model.enable_gradient_checkpointing": hardware.gradient_checkpointing,
        **attention.verl_keys(hardware.attention, "actor_rollout_ref.model"),
        "actor_rollout_ref.nccl_timeout": hardware.nccl_timeout_s,
        f"{actor}.optim.lr": optim.lr,
        f"{actor}.optim.lr_warmup_steps": optim.warmup_steps,
        # A constant learning rate; VERL's own `constant` makes the first step of a warm-up with none at all.
        f"{actor}.optim.lr_scheduler_type": "cosine",
        f"{actor}.optim.min_lr_ratio": 1.0,
        f"{actor}.optim.zero_indexed_step": False,
        f"{actor}.optim.weight_decay": optim.weight_decay,
        f"{actor}.clip_ratio": clip_low,
        f"{actor}.clip_ratio_low": clip_low,
        f"{actor}.clip_ratio_high": clip_high,
        f"{actor}.use_kl_loss": False,
        f"{actor}.entropy_coeff": 0,
        # VERL computes entropy in the precision of the logits, bf16 on GPUs, but in fp32 in chunks.
        f"{actor}.entropy_from_logits_with_chunking": True,
        f"{actor}.checkpoint.save_contents": _SAVED,
        f"{engine}.name": "vllm",
        f"{engine}.n": groups.keep,
        f"{engine}.temperature": rollout.temperature,
        f"{engine}.tensor_model_parallel_size": hardware.tensor_parallel,
        f"{engine}.gpu_memory_utilization": hardware.engine_memory_share,
        f"{engine}.max_num_seqs": hardware.sequences_in_flight,
        f"{engine}.log_prob_max_token_len_per_gpu": recipe.log_prob_tokens,
        f"{engine}.calculate_log_probs": True,
        f"{engine}.agent.agent_loop_config_path": folder / "agent_loop.yaml",
        f"{engine}.agent.default_agent_loop": AGENT_NAME,
        f"{engine}.agent.num_workers": recipe.agent_loop_processes,
        f"{engine}.router_config_path": folder / ROUTER_FILE if recipe.schedules_sessions else None,
        # The router reads an engine's KV cache from its metrics.
        f"{engine}.disable_log_stats": not recipe.schedules_sessions,
        f"+{engine}.agent.agent_loop_manager_class": "rstar2.train.verl.agent_loop_manager.AgentLoopManager",
        "trainer.v1.sampler.custom_sampler.path": "pkg://rstar2.train.verl.sampler",
        "+trainer.v1.sampler.sampler_kwargs": {
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
        },
        "trainer.device": hardware.device,
        "trainer.nnodes": hardware.nodes,
        "trainer.n_gpus_per_node": hardware.gpus_per_node,
        "trainer.total_training_steps": recipe.steps,
        "trainer.total_epochs": 1_000_000,
        "trainer.save_freq": recipe.checkpoint.every,
        f"+trainer.{SAVE_EVERY}": 60 * recipe.checkpoint.every_minutes,
        "trainer.checkpoint_callback_class": "rstar2.train.verl.saving.SavesInTime",
        # VERL would remove one that is still needed; we remove it after that.
        "trainer.max_actor_ckpt_to_keep": None if recipe.removes_checkpoints else recipe.checkpoint.keep,
        "trainer.test_freq": recipe.held_out.every if recipe.held_out.data else -1,
        "trainer.val_before_train": False,
        f"{engine}.val_kwargs.n": recipe.held_out.samples,
        f"{engine}.val_kwargs.do_sample": recipe.held_out.temperature > 0,
        f"{engine}.val_kwargs.temperature": recipe.held_out.temperature,
        "trainer.resume_mode": "auto",
        "trainer.default_local_dir": folder / "checkpoints",
        **modes.verl_keys(recipe.mode, recipe.asynchronous, hardware.gpus_per_node),
        **tracker_keys(recipe.trackers, folder),
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
    """What of an environment workers on other nodes need: what may be seen, and keys and tokens, which may not."""
    found = {name: value for name, value in sorted(environ.items()) if _FORWARDED.match(name)}
    secret = {name: value for name, value in found.items() if _SECRET.search(name)}
    return {name: value for name, value in found.items() if name not in secret}, secret


@contextmanager
def secrets_file(command: Command, environ: Mapping[str, str]) -> Iterator[None]:
    """Inside the block keys and tokens for a command's workers are in the file that it names, if it does.

    Only this user may read the file.
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


def _own_keys(table: dict[str, Any]) -> dict[str, Any]:
    """A recipe's keys of VERL's; texts reach Hydra as they stand."""
    return {
        key: _InHydrasGrammar(value) if isinstance(value, str) else value
        for key, value in dotted(table).items()
    }


def own_overrides(table: dict[str, Any]) -> list[str]:
    """A recipe's table `[verl]` as Hydra's command line takes it."""
    return _hydra(_own_keys(table))


def _hydra(overrides: dict[str, Any]) -> list[str]:
    """Overrides as Hydra's command line takes them; a key without + must exist in VERL's config."""
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
    if isinstance(value, _InHydrasGrammar):
        return value
    return _quoted(value) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    """A text as Hydra's grammar writes it, so that it stays a text: unquoted, "1" is a number and "false" is none.

    Source: the grammar of Hydra 1.3's overrides; OmegaConf would resolve `${…}`.
    """
    text = re.sub(r"(\\*)'", r"\1\1\\'", text.replace("${", r"\${"))
    return "'" + re.sub(r"(\\+)$", r"\1\1", text) + "'"

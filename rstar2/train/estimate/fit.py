"""Warnings about settings that do not suit the model, the machine or each other, with the recipe key to change."""

from __future__ import annotations

from collections.abc import Iterator

from rstar2.config import dotted
from rstar2.machine import GIB
from rstar2.model_shape import ModelShape
from rstar2.train.estimate.memory import Memory
from rstar2.train.estimate.work import Judge
from rstar2.train.recipe import Hardware, StageRecipe

MOST_IN_FLIGHT = 4
"""The user is warned if the number of rollouts that an engine gets at the same time is more than this many times the
number of full-length rollouts that fit into its KV cache. The limit is above 1, because a growing rollout has a quarter
of its full length on average."""

SHORT_S = 60.0
"""A larger judge is not suggested if each worker has less than this many seconds of work in a step."""


def stage_warnings(
    shape: ModelShape, recipe: StageRecipe, memory: Memory, judge: Judge, machine_memory: int | None = None
) -> Iterator[str]:
    """Yields the warnings about an RL stage.

    Args:
        shape: the model's shape.
        recipe: the stage's recipe.
        memory: the estimate of memory.
        judge: the estimate of the judge's load.
        machine_memory: bytes of memory that all ranks on a CPU share, or None if this memory is unknown.
    """
    hardware = recipe.hardware
    yield from division_warnings(shape, hardware)
    yield from memory_warnings(hardware, memory, machine_memory)
    yield from _refill_warnings(recipe)
    yield from _rounds_warnings(recipe)
    yield from _recover_warnings(recipe)
    yield from _engine_warnings(hardware, memory)
    yield from judge_warnings(judge)
    yield from mode_warnings(recipe)
    yield from _kl_warnings(recipe, memory)


def _kl_warnings(recipe: StageRecipe, memory: Memory) -> Iterator[str]:
    """Yields warnings about VERL's keys for a KL term, which the shipped recipes do not set."""
    keys, actor = dotted(recipe.verl), "actor_rollout_ref.actor"
    if keys.get(f"{actor}.use_kl_loss"):
        # VERL shards the reference model over all ranks in fp32, like the trained weights.
        yield (
            f"with use_kl_loss=true, VERL also holds a reference model, {_gib(memory.weights)} per GPU, which the "
            "estimate does not include. Set verl.actor_rollout_ref.ref.fsdp_config.param_offload=true to move the "
            "reference model to the machine's memory"
        )
    elif f"{actor}.kl_loss_coef" in keys:
        yield f"kl_loss_coef has no effect without a KL term in the loss: set verl.{actor}.use_kl_loss=true as well"


def mode_warnings(recipe: StageRecipe) -> Iterator[str]:
    """Yields warnings about an RL stage's settings for asynchronous modes."""
    if recipe.mode != "sync" and recipe.algorithm.correction == "none":
        yield (
            f"with mode={recipe.mode}, some of the training tokens are sampled with older weights, but no correction "
            "for this is set: set algorithm.correction=token-tis"
        )
    if recipe.mode == "separate_async":
        gpus = recipe.asynchronous.rollout_nodes * recipe.hardware.gpus_per_node
        yield (
            f"mode=separate_async needs {gpus} more GPUs, which only generate. Memory and hours are estimated as if "
            "trainer and engines shared the other GPUs"
        )


def disk_warnings(needed: int, with_one_checkpoint: int, free: int) -> Iterator[str]:
    """Yields a warning if a run's checkpoints and models do not fit on the disk.

    Args:
        needed: bytes of checkpoints and models.
        with_one_checkpoint: the bytes that would be needed with checkpoint.keep=1. Equal to `needed` if the recipe has
            no key `checkpoint.keep`.
        free: free bytes on the disk of the run's folder.
    """
    if needed > free:
        fewer = "use `--set checkpoint.keep=1`, or " if with_one_checkpoint <= free else ""
        yield (
            f"checkpoints and models need {_gib(needed)}, but the disk of the run's folder has {_gib(free)} free: "
            f"{fewer}choose another folder with --run"
        )


def judge_warnings(judge: Judge) -> Iterator[str]:
    """Yields a warning if the judge has too few workers for a step's tool calls."""
    if judge.workers is None or judge.tool_calls * judge.program_s < SHORT_S * judge.workers:
        return
    if judge.workers < judge.cores:
        yield (
            f"the judge has {judge.workers} workers, but the {judge.tool_calls:,} tool calls of a step need about "
            f"{judge.cores} workers, so rollouts will wait for the judge: start a larger judge (rstar2 judge up "
            f"--workers {judge.cores}, then --judge URL), or set --judge-workers {judge.cores}"
        )


def division_warnings(shape: ModelShape, hardware: Hardware) -> Iterator[str]:
    """Yields a warning if the model's attention heads cannot be divided evenly. With an uneven division, vLLM or VERL
    would not start."""
    for key in ("tensor_parallel", "sequence_parallel"):
        parts = getattr(hardware, key)
        if shape.heads % parts:
            yield (
                f"the model's {shape.heads} attention heads cannot be divided by hardware.{key} = {parts}: choose a "
                "number that divides the attention heads evenly"
            )


def memory_warnings(hardware: Hardware, memory: Memory, machine_memory: int | None = None) -> Iterator[str]:
    """Yields warnings if the trainer or the engine does not fit into memory.

    On a GPU, the trainer and the engine each need memory only while they work. On a CPU, the trainer and the engine
    need memory all the time.
    """
    if memory.capacity is None:
        together = memory.update_total + memory.engine_weights + memory.engine_workspace + memory.kv_cache
        needed = hardware.gpus_per_node * together
        if machine_memory is not None and needed > machine_memory:
            yield (
                f"trainer and engine need {_gib(needed)}, but this machine has {_gib(machine_memory)}: use a smaller "
                "model, lower rollout.tokens or hardware.sequences_in_flight, or train on GPUs (--profile 8xh100)"
            )
        return
    if memory.update_total > memory.capacity:
        state = memory.weights + memory.gradients + memory.optimizer
        if state + memory.gathered > memory.capacity:
            help_ = "use more GPUs (hardware.nodes, hardware.gpus_per_node)"
        elif not hardware.gradient_checkpointing:
            help_ = "set hardware.gradient_checkpointing=true"
        else:
            flash = "" if hardware.attention == "flash_attn" else "set hardware.attention=flash_attn, "
            help_ = f"{flash}raise hardware.sequence_parallel, and lower hardware.update_tokens and log_prob_tokens"
        yield f"the update needs {_gib(memory.update_total)} of a GPU's {_gib(memory.capacity)}: {help_}"
    if memory.rollout_total > memory.capacity:
        share = (memory.capacity - memory.kept_by_trainer) / memory.capacity - 0.02
        offload = {"none": "optimizer", "optimizer": "all"}.get(hardware.offload)
        changes = [f"hardware.offload={offload}"] if offload else []
        if share > 0.2:
            changes.append(f"hardware.engine_memory_share={int(share * 100) / 100}")
        yield (
            f"engine and trainer need {_gib(memory.rollout_total)} of a GPU's {_gib(memory.capacity)} while "
            f"rollouts run: set {' or '.join(changes)}"
        )


def _engine_warnings(hardware: Hardware, memory: Memory) -> Iterator[str]:
    if memory.capacity is None:
        return
    full, sent = memory.full_length_rollouts, memory.sequences_in_flight
    if not full:
        yield (
            f"an engine has {_gib(memory.kv_cache)} per GPU for the KV cache, which is too little for one rollout of "
            f"full length: set hardware.tensor_parallel={2 * hardware.tensor_parallel}, or raise "
            "hardware.engine_memory_share"
        )
    elif sent > MOST_IN_FLIGHT * full:
        yield (
            f"an engine has room for {full} rollouts of full length, but gets {sent}, and will preempt and "
            f"recompute many of them: set hardware.sequences_in_flight={MOST_IN_FLIGHT * full}, or raise "
            "hardware.tensor_parallel"
        )


def _refill_warnings(recipe: StageRecipe) -> Iterator[str]:
    """Yields a warning that replacing groups adds rollouts to a step. The number of groups that are replaced is not
    known before a run."""
    refills = recipe.groups.refill_batches
    if refills:
        most = round((1 + refills) * recipe.rollout.prompts * recipe.rollout.rollouts)
        yield (
            f"groups without a gradient are replaced, so a step may have up to {1 + refills:g} times rollout.prompts "
            f"problems, {most:,} rollouts. The estimate uses the share of groups without a gradient in the run that "
            "--like names, or 0 without --like"
        )


def _recover_warnings(recipe: StageRecipe) -> Iterator[str]:
    """Yields a warning that recoveries add rollouts to a step. The number of failed calls is not known before a run."""
    recover, prompts = recipe.recover, recipe.rollout.prompts
    if recover.failures:
        yield (
            f"up to {recover.failures} failed calls of each problem get {recover.rollouts} extra rollouts, so a step "
            f"ends with up to {prompts * recover.most:,} extra rollouts. The estimate uses the number of failed calls "
            "in the run that --like names, or the maximum without --like"
        )


def _rounds_warnings(recipe: StageRecipe) -> Iterator[str]:
    """Yields warnings about an RL stage's settings for rollouts in rounds."""
    rounds, algorithm = recipe.rounds, recipe.algorithm
    if rounds is None:
        return
    prompts = recipe.rollout.prompts
    yield (
        f"groups are rolled out in rounds of {rounds.size}, so a step makes {prompts * rounds.size:,} to "
        f"{prompts * rounds.most:,} rollouts, not counting replaced groups. The estimate uses the "
        "share of rollouts that were made in the run that --like names, or the maximum without --like"
    )
    share = rounds.max_trained(rounds.size, recipe.groups.keep) / recipe.groups.keep
    weight = f"only about {100 * share:.0f} % of the weight that they have without rounds"
    if algorithm.objective == "grpo" and algorithm.loss_weights == "tokens":
        yield (
            "groups that stop early have fewer training tokens, and every token has the same weight, so problems of "
            f"medium difficulty have {weight}: set algorithm.loss_weights=problems"
        )
    # With pass-k, one rollout of a group is trained on, whatever the size of the group.
    if algorithm.objective not in ("grpo", "pass-k"):
        yield (
            f"groups that stop early have fewer training rollouts, so problems of medium difficulty have {weight}. "
            f"With algorithm.objective = {algorithm.objective}, no setting undoes this: set "
            "algorithm.objective=grpo and algorithm.loss_weights=problems, or leave groups.round unset"
        )
    if recipe.mode != "sync" and recipe.asynchronous.too_old == "drop":
        yield (
            "groups of hard problems have more rounds, and groups that take more than asynchronous.max_steps = "
            f"{recipe.asynchronous.max_steps} steps are dropped: set asynchronous.too_old=wait"
        )


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"

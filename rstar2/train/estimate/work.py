"""Estimates of a stage's work: rollouts, tokens, tool calls and seconds of a step, the judge's cores, and disk space.

If the user specifies rates in tokens per second, the seconds are calculated from these rates. Otherwise, the seconds
are calculated from the GPU's published speed, multiplied by the share of this speed that is assumed to be reached. The
shares were chosen so that the estimate for the paper's run (14B, 64 MI300X, 510 steps) is the week that the paper's run
took.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rstar2.errors import UserError
from rstar2.model_shape import ModelShape
from rstar2.train.estimate.memory import MASTER, MOMENTS, Memory, Update, gpu_of

if TYPE_CHECKING:
    from rstar2.train.recipe import RolloutSettings, SftRecipe, StageRecipe

BYTES_OF_VERDICT = 60
"""Number of bytes of a line in the filter's `verdicts.jsonl`."""
BYTES_OF_TRACE_TOKEN = 32
"""Number of bytes of a token in a trace: its id, mask, log-probability and text in JSON."""
BYTES_OF_QUEUED_TOKEN = 48 + BYTES_OF_TRACE_TOKEN
"""Number of bytes of a token in VERL's queue: five integers of 8 bytes, two of 4 bytes, and the token's part of the
rollout's trace."""


@dataclass(frozen=True)
class Assumptions:
    """Values that are not known before a run. `rstar2.train.estimate.measured` takes some of these values from another
    run."""

    mean_tokens: float | None = None
    """Mean number of tokens of a rollout after its prompt. If the number is None, it is calculated with
    `mean_token_share`."""
    tokens_of_largest_step: float | None = None
    """Mean number of tokens of a rollout in the step that trains on the most tokens, and therefore needs the most
    memory. If the mean is None, it is the same as in other steps."""
    mean_prompt_tokens: float = 250
    trained_groups: float = 1.0
    """The share of groups that give a gradient, and are therefore trained on. If the recipe replaces groups without a
    gradient, the step trains on one group per problem."""
    calls_per_rollout: float = 2.75
    """Mean number of tool calls per rollout. The paper has 45,000 tool calls in a step of 16,384 rollouts."""
    made_share: float = 1.0
    """The mean number of rollouts per group, as a share of a full group. The share is below 1 if rounds stop groups
    early."""
    failed_calls_per_rollout: float | None = None
    """Mean number of failed calls per rollout, from which the number of recoveries (`recover`) follows. If the mean is
    None, a step has as many recoveries as the recipe allows."""
    recovery_tokens: float | None = None
    """Mean number of tokens of a recovery, without the turns that it copies from the original rollout. If the mean is
    None, a recovery has half the tokens of an average rollout, as if failed calls were in the middle of a rollout."""
    program_s: float = 0.3
    """Number of seconds for which a tool call uses one core. The default is the paper's mean time from a call to its
    answer."""
    mean_token_share: float = 0.5
    """A rollout's mean length as a share of its token budget. In the paper, the mean length is 4K of 8K tokens at the
    end of stage 1, and 8K of 12K tokens at the end of stage 3."""
    problems: int = 42_000
    """Number of training problems that the filter before a stage samples. The default is the paper's number of
    problems."""
    peak_of_calls: float = 2.0
    """The peak number of calls per second, as a multiple of the mean number."""
    memory_speed_share: float = 0.4
    """The share of a GPU's memory bandwidth that is reached while the GPU generates."""
    compute_share: float = 0.2
    """The share of a GPU's operations per second that is reached in the update."""
    busy_share: float = 0.5
    """The share of the rollouts' time in which the engines are full. In the remaining time, only the longest rollouts
    still run."""
    disk_bytes_per_s: float = 1e9
    """Number of bytes per second that all ranks together write to or read from the run's folder."""
    between_steps_s: float = 20.0
    """Number of seconds that a step spends on other work: sending weights to the engines, the queue, and advantages. On
    a CPU, other work always takes 3 s."""

    def rollout_tokens(self, rollout: RolloutSettings) -> float:
        """Returns the mean number of tokens of a rollout after its prompt."""
        share = self.mean_token_share * rollout.tokens
        return min(share if self.mean_tokens is None else self.mean_tokens, rollout.tokens)

    def prompt_tokens(self, rollout: RolloutSettings) -> float:
        """Returns the mean number of tokens of a prompt."""
        return min(self.mean_prompt_tokens, rollout.prompt_tokens)

    def times_rolled_out(self, recipe: StageRecipe) -> float:
        """Returns how many groups are rolled out for each problem of a step. The number is above 1 if groups are
        replaced."""
        return 1 / max(self.trained_groups, 1 / (1 + recipe.groups.refill_batches))

    def made_rollouts(self, recipe: StageRecipe) -> int:
        """Returns the number of rollouts of a step, including the rollouts of replaced groups."""
        share = 1.0 if recipe.rounds is None else self.made_share
        full = recipe.rollout.prompts * recipe.rollout.rollouts
        return round(full * share * self.times_rolled_out(recipe))

    def recoveries(self, recipe: StageRecipe) -> int:
        """Returns the number of recoveries of a step, including the recoveries of replaced groups."""
        return round(
            self._recoveries_per_problem(recipe) * recipe.rollout.prompts * self.times_rolled_out(recipe)
        )

    def _recoveries_per_problem(self, recipe: StageRecipe) -> float:
        """Returns the expected number of recoveries per group.

        The expected number is below the maximum, because many groups have fewer failed calls than `recover.failures`.
        The number of failed calls per group is assumed to have a Poisson distribution.
        """
        most, per_rollout = recipe.recover.failures, self.failed_calls_per_rollout
        if per_rollout is None:
            return recipe.recover.most
        mean = (
            per_rollout * self.made_rollouts(recipe) / self.times_rolled_out(recipe) / recipe.rollout.prompts
        )
        drawn, share = float(most), math.exp(-mean)
        for count in range(most):
            drawn -= (most - count) * share
            share *= mean / (count + 1)
        return drawn * recipe.recover.rollouts

    def tokens_of_recovery(self, rollout: RolloutSettings) -> float:
        """Returns the mean number of tokens of a recovery, without the turns that it copies from the original
        rollout."""
        usual = self.rollout_tokens(rollout) / 2
        return min(usual if self.recovery_tokens is None else self.recovery_tokens, rollout.tokens)

    def update(self, recipe: StageRecipe) -> Update:
        """Returns the rollouts that the largest step trains on. The tokens of a recovery include the turns that it
        copies from the original rollout."""
        rollout = recipe.rollout
        trained_groups = 1.0 if recipe.groups.refill_batches else self.trained_groups
        tokens = min(self.tokens_of_largest_step or self.rollout_tokens(rollout), rollout.tokens)
        trained = max(1, round(trained_groups * rollout.prompts * recipe.groups.keep))
        trained += self.kept_recoveries(recipe)
        return Update(trained, self.prompt_tokens(rollout) + tokens)

    def kept_recoveries(self, recipe: StageRecipe) -> int:
        """Returns the largest expected number of recoveries that a step trains on."""
        return round(self._recoveries_per_problem(recipe) * recipe.rollout.prompts)


MOST_TPS = 1e9
"""Upper limit on the tokens per second per GPU that a user may specify. The fastest GPUs reach less than a thousandth
of this limit."""


@dataclass(frozen=True)
class Rates:
    """The user's rates in tokens per second per GPU. A rate of None is calculated from the GPU's speed.

    Raises:
        UserError: a rate is not above 0, or is above `MOST_TPS`.
    """

    generate: float | None = None
    update: float | None = None

    def __post_init__(self) -> None:
        for name, stated in (("--generate-tps", self.generate), ("--update-tps", self.update)):
            if stated is not None and not 0 < stated <= MOST_TPS:
                raise UserError(
                    f"{name} {stated:g}: must be above 0 and at most {MOST_TPS:g}",
                    "Specify the tokens per second per GPU.",
                )


@dataclass(frozen=True)
class Step:
    """The estimate of one training step."""

    rollouts: int
    """Number of rollouts, including the rollouts of replaced groups, but without `recoveries`. If `groups.round` is
    set, every group is assumed to be full, unless another run provides `made_share`."""
    recoveries: int
    """Number of recoveries (`recover`). Assumes the maximum number of recoveries, unless another run provides the
    number of failed calls."""
    kept_rollouts: int
    """Maximum number of rollouts that are trained on, including recoveries. Fewer rollouts are trained on if groups
    without a gradient are dropped."""
    tokens: int
    """Expected total number of tokens of all rollouts and recoveries, including tool output."""
    most_tokens: int
    """Total number of tokens of all rollouts and recoveries if each used its whole token budget."""
    updated_tokens: int
    """Number of tokens of the rollouts that are trained on, including their prompts."""
    tool_calls: int
    generate_tokens_per_s: float
    """Number of tokens per second that one GPU generates."""
    update_tokens_per_s: float
    """Number of tokens per second that one GPU processes in the update: log-probabilities, forward and backward
    pass."""
    token_s: float
    """Seconds per generated token of a running rollout."""
    generate_s: float
    update_s: float
    seconds: float


@dataclass(frozen=True)
class Judge:
    """The judge's load in a step."""

    tool_calls: int
    calls_per_s: float
    """Mean number of calls per second while rollouts run."""
    program_s: float
    """Number of seconds for which one call uses a core of the judge."""
    cores: int
    """Number of cores that the judge needs so that calls do not wait long even at the peak."""
    in_flight: int
    """Number of rollouts that may wait for the judge at the same time."""
    workers: int | None = None
    """Number of the judge's workers, or None if the number is unknown."""


@dataclass(frozen=True)
class Disk:
    """The number of bytes that a stage or SFT needs in the run's folder."""

    checkpoint: int
    """Number of bytes of a checkpoint, which has the weights and AdamW's moments in fp32."""
    kept_checkpoints: int
    """Number of checkpoints that stay on the disk."""
    model: int
    """Number of bytes of a model in fp32. A stage makes one model at its end, and another model every
    `checkpoint.export_every` steps."""
    filter: int
    """Number of bytes that the filter before the stage writes."""
    queue: int
    """Number of bytes of the rollouts in each checkpoint. Only asynchronous modes store rollouts in checkpoints."""
    total: int
    """Number of bytes of all checkpoints, models and other files, including one additional checkpoint, which exists
    while a checkpoint is written."""


@dataclass(frozen=True)
class Saving:
    """The estimate of how a stage or SFT saves checkpoints."""

    steps_between: int
    """Number of steps from one checkpoint to the next."""
    step_s: float
    """Number of seconds that one training step takes."""
    save_s: float
    """Number of seconds that the trainer needs to save a checkpoint."""
    lost_s: float
    """Maximum number of seconds of work that a kill can lose: all steps since the last checkpoint, and an unfinished
    save."""
    signal_before_s: float
    """Number of seconds before the kill at which a cluster's scheduler must send its signal, so that the step can be
    finished and saved."""


def stage_step(
    shape: ModelShape, recipe: StageRecipe, memory: Memory, rates: Rates, assumptions: Assumptions
) -> Step:
    rollout, hardware = recipe.rollout, recipe.hardware
    gpus = hardware.nodes * hardware.gpus_per_node
    rollouts, recoveries = assumptions.made_rollouts(recipe), assumptions.recoveries(recipe)
    trained = rollout.prompts * min(recipe.groups.keep, rollout.rollouts)
    trained += assumptions.kept_recoveries(recipe)
    mean, prompt = assumptions.rollout_tokens(rollout), assumptions.prompt_tokens(rollout)
    per_token_s, at_once = _token_s(shape, recipe, memory, assumptions)
    generate = rates.generate or at_once / per_token_s / hardware.tensor_parallel
    context = Update(trained, mean + prompt).mean_context(recipe.longest)
    passes = recipe.optim.epochs
    flop = update_flop(shape, context, hardware.gradient_checkpointing, log_probs=True, passes=passes)
    update = (
        rates.update / passes
        if rates.update
        else assumptions.compute_share * gpu_of(hardware).flop_per_s / flop
    )
    recovery_tokens = assumptions.tokens_of_recovery(rollout)
    tokens = int(rollouts * mean + recoveries * recovery_tokens)
    updated = int(trained * (mean + prompt))
    # At the end of each round, only the longest rollouts still run. Recoveries are one more round, which begins in the
    # middle of a rollout.
    rounds = (1 if recipe.rounds is None else recipe.rounds.number) + (0.5 if recoveries else 0.0)
    alone_s = 0.0 if rates.generate else rounds * rollout.tokens * per_token_s
    generate_s = max(tokens / (generate * gpus * assumptions.busy_share), alone_s)
    update_s = updated / (update * gpus)
    between_s = assumptions.between_steps_s if hardware.device == "cuda" else 3.0
    return Step(
        rollouts=rollouts,
        recoveries=recoveries,
        kept_rollouts=trained,
        tokens=tokens,
        most_tokens=(rollouts + recoveries) * rollout.tokens,
        updated_tokens=updated,
        # A recovery has the same share of a rollout's calls as of its tokens.
        tool_calls=int(
            (rollouts + recoveries * recovery_tokens / max(mean, 1.0))
            * min(assumptions.calls_per_rollout, rollout.max_turns)
        ),
        generate_tokens_per_s=generate,
        update_tokens_per_s=update,
        token_s=at_once / (generate * hardware.tensor_parallel),
        generate_s=generate_s,
        update_s=update_s,
        seconds=generate_s + update_s + between_s,
    )


def update_flop(
    shape: ModelShape, context: float, checkpointing: bool, log_probs: bool, passes: int = 1
) -> float:
    """Returns the number of floating-point operations that an update needs for one token.

    Args:
        context: Mean number of tokens that the token attends to.
        checkpointing: Whether the backward pass computes the layers again.
        log_probs: Whether a forward pass before the update computes log-probabilities.
        passes: Number of passes that the update makes over the same rollouts (`optim.epochs`).
    """
    attention = shape.attention_flop(context)
    layers = 2 * shape.layers * shape.layer_parameters + attention
    forward = 2 * shape.matmul_parameters + attention
    # Flash attention's backward pass recomputes the scores: it has five matrix products, and the forward pass has two.
    backward = 4 * shape.matmul_parameters + 2.5 * attention
    return log_probs * forward + passes * (forward + checkpointing * layers + backward)


def _token_s(
    shape: ModelShape, recipe: StageRecipe, memory: Memory, assumptions: Assumptions
) -> tuple[float, float]:
    """Returns the seconds that an engine takes for one token of every running rollout, and the number of running
    rollouts.

    The time is the longer of two times: reading the weights and the KV cache of all rollouts, and computing.
    """
    hardware, rollout = recipe.hardware, recipe.rollout
    gpu, split = gpu_of(hardware), hardware.tensor_parallel
    engines = max(1, hardware.nodes * hardware.gpus_per_node // split)
    width = 2 if hardware.device == "cuda" else 4
    context = assumptions.prompt_tokens(rollout) + assumptions.rollout_tokens(rollout) / 2
    kv = shape.kv_bytes(width, split) * context
    fitting = memory.kv_cache / kv
    at_once = max(1.0, min(hardware.sequences_in_flight, recipe.rollouts_at_once / engines, fitting))
    read_s = (memory.engine_weights + at_once * kv) / (assumptions.memory_speed_share * gpu.bytes_per_s)
    flop = 2 * shape.matmul_parameters + shape.attention_flop(context)
    compute_s = flop / split * at_once / (assumptions.compute_share * gpu.flop_per_s)
    # The launch of kernels and sampling take 4 ms for every model.
    return max(read_s, compute_s) + 0.004, at_once


def stage_judge(recipe: StageRecipe, step: Step, assumptions: Assumptions, workers: int | None) -> Judge:
    per_s = step.tool_calls / step.generate_s
    busiest = -(-int(1000 * per_s * assumptions.program_s * assumptions.peak_of_calls) // 1000)
    # A rollout waits for its call, so there are never more calls than rollouts in flight.
    in_flight = min(step.rollouts, recipe.hardware.engines * recipe.hardware.sequences_in_flight)
    cores = max(1, min(busiest, in_flight))
    return Judge(step.tool_calls, per_s, assumptions.program_s, cores, in_flight, workers)


def stage_disk(
    shape: ModelShape, checkpoints: int, models: int = 1, filtered: int = 0, queue: int = 0
) -> Disk:
    """Estimates the disk space of a stage.

    Args:
        shape: the model's shape.
        checkpoints: number of checkpoints that stay on the disk.
        models: number of models that are made from checkpoints.
        filtered: number of bytes that the filter before the stage writes.
        queue: number of bytes of the rollouts in each checkpoint.
    """
    model = MASTER * shape.parameters
    checkpoint = (MASTER + MOMENTS) * shape.parameters
    total = (checkpoints + 1) * (checkpoint + queue) + models * model + filtered
    return Disk(checkpoint, checkpoints, model, filtered, queue, total)


def saving(
    every: int, every_minutes: float, step_s: float, checkpoint: int, assumptions: Assumptions
) -> Saving:
    """Estimates how long saving a checkpoint takes, and how much work a kill can lose.

    Args:
        every: number of steps after which a checkpoint is saved.
        every_minutes: number of minutes after which a checkpoint is saved, if fewer than `every` steps have ended by
            then.
        step_s: number of seconds that a step takes.
        checkpoint: number of bytes of a checkpoint.
        assumptions: the assumptions, which include the speed of the disk.
    """
    save_s = checkpoint / assumptions.disk_bytes_per_s
    between = min(every, max(1, math.ceil(60 * every_minutes / step_s)))
    return Saving(between, step_s, save_s, between * step_s + save_s, step_s + save_s)


def sft_step_s(shape: ModelShape, recipe: SftRecipe, mean_tokens: float, assumptions: Assumptions) -> float:
    """Returns the number of seconds that an SFT step takes.

    Args:
        shape: the model's shape.
        recipe: SFT's recipe.
        mean_tokens: mean number of tokens of a conversation.
        assumptions: the assumptions, which include the share of the GPU's speed that is reached.
    """
    hardware = recipe.hardware
    flop = update_flop(shape, mean_tokens / 2, hardware.gradient_checkpointing, log_probs=False)
    per_s = assumptions.compute_share * gpu_of(hardware).flop_per_s / flop
    return recipe.batch * mean_tokens / (per_s * hardware.ranks)


def queue_disk(recipe: StageRecipe, step: Step, assumptions: Assumptions) -> int:
    """Returns the number of bytes of the rollouts in a checkpoint: the rollouts of the checkpoint's step, and the
    rollouts that were started early for later steps."""
    if recipe.mode == "sync":
        return 0
    prompt, mean = assumptions.prompt_tokens(recipe.rollout), assumptions.rollout_tokens(recipe.rollout)
    # The queue also has the turns that recoveries copy. `step.tokens` does not include these turns.
    begun_with = step.recoveries * (mean - assumptions.tokens_of_recovery(recipe.rollout))
    tokens = step.tokens + max(begun_with, 0.0) + (step.rollouts + step.recoveries) * prompt
    return int((1 + recipe.asynchronous.batches_ahead) * tokens * BYTES_OF_QUEUED_TOKEN)


def filter_disk(recipe: StageRecipe, assumptions: Assumptions) -> int:
    """Returns the number of bytes that the filter before a stage writes: a line for each sample, and the sample's trace
    if traces are saved."""
    trace = BYTES_OF_TRACE_TOKEN * assumptions.rollout_tokens(recipe.rollout)
    each = BYTES_OF_VERDICT + (trace if recipe.keep_filter_traces else 0)
    return int(assumptions.problems * recipe.filter_samples * each)


def filter_hours(recipe: StageRecipe, step: Step, assumptions: Assumptions) -> float:
    """Returns the number of hours in which all engines sample the training problems before a stage.

    Unlike in a step, the engines stay full, because there are always further samples to start.
    """
    tokens = assumptions.problems * recipe.filter_samples * assumptions.rollout_tokens(recipe.rollout)
    per_s = step.generate_tokens_per_s * recipe.hardware.tensor_parallel * recipe.hardware.engines
    return tokens / per_s / 3600

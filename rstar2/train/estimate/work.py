"""What a stage has to do: rollouts, tokens and tool calls of a step, its seconds, the judge's cores, the disk.

The seconds come from stated tokens per second. Where the user states none they follow from the GPU's published speed,
by shares so chosen that the paper's run (14B, 64 MI300X, 510 steps) comes out at the week that it took.
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
BYTES_OF_TRACE_TOKEN = 32
"""Its id, mask, log-probability and text in JSON."""
BYTES_OF_QUEUED_TOKEN = 48 + BYTES_OF_TRACE_TOKEN
"""In VERL's queue: five integers of 8 bytes and two of 4 by position, and the rollout's trace."""


@dataclass(frozen=True)
class Assumptions:
    """What is not known before a run; `rstar2.train.estimate.measured` takes some of it from another run."""

    mean_tokens: float | None = None
    """Of a rollout after its prompt; None where `mean_token_share` is all that is known."""
    tokens_of_largest_step: float | None = None
    """The same in the step that trains on most tokens, which decides on memory; None where nothing is known of it."""
    mean_prompt_tokens: float = 250
    trained_groups: float = 1.0
    """The share of groups that give a gradient, and so are trained on, in that step. A recipe that replaces the others
    trains on as many as it has problems."""
    calls_per_rollout: float = 2.75
    """The paper's 45,000 a step of 16,384 rollouts."""
    made_share: float = 1.0
    """The share of a full group's rollouts that are made where groups are rolled out in rounds: all, at most."""
    failed_calls_per_rollout: float | None = None
    """Decides how many extra rollouts after failed calls (`recover`) are made. None: as many as the recipe allows."""
    recovery_tokens: float | None = None
    """Tokens that an extra rollout after a failed call has after its beginning. None: half of an average rollout's, as
    if a failed call were in its middle."""
    program_s: float = 0.3
    """Core seconds of a tool call; the paper's mean from call to answer."""
    mean_token_share: float = 0.5
    """A rollout's mean length as a share of its budget. In the paper 4K of 8K at the end of stage 1, 8K of 12K at the
    end of stage 3."""
    problems: int = 42_000
    """Training problems, for the filter before stage 3; the paper's."""
    peak_of_calls: float = 2.0
    """How far the calls per second rise above their mean."""
    memory_speed_share: float = 0.4
    """Of a GPU's memory speed, while it generates."""
    compute_share: float = 0.2
    """Of a GPU's operations per second, while it updates."""
    busy_share: float = 0.5
    """Of the time in which rollouts run, that the engines are full: the longest rollouts end alone."""
    disk_bytes_per_s: float = 1e9
    """At which all ranks together write and read the run's folder."""
    between_steps_s: float = 20.0
    """Weights to the engines, the queue, advantages; 3 s on a CPU."""

    def rollout_tokens(self, rollout: RolloutSettings) -> float:
        """Of an average rollout after its prompt."""
        share = self.mean_token_share * rollout.tokens
        return min(share if self.mean_tokens is None else self.mean_tokens, rollout.tokens)

    def prompt_tokens(self, rollout: RolloutSettings) -> float:
        """Of an average prompt."""
        return min(self.mean_prompt_tokens, rollout.prompt_tokens)

    def times_rolled_out(self, recipe: StageRecipe) -> float:
        """Groups of a step per problem of it: more than one where those without a gradient are replaced."""
        return 1 / max(self.trained_groups, 1 / (1 + recipe.groups.refill_batches))

    def made_rollouts(self, recipe: StageRecipe) -> int:
        """Returns how many rollouts a step makes, with those of replaced groups."""
        share = 1.0 if recipe.rounds is None else self.made_share
        full = recipe.rollout.prompts * recipe.rollout.rollouts
        return round(full * share * self.times_rolled_out(recipe))

    def recoveries(self, recipe: StageRecipe) -> int:
        """Returns how many extra rollouts after failed calls a step makes, with those of replaced groups."""
        return round(
            self._recoveries_per_problem(recipe) * recipe.rollout.prompts * self.times_rolled_out(recipe)
        )

    def _recoveries_per_problem(self, recipe: StageRecipe) -> float:
        """Returns how many are expected per problem.

        Failed calls are taken to be Poisson-distributed, so that some problems have fewer than `recover.failures`.
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
        """Returns the tokens that an average rollout after a failed call has after its beginning."""
        usual = self.rollout_tokens(rollout) / 2
        return min(usual if self.recovery_tokens is None else self.recovery_tokens, rollout.tokens)

    def update(self, recipe: StageRecipe) -> Update:
        """What the largest step trains on. Extra rollouts after failed calls count with what they began with."""
        rollout = recipe.rollout
        trained_groups = 1.0 if recipe.groups.refill_batches else self.trained_groups
        tokens = min(self.tokens_of_largest_step or self.rollout_tokens(rollout), rollout.tokens)
        kept = max(1, round(trained_groups * rollout.prompts * recipe.groups.keep))
        kept += self.kept_recoveries(recipe)
        return Update(kept, self.prompt_tokens(rollout) + tokens)

    def kept_recoveries(self, recipe: StageRecipe) -> int:
        """Returns how many extra rollouts after failed calls a step trains on, at most."""
        return round(self._recoveries_per_problem(recipe) * recipe.rollout.prompts)


MOST_TPS = 1e9
"""Tokens per second of one GPU, thousands of times what the fastest reach."""


@dataclass(frozen=True)
class Rates:
    """Tokens per second of one GPU, as the user states them; None where they are to be calculated.

    A UserError for what no GPU reaches, infinite numbers included.
    """

    generate: float | None = None
    update: float | None = None

    def __post_init__(self) -> None:
        for name, stated in (("--generate-tps", self.generate), ("--update-tps", self.update)):
            if stated is not None and not 0 < stated <= MOST_TPS:
                raise UserError(
                    f"{name} {stated:g}: must be above 0 and at most {MOST_TPS:g}",
                    "Give the tokens per second of one GPU.",
                )


@dataclass(frozen=True)
class Step:
    """One training step."""

    rollouts: int
    """Those of replaced groups included, at the expected share of groups that give a gradient. With `groups.round` at
    most, unless a run has shown which share of them rounds make. Without `recoveries`."""
    recoveries: int
    """Extra rollouts after failed calls (`recover`). At most, unless a run has shown how many calls fail."""
    kept_rollouts: int
    """At most, recoveries included; groups without a signal are dropped."""
    tokens: int
    """Of all rollouts and recoveries, tool output included, at their mean length."""
    most_tokens: int
    """If every rollout ran to its budget."""
    updated_tokens: int
    """Of the kept rollouts and their prompts."""
    tool_calls: int
    generate_tokens_per_s: float
    """Of one GPU."""
    update_tokens_per_s: float
    """Of one GPU; log-probabilities, forward and backward pass."""
    token_s: float
    """In which a rollout that an engine works on grows by one token."""
    generate_s: float
    update_s: float
    seconds: float


@dataclass(frozen=True)
class Judge:
    """What the judge has to do in a step."""

    tool_calls: int
    calls_per_s: float
    """On average, while rollouts run."""
    program_s: float
    cores: int
    """So that the calls of the busiest moments do not wait long."""
    in_flight: int
    """Rollouts that may wait for it at the same time."""
    workers: int | None = None
    """Those of the judge of this run; None where it is not known."""


@dataclass(frozen=True)
class Disk:
    """Bytes below the run's folder."""

    checkpoint: int
    """Weights and AdamW's moments in fp32."""
    kept_checkpoints: int
    model: int
    """A model that is made of a checkpoint, in fp32: at the end of the stage, and every `checkpoint.export_every`."""
    filter: int
    """What the filter before the stage leaves."""
    queue: int
    """Rollouts that each checkpoint holds in addition; asynchronous modes only."""
    total: int
    """With one checkpoint being written."""


@dataclass(frozen=True)
class Saving:
    """Checkpoints of a stage, or of SFT."""

    steps_between: int
    step_s: float
    save_s: float
    """That saving one takes."""
    lost_s: float
    """Work that a kill loses at most: all steps since the last checkpoint, and one that is being saved."""
    signal_before_s: float
    """How long before it kills the trainer a scheduler has to send its signal, so that the step is finished and
    saved."""


def stage_step(
    shape: ModelShape, recipe: StageRecipe, memory: Memory, rates: Rates, given: Assumptions
) -> Step:
    rollout, hardware = recipe.rollout, recipe.hardware
    gpus = hardware.nodes * hardware.gpus_per_node
    rollouts, recoveries = given.made_rollouts(recipe), given.recoveries(recipe)
    kept = rollout.prompts * min(recipe.groups.keep, rollout.rollouts)
    kept += given.kept_recoveries(recipe)
    mean, prompt = given.rollout_tokens(rollout), given.prompt_tokens(rollout)
    per_token_s, at_once = _token_s(shape, recipe, memory, given)
    generate = rates.generate or at_once / per_token_s / hardware.tensor_parallel
    context = Update(kept, mean + prompt).mean_context(recipe.longest)
    passes = recipe.optim.epochs
    flop = update_flop(shape, context, hardware.gradient_checkpointing, log_probs=True, passes=passes)
    update = (
        rates.update / passes if rates.update else given.compute_share * gpu_of(hardware).flop_per_s / flop
    )
    own = given.tokens_of_recovery(rollout)
    tokens = int(rollouts * mean + recoveries * own)
    updated = int(kept * (mean + prompt))
    # The longest rollouts end alone, those of each round after those of the one before. Recoveries are one more round,
    # which begins in the middle of a rollout.
    rounds = (1 if recipe.rounds is None else recipe.rounds.number) + (0.5 if recoveries else 0.0)
    alone_s = 0.0 if rates.generate else rounds * rollout.tokens * per_token_s
    generate_s = max(tokens / (generate * gpus * given.busy_share), alone_s)
    update_s = updated / (update * gpus)
    between_s = given.between_steps_s if hardware.device == "cuda" else 3.0
    return Step(
        rollouts=rollouts,
        recoveries=recoveries,
        kept_rollouts=kept,
        tokens=tokens,
        most_tokens=(rollouts + recoveries) * rollout.tokens,
        updated_tokens=updated,
        # Of a rollout's calls, a recovery has the share that it has of its tokens.
        tool_calls=int(
            (rollouts + recoveries * own / max(mean, 1.0)) * min(given.calls_per_rollout, rollout.max_turns)
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
    """Floating-point operations that an update needs for one token.

    Args:
        context: Mean number of tokens that the token attends to.
        checkpointing: Whether the backward pass computes the layers again.
        log_probs: Whether a forward pass before the update computes log-probabilities.
        passes: Number of passes that the update makes over the same rollouts (`optim.epochs`).
    """
    attention = shape.attention_flop(context)
    layers = 2 * shape.layers * shape.layer_parameters + attention
    forward = 2 * shape.matmul_parameters + attention
    # Flash attention's backward pass computes the scores again: five products where the forward pass has two.
    backward = 4 * shape.matmul_parameters + 2.5 * attention
    return log_probs * forward + passes * (forward + checkpointing * layers + backward)


def _token_s(
    shape: ModelShape, recipe: StageRecipe, memory: Memory, given: Assumptions
) -> tuple[float, float]:
    """Seconds in which an engine writes one token of each rollout in flight, and how many rollouts these are.

    It reads its weights and the KV cache of all rollouts for it, or computes, whichever takes longer.
    """
    hardware, rollout = recipe.hardware, recipe.rollout
    gpu, split = gpu_of(hardware), hardware.tensor_parallel
    engines = max(1, hardware.nodes * hardware.gpus_per_node // split)
    width = 2 if hardware.device == "cuda" else 4
    context = given.prompt_tokens(rollout) + given.rollout_tokens(rollout) / 2
    kv = shape.kv_bytes(width, split) * context
    fitting = memory.kv_cache / kv
    at_once = max(1.0, min(hardware.sequences_in_flight, recipe.rollouts_at_once / engines, fitting))
    read_s = (memory.engine_weights + at_once * kv) / (given.memory_speed_share * gpu.bytes_per_s)
    flop = 2 * shape.matmul_parameters + shape.attention_flop(context)
    compute_s = flop / split * at_once / (given.compute_share * gpu.flop_per_s)
    # Launching kernels and sampling take this long whatever the model.
    return max(read_s, compute_s) + 0.004, at_once


def stage_judge(recipe: StageRecipe, step: Step, given: Assumptions, workers: int | None) -> Judge:
    per_s = step.tool_calls / step.generate_s
    busiest = -(-int(1000 * per_s * given.program_s * given.peak_of_calls) // 1000)
    # A rollout waits for its call, so there are never more calls than rollouts in flight.
    in_flight = min(step.rollouts, recipe.hardware.engines * recipe.hardware.sequences_in_flight)
    cores = max(1, min(busiest, in_flight))
    return Judge(step.tool_calls, per_s, given.program_s, cores, in_flight, workers)


def stage_disk(shape: ModelShape, kept: int, models: int = 1, filtered: int = 0, queue: int = 0) -> Disk:
    """Disk of a stage that keeps so many checkpoints and models, with the bytes of its filter and of a queue."""
    model = MASTER * shape.parameters
    checkpoint = (MASTER + MOMENTS) * shape.parameters
    total = (kept + 1) * (checkpoint + queue) + models * model + filtered
    return Disk(checkpoint, kept, model, filtered, queue, total)


def saving(every: int, every_minutes: float, step_s: float, checkpoint: int, given: Assumptions) -> Saving:
    """What saving and a kill cost. `checkpoint` is in bytes; it is saved every `every` steps, or `every_minutes`."""
    save_s = checkpoint / given.disk_bytes_per_s
    between = min(every, max(1, math.ceil(60 * every_minutes / step_s)))
    return Saving(between, step_s, save_s, between * step_s + save_s, step_s + save_s)


def sft_step_s(shape: ModelShape, recipe: SftRecipe, mean_tokens: float, given: Assumptions) -> float:
    """Seconds of an SFT step, given the mean tokens of a conversation."""
    hardware = recipe.hardware
    flop = update_flop(shape, mean_tokens / 2, hardware.gradient_checkpointing, log_probs=False)
    per_s = given.compute_share * gpu_of(hardware).flop_per_s / flop
    return recipe.batch * mean_tokens / (per_s * hardware.ranks)


def queue_disk(recipe: StageRecipe, step: Step, given: Assumptions) -> int:
    """Bytes of the rollouts of a checkpoint: those of its step, and those that run ahead, at their mean length."""
    if recipe.mode == "sync":
        return 0
    prompt, mean = given.prompt_tokens(recipe.rollout), given.rollout_tokens(recipe.rollout)
    # The queue also has what recoveries began with, which `step.tokens` leaves out.
    begun_with = step.recoveries * (mean - given.tokens_of_recovery(recipe.rollout))
    tokens = step.tokens + max(begun_with, 0.0) + (step.rollouts + step.recoveries) * prompt
    return int((1 + recipe.asynchronous.batches_ahead) * tokens * BYTES_OF_QUEUED_TOKEN)


def filter_disk(recipe: StageRecipe, given: Assumptions) -> int:
    """Bytes that the filter before a stage leaves: a line for each sample, and its trace where that is kept."""
    trace = BYTES_OF_TRACE_TOKEN * given.rollout_tokens(recipe.rollout)
    each = BYTES_OF_VERDICT + (trace if recipe.keep_filter_traces else 0)
    return int(given.problems * recipe.filter_samples * each)


def filter_hours(recipe: StageRecipe, step: Step, given: Assumptions) -> float:
    """Hours to sample the training problems before a stage that leaves out the solved, on all engines.

    There are always further samples to start, so unlike in a step the engines stay full.
    """
    tokens = given.problems * recipe.filter_samples * given.rollout_tokens(recipe.rollout)
    per_s = step.generate_tokens_per_s * recipe.hardware.tensor_parallel * recipe.hardware.engines
    return tokens / per_s / 3600

"""Recipes: the settings of SFT (stage 0) and of an RL stage.

`rstar2.train.recipe_files` reads recipes from TOML files. `rstar2.train.changeable` lists the keys that may change when
a run is resumed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from rstar2.config import Strict, dotted
from rstar2.judge.schema import Isolation
from rstar2.loop.judge_check import PACKAGES
from rstar2.train.algorithms import OBJECTIVES, AlgorithmSettings
from rstar2.train.attention import Attention, ignored_keys
from rstar2.train.curriculum import CurriculumSettings
from rstar2.train.records.alarms import AlarmSettings
from rstar2.train.recover import RecoverSettings
from rstar2.train.reward import PenaltySettings, checked_reward, penalty_fault
from rstar2.train.rounds import Rounds
from rstar2.train.rules import RuleSettings, rule_fault
from rstar2.train.select import SelectSettings
from rstar2.train.trainer.modes import AsyncSettings, Mode, mode_fault
from rstar2.train.trainer.tracking import TraceTracker, Tracker
from rstar2.train.trainer.verl_limits import engine_fault, queue_fault

STAGES = (1, 2, 3)
VERL_MICRO_BATCH = 4
"""VERL's default for `data.micro_batch_size_per_gpu`."""
LOADING_PROCESSES = "data.dataloader_num_workers"
"""VERL's key for the number of processes that load problems ahead of their step."""
ROLLOUTS_PER_PROCESS = 512
"""One process runs the agent loop for up to this many rollouts in flight."""


class Hardware(Strict):
    """The machines that training runs on, and how the work is divided among them."""

    device: Literal["cuda", "cpu"] = "cuda"
    """The device to train on. cuda: GPUs by NVIDIA or AMD (PyTorch uses this name for both). cpu: one machine without
    GPUs, for tiny models and tests."""
    nodes: int = Field(1, ge=1)
    """Number of machines to train on. More than one machine needs a Ray cluster, whose address is in RAY_ADDRESS."""
    gpus_per_node: int = Field(8, ge=1)
    """Number of GPUs per machine. On a CPU, this key sets the number of ranks (trainer processes)."""
    gpu: Literal["a100", "h100", "h200", "b200", "mi300x"] = "h100"
    """The GPU model for which `rstar2 plan` calculates memory and hours. The key does not affect training. The values
    a100 and h100 mean the versions with 80 GB."""
    tensor_parallel: int = Field(1, ge=1)
    """Number of GPUs that one rollout engine uses. Raise this number if the model's weights do not fit on one GPU."""
    sequence_parallel: int = Field(1, ge=1)
    """Number of GPUs among which the update divides the tokens of a micro-batch (Ulysses). Raise this number if long
    rollouts do not fit into one GPU's memory. Values above 1 need `attention` = "flash_attn"."""
    attention: Attention = "torch"
    """The trainer's implementation of attention. torch: PyTorch's own kernels, one sequence after another without
    padding; no further package is needed. flash_attn: the package flash-attn, which you have to install. padded:
    PyTorch's kernels over a batch that is padded to its longest sequence; for a CPU only."""
    engine_memory_share: float = Field(0.85, gt=0, lt=1)
    """Share of each GPU's memory that a rollout engine uses while it generates, for weights, KV cache and workspace.
    Lower this share if the engine runs out of memory when it starts."""
    sequences_in_flight: int = Field(64, ge=1)
    """Maximum number of rollouts that one engine generates at the same time. Further rollouts wait until one of the
    engine's rollouts ends. If the KV cache has room for far fewer rollouts than this, the engine preempts some rollouts
    and computes them again, which takes time."""
    router: Literal["sessions", "verl"] = "sessions"
    """The method that assigns rollouts to engines if there are several. sessions: our scheduler
    (`rstar2.train.scheduler`). A rollout waits until an engine has room for its KV cache, and its later turns go to the
    same engine. verl: VERL's router, which picks the engine with the fewest requests."""
    update_tokens: int | None = Field(None, ge=1)
    """Maximum number of tokens per GPU in a micro-batch of the update. A lower number saves memory, and a higher number
    makes the update faster. On a CPU, tokens of padding are counted too. The default in RL is the number of tokens of
    the longest possible rollout with its prompt, divided by `sequence_parallel`. The default in SFT is twice
    `max_tokens`."""
    log_prob_tokens: int | None = Field(None, ge=1)
    """Maximum number of tokens per GPU in a micro-batch that only computes log-probabilities. Computing
    log-probabilities takes less memory than the update, so the value can be larger than `update_tokens`. If
    `log_prob_tokens` is unset, the value of `update_tokens` is used."""
    offload: Literal["none", "optimizer", "all"] = "all"
    """The state that the trainer moves to host memory while the engines generate. none: nothing. optimizer: AdamW's
    moments. all: the moments and the weights. Offload less if the GPUs have memory to spare, because moving takes
    time."""
    gradient_checkpointing: bool = True
    """Store only the input of each layer, and recompute the other activations in the backward pass. Gradient
    checkpointing saves memory and costs about one more forward pass."""
    nccl_timeout_s: int = Field(1800, ge=1)
    """The trainer ends if a rank has waited this many seconds for the other ranks in a collective operation. Saving a
    checkpoint contains collective operations, so raise the limit if the disk is slow."""
    worker_start_s: int = Field(600, ge=1)
    """Maximum number of seconds that one of Ray's processes may take to start. Raise this number if imports from a slow
    disk take longer. A Ray cluster that is already running keeps its own limit."""
    hung_after_s: float = Field(3600.0, gt=0)
    """The trainer is stopped as hung after this many seconds without a sign of life. Signs of life are a finished
    rollout, micro-batch or step, a transfer of weights to the engines, and a checkpoint that grows. The limit must be
    longer than the start-up, than one rollout and than one micro-batch. `rstar2 plan` compares the limit with estimates
    of these durations."""
    export_timeout_s: float = Field(3600.0, gt=0)
    """Maximum number of seconds that the conversion of a checkpoint to a model may take."""

    @property
    def engines(self) -> int:
        """Number of rollout engines on all GPUs."""
        return max(1, self.ranks // self.tensor_parallel)

    @property
    def ranks(self) -> int:
        """Number of trainer processes: one per GPU."""
        return self.nodes * self.gpus_per_node

    @model_validator(mode="after")
    def _gpus_divide(self) -> Hardware:
        if self.device == "cpu" and self.nodes > 1:
            raise ValueError(
                f'hardware.nodes = {self.nodes}, but hardware.device = "cpu" trains on one machine: set hardware.nodes '
                "to 1"
            )
        if self.device == "cuda" and self.attention == "padded":
            raise ValueError(
                'hardware.attention = "padded" is for a CPU only: on GPUs VERL counts tokens without padding, so '
                'nothing would limit the memory of a micro-batch; set hardware.attention to "torch" or "flash_attn"'
            )
        if self.gpus_per_node % self.tensor_parallel:
            # Ray places all GPUs of an engine on one node.
            raise ValueError(
                f"the hardware.gpus_per_node = {self.gpus_per_node} GPUs of a node cannot be split into engines of "
                f"hardware.tensor_parallel = {self.tensor_parallel}: choose an engine size that divides the GPUs evenly"
            )
        if self.ranks % self.sequence_parallel:
            raise ValueError(
                f"{self._rank_count} cannot be split into groups of hardware.sequence_parallel = "
                f"{self.sequence_parallel}"
            )
        if self.sequence_parallel > 1 and self.attention != "flash_attn":
            raise ValueError(
                f"hardware.sequence_parallel = {self.sequence_parallel} works only with flash-attn, but "
                f'hardware.attention = "{self.attention}": set hardware.attention to "flash_attn", and install the '
                "package"
            )
        return self

    def batch_fault(self, size: int, description: str) -> str:
        """Returns text that says why an update of `size` samples cannot be split evenly over the ranks, or an empty
        text if the update can be split.

        Without this check VERL would fail in the first update, after a whole step of rollouts, or would train on
        batches of another size than the recipe sets.

        Args:
            description: the samples in words, with the recipe keys that decide their number.
        """
        split = self.sequence_parallel
        if size % (self.ranks // split) == 0:
            return ""
        groups = f", in groups of hardware.sequence_parallel = {split}" if split > 1 else ""
        return f"{description} cannot be split evenly over {self._rank_count}{groups}"

    @property
    def _rank_count(self) -> str:
        """Returns the number of ranks or GPUs in words, with the recipe keys that decide this number."""
        kind = "ranks" if self.device == "cpu" else "GPUs"
        keys = f"hardware.nodes = {self.nodes} times hardware.gpus_per_node = {self.gpus_per_node}"
        return f"{self.ranks} {kind} ({keys})"


class RolloutSettings(Strict):
    """The number of rollouts per step, and the limits of one rollout."""

    prompts: int = Field(512, ge=1)
    """Number of problems per training step."""
    rollouts: int = Field(32, ge=1)
    """Number of rollouts per problem. The paper calls this number 2G. The selection (`select`) chooses G rollouts to
    train on (`groups.keep`)."""
    tokens: int = Field(8192, ge=1)
    """Token budget of a rollout after its prompt. The budget includes tool output. Raise the budget if many rollouts
    are truncated."""
    prompt_tokens: int = Field(2048, ge=1)
    """Maximum number of tokens of a prompt. Problems with a longer prompt are left out, and `rstar2 train` reports at
    its start how many problems are left out. The default is the value in the authors' released code."""
    max_turns: int = Field(10, ge=1)
    """Maximum number of the model's turns in a rollout. A rollout whose last turn is a tool call has no answer."""
    max_bad_calls: int = Field(0, ge=0)
    """A rollout ends without an answer after this many failed calls in a row. 0 means that failed calls never end a
    rollout. Set a limit if the policy repeats broken calls until its token budget is used up. The limit also applies to
    held-out problems."""
    temperature: float = Field(1.0, gt=0)
    """Temperature at which the engines sample rollouts. The trainer computes log-probabilities at the same temperature.
    """
    max_failed_share: float = Field(0.05, ge=0, lt=1)
    """Maximum share of a step's rollouts that may fail because of an engine, the grader or a fault in the agent loop.
    Up to this limit, failed rollouts are left out before the selection. Above the limit, the whole step is discarded,
    because long rollouts fail most often, and the other rollouts would be a biased sample. After a step is discarded,
    training waits at least half a minute and makes new rollouts for the step, with the next problems. Training ends
    when the same step has been discarded three times because of failed rollouts. Both this limit and
    `judge.max_lost_share` also apply to held-out problems."""


class GroupSettings(Strict):
    """Settings for the group of rollouts of one problem. From the group, `select` chooses the rollouts to train on."""

    keep: int = Field(16, ge=2)
    """The number of rollouts per problem that are trained on, out of `rollout.rollouts`. The paper calls this number G.
    In a group that stops early (`round`), the same share of the rollouts is trained on as in a full group, but at least
    two rollouts."""
    round: int | None = Field(None, ge=2)
    """Make the rollouts of a group in rounds of this size, and stop when the group is decided or full
    (`rollout.rollouts`). A group is decided when it is mixed (`enough`), solved (`solved_after`) or hopeless
    (`hopeless_after`). A round ends when all of its rollouts have ended, so short rollouts are not preferred over long
    rollouts. If `round` is unset, all rollouts of a group are made at once, as in the paper. Rounds save rollouts, but
    change the weights of problems in the loss. `algorithm.loss_weights` = "problems" undoes most of this change
    (docs/results/rounds.md)."""
    enough: int | None = Field(None, ge=1)
    """This key has an effect only if `round` is set. A group is mixed when at least this many rewards are above 0, and
    at least this many are not. The default is 2 rewards of each kind. With a value of 1, a selection that keeps half of
    the group may choose only rollouts with equal rewards, and then the group is dropped."""
    solved_after: int | None = Field(None, ge=1)
    """This key has an effect only if `round` is set. A group whose rewards are all above 0 stops after the round in
    which it reaches this many rewards. By default, a group whose rewards are all above 0 stops after the first round.
    If the key is set to `rollout.rollouts`, a group whose rewards are all above 0 never stops early."""
    hopeless_after: int | None = Field(None, ge=1)
    """This key has an effect only if `round` is set. A group without a reward above 0 stops after the round in which it
    reaches this many rewards. By default, a group without a reward above 0 never stops early: the group grows until it
    is mixed or full."""
    drop_equal_rewards: bool | None = None
    """Drop a group if the rewards of its chosen rollouts are all equal, because it has no advantages to learn from.
    Rewards are compared as they are before `penalty` is subtracted. The default is true, unless the objective takes its
    baseline from the whole batch (reinforce++)."""
    refill_batches: float = Field(0, ge=0)
    """Replace dropped groups with groups of new problems, as DAPO does. A step adds at most this number times
    `rollout.prompts` problems. If groups are still missing after the additional problems, or if the value is 0, padding
    takes the place of the missing groups."""


class OptimSettings(Strict):
    """The optimizer AdamW, and the clip range of the objective."""

    lr: float = Field(1e-6, gt=0)
    """Learning rate of AdamW. The learning rate is constant after the warm-up."""
    warmup_steps: int = Field(20, ge=0)
    """Number of steps in which the learning rate rises linearly to `lr`. The first step uses `lr` / `warmup_steps`."""
    state: Literal["fresh", "continued"] = "fresh"
    """The optimizer's initial state. fresh: empty moments and a new warm-up. continued: AdamW's moments and the
    position in the warm-up, from the end of the stage that made the model."""
    epochs: int = Field(1, ge=1)
    """Number of passes over the rollouts of a step. Each pass over the rollouts is one update. With a second pass, the
    policy learns more from each rollout, but the update takes about twice as long. The clip range has an effect only
    from the second pass on. In the paper, each step makes one pass."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay of AdamW. Neither the paper nor the authors' released code states a value for the weight decay."""
    clip_low: float | None = Field(None, gt=0)
    """Lower clip range: the ratio of new to old probability is clipped at 1 minus this value. The default depends on
    `algorithm.objective`, and is 0.2 for most objectives. For the objectives dppo-tv and dppo-kl, this value instead
    limits how far a token's probability may fall, measured as total variation or KL divergence."""
    clip_high: float | None = Field(None, gt=0)
    """Upper clip range: the ratio of new to old probability is clipped at 1 plus this value. The default depends on
    `algorithm.objective`, and is 0.28 for most objectives. For the objectives dppo-tv and dppo-kl, this value instead
    limits how far a token's probability may rise."""


class CheckpointSettings(Strict):
    """Times at which the trainer saves checkpoints, and the number of checkpoints that stay on disk."""

    every: int = Field(10, ge=1)
    """Number of steps between checkpoints. The last step is always saved."""
    every_minutes: float = Field(30.0, gt=0)
    """A step is also saved if the last checkpoint is at least this many minutes old when the step ends. The limit
    bounds the work that is lost if the run is killed. If one step takes longer than the limit, every step is saved."""
    keep: int = Field(2, ge=1)
    """The number of most recent checkpoints that stay on disk. With a value of 1, no other checkpoint exists if the
    last checkpoint is damaged. Plan disk space for one checkpoint more than `keep`, because the next checkpoint may be
    written before the oldest is removed."""
    export_every: int = Field(0, ge=0)
    """Number of steps between two models that are exported to `models/step-N` in the stage's folder. The number must be
    a multiple of `every`. If the number is 0, only one model is exported, at the end of the stage."""
    keep_rollouts: bool = True
    """Write to disk the finished rollouts of the step that follows a checkpoint. A run that is killed in that step uses
    the finished rollouts again when it is resumed. The asynchronous modes store their rollouts in the checkpoints
    instead."""

    @model_validator(mode="after")
    def _exported_are_saved(self) -> CheckpointSettings:
        if self.export_every % self.every:
            raise ValueError(
                f"export_every = {self.export_every} is not a multiple of every = {self.every}, but only a saved step "
                "can be exported: set export_every to a multiple of every"
            )
        return self


class HeldOutSettings(Strict):
    """Problems on which the policy is evaluated during training, but on which it is not trained."""

    data: str | None = None
    """A file from `rstar2 data prepare`, or its folder. If unset or empty, nothing is evaluated."""
    every: int = Field(10, ge=1)
    """Number of steps between two evaluations. The last step of a stage is always evaluated."""
    samples: int = Field(1, ge=1)
    """Number of rollouts per problem in each evaluation."""
    temperature: float = Field(1.0, ge=0)
    """Temperature at which held-out problems are sampled. A temperature of 0 means greedy decoding."""


class JudgeSettings(Strict):
    """What training requires of the judge, and how training reacts if the judge is unavailable or loses tool calls."""

    packages: tuple[str, ...] = PACKAGES
    """Packages that programs must be able to import. Training checks before it starts that the judge has these
    packages."""
    isolation: Isolation | None = None
    """The weakest isolation of the judge's programs that training accepts. If this key is unset, training accepts any
    isolation."""

    wait_s: float = Field(600.0, gt=0)
    """Maximum number of seconds that a tool call waits for the judge, in addition to the program's own time limit. A
    call that waits longer is lost. Raise the limit if the judge has long queues."""
    max_lost_share: float = Field(0.05, ge=0, lt=1)
    """Maximum share of a step's rollouts that may lose a tool call. Up to this limit, rollouts that lost a call are
    left out before the selection. Above the limit, the whole step is discarded: training waits until the judge answers,
    and makes new rollouts for the step, with the next problems."""
    stop_after_s: float = Field(1800.0, gt=0)
    """Training ends after it has waited this many seconds for the judge within one step. The time in which rollouts are
    made does not count as waiting. The run's last checkpoint stays on disk. Training also ends if the rollouts of a
    step are discarded ten times in a row although the judge answers."""


_REPLACED: dict[str, str | dict[str, str]] = {
    "roc.variant": {"paper": 'select = "roc"', "release": 'select = "release"', "off": 'select = "random"'},
    "roc.leave_out": {
        "none": "nothing",
        "void-turn": 'select = "void_turn", or a selection of your own that combines it with another',
        "all-failed": 'select = "all_failed", or a selection of your own that combines it with another',
    },
    "roc.down_sample_to_n": "groups.keep",
    "roc.reject_equal_reward": "groups.drop_equal_rewards",
    "roc.refill_batches": "groups.refill_batches",
    "roc.roc_error_ratio": "select.roc_error_ratio",
    "roc.roc_answer_format": "select.roc_answer_format",
    "roc.min_zero_reward_trace_num": "select.min_zero_reward_trace_num",
    "roc.min_non_zero_reward_trace_num": "select.min_non_zero_reward_trace_num",
    "roc.penalty_floor": "select.penalty_floor",
    "algorithm.name": {
        "grpo-roc": 'select = "roc"',
        "grpo": 'select = "random"',
        "dapo": 'select = "random" and groups.refill_batches = 3',
        "void-turn": 'select = "void_turn"',
        "drop-all-failed": 'select = "all_failed"',
        # All but grpo-roc also drew at random.
        **{
            name: f'algorithm.objective = "{name}" and select = "random"'
            for name in OBJECTIVES
            if name != "grpo"
        },
    },
}
"""Dict from each recipe key of an earlier version to its replacement. If the replacement depends on the key's value, it
is a dict from each value to its replacement."""


def replaced_keys(values: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the keys of an earlier version of rstar2 that a stage's recipe contains, each with its replacement."""
    replaced = []
    for key, value in dotted({name: values[name] for name in ("roc", "algorithm") if name in values}).items():
        instead = _REPLACED.get(key)
        if isinstance(instead, dict):
            instead = instead.get(str(value), "select, groups and algorithm.objective")
        if instead:
            replaced.append((key, instead))
    return replaced


def _check_model_config(verl: dict[str, Any]) -> None:
    for key in ignored_keys(verl):
        written = key.replace("override_config.", "override_config.model_config.")
        raise ValueError(f"VERL would not read verl.{key}: write it as verl.{written}")


class StageRecipe(Strict):
    """The settings of one RL stage (arXiv 2508.20722, table of stages)."""

    steps: int = Field(ge=1)
    """Number of training steps in the stage. Each training step makes rollouts for `rollout.prompts` problems, and then
    `optim.epochs` updates (one by default)."""
    mode: Mode = "sync"
    """The order of rollouts and updates. sync: a step waits for all of its rollouts and then makes its update, as in
    the paper. colocate_async: a step takes the groups that finish first. The engines pause during the update, and
    unfinished rollouts continue with the new weights. separate_async: the engines have GPUs of their own and also
    generate during the update. Use an asynchronous mode if most of a step is spent waiting for a few long rollouts."""
    rollout: RolloutSettings = RolloutSettings()
    asynchronous: AsyncSettings = AsyncSettings()
    curriculum: CurriculumSettings = CurriculumSettings()
    select: SelectSettings = SelectSettings()
    groups: GroupSettings = GroupSettings()
    recover: RecoverSettings = RecoverSettings()
    algorithm: AlgorithmSettings = AlgorithmSettings()
    optim: OptimSettings = OptimSettings()
    penalty: PenaltySettings = PenaltySettings()
    judge: JudgeSettings = JudgeSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    held_out: HeldOutSettings = HeldOutSettings()
    alarms: AlarmSettings = AlarmSettings()
    rules: RuleSettings = RuleSettings()
    hardware: Hardware = Hardware()
    reward: Annotated[str, AfterValidator(checked_reward)] = "paper"
    """The rule that gives a rollout its reward. paper, boxed, release and lenient are rules that read the answer from
    the text (`rstar2.eval.grader.reading_rules`). With the rules paper, boxed, release and lenient, the reward is 1 if
    the answer is correct, and 0 otherwise. constant gives every rollout the reward 1, so nothing can be learned. Use
    constant as a control. `module:object` is a function of your own. If the reward is constant or your own function,
    the rule `paper` decides which answers count as correct."""
    format: str | None = None
    """Format for a model that has no format file: the name of a format, or a file. If `format` is unset or empty, the
    model's own chat template is used."""
    drop_solved: int = Field(0, ge=0)
    """Number of samples per problem by the policy that the stage starts from. A problem is left out if all of these
    samples are correct by the rule of `reward`. 0 keeps all problems."""
    solved_by: Literal["samples", "outcomes"] = "samples"
    """The rollouts from which `drop_solved` determines whether a problem is solved. samples: new samples by the policy
    that the stage starts from, as in the paper. outcomes: the rollouts of the stage before, without sampling. For
    outcomes, a problem counts as solved if it is more likely than not that `drop_solved` samples would all be correct.
    Problems that have no rollouts in the stage before are kept."""
    keep_filter_traces: bool = False
    """Also keep the traces of the samples that `drop_solved` makes, not only their verdicts. The traces take tens of
    GB."""
    traces_per_step: int = Field(64, ge=-1)
    """Number of rollouts per step whose traces are stored in the stage's folder. The rollouts are drawn at random. If
    the number is 0, no trace is stored. If the number is -1, every trace is stored. Unless the value is 0, the trace of
    every failed rollout is stored too. A rollout failed if the engine could not finish it, if the grader could not
    grade it, or if the judge lost one of its tool calls. A wrong answer is not a failure."""
    seed: int = Field(1, ge=0)
    """Seed for the order of problems, for the random draws of the selection and, on a CPU, for the rollouts."""
    trackers: tuple[Tracker, ...] = ("console",)
    """Trackers that receive the metrics of each step, in addition to the file that `rstar2 watch` reads. console: the
    trainer's log. wandb: Weights & Biases. vemlp_wandb: Volcengine's W&B. Several trackers can also write into the
    run's folder without a server. docs/curves.md has a table of these trackers."""
    trace_trackers: tuple[TraceTracker, ...] = ()
    """Trackers that also receive the traces that `traces_per_step` stores. A trace is sent together with its reward,
    its verdict and whether it was trained on."""
    verl: dict[str, Any] = Field(default_factory=dict)
    """Keys of VERL's own config, dotted, for settings that have no recipe key. A value that is set under
    `verl` overrides the value from the recipe's other keys."""

    @property
    def trace_share(self) -> float:
        """The share of the rollouts that send their trace to the sampler. The sampler stores `traces_per_step` of these
        traces.

        Each rollout decides independently and at random whether it sends its trace. The expected number of sent
        traces is more than twice `traces_per_step`, so that nearly always enough traces are sent.
        """
        if self.traces_per_step <= 0:
            return float(self.traces_per_step < 0)
        return min(1.0, (2 * self.traces_per_step + 8) / self.rollouts_at_once)

    @property
    def filter_samples(self) -> int:
        """Number of samples per problem that the filter makes before the stage."""
        return self.drop_solved if self.solved_by == "samples" else 0

    @property
    def machines(self) -> Hardware:
        """The hardware, including the machines that only generate rollouts."""
        if self.mode != "separate_async":
            return self.hardware
        nodes = self.hardware.nodes + self.asynchronous.rollout_nodes
        return self.hardware.model_copy(update={"nodes": nodes})

    @property
    def schedules_sessions(self) -> bool:
        """Whether our scheduler assigns rollouts to engines, and limits the number of rollouts per engine."""
        return self.hardware.router == "sessions" and (self.hardware.engines > 1 or self.mode != "sync")

    @property
    def agent_loop_processes(self) -> int:
        """Number of processes that run the agent loop: at least one per machine, at most one per problem.

        VERL gives all rollouts of a problem to one process. `ROLLOUTS_PER_PROCESS` is the maximum number of rollouts in
        flight per process.
        """
        machines, rollouts = self.machines, self.rollout.prompts * self.rollout.rollouts
        in_flight = min(machines.sequences_in_flight * machines.engines, rollouts)
        needed = max(-(-in_flight // ROLLOUTS_PER_PROCESS), machines.nodes)
        return min(needed, self.rollout.prompts)

    @property
    def clip(self) -> tuple[float, float]:
        """The lower and the upper clip range. A value that the recipe does not set is the objective's default."""
        low, high = OBJECTIVES[self.algorithm.objective].clip
        return self.optim.clip_low or low, self.optim.clip_high or high

    @property
    def drops_equal_rewards(self) -> bool:
        """Whether groups whose chosen rewards are all equal are dropped."""
        drop = self.groups.drop_equal_rewards
        return drop if drop is not None else not OBJECTIVES[self.algorithm.objective].batch_baseline

    @property
    def rounds(self) -> Rounds | None:
        """The settings for rounds, with defaults filled in; None if all rollouts of a group are made at once."""
        groups, most = self.groups, self.rollout.rollouts
        if groups.round is None:
            return None
        return Rounds(
            size=groups.round,
            most=most,
            enough=groups.enough or 2,
            solved_after=groups.solved_after or groups.round,
            hopeless_after=groups.hopeless_after or most,
        )

    @property
    def rollouts_at_once(self) -> int:
        """Number of a step's rollouts that can be in flight at the same time. A step makes at least this many
        rollouts."""
        return self.rollout.prompts * (self.groups.round or self.rollout.rollouts)

    @property
    def update_prompts(self) -> int:
        """VERL's mini-batch size, in units of `groups.keep` rollouts.

        The mini-batch is large enough for all rollouts that one update may train on, recoveries included.
        """
        return self.rollout.prompts * (1 + -(-self.recover.most // self.groups.keep))

    @property
    def longest(self) -> int:
        """Number of tokens of the longest possible rollout, including its prompt."""
        return self.rollout.prompt_tokens + self.rollout.tokens

    @property
    def exported_models(self) -> int:
        """Number of models that `checkpoint.export_every` asks for."""
        every = self.checkpoint.export_every
        return self.steps // every if every else 0

    @property
    def removes_checkpoints(self) -> bool:
        """Whether rstar2 removes old checkpoints itself, because VERL would remove checkpoints that are still needed.

        A checkpoint is still needed if a model must be exported from it, or if a rule may go back to it.
        """
        return bool(self.checkpoint.export_every) or self.rules.may_go_back

    @property
    def update_tokens(self) -> int:
        """Maximum number of tokens per GPU in a micro-batch of the update."""
        return self.hardware.update_tokens or -(-self.longest // self.hardware.sequence_parallel)

    @property
    def log_prob_tokens(self) -> int:
        """Maximum number of tokens per GPU in a micro-batch that only computes log-probabilities."""
        return self.hardware.log_prob_tokens or self.update_tokens

    @model_validator(mode="before")
    @classmethod
    def _no_old_keys(cls, values: Any) -> Any:
        if isinstance(values, dict) and (old := replaced_keys(values)):
            replacements = "; ".join(f"{key} (write {instead})" for key, instead in old)
            raise ValueError(f"keys of an earlier version: {replacements}")
        return values

    @model_validator(mode="after")
    def _verl_reads_its_keys(self) -> StageRecipe:
        _check_model_config(self.verl)
        return self

    @model_validator(mode="after")
    def _rollouts_fit(self) -> StageRecipe:
        """Rejects micro-batches that are smaller than the longest possible rollout. Without this check, VERL would fail
        in the first update that contains a rollout too long for a micro-batch."""
        for key in ("update_tokens", "log_prob_tokens"):
            tokens, split = getattr(self, key), self.hardware.sequence_parallel
            if tokens * split < self.longest:
                raise ValueError(
                    f"hardware.{key} = {tokens} times hardware.sequence_parallel = {split} is less than the longest "
                    f"rollout with its prompt (rollout.prompt_tokens + rollout.tokens = {self.longest}): raise "
                    f"hardware.{key}"
                )
        return self

    @model_validator(mode="after")
    def _ranks_share_an_update(self) -> StageRecipe:
        prompts, keep = self.rollout.prompts, self.groups.keep
        setting = f"rollout.prompts = {prompts}"
        mini_batch = dotted(self.verl).get("actor_rollout_ref.actor.ppo_mini_batch_size")
        if isinstance(mini_batch, int):
            prompts, setting = mini_batch, f"verl.actor_rollout_ref.actor.ppo_mini_batch_size = {mini_batch}"
        if fault := self.hardware.batch_fault(
            prompts * keep, f"{setting} times groups.keep = {keep} rollouts"
        ):
            raise ValueError(fault)
        return self

    @model_validator(mode="after")
    def _mode_works(self) -> StageRecipe:
        fault = mode_fault(self.mode, self.asynchronous, self.hardware.device, self.hardware.router)
        if fault:
            raise ValueError(fault)
        return self

    @model_validator(mode="after")
    def _fits_into_vllm_and_queue(self) -> StageRecipe:
        """Rejects sizes with which vLLM would fail to start, or with which VERL's queue would fail after hours of
        rollouts."""
        verl, ahead = dotted(self.verl), self.asynchronous.batches_ahead if self.mode != "sync" else 0
        for fault in (
            engine_fault(self.hardware.sequences_in_flight, verl),
            queue_fault(self.rollout.prompts, self.rollout.rollouts + self.recover.most, 1 + ahead, verl),
        ):
            if fault:
                raise ValueError(fault)
        return self

    @model_validator(mode="after")
    def _rules_can_act(self) -> StageRecipe:
        held_out, every = self.held_out, self.checkpoint.every
        if fault := rule_fault(self.rules, bool(held_out.data), held_out.every, every):
            raise ValueError(fault)
        return self

    @model_validator(mode="after")
    def _penalty_fits(self) -> StageRecipe:
        if fault := penalty_fault(self.reward, self.penalty):
            raise ValueError(fault)
        return self

    @model_validator(mode="after")
    def _curriculum_is_current(self) -> StageRecipe:
        """Rejects recipes in which other processes load problems in advance, because these problems would have been
        chosen many steps before."""
        workers = dotted(self.verl).get(LOADING_PROCESSES, 0)
        if self.curriculum.reads_outcomes and workers:
            raise ValueError(
                f'curriculum = "{self.curriculum.name}" needs verl.{LOADING_PROCESSES} = 0, not {workers}: processes '
                "that load problems in advance would deliver problems that were chosen many steps before"
            )
        return self

    @model_validator(mode="after")
    def _group_fits(self) -> StageRecipe:
        if self.groups.keep > self.rollout.rollouts:
            raise ValueError(
                f"groups.keep = {self.groups.keep} is more than rollout.rollouts = {self.rollout.rollouts}: lower "
                "groups.keep, or raise rollout.rollouts"
            )
        return self

    @model_validator(mode="after")
    def _rounds_fit(self) -> StageRecipe:
        groups, most = self.groups, self.rollout.rollouts
        if groups.round is None:
            for key in ("enough", "solved_after", "hopeless_after"):
                if (value := getattr(groups, key)) is not None:
                    raise ValueError(f"groups.{key} = {value} has no effect unless groups.round is set")
            return self
        if groups.round >= most:
            raise ValueError(
                f"groups.round = {groups.round} is not less than rollout.rollouts = {most}, so a group would have only "
                "one round: lower groups.round, or leave it unset"
            )
        if groups.enough is not None and 2 * groups.enough > most:
            raise ValueError(
                f"groups.enough = {groups.enough} correct and {groups.enough} wrong rollouts are more than "
                f"rollout.rollouts = {most}: lower groups.enough"
            )
        return self


class ValidationSettings(Strict):
    """Conversations that SFT does not train on. The loss on these conversations is measured during training."""

    data: str | None = None
    """A file of conversations, or a folder from `rstar2 data prepare`. A conversation is left out if the training data
    asks nearly the same question. If `data` is unset or empty, `share` of the training data is held out instead."""
    share: float = Field(0.01, ge=0, lt=1)
    """Share of the training data to hold out, drawn at random with `seed`. Conversations whose first questions are
    equal or nearly equal stay together, on one side of the split. If the share is 0, no conversation is held out, and
    no validation loss is measured."""
    most: int = Field(1000, ge=1)
    """Maximum number of conversations that `share` holds out."""
    every: int = Field(100, ge=1)
    """Number of steps between two measurements of the validation loss. The validation loss is also measured at every
    step whose model `choose` may return."""


class SftHeldOutSettings(Strict):
    """Problems on which the model is evaluated during SFT, as `rstar2 eval` does: accuracy, pass@k and mean length."""

    data: str | None = None
    """A file of problems from `rstar2 data prepare`, or its folder. If unset or empty, nothing is evaluated."""
    every: int = Field(500, ge=1)
    """Number of steps between two evaluations. The last step of SFT is always evaluated. Each evaluation interrupts
    training: the trainer saves a checkpoint and ends, the model is exported and sampled on all the hardware, and
    training continues from the checkpoint."""
    samples: int = Field(4, ge=1)
    """Number of samples per problem. The number of samples is also the largest k of pass@k."""
    temperature: float = Field(1.0, ge=0)
    """Temperature at which held-out problems are sampled. A temperature of 0 means greedy decoding."""
    tokens: int = Field(8192, ge=1)
    """Token budget of a sample after its prompt. The budget includes tool output."""
    max_turns: int = Field(10, ge=1)
    """Maximum number of the model's turns in a sample."""


Choose = Literal["auto", "held_out", "validation", "last"]


class SftRecipe(Strict):
    """The settings of stage 0: supervised fine-tuning on tool-use conversations."""

    format: str | None = None
    """Format to teach: the name of a format, or a file. If `format` is unset or empty, the model's format file decides.
    A model without a format file is taught rstar2's default format."""
    epochs: int = Field(3, ge=1)
    """Number of passes that SFT makes over the training data."""
    batch: int = Field(128, ge=1)
    """Number of conversations that SFT trains on in one update."""
    lr: float = Field(5e-6, gt=0)
    """The highest learning rate, which is reached at the end of the warm-up. After the warm-up, the learning rate falls
    along a cosine."""
    warmup_ratio: float = Field(0.04, ge=0, le=1)
    """Share of all steps that belong to the warm-up, in which the learning rate rises."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay of AdamW in SFT."""
    max_tokens: int = Field(16384, ge=1)
    """Maximum number of tokens of a conversation, including the system text and the tools."""
    too_long: Literal["drop", "cut"] = "drop"
    """Treatment of a conversation with more than `max_tokens` tokens. drop: the conversation is left out. cut: the end
    of the conversation is cut off. `rstar2 sft` reports how many conversations are too long."""
    validation: ValidationSettings = ValidationSettings()
    held_out: SftHeldOutSettings = SftHeldOutSettings()
    choose: Choose = "auto"
    """The step whose model SFT returns. held_out: the evaluated step with the highest accuracy on `held_out.data`.
    validation: the step with the lowest validation loss, among the multiples of `checkpoint_every` and the last step.
    last: the last step. auto: held_out if `held_out.data` is set, else validation if a validation loss is measured,
    else last. If several steps are equally good, the earliest of them is chosen."""
    hardware: Hardware = Hardware()
    checkpoint_every: int = Field(500, ge=1)
    """Number of steps between checkpoints. The last step is always saved."""
    checkpoint_every_minutes: float = Field(30.0, gt=0)
    """A step is also saved if the last checkpoint is at least this many minutes old when the step ends."""
    seed: int = Field(1, ge=0)
    """Seed for the order of conversations, and for the draws of `validation.share` and of the evaluation's samples."""
    trackers: tuple[Tracker, ...] = ("console",)
    """Trackers that receive the metrics of each step, in addition to the file that `rstar2 watch` reads. console: the
    trainer's log. wandb: Weights & Biases. vemlp_wandb: Volcengine's W&B. Several trackers can also write into the
    run's folder without a server. docs/curves.md has a table of these trackers."""
    verl: dict[str, Any] = Field(default_factory=dict)
    """Keys of VERL's own config, dotted, for settings that have no recipe key. A value that is set under
    `verl` overrides the value from the recipe's other keys."""

    @property
    def chosen_by(self) -> Choose:
        """The value of `choose`, or the value that `auto` stands for if `choose` is `auto`.

        The result can be `validation` although the split holds out no conversation, so that no validation loss is
        measured.
        """
        if self.choose != "auto":
            return self.choose
        if self.held_out.data:
            return "held_out"
        return "validation" if self.validation.data or self.validation.share else "last"

    @property
    def update_tokens(self) -> int:
        """Number of tokens per GPU in a micro-batch of SFT."""
        return self.hardware.update_tokens or 2 * self.max_tokens

    @property
    def micro_batch_rows(self) -> int | None:
        """Number of conversations per micro-batch. None if a micro-batch is limited by its number of tokens, which is
        the default (VERL's `data.use_dynamic_bsz`)."""
        keys = dotted(self.verl)
        if keys.get("data.use_dynamic_bsz", True):
            return None
        return int(keys.get("data.micro_batch_size_per_gpu", VERL_MICRO_BATCH))

    @model_validator(mode="after")
    def _verl_reads_its_keys(self) -> SftRecipe:
        _check_model_config(self.verl)
        return self

    @model_validator(mode="after")
    def _can_be_chosen(self) -> SftRecipe:
        if self.choose == "held_out" and not self.held_out.data:
            raise ValueError(
                'choose = "held_out" needs held-out problems: set held_out.data to the file of the problems'
            )
        if self.choose == "validation" and not (self.validation.data or self.validation.share):
            raise ValueError(
                'choose = "validation" needs conversations to measure the validation loss on: set '
                "validation.share above 0, or validation.data"
            )
        return self

    @model_validator(mode="after")
    def _conversations_fit(self) -> SftRecipe:
        """Rejects micro-batches that are smaller than the longest conversation. Without this check, VERL would fail in
        the first step that contains a conversation too long for a micro-batch."""
        tokens, split = self.update_tokens, self.hardware.sequence_parallel
        if self.micro_batch_rows is None and tokens * split < self.max_tokens:
            raise ValueError(
                f"hardware.update_tokens = {tokens} times hardware.sequence_parallel = {split} is less than the "
                f"longest conversation (max_tokens = {self.max_tokens}): raise hardware.update_tokens, or lower "
                "max_tokens"
            )
        return self

    @model_validator(mode="after")
    def _ranks_share_a_batch(self) -> SftRecipe:
        if fault := self.hardware.batch_fault(self.batch, f"batch = {self.batch} conversations"):
            raise ValueError(fault)
        return self

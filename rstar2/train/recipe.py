"""Recipes: the settings of SFT and of an RL stage; `rstar2.train.recipe_files` reads them from TOML files.

`rstar2.train.changeable` names the keys that may differ where a run is continued.
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
"""VERL's default of `data.micro_batch_size_per_gpu`."""
LOADING_PROCESSES = "data.dataloader_num_workers"
"""VERL's key for the processes that load problems ahead of the step that asks them."""
ROLLOUTS_PER_PROCESS = 512
"""Rollouts in flight for each process that runs the agent loop."""


class Hardware(Strict):
    """The machines that training runs on, and how the model is split over them."""

    device: Literal["cuda", "cpu"] = "cuda"
    """cuda: GPUs by NVIDIA or AMD; PyTorch uses this name for both."""
    nodes: int = Field(1, ge=1)
    """Number of machines."""
    gpus_per_node: int = Field(8, ge=1)
    """GPUs per machine; on a CPU, the number of ranks."""
    gpu: Literal["a100", "h100", "h200", "b200", "mi300x"] = "h100"
    """The GPU that `rstar2 plan` calculates with; the trainer uses what it finds. a100 and h100 are those of 80 GB."""
    tensor_parallel: int = Field(1, ge=1)
    """Number of GPUs that a rollout engine spans."""
    sequence_parallel: int = Field(1, ge=1)
    """Number of GPUs over which the update splits the tokens of a micro-batch (Ulysses). Above 1 it needs `attention` =
    "flash_attn"."""
    attention: Attention = "torch"
    """How the trainer computes attention. torch: PyTorch's own kernels, one sequence after another without padding;
    nothing is to be installed. flash_attn: the package flash-attn. padded: PyTorch's kernels over rows that are padded
    to the longest, for a CPU."""
    engine_memory_share: float = Field(0.85, gt=0, lt=1)
    """Share of each GPU's memory that a rollout engine takes while it is awake, for weights, KV cache and all else."""
    sequences_in_flight: int = Field(64, ge=1)
    """Rollouts that an engine generates at a time; others wait. If these are far more than its KV cache holds, it
    preempts and recomputes some."""
    router: Literal["sessions", "verl"] = "sessions"
    """How rollouts are assigned if there are several engines. sessions: our scheduler (`rstar2.train.scheduler`); a
    rollout waits until an engine has room for its KV cache, and stays on that engine. verl: VERL's router, which picks
    the engine with the fewest requests."""
    update_tokens: int | None = Field(None, ge=1)
    """Tokens per GPU in a micro-batch of the update. On a CPU padding counts, because it is computed too. By default
    the longest rollout with its prompt, divided by `sequence_parallel`; in SFT, twice `max_tokens`."""
    log_prob_tokens: int | None = Field(None, ge=1)
    """As `update_tokens`, for passes that only compute log-probabilities, which needs less memory. By default the value
    of `update_tokens`."""
    offload: Literal["none", "optimizer", "all"] = "all"
    """What the trainer moves to host memory while the engines generate. none: nothing. optimizer: AdamW's moments.
    all: the moments and the weights."""
    gradient_checkpointing: bool = True
    """Keep only each layer's input, and recompute the rest in the backward pass."""
    nccl_timeout_s: int = Field(1800, ge=1)
    """Seconds after which the trainer ends if some ranks have not joined a collective operation. Saving a checkpoint
    is one: raise it for slow disks."""
    worker_start_s: int = Field(600, ge=1)
    """Seconds that one of Ray's processes may take to start; on a slow disk they are spent on imports. A Ray cluster
    that is already running keeps its own limit."""
    hung_after_s: float = Field(3600.0, gt=0)
    """Seconds without a sign of life after which the trainer is stopped as hung. Signs are finished rollouts,
    micro-batches and steps, weights on their way to the engines, and a checkpoint that grows. Start-up, one rollout and
    one micro-batch must each take less; `plan` compares them."""
    export_timeout_s: float = Field(3600.0, gt=0)
    """Seconds that making a model of a checkpoint may take."""

    @property
    def engines(self) -> int:
        """Rollout engines, on all GPUs."""
        return max(1, self.ranks // self.tensor_parallel)

    @property
    def ranks(self) -> int:
        """Processes of the trainer, one a GPU."""
        return self.nodes * self.gpus_per_node

    @model_validator(mode="after")
    def _gpus_divide(self) -> Hardware:
        if self.device == "cpu" and self.nodes > 1:
            raise ValueError(
                f'hardware.nodes = {self.nodes}, but hardware.device = "cpu" trains on one machine'
            )
        if self.device == "cuda" and self.attention == "padded":
            raise ValueError(
                'hardware.attention = "padded" is for a CPU: on GPUs VERL counts tokens without padding, so nothing '
                "would bound the memory of a micro-batch"
            )
        if self.gpus_per_node % self.tensor_parallel:
            # Ray takes the GPUs of an engine of ours from one node.
            raise ValueError(
                f"the hardware.gpus_per_node = {self.gpus_per_node} GPUs of a node cannot be split into engines of "
                f"hardware.tensor_parallel = {self.tensor_parallel}"
            )
        if self.ranks % self.sequence_parallel:
            raise ValueError(
                f"{self._named_ranks} cannot be split into groups of hardware.sequence_parallel = "
                f"{self.sequence_parallel}"
            )
        if self.sequence_parallel > 1 and self.attention != "flash_attn":
            raise ValueError(
                f"hardware.sequence_parallel = {self.sequence_parallel} splits sequences where flash-attn is called, "
                f'but hardware.attention = "{self.attention}": set it to "flash_attn", and install the package'
            )
        return self

    def batch_fault(self, size: int, what: str) -> str:
        """Why an update of `size` samples, which `what` names with its keys, cannot be split; empty where it can.

        VERL finds out in the first update, after a whole step of rollouts, or trains on other batches than it was
        told.
        """
        split = self.sequence_parallel
        if size % (self.ranks // split) == 0:
            return ""
        groups = f", in groups of hardware.sequence_parallel = {split}" if split > 1 else ""
        return f"{what} cannot be split evenly over {self._named_ranks}{groups}"

    @property
    def _named_ranks(self) -> str:
        kind = "ranks" if self.device == "cpu" else "GPUs"
        keys = f"hardware.nodes = {self.nodes} times hardware.gpus_per_node = {self.gpus_per_node}"
        return f"{self.ranks} {kind} ({keys})"


class RolloutSettings(Strict):
    """How the rollouts of a group are made."""

    prompts: int = Field(512, ge=1)
    """Problems per step."""
    rollouts: int = Field(32, ge=1)
    """Rollouts per problem: 2G."""
    tokens: int = Field(8192, ge=1)
    """Token budget of a rollout after its prompt, tool output included."""
    prompt_tokens: int = Field(2048, ge=1)
    """Limit for a prompt. Problems with a longer one are left out; `train` reports at its start how many. 2048 is the
    release's."""
    max_turns: int = Field(10, ge=1)
    """Limit for the model's turns; a rollout whose last turn is a call has no answer."""
    max_bad_calls: int = Field(0, ge=0)
    """End a rollout after this many failed calls in a row, without an answer; 0: never. It keeps a policy that repeats
    a broken call from filling its budget. Also the limit for held-out problems."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature; log-probabilities are computed at the same temperature."""
    max_failed_share: float = Field(0.05, ge=0, lt=1)
    """If a larger share of a step's rollouts failed, the step is not trained on, because failures hit long rollouts
    most: training waits half a minute or more and rolls the step out again with the next problems; after the third time
    it ends. Otherwise these rollouts are left out before the selection. A rollout fails through an engine, the grader
    or a fault in the agent loop. Also the limit for held-out problems, as is `judge.max_lost_share`."""


class GroupSettings(Strict):
    """What becomes of a problem's group of rollouts, whatever selection (`select`) chooses from it."""

    keep: int = Field(16, ge=2)
    """Rollouts trained on per problem, of `rollout.rollouts`: G. Of a group that stops early (`round`), the same share
    of its rollouts, and two at least."""
    round: int | None = Field(None, ge=2)
    """Roll a group out in rounds of this many rollouts, until it is decided or has `rollout.rollouts`. A group is
    decided when it is mixed (`enough`), solved (`solved_after`) or hopeless (`hopeless_after`). A round waits for all
    of its rollouts, so short ones are not preferred. Unset: all at once, as in the paper. It saves rollouts and changes
    how much problems weigh; `algorithm.loss_weights` = "problems" undoes most of the change
    (docs/results/rounds.md)."""
    enough: int | None = Field(None, ge=1)
    """With `round`: a group is mixed once this many of its rewards are above 0 and as many are not. By default 2. If it
    is 1, a selection that keeps half may choose rollouts of equal rewards, and the group is dropped."""
    solved_after: int | None = Field(None, ge=1)
    """With `round`: a group whose rewards are all above 0 stops at the end of a round once it has this many. By default
    after the first round. With `rollout.rollouts`, such groups never stop early."""
    hopeless_after: int | None = Field(None, ge=1)
    """The same for a group with no reward above 0. By default such groups never stop early: they grow until they are
    mixed, or to `rollout.rollouts`."""
    drop_equal_rewards: bool | None = None
    """Drop groups whose chosen rewards are all equal, whether they already were before the selection or only after it.
    By default true, unless the baseline of `algorithm.objective` is the whole batch (reinforce++)."""
    refill_batches: float = Field(0, ge=0)
    """Replace dropped groups with new problems, up to this many times a step's problems; DAPO does so. Padding fills
    what is still missing after that, as it does with 0."""


class OptimSettings(Strict):
    """The settings of AdamW and of the clipped objective."""

    lr: float = Field(1e-6, gt=0)
    """Learning rate, constant after the warm-up."""
    warmup_steps: int = Field(20, ge=0)
    """Length of the warm-up; its first step uses 1 / warmup_steps of `lr`."""
    state: Literal["fresh", "continued"] = "fresh"
    """continued: AdamW's moments and the warm-up continue from the stage that made the model."""
    weight_decay: float = Field(0.01, ge=0)
    """AdamW's weight decay; neither the paper nor the release states one."""
    clip_low: float | None = Field(None, gt=0)
    """Clip range below 1. By default that of `algorithm.objective`, 0.2 for most. For dppo-tv and dppo-kl it is instead
    how far a token's probability may fall, as total variation or KL divergence."""
    clip_high: float | None = Field(None, gt=0)
    """Clip range above 1. By default that of `algorithm.objective`, 0.28 for most. For dppo-tv and dppo-kl likewise how
    far a token's probability may rise."""


class CheckpointSettings(Strict):
    """When checkpoints are saved, and how many are kept."""

    every: int = Field(10, ge=1)
    """Steps between checkpoints; the last step is always saved."""
    every_minutes: float = Field(30.0, gt=0)
    """A step is also saved if, at its end, the last checkpoint is at least this many minutes old: every step, if steps
    take longer. This bounds what a kill costs."""
    keep: int = Field(2, ge=1)
    """How many of the last checkpoints are kept. The disk needs space for one more: the oldest is removed only after
    the next is written if `keep` is 1, if `export_every` is set, or in the first `keep` saves after a resume. With 1
    there is none to fall back to if the last is damaged."""
    export_every: int = Field(0, ge=0)
    """Steps between models that are made of a checkpoint and kept in `models/step-N` of the stage's folder; a multiple
    of `every`. 0: only one model, at the stage's end."""
    keep_rollouts: bool = True
    """Write each finished rollout of the step after a checkpoint to disk, so that a run that is killed in this step
    does not make it again. The asynchronous modes have their rollouts in their checkpoints instead."""

    @model_validator(mode="after")
    def _exported_are_saved(self) -> CheckpointSettings:
        if self.export_every % self.every:
            raise ValueError(
                f"export_every = {self.export_every} is not a multiple of every = {self.every}: only a saved step can "
                "be exported"
            )
        return self


class HeldOutSettings(Strict):
    """Problems on which the policy is evaluated during training; it is not trained on them."""

    data: str | None = None
    """A file from `rstar2 data prepare`, or its folder. If unset or empty, nothing is evaluated."""
    every: int = Field(10, ge=1)
    """Steps between two evaluations; the last step is always evaluated."""
    samples: int = Field(1, ge=1)
    """Rollouts per problem."""
    temperature: float = Field(1.0, ge=0)
    """Sampling temperature; 0 is greedy."""


class JudgeSettings(Strict):
    """What training needs of the judge, and what it does while the judge is unavailable or loses programs."""

    packages: tuple[str, ...] = PACKAGES
    """Packages that programs must be able to import. Training tries them on the judge before it starts."""
    isolation: Isolation | None = None
    """The weakest isolation of the judge's programs with which training starts; if unset, any."""

    wait_s: float = Field(600.0, gt=0)
    """Seconds that a tool call waits for its result beyond the program's own time limit; after that it is lost."""
    max_lost_share: float = Field(0.05, ge=0, lt=1)
    """If a larger share of a step's rollouts lost a call, the step is not trained on: training waits for the judge, and
    rolls the step out again with the next problems. Otherwise these rollouts are left out before the selection."""
    stop_after_s: float = Field(1800.0, gt=0)
    """Seconds of a step's waiting for the judge, rollouts not counted, after which training ends. Its last checkpoint
    is kept. It ends too if a judge that answers spoils a step ten times in a row."""


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
"""What to write instead of each key of an earlier version; for some, what it is depends on the value."""


def replaced_keys(values: dict[str, Any]) -> list[tuple[str, str]]:
    """The keys of an earlier version in a stage's recipe, each with what to write instead."""
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
        raise ValueError(f"verl.{key} would not be read: write it as verl.{written}")


class StageRecipe(Strict):
    """One RL stage (arXiv 2508.20722, table of stages)."""

    steps: int = Field(ge=1)
    """Number of steps; each rolls out `rollout.prompts` problems and makes one update."""
    mode: Mode = "sync"
    """Which of VERL's trainers runs the stage, and so when rollouts are made. sync: a step waits for all of its
    rollouts, then updates. colocate_async: a step takes the first finished groups; the engines stop for the update, and
    unfinished rollouts continue with the new weights. separate_async: engines on GPUs of their own generate during the
    update too."""
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
    """What a rollout is worth. paper, boxed, release, lenient: 1 if the answer that this rule reads
    (`rstar2.eval.grader.reading_rules`) is correct, else 0. constant: 1 for every rollout, a control that cannot learn.
    `module:object`: a function of your own. With the last two, the paper's rule decides which answers count as
    correct."""
    format: str | None = None
    """Format for a model without a format file: a name or a file. If unset or empty, the model's own chat template."""
    drop_solved: int = Field(0, ge=0)
    """Leave out problems that the starting policy solves in each of this many samples, under `reward`; 0 keeps all."""
    solved_by: Literal["samples", "outcomes"] = "samples"
    """How `drop_solved` finds the solved problems. samples: it samples them with the starting policy. outcomes: it
    samples nothing; a problem counts as solved if, by the rollouts of the stage that made the policy, it is more likely
    than not that `drop_solved` samples would all be correct. Problems without rollouts are kept."""
    keep_filter_traces: bool = False
    """Keep traces of the rollouts that find the solved problems too, not only their verdicts: tens of GB."""
    traces_per_step: int = Field(64, ge=-1)
    """Rollouts per step that are kept as traces in the stage's folder, drawn at random; 0: none, -1: all. Unless 0,
    every failed rollout is kept too: one that the engine could not finish or the grader not grade, or that lost a tool
    call because of a fault of the judge. A rollout with a wrong answer is not a failed one."""
    seed: int = Field(1, ge=0)
    """Seed for the order of problems, for the selection's draws and, on a CPU, for the rollouts."""
    trackers: tuple[Tracker, ...] = ("console",)
    """Where VERL reports all metrics of each step, besides the file that `rstar2 watch` reads. console: the trainer's
    log. wandb: Weights & Biases. vemlp_wandb: Volcengine's W&B. Several have a mode that writes files into the run's
    folder and needs no server; docs/curves.md has the table."""
    trace_trackers: tuple[TraceTracker, ...] = ()
    """Where the traces that `traces_per_step` keeps are also sent, with reward, verdict and whether they were trained
    on."""
    verl: dict[str, Any] = Field(default_factory=dict)
    """VERL's own keys, dotted, for settings that have no key here."""

    @property
    def trace_share(self) -> float:
        """The share of rollouts that carry their trace to the sampler, which keeps `traces_per_step` of them.

        More than twice what is needed, since every rollout decides for itself.
        """
        if self.traces_per_step <= 0:
            return float(self.traces_per_step < 0)
        return min(1.0, (2 * self.traces_per_step + 8) / self.rollouts_at_once)

    @property
    def filter_samples(self) -> int:
        """How often the filter before the stage samples each problem."""
        return self.drop_solved if self.solved_by == "samples" else 0

    @property
    def machines(self) -> Hardware:
        """The hardware, with the machines that only generate."""
        if self.mode != "separate_async":
            return self.hardware
        nodes = self.hardware.nodes + self.asynchronous.rollout_nodes
        return self.hardware.model_copy(update={"nodes": nodes})

    @property
    def schedules_sessions(self) -> bool:
        """Whether our scheduler decides which engine takes a rollout, and how many it is sent at a time."""
        return self.hardware.router == "sessions" and (self.hardware.engines > 1 or self.mode != "sync")

    @property
    def agent_loop_processes(self) -> int:
        """Processes that run the agent loop, see `ROLLOUTS_PER_PROCESS`; on several machines at least one on each.

        VERL hands every process whole problems.
        """
        machines, rollouts = self.machines, self.rollout.prompts * self.rollout.rollouts
        in_flight = min(machines.sequences_in_flight * machines.engines, rollouts)
        needed = max(-(-in_flight // ROLLOUTS_PER_PROCESS), machines.nodes)
        return min(needed, self.rollout.prompts)

    @property
    def clip(self) -> tuple[float, float]:
        """How far below and above 1 the ratio of probabilities may go: the recipe's, else the objective's own."""
        own = OBJECTIVES[self.algorithm.objective].clip
        return self.optim.clip_low or own[0], self.optim.clip_high or own[1]

    @property
    def drops_equal_rewards(self) -> bool:
        """Whether groups whose chosen rewards are all equal are dropped."""
        drop = self.groups.drop_equal_rewards
        return drop if drop is not None else not OBJECTIVES[self.algorithm.objective].batch_baseline

    @property
    def rounds(self) -> Rounds | None:
        """How groups are rolled out in rounds; None if all of a group's rollouts are made at once."""
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
        """Rollouts of a step that may be under way at the same time; with `groups.round`, no fewer are made."""
        return self.rollout.prompts * (self.groups.round or self.rollout.rollouts)

    @property
    def update_prompts(self) -> int:
        """VERL's mini-batch: as many times `groups.keep` rollouts as one update may train on, recoveries included."""
        return self.rollout.prompts * (1 + -(-self.recover.most // self.groups.keep))

    @property
    def longest(self) -> int:
        """Tokens of the longest rollout, its prompt included."""
        return self.rollout.prompt_tokens + self.rollout.tokens

    @property
    def models_on_the_way(self) -> int:
        """How many models are made of checkpoints before the stage's end."""
        every = self.checkpoint.export_every
        return self.steps // every if every else 0

    @property
    def keeps_own_checkpoints(self) -> bool:
        """Whether some checkpoints are needed after VERL would have removed them: for a model, or to go back to."""
        return bool(self.checkpoint.export_every) or self.rules.may_go_back

    @property
    def update_tokens(self) -> int:
        """Tokens per GPU in a micro-batch of the update."""
        return self.hardware.update_tokens or -(-self.longest // self.hardware.sequence_parallel)

    @property
    def log_prob_tokens(self) -> int:
        """Tokens per GPU in a micro-batch of which only log-probabilities are computed."""
        return self.hardware.log_prob_tokens or self.update_tokens

    @model_validator(mode="before")
    @classmethod
    def _no_old_keys(cls, values: Any) -> Any:
        if isinstance(values, dict) and (old := replaced_keys(values)):
            told = "; ".join(f"{key} (write {instead})" for key, instead in old)
            raise ValueError(f"keys that are no longer read: {told}")
        return values

    @model_validator(mode="after")
    def _verl_reads_its_keys(self) -> StageRecipe:
        _check_model_config(self.verl)
        return self

    @model_validator(mode="after")
    def _rollouts_fit(self) -> StageRecipe:
        """VERL ends in the first update where a rollout is longer than a micro-batch."""
        for key in ("update_tokens", "log_prob_tokens"):
            tokens, split = getattr(self, key), self.hardware.sequence_parallel
            if tokens * split < self.longest:
                raise ValueError(
                    f"hardware.{key} = {tokens} times hardware.sequence_parallel = {split} is less than the longest "
                    f"rollout with its prompt: rollout.prompt_tokens + rollout.tokens = {self.longest}"
                )
        return self

    @model_validator(mode="after")
    def _ranks_share_an_update(self) -> StageRecipe:
        prompts, kept = self.rollout.prompts, self.groups.keep
        told = f"rollout.prompts = {prompts}"
        own = dotted(self.verl).get("actor_rollout_ref.actor.ppo_mini_batch_size")
        if isinstance(own, int):
            prompts, told = own, f"verl.actor_rollout_ref.actor.ppo_mini_batch_size = {own}"
        if why := self.hardware.batch_fault(prompts * kept, f"{told} times groups.keep = {kept} rollouts"):
            raise ValueError(why)
        return self

    @model_validator(mode="after")
    def _mode_works(self) -> StageRecipe:
        why = mode_fault(self.mode, self.asynchronous, self.hardware.device, self.hardware.router)
        if why:
            raise ValueError(why)
        return self

    @model_validator(mode="after")
    def _verl_holds_it(self) -> StageRecipe:
        """vLLM refuses at its start, and VERL's queue after hours of a step's rollouts."""
        own, ahead = dotted(self.verl), self.asynchronous.batches_ahead if self.mode != "sync" else 0
        for why in (
            engine_fault(self.hardware.sequences_in_flight, own),
            queue_fault(self.rollout.prompts, self.rollout.rollouts + self.recover.most, 1 + ahead, own),
        ):
            if why:
                raise ValueError(why)
        return self

    @model_validator(mode="after")
    def _rules_can_act(self) -> StageRecipe:
        held_out, every = self.held_out, self.checkpoint.every
        if why := rule_fault(self.rules, bool(held_out.data), held_out.every, every):
            raise ValueError(why)
        return self

    @model_validator(mode="after")
    def _penalty_fits(self) -> StageRecipe:
        if why := penalty_fault(self.reward, self.penalty):
            raise ValueError(why)
        return self

    @model_validator(mode="after")
    def _curriculum_is_current(self) -> StageRecipe:
        """Processes that load problems ahead would ask what was chosen many steps before."""
        workers = dotted(self.verl).get(LOADING_PROCESSES, 0)
        if self.curriculum.reads_outcomes and workers:
            raise ValueError(
                f'curriculum = "{self.curriculum.name}" needs verl.{LOADING_PROCESSES} = 0, not {workers}: processes '
                "that load problems ahead would ask those that were chosen by outcomes of many steps ago"
            )
        return self

    @model_validator(mode="after")
    def _group_fits(self) -> StageRecipe:
        if self.groups.keep > self.rollout.rollouts:
            raise ValueError(
                f"groups.keep = {self.groups.keep} is more than rollout.rollouts = {self.rollout.rollouts}"
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
                f"groups.round = {groups.round} is not less than rollout.rollouts = {most}, so a group has one round: "
                "lower it, or leave it unset"
            )
        if groups.enough is not None and 2 * groups.enough > most:
            raise ValueError(
                f"groups.enough = {groups.enough} correct and as many wrong rollouts are more than rollout.rollouts = "
                f"{most}"
            )
        return self


class ValidationSettings(Strict):
    """Conversations that SFT does not train on. Their loss is measured while it runs."""

    data: str | None = None
    """A file of conversations, or a folder from `rstar2 data prepare`. Those that ask nearly the same as one of the
    training data are left out. If unset or empty, `share` of the training data is held out."""
    share: float = Field(0.01, ge=0, lt=1)
    """Share of the training data to hold out, drawn at random with `seed`. Conversations whose first questions are
    equal or near duplicates stay on one side. 0: none, so the loss is not measured."""
    most: int = Field(1000, ge=1)
    """Limit for the number of conversations that `share` holds out."""
    every: int = Field(100, ge=1)
    """Steps between two measurements. Steps whose model could be chosen are measured besides, see `choose`."""


class SftHeldOutSettings(Strict):
    """Problems on which the model is sampled while SFT runs, as `rstar2 eval` does: pass@k and mean length."""

    data: str | None = None
    """Problems in a file from `rstar2 data prepare`, or its folder. If unset or empty, nothing is sampled."""
    every: int = Field(500, ge=1)
    """Steps between two evaluations; the last step is always evaluated. For each, training saves and ends, the model is
    made and sampled on all the hardware, and training continues from the checkpoint."""
    samples: int = Field(4, ge=1)
    """Samples per problem: the largest k of pass@k."""
    temperature: float = Field(1.0, ge=0)
    """Sampling temperature; 0 is greedy."""
    tokens: int = Field(8192, ge=1)
    """Token budget of a sample after its prompt, tool output included."""
    max_turns: int = Field(10, ge=1)
    """Limit for the model's turns in a sample."""


Choose = Literal["auto", "held_out", "validation", "last"]


class SftRecipe(Strict):
    """Stage 0: supervised fine-tuning on tool-use conversations."""

    format: str | None = None
    """Format to teach: a name or a file. If unset or empty, that of the model's format file, or else ours."""
    epochs: int = Field(3, ge=1)
    """Passes over the data."""
    batch: int = Field(128, ge=1)
    """Conversations per update."""
    lr: float = Field(5e-6, gt=0)
    """Learning rate at the end of the warm-up; from there it follows a cosine decay."""
    warmup_ratio: float = Field(0.04, ge=0, le=1)
    """Share of all steps in which the learning rate rises (warm-up)."""
    weight_decay: float = Field(0.01, ge=0)
    """AdamW's weight decay."""
    max_tokens: int = Field(16384, ge=1)
    """Limit for a conversation, as the model sees it."""
    too_long: Literal["drop", "cut"] = "drop"
    """Conversations with more than `max_tokens`. drop: left out. cut: cut at their end. Either way they are counted."""
    validation: ValidationSettings = ValidationSettings()
    held_out: SftHeldOutSettings = SftHeldOutSettings()
    choose: Choose = "auto"
    """Which step's model SFT returns. held_out: the one with the highest accuracy on `held_out.data`, of the steps that
    are evaluated. validation: the one with the lowest validation loss, of the multiples of `checkpoint_every` and the
    last step. last: the last step. auto: held_out if problems are named, else validation if the loss is measured, else
    last. Of equal ones the earliest is chosen."""
    hardware: Hardware = Hardware()
    checkpoint_every: int = Field(500, ge=1)
    """Steps between checkpoints; the last step is always saved."""
    checkpoint_every_minutes: float = Field(30.0, gt=0)
    """A step is also saved if, at its end, the last checkpoint is at least this many minutes old."""
    seed: int = Field(1, ge=0)
    """Seed for the order of conversations."""
    trackers: tuple[Tracker, ...] = ("console",)
    """Where VERL reports all metrics of each step, besides the file that `rstar2 watch` reads. console: the trainer's
    log. wandb: Weights & Biases. vemlp_wandb: Volcengine's W&B. Several have a mode that writes files into the run's
    folder and needs no server; docs/curves.md has the table."""
    verl: dict[str, Any] = Field(default_factory=dict)
    """VERL's own keys, dotted, for settings that have no key here."""

    @property
    def chosen_by(self) -> Choose:
        """`choose`, with `auto` resolved; validation that has no conversations measures nothing."""
        if self.choose != "auto":
            return self.choose
        if self.held_out.data:
            return "held_out"
        return "validation" if self.validation.data or self.validation.share else "last"

    @property
    def update_tokens(self) -> int:
        """Tokens per GPU in a micro-batch."""
        return self.hardware.update_tokens or 2 * self.max_tokens

    @property
    def micro_batch_rows(self) -> int | None:
        """Conversations of a micro-batch where VERL is told to count them; None where it counts tokens."""
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
                'choose = "held_out" needs problems to sample: name their file with held_out.data'
            )
        if self.choose == "validation" and not (self.validation.data or self.validation.share):
            raise ValueError(
                'choose = "validation" needs conversations to measure on: set validation.share above 0, or '
                "validation.data"
            )
        return self

    @model_validator(mode="after")
    def _conversations_fit(self) -> SftRecipe:
        """VERL ends in the first step where a conversation is longer than a micro-batch."""
        tokens, split = self.update_tokens, self.hardware.sequence_parallel
        if self.micro_batch_rows is None and tokens * split < self.max_tokens:
            raise ValueError(
                f"hardware.update_tokens = {tokens} times hardware.sequence_parallel = {split} is less than the "
                f"longest conversation: max_tokens = {self.max_tokens}"
            )
        return self

    @model_validator(mode="after")
    def _ranks_share_a_batch(self) -> SftRecipe:
        if why := self.hardware.batch_fault(self.batch, f"batch = {self.batch} conversations"):
            raise ValueError(why)
        return self

"""The steps of a run as one table: what VERL and our sampler measured, by names that say what they are.

VERL's metrics stand whole in `stage1/metrics-1.jsonl` and so on, one file per start of the trainer. `steps.csv` in the
run's folder is made of them after each step: one row per step, over all stages. VERL writes null for a measurement that
is NaN or infinite; here it is NaN.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from rstar2.eval.grader.outcomes import LABELS, UNDECIDED
from rstar2.files import read_json, write_json, write_text
from rstar2.train.records.outcome_log import PROBLEMS
from rstar2.train.records.raw_metrics import DROPPED, FAILURES, MISSED, FailureKind

STEPS_FILE = "steps.csv"
STEPS_BEFORE_FILE = "steps_before.json"
"""In a stage's folder: how many steps the stages before it have. Their metrics may lack one: a kill after a checkpoint
leaves no line of its step, which is not repeated."""
MAIN_METRIC = "rstar2/pass_rate"
SFT_METRIC = "train/loss"
VALIDATION_METRIC = "val/loss"
_STAGES = (1, 2, 3)

Metrics = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """One column of the table."""

    name: str
    meaning: str
    value: Callable[[Metrics], float | None]


def _metric(key: str) -> Callable[[Metrics], float | None]:
    return lambda step: step.get(key)


def _seconds(step: Metrics, *names: str) -> float:
    return float(sum(step.get(f"timing_s/{name}", 0.0) for name in names))


def _share(part: Callable[[Metrics], float]) -> Callable[[Metrics], float | None]:
    return lambda step: part(step) / step["timing_s/step"] if step.get("timing_s/step") else None


def _rolling(step: Metrics) -> float:
    """Seconds in which rollouts were made: without the part in which the judge was away."""
    paused_s = float(step.get("rstar2/judge_pause_s", 0.0))
    return max(0.0, _seconds(step, "gen") - paused_s)


def _tools(step: Metrics) -> float:
    return float(_rolling(step) * step.get("rstar2/tool_wait_share", 0.0))


_UPDATE = (
    "old_log_prob",
    "ref",
    "values",
    "adv",
    "update_critic",
    "update_actor",
    "update_weights",
    "reward",
)


def _waiting(step: Metrics) -> float:
    named = _rolling(step) + _seconds(step, *_UPDATE, "save_checkpoint")
    return max(0.0, float(step["timing_s/step"]) - named)


def held_out_accuracy(step: Mapping[str, Any]) -> float | None:
    """The mean accuracy of the sources of held-out problems, of the rollouts with a verdict; None if not measured."""
    found = [value for key, value in step.items() if key.startswith("val-") and "/acc/mean@" in key]
    return sum(found) / len(found) if found else None


def _left_out_by_correction(step: Metrics) -> float | None:
    return step.get("rollout_corr/rollout_rs_masked_fraction", step.get("rollout_corr/rollout_is_oob_ratio"))


def _held_out_left_out(step: Metrics) -> float | None:
    if "rstar2/held_out_rollouts" not in step:
        return None
    return float(step["rstar2/held_out_lost"] + step["rstar2/held_out_failed"])


COLUMNS = (
    Column(
        "pass_rate",
        "correct rollouts of those with a verdict (none that failed or lost a call), before selection; with "
        "groups.round, those of first rounds",
        _metric(MAIN_METRIC),
    ),
    Column("reward", "mean reward of the same", _metric("rstar2/reward")),
    *(
        Column(
            f"answers_{reason}",
            f"share of the rollouts with a verdict whose answer earns nothing: {LABELS[reason]}",
            _metric(f"rstar2/answers/{reason}"),
        )
        for reason in MISSED
    ),
    Column(
        "undecided",
        f"share of them that the grader could not decide: {', '.join(LABELS[reason] for reason in UNDECIDED)}",
        _metric("rstar2/undecided"),
    ),
    Column("kept_reward", "mean reward of the rollouts trained on", _metric("critic/rewards/mean")),
    Column(
        "held_out",
        "accuracy on held-out problems, of the rollouts with a verdict; empty if too many have none",
        held_out_accuracy,
    ),
    Column("held_out_left_out", "held-out rollouts that failed or lost a call", _held_out_left_out),
    Column(
        "held_out_undecided",
        "share of the held-out rollouts with a verdict that the grader could not decide",
        _metric("rstar2/held_out_undecided"),
    ),
    Column(
        "failed_calls", "failed calls inside correct rollouts", _metric("rstar2/failed_call_ratio_correct")
    ),
    Column(
        "kept_failed_calls",
        "the same, for the kept rollouts",
        _metric("rstar2/kept_failed_call_ratio_correct"),
    ),
    Column(
        "repaired",
        "share of the turns with a failed call that a turn with right calls follows; empty if no call failed",
        _metric("rstar2/repaired"),
    ),
    Column(
        "answered_after_failure",
        "share of them that are in rollouts with a correct answer",
        _metric("rstar2/answered_after_failure"),
    ),
    Column("p_err", "mean penalty for failed calls of correct rollouts", _metric("rstar2/p_err")),
    Column("kept_p_err", "the same, for the kept rollouts", _metric("rstar2/kept_p_err")),
    Column("p_format", "mean penalty for their answer blocks", _metric("rstar2/p_format")),
    Column("kept_p_format", "the same, for the kept rollouts", _metric("rstar2/kept_p_format")),
    Column("rollouts", "rollouts of the step, those that failed included", _metric("rstar2/rollouts")),
    Column(
        "reused",
        "of them finished before the trainer was started again, and used as they were",
        _metric("rstar2/reused_rollouts"),
    ),
    Column("kept", "of them trained on", _metric("rstar2/kept")),
    *(
        Column(f"dropped_{reason}", f"not trained on: {reason}", _metric(f"rstar2/dropped/{reason}"))
        for reason in DROPPED
    ),
    *(
        Column(
            f"failed_{kind}",
            f"rollouts that failed through: {kind}",
            _metric(f"rstar2/failed_rollouts/{kind}"),
        )
        for kind in get_args(FailureKind)
    ),
    Column(
        "discarded",
        "rollouts of this step that were not trained on, because too many of them failed or lost a call",
        _metric("rstar2/discarded_rollouts"),
    ),
    Column(
        "mixed_groups",
        "share of groups whose rewards differ, before selection",
        _metric("rstar2/mixed_groups"),
    ),
    Column("dropped_groups", "share of groups that are not trained on", _metric("rstar2/dropped_groups")),
    *(
        Column(f"problems_{name}", meaning, _metric(f"rstar2/problems/{name}"))
        for name, meaning in PROBLEMS.items()
    ),
    Column(
        "saved",
        "rollouts that were not made, because rounds decided their group early (groups.round)",
        _metric("rstar2/saved_rollouts"),
    ),
    Column("rounds", "rounds per group (groups.round)", _metric("rstar2/rounds")),
    Column(
        "recoveries",
        "extra rollouts that began after a failed call, those that failed included (recover); none of the columns "
        "about all rollouts covers them",
        _metric("rstar2/recover/rollouts"),
    ),
    Column(
        "recovery_tokens",
        "tokens that they wrote and read, without those they began with",
        _metric("rstar2/recover/tokens"),
    ),
    Column("recoveries_kept", "of them trained on", _metric("rstar2/recover/kept")),
    Column(
        "recoveries_lost_or_failed",
        "of them without a verdict",
        lambda step: (
            step["rstar2/recover/failed"] + step["rstar2/recover/lost"]
            if "rstar2/recover/failed" in step
            else None
        ),
    ),
    Column(
        "recoveries_repaired",
        "share of those with a verdict that had a turn with right calls",
        _metric("rstar2/recover/repaired"),
    ),
    Column("recoveries_correct", "share whose answer is correct", _metric("rstar2/recover/correct")),
    Column(
        "recoveries_mixed",
        "share of the failed calls that they began after whose recoveries have different rewards",
        _metric("rstar2/recover/mixed_groups"),
    ),
    Column(
        "unsolved_groups",
        "share of the problems of which no rollout is correct, of those with a verdict",
        _metric("rstar2/unsolved_groups"),
    ),
    Column(
        "information",
        "what the tokens of rollouts say about their problem, nats per token (`rstar2.train.information`)",
        _metric("rstar2/information"),
    ),
    Column(
        "retrieved",
        "share of these rollouts that are most like the other rollouts of their own problem",
        _metric("rstar2/retrieved"),
    ),
    Column(
        "stale_groups",
        "groups left out because they took too many steps (asynchronous modes)",
        _metric("training/off_policy/evicted_samples"),
    ),
    Column(
        "staleness",
        "steps between the weights that began a rollout and those it trains, mean of those kept",
        _metric("training/off_policy/trajectory_staleness_worst/mean"),
    ),
    Column(
        "off_policy_tokens",
        "share of the kept tokens in turns that older weights began",
        _metric("rstar2/off_policy_tokens"),
    ),
    Column("calls", "tool calls per rollout", _metric("rstar2/calls")),
    *(
        Column(
            f"calls_{status}", f"share of calls that ended so: {status}", _metric(f"rstar2/calls/{status}")
        )
        for status in FAILURES
    ),
    Column("tokens", "mean tokens of a rollout after its prompt", _metric("rstar2/tokens")),
    Column("tokens_max", "tokens of the longest", _metric("rstar2/tokens_max")),
    Column("truncated", "share that ended by the token budget", _metric("rstar2/truncated")),
    Column(
        "bad_calls_ends",
        "share that ended by the limit of failed calls in a row",
        _metric("rstar2/bad_calls_ends"),
    ),
    Column(
        "penalty",
        "what length and turns took off the reward, mean of correct rollouts",
        _metric("rstar2/penalty"),
    ),
    Column("entropy", "nats per token, of the trainer's policy in kept rollouts", _metric("actor/entropy")),
    Column(
        "mismatch_kl", "KL of engine and trainer in kept rollouts, nats per token", _metric("rollout_corr/kl")
    ),
    Column(
        "mismatch_k3",
        "the same, by an estimate that is never negative and that noise raises too (k3), in kept rollouts",
        _metric("rollout_corr/k3_kl"),
    ),
    Column(
        "without_weight",
        "share of the kept tokens that `algorithm.correction` left out of the loss",
        _left_out_by_correction,
    ),
    Column("grad_norm", "of the gradient of kept rollouts, before it is clipped", _metric("actor/grad_norm")),
    Column("call_s", "mean seconds until the judge answered a call", _metric("rstar2/call_s")),
    Column("slowest_call_s", "of the slowest", _metric("rstar2/slowest_call_s")),
    Column("judge_pause_s", "seconds that the step waited for the judge", _metric("rstar2/judge_pause_s")),
    Column("step_s", "seconds of the step", _metric("timing_s/step")),
    Column(
        "share_rollout", "share of it: the model writes", _share(lambda step: _rolling(step) - _tools(step))
    ),
    Column("share_tools", "share: an average rollout waits for tools", _share(_tools)),
    Column(
        "share_update",
        "share: log-probabilities to new weights",
        _share(lambda step: _seconds(step, *_UPDATE)),
    ),
    Column("share_checkpoint", "share: saving", _share(lambda step: _seconds(step, "save_checkpoint"))),
    Column("share_waiting", "share: the rest, a judge that is away included", _share(_waiting)),
)


@dataclass(frozen=True)
class Step:
    """One step of a run."""

    number: int
    """From 1, over all stages; one of which a kill left no metrics is counted."""
    stage: int
    stage_step: int
    """From 1 in each stage."""
    values: dict[str, float | None]
    """By the names of COLUMNS; None where it was not measured, NaN where the measurement is not a number."""


def step_metrics(folder: Path) -> dict[int, Metrics]:
    """A stage's metrics by step, by VERL's names; where a step was run twice, the later run counts."""
    return _by_step(folder, MAIN_METRIC)


def _by_step(folder: Path, named: str) -> dict[int, Metrics]:
    """The steps that have a metric, which a line of validation alone has not."""
    rows = (row for row in _rows(folder) if named in row["data"])
    return dict(sorted({int(row["step"]): row["data"] for row in rows}.items()))


def with_nan(metrics: Metrics) -> Metrics:
    """A step's metrics as VERL wrote them, with NaN in place of null."""
    return {name: math.nan if value is None else value for name, value in metrics.items()}


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of all starts of a trainer, in order."""
    for path in sorted(folder.glob("metrics-*.jsonl"), key=lambda path: int(path.stem.split("-")[1])):
        for row in metrics_rows(path.read_bytes()):
            yield {**row, "data": with_nan(row["data"])}


def metrics_rows(written: bytes) -> Iterator[dict[str, Any]]:
    """The steps' lines of a metrics file; those that a kill or a full disk has torn are left out, wherever they are."""
    for line in written[: written.rfind(b"\n") + 1].splitlines():
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and "step" in row and isinstance(row.get("data"), dict):
                yield row


def sft_metrics(folder: Path) -> dict[int, Metrics]:
    """The metrics of SFT, as `step_metrics`."""
    return _by_step(folder, SFT_METRIC)


def sft_losses(folder: Path) -> list[float]:
    """The loss of each step of SFT."""
    return [float(step[SFT_METRIC]) for step in sft_metrics(folder).values()]


def validation_losses(folder: Path) -> dict[int, float]:
    """The validation loss of each step of SFT that was measured, in nats per taught token."""
    return {step: float(row[VALIDATION_METRIC]) for step, row in _by_step(folder, VALIDATION_METRIC).items()}


def run_steps(root: Path) -> list[Step]:
    """The steps of all stages below `root`, in order."""
    return [
        Step(number, stage, step, {column.name: column.value(metrics) for column in COLUMNS})
        for number, stage, step, metrics in numbered_metrics(root)
    ]


def numbered_metrics(root: Path) -> Iterator[tuple[int, int, int, Metrics]]:
    """Each step of all stages below `root`: its number over all stages, the stage, its number there, its metrics."""
    before = 0
    for stage in _STAGES:
        folder = root / f"stage{stage}"
        metrics = step_metrics(folder)
        told = read_json(folder / STEPS_BEFORE_FILE)
        before = before if told is None else int(told)
        for step, measured in metrics.items():
            yield before + step, stage, step, measured
        before += max(metrics, default=0)


def write_steps_before(folder: Path, steps: int) -> None:
    """Keep in a stage's folder how many steps the stages before it have."""
    write_json(folder / STEPS_BEFORE_FILE, steps)


def as_csv(steps: list[Step]) -> str:
    """One row per step, with a header; what was not measured is empty, and what is not a number `nan`."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["step", "stage", "stage_step", *(column.name for column in COLUMNS)])
    for step in steps:
        values = [step.values[column.name] for column in COLUMNS]
        shown = ["" if value is None else f"{value:.6g}" for value in values]
        writer.writerow([step.number, step.stage, step.stage_step, *shown])
    return out.getvalue()


def write_steps(root: Path) -> None:
    """Write `steps.csv` of the stages below `root`."""
    write_text(root / STEPS_FILE, as_csv(run_steps(root)))

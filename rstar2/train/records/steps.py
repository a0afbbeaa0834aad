"""The table of a run's steps, `steps.csv`: the metrics of VERL and of our sampler, under short names.

Whenever the trainer is started, it writes all of VERL's metrics to a new file, such as `stage1/metrics-1.jsonl`. After
each step, `steps.csv` in the run's folder is made from all of these files, with one row per step over all stages. VERL
writes null for a value that is NaN or infinite, and `steps.csv` has NaN in place of null.
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
"""The file in a stage's folder that contains the number of steps of all earlier stages. The metrics of the earlier
stages may cover fewer steps. If the run is killed after a step's checkpoint is saved and before its metrics are
written, the step does not run again, and its metrics are missing."""
MAIN_METRIC = "rstar2/pass_rate"
SFT_METRIC = "train/loss"
VALIDATION_METRIC = "val/loss"
_STAGES = (1, 2, 3)

Metrics = dict[str, Any]


@dataclass(frozen=True)
class Column:
    """One column of the table `steps.csv`."""

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
    """Returns the seconds that a step's rollouts took, without the time in which the step waited for a judge that did
    not answer."""
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
    """Returns the accuracy on held-out problems: the unweighted mean of the accuracies of all problem sources. Returns
    None if held-out problems were not evaluated at the step."""
    accuracies = [value for key, value in step.items() if key.startswith("val-") and "/acc/mean@" in key]
    return sum(accuracies) / len(accuracies) if accuracies else None


def _left_out_by_correction(step: Metrics) -> float | None:
    return step.get("rollout_corr/rollout_rs_masked_fraction", step.get("rollout_corr/rollout_is_oob_ratio"))


def _held_out_left_out(step: Metrics) -> float | None:
    if "rstar2/held_out_rollouts" not in step:
        return None
    return float(step["rstar2/held_out_lost"] + step["rstar2/held_out_failed"])


COLUMNS = (
    Column(
        "pass_rate",
        "share of correct rollouts among those with a verdict (those that finished and lost no call), before "
        "selection; if groups.round is set, only first rounds count",
        _metric(MAIN_METRIC),
    ),
    Column("reward", "mean reward of the rollouts with a verdict", _metric("rstar2/reward")),
    *(
        Column(
            f"answers_{reason}",
            f"share of the rollouts with a verdict that earn no reward; reason: {LABELS[reason]}",
            _metric(f"rstar2/answers/{reason}"),
        )
        for reason in MISSED
    ),
    Column(
        "undecided",
        "share of answers that the grader could not decide, among the rollouts with a verdict; the reasons are: "
        f"{', '.join(LABELS[reason] for reason in UNDECIDED)}",
        _metric("rstar2/undecided"),
    ),
    Column("kept_reward", "mean reward of the rollouts trained on", _metric("critic/rewards/mean")),
    Column(
        "held_out",
        "accuracy on held-out problems, over the rollouts with a verdict; empty if too many rollouts have no verdict",
        held_out_accuracy,
    ),
    Column("held_out_left_out", "held-out rollouts that failed or lost a call", _held_out_left_out),
    Column(
        "held_out_undecided",
        "share of answers that the grader could not decide, among the held-out rollouts with a verdict",
        _metric("rstar2/held_out_undecided"),
    ),
    Column(
        "failed_calls",
        "share of failed calls among the calls of correct rollouts",
        _metric("rstar2/failed_call_ratio_correct"),
    ),
    Column(
        "kept_failed_calls",
        "share of failed calls among the calls of correct rollouts that are trained on",
        _metric("rstar2/kept_failed_call_ratio_correct"),
    ),
    Column(
        "repaired",
        "among the turns with a failed call, the share that was repaired: all calls of a later turn succeeded; empty "
        "if no call failed",
        _metric("rstar2/repaired"),
    ),
    Column(
        "answered_after_failure",
        "among the turns with a failed call, the share in rollouts with a correct answer",
        _metric("rstar2/answered_after_failure"),
    ),
    Column("p_err", "RoC penalty for failed calls, mean over correct rollouts", _metric("rstar2/p_err")),
    Column(
        "kept_p_err",
        "RoC penalty for failed calls, mean over correct rollouts that are trained on",
        _metric("rstar2/kept_p_err"),
    ),
    Column(
        "p_format", "RoC penalty for answer blocks, mean over correct rollouts", _metric("rstar2/p_format")
    ),
    Column(
        "kept_p_format",
        "RoC penalty for answer blocks, mean over correct rollouts that are trained on",
        _metric("rstar2/kept_p_format"),
    ),
    Column("rollouts", "number of rollouts of the step, including failed ones", _metric("rstar2/rollouts")),
    Column(
        "reused",
        "number of rollouts that finished before the trainer was started again, and were reused",
        _metric("rstar2/reused_rollouts"),
    ),
    Column("kept", "number of rollouts that are trained on", _metric("rstar2/kept")),
    *(
        Column(
            f"dropped_{reason}",
            f"number of rollouts that are not trained on; reason: {reason}",
            _metric(f"rstar2/dropped/{reason}"),
        )
        for reason in DROPPED
    ),
    *(
        Column(
            f"failed_{kind}",
            f"number of rollouts that failed; component: {kind}",
            _metric(f"rstar2/failed_rollouts/{kind}"),
        )
        for kind in get_args(FailureKind)
    ),
    Column(
        "discarded",
        "number of rollouts that were discarded before the step was rolled out again, because too many of them could "
        "not be used",
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
        "number of rollouts that were not needed, because their group was decided early (groups.round)",
        _metric("rstar2/saved_rollouts"),
    ),
    Column("rounds", "mean number of rounds per group (groups.round)", _metric("rstar2/rounds")),
    Column(
        "recoveries",
        "number of recoveries, including failed ones. Recoveries are extra rollouts that begin after a failed call "
        "(recover). Only columns whose names begin with recover include them",
        _metric("rstar2/recover/rollouts"),
    ),
    Column(
        "recovery_tokens",
        "tokens of the finished recoveries, without the prefix that each recovery continues",
        _metric("rstar2/recover/tokens"),
    ),
    Column("recoveries_kept", "number of recoveries that are trained on", _metric("rstar2/recover/kept")),
    Column(
        "recoveries_lost_or_failed",
        "number of recoveries without a verdict",
        lambda step: (
            step["rstar2/recover/failed"] + step["rstar2/recover/lost"]
            if "rstar2/recover/failed" in step
            else None
        ),
    ),
    Column(
        "recoveries_repaired",
        "among the recoveries with a verdict, the share that repaired the failed call: all calls of a later turn "
        "succeeded",
        _metric("rstar2/recover/repaired"),
    ),
    Column(
        "recoveries_correct",
        "share of correct recoveries among those with a verdict",
        _metric("rstar2/recover/correct"),
    ),
    Column(
        "recoveries_mixed",
        "share of recovery groups whose rewards differ",
        _metric("rstar2/recover/mixed_groups"),
    ),
    Column(
        "unsolved_groups",
        "share of problems that no rollout solved, among the problems with a verdict",
        _metric("rstar2/unsolved_groups"),
    ),
    Column(
        "information",
        "estimated mutual information of rollouts and their problems, in nats per token (`rstar2.train.information`)",
        _metric("rstar2/information"),
    ),
    Column(
        "retrieved",
        "share of rollouts that are more similar to the other rollouts of their own problem than to those of any other "
        "problem",
        _metric("rstar2/retrieved"),
    ),
    Column(
        "stale_groups",
        "number of groups that were left out because their rollouts were too old (asynchronous modes)",
        _metric("training/off_policy/evicted_samples"),
    ),
    Column(
        "staleness",
        "number of steps by which the weights that began a rollout are older than the step's weights, mean over the "
        "rollouts that are trained on",
        _metric("training/off_policy/trajectory_staleness_worst/mean"),
    ),
    Column(
        "off_policy_tokens",
        "among the tokens that are trained on, the share in turns that began with older weights than the step's",
        _metric("rstar2/off_policy_tokens"),
    ),
    Column("calls", "tool calls per rollout", _metric("rstar2/calls")),
    *(
        Column(
            f"calls_{status}",
            f"share of calls with the status: {status}",
            _metric(f"rstar2/calls/{status}"),
        )
        for status in FAILURES
    ),
    Column("tokens", "mean length of a rollout in tokens, without its prompt", _metric("rstar2/tokens")),
    Column(
        "tokens_max",
        "length of the longest rollout in tokens, without its prompt",
        _metric("rstar2/tokens_max"),
    ),
    Column("truncated", "share of rollouts that ended at the token budget", _metric("rstar2/truncated")),
    Column(
        "bad_calls_ends",
        "share of rollouts that ended at the limit for failed calls in a row",
        _metric("rstar2/bad_calls_ends"),
    ),
    Column(
        "penalty",
        "penalty for length and turns that was subtracted from the reward, mean over correct rollouts",
        _metric("rstar2/penalty"),
    ),
    Column(
        "entropy",
        "entropy of the trainer's policy in rollouts that are trained on, in nats per token",
        _metric("actor/entropy"),
    ),
    Column(
        "mismatch_kl",
        "KL divergence of engine and trainer in rollouts that are trained on, in nats per token",
        _metric("rollout_corr/kl"),
    ),
    Column(
        "mismatch_k3",
        "k3 estimate of the KL divergence of engine and trainer; it is never negative, and noise increases it",
        _metric("rollout_corr/k3_kl"),
    ),
    Column(
        "without_weight",
        "share of the trained tokens that `algorithm.correction` removed from the loss",
        _left_out_by_correction,
    ),
    Column(
        "grad_norm",
        "norm of the gradient of the rollouts that are trained on, before clipping",
        _metric("actor/grad_norm"),
    ),
    Column("call_s", "mean seconds until the judge answered a call", _metric("rstar2/call_s")),
    Column(
        "slowest_call_s",
        "seconds until the judge answered the slowest call",
        _metric("rstar2/slowest_call_s"),
    ),
    Column("judge_pause_s", "seconds that the step waited for the judge", _metric("rstar2/judge_pause_s")),
    Column("step_s", "seconds of the step", _metric("timing_s/step")),
    Column(
        "share_rollout",
        "share of the step's time in which the model generates",
        _share(lambda step: _rolling(step) - _tools(step)),
    ),
    Column(
        "share_tools", "share of the step's time in which an average rollout waits for tools", _share(_tools)
    ),
    Column(
        "share_update",
        "share of the step's time for the update, from the log-probabilities to the new weights",
        _share(lambda step: _seconds(step, *_UPDATE)),
    ),
    Column(
        "share_checkpoint",
        "share of the step's time in which checkpoints are saved",
        _share(lambda step: _seconds(step, "save_checkpoint")),
    ),
    Column(
        "share_waiting",
        "share of the step's time that the other share_ columns do not cover, such as waiting for the judge",
        _share(_waiting),
    ),
)


@dataclass(frozen=True)
class Step:
    """One training step of a run, with the values of its row in `steps.csv`."""

    number: int
    """The step's number over all stages, from 1. Steps whose metrics were lost because of a kill are counted too."""
    stage: int
    stage_step: int
    """The step's number within its stage, from 1."""
    values: dict[str, float | None]
    """Dict from the name of each column in `COLUMNS` to the step's value. A value that was not measured is None. A
    value that is infinite or not a number is NaN."""


def step_metrics(folder: Path) -> dict[int, Metrics]:
    """Returns a dict from each step of a stage to its metrics, under VERL's names. If a step ran twice, the later
    metrics are returned."""
    return _by_step(folder, MAIN_METRIC)


def _by_step(folder: Path, metric: str) -> dict[int, Metrics]:
    """Returns a dict from step number to metrics. Lines of the metrics files that lack `metric`, such as lines with
    only validation metrics, are left out."""
    rows = (row for row in _rows(folder) if metric in row["data"])
    return dict(sorted({int(row["step"]): row["data"] for row in rows}.items()))


def with_nan(metrics: Metrics) -> Metrics:
    """Returns a step's metrics with NaN in place of VERL's null."""
    return {name: math.nan if value is None else value for name, value in metrics.items()}


def _rows(folder: Path) -> Iterator[dict[str, Any]]:
    """Yields the rows of all metrics files in a folder, in order. The trainer writes a new file whenever it is
    started."""
    for path in sorted(folder.glob("metrics-*.jsonl"), key=lambda path: int(path.stem.split("-")[1])):
        for row in metrics_rows(path.read_bytes()):
            yield {**row, "data": with_nan(row["data"])}


def metrics_rows(written: bytes) -> Iterator[dict[str, Any]]:
    """Yields the rows of a metrics file. Lines that are incomplete because of a kill or a full disk are left out."""
    for line in written[: written.rfind(b"\n") + 1].splitlines():
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and "step" in row and isinstance(row.get("data"), dict):
                yield row


def sft_metrics(folder: Path) -> dict[int, Metrics]:
    """Returns a dict from each step of SFT to its metrics, under VERL's names."""
    return _by_step(folder, SFT_METRIC)


def sft_losses(folder: Path) -> list[float]:
    """Returns the loss of each step of SFT."""
    return [float(step[SFT_METRIC]) for step in sft_metrics(folder).values()]


def validation_losses(folder: Path) -> dict[int, float]:
    """Returns a dict from step number to the validation loss of SFT, in nats per token that is trained on. A step whose
    validation loss was not measured has no entry."""
    return {step: float(row[VALIDATION_METRIC]) for step, row in _by_step(folder, VALIDATION_METRIC).items()}


def run_steps(root: Path) -> list[Step]:
    """Returns the steps of all stages of the run in `root`, in order."""
    return [
        Step(number, stage, step, {column.name: column.value(metrics) for column in COLUMNS})
        for number, stage, step, metrics in numbered_metrics(root)
    ]


def numbered_metrics(root: Path) -> Iterator[tuple[int, int, int, Metrics]]:
    """Yields, for each step of the run in `root`, its number over all stages, its stage, its number within the stage,
    and its metrics."""
    before = 0
    for stage in _STAGES:
        folder = root / f"stage{stage}"
        metrics = step_metrics(folder)
        steps_before = read_json(folder / STEPS_BEFORE_FILE)
        before = before if steps_before is None else int(steps_before)
        for step, measured in metrics.items():
            yield before + step, stage, step, measured
        before += max(metrics, default=0)


def write_steps_before(folder: Path, steps: int) -> None:
    """Writes the number of steps of all earlier stages to a stage's folder."""
    write_json(folder / STEPS_BEFORE_FILE, steps)


def as_csv(steps: list[Step]) -> str:
    """Returns the table as CSV: a header, and one row per step.

    The cell of a value that was not measured is empty. A value that is NaN or infinite is written as `nan`.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["step", "stage", "stage_step", *(column.name for column in COLUMNS)])
    for step in steps:
        values = [step.values[column.name] for column in COLUMNS]
        cells = ["" if value is None else f"{value:.6g}" for value in values]
        writer.writerow([step.number, step.stage, step.stage_step, *cells])
    return out.getvalue()


def write_steps(root: Path) -> None:
    """Writes `steps.csv` of the run in `root`."""
    write_text(root / STEPS_FILE, as_csv(run_steps(root)))

"""A custom sampler for VERL, which applies the recipe's selection, so that at most G rollouts of a problem are trained
on.

Rollouts without a verdict are left out first: rollouts that failed, and rollouts with a tool call that the judge lost.
If too many rollouts have no verdict, all rollouts of the step are discarded, and the step is rolled out again after a
wait. If the judge lost too many calls, training waits until the judge answers. If too many rollouts failed, training
waits for some seconds.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from rstar2.errors import Failure, RStarError
from rstar2.eval.settings import sample_seed
from rstar2.judge.client import SyncJudgeClient
from rstar2.judge.client.http import AccessRefused, JudgeError
from rstar2.judge.schema import RunRequest
from rstar2.retry import Backoff
from rstar2.train.group import Rollout, gives_gradient
from rstar2.train.recipe import JudgeSettings
from rstar2.train.records.final_error import write_final_error
from rstar2.train.records.kept_traces import choose, write_step
from rstar2.train.records.outcome_log import OutcomeRecorder
from rstar2.train.records.progress import ProgressWriter, RolloutProgress
from rstar2.train.records.raw_metrics import (
    FailedRollout,
    failed_tokens,
    failure_text,
    raw_metrics,
    recovery_metrics,
    rounds_metrics,
)
from rstar2.train.recover import Recovery
from rstar2.train.rounds import Rounds, RoundsOfGroup
from rstar2.train.select import Selection, SelectSettings
from rstar2.train.trainer.saving import STOP_FILE
from rstar2.train.verl import problem_sampler  # noqa: F401  (has its effect when it is imported)
from rstar2.train.verl.held_out import HeldOut, NoVerdictsError
from rstar2.train.verl.output.traces import TraceSender
from rstar2.train.verl.rollout_fields import (
    failure_of,
    is_recovery,
    is_rollout,
    recoveries_of,
    recovery_in,
    reused,
    rollout_of,
    rounds_of,
    trace_of,
    written_by,
)

POLL_S = 0.1
"""Seconds between two polls of VERL's queue. For a small model, VERL's default of 2 seconds would be most of a step's
time."""
POLL_SHARE = 0.05
"""Maximum share of the time that polling takes. A poll lists every rollout, so it takes longer if there are more
rollouts."""
LONGEST_POLL_S = 10.0
JUDGE_POLL_S = 5.0
EMPTY_STEPS = 10
"""Maximum number of attempts to roll out a step. Training ends if no attempt gave a rollout to train on."""
FAILED_STEPS = 3
"""Maximum number of attempts to roll out a step in which too many rollouts fail. Training then ends, because starting
it again with new engines helps more than another attempt."""
FIRST_WAIT_S, LONGEST_WAIT_S = 30.0, 300.0
"""The first and the longest wait, in seconds, before a step is rolled out again because too many rollouts failed."""
_EVICTION_REASONS = ("off_policy", "rollout_failure")
"""The reasons for which VERL leaves a group out. VERL has one metric per reason. The metric is missing if no group was
left out for this reason."""
log = logging.getLogger(__name__)


class SelectingReplayBuffer(ReplayBuffer):  # type: ignore[misc]
    """Selects the rollouts to train on, logs metrics of all rollouts before the selection, and saves traces.

    The settings of this class are in the table `sampler_kwargs` of the trainer config:

    | key | value |
    |---|---|
    | `select` | `SelectSettings` |
    | `keep` | G, the maximum number of rollouts per problem that are trained on |
    | `drop_equal_rewards` | whether groups are left out if all their rollouts have the same reward |
    | `refill_batches` | maximum number of left-out groups that are replaced in a step, in multiples of `prompts` |
    | `rounds` | the arguments of `Rounds`, or None |
    | `recover` | `RecoverSettings`; only `rstar2.train.verl.agent_loop_manager` reads it |
    | `judge` | `JudgeSettings` |
    | `max_failed_share` | a step is not trained on if more than this share of its rollouts failed |
    | `discount` | the discount for older outcomes in the metrics of problems |
    | `prompts`, `rollouts` | number of problems per step, and number of rollouts per problem |
    | `held_out_samples` | number of rollouts per held-out problem |
    | `traces`, `traces_per_step` | folder for traces, and number of traces to draw per step |
    | `trace_trackers`, `run` | trackers that receive traces, and the run's name in the trackers |
    | `seed` | the recipe's seed |
    | `agent_loop` | path of the file that `rstar2.train.command.agent_loop_yaml` writes |
    """

    held_out: HeldOut
    """The rollouts of the current measurement on held-out problems. The module `rstar2.train.verl.held_out` sets the
    attribute.
    """

    def __init__(self, **kwargs: Any) -> None:
        options = kwargs["sampler_kwargs"]
        self._selection = Selection(SelectSettings.model_validate(dict(options["select"])))
        self._keep = int(options["keep"])
        self._drop_equal_rewards = bool(options["drop_equal_rewards"])
        self._rounds = None if options["rounds"] is None else Rounds(**options["rounds"])
        self._judge = JudgeSettings.model_validate(dict(options["judge"]))
        self._seed = int(options["seed"])
        self._traces = Path(options["traces"])
        self._traces_per_step = int(options["traces_per_step"])
        self._trace_trackers = TraceSender(options["trace_trackers"], str(options["run"]))
        self._agent_loop = Path(options["agent_loop"])
        self._per_problem = {"train": int(options["rollouts"]), "val": int(options["held_out_samples"])}
        self._rollouts_per_step = int(options["prompts"]) * self._per_problem["train"]
        self._progress = ProgressWriter(self._agent_loop.parent)
        self._step = 0
        self._step_metrics: dict[str, float] = {}
        self._lost_reasons: list[str] = []
        self._judge_failed = False
        """Whether too many of the step's rollouts lost a call to the judge."""
        self._max_failed_share = float(options["max_failed_share"])
        self._failed: list[FailedRollout] = []
        """The rollouts of the current step that failed."""
        self._finished_tokens = 0.0
        """The mean number of tokens of the step's finished rollouts."""
        self._rollout_count = 0
        """Number of the step's rollouts, including those that failed."""
        self._failed_wait = Backoff(FIRST_WAIT_S, LONGEST_WAIT_S)
        self._fault = ""
        """A message about the step's rollouts; empty if nothing is wrong."""
        self._poll_begun_at = 0.0
        self._refill_limit = int(float(options["refill_batches"]) * options["prompts"])
        """Maximum number of dropped groups that are replaced in a step."""
        self._replaced: dict[str, list[Any]] = {}
        """Dict from the key of each replaced group to the extra fields of the group's finished rollouts."""
        self._replaced_failed: list[FailedRollout] = []
        """The failed rollouts of all replaced groups."""
        self._replaced_rounds: dict[str, RoundsOfGroup] = {}
        """Dict from the key of each replaced group to the group's result, if the group was rolled out in rounds."""
        self._replaced_recoveries: dict[str, _Recoveries] = {}
        """Dict from the key of each replaced group to the group's recoveries."""
        self._accepted: set[str] = set()
        """Finished groups that will not be replaced."""
        self._outcomes = OutcomeRecorder(
            self._agent_loop.parent, self._per_problem["train"], float(options["discount"])
        )
        self._evicted_rollouts: list[Rollout] = []
        """Rollouts of groups that VERL removed before a step took them, for example because the groups were too old."""
        # VERL's filter for groups without a signal needs these settings. `_dapo_filtered_keys` decides which groups
        # they are.
        refill = {
            "filter_groups_metric": "selection",
            "train_batch_size": int(options["prompts"]),
            "gen_batch_size": 1,
        }
        super().__init__(**{"poll_interval": POLL_S, **(refill if self._refill_limit else {}), **kwargs})

    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Returns the batch of a step and its metrics.

        The step is rolled out again until there are rollouts to train on.

        Raises:
            JudgeError: too many rollouts lost a call. Either the judge did not answer for longer than the recipe's
                `judge.stop_after_s`, or the judge answered, but in `EMPTY_STEPS` attempts too many rollouts of the step
                lost a call.
            Failure: too many rollouts failed in `FAILED_STEPS` attempts, no rollout could be trained on in
                `EMPTY_STEPS` attempts, or a signal to stop arrived before the step was rolled out again.
        """
        self._step, self._fault = global_steps, ""
        paused_s, lost, failed, empty, discarded = 0.0, 0, 0, 0, 0
        while True:
            self._replaced.clear()
            self._replaced_failed.clear()
            self._replaced_rounds.clear()
            self._replaced_recoveries.clear()
            batch, metrics = super().sample(global_steps, partition_id, batch_size)
            if partition_id == "val":
                return batch, metrics
            if batch.keys:
                self._failed_wait.reset()
                again = {"rstar2/judge_pause_s": paused_s, "rstar2/discarded_rollouts": float(discarded)}
                return batch, {**metrics, **self._step_metrics, **again}
            discarded += self._rollout_count
            if self._judge_failed:
                lost += 1
                # Only the waiting counts, because rolling a step out may itself take longer than the limit.
                paused_s += self._await_judge(self._judge.stop_after_s - paused_s)
                self._lost_again(lost)
            elif self._too_many_failed:
                failed += 1
                self._failed_again(failed)
            else:
                empty += 1
                self._nothing_to_train_on(empty)
            self._end_if_requested()
            self._progress.write(RolloutProgress(self._step, 0, self._rollouts_per_step, fault=self._fault))
            self.refill_fn(batch_size)

    def _materialize_batch(
        self,
        partition_id: str,
        selected_prompt_uids: list[str],
        partition_snapshot: dict[str, dict[str, Any]],
    ) -> KVBatchMeta:
        """Returns the rollouts to train on, or no rollouts if too many rollouts failed or lost a call."""
        batch = super()._materialize_batch(partition_id, selected_prompt_uids, partition_snapshot)
        batch, in_rounds = _without_rounds(batch)
        batch, recoveries = self._without_recoveries(batch)
        batch, failed = self._without_failed(
            batch, self._started_rollouts(batch.partition_id, selected_prompt_uids, in_rounds)
        )
        if partition_id == "val":
            return self._with_verdict(batch, failed)
        order = sorted(range(len(batch.keys)), key=lambda i: batch.keys[i])
        keys = [batch.keys[i] for i in order]
        fields = [
            *_extra_fields(keys, partition_id),
            *(each for group in self._replaced.values() for each in group),
        ]
        rollouts = [rollout_of(each) for each in fields]
        groups: dict[str, list[int]] = defaultdict(list)
        for i, key in enumerate(keys):
            groups[_group(key)].append(i)
        trained = self._select(rollouts, groups, in_rounds)
        all_recoveries = recoveries.with_others(self._replaced_recoveries.values())
        step_failed = [*failed, *self._replaced_failed]
        self._count_without_verdict(rollouts, all_recoveries, step_failed)
        if self._judge_failed or self._too_many_failed:
            trained, known = [], {}
        else:
            known = self._outcomes.record(self._step, [*rollouts, *self._evicted_rollouts])
        self._evicted_rollouts = []
        trained_recoveries = self._trained_recoveries(recoveries) if trained else []
        dropped = [keys[i] for i in sorted(set(range(len(keys))) - set(trained))]
        dropped += sorted(set(recoveries.keys) - {recoveries.keys[i] for i in trained_recoveries})
        if dropped:
            tq.kv_clear(keys=dropped, partition_id=partition_id)
        in_groups, start = list(groups.values()), len(keys)
        for replaced in self._replaced.values():
            in_groups.append(list(range(start, start + len(replaced))))
            start += len(replaced)
        if trained:
            first = None if self._rounds is None else self._rounds.size
            self._step_metrics = (
                raw_metrics(rollouts, trained, in_groups, self._selection, step_failed, first) | known
            )
            if self._rounds is not None:
                whole = [*in_rounds.values(), *self._replaced_rounds.values()]
                self._step_metrics |= rounds_metrics(self._rounds, whole)
            self._step_metrics["rstar2/reused_rollouts"] = float(sum(map(reused, fields)))
            if all_recoveries.count:
                self._step_metrics |= recovery_metrics(
                    all_recoveries.by_group(), all_recoveries.failed, len(trained_recoveries)
                )
            written = [*(fields[i] for i in trained), *(recoveries.fields[i] for i in trained_recoveries)]
            self._step_metrics["rstar2/off_policy_tokens"] = self._off_policy(
                [written_by(each) for each in written]
            )
        if self._traces_per_step:
            self._keep_traces(fields, rollouts, set(trained))
        return KVBatchMeta(
            partition_id=partition_id,
            keys=[*(keys[i] for i in trained), *(recoveries.keys[i] for i in trained_recoveries)],
            tags=[
                *(batch.tags[order[i]] for i in trained),
                *(recoveries.tags[i] for i in trained_recoveries),
            ],
        )

    def _count_without_verdict(
        self, rollouts: list[Rollout], recoveries: _Recoveries, failed: list[FailedRollout]
    ) -> None:
        """Counts the step's rollouts that failed or lost a call, and logs the reasons.

        Args:
            rollouts: the finished rollouts of problems.
            recoveries: all recoveries of the step.
            failed: the failed rollouts of problems.
        """
        finished = [*rollouts, *recoveries.rollouts]
        self._failed = [*failed, *recoveries.failed]
        self._rollout_count = len(finished) + len(self._failed)
        self._finished_tokens = float(np.mean([each.tokens for each in rollouts])) if rollouts else 0.0
        self._lost_reasons = [rollout.lost_because for rollout in finished if rollout.lost_calls]
        self._judge_failed = len(self._lost_reasons) > self._judge.max_lost_share * len(finished)
        if self._lost_reasons:
            log.warning("step %d: left out before selection: %s", self._step, self._lost_text())
        if self._failed:
            log.warning("step %d: left out before selection: %s", self._step, self._failed_text())

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        """Remembers the rollouts of groups that VERL removes before a step takes them, so that the outcomes of problems
        include them."""
        others = uids - self._replaced.keys()
        keys = [
            key
            for key, tag in self.partitions[partition_id].items()
            if _group(key) in others and is_rollout(tag) and not is_recovery(key)
        ]
        self._evicted_rollouts += map(rollout_of, _extra_fields(keys, partition_id))
        super()._clear_groups(partition_id, uids)

    @property
    def _too_many_failed(self) -> bool:
        return len(self._failed) > self._max_failed_share * self._rollout_count

    def _started_rollouts(
        self, partition_id: str, problems: list[str], in_rounds: Mapping[str, RoundsOfGroup]
    ) -> int:
        """Returns the number of rollouts that were started for the groups `problems`, without recoveries."""
        full = self._per_problem[partition_id]
        return sum(in_rounds[each].made if each in in_rounds else full for each in problems)

    def _without_recoveries(self, batch: KVBatchMeta) -> tuple[KVBatchMeta, _Recoveries]:
        """Splits a batch into the rollouts of problems and the recoveries from failed calls."""
        tags = dict(zip(batch.keys, batch.tags, strict=True))
        planned = {key: count for key, tag in tags.items() if (count := recoveries_of(tag)) is not None}
        recoveries = KVBatchMeta(
            partition_id=batch.partition_id,
            keys=[key for key in tags if is_recovery(key)],
            tags=[tag for key, tag in tags.items() if is_recovery(key)],
        )
        of_problems = [key for key in tags if not is_recovery(key)]
        rest = KVBatchMeta(
            partition_id=batch.partition_id, keys=of_problems, tags=[tags[key] for key in of_problems]
        )
        recoveries, failed = self._without_failed(recoveries, sum(planned.values()))
        order = sorted(range(len(recoveries.keys)), key=lambda i: recoveries.keys[i])
        keys = [recoveries.keys[i] for i in order]
        fields = _extra_fields(keys, batch.partition_id)
        return _cleared(rest, planned), _Recoveries(keys, [recoveries.tags[i] for i in order], fields, failed)

    def _trained_recoveries(self, recoveries: _Recoveries) -> list[int]:
        """Returns the indices of the recoveries to train on.

        Recoveries that lost a call or that the selection excludes are left out. A group is trained on if its remaining
        recoveries give a gradient.
        """
        trained: list[int] = []
        for members in recoveries.groups().values():
            usable = [
                i
                for i in members
                if not recoveries.rollouts[i].lost_calls
                and not self._selection.excludes(recoveries.rollouts[i])
            ]
            if gives_gradient([recoveries.rollouts[i] for i in usable], self._drop_equal_rewards):
                trained += usable
        return sorted(trained)

    def _without_failed(self, batch: KVBatchMeta, started: int) -> tuple[KVBatchMeta, list[FailedRollout]]:
        """Splits a batch into finished rollouts and failed rollouts.

        Args:
            started: number of rollouts that were started. A rollout that is not in the batch counts as failed.
        """
        why = {
            key: failure
            for key, tag in zip(batch.keys, batch.tags, strict=True)
            if (failure := failure_of(tag))
        }
        missing = started - len(batch.keys)
        without_record = FailedRollout("missing", "it left no record; the trainer's log may say why")
        return _cleared(batch, why), [*why.values(), *[without_record] * missing]

    def _with_verdict(self, batch: KVBatchMeta, failed: list[FailedRollout]) -> KVBatchMeta:
        """Returns the held-out rollouts that lost no call. All other held-out rollouts are counted and removed from the
        queue.

        Raises NoVerdictsError if no rollout is left, because VERL cannot continue without rollouts.
        """
        rollouts = [rollout_of(each) for each in _extra_fields(batch.keys, batch.partition_id)]
        lost = {
            key: rollout.lost_because
            for key, rollout in zip(batch.keys, rollouts, strict=True)
            if rollout.lost_calls
        }
        undecided = sum(rollout.undecided for rollout in rollouts if not rollout.lost_calls)
        self.held_out.add(len(rollouts) + len(failed), list(lost.values()), failed, undecided)
        batch = _cleared(batch, lost)
        if not batch.keys:
            raise NoVerdictsError
        return batch

    def fault(self, text: str, discarded: bool = False) -> None:
        """Writes a warning to the log and to the progress file. The user's terminal shows warnings from the progress
        file."""
        self._fault = text
        log.warning("%s", text)
        self._progress.write(
            RolloutProgress(self._step, 0, self._rollouts_per_step, discarded=discarded, fault=text)
        )

    def _end_if_requested(self) -> None:
        """Raises a Failure if a signal has asked training to stop, so that the step is not rolled out again.

        If a signal arrives while training waits, `rstar2.train.launch` stops training itself.
        """
        if (self._agent_loop.parent / STOP_FILE).exists():
            self._progress.write(
                RolloutProgress(self._step, 0, self._rollouts_per_step, discarded=True, fault=self._fault)
            )
            raise Failure(
                f"step {self._step} is not rolled out again, because a signal asked training to stop"
            )

    def held_out_fault(self) -> str:
        """Returns the reason why the current measurement on held-out problems is not valid, or an empty text if it is
        valid."""
        return self.held_out.fault(self._step, self._judge.max_lost_share, self._max_failed_share)

    def _sync_metadata_from_transfer_queue(self) -> None:
        self._poll_begun_at = time.monotonic()
        super()._sync_metadata_from_transfer_queue()

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        self._progress.write(self._rollout_progress(partition_id))
        self.poll_interval = poll_interval(time.monotonic() - self._poll_begun_at)
        waited: float = super()._wait_for_next_poll(partition_id, last_debug_time)
        return waited

    def _rollout_progress(self, partition_id: str) -> RolloutProgress:
        tags = self.partitions[partition_id].values()
        finished = sum(_ended(tag, self._rounds) for tag in tags)
        recoveries = sum(recoveries_of(tag) or 0 for tag in tags)
        failed = [failure for tag in tags if (failure := failure_of(tag))]
        if failed and not self._fault:
            self._fault = f"step {self._step}: rollouts failed and are left out: {failure_text(failed[:1])}"
        # Refills add rollouts to these. The number of held-out rollouts is not known here.
        total = 0 if partition_id == "val" else max(finished, self._rollouts_per_step + recoveries)
        return RolloutProgress(self._step, finished, total, failed=len(failed), fault=self._fault)

    def _dapo_filtered_keys(self, partition_id: str) -> tuple[set[str], Counter[float]]:
        """Returns the finished groups that are replaced because they give no gradient. `refill_batches` limits their
        number."""
        if partition_id == "val" or not self._refill_limit:
            return set(), Counter()
        undecided = self.finished_keys[partition_id] - self._accepted
        groups: dict[str, list[str]] = defaultdict(list)
        failed: dict[str, list[FailedRollout]] = defaultdict(list)
        in_rounds: dict[str, RoundsOfGroup] = {}
        recoveries: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        for key, tag in sorted(self.partitions[partition_id].items()) if undecided else ():
            if _group(key) in undecided:
                if whole := rounds_of(tag):
                    in_rounds[_group(key)] = whole
                elif is_recovery(key):
                    recoveries[_group(key)][key] = tag
                elif recoveries_of(tag) is not None:
                    continue
                elif failure := failure_of(tag):
                    failed[_group(key)].append(failure)
                else:
                    groups[_group(key)].append(key)
        dropped = set()
        for group, keys in groups.items():
            fields = _extra_fields(keys, partition_id)
            rollouts = [rollout_of(each) for each in fields]
            trained = [rollouts[i] for i in self._choose(rollouts, in_rounds.get(group))]
            recovered = _recoveries_of_group(recoveries[group], partition_id)
            trains = gives_gradient(trained, self._drop_equal_rewards) or self._trained_recoveries(recovered)
            if trains or len(self._replaced) >= self._refill_limit:
                self._accepted.add(group)
            else:
                self._replaced_recoveries[group] = recovered
                self._replaced[group] = fields
                self._replaced_failed += failed[group]
                if group in in_rounds:
                    self._replaced_rounds[group] = in_rounds[group]
                dropped.add(group)
        return dropped, Counter()

    def _choose(self, rollouts: list[Rollout], whole: RoundsOfGroup | None = None) -> list[int]:
        """Returns the indices of those rollouts of a problem that are trained on. An error in a user's selection ends
        training.

        Args:
            rollouts: the finished rollouts of the problem.
            whole: the result of the problem's group if it was rolled out in rounds.
        """
        keep = self._keep
        if self._rounds is not None and whole is not None:
            keep = self._rounds.max_trained(whole.made, keep)
        # Seeded by step and problem, so that a resumed run chooses the same rollouts as an uninterrupted one.
        seed = sample_seed(self._seed, f"roc {self._step} {rollouts[0].problem_id}", 0)
        try:
            return self._selection.choose(rollouts, keep, np.random.default_rng(seed))
        except RStarError as error:
            write_final_error(self._agent_loop.parent, error)
            raise

    def _select(
        self,
        rollouts: list[Rollout],
        groups: dict[str, list[int]],
        in_rounds: Mapping[str, RoundsOfGroup] | None = None,
    ) -> list[int]:
        """Returns the indices of the rollouts to train on.

        If no group gives a gradient, the rollouts of one group with equal rewards are returned, because VERL needs a
        batch. If no group has two rollouts, the list is empty.
        """
        trained: list[int] = []
        spare: list[int] = []
        for group, members in groups.items():
            whole = (in_rounds or {}).get(group)
            chosen = [members[i] for i in self._choose([rollouts[m] for m in members], whole)]
            if gives_gradient([rollouts[i] for i in chosen], self._drop_equal_rewards):
                trained += chosen
            elif len(chosen) > 1:
                spare = chosen
        return sorted(trained or spare)

    def _off_policy(self, trained: list[dict[int, int]]) -> float:
        """Returns the share of tokens in turns that began with older weights than the step's, among the tokens that are
        trained on.

        The weights of step n are the weights that step n - 1 produced. All tokens of a turn count, even if an update
        interrupted the turn and newer weights continued it.

        Args:
            trained: one dict per rollout, from a step to the number of tokens in turns that began with the weights of
                this step.
        """
        total = sum(sum(tokens.values()) for tokens in trained)
        older = sum(count for tokens in trained for step, count in tokens.items() if step < self._step - 1)
        return older / total if total else 0.0

    def _nothing_to_train_on(self, times: int) -> None:
        """Logs why a step is rolled out again. Raises Failure instead after `EMPTY_STEPS` attempts that gave no
        rollouts to train on."""
        why = (
            f"step {self._step}: no problem has two rollouts left (select = {self._selection.name}, "
            f"{self._lost_text()}, {self._failed_text()})"
        )
        if times == EMPTY_STEPS:
            raise Failure(
                f"{why}, {times} times in a row. The last checkpoint is kept",
                "Use a selection that excludes fewer rollouts, or a model that makes better calls.",
            )
        log.warning("%s. The step is rolled out again", why)

    def _await_judge(self, limit_s: float) -> float:
        """Waits until the judge answers, and returns the waiting time in seconds. Raises JudgeError if the judge does
        not answer within `limit_s` seconds."""
        why = f"step {self._step}: {self._lost_text()}"
        [settings] = json.loads(self._agent_loop.read_text())
        self.fault(f"{why}, so training waits for the judge at {settings['judge_url']}", discarded=True)
        begun_at = time.monotonic()
        with SyncJudgeClient(settings["judge_url"], settings["judge_token"], JUDGE_POLL_S) as judge:
            while True:
                away_s = round(time.monotonic() - begun_at, 1)
                self._progress.write(
                    RolloutProgress(
                        self._step,
                        0,
                        self._rollouts_per_step,
                        judge_away_s=away_s,
                        discarded=True,
                        fault=self._fault,
                    )
                )
                try:
                    _run_a_program(judge)
                    log.warning("the judge answers; step %d is rolled out again", self._step)
                    return time.monotonic() - begun_at
                except AccessRefused as error:
                    write_final_error(self._agent_loop.parent, error)
                    raise
                except JudgeError as error:
                    left_s = begun_at + limit_s - time.monotonic()
                    if left_s <= 0:
                        raise JudgeError(
                            f"{why}, and the judge did not answer for {self._judge.stop_after_s:g} s. The last "
                            "checkpoint is kept",
                            "Start the judge again, then run the same command.",
                        ) from error
                    time.sleep(min(JUDGE_POLL_S, left_s))

    def _lost_again(self, times: int) -> None:
        """Raises JudgeError after `EMPTY_STEPS` attempts at a step in which the judge answered but lost too many
        calls."""
        if times == EMPTY_STEPS:
            raise JudgeError(
                f"step {self._step}: {self._lost_text()}, {times} times in a row although the judge answers. The last "
                "checkpoint is kept",
                "Find out from the judge's log why calls are lost, then run the same command.",
            )

    def _failed_again(self, times: int) -> None:
        """Waits before a step is rolled out again. Raises Failure instead after `FAILED_STEPS` attempts in which too
        many rollouts failed."""
        limit = f"more than rollout.max_failed_share = {self._max_failed_share:g} of {self._rollout_count}"
        why = f"step {self._step}: {self._failed_text()}, {limit}"
        if times == FAILED_STEPS:
            raise Failure(
                f"{why}, {times} times. The step was not trained on, and the last checkpoint is kept",
                "Remove the cause: the trainer's log has each error in full after 'rollout … failed'. Then run the "
                "same command, which starts new engines.",
            )
        wait_s = self._failed_wait.next_s()
        self.fault(
            f"{why}. The step is not trained on, and is rolled out again in {wait_s:g} s", discarded=True
        )
        time.sleep(wait_s)

    def _failed_text(self) -> str:
        """Returns the number of failed rollouts, the most frequent causes, and the mean length of failed rollouts, as
        text for a message."""
        if not self._failed:
            return "rollouts that failed: 0"
        tokens = failed_tokens(self._failed)
        lengths = (
            f", after {tokens:.0f} tokens on average (finished rollouts have {self._finished_tokens:.0f})"
            if tokens
            else ""
        )
        return f"rollouts that failed: {len(self._failed)} ({failure_text(self._failed)}){lengths}"

    def _lost_text(self) -> str:
        """Returns the number of rollouts that lost a tool call and the most frequent causes, as text for a message."""
        causes = "; ".join(f"{count} x {why}" for why, count in Counter(self._lost_reasons).most_common(3))
        return f"rollouts that lost a tool call: {len(self._lost_reasons)} ({causes})"

    def _keep_traces(self, fields: list[Any], rollouts: list[Rollout], trained: set[int]) -> None:
        carried = {i: trace for i, each in enumerate(fields) if (trace := trace_of(each)) is not None}
        chosen = choose(rollouts, list(carried), self._traces_per_step, self._seed, self._step)
        # A rollout may have started in an earlier step, so its trace gets the number of this step.
        traces = [carried[i].model_copy(update={"kept": i in trained, "step": self._step}) for i in chosen]
        write_step(self._traces, self._step, traces)
        if trained:  # otherwise the step is rolled out again
            self._step_metrics["rstar2/traces_not_sent"] = float(self._trace_trackers.send(traces))


class SelectingReplayBufferAsync(SelectingReplayBuffer, ReplayBufferAsync):  # type: ignore[misc]
    """The sampler for VERL's asynchronous trainers.

    A step takes the oldest finished groups. VERL replaces a group with a group of another problem if the group is too
    old, or if its rollouts failed without a record. `rstar2.train.trainer.modes.AsyncSettings` has the recipe's
    settings for the age of groups.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._resumed = True
        self._most_failed = EMPTY_STEPS * int(kwargs["sampler_kwargs"]["prompts"])
        self._failed_in_a_row = 0

    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Returns the batch of a step and its metrics. Raises the same errors as `SelectingReplayBuffer.sample`, and
        Failure if too many groups in a row failed."""
        if partition_id == "train" and self._resumed:
            self._resumed = False
            self._clear_trained(partition_id)
        self._failed_in_a_row = 0
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        if partition_id == "train":
            metrics = {f"training/{name}/evicted_samples": 0 for name in _EVICTION_REASONS} | metrics
        return batch, metrics

    def _rollout_progress(self, partition_id: str) -> RolloutProgress:
        progress = super()._rollout_progress(partition_id)
        if partition_id == "val":
            return progress
        # A step takes whole groups. Other finished rollouts may be for a later step.
        groups = self.finished_keys[partition_id]
        of_problems = {
            key: _ended(tag, self._rounds)
            for key, tag in self.partitions[partition_id].items()
            if not is_recovery(key)
        }
        whole = sum(count for key, count in of_problems.items() if _group(key) in groups)
        ready = min(whole, self._rollouts_per_step)
        ahead = sum(of_problems.values()) - ready
        return replace(progress, finished=ready, wanted=self._rollouts_per_step, ahead=ahead)

    def _clear_trained(self, partition_id: str) -> None:
        """Removes rollouts that belong to no group.

        A checkpoint also contains the rollouts of the step after which the checkpoint was saved. The rollouts of that
        step have been trained on already.
        """
        self._sync_metadata_from_transfer_queue()
        groups = self.prompt_global_steps[partition_id]
        trained = [key for key in self.partitions[partition_id] if _group(key) not in groups]
        if trained:
            tq.kv_clear(keys=trained, partition_id=partition_id)

    def _evict_terminal_groups(
        self, global_steps: int, partition_id: str, eviction_reasons: Any
    ) -> tuple[set[str], int, int, dict[str, Any]]:
        failed = len(eviction_reasons[2])
        self._failed_in_a_row += failed
        if self._failed_in_a_row > self._most_failed:
            raise Failure(
                f"step {global_steps}: rollouts of {self._failed_in_a_row} groups failed. The last checkpoint is kept",
                "Find the cause in the trainer's log, at 'Error in _run_prompt'. Then run the same command.",
            )
        evicted: tuple[set[str], int, int, dict[str, Any]] = super()._evict_terminal_groups(
            global_steps, partition_id, eviction_reasons
        )
        return evicted


@dataclass(frozen=True)
class _Recoveries:
    """Recoveries: rollouts that began after a failed call. `keys`, `tags` and `fields` have an entry for each finished
    recovery."""

    keys: list[str]
    tags: list[dict[str, Any]]
    fields: list[Any]
    failed: list[FailedRollout]

    @cached_property
    def rollouts(self) -> list[Rollout]:
        return [rollout_of(each) for each in self.fields]

    @property
    def count(self) -> int:
        """The number of recoveries, including those that failed."""
        return len(self.keys) + len(self.failed)

    def groups(self) -> dict[str, list[int]]:
        """Returns a dict from the name of each group of recoveries to the indices of its finished recoveries. The
        recoveries from one failed call form a group."""
        groups: dict[str, list[int]] = defaultdict(list)
        for i, key in enumerate(self.keys):
            groups[key.rsplit("_", 2)[0]].append(i)
        return groups

    def by_group(self) -> list[list[tuple[Rollout, Recovery]]]:
        """Returns the finished recoveries, with one list for each failed call."""
        return [
            [(self.rollouts[i], recovery_in(self.fields[i])) for i in members]
            for members in self.groups().values()
        ]

    def with_others(self, others: Iterable[_Recoveries]) -> _Recoveries:
        """Returns a new object with the recoveries of this object and of all `others`."""
        every = [self, *others]
        return _Recoveries(
            [key for each in every for key in each.keys],
            [tag for each in every for tag in each.tags],
            [fields for each in every for fields in each.fields],
            [failed for each in every for failed in each.failed],
        )


def _recoveries_of_group(tags: Mapping[str, dict[str, Any]], partition_id: str) -> _Recoveries:
    """Returns the recoveries of a finished group.

    Args:
        tags: dict from the key of each recovery in VERL's queue to its tag.
        partition_id: "train" or "val", VERL's name for the part of the queue.
    """
    keys = sorted(key for key, tag in tags.items() if is_rollout(tag))
    failed = [failure for tag in tags.values() if (failure := failure_of(tag))]
    return _Recoveries(keys, [tags[key] for key in keys], _extra_fields(keys, partition_id), failed)


def _run_a_program(judge: SyncJudgeClient) -> None:
    """Raises JudgeError if the judge cannot run a program. A request to `/health` may succeed even if programs cannot
    run."""
    judge.health()
    result = judge.run(RunRequest(code="print(1)"))
    if result.outcome == "lost":
        raise JudgeError(f"the judge at {judge.url} answers but cannot run programs: {result.stderr}")


def poll_interval(cost_s: float) -> float:
    """Returns the number of seconds to wait after a poll of VERL's queue that took `cost_s` seconds."""
    return min(max(POLL_S, cost_s * (1 / POLL_SHARE - 1)), LONGEST_POLL_S)


def _extra_fields(keys: list[str], partition_id: str) -> list[Any]:
    """Returns the fields that the agent loop stored for each rollout (`rstar2.train.verl.rollout_fields`)."""
    if not keys:
        return []
    return list(
        tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["extra_fields"])["extra_fields"]
    )


def _ended(tag: Mapping[str, Any], rounds: Rounds | None) -> int:
    """Returns the number of finished rollouts that one key of VERL's queue adds to the progress of a step.

    The number is 1 for the key of a rollout. For the key of a group that was rolled out in rounds, it is the number of
    rollouts that the group did not need.
    """
    whole = rounds_of(tag)
    if recoveries_of(tag) is not None:
        return 0
    return 1 if whole is None or rounds is None else rounds.most - whole.made


def _without_rounds(batch: KVBatchMeta) -> tuple[KVBatchMeta, dict[str, RoundsOfGroup]]:
    """Splits a batch into its rollouts and the results of groups that were rolled out in rounds."""
    tags = zip(batch.keys, batch.tags, strict=True)
    keys = {key: whole for key, tag in tags if (whole := rounds_of(tag))}
    return _cleared(batch, keys), {_group(key): whole for key, whole in keys.items()}


def _cleared(batch: KVBatchMeta, keys: Collection[str]) -> KVBatchMeta:
    """Removes the rollouts with the given keys from VERL's queue, and returns the batch without the removed
    rollouts."""
    if not keys:
        return batch
    tq.kv_clear(keys=list(keys), partition_id=batch.partition_id)
    left = [(key, tag) for key, tag in zip(batch.keys, batch.tags, strict=True) if key not in keys]
    return KVBatchMeta(
        partition_id=batch.partition_id, keys=[key for key, _ in left], tags=[tag for _, tag in left]
    )


def _group(key: str) -> str:
    """Returns the group of a rollout. VERL's keys have the form GROUP_SESSION_INDEX."""
    return key.split("_")[0]

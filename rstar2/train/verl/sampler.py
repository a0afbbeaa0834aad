"""Applies the selection behind VERL's custom-sampler hook: of the rollouts of a problem, at most G go to the update.

Rollouts without a verdict are left out first: those that lost a tool call to the judge, and those that failed. If they
are too many, the step is not trained on. It waits, for the judge if that lost them, and is rolled out again.
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
"""Seconds between two looks at VERL's queue; VERL's default of 2 is most of a step's time for a small model."""
POLL_SHARE = 0.05
"""Share of the time that looking may take. A look lists every rollout, so the more there are the fewer looks."""
LONGEST_POLL_S = 10.0
JUDGE_POLL_S = 5.0
EMPTY_STEPS = 10
"""Times that a step is rolled out when nothing of it can be trained on."""
FAILED_STEPS = 3
"""Times that a step is rolled out when too many of its rollouts fail. A new start, with new engines, helps more."""
FIRST_WAIT_S, LONGEST_WAIT_S = 30.0, 300.0
"""Seconds before a step of which too many rollouts failed is rolled out again."""
_EVICTED = ("off_policy", "rollout_failure")
"""VERL's reasons to leave a group out, as in the names of its metrics, which are missing where there is none."""
log = logging.getLogger(__name__)


class SelectingReplayBuffer(ReplayBuffer):  # type: ignore[misc]
    """Selects the rollouts of every group to train on, logs what the group looked like before, and keeps traces.

    `sampler_kwargs` of the trainer config: `discount` (of what is known of problems), `select` (SelectSettings), `keep`
    (G), `drop_equal_rewards`, `refill_batches`, `rounds` (Rounds, or None), `recover` (RecoverSettings, which only
    `rstar2.train.verl.agent_loop_manager` reads), `judge` (JudgeSettings), `seed`, `traces` (a folder),
    `traces_per_step`, `trace_trackers`, `run` (its name in trackers), `prompts` (problems per step), `rollouts` (per
    problem), `held_out_samples` (rollouts of a held-out problem), `max_failed_share`, `agent_loop` (the file of
    `command.agent_loop_yaml`).
    """

    held_out: HeldOut
    """The rollouts of the measurement on held-out problems that is under way; `rstar2.train.verl.held_out` sets it."""

    def __init__(self, **kwargs: Any) -> None:
        given = kwargs["sampler_kwargs"]
        self._selection = Selection(SelectSettings.model_validate(dict(given["select"])))
        self._keep = int(given["keep"])
        self._drop_equal_rewards = bool(given["drop_equal_rewards"])
        self._rounds = None if given["rounds"] is None else Rounds(**given["rounds"])
        self._judge = JudgeSettings.model_validate(dict(given["judge"]))
        self._seed = int(given["seed"])
        self._traces = Path(given["traces"])
        self._traces_per_step = int(given["traces_per_step"])
        self._trace_trackers = TraceSender(given["trace_trackers"], str(given["run"]))
        self._agent_loop = Path(given["agent_loop"])
        self._per_problem = {"train": int(given["rollouts"]), "val": int(given["held_out_samples"])}
        self._wanted = int(given["prompts"]) * self._per_problem["train"]
        self._progress = ProgressWriter(self._agent_loop.parent)
        self._step = 0
        self._raw: dict[str, float] = {}
        self._lost: list[str] = []
        self._judge_failed = False
        """Whether too many of the last rollouts lost a call."""
        self._max_failed_share = float(given["max_failed_share"])
        self._failed: list[FailedRollout] = []
        """The last rollouts that failed."""
        self._finished_tokens = 0.0
        """The mean length of the last ones that finished."""
        self._rolled_out = 0
        """How many the last rollouts are."""
        self._failed_wait = Backoff(FIRST_WAIT_S, LONGEST_WAIT_S)
        self._fault = ""
        """What is wrong with the step's rollouts."""
        self._poll_begun_at = 0.0
        self._refills = int(float(given["refill_batches"]) * given["prompts"])
        """Dropped groups of a step that are replaced."""
        self._replaced: dict[str, list[Any]] = {}
        """The extra fields of the rollouts of each dropped and replaced group, by the group's key."""
        self._replaced_failed: list[FailedRollout] = []
        """Those of such groups that failed."""
        self._replaced_rounds: dict[str, RoundsOfGroup] = {}
        """What became of such groups, by their keys, if groups are rolled out in rounds."""
        self._replaced_recoveries: dict[str, _Recoveries] = {}
        """The recoveries of such groups, by the groups' keys."""
        self._accepted: set[str] = set()
        """Groups that are not replaced."""
        self._outcomes = OutcomeRecorder(
            self._agent_loop.parent, self._per_problem["train"], float(given["discount"])
        )
        self._left_out: list[Rollout] = []
        """Rollouts of groups that are neither trained on nor counted, such as those that are too old."""
        # What VERL's own filter for groups without a signal needs; which groups those are is decided here.
        refill = {
            "filter_groups_metric": "selection",
            "train_batch_size": int(given["prompts"]),
            "gen_batch_size": 1,
        }
        super().__init__(**{"poll_interval": POLL_S, **(refill if self._refills else {}), **kwargs})

    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, Any]]:
        """A step's batch and metrics.

        Raises:
            JudgeError: too many rollouts lost a call, and the judge was away for longer than the recipe's
                `judge.stop_after_s`, or `EMPTY_STEPS` times in a row while it answers.
            Failure: too many rollouts failed, `FAILED_STEPS` times; or the selection leaves out all of them, whatever
                was rolled out; or a signal has asked for the end, and the step would be rolled out again.
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
                return batch, {**metrics, **self._raw, **again}
            discarded += self._rolled_out
            if self._judge_failed:
                lost += 1
                # Only waiting counts: to roll a step out again may take longer than the limit.
                paused_s += self._await_judge(self._judge.stop_after_s - paused_s)
                self._lost_again(lost)
            elif self._too_many_failed:
                failed += 1
                self._failed_again(failed)
            else:
                empty += 1
                self._nothing_to_train_on(empty)
            self._end_if_asked()
            self._progress.write(RolloutProgress(self._step, 0, self._wanted, fault=self._fault))
            self.refill_fn(batch_size)

    def _materialize_batch(
        self,
        partition_id: str,
        selected_prompt_uids: list[str],
        partition_snapshot: dict[str, dict[str, Any]],
    ) -> KVBatchMeta:
        """The selected groups' kept rollouts; none if too many failed or lost a call."""
        batch = super()._materialize_batch(partition_id, selected_prompt_uids, partition_snapshot)
        batch, in_rounds = _without_rounds(batch)
        batch, recoveries = self._without_recoveries(batch)
        batch, failed = self._without_failed(
            batch, self._made(batch.partition_id, selected_prompt_uids, in_rounds)
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
        kept = self._select(rollouts, groups, in_rounds)
        all_recoveries = recoveries.with_others(self._replaced_recoveries.values())
        step_failed = [*failed, *self._replaced_failed]
        self._failed = [*step_failed, *all_recoveries.failed]
        self._rolled_out = len(rollouts) + len(all_recoveries.rollouts) + len(self._failed)
        self._finished_tokens = float(np.mean([each.tokens for each in rollouts])) if rollouts else 0.0
        finished = [*rollouts, *all_recoveries.rollouts]
        self._lost = [rollout.lost_because for rollout in finished if rollout.lost_calls]
        self._judge_failed = len(self._lost) > self._judge.max_lost_share * len(finished)
        if self._judge_failed or self._too_many_failed:
            kept, known = [], {}
        else:
            known = self._outcomes.record(self._step, [*rollouts, *self._left_out])
        self._left_out = []
        kept_recoveries = self._trained_recoveries(recoveries) if kept else []
        dropped = [keys[i] for i in sorted(set(range(len(keys))) - set(kept))]
        dropped += sorted(set(recoveries.keys) - {recoveries.keys[i] for i in kept_recoveries})
        if dropped:
            tq.kv_clear(keys=dropped, partition_id=partition_id)
        if self._lost:
            log.warning("step %d: left out before selection: %s", self._step, self._lost_text())
        if self._failed:
            log.warning("step %d: left out before selection: %s", self._step, self._failed_text())
        in_groups, start = list(groups.values()), len(keys)
        for replaced in self._replaced.values():
            in_groups.append(list(range(start, start + len(replaced))))
            start += len(replaced)
        if kept:
            first = None if self._rounds is None else self._rounds.size
            self._raw = raw_metrics(rollouts, kept, in_groups, self._selection, step_failed, first) | known
            if self._rounds is not None:
                whole = [*in_rounds.values(), *self._replaced_rounds.values()]
                self._raw |= rounds_metrics(self._rounds, whole)
            self._raw["rstar2/reused_rollouts"] = float(sum(map(reused, fields)))
            if all_recoveries.count:
                self._raw |= recovery_metrics(
                    all_recoveries.by_group(), all_recoveries.failed, len(kept_recoveries)
                )
            written = [*(fields[i] for i in kept), *(recoveries.fields[i] for i in kept_recoveries)]
            self._raw["rstar2/off_policy_tokens"] = self._off_policy([written_by(each) for each in written])
        if self._traces_per_step:
            self._keep_traces(fields, rollouts, set(kept))
        return KVBatchMeta(
            partition_id=partition_id,
            keys=[*(keys[i] for i in kept), *(recoveries.keys[i] for i in kept_recoveries)],
            tags=[*(batch.tags[order[i]] for i in kept), *(recoveries.tags[i] for i in kept_recoveries)],
        )

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        """Keep what rollouts of groups came to that VERL removes before a step takes them."""
        others = uids - self._replaced.keys()
        keys = [
            key
            for key, tag in self.partitions[partition_id].items()
            if _group(key) in others and is_rollout(tag) and not is_recovery(key)
        ]
        self._left_out += map(rollout_of, _extra_fields(keys, partition_id))
        super()._clear_groups(partition_id, uids)

    @property
    def _too_many_failed(self) -> bool:
        return len(self._failed) > self._max_failed_share * self._rolled_out

    def _made(self, partition_id: str, problems: list[str], in_rounds: Mapping[str, RoundsOfGroup]) -> int:
        """How many rollouts of these problems' groups were begun, recoveries not counted."""
        full = self._per_problem[partition_id]
        return sum(in_rounds[each].made if each in in_rounds else full for each in problems)

    def _without_recoveries(self, batch: KVBatchMeta) -> tuple[KVBatchMeta, _Recoveries]:
        """A batch without the recoveries from failed calls, and these."""
        tags = dict(zip(batch.keys, batch.tags, strict=True))
        planned = {key: count for key, tag in tags.items() if (count := recoveries_of(tag)) is not None}
        made = KVBatchMeta(
            partition_id=batch.partition_id,
            keys=[key for key in tags if is_recovery(key)],
            tags=[tag for key, tag in tags.items() if is_recovery(key)],
        )
        of_problems = [key for key in tags if not is_recovery(key)]
        rest = KVBatchMeta(
            partition_id=batch.partition_id, keys=of_problems, tags=[tags[key] for key in of_problems]
        )
        made, failed = self._without_failed(made, sum(planned.values()))
        order = sorted(range(len(made.keys)), key=lambda i: made.keys[i])
        keys = [made.keys[i] for i in order]
        fields = _extra_fields(keys, batch.partition_id)
        return _cleared(rest, planned), _Recoveries(keys, [made.tags[i] for i in order], fields, failed)

    def _trained_recoveries(self, recoveries: _Recoveries) -> list[int]:
        """The indices of the recoveries to train on: of each group all that may be, if they give a gradient."""
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

    def _without_failed(self, batch: KVBatchMeta, made: int) -> tuple[KVBatchMeta, list[FailedRollout]]:
        """A batch without the rollouts that failed, and these; one that left no record at all counts too.

        `made` is how many were begun.
        """
        why = {
            key: failure
            for key, tag in zip(batch.keys, batch.tags, strict=True)
            if (failure := failure_of(tag))
        }
        missing = made - len(batch.keys)
        lost_track = FailedRollout("missing", "it left no record; the trainer's log may say why")
        return _cleared(batch, why), [*why.values(), *[lost_track] * missing]

    def _with_verdict(self, batch: KVBatchMeta, failed: list[FailedRollout]) -> KVBatchMeta:
        """Returns the held-out rollouts that lost no call. The others are counted and removed from the queue.

        Raises NoVerdictsError if none is left, because VERL cannot go on with none.
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
        """Say what is wrong: in the log, and in the file that the user's terminal is warned by."""
        self._fault = text
        log.warning("%s", text)
        self._progress.write(RolloutProgress(self._step, 0, self._wanted, discarded=discarded, fault=text))

    def _end_if_asked(self) -> None:
        """Raise a Failure instead of rolling a step out again if a signal has asked for the end.

        While the step waits, `rstar2.train.launch` ends training itself.
        """
        if (self._agent_loop.parent / STOP_FILE).exists():
            self._progress.write(
                RolloutProgress(self._step, 0, self._wanted, discarded=True, fault=self._fault)
            )
            raise Failure(f"step {self._step} is not rolled out again, because training was asked to end")

    def held_out_fault(self) -> str:
        """Why the measurement on held-out problems that is under way says nothing; empty if it does."""
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
            self._fault = f"step {self._step}: rollouts fail, and are left out: {failure_text(failed[:1])}"
        # With refills more than these are rolled out; how many are held out is not known here.
        wanted = 0 if partition_id == "val" else max(finished, self._wanted + recoveries)
        return RolloutProgress(self._step, finished, wanted, failed=len(failed), fault=self._fault)

    def _dapo_filtered_keys(self, partition_id: str) -> tuple[set[str], Counter[float]]:
        """Of the finished groups those that give no gradient, to be replaced, as far as `refill_batches` goes."""
        if partition_id == "val" or not self._refills:
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
        found = set()
        for group, keys in groups.items():
            fields = _extra_fields(keys, partition_id)
            rollouts = [rollout_of(each) for each in fields]
            kept = [rollouts[i] for i in self._choose(rollouts, in_rounds.get(group))]
            recovered = _recoveries_of_group(recoveries[group], partition_id)
            trains = gives_gradient(kept, self._drop_equal_rewards) or self._trained_recoveries(recovered)
            if trains or len(self._replaced) >= self._refills:
                self._accepted.add(group)
            else:
                self._replaced_recoveries[group] = recovered
                self._replaced[group] = fields
                self._replaced_failed += failed[group]
                if group in in_rounds:
                    self._replaced_rounds[group] = in_rounds[group]
                found.add(group)
        return found, Counter()

    def _choose(self, rollouts: list[Rollout], whole: RoundsOfGroup | None = None) -> list[int]:
        """The indices of a problem's rollouts to train on. A fault of a user's selection ends training at once.

        `whole` is what became of its group if that was rolled out in rounds.
        """
        keep = self._keep
        if self._rounds is not None and whole is not None:
            keep = self._rounds.kept(whole.made, keep)
        # Seeded by step and problem, so that a resumed run draws as an uninterrupted one would.
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
        """The indices of the rollouts to train on.

        Where no group gives a gradient, one whose advantages are all zero, because VERL needs a batch; nothing where
        there is none of these either.
        """
        kept: list[int] = []
        spare: list[int] = []
        for group, members in groups.items():
            whole = (in_rounds or {}).get(group)
            chosen = [members[i] for i in self._choose([rollouts[m] for m in members], whole)]
            if gives_gradient([rollouts[i] for i in chosen], self._drop_equal_rewards):
                kept += chosen
            elif len(chosen) > 1:
                spare = chosen
        return sorted(kept or spare)

    def _off_policy(self, kept: list[dict[int, int]]) -> float:
        """The share of the kept rollouts' tokens in turns that older weights began than the step's own.

        Step n's are those that step n - 1 made. A turn that was interrupted and continued counts whole.
        """
        total = sum(sum(tokens.values()) for tokens in kept)
        older = sum(count for tokens in kept for made_by, count in tokens.items() if made_by < self._step - 1)
        return older / total if total else 0.0

    def _nothing_to_train_on(self, times: int) -> None:
        """Say why a step is rolled out again; a Failure once that was in vain `EMPTY_STEPS` times in a row."""
        why = (
            f"step {self._step}: no problem has two rollouts left (select = {self._selection.name}, "
            f"{self._lost_text()}, {self._failed_text()})"
        )
        if times == EMPTY_STEPS:
            raise Failure(
                f"{why}, {times} times in a row; the last checkpoint is kept",
                "Use a selection that leaves out less, or a model that makes better calls.",
            )
        log.warning("%s; it is rolled out again", why)

    def _await_judge(self, limit_s: float) -> float:
        """Wait until the judge answers, and say why; the seconds that took, JudgeError past the limit."""
        why = f"step {self._step}: {self._lost_text()}"
        [settings] = json.loads(self._agent_loop.read_text())
        self.fault(f"{why}; training waits for the judge at {settings['judge_url']}", discarded=True)
        begun_at = time.monotonic()
        with SyncJudgeClient(settings["judge_url"], settings["judge_token"], JUDGE_POLL_S) as judge:
            while True:
                away_s = round(time.monotonic() - begun_at, 1)
                self._progress.write(
                    RolloutProgress(
                        self._step, 0, self._wanted, judge_away_s=away_s, discarded=True, fault=self._fault
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
                            f"{why}, for {self._judge.stop_after_s:g} s; the last checkpoint is kept",
                            "Start the judge again, then run the same command.",
                        ) from error
                    time.sleep(min(JUDGE_POLL_S, left_s))

    def _lost_again(self, times: int) -> None:
        """JudgeError once a judge that answers has lost too many calls of a step `EMPTY_STEPS` times in a row."""
        if times == EMPTY_STEPS:
            raise JudgeError(
                f"step {self._step}: {self._lost_text()}, {times} times in a row although the judge answers; the last "
                "checkpoint is kept",
                "See the judge's own log for why it loses programs, then run the same command.",
            )

    def _failed_again(self, times: int) -> None:
        """Wait before a step is rolled out again; a Failure if too many failed for the `FAILED_STEPS`th time."""
        limit = f"more than rollout.max_failed_share = {self._max_failed_share:g} of {self._rolled_out}"
        why = f"step {self._step}: {self._failed_text()}, {limit}"
        if times == FAILED_STEPS:
            raise Failure(
                f"{why}, {times} times; nothing of it was trained on, and the last checkpoint is kept",
                "Remove the cause, which the trainer's log tells in full at 'rollout … failed'; then run the same "
                "command, which starts new engines.",
            )
        wait_s = self._failed_wait.next_s()
        self.fault(
            f"{why}; nothing of it is trained on, and it is rolled out again in {wait_s:g} s", discarded=True
        )
        time.sleep(wait_s)

    def _failed_text(self) -> str:
        """How many rollouts failed, the most frequent causes, and how long they were beside those that finished."""
        if not self._failed:
            return "rollouts that failed: 0"
        tokens = failed_tokens(self._failed)
        lengths = (
            f", after {tokens:.0f} tokens on average; others have {self._finished_tokens:.0f}"
            if tokens
            else ""
        )
        return f"rollouts that failed: {len(self._failed)} ({failure_text(self._failed)}){lengths}"

    def _lost_text(self) -> str:
        """How many rollouts lost a tool call, and the most frequent causes."""
        causes = "; ".join(f"{count} x {why}" for why, count in Counter(self._lost).most_common(3))
        return f"rollouts that lost a tool call: {len(self._lost)} ({causes})"

    def _keep_traces(self, fields: list[Any], rollouts: list[Rollout], kept: set[int]) -> None:
        carried = {i: trace for i, each in enumerate(fields) if (trace := trace_of(each)) is not None}
        chosen = choose(rollouts, list(carried), self._traces_per_step, self._seed, self._step)
        # A rollout's problem may have been handed out in an earlier step.
        traces = [carried[i].model_copy(update={"kept": i in kept, "step": self._step}) for i in chosen]
        write_step(self._traces, self._step, traces)
        if kept:  # else the step is rolled out again
            self._raw["rstar2/traces_not_sent"] = float(self._trace_trackers.send(traces))


class SelectingReplayBufferAsync(SelectingReplayBuffer, ReplayBufferAsync):  # type: ignore[misc]
    """The same for VERL's asynchronous trainers.

    A step takes the oldest of the groups that are finished. A group that is too old, or could not even record that its
    rollouts failed, is left out by VERL and another problem handed out; see `trainer.modes.AsyncSettings`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._resumed = True
        self._most_failed = EMPTY_STEPS * int(kwargs["sampler_kwargs"]["prompts"])
        self._failed_in_a_row = 0

    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, Any]]:
        """The batch of a step, after the selection, and its metrics; a Failure where group after group has failed."""
        if partition_id == "train" and self._resumed:
            self._resumed = False
            self._clear_trained(partition_id)
        self._failed_in_a_row = 0
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        if partition_id == "train":
            metrics = {f"training/{name}/evicted_samples": 0 for name in _EVICTED} | metrics
        return batch, metrics

    def _rollout_progress(self, partition_id: str) -> RolloutProgress:
        progress = super()._rollout_progress(partition_id)
        if partition_id == "val":
            return progress
        # A step takes whole groups; what else is finished may be for a later one.
        groups = self.finished_keys[partition_id]
        of_problems = {
            key: _ended(tag, self._rounds)
            for key, tag in self.partitions[partition_id].items()
            if not is_recovery(key)
        }
        whole = sum(count for key, count in of_problems.items() if _group(key) in groups)
        ready = min(whole, self._wanted)
        ahead = sum(of_problems.values()) - ready
        return replace(progress, finished=ready, wanted=self._wanted, ahead=ahead)

    def _clear_trained(self, partition_id: str) -> None:
        """Remove rollouts of no group: those of the step that a checkpoint was saved in, which it holds too."""
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
                f"step {global_steps}: rollouts of {self._failed_in_a_row} groups failed; the last checkpoint is kept",
                "The trainer's log says why, at 'Error in _run_prompt'.",
            )
        evicted: tuple[set[str], int, int, dict[str, Any]] = super()._evict_terminal_groups(
            global_steps, partition_id, eviction_reasons
        )
        return evicted


@dataclass(frozen=True)
class _Recoveries:
    """Rollouts that began after failed calls; the lists of those that finished are parallel."""

    keys: list[str]
    tags: list[dict[str, Any]]
    fields: list[Any]
    failed: list[FailedRollout]

    @cached_property
    def rollouts(self) -> list[Rollout]:
        return [rollout_of(each) for each in self.fields]

    @property
    def count(self) -> int:
        """All of them, those that failed included."""
        return len(self.keys) + len(self.failed)

    def groups(self) -> dict[str, list[int]]:
        """Their indices by the failed call that they began after."""
        groups: dict[str, list[int]] = defaultdict(list)
        for i, key in enumerate(self.keys):
            groups[key.rsplit("_", 2)[0]].append(i)
        return groups

    def by_group(self) -> list[list[tuple[Rollout, Recovery]]]:
        """Those that finished, by the failed call that they began after."""
        return [
            [(self.rollouts[i], recovery_in(self.fields[i])) for i in members]
            for members in self.groups().values()
        ]

    def with_others(self, others: Iterable[_Recoveries]) -> _Recoveries:
        """These and those of other groups."""
        every = [self, *others]
        return _Recoveries(
            [key for each in every for key in each.keys],
            [tag for each in every for tag in each.tags],
            [fields for each in every for fields in each.fields],
            [failed for each in every for failed in each.failed],
        )


def _recoveries_of_group(tags: Mapping[str, dict[str, Any]], partition_id: str) -> _Recoveries:
    """A finished group's recoveries, by their keys in VERL's queue."""
    keys = sorted(key for key, tag in tags.items() if is_rollout(tag))
    failed = [failure for tag in tags.values() if (failure := failure_of(tag))]
    return _Recoveries(keys, [tags[key] for key in keys], _extra_fields(keys, partition_id), failed)


def _run_a_program(judge: SyncJudgeClient) -> None:
    """Raise a JudgeError unless the judge runs a program: `/health` answers also if no program would get a result."""
    judge.health()
    result = judge.run(RunRequest(code="print(1)"))
    if result.outcome == "lost":
        raise JudgeError(f"the judge at {judge.url} answers but loses programs: {result.stderr}")


def poll_interval(cost_s: float) -> float:
    """Seconds to wait after a look at VERL's queue that took `cost_s`."""
    return min(max(POLL_S, cost_s * (1 / POLL_SHARE - 1)), LONGEST_POLL_S)


def _extra_fields(keys: list[str], partition_id: str) -> list[Any]:
    """What the agent loop passes of each rollout, see `rstar2.train.verl.rollout_fields`."""
    if not keys:
        return []
    return list(
        tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["extra_fields"])["extra_fields"]
    )


def _ended(tag: Mapping[str, Any], rounds: Rounds | None) -> int:
    """How many rollouts a key of VERL's queue stands for, in progress: one, or all that its group does not need."""
    whole = rounds_of(tag)
    if recoveries_of(tag) is not None:
        return 0
    return 1 if whole is None or rounds is None else rounds.most - whole.made


def _without_rounds(batch: KVBatchMeta) -> tuple[KVBatchMeta, dict[str, RoundsOfGroup]]:
    """A batch of rollouts alone, and what became of the groups that were rolled out in rounds."""
    tags = zip(batch.keys, batch.tags, strict=True)
    keys = {key: whole for key, tag in tags if (whole := rounds_of(tag))}
    return _cleared(batch, keys), {_group(key): whole for key, whole in keys.items()}


def _cleared(batch: KVBatchMeta, keys: Collection[str]) -> KVBatchMeta:
    """A batch without some of its rollouts, which leave VERL's queue."""
    if not keys:
        return batch
    tq.kv_clear(keys=list(keys), partition_id=batch.partition_id)
    left = [(key, tag) for key, tag in zip(batch.keys, batch.tags, strict=True) if key not in keys]
    return KVBatchMeta(
        partition_id=batch.partition_id, keys=[key for key, _ in left], tags=[tag for _, tag in left]
    )


def _group(key: str) -> str:
    """The group of a trajectory; VERL's keys are GROUP_SESSION_INDEX."""
    return key.split("_")[0]

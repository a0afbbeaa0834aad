"""Applies RoC behind VERL's custom-sampler hook: 2G rollouts per problem come in, G go to the update.

Rollouts that lost a tool call to the judge are left out first. Where they are too many, the step waits for the judge
and is rolled out again.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

from rstar2.errors import Failure
from rstar2.eval.settings import sample_seed
from rstar2.judge.client import SyncJudgeClient
from rstar2.judge.client.http import AccessRefused, JudgeError
from rstar2.judge.schema import RunRequest
from rstar2.train.recipe import JudgeSettings
from rstar2.train.records.final_error import write_final_error
from rstar2.train.records.kept_traces import choose, write_step
from rstar2.train.records.progress import ProgressWriter, RolloutProgress
from rstar2.train.records.raw_metrics import raw_metrics
from rstar2.train.roc import RocSettings, Rollout, gives_gradient, sample_down
from rstar2.train.verl.output.traces import TraceSender
from rstar2.train.verl.rollout_fields import rollout_of, trace_of, written_by

POLL_S = 0.1
"""Seconds; VERL's default of 2 is most of a step's time for a small model."""
JUDGE_POLL_S = 5.0
EMPTY_STEPS = 10
"""Times that a step is rolled out when nothing of it can be trained on."""
_EVICTED = ("off_policy", "rollout_failure")
"""VERL's reasons to leave a group out, as in the names of its metrics, which are missing where there is none."""
log = logging.getLogger(__name__)


class RocReplayBuffer(ReplayBuffer):  # type: ignore[misc]
    """Samples every group down by RoC, logs what the group looked like before, and keeps traces.

    `sampler_kwargs` of the trainer config: `roc` (RocSettings), `judge` (JudgeSettings), `seed`, `traces` (a folder),
    `traces_per_step`, `trace_trackers`, `run` (its name in trackers), `prompts` (problems per step), `rollouts` (2G),
    `agent_loop` (the file of `command.agent_loop_yaml`).
    """

    def __init__(self, **kwargs: Any) -> None:
        given = kwargs["sampler_kwargs"]
        self._settings = RocSettings.model_validate(dict(given["roc"]))
        self._judge = JudgeSettings.model_validate(dict(given["judge"]))
        self._seed = int(given["seed"])
        self._traces = Path(given["traces"])
        self._traces_per_step = int(given["traces_per_step"])
        self._trace_trackers = TraceSender(given["trace_trackers"], str(given["run"]))
        self._agent_loop = Path(given["agent_loop"])
        self._wanted = int(given["prompts"]) * int(given["rollouts"])
        self._progress = ProgressWriter(self._agent_loop.parent)
        self._step = 0
        self._raw: dict[str, float] = {}
        self._lost: list[str] = []
        self._judge_failed = False
        """Whether too many of the last rollouts lost a call."""
        self._refills = int(self._settings.refill_batches * given["prompts"])
        """Dropped groups of a step that are replaced."""
        self._replaced: dict[str, list[Any]] = {}
        """The extra fields of the rollouts of each dropped and replaced group, by the group's key."""
        self._accepted: set[str] = set()
        """Groups that are not replaced."""
        # What VERL's own filter for groups without a signal needs; here RoC decides what is one.
        refill = {
            "filter_groups_metric": "roc",
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
            Failure: whatever was rolled out, the algorithm leaves all of it out.
        """
        self._step = global_steps
        paused_s, lost, empty = 0.0, 0, 0
        while True:
            self._replaced.clear()
            batch, metrics = super().sample(global_steps, partition_id, batch_size)
            if partition_id == "val":
                return batch, metrics
            if batch.keys:
                return batch, {**metrics, **self._raw, "rstar2/judge_pause_s": paused_s}
            if not self._judge_failed:
                empty += 1
                self._nothing_to_train_on(empty)
                self.refill_fn(batch_size)
                continue
            lost += 1
            # Only waiting counts: to roll a step out again may take longer than the limit.
            paused_s += self._await_judge(self._judge.stop_after_s - paused_s)
            self._lost_again(lost)
            self.refill_fn(batch_size)

    def _materialize_batch(
        self,
        partition_id: str,
        selected_prompt_uids: list[str],
        partition_snapshot: dict[str, dict[str, Any]],
    ) -> KVBatchMeta:
        """The selected groups' kept rollouts; none where too many lost a call."""
        batch = super()._materialize_batch(partition_id, selected_prompt_uids, partition_snapshot)
        if partition_id == "val":
            return batch
        order = sorted(range(len(batch.keys)), key=lambda i: batch.keys[i])
        keys = [batch.keys[i] for i in order]
        stored = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["extra_fields"])
        fields = [*stored["extra_fields"], *(each for group in self._replaced.values() for each in group)]
        rollouts = [rollout_of(each) for each in fields]
        groups: dict[str, list[int]] = defaultdict(list)
        for i, key in enumerate(keys):
            groups[_group(key)].append(i)
        kept = self._select(rollouts, groups)
        self._lost = [rollout.lost_because for rollout in rollouts if rollout.lost_calls]
        self._judge_failed = len(self._lost) > self._judge.max_lost_share * len(rollouts)
        if self._judge_failed:
            kept = []
        dropped = sorted(set(range(len(keys))) - set(kept))
        if dropped:
            tq.kv_clear(keys=[keys[i] for i in dropped], partition_id=partition_id)
        if self._lost:
            log.warning("step %d: left out before selection: %s", self._step, self._lost_text())
        in_groups, start = list(groups.values()), len(keys)
        for replaced in self._replaced.values():
            in_groups.append(list(range(start, start + len(replaced))))
            start += len(replaced)
        self._raw = raw_metrics(rollouts, kept, in_groups, self._settings)
        self._raw["rstar2/off_policy_tokens"] = self._off_policy([written_by(fields[i]) for i in kept])
        if self._traces_per_step:
            self._keep_traces(fields, rollouts, set(kept))
        tags = [batch.tags[order[i]] for i in kept]
        return KVBatchMeta(partition_id=partition_id, keys=[keys[i] for i in kept], tags=tags)

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        self._progress.write(self._rollout_progress(partition_id))
        waited: float = super()._wait_for_next_poll(partition_id, last_debug_time)
        return waited

    def _rollout_progress(self, partition_id: str) -> RolloutProgress:
        finished = len(self.partitions[partition_id])
        # With refills more than these are rolled out; how many are held out is not known here.
        wanted = 0 if partition_id == "val" else max(finished, self._wanted)
        return RolloutProgress(self._step, finished, wanted)

    def _dapo_filtered_keys(self, partition_id: str) -> tuple[set[str], Counter[float]]:
        """Of the finished groups those that give no gradient, to be replaced, as far as `refill_batches` goes."""
        if partition_id == "val" or not self._refills:
            return set(), Counter()
        groups: dict[str, list[str]] = defaultdict(list)
        for key in sorted(self.partitions[partition_id]):
            if _group(key) in self.finished_keys[partition_id] - self._accepted:
                groups[_group(key)].append(key)
        found = set()
        for group, keys in groups.items():
            stored = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["extra_fields"])
            fields = list(stored["extra_fields"])
            rollouts = [rollout_of(each) for each in fields]
            kept = [rollouts[i] for i in self._sample_down(rollouts)]
            if gives_gradient(kept, self._settings) or len(self._replaced) >= self._refills:
                self._accepted.add(group)
            else:
                self._replaced[group] = fields
                found.add(group)
        return found, Counter()

    def _sample_down(self, group: list[Rollout]) -> list[int]:
        # Seeded by step and problem, so that a resumed run draws as an uninterrupted one would.
        seed = sample_seed(self._seed, f"roc {self._step} {group[0].problem_id}", 0)
        return sample_down(group, self._settings, np.random.default_rng(seed))

    def _select(self, rollouts: list[Rollout], groups: dict[str, list[int]]) -> list[int]:
        """The indices of the rollouts to train on.

        Where no group gives a gradient, one whose advantages are all zero, because VERL needs a batch; nothing where
        there is none of these either.
        """
        kept: list[int] = []
        spare: list[int] = []
        for members in groups.values():
            chosen = [members[i] for i in self._sample_down([rollouts[m] for m in members])]
            if gives_gradient([rollouts[i] for i in chosen], self._settings):
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
            f"step {self._step}: no problem has two rollouts left (roc.leave_out = {self._settings.leave_out}, "
            f"{self._lost_text()})"
        )
        if times == EMPTY_STEPS:
            raise Failure(
                f"{why}, {times} times in a row; the last checkpoint is kept",
                "Use an algorithm that leaves out less, or a model that makes better calls.",
            )
        log.warning("%s; it is rolled out again", why)

    def _await_judge(self, limit_s: float) -> float:
        """Wait until the judge answers, and say why; the seconds that took, JudgeError past the limit."""
        why = f"step {self._step}: {self._lost_text()}"
        [settings] = json.loads(self._agent_loop.read_text())
        log.warning("%s; training waits for the judge at %s", why, settings["judge_url"])
        begun_at = time.monotonic()
        with SyncJudgeClient(settings["judge_url"], settings["judge_token"], JUDGE_POLL_S) as judge:
            while True:
                away_s = round(time.monotonic() - begun_at, 1)
                self._progress.write(RolloutProgress(self._step, 0, self._wanted, judge_away_s=away_s))
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


class RocReplayBufferAsync(RocReplayBuffer, ReplayBufferAsync):  # type: ignore[misc]
    """The same for VERL's asynchronous trainers.

    A step takes the oldest of the groups that are finished. A group that is too old, or of which a rollout failed, is
    left out by VERL and another problem handed out; see `trainer.modes.AsyncSettings`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._resumed = True
        self._most_failed = EMPTY_STEPS * int(kwargs["sampler_kwargs"]["prompts"])
        self._failed_in_a_row = 0

    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, Any]]:
        """The batch of a step, after RoC, and its metrics; a Failure where group after group has failed."""
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
        whole = sum(_group(key) in groups for key in self.partitions[partition_id])
        ready = min(whole, self._wanted)
        return RolloutProgress(self._step, ready, self._wanted, ahead=progress.finished - ready)

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


def _run_a_program(judge: SyncJudgeClient) -> None:
    """Raise a JudgeError unless the judge runs a program: `/health` answers also if no program would get a result."""
    judge.health()
    result = judge.run(RunRequest(code="print(1)"))
    if result.outcome == "lost":
        raise JudgeError(f"the judge at {judge.url} answers but loses programs: {result.stderr}")


def _group(key: str) -> str:
    """The group of a trajectory; VERL's keys are GROUP_SESSION_INDEX."""
    return key.split("_")[0]

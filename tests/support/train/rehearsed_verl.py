"""A stand-in for VERL's trainer process in a rehearsal of a long run: hours of work are replaced by short sleeps.

The command line, VERL's queue, rstar2's sampler, the heartbeats, and the decision when to save are real. Rollouts are
invented, updates are sleeps, and a checkpoint has VERL's files without weights. `faults.json` in the rehearsal's folder
lists which fault happens at which step; each happens once. `stage1.json` and so on set metrics of some steps.

    python -m support.train.rehearsed_verl KEY=VALUE…       # VERL's own keys
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rstar2.files import read_json
from rstar2.judge.client.http import access_refused
from rstar2.train.decision import read_decision
from rstar2.train.records.final_error import write_final_error
from rstar2.train.records.progress import LOADING_MODEL, Activity, ActivityWriter
from rstar2.train.trainer.checkpoints import POINTER, last_checkpoint
from rstar2.train.trainer.disk_space import check_disk_space
from rstar2.train.trainer.saving import STAGE_FOLDER, SaveTiming

REHEARSAL = "RSTAR2_REHEARSAL"
"""Environment variable with the rehearsal's folder: `faults.json`, `durations.json` and the trained rollouts."""
MICRO_BATCHES = 20
LONG_UPDATE = 1.5
"""Duration of a long update, as a multiple of the time limit. Each of its micro-batches takes only a fraction of the
limit."""
LONG, SHORT = 12, 4
"""Numbers of tokens of a rollout. Long rollouts are wrong, so losing them would raise the pass rate."""


class Rehearsal:
    """One process of a stage's trainer."""

    def __init__(self, words: list[str]) -> None:
        from support.train.verl_config import compose_config
        from support.train.verl_queue import start_queue

        self._folder = Path(os.environ[STAGE_FOLDER])
        self._rehearsal = Path(os.environ[REHEARSAL])
        self._show = ActivityWriter(self._folder).write
        self._show(Activity(LOADING_MODEL))
        self._durations = json.loads((self._rehearsal / "durations.json").read_text())
        self._config = compose_config("ppo_trainer", words)
        for variable in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):  # a stand-in
            os.environ.pop(variable, None)
        self._queue = start_queue()
        self._sampler = self._new_sampler()
        self._timing = SaveTiming.of_config(self._config.trainer)
        self._batches = 0
        self._failing = False

    def _new_sampler(self) -> Any:
        from rstar2.train.verl.sampler import SelectingReplayBuffer

        return SelectingReplayBuffer(
            trainer_mode="sync",
            trainer_config=self._config.trainer,
            max_off_policy_threshold=None,
            max_off_policy_strategy="drop",
            refill_fn=lambda count: self._roll_out(),
            sampler_kwargs=self._config.trainer.v1.sampler.sampler_kwargs,
        )

    def run(self) -> None:
        """Train from the last checkpoint to the stage's end, as VERL's trainer does."""
        trainer, checkpoints = self._config.trainer, self._folder / "checkpoints"
        last = last_checkpoint(checkpoints)
        first = 1 + (int(last.name.removeprefix("global_step_")) if last else 0)
        with Path(os.environ["VERL_FILE_LOGGER_PATH"]).open("a", buffering=1) as metrics_file:
            for step in range(first, trainer.total_training_steps + 1):
                batch, metrics = self._step(step)
                now = self._timing.at_step_end(step)
                if step % trainer.save_freq == 0 or step == trainer.total_training_steps or now.save:
                    self._save(checkpoints, step)
                self._note(step, batch, metrics)
                metrics_file.write(json.dumps({"step": step, "data": metrics}) + "\n")
                if now.stop:
                    break

    def _step(self, step: int) -> tuple[list[str], dict[str, float]]:
        fault = self._fault(step)
        self._failing = fault == "engine fails"
        if fault == "kill in rollouts":
            self._roll_out(share=0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        if fault == "kill of the command":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(3600)
        if fault == "waits for a rule":
            while read_decision(self._folder) is None:
                time.sleep(0.05)
        if fault == "wrong token":
            error = access_refused("http://judge", 401)
            assert error is not None
            write_final_error(self._folder, error)
            time.sleep(3600)  # VERL goes on with rollouts that fail
        self._roll_out()
        time.sleep(self._durations[self._folder.name]["rollouts_s"])
        batch, metrics = self._sampler.sample(step, "train", self._config.data.train_batch_size)
        self._update(fault)
        self._queue.kv_clear(keys=list(batch.keys), partition_id="train")
        extra_metrics = (read_json(self._rehearsal / f"{self._folder.name}.json") or {}).get(str(step), {})
        return list(batch.keys), {name: float(value) for name, value in {**metrics, **extra_metrics}.items()}

    def _fault(self, step: int) -> str | None:
        """Return the fault of this step, or None if there is none or it has already happened."""
        name = f"{self._folder.name} {step}"
        fault: str | None = json.loads((self._rehearsal / "faults.json").read_text()).get(name)
        record = self._rehearsal / "struck" / name
        if fault is None or record.exists():
            return None
        record.parent.mkdir(exist_ok=True)
        record.write_text(fault)
        return fault

    def _update(self, fault: str | None) -> None:
        whole_s = self._durations[self._folder.name]["update_s"]
        if fault == "long update":
            whole_s = LONG_UPDATE * self._durations["hung_after_s"]
        for number in range(MICRO_BATCHES):
            self._show(Activity("update", number, MICRO_BATCHES, "micro-batches"))
            if fault == "kill in the update" and number == MICRO_BATCHES // 2:
                os.kill(os.getpid(), signal.SIGKILL)
            if fault == "hung update" and number == MICRO_BATCHES // 2:
                time.sleep(3600)
            time.sleep(whole_s / MICRO_BATCHES)

    def _roll_out(self, share: float = 1.0) -> None:
        """Put a step's groups into VERL's queue. If the engine fails, nine of ten long rollouts of this call are
        lost."""
        from verl.utils.tensordict_utils import list_of_dict_to_tensordict

        from rstar2.train.records.raw_metrics import FailedRollout
        from rstar2.train.verl.rollout_fields import failed_tag, to_extra_fields

        self._batches += 1
        kwargs = self._config.trainer.v1.sampler.sampler_kwargs
        long_count = 0
        for problem in range(int(share * kwargs.prompts)):
            group = f"{self._folder.name}b{self._batches}p{problem}"
            keys, fields = [], []
            for i, trace in enumerate(_traces(group, kwargs.rollouts)):
                if self._failing and trace.tokens == LONG and long_count % 10 < 9:
                    long_count += 1
                    tag = failed_tag(FailedRollout("engine", "the engine died", trace.tokens))
                    self._queue.kv_put(key=f"{group}_{i}_0", partition_id="train", tag=tag)
                    continue
                long_count += trace.tokens == LONG
                keys.append(f"{group}_{i}_0")
                fields.append({"extra_fields": to_extra_fields(trace, False)})
            tags = [{"status": "success"}] * len(keys)
            self._queue.kv_batch_put(
                keys=keys, partition_id="train", fields=list_of_dict_to_tensordict(fields), tags=tags
            )
            prompt = {"is_prompt": True, "status": "finished", "global_steps": 1}
            self._queue.kv_batch_put(keys=[group], partition_id="train", tags=[prompt])
        self._failing = False

    def _save(self, checkpoints: Path, step: int) -> None:
        """Write a checkpoint as VERL does: the files of all ranks, then the position in the data, then the pointer."""
        self._show(Activity("saving a checkpoint"))
        checkpoint = checkpoints / f"global_step_{step}"
        if no_room := check_disk_space(checkpoint, 0, step):
            write_final_error(self._folder, no_room)
            raise no_room
        actor = checkpoint / "actor"
        actor.mkdir(parents=True, exist_ok=True)
        ranks = self._config.trainer.nnodes * self._config.trainer.n_gpus_per_node
        for part in ("model", "optim", "extra_state"):
            for rank in range(ranks):
                _torch_file(actor / f"{part}_world_size_{ranks}_rank_{rank}.pt")
        (actor / "fsdp_config.json").write_text(json.dumps({"world_size": ranks}))
        _torch_file(checkpoint / "data.pt")
        (checkpoints / POINTER).write_text(str(step))
        self._timing.saved()

    def _note(self, step: int, batch: list[str], metrics: dict[str, float]) -> None:
        """Record the rollouts that a step was trained on, for the test."""
        record = {"stage": self._folder.name, "step": step, "kept": len(batch), "metrics": metrics}
        with (self._rehearsal / "trained.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")


def _traces(group: str, count: int) -> Iterator[Any]:
    """Yields traces: half are long and wrong, half are short and right."""
    from rstar2.loop.trace import Trace, Turn

    for sample in range(count):
        tokens = LONG if sample % 2 else SHORT
        yield Trace(
            problem_id=group,
            sample=sample,
            prompt_ids=[1],
            response_ids=[2] * tokens,
            response_mask=[1] * tokens,
            turns=[Turn(text="<answer>1</answer>", start=0, end=tokens)],
            finish="answer",
            verdict="wrong" if sample % 2 else "correct",
            reward=float(sample % 2 == 0),
            step=1,
        )


def _torch_file(path: Path) -> None:
    """Write a file as torch would: a ZIP archive, here an empty one."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("empty", "")


if __name__ == "__main__":
    rehearsal = Rehearsal(sys.argv[1:])
    rehearsal.run()
    # Ray's processes would take seconds to end.
    os._exit(0)

"""VERL's trainer of one RL stage in one process. Only the model's turns and the judge's answers are scripted.

VERL's agent-loop worker runs rstar2's agent loop, VERL's queue carries the rollouts, and rstar2's sampler selects.
VERL's trainer pads, computes advantages and updates the actor with its FSDP engine. rstar2's command line configures
all of this. Import this module in a new process with the laptop profile's environment variables, which VERL reads when
it is imported.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transfer_queue as tq
from support.scripted_rollouts import ANSWER, FailedStep, Group, Labels, Trained, Update
from support.train.verl_config import compose_config
from support.train.verl_queue import start_queue
from transfer_queue import KVBatchMeta
from verl.plugin.platform import get_platform
from verl.single_controller.ray import RayWorkerGroup
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import distributed, torch_functional
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.rollout.base import get_rollout_class
from verl.workers.rollout.replica import TokenOutput, get_rollout_replica_class

from rstar2.data import builtin
from rstar2.data.parquet import AGENT_NAME
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.errors import Failure
from rstar2.judge.client.http import JudgeError
from rstar2.judge.schema import RunRequest, RunResult
from rstar2.loop.turns.choose import load_codec
from rstar2.processes import die_with
from rstar2.train.command import stage_command
from rstar2.train.group import Rollout
from rstar2.train.recipe import StageRecipe
from rstar2.train.records.progress import PROGRESS_FILE, FaultWarner
from rstar2.train.stages import write_stage_inputs
from rstar2.train.verl import agent_loop, sampler
from rstar2.train.verl.agent_loop_manager import AgentLoopWorker

_ROLLOUT: ContextVar[tuple[Group, int]] = ContextVar("rollout")


def start(parent: int) -> None:
    """Prepare the process for `train` with VERL's queue and a judge. Both live as long as the parent process."""
    die_with(parent)()
    start_queue()
    agent_loop._judge = lambda *address: _Judge()


def make_model(folder: Path) -> None:
    """Create the model to train."""
    size = TinyModel(vocab=512, hidden=32, layers=1, heads=2)
    make_tiny_model(folder, size, builtin.traces(1, 20, {}), builtin.FORMAT, seed=1)


def plugin() -> dict[str, Any]:
    """Return what VERL has registered of rstar2's plugin, which VERL imports by itself."""
    logits, labels = torch.randn(7, 5, requires_grad=True), torch.randint(5, (7,))
    return {
        "platform": get_platform().device_name,
        "engine": EngineRegistry.get_engine_cls("language_model", "fsdp2").__name__,
        "process_groups": distributed.initialize_global_process_group.__module__,
        "log_probs": torch_functional.logprobs_from_logits_v2.__module__,
        "computed": torch_functional.logprobs_from_logits(logits, labels).detach(),
        "expected": torch.log_softmax(logits, -1).gather(-1, labels[:, None]).squeeze(-1).detach(),
        "rollout": get_rollout_class("rstar2_cpu").__name__,
        "replica": get_rollout_replica_class("rstar2_cpu").__name__,
        "ports": RayWorkerGroup(worker_names=[], worker_handles=[])._ray_master_port_range,
    }


def train(
    recipe: StageRecipe, model: Path, folder: Path, steps: list[list[Group]], labels: Labels = "as they are"
) -> Trained:
    """Train a stage in its folder, with one list of groups per step, and write its checkpoint."""
    trainer = _Trainer(recipe, model, folder, labels)
    before = trainer.moments()
    for groups in steps:
        trainer.run_step(groups)
    trainer._save_checkpoint()
    weights = {name: each.full_tensor() for name, each in trainer.engine.module.state_dict().items()}
    return Trained(trainer.updates, weights, trainer.moments(), before, trainer.relabelled)


def train_failing(recipe: StageRecipe, model: Path, folder: Path, groups: list[Group]) -> FailedStep:
    """Run one step that is never trained on, because too many of its rollouts fail in every attempt."""
    sampler.FIRST_WAIT_S = 0.01
    trainer = _Trainer(recipe, model, folder, "as they are")
    faults: list[str] = []
    warner = FaultWarner(folder / PROGRESS_FILE, faults.append)
    attempts = 1

    def roll_out_again(problems: int) -> None:
        nonlocal attempts
        attempts += 1
        warner.look()
        asyncio.run(trainer._roll_out([replace(each, name=f"{each.name}{attempts}") for each in groups]))

    trainer.replay_buffer.refill_fn = roll_out_again
    try:
        trainer.run_step(groups)
    except Failure as failure:
        return FailedStep(str(failure), len(trainer.updates), attempts, faults)
    raise AssertionError("the step was trained on")


class _Judge:
    """A stand-in for the judge's client. The tool that formats its results is real."""

    async def run(self, request: RunRequest) -> RunResult:
        group, session = _ROLLOUT.get()
        if group.rollouts[session] == "x":
            raise JudgeError("the judge is away")
        if group.rollouts[session] == "e":
            return RunResult(id="1", outcome="error", stderr="NameError: name 'x' is not defined")
        return RunResult(id="1", outcome="ok", stdout=group.output)


class _Server:
    """Stands in for VERL's rollout servers."""

    def __init__(self, model: Path) -> None:
        self._codec = load_codec(model)
        self._turns: dict[str, int] = defaultdict(int)

    async def generate(self, request_id: str, **request: Any) -> TokenOutput:
        group, session = _ROLLOUT.get()
        if group.rollouts[session] == "f" and self._turns[request_id]:
            raise RuntimeError("the engine is out of memory")
        text = group.turn(session, self._turns[request_id])
        self._turns[request_id] += 1
        ids = [*self._codec.tokenizer.encode(text, add_special_tokens=False), self._codec.end_id]
        return TokenOutput(token_ids=ids, log_probs=[-1.0] * len(ids), extra_fields={"global_steps": 1})


class _Rollouts(AgentLoopWorker):
    """VERL's worker with rstar2's agent loop. It records in each rollout which group it belongs to."""

    async def _run_agent_loop(self, *args: Any, session_id: int, group: Group, **row: Any) -> None:
        _ROLLOUT.set((group, session_id))
        await super()._run_agent_loop(*args, session_id=session_id, **row)

    async def _run_rollout(self, run: Any, row: dict[str, Any], partition: str) -> Rollout | None:
        group, _session = _ROLLOUT.get()
        if row["uid"] != group.name:
            _ROLLOUT.set((replace(group, rollouts=group.recoveries), row["session_id"]))
        return await super()._run_rollout(run, row, partition)


class _Trainer(PPOTrainerSync):
    """VERL's trainer with its only worker in this process. It starts no other processes."""

    def __init__(self, recipe: StageRecipe, model: Path, folder: Path, labels: Labels) -> None:
        self.config = _config(recipe, model, folder)
        self.trainer_mode, self.parameter_sync_step = "sync", 1
        self.use_critic = self.use_reference_policy = False
        self.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
        self.distillation_config = None
        self.train_dataloader = SimpleNamespace(state_dict=dict)
        self.checkpoint_callback = SimpleNamespace(on_save=lambda **options: None)
        self.model, self.tokenizer = model, load_codec(model).tokenizer
        self.replay_buffer = self._build_replay_buffer()
        self.actor_rollout_wg = ActorRolloutRefWorker(self.config.actor_rollout_ref, role="actor")
        self.actor_rollout_wg.init_model()
        self.actor_rollout_wg._dispatch_info = {"actor": [0]}
        self.engine = self.actor_rollout_wg.actor.engine
        self.updates: list[Update] = []
        self.engine.optimizer.register_step_pre_hook(self._note_update)
        self._micro_batches: list[list[int]] = []
        self._note_micro_batches(self.engine.forward_step)
        self.relabelled = 0
        if labels != "as they are":
            self._change_labels(self.engine.prepare_model_inputs, of_tools=labels == "tool output changed")
        self._load_checkpoint()

    def run_step(self, groups: list[Group]) -> None:
        """Roll out groups, and train on those that the sampler selects."""
        self.global_steps += 1
        asyncio.run(self._roll_out(groups))
        metrics: dict[str, Any] = {}
        batch = self._step_once(metrics, defaultdict(float), len(groups))
        self._note_batch(batch, metrics)
        tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)

    def moments(self) -> list[torch.Tensor]:
        """AdamW's first moments; there are none before the first update."""
        return [state["exp_avg"].full_tensor().clone() for state in self.engine.optimizer.state.values()]

    def on_sample_end(self) -> None:
        """Do nothing: there are no rollout engines to put to sleep."""

    async def _roll_out(self, groups: list[Group]) -> None:
        worker = _Rollouts(self.config, _Server(self.model))
        for group in groups:
            tag = {"is_prompt": True, "status": "pending", "global_steps": self.global_steps}
            await tq.async_kv_put(key=group.name, partition_id="train", tag=tag)
            prompt = {
                "uid": group.name,
                "group": group,
                "index": 0,
                "global_steps": self.global_steps,
                "agent_name": AGENT_NAME,
                "raw_prompt": [{"role": "user", "content": "?"}],
                "reward_model": {"ground_truth": ANSWER},
                "extra_info": {"id": group.name, "problem": "?"},
                "__rollout_n__": len(group.rollouts),
            }
            await worker._run_prompt(prompt, {"temperature": 1.0, "logprobs": True}, {"validate": False})

    def _note_update(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        named_parameters = self.engine.module.named_parameters()
        [lr] = {group["lr"] for group in optimizer.param_groups}
        gradient = {name: each.grad.full_tensor().clone() for name, each in named_parameters}
        self.updates.append(Update(lr, gradient, micro_batches=self._micro_batches))
        self._micro_batches = []

    def _note_micro_batches(self, step: Callable[..., Any]) -> None:
        """Record the micro-batches of updates. Passes for log-probabilities, which have no gradients, are left out."""

        def step_and_note(micro_batch: Any, **options: Any) -> Any:
            if torch.is_grad_enabled():
                self._micro_batches.append(micro_batch["input_ids"].offsets().diff().tolist())
            return step(micro_batch, **options)

        self.engine.forward_step = step_and_note

    def _note_batch(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> None:
        real = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding")]
        fields = ["advantages", "rm_scores", "response_mask"]
        batch_fields = tq.kv_batch_get(keys=real, partition_id=batch.partition_id, select_fields=fields)
        update = self.updates[-1]
        update.metrics = metrics
        for i, key in enumerate(real):
            counts = batch_fields["response_mask"][i].bool()
            update.tokens += int(counts.sum())
            update.advantages[key] = (
                float(batch_fields["rm_scores"][i].sum()),
                batch_fields["advantages"][i][counts],
            )

    def _change_labels(self, prepare: Callable[[Any], tuple[Any, dict[str, Any]]], of_tools: bool) -> None:
        """Give the engine other labels than the tokens that were written. The input tokens stay the same."""

        def with_changed_labels(micro_batch: Any) -> tuple[Any, dict[str, Any]]:
            inputs, arguments = prepare(micro_batch)
            labels = arguments["input_ids_rmpad_rolled"]
            ends = micro_batch["input_ids"].offsets().tolist()[1:]
            for end, mask in zip(ends, micro_batch["response_mask"].unbind(), strict=True):
                # The label of a token is at the position of the token before it.
                places = torch.arange(end - len(mask) - 1, end - 1)[mask.bool() != of_tools]
                labels[places] = (labels[places] + 7) % 100
                self.relabelled += len(places)
            return inputs, arguments

        self.engine.prepare_model_inputs = with_changed_labels


def _config(recipe: StageRecipe, model: Path, folder: Path) -> Any:
    """Return VERL's config for rstar2's command line."""
    row = {"prompt": [{"role": "user", "content": "?"}], "extra_info": {"id": "?"}}
    rows = [row] * recipe.rollout.prompts
    write_stage_inputs(recipe, model, rows, folder, ("http://127.0.0.1:1", None))
    config = compose_config("ppo_trainer", stage_command(recipe, folder, model).argv[3:])
    config.actor_rollout_ref.actor.optim.total_training_steps = recipe.steps
    return config

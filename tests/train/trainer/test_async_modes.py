"""Tests of the asynchronous modes: valid combinations, VERL's keys, and turns that an update interrupts."""

from __future__ import annotations

import asyncio
import itertools
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.optional import needs
from support.train.verl_config import accepted

from rstar2.data import builtin
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.errors import UserError
from rstar2.loop.engine import Sampling
from rstar2.train.command import stage_command
from rstar2.train.estimate.fit import mode_warnings
from rstar2.train.recipe_files import stage_recipe

BOUND_S = 600.0


def test_engines_of_their_own_are_refused_on_a_cpu() -> None:
    with pytest.raises(UserError) as excinfo:
        stage_recipe(1, "laptop", ["mode=separate_async"])
    assert 'mode = "separate_async" needs GPUs' in excinfo.value.message
    assert 'on a CPU, use mode = "colocate_async"' in excinfo.value.message


@pytest.mark.parametrize(
    ("profile", "changes", "message"),
    [
        ("1xh200", ["hardware.router=verl"], 'needs hardware.router = "sessions"'),
        ("laptop", ["asynchronous.batches_ahead=1.5", "asynchronous.max_steps=2"], "max_steps of at least 3"),
    ],
)
def test_what_would_hang_or_waste_every_step_is_refused(
    profile: str, changes: list[str], message: str
) -> None:
    assert stage_recipe(1, profile, changes).mode == "sync"
    with pytest.raises(UserError) as excinfo:
        stage_recipe(1, profile, ["mode=colocate_async", *changes])
    assert message in excinfo.value.message


def test_one_engine_is_sent_a_bounded_number_of_rollouts() -> None:
    assert not stage_recipe(1, "1xh200", []).schedules_sessions
    assert stage_recipe(1, "1xh200", ["mode=colocate_async"]).schedules_sessions


def test_a_plan_advises_the_correction_that_old_weights_need() -> None:
    [warning] = mode_warnings(stage_recipe(1, "laptop", ["mode=colocate_async"]))
    assert "set algorithm.correction=token-tis" in warning
    assert not list(mode_warnings(stage_recipe(1, "laptop", [])))
    separate = list(mode_warnings(stage_recipe(1, "64xh100", ["mode=separate_async"])))
    assert "needs 8 more GPUs" in separate[1]
    both = ["mode=colocate_async", "algorithm.correction=token-tis"]
    assert not list(mode_warnings(stage_recipe(1, "laptop", both)))


def test_machines_that_only_generate_are_asked_for_too() -> None:
    separate = ["mode=separate_async", "asynchronous.rollout_nodes=3"]
    assert stage_recipe(1, "64xh100", separate).machines.nodes == 8 + 3
    assert stage_recipe(1, "64xh100", ["asynchronous.rollout_nodes=3"]).machines.nodes == 8


@pytest.mark.slow
@needs("verl")
@pytest.mark.parametrize(
    ("profile", "mode"),
    [("laptop", "colocate_async"), ("8xh100", "colocate_async"), ("64xh100", "separate_async")],
)
def test_verls_own_trainer_of_the_mode_takes_the_recipe(profile: str, mode: str, tmp_path: Path) -> None:
    from verl.trainer.ppo.v1 import get_trainer_cls

    from rstar2.train.verl.sampler import SelectingReplayBufferAsync

    changes = [
        f"mode={mode}", "asynchronous.batches_ahead=1.5", "asynchronous.max_steps=3",
        "asynchronous.too_old=wait", "asynchronous.rollout_nodes=4",
    ]  # fmt: skip
    recipe = stage_recipe(1, profile, changes)
    config = accepted(stage_command(recipe, tmp_path / "stage1", tmp_path / "model").argv[3:])
    # The trainer checks its mode's keys in its constructor. Its `init` would start the workers.
    trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config)
    buffer = trainer.replay_buffer
    assert isinstance(buffer, SelectingReplayBufferAsync)
    assert (buffer.max_off_policy_threshold, buffer.max_off_policy_strategy) == (3, "wait")
    assert config.trainer.v1[mode].num_warmup_batches == 1.5
    assert trainer.parameter_sync_step == 1
    separate = config.actor_rollout_ref.rollout.nnodes, config.actor_rollout_ref.rollout.n_gpus_per_node
    assert (separate == (4, 8)) == (mode == "separate_async")
    assert config.data.gen_batch_size == 1


class Handle:
    """Replaces an actor's handle."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self._actor, name))


class OneServer:
    """VERL's router with one server."""

    def __init__(self, server: Any) -> None:
        self._server = server

    async def require_acquire_fields(self) -> list[str]:
        return []

    async def require_release_fields(self) -> list[str]:
        return []

    async def acquire_server(self, request_id: str) -> tuple[str, Any]:
        return "server", self._server

    def release_server(self, server_id: str) -> None:
        return None


@pytest.mark.slow
@needs("verl")
async def test_a_turn_that_an_update_interrupts_is_continued_by_the_new_weights(tmp_path: Path) -> None:
    """Uses VERL's own client. Tokens from before the update were written by the old weights, and do not change."""
    from omegaconf import OmegaConf
    from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

    from rstar2.train.verl.cpu.rollout import CpuServer

    tiny, prompt = TinyModel(layers=1, context=128), [5, 9, 300, 41]
    make_tiny_model(tmp_path / "model", tiny, builtin.traces(1, 60, {}), builtin.FORMAT, 3)
    rollout = {
        "_target_": "verl.workers.config.RolloutConfig",
        "name": "rstar2_cpu",
        "response_length": 80,
        "max_num_seqs": 4,
    }
    server = CpuServer(OmegaConf.create(rollout), OmegaConf.create({"path": str(tmp_path / "model")}))
    await server.load_weights({}, 1)
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"name": "rstar2_cpu"}}})
    client = FullyAsyncLLMServerClient(config, Handle(OneServer(Handle(server))))
    forward_began, go, forwards = threading.Event(), threading.Event(), itertools.count()

    def hold(*_: Any) -> None:
        if next(forwards) == 20:
            forward_began.set()
            assert go.wait(BOUND_S)

    hook = server._engine.model.register_forward_pre_hook(hold)
    params = {"temperature": 0.0, "max_tokens": 60}
    turn = asyncio.create_task(client.generate("a", prompt_ids=prompt, sampling_params=params))
    assert await asyncio.to_thread(forward_began.wait, BOUND_S)
    abort = asyncio.create_task(server.abort_all_requests(reject_request=False))
    await asyncio.sleep(0)
    go.set()
    await abort
    hook.remove()
    old = {name: tensor.clone() for name, tensor in server._engine.model.state_dict().items()}
    await server.load_weights({name: tensor.flip(0) for name, tensor in old.items()}, 2)
    assert not turn.done()
    await server.resume_generation()
    continuation = await asyncio.wait_for(turn, BOUND_S)
    assert (continuation.extra_fields["min_global_steps"], continuation.extra_fields["max_global_steps"]) == (
        1,
        2,
    )
    assert (len(continuation.token_ids), len(continuation.log_probs)) == (60, 60)
    # The engine's current step was finished, so the old weights wrote 21 tokens.
    rest = await server._engine.generate(
        [*prompt, *continuation.token_ids[:21]], Sampling(0.0, max_tokens=39)
    )
    assert rest.token_ids == continuation.token_ids[21:]
    await server.load_weights(old, 3)
    first = await server._engine.generate(prompt, Sampling(0.0, max_tokens=60))
    assert first.token_ids[:21] == continuation.token_ids[:21]
    assert first.token_ids[21:] != continuation.token_ids[21:], "the test must notice the update"
    await server._engine.aclose()

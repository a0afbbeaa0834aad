"""Tests what VERL does with the paper's recipes. Each value is read from VERL's own objects, which are built from our
command line.

It is not enough that a recipe has the right value: the command line could lose it, or VERL could ignore it.
"""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.optional import needs
from support.train.verl_config import compose_config

from rstar2.data.parquet import read_rows, rl_rows, write_parquet
from rstar2.data.problem import Problem
from rstar2.loop.agent import Limits
from rstar2.loop.formats.format import save_format
from rstar2.loop.turns.codec import ChatCodec
from rstar2.train.command import agent_loop_yaml, sft_command, stage_command
from rstar2.train.recipe import StageRecipe
from rstar2.train.recipe_files import sft_recipe, stage_recipe
from rstar2.train.stages import write_stage_inputs

pytestmark = [pytest.mark.slow, needs("verl")]

PROFILES = ("laptop", "64xh100")
STEPS = {1: 300, 2: 85, 3: 125}
TOKENS = {1: 8192, 2: 12288, 3: 12288}
TURNS = {1: 10, 2: 10, 3: 15}
WHOLE_CHECKPOINT = {"model", "optimizer", "extra"}


@pytest.fixture(params=PROFILES)
def profile(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=STEPS)
def stage(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def trainer(recipe: StageRecipe, root: Path) -> Any:
    """Returns VERL's config of an RL stage."""
    return compose_config("ppo_trainer", stage_command(recipe, root / "stage1", root / "model").argv[3:])


def sft_trainer(root: Path, profile: str, *changes: str) -> Any:
    """Returns VERL's config of SFT."""
    argv = sft_command(sft_recipe(profile, list(changes)), root / "sft", root / "m", root).argv
    return compose_config("sft_trainer_engine", argv[argv.index("rstar2.train.verl.sft_trainer") + 1 :])


def built_optimizer(config: Any, steps: int) -> tuple[Any, Any]:
    """Returns VERL's optimizer of one parameter of value 1, and its scheduler for this number of steps."""
    import torch
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config.optimizer import build_optimizer
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

    settings = omega_conf_to_dataclass(config)
    settings.total_training_steps = steps
    optimizer = build_optimizer([torch.nn.Parameter(torch.ones(1))], settings)
    engine = SimpleNamespace(optimizer_config=settings, rank=1)
    return optimizer, FSDPEngine._build_lr_scheduler(engine, optimizer)


def rates(config: Any, steps: int) -> list[float]:
    """Returns the learning rate of each step."""
    optimizer, scheduler = built_optimizer(config, steps)
    learning_rates = []
    for _ in range(steps):
        [group] = optimizer.param_groups
        learning_rates.append(group["lr"])
        optimizer.step()
        scheduler.step()
    return learning_rates


def test_the_rate_of_rl_rises_for_20_steps_and_is_then_constant(
    stage: int, profile: str, tmp_path: Path
) -> None:
    config = trainer(stage_recipe(stage, profile, []), tmp_path)
    expected = [1e-6 * min(step, 20) / 20 for step in range(1, STEPS[stage] + 1)]
    assert rates(config.actor_rollout_ref.actor.optim, config.trainer.total_training_steps) == pytest.approx(
        expected
    )


def test_the_rate_of_sft_rises_over_4_percent_of_the_steps_and_falls_as_a_cosine_to_0(
    profile: str, tmp_path: Path
) -> None:
    steps, warmup = 500, 20
    learning_rates = rates(sft_trainer(tmp_path, profile).optim, steps)
    assert learning_rates[:warmup] == pytest.approx([5e-6 * step / warmup for step in range(1, warmup + 1)])
    falling = [
        5e-6 * (1 + math.cos(math.pi * step / (steps - warmup))) / 2 for step in range(steps - warmup + 1)
    ]
    assert learning_rates[warmup - 1 :] == pytest.approx(falling)
    assert learning_rates[-1] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("phase", ["rl", "sft"])
def test_the_optimizer_is_adamw(phase: str, profile: str, tmp_path: Path) -> None:
    import torch

    if phase == "rl":
        config, rate = trainer(stage_recipe(1, profile, []), tmp_path).actor_rollout_ref.actor.optim, 1e-6
    else:
        config, rate = sft_trainer(tmp_path, profile).optim, 5e-6
    optimizer, _ = built_optimizer(config, 1000)
    assert type(optimizer) is torch.optim.AdamW
    [group] = optimizer.param_groups
    assert group["initial_lr"] == rate
    assert list(group["betas"]) == [0.9, 0.999]
    assert config.clip_grad == 1.0
    [parameter] = group["params"]
    parameter.data, parameter.grad, group["lr"] = parameter.data.double(), torch.zeros(1).double(), 0.5
    optimizer.step()
    assert parameter.item() == pytest.approx(1 - 0.5 * 0.01), "without a gradient only weight decay acts"


class Worker:
    """VERL's worker that hands prompts to agent loops. It records them instead."""

    def __init__(self, config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        from verl.trainer.ppo.v1 import agent_loop_tq

        async def put(**_: Any) -> None:
            """There is no queue to put anything in."""

        monkeypatch.setattr(agent_loop_tq.tq, "async_kv_put", put)
        kind = agent_loop_tq.AgentLoopWorkerTQ.__ray_metadata__.modified_class
        self._worker = kind.__new__(kind)
        self._worker.config, self._worker.background_tasks = config, set()
        self._worker._run_agent_loop = self._note
        self.rollouts: list[tuple[dict[str, Any], dict[str, Any]]] = []
        """The sampling parameters and the row of each rollout."""

    async def _note(self, sampling_params: dict[str, Any], **row: Any) -> None:
        self.rollouts.append((sampling_params, row))

    def roll_out(self, row: dict[str, Any], *, validate: bool) -> None:
        async def run() -> None:
            from verl.utils import tensordict_utils as tu

            batch = tu.list_of_dict_to_tensordict([{**row, "uid": "p", "index": 0}])
            tu.assign_non_tensor(batch, global_steps=1, validate=validate)
            await self._worker.generate_sequences(batch)
            await asyncio.gather(*self._worker.background_tasks)

        asyncio.run(run())


@pytest.fixture
def model(tmp_path: Path, codec: ChatCodec) -> Path:
    """A folder with a tokenizer and a format."""
    folder = tmp_path / "model"
    codec.tokenizer.save_pretrained(folder)
    save_format(codec.format, folder)
    return folder


def problems(folder: Path, count: int) -> list[dict[str, Any]]:
    rows = rl_rows([Problem(str(number), "How many?", "7") for number in range(count)], 1, "made")
    write_parquet(folder / "problems.parquet", rows)
    return read_rows(folder / "problems.parquet")


def test_each_problem_is_rolled_out_32_times_at_temperature_1(
    stage: int, profile: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = stage_recipe(stage, profile, [])
    write_stage_inputs(recipe, model, problems(tmp_path, 512), tmp_path / "stage1", ("http://judge", None))
    [row, *_] = read_rows(tmp_path / "stage1" / "train.parquet")
    worker = Worker(trainer(recipe, tmp_path), monkeypatch)
    worker.roll_out(row, validate=False)
    assert len(worker.rollouts) == 32
    untouched = {"temperature": 1.0, "top_p": 1, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}
    assert all(sampling == untouched for sampling, _ in worker.rollouts)
    assert {problem_row["agent_name"] for _, problem_row in worker.rollouts} == {"rstar2"}


@pytest.mark.parametrize("temperature", [0.7, 0])
def test_held_out_problems_are_sampled_as_the_recipe_says(
    temperature: float, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems_file = tmp_path / "problems.parquet"
    changes = [f"held_out.data={problems_file}", "held_out.samples=3", "held_out.every=7"]
    recipe = stage_recipe(1, "laptop", [*changes, f"held_out.temperature={temperature}"])
    write_stage_inputs(recipe, model, problems(tmp_path, 512), tmp_path / "stage1", ("http://judge", None))
    [row, *_] = read_rows(tmp_path / "stage1" / "held_out.parquet")
    config = trainer(recipe, tmp_path)
    for problem_row in (row, {key: value for key, value in row.items() if key != "__rollout_n__"}):
        worker = Worker(config, monkeypatch)
        worker.roll_out(problem_row, validate=True)
        assert [sampling["temperature"] for sampling, _ in worker.rollouts] == [temperature] * 3
    assert config.actor_rollout_ref.rollout.val_kwargs.do_sample == (temperature > 0)
    assert (config.trainer.test_freq, config.trainer.val_before_train) == (7, False)
    assert trainer(stage_recipe(1, "laptop", []), tmp_path).trainer.test_freq == -1


def test_a_rollout_has_the_stages_turns_tokens_and_reward(
    stage: int, profile: str, model: Path, codec: ChatCodec, tmp_path: Path
) -> None:
    """VERL creates our agent loop from the file that its config names."""
    from hydra.utils import instantiate
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap

    recipe = stage_recipe(stage, profile, ["seed=7", "judge.wait_s=90"])
    write_stage_inputs(recipe, model, problems(tmp_path, 512), tmp_path / "stage1", ("http://judge", "token"))
    config = trainer(recipe, tmp_path)
    assert config.data.max_prompt_length == 2048
    assert config.data.max_response_length == TOKENS[stage]
    agent = config.actor_rollout_ref.rollout.agent
    [entry] = json.loads(Path(agent.agent_loop_config_path).read_text())
    assert entry.pop("name") == agent.default_agent_loop == "rstar2"
    assert (entry["judge_wait_s"], entry["seed"]) == (90, 7)
    loop = instantiate(
        entry,
        trainer_config=DictConfigWrap(config),
        server_manager=None,
        tokenizer=codec.tokenizer,
        processor=None,
        dataset_cls=None,
        data_config=DictConfigWrap(config.data),
    )
    assert loop._limits == Limits(TURNS[stage], TOKENS[stage])
    assert (loop._reward.name, loop._seed) == ("paper", 7)


def test_a_step_is_one_update_with_16_rollouts_of_each_of_512_problems(
    stage: int, profile: str, tmp_path: Path
) -> None:
    config = trainer(stage_recipe(stage, profile, []), tmp_path)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert (config.data.train_batch_size, rollout.n) == (512, 16)
    # A micro-batch of the pass for log-probabilities holds at least one rollout with its prompt.
    hardware = stage_recipe(stage, profile, []).hardware
    assert rollout.log_prob_max_token_len_per_gpu == hardware.log_prob_tokens
    assert rollout.log_prob_max_token_len_per_gpu >= 2048 + TOKENS[stage]
    # VERL multiplies it by `rollout.n`. Each such batch gets one optimizer step in each pass (`optim.epochs`).
    assert (actor.ppo_mini_batch_size, actor.ppo_epochs) == (512, 1)
    sampler = config.trainer.v1.sampler
    assert sampler.custom_sampler.path == "pkg://rstar2.train.verl.sampler"
    assert (sampler.sampler_kwargs.prompts, sampler.sampler_kwargs.rollouts) == (512, 32)
    select = sampler.sampler_kwargs.select
    assert (select.name, sampler.sampler_kwargs.keep, select.penalty_floor) == ("roc", 16, 0.001)
    assert (select.roc_error_ratio, select.roc_answer_format) == (True, True)
    assert sampler.sampler_kwargs.drop_equal_rewards is True
    assert sampler.sampler_kwargs.judge.max_lost_share == 0.05


@pytest.mark.parametrize(
    ("name", "steps", "update_tokens"), [("release", 200, 20480), ("7b-8xh100", 150, 16384)]
)
def test_the_recipes_of_others_reach_verl(name: str, steps: int, update_tokens: int, tmp_path: Path) -> None:
    profile = "8xh100" if name == "7b-8xh100" else None
    recipe = stage_recipe(1, profile, [], name)
    config = trainer(recipe, tmp_path)
    assert config.trainer.total_training_steps == steps
    expected = [1e-6 * min(step, 20) / 20 for step in range(1, steps + 1)]
    assert rates(config.actor_rollout_ref.actor.optim, steps) == pytest.approx(expected)
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    assert (config.data.train_batch_size, rollout.n, actor.ppo_mini_batch_size) == (128, 16, 128)
    assert (config.data.max_prompt_length, config.data.max_response_length) == (2048, 8192)
    assert actor.ppo_max_token_len_per_gpu == update_tokens
    assert rollout.temperature == 1.0
    sampler = config.trainer.v1.sampler.sampler_kwargs
    assert (sampler.prompts, sampler.rollouts) == (128, 32)
    select = sampler.select
    assert (select.name, sampler.keep, sampler.drop_equal_rewards) == ("release", 16, True)
    assert (select.min_zero_reward_trace_num, select.min_non_zero_reward_trace_num) == (2, 2)
    [entry] = json.loads(agent_loop_yaml(recipe, tmp_path, "http://judge", None))
    assert (entry["max_turns"], entry["reward"]) == (5, "release")


def test_the_data_outlast_the_steps(stage: int, profile: str, tmp_path: Path) -> None:
    """VERL ends after its epochs or its steps, whichever comes first. Here 512 problems are one step."""
    config = trainer(stage_recipe(stage, profile, []), tmp_path)
    assert config.trainer.total_training_steps == STEPS[stage]
    assert config.trainer.total_epochs * (512 // config.data.train_batch_size) >= STEPS[stage]


def test_the_seed_decides_on_the_order_of_problems_and_reaches_every_part(tmp_path: Path) -> None:
    from verl.trainer.ppo.utils import create_rl_sampler

    def order(seed: int) -> list[int]:
        data = trainer(stage_recipe(1, "laptop", [f"seed={seed}"]), tmp_path).data
        return list(create_rl_sampler(data, range(50)))

    assert order(7) == order(7) != order(8)
    assert sorted(order(7)) == list(range(50))
    config = trainer(stage_recipe(1, "laptop", ["seed=7"]), tmp_path)
    assert config.trainer.v1.sampler.sampler_kwargs.seed == 7
    assert sft_trainer(tmp_path, "laptop", "seed=7").trainer.seed == 7


def test_a_checkpoint_holds_all_that_a_resumed_run_needs(profile: str, tmp_path: Path) -> None:
    from verl.utils.checkpoint.checkpoint_manager import BaseCheckpointManager

    rl = trainer(stage_recipe(1, profile, ["checkpoint.every=5", "checkpoint.keep=3"]), tmp_path)
    sft = sft_trainer(tmp_path, profile, "checkpoint_every=50")
    for saved_parts in (rl.actor_rollout_ref.actor.checkpoint, sft.checkpoint):
        manager = BaseCheckpointManager.__new__(BaseCheckpointManager)
        manager.checkpoint_save_contents = saved_parts.save_contents
        manager.checkpoint_load_contents = saved_parts.load_contents
        assert manager.should_save_model
        assert manager.should_save_optimizer
        assert manager.should_save_extra
        assert not manager.should_save_hf_model, (
            "a Hugging Face model is as large as the weights; only the last one is exported"
        )
        assert manager.should_load_model
        assert manager.should_load_optimizer
        assert manager.should_load_extra
    assert (rl.trainer.save_freq, rl.trainer.max_actor_ckpt_to_keep) == (5, 3)
    assert (sft.trainer.save_freq, sft.trainer.max_ckpt_to_keep) == (50, None)
    assert rl.trainer.resume_mode == sft.trainer.resume_mode == "auto"
    our_config = trainer(stage_recipe(1, profile, ["checkpoint.export_every=10"]), tmp_path)
    assert our_config.trainer.max_actor_ckpt_to_keep is None


def test_sft_has_the_papers_batch_and_epochs_and_reads_our_conversations(
    profile: str, tmp_path: Path
) -> None:
    from verl.utils.import_utils import load_module

    from rstar2.train.verl.sft_dataset import EncodedConversations

    config = sft_trainer(tmp_path, profile)
    recipe = sft_recipe(profile, [])
    assert (config.data.train_batch_size, config.trainer.total_epochs) == (128, 3)
    assert config.data.max_length == 16384
    assert config.data.max_token_len_per_gpu == recipe.update_tokens
    assert config.model.enable_gradient_checkpointing == recipe.hardware.gradient_checkpointing
    module = load_module(config.data.custom_cls.path)
    assert getattr(module, config.data.custom_cls.name) is EncodedConversations


def test_sequences_are_split_over_as_many_gpus_as_the_recipe_says(tmp_path: Path) -> None:
    change = ["hardware.sequence_parallel=4", "hardware.attention=flash_attn"]
    assert sft_trainer(tmp_path, "64xh100", *change).engine.ulysses_sequence_parallel_size == 4
    actor = trainer(stage_recipe(1, "64xh100", change), tmp_path).actor_rollout_ref.actor
    assert actor.ulysses_sequence_parallel_size == 4


def test_the_loss_has_no_term_besides_the_clipped_one_and_weighs_all_tokens_alike(
    profile: str, tmp_path: Path
) -> None:
    """VERL's own loss on two rollouts of one and of three tokens.

    Entropies and another policy's log-probabilities are included.
    """
    import torch
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.utils.losses import ppo_loss

    config = trainer(stage_recipe(1, profile, []), tmp_path)
    assert not config.algorithm.use_kl_in_reward
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)

    def nested(*rows: list[float], dtype: Any = torch.float32) -> Any:
        return torch.nested.as_nested_tensor(
            [torch.tensor(row, dtype=dtype) for row in rows], layout=torch.jagged
        )

    old, advantages = nested([-1.0], [-2.0, -2.0, -2.0]), nested([3.0], [-1.0, -1.0, -1.0])
    data = TensorDict(
        {
            # Each row has a prompt of one token.
            "prompts": nested([5], [5], dtype=torch.int64),
            "responses": nested([1], [1, 1, 1], dtype=torch.int64),
            "input_ids": nested([5, 1], [5, 1, 1, 1], dtype=torch.int64),
            "attention_mask": nested([1, 1], [1, 1, 1, 1], dtype=torch.int64),
            "response_mask": nested([1], [1, 1, 1], dtype=torch.int64),
            "old_log_probs": old,
            "ref_log_prob": nested([-9.0], [-9.0, -9.0, -9.0]),
            "advantages": advantages,
        },
        batch_size=[2],
    )
    tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=4, global_batch_size=2)
    output = {
        "log_probs": nested([-1.0, 0.0], [-2.0, -2.0, -2.0, 0.0]),
        "entropy": nested([7.0, 7.0], [7.0, 7.0, 7.0, 7.0]),
    }
    loss, _ = ppo_loss(actor, output, data)
    assert float(loss) == pytest.approx(-(3.0 - 1.0 - 1.0 - 1.0) / 4)

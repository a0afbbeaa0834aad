"""Tests of VERL's data loader under a curriculum: it uses the newest outcomes, and the same problems after resuming."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support.optional import needs
from support.train.verl_config import compose_config

from rstar2.data import builtin
from rstar2.data.parquet import rl_rows
from rstar2.data.problem import Problem
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.errors import Failure, RStarError
from rstar2.train.command import stage_command
from rstar2.train.curriculum import PROBLEM_SAMPLER, CurriculumSettings
from rstar2.train.group import Rollout
from rstar2.train.recipe_files import stage_recipe
from rstar2.train.records.final_error import FINAL_ERROR_FILE, read_final_error
from rstar2.train.records.outcome_log import OutcomeRecorder, begin, forget_after
from rstar2.train.stages import write_stage_inputs

if TYPE_CHECKING:
    from torchdata.stateful_dataloader import StatefulDataLoader

    from rstar2.train.verl.problem_sampler import ProblemSampler

pytestmark = [pytest.mark.slow, needs("verl")]  # Importing VERL takes seconds.

PROBLEMS, PROMPTS, STEPS = 24, 4, 12
IDS = [f"p{i}" for i in range(PROBLEMS)]


def settings(
    stage: Path, curriculum: str = "posterior", prompts: int = PROMPTS, **more: Any
) -> dict[str, Any]:
    return {
        "curriculum": CurriculumSettings.model_validate({"name": curriculum, **more}).model_dump(),
        "stage": str(stage),
        "seed": 5,
        "steps": STEPS,
        "prompts": prompts,
        "rollouts": 8,
        "most_under_way": 2 * prompts,
    }


def sampler(stage: Path, curriculum: str = "posterior", **more: Any) -> ProblemSampler:
    from rstar2.train.verl.problem_sampler import ProblemSampler

    return ProblemSampler(settings(stage, curriculum, **more), IDS)


def loader(stage: Path, batch: int = PROMPTS) -> StatefulDataLoader:
    """Creates VERL's data loader with our sampler. A problem is its index."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(
        list(range(PROBLEMS)),
        batch_size=batch,
        num_workers=0,
        drop_last=True,
        collate_fn=list,
        sampler=sampler(stage),
    )


def rollouts_of(problems: Sequence[int]) -> list[Rollout]:
    """Outcomes in which about i of 24 rollouts of problem i are correct."""
    return [
        Rollout(float(3 * k < i), 0, 0, 1, 1, correct=3 * k < i, problem_id=IDS[i])
        for i in problems
        for k in range(8)
    ]


def stage_with_outcomes(stage: Path) -> Path:
    stage.mkdir(parents=True)
    begin(stage, IDS, "paper", stage / "no" / "model")
    return stage


def test_every_step_knows_the_outcomes_of_all_before(tmp_path: Path) -> None:
    """Problems 10 to 14 have pass rates near one half.

    After two passes over the data, the sampler chooses them most often.
    """
    stage = stage_with_outcomes(tmp_path / "stage")
    problem_numbers = iter(sampler(stage, unseen=1.0, explore=0.0))
    recorder = OutcomeRecorder(stage, 8, discount=0.97)
    steps = []
    for step in range(1, STEPS + 1):
        steps.append([next(problem_numbers) for _ in range(PROMPTS)])
        recorder.record(step, rollouts_of(steps[-1]))
    assert sorted(i for step in steps[:6] for i in step) == list(range(PROBLEMS)), (
        "unseen problems come first"
    )
    late = [abs(i - 12) for step in steps[6:] for i in step]
    assert sum(late) / len(late) < 4, "the mean over all problems is 6"


@pytest.mark.parametrize("batch", [PROMPTS, 1])
def test_a_resumed_run_asks_the_problems_of_an_uninterrupted_one(tmp_path: Path, batch: int) -> None:
    """Replacements (`groups.refill_batches`) are fetched one by one.

    The number of replacements differs between steps.
    """

    def step_of(batches: Any, step: int) -> list[int]:
        count = PROMPTS if batch > 1 else PROMPTS + step % 3
        return [index for _ in range(count // batch) for index in next(batches)]

    whole = stage_with_outcomes(tmp_path / "whole")
    data, recorder = loader(whole, batch), OutcomeRecorder(whole, 8, discount=0.97)
    batches = iter(data)
    problem_numbers, states = [], {}
    for step in range(1, STEPS + 1):
        problem_numbers.append(step_of(batches, step))
        recorder.record(step, rollouts_of(problem_numbers[-1]))
        states[step] = data.state_dict()
    for killed_after in (1, 5, 8):
        # The step that runs at the kill has fetched its problems, and has even recorded their outcomes.
        stage = stage_with_outcomes(tmp_path / f"killed-{batch}-{killed_after}")
        recorder = OutcomeRecorder(stage, 8, discount=0.97)
        for step in range(1, killed_after + 2):
            recorder.record(step, rollouts_of(problem_numbers[step - 1]))
        forget_after(stage, killed_after)
        data, recorder = loader(stage, batch), OutcomeRecorder(stage, 8, discount=0.97)
        data.load_state_dict(states[killed_after])
        batches = iter(data)
        for step in range(killed_after + 1, STEPS + 1):
            assert step_of(batches, step) == problem_numbers[step - 1], (killed_after, step)
            recorder.record(step, rollouts_of(problem_numbers[step - 1]))


def test_a_problem_under_way_is_not_handed_out_again_until_its_outcome_is_known(tmp_path: Path) -> None:
    """In the asynchronous modes, problems are used before the step that trains on them."""
    stage = stage_with_outcomes(tmp_path / "stage")
    problem_numbers = iter(sampler(stage, unseen=0.0, explore=0.0))
    recorder = OutcomeRecorder(stage, 8, discount=0.97)
    recorder.record(1, rollouts_of(range(PROBLEMS)))
    ahead = [next(problem_numbers) for _ in range(PROMPTS)]
    recorder.record(2, rollouts_of([0]))
    assert not set(ahead) & {next(problem_numbers) for _ in range(PROMPTS)}


def test_problems_that_never_have_an_outcome_are_asked_again_later(tmp_path: Path) -> None:
    problem_numbers = iter(sampler(stage_with_outcomes(tmp_path / "stage"), "uniform"))
    first_numbers = [next(problem_numbers) for _ in range(10 * PROBLEMS)]
    assert set(first_numbers) == set(range(PROBLEMS))


def test_uniform_is_verls_own_order(tmp_path: Path) -> None:
    from torchdata.stateful_dataloader.sampler import RandomSampler
    from verl.trainer.ppo.v1 import trainer_base

    from rstar2.train.verl.problem_sampler import ProblemSampler

    class Data(dict[str, Any]):
        shuffle = True

    dataset = SimpleNamespace(dataframe={"extra_info": [{"id": name} for name in IDS]})
    created_sampler = trainer_base.create_rl_sampler(
        Data({PROBLEM_SAMPLER: settings(stage_with_outcomes(tmp_path / "stage"))}), dataset
    )
    assert isinstance(created_sampler, ProblemSampler)
    verls = trainer_base.create_rl_sampler(Data(seed=1), list(range(PROBLEMS)))
    assert isinstance(verls, RandomSampler)


def test_a_fault_of_a_curriculum_of_ones_own_ends_training_at_once(tmp_path: Path) -> None:
    (tmp_path / "my_curriculum.py").write_text("def choose(problems, count, rng):\n    return 'all'\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        problem_numbers = iter(sampler(stage_with_outcomes(tmp_path / "stage"), "my_curriculum:choose"))
        with pytest.raises(
            Failure, match="the curriculum my_curriculum:choose returned 'all' for 24 problems"
        ):
            next(problem_numbers)
    assert isinstance(read_final_error(tmp_path / "stage" / FINAL_ERROR_FILE), RStarError)


@pytest.mark.parametrize("change", ["mode=sync", "groups.refill_batches=1", "mode=colocate_async"])
def test_verls_trainer_fetches_what_the_curriculum_chooses_and_saves_where_it_is(
    change: str, tmp_path: Path
) -> None:
    """VERL's own data loader. VERL's trainer creates it from our command line and a stage's file of problems."""
    from omegaconf import OmegaConf
    from transformers import AutoTokenizer
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer
    from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from rstar2.train.verl import sampler as _hooks  # noqa: F401  (as VERL's custom sampler loads them)

    model, stage = tmp_path / "model", tmp_path / "stage1"
    size = TinyModel(vocab=512, hidden=32, layers=1, heads=2)
    make_tiny_model(model, size, builtin.traces(1, 20, {}), builtin.FORMAT, seed=1)
    changes = ["rollout.prompts=4", "rollout.rollouts=8", "groups.keep=4", change]
    recipe = stage_recipe(1, "laptop", [*changes, 'curriculum={name="posterior",unseen=1.0}'])
    rows = rl_rows([Problem(name, f"What is {name}?", "1") for name in IDS], 8, "test")
    write_stage_inputs(recipe, model, rows, stage, ("http://judge", None))
    config = compose_config("ppo_trainer", stage_command(recipe, stage, model).argv[3:])
    OmegaConf.set_struct(config, True)

    def trainer() -> PPOTrainer:
        trainer_class: type[PPOTrainer] = PPOTrainerSync if recipe.mode == "sync" else PPOTrainerColocateAsync
        new_trainer = trainer_class.__new__(trainer_class)
        new_trainer.config, new_trainer.trainer_mode, new_trainer.global_steps = config, recipe.mode, 1
        new_trainer.parameter_sync_step = 1
        new_trainer.tokenizer, new_trainer.processor = AutoTokenizer.from_pretrained(model), None
        new_trainer._init_dataloader()
        return new_trainer

    def next_batch(new_trainer: PPOTrainer) -> list[str]:
        return [row["id"] for row in new_trainer._next_train_batch()["extra_info"]]

    new_trainer = trainer()
    recorder = OutcomeRecorder(stage, 8, discount=0.97)
    question_ids: list[str] = []
    for step in (1, 2, 3):
        batch_ids = next_batch(new_trainer)
        assert len(batch_ids) == 4
        assert not set(batch_ids) & set(question_ids), "unseen problems come first"
        question_ids += batch_ids
        recorder.record(step, rollouts_of([IDS.index(name) for name in batch_ids]))
    state = new_trainer.train_dataloader.state_dict()
    following = [next_batch(new_trainer)]
    resumed = trainer()
    resumed.train_dataloader.load_state_dict(state)
    assert next_batch(resumed) == following[0]

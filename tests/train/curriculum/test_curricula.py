"""Tests of curricula, which choose problems by their outcomes. `posterior` chooses problems that give a gradient."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy.stats import betabinom

from rstar2.errors import Failure, UserError
from rstar2.train.changeable import compared
from rstar2.train.curriculum import CURRICULA, Curriculum, CurriculumSettings, easy_to_hard, pools, posterior
from rstar2.train.outcomes import Outcomes, Problems
from rstar2.train.recipe_files import on_top, stage_recipe

ROOT = Path(__file__).parents[3]
STEPS = 100


def problems(
    outcomes: Sequence[tuple[int, int, int, int]], count: int = 8, step: int = 11, rollouts: int = 8
) -> Problems:
    """Returns problems with outcomes (problem, step, correct, rollouts)."""
    return Problems(tuple(f"p{i}" for i in range(count)), step, STEPS, rollouts, Outcomes.of(outcomes))


def settings(name: str, **more: Any) -> CurriculumSettings:
    return CurriculumSettings.model_validate({"name": name, **more})


@pytest.mark.parametrize("name", CURRICULA.shipped())
def test_every_curriculum_asks_different_problems_also_before_anything_is_known(name: str) -> None:
    for outcomes in ([], [(i, 1, i, 8) for i in range(5)], [(i, 10, 8, 8) for i in range(8)]):
        for count in (1, 5, 8):
            chosen = Curriculum(settings(name)).choose(
                problems(outcomes), count, np.random.default_rng(count)
            )
            assert len(set(chosen)) == len(chosen) == count


def test_the_posterior_of_a_problem_asked_in_every_step_is_that_of_mopps() -> None:
    discount, prior, alpha, beta = 0.9, 1.0, 1.0, 1.0
    outcomes = []
    for step, correct in enumerate([8, 5, 2, 0, 7], 1):
        outcomes.append((3, step, correct, 8))
        alpha = discount * alpha + (1 - discount) * prior + correct
        beta = discount * beta + (1 - discount) * prior + 8 - correct
    belief = problems(outcomes, step=6).belief(discount, prior)
    assert (belief.alpha[3], belief.beta[3]) == pytest.approx((alpha, beta))
    assert (belief.alpha[0], belief.beta[0]) == (prior, prior)


def test_what_is_known_of_a_problem_fades_while_it_is_not_asked() -> None:
    means = [problems([(0, 1, 8, 8)], step=step).belief().mean[0] for step in (2, 50, 5000)]
    assert means == sorted(means, reverse=True)
    assert means[0] > 0.9
    assert means[-1] == pytest.approx(0.5)


def test_the_probabilities_of_a_group_are_those_of_the_beta_binomial_distribution() -> None:
    belief = problems([(0, 10, 6, 8), (1, 10, 0, 32)]).belief()
    for i in (0, 1, 2):
        distribution = betabinom(8, belief.alpha[i], belief.beta[i])
        assert belief.all_correct(8)[i] == pytest.approx(distribution.pmf(8))
        assert belief.none_correct(8)[i] == pytest.approx(distribution.pmf(0))


@pytest.mark.parametrize("rollouts", [4, 8, 32])
def test_a_group_without_a_wrong_or_a_correct_rollout_makes_a_problem_solved_or_hopeless(
    rollouts: int,
) -> None:
    outcomes = problems([(0, 10, rollouts, rollouts), (1, 10, 0, rollouts), (2, 10, rollouts // 2, rollouts)])
    belief = outcomes.belief()
    assert belief.solved(rollouts)[:4].tolist() == [True, False, False, False]
    assert belief.hopeless(rollouts)[:4].tolist() == [False, True, False, False]


def test_posterior_asks_problems_that_have_both_outcomes() -> None:
    outcomes = problems([(i, 10, 32 * (i in (0, 1)) + 16 * (i in (2, 3)), 32) for i in range(8)])
    for seed in range(20):
        drawn_problems = posterior.choose(outcomes, 2, np.random.default_rng(seed), explore=0)
        assert set(drawn_problems) == {2, 3}


def test_posterior_asks_unseen_problems_for_their_share_of_a_step() -> None:
    outcomes = problems([(i, 10, 4, 8) for i in range(8)], count=40)
    for unseen, expected in ((1.0, 8), (0.5, 4), (0.25, 2), (0.0, 0)):
        chosen = posterior.choose(outcomes, 8, np.random.default_rng(1), unseen=unseen)
        assert sum(i >= 8 for i in chosen) == expected
    few = problems([(i, 10, 4, 8) for i in range(8)], count=9)
    assert 8 in posterior.choose(few, 4, np.random.default_rng(1), unseen=1.0), "then the others follow"


def test_posterior_keeps_exploring_what_it_believes_to_be_of_no_use() -> None:
    outcomes = problems([(i, 10, 16 if i < 4 else 32, 32) for i in range(8)])
    draws = [posterior.choose(outcomes, 4, np.random.default_rng(seed), explore=0.25) for seed in range(400)]
    share = np.mean([sum(i >= 4 for i in chosen) for chosen in draws]) / 4
    assert 0.15 < share < 0.3


def test_easy_to_hard_asks_easier_problems_first() -> None:
    outcomes = [(i, step, 4 * i, 32) for i in range(9) for step in (1, 99)]

    def mean(step: int) -> float:
        chosen = easy_to_hard.choose(
            problems(outcomes, 9, step=step, rollouts=32), 3, np.random.default_rng(1), explore=0, discount=1
        )
        return float(np.mean(chosen))

    first, middle, last = (mean(step) for step in (1, 50, STEPS))
    assert first > middle > last


def test_pools_let_solved_problems_rest_and_then_return() -> None:
    outcomes = [(0, 10, 8, 8), *((i, 10, 4, 8) for i in range(1, 8))]
    for step, easiest_return in ((11, False), (30, False), (31, True)):
        chosen = pools.choose(problems(outcomes, step=step), 7, np.random.default_rng(1))
        assert (0 in chosen) <= easiest_return
        assert len(chosen) == 7
    returned = [pools.choose(problems(outcomes, step=31), 7, np.random.default_rng(i)) for i in range(20)]
    assert any(0 in chosen for chosen in returned)
    assert 0 in pools.choose(problems(outcomes), 8, np.random.default_rng(1)), (
        "an easy problem is chosen if there are no others"
    )


def test_pools_count_groups_in_a_row() -> None:
    outcomes = [
        (0, 8, 8, 8),
        (0, 9, 7, 8),
        (0, 10, 8, 8),
        *((i, 10, 4, 8) for i in range(1, 8) for _ in range(3)),
    ]
    for retire_after, rests in ((1, True), (2, False)):
        chosen = [
            pools.choose(problems(outcomes), 4, np.random.default_rng(i), retire_after=retire_after)
            for i in range(20)
        ]
        assert any(0 in each for each in chosen) is not rests


def test_problems_under_way_are_not_asked_again_unless_too_few_others_are_left() -> None:
    curriculum = Curriculum(settings("uniform"))
    assert set(curriculum.choose(problems([]), 4, np.random.default_rng(1), [0, 1, 2, 3])) == {4, 5, 6, 7}
    assert len(curriculum.choose(problems([]), 5, np.random.default_rng(1), [0, 1, 2, 3])) == 5


def backwards(problems: Problems, count: int, rng: np.random.Generator, *, skip: int = 0) -> list[int]:
    return list(range(len(problems)))[::-1][skip : skip + count]


def too_few(problems: Problems, count: int, rng: np.random.Generator) -> list[int]:
    return [0] * (count - 1)


def raises(problems: Problems, count: int, rng: np.random.Generator) -> list[int]:
    raise KeyError("difficulty")


def test_a_curriculum_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    module = Path(__file__).stem
    curriculum = settings(f"{module}:backwards", skip=1)
    assert Curriculum(curriculum).choose(problems([]), 2, np.random.default_rng(1)) == [6, 5]
    for name, cause in (("too_few", "which"), ("raises", r"KeyError: 'difficulty'")):
        with pytest.raises(Failure, match=rf"the curriculum {module}:{name} .*{cause}"):
            Curriculum(settings(f"{module}:{name}")).choose(problems([]), 4, np.random.default_rng(1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("curriculum=posteror", "did you mean posterior?"),
        ("curriculum.name=posterior", ""),
        ('curriculum={name="posterior",target=2}', "curriculum.target must be"),
        ('curriculum={name="posterior",targt=0.4}', "did you mean curriculum.target"),
        ("curriculum=nowhere:choose", "there is no module nowhere"),
    ],
)
def test_a_recipe_names_its_curriculum(change: str, message: str) -> None:
    if not message:
        assert stage_recipe(1, None, [change]).curriculum.model_dump() == settings("posterior").model_dump()
        return
    with pytest.raises(UserError, match=message):
        stage_recipe(1, None, [change])


def test_the_paper_asks_all_problems_equally_often() -> None:
    for stage in (1, 2, 3):
        recipe = stage_recipe(stage, None, [])
        assert (recipe.curriculum.name, recipe.solved_by) == ("uniform", "samples")


def test_processes_that_load_problems_ahead_are_refused() -> None:
    ahead = "verl.data.dataloader_num_workers=8"
    assert stage_recipe(1, None, [ahead]).curriculum.name == "uniform"
    with pytest.raises(
        UserError, match=r'curriculum = "posterior" needs verl\.data\.dataloader_num_workers = 0'
    ):
        stage_recipe(1, None, [ahead, "curriculum=posterior"])


def test_the_settings_of_another_curriculum_than_the_one_on_top_are_dropped() -> None:
    below = {"curriculum": {"name": "posterior", "target": 0.4}, "select": "roc"}
    assert on_top(below, {"curriculum": "pools"})["curriculum"] == {"name": "pools"}
    assert on_top(below, {"curriculum": {"explore": 0.2}})["curriculum"]["target"] == 0.4


def test_a_run_that_began_before_there_were_curricula_goes_on() -> None:
    now = stage_recipe(1, None, []).model_dump(mode="json")
    start_config = {key: value for key, value in now.items() if key not in ("curriculum", "solved_by")}
    assert compared(start_config) == compared(now)
    changed = stage_recipe(1, None, ["curriculum=posterior"]).model_dump(mode="json")
    assert compared(start_config) != compared(changed)


@pytest.fixture(scope="module")
def simulation() -> ModuleType:
    path = ROOT / "benchmarks" / "train" / "curricula.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def test_posterior_draws_groups_with_both_outcomes_more_often_than_uniform(simulation: ModuleType) -> None:
    """The pass rates drift. Covers stages of several sizes."""
    for size in (
        simulation.Size(240, 16, 8, 10),
        simulation.Size(240, 16, 8, 40),
        simulation.Size(600, 32, 32, 40),
    ):
        for seed in range(3):
            shares = {
                name: np.mean(simulation.simulate({"name": name}, size, seed).mixed)
                for name in ("uniform", "posterior")
            }
            assert shares["posterior"] > shares["uniform"] + 0.03, (size, seed, shares)

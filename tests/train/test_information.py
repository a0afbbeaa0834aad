"""Tests of the estimate of how much rollouts depend on their problems. It is about 0 if the rollouts of all problems
follow the same template."""

from __future__ import annotations

import math
from random import Random

import pytest

from rstar2.loop.trace import Trace
from rstar2.train.group import Rollout
from rstar2.train.information import MOST_ROLLOUTS, OPENING_TOKENS, prompt_information
from rstar2.train.records.raw_metrics import raw_metrics
from rstar2.train.select import Selection, SelectSettings

Texts = list[list[list[int]]]
LENGTH = 60


def texts(problems: int, rollouts: int, own_share: float, seed: int = 0) -> Texts:
    """Rollouts with noise.

    A share `own_share` of the rollouts has the text of its problem. The others have a text that all problems share.
    """
    rng = Random(seed)

    def text(problem: int) -> list[int]:
        step = problem + 2 if rng.random() < own_share else 1
        return [i * step % 101 if rng.random() < 0.9 else rng.randrange(101) for i in range(LENGTH)]

    return [[text(problem) for _ in range(rollouts)] for problem in range(problems)]


@pytest.mark.parametrize(("problems", "rollouts"), [(2, 2), (4, 8), (16, 4), (32, 8)])
@pytest.mark.parametrize("noise_alone", [False, True])
def test_rollouts_that_do_not_depend_on_their_problem_say_nothing_about_it(
    problems: int, rollouts: int, noise_alone: bool
) -> None:
    """The mean over random draws is zero. It would be higher if the estimate counted the rollout itself."""
    rng = Random(1)
    estimates = []
    for seed in range(20):
        alike = texts(problems, rollouts, own_share=0.0, seed=seed)
        if noise_alone:
            alike = [[[rng.randrange(400) for _ in range(LENGTH)] for _ in group] for group in alike]
        estimates.append(prompt_information(alike))
    estimated = [each for each in estimates if each is not None]
    assert sum(each.nats for each in estimated) / len(estimated) == pytest.approx(0, abs=0.02)
    mean_retrieved = sum(each.retrieved for each in estimated) / len(estimated)
    assert mean_retrieved == pytest.approx(1 / problems, abs=3 / math.sqrt(20 * problems * rollouts))


def test_the_more_rollouts_write_a_template_the_less_they_say() -> None:
    estimates = [prompt_information(texts(8, 8, own_share)) for own_share in (1.0, 0.75, 0.5, 0.25, 0.0)]
    nats = [each.nats for each in estimates if each is not None]
    assert nats == sorted(nats, reverse=True)
    assert 1.0 < nats[0] <= math.log(8)
    assert estimates[0] is not None
    assert estimates[0].retrieved == 1.0


def test_groups_of_unlike_size_do_not_pretend_a_dependence() -> None:
    nats = []
    for seed in range(20):
        alike = texts(6, 8, own_share=0.0, seed=seed)
        estimate = prompt_information([group[: 2 + i] for i, group in enumerate(alike)])
        assert estimate is not None
        nats.append(estimate.nats)
    assert sum(nats) / len(nats) == pytest.approx(0, abs=0.02)


def test_problems_with_fewer_than_two_rollouts_are_not_compared() -> None:
    group = [[1, 2, 3], [1, 2, 4]]
    assert prompt_information([group, [[5]], [[], [7]], []]) is None
    assert prompt_information([]) is None
    assert prompt_information([group, [[5], [5]], [[]]]) == prompt_information([group, [[5], [5]]])


def test_what_is_beyond_the_limits_changes_nothing() -> None:
    some = texts(4, MOST_ROLLOUTS, own_share=0.5)
    long = [[text + [0] * (OPENING_TOKENS - LENGTH) for text in group] for group in some]
    longer = [[text + [9] * 50 for text in group] + [[1, 2, 3]] for group in long]
    assert prompt_information(longer) == prompt_information(long)


def test_a_step_measures_what_the_model_itself_wrote_in_rollouts_with_a_verdict() -> None:
    def rollout(own_ids: list[int], output: list[int], correct: bool = False, lost_calls: int = 0) -> Rollout:
        trace = Trace(
            problem_id="p",
            prompt_ids=[1],
            response_ids=own_ids + output,
            response_mask=[1] * len(own_ids) + [0] * len(output),
            turns=[],
            finish="answer",
            verdict="correct" if correct else "wrong",
            reward=float(correct),
        )
        example = Rollout.from_trace(trace)
        assert example.opening == own_ids
        return Rollout(**{**vars(example), "lost_calls": lost_calls})

    # The tool outputs differ between problems, but the model's own text does not.
    alike = [[rollout([5, 6, 7], [problem] * 9) for _ in range(4)] for problem in range(3)]
    alike[0][0] = rollout([5, 6, 7], [0], correct=True)
    twins = [rollout([8, 9], [], correct=True, lost_calls=1), rollout([8, 9], [], correct=True, lost_calls=1)]
    flat = [each for group in alike for each in group] + twins
    groups = [[0, 1, 2, 3], [4, 5, 6, 7, 12, 13], [8, 9, 10, 11]]
    metrics = raw_metrics(flat, [0, 1], groups, Selection(SelectSettings(name="random")))
    assert metrics["rstar2/information"] == pytest.approx(0, abs=1e-9)
    assert metrics["rstar2/unsolved_groups"] == pytest.approx(2 / 3)
    single = raw_metrics(flat[:2], [0, 1], [[0, 1]], Selection(SelectSettings(name="random")))
    assert "rstar2/information" not in single, "one problem cannot be distinguished from others"

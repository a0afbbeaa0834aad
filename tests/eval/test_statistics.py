"""The statistics: known values, coverage by simulation, and sane edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2.eval.intervals import share
from rstar2.eval.statistics import (
    avg_at_n,
    maj_at_n,
    paired_difference,
    pass_at_k,
    pooled_difference,
    pooled_mean,
)

SIMULATIONS = 600
"""The standard error of a coverage of 95 % is then 0.9 points, so that 92 % is more than three below."""


def population_rates(rng, problems):
    """True solve rates of AIME-like problems: many near 0, many near 1, some between."""
    return rng.beta(0.5, 0.5, size=problems)


def sampled(rng, rates, n):
    return (rng.random((len(rates), n)) < rates[:, None]).tolist()


def test_the_mean_weighs_problems_not_samples():
    assert avg_at_n([[1, 1, 1, 1], [0]]).mean == 0.5


def test_run_to_run_error_matches_a_hand_computation():
    found = avg_at_n([[1, 0, 1, 0], [1, 1, 1, 0]])
    within = 0.5 * 0.5 * 4 / 3 / 4 + 0.75 * 0.25 * 4 / 3 / 4
    error = np.sqrt(within / 4 + (1.959964 / 8) ** 2)
    assert found.run_to_run.high - found.mean == pytest.approx(
        min(1 - found.mean, 2.446912 * error), rel=1e-5
    )


def test_clustered_error_is_students_t_over_problems_and_two_pseudo_problems():
    found = avg_at_n([[1, 0], [1, 1], [0, 0], [1, 0]] * 10)
    values = [0.5, 1.0, 0.0, 0.5] * 10 + [0.0, 1.0]
    half = 2.019541 * np.std(values, ddof=1) / np.sqrt(42)
    assert (found.by_problem.low, found.by_problem.high) == pytest.approx((0.5 - half, 0.5 + half), rel=1e-5)


@pytest.mark.parametrize(("problems", "samples"), [(30, 16), (30, 64), (15, 16), (60, 4)])
def test_the_clustered_interval_covers_the_population_mean(problems, samples):
    rng = np.random.default_rng(7)
    covered = 0
    for _ in range(SIMULATIONS):
        interval = avg_at_n(sampled(rng, population_rates(rng, problems), samples)).by_problem
        covered += interval.low <= 0.5 <= interval.high
    assert covered / SIMULATIONS >= 0.92


@pytest.mark.parametrize("samples", [4, 16])
def test_the_run_to_run_interval_covers_the_mean_of_these_problems(samples):
    rng = np.random.default_rng(11)
    rates = population_rates(rng, 30)
    covered = 0
    for _ in range(SIMULATIONS):
        interval = avg_at_n(sampled(rng, rates, samples)).run_to_run
        covered += interval.low <= rates.mean() <= interval.high
    assert covered / SIMULATIONS >= 0.92


def test_the_run_to_run_interval_does_not_cover_the_population():
    rng = np.random.default_rng(3)
    found = [avg_at_n(sampled(rng, population_rates(rng, 30), 16)) for _ in range(500)]
    covered = np.mean([one.run_to_run.low <= 0.5 <= one.run_to_run.high for one in found])
    assert covered < 0.6


@pytest.mark.parametrize("value", [0, 1])
@pytest.mark.parametrize(("problems", "samples"), [(1, 1), (1, 16), (30, 1), (30, 16)])
def test_unanimous_samples_do_not_claim_certainty(value, problems, samples):
    found = avg_at_n([[value] * samples] * problems)
    for interval in (found.run_to_run, found.by_problem):
        assert 0 <= interval.low <= found.mean == value <= interval.high <= 1
        assert interval.high - interval.low > 0


def test_all_right_on_thirty_problems_reads_as_about_nine_tenths_or_better():
    found = avg_at_n([[1] * 16] * 30)
    assert 0.88 < found.by_problem.low < 0.93
    assert 0.99 < found.run_to_run.low < 0.993


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=12))
def test_intervals_hold_the_mean_and_stay_within_bounds(correct):
    found = avg_at_n(correct)
    for interval in (found.run_to_run, found.by_problem):
        assert 0 <= interval.low <= found.mean <= interval.high <= 1


def test_no_problems_and_no_samples_are_refused():
    with pytest.raises(ValueError, match="no problems"):
        avg_at_n([])
    with pytest.raises(ValueError, match="problem 1 has no samples"):
        avg_at_n([[1], []])


def test_pass_at_k_matches_known_values():
    assert pass_at_k([[1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], 1) == [0.25, 0.0, 1.0]
    assert pass_at_k([[1, 1, 0, 0, 0]], 2) == [pytest.approx(1 - 3 / 10)]
    assert pass_at_k([[1, 0, 0, 0]], 4) == [1.0]


def test_pass_at_k_is_unbiased():
    rng = np.random.default_rng(5)
    estimates = pass_at_k((rng.random((20_000, 8)) < 0.3).tolist(), 4)
    assert estimates is not None
    assert np.mean(estimates) == pytest.approx(1 - 0.7**4, abs=0.005)


def test_pass_at_k_with_too_few_samples_is_not_a_number():
    assert pass_at_k([[1, 0, 1], [1, 1]], 3) is None
    with pytest.raises(ValueError, match="k >= 1"):
        pass_at_k([[1]], 0)


def test_maj_at_n_counts_equivalence_classes():
    answers = [["5", "5", "7"], ["1", "2", "2"], [None, None, "3"], [None, None, None], ["1", "2", None]]
    correct = [[1, 1, 0], [1, 0, 0], [0, 0, 1], [0, 0, 0], [1, 0, 0]]
    assert maj_at_n(answers, correct) == [1.0, 0.0, 1.0, 0.0, 0.5]


def test_maj_at_n_refuses_tables_of_different_shape():
    with pytest.raises(ValueError, match="same shape"):
        maj_at_n([["1"]], [[1, 0]])


def test_a_paired_difference_is_narrower_than_two_separate_intervals():
    rng = np.random.default_rng(2)
    rates = population_rates(rng, 100) * 0.9
    a, b = sampled(rng, rates, 16), sampled(rng, rates + 0.1, 16)
    paired = paired_difference(a, b)
    assert paired.difference == pytest.approx(avg_at_n(b).mean - avg_at_n(a).mean)
    assert paired.by_problem.low <= 0.1 <= paired.by_problem.high
    apart = avg_at_n(a).by_problem
    assert paired.by_problem.high - paired.by_problem.low < apart.high - apart.low


def test_paired_intervals_cover_the_mean_difference():
    rng = np.random.default_rng(9)
    covered = 0
    for _ in range(SIMULATIONS):
        rates = 0.7 * population_rates(rng, 30)  # the better model gains 0..0.3, so 0.15 on average
        better = rates + rng.uniform(0, 0.3, size=30)
        found = paired_difference(sampled(rng, rates, 16), sampled(rng, better, 16)).by_problem
        covered += found.low <= 0.15 <= found.high
    assert covered / SIMULATIONS >= 0.92


def test_paired_intervals_cover_the_rare_large_difference():
    rng = np.random.default_rng(10)
    covered = 0
    for _ in range(SIMULATIONS):
        solved = rng.random(30) < 0.5
        gained = solved | (rng.random(30) < 0.1)  # 0.05 on average: one or two problems, or none
        found = paired_difference([[s] * 4 for s in solved], [[g] * 4 for g in gained]).by_problem
        covered += found.low <= 0.05 <= found.high
    assert covered / SIMULATIONS >= 0.92


def test_equal_runs_do_not_claim_certainty_and_swapping_flips_the_sign():
    same = paired_difference([[1], [0]] * 15, [[1], [0]] * 15)
    assert same.difference == 0
    assert same.by_problem.low < 0 < same.by_problem.high
    a, b = [[1, 0], [0, 0]], [[1, 1], [0, 1]]
    one, other = paired_difference(a, b), paired_difference(b, a)
    assert one.difference == -other.difference
    assert one.by_problem.low == pytest.approx(-other.by_problem.high)


def test_unpaired_runs_are_refused():
    with pytest.raises(ValueError, match="A has 1 problems and B has 2"):
        paired_difference([[1]], [[1], [1]])


def test_share_is_wilsons_interval():
    found = share(10, 10)
    assert (found.low, found.high) == (pytest.approx(0.722467, abs=1e-6), 1.0)
    with pytest.raises(ValueError, match="11 of 10"):
        share(11, 10)


def test_a_pooled_mean_counts_every_entry_once_and_its_interval_covers() -> None:
    found = pooled_mean([[1.0, 0.0, 1.0], [0.0]])
    assert found.mean == 0.5
    rng = np.random.default_rng(3)
    covered = 0
    for _ in range(400):
        rates = rng.beta(2, 2, size=60)
        rows = [(rng.random(rng.integers(1, 4)) < rate).astype(float).tolist() for rate in rates]
        interval = pooled_mean(rows).by_problem
        covered += interval.low <= 0.5 <= interval.high
    assert covered >= 370  # 95 % of 400 less three standard deviations is 367


def test_pooled_numbers_are_those_of_the_averages_where_every_problem_has_as_many_entries() -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.integers(0, 2, size=(20, 3)).astype(float).tolist() for _ in range(2))
    pooled, average = pooled_mean(a), avg_at_n(a)
    assert pooled.mean == pytest.approx(average.mean)
    assert (pooled.by_problem.low, pooled.by_problem.high) == pytest.approx(
        (average.by_problem.low, average.by_problem.high)
    )
    apart, paired = pooled_difference(a, b), paired_difference(a, b)
    assert apart.difference == pytest.approx(paired.difference)
    assert (apart.by_problem.low, apart.by_problem.high) == pytest.approx(
        (paired.by_problem.low, paired.by_problem.high)
    )


def test_intervals_of_pooled_differences_cover() -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(400):
        rates = rng.beta(2, 2, size=60) * 0.8
        sizes = rng.integers(1, 4, size=60)
        a, b = (
            [
                (rng.random(size) < rate + more).astype(float).tolist()
                for rate, size in zip(rates, sizes, strict=True)
            ]
            for more in (0.0, 0.1)
        )
        interval = pooled_difference(a, b).by_problem
        covered += interval.low <= 0.1 <= interval.high
    assert covered >= 367
    with pytest.raises(ValueError, match="A has 1 problems and B has 2"):
        pooled_difference([[1.0]], [[1.0], [0.0]])


def test_a_pooled_mean_of_equal_entries_has_an_interval_and_of_none_is_refused() -> None:
    interval = pooled_mean([[1.0]] * 10).by_problem
    assert interval.low < 1.0 == interval.high
    with pytest.raises(ValueError, match="no entries"):
        pooled_mean([[], []])

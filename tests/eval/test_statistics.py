"""The statistics: known values, coverage in simulations, and edge cases."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, stats

from rstar2.eval.intervals import share
from rstar2.eval.statistics import (
    avg_at_n,
    maj_at_n,
    paired_difference,
    paired_mean,
    pass_at_k,
    pooled_difference,
    pooled_mean,
)

SIMULATIONS = 600
"""A coverage of 95 % then has a standard error of 0.9 points, so 92 % is more than three standard errors below it."""


BETA_GRID = np.sin(np.pi / 2 * (np.arange(20_000) + 0.5) / 20_000) ** 2
"""Quantiles of Beta(1/2, 1/2), evenly spaced, for means over the population of problems."""


def population_rates(rng, problems):
    """Returns true solve rates of AIME-like problems: many near 0, many near 1, some between."""
    return rng.beta(0.5, 0.5, size=problems)


def sampled(rng, rates, n):
    return (rng.random((len(rates), n)) < rates[:, None]).tolist()


def test_the_mean_weighs_problems_not_samples():
    assert avg_at_n([[1, 1, 1, 1], [0]]).mean == 0.5


def test_run_to_run_error_matches_a_hand_computation():
    average = avg_at_n([[1, 0, 1, 0], [1, 1, 1, 0]])
    within = 0.5 * 0.5 * 4 / 3 / 4 + 0.75 * 0.25 * 4 / 3 / 4
    error = np.sqrt(within / 4 + (1.959964 / 8) ** 2)
    assert average.run_to_run.high - average.mean == pytest.approx(
        min(1 - average.mean, 2.446912 * error), rel=1e-5
    )


def test_clustered_error_is_students_t_over_problems_and_two_pseudo_problems():
    average = avg_at_n([[1, 0], [1, 1], [0, 0], [1, 0]] * 10)
    values = [0.5, 1.0, 0.0, 0.5] * 10 + [0.0, 1.0]
    half = 2.019541 * np.std(values, ddof=1) / np.sqrt(42)
    assert (average.by_problem.low, average.by_problem.high) == pytest.approx(
        (0.5 - half, 0.5 + half), rel=1e-5
    )


@pytest.mark.parametrize(("problems", "samples"), [(30, 16), (30, 64), (15, 16), (60, 4)])
def test_the_clustered_interval_covers_the_population_mean(problems, samples):
    rng = np.random.default_rng(7)
    covered_count = 0
    for _ in range(SIMULATIONS):
        interval = avg_at_n(sampled(rng, population_rates(rng, problems), samples)).by_problem
        covered_count += interval.low <= 0.5 <= interval.high
    assert covered_count / SIMULATIONS >= 0.92


@pytest.mark.parametrize("samples", [4, 16])
def test_the_run_to_run_interval_covers_the_mean_of_these_problems(samples):
    rng = np.random.default_rng(11)
    rates = population_rates(rng, 30)
    covered_count = 0
    for _ in range(SIMULATIONS):
        interval = avg_at_n(sampled(rng, rates, samples)).run_to_run
        covered_count += interval.low <= rates.mean() <= interval.high
    assert covered_count / SIMULATIONS >= 0.92


def test_the_run_to_run_interval_does_not_cover_the_population():
    rng = np.random.default_rng(3)
    averages = [avg_at_n(sampled(rng, population_rates(rng, 30), 16)) for _ in range(500)]
    covered_share = np.mean(
        [average.run_to_run.low <= 0.5 <= average.run_to_run.high for average in averages]
    )
    assert covered_share < 0.6


@pytest.mark.parametrize("value", [0, 1])
@pytest.mark.parametrize(("problems", "samples"), [(1, 1), (1, 16), (30, 1), (30, 16)])
def test_unanimous_samples_do_not_claim_certainty(value, problems, samples):
    average = avg_at_n([[value] * samples] * problems)
    for interval in (average.run_to_run, average.by_problem):
        assert 0 <= interval.low <= average.mean == value <= interval.high <= 1
        assert interval.high - interval.low > 0


def test_all_right_on_thirty_problems_reads_as_about_nine_tenths_or_better():
    average = avg_at_n([[1] * 16] * 30)
    assert 0.88 < average.by_problem.low < 0.93
    assert 0.99 < average.run_to_run.low < 0.993


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=12))
def test_intervals_hold_the_mean_and_stay_within_bounds(correct):
    average = avg_at_n(correct)
    for interval in (average.run_to_run, average.by_problem):
        assert 0 <= interval.low <= average.mean <= interval.high <= 1


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


@pytest.mark.parametrize("problems", [30, 500])
@pytest.mark.parametrize("samples", [1, 16])
def test_if_no_problem_differs_the_interval_is_the_rule_of_three(problems, samples):
    rows = [[1] * samples, [0] * samples] * (problems // 2)
    paired = paired_difference(rows, rows)
    assert paired.difference == 0
    assert (paired.by_problem.low, paired.by_problem.high) == pytest.approx((-3 / problems, 3 / problems))


@pytest.mark.parametrize(("gains", "losses"), [(1, 0), (3, 0), (4, 0), (9, 3), (30, 0), (2, 2)])
def test_each_bound_solves_its_equation_for_single_samples(gains, losses):
    """The squared distance of a bound from the mean is a sum of two terms. The first is the squared distance of
    Student's t. The second is 3/P times the part of the distance that only unseen flips can explain."""
    problems = 30
    differences = np.array([1.0] * gains + [-1.0] * losses + [0.0] * (problems - gains - losses))
    paired = paired_mean(differences)
    padded = np.append(differences, np.zeros(3))  # three problems that did not change
    squares = (padded**2).sum() - padded.sum() ** 2 / len(padded)
    student = 2.045230**2 * squares / (problems * (problems - 1))
    low, high = paired.by_problem.low, paired.by_problem.high
    if high < 1:
        assert (high - paired.difference) ** 2 == pytest.approx(
            student + 3 / problems * (high - paired.difference)
        )
    assert (paired.difference - low) ** 2 == pytest.approx(student + 3 / problems * max(0.0, -low))
    assert (low > 0) == ((gains, losses) in {(4, 0), (30, 0)})


def tango(gains, losses, problems):
    """Returns Tango's score interval for the difference of paired proportions, from its definition."""

    def score(difference):
        linear = (2 * problems - gains + losses) * difference - gains - losses
        constant = -losses * difference * (1 - difference)
        loss_rate = (np.sqrt(linear**2 - 8 * problems * constant) - linear) / (4 * problems)
        variance = problems * (2 * loss_rate + difference * (1 - difference))
        return (gains - losses - problems * difference) / np.sqrt(variance)

    middle = (gains - losses) / problems
    low = optimize.brentq(lambda x: score(x) - 1.959964, -0.9, middle - 1e-6)
    return low, optimize.brentq(lambda x: score(x) + 1.959964, middle + 1e-6, 0.9)


@pytest.mark.parametrize("problems", [30, 120, 500])
@pytest.mark.parametrize(("gains", "losses"), [(1, 0), (2, 0), (4, 0), (1, 1)])
def test_with_few_flips_the_bounds_are_within_one_flip_of_tangos(problems, gains, losses):
    differences = np.repeat([1.0, -1.0, 0.0], [gains, losses, problems - gains - losses])
    interval = paired_mean(differences).by_problem
    assert (interval.low, interval.high) == pytest.approx(tango(gains, losses, problems), abs=1 / problems)


@given(
    st.lists(st.integers(-8, 8), min_size=2, max_size=40),
    st.sampled_from([1.0, 8.0, 64.0]),
)
def test_a_difference_is_shown_only_if_the_paired_t_test_finds_it(counts, scale):
    differences = np.clip(np.array(counts) / scale, -1, 1)
    paired = paired_mean(differences)
    low, high = paired.by_problem.low, paired.by_problem.high
    assert -1 <= low <= paired.difference <= high <= 1
    assert low < high
    if low > 0 or high < 0:
        with np.errstate(divide="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # scipy's, if all differences are equal
            assert stats.ttest_1samp(differences, 0).pvalue < 0.05


SHIFT_MEAN = {shift: np.mean(np.clip(BETA_GRID + shift, 0, 1) - BETA_GRID) for shift in (0.0, 0.05, 0.1)}


def shifted_differences(rng, problems, samples, shift, runs=2000):
    """Returns differences [runs, P] between two models with U-shaped rates.

    The second model's rates are higher by `shift`, but at most 1.
    """
    rates = rng.beta(0.5, 0.5, (runs, problems))
    better = np.clip(rates + shift, 0, 1)
    return (rng.binomial(samples, better) - rng.binomial(samples, rates)) / samples


def covered_share(differences, mean):
    intervals = [paired_mean(row).by_problem for row in differences]
    return np.mean([each.low <= mean <= each.high for each in intervals])


def share_excluding_zero(differences):
    intervals = [paired_mean(row).by_problem for row in differences]
    return np.mean([each.low > 0 or each.high < 0 for each in intervals])


def exact_coverage(problems, gain_chance, loss_chance):
    """Returns the exact probability that the interval covers the mean.

    A problem gains 1 with probability `gain_chance` and loses 1 with probability `loss_chance`.
    """
    gains, losses = (counts.ravel() for counts in np.mgrid[: problems + 1, : problems + 1])
    possible = gains + losses <= problems
    counts = np.stack([gains, losses, problems - gains - losses], axis=1)[possible]
    chances = stats.multinomial.pmf(
        counts, problems, [gain_chance, loss_chance, 1 - gain_chance - loss_chance]
    )
    total, mean = 0.0, gain_chance - loss_chance
    for (gain_count, loss_count, unchanged_count), chance in zip(counts, chances, strict=True):
        if chance > 1e-6:
            interval = paired_mean(
                np.repeat([1.0, -1.0, 0.0], [gain_count, loss_count, unchanged_count])
            ).by_problem
            total += chance * (interval.low - 1e-9 <= mean <= interval.high + 1e-9)
    return total


@pytest.mark.parametrize("problems", [30, 60, 120, 500])
@pytest.mark.parametrize("samples", [4, 16, 64])
@pytest.mark.parametrize("shift", [0.0, 0.1])
def test_paired_intervals_cover_small_shifts(problems, samples, shift):
    rng = np.random.default_rng([9, problems, samples])
    assert (
        covered_share(shifted_differences(rng, problems, samples, shift, runs=4000), SHIFT_MEAN[shift])
        >= 0.94
    )


@pytest.mark.parametrize("problems", [30, 60, 120, 500])
@pytest.mark.parametrize("shift", [0.0, 0.05, 0.1])
def test_paired_intervals_cover_small_shifts_with_one_sample(problems, shift):
    better = np.clip(BETA_GRID + shift, 0, 1)
    gain_chance, loss_chance = np.mean(better * (1 - BETA_GRID)), np.mean(BETA_GRID * (1 - better))
    assert exact_coverage(problems, gain_chance, loss_chance) >= 0.945


@pytest.mark.parametrize("problems", [30, 60, 120, 500])
@pytest.mark.parametrize("expected", [0.1, 1, 2.9, 3.1, 4.5, 6, 9])
@pytest.mark.parametrize("gains", [1.0, 0.75, 0.5])
def test_paired_intervals_cover_rare_flips_of_decided_problems(problems, expected, gains):
    """All samples of a problem are right or all are wrong, so the number of samples makes no difference."""
    share = expected / problems
    assert exact_coverage(problems, share * gains, share * (1 - gains)) >= 0.945


def test_one_odd_sample_does_not_hide_that_flips_are_rare():
    """One problem has a single sample that differs, and 29 problems are decided. Each half of the interval is still
    wider than two flips."""
    differences = np.zeros(30)
    differences[0] = 1 / 16
    interval = paired_mean(differences).by_problem
    assert interval.low < -0.08
    assert interval.high > 0.08


@pytest.mark.parametrize("expected", [1, 2, 4])
def test_paired_intervals_cover_rare_flips_though_the_few_undecided_problems_differ_a_little(expected):
    """About 40 of 500 problems differ by one or two samples. The other problems are decided and flip rarely."""
    rng = np.random.default_rng([14, expected])
    rates = rng.beta(0.02, 0.02, (3000, 500))
    never = rates < 1e-3
    flipped = never & (rng.random(rates.shape) < expected / 500 / never.mean())
    after = np.where(flipped, 1.0, rates)
    differences = (rng.binomial(64, after) - rng.binomial(64, rates)) / 64
    assert 20 < np.mean((differences != 0).sum(1)) < 80
    assert covered_share(differences, expected / 500) >= 0.93


@pytest.mark.parametrize("samples", [1, 4, 16, 64])
@pytest.mark.parametrize("problems", [30, 120])
def test_paired_intervals_find_what_the_paired_t_test_finds(problems, samples):
    differences = shifted_differences(np.random.default_rng([12, samples]), problems, samples, 0.1)
    student = np.mean(stats.ttest_1samp(differences, 0, axis=1).pvalue < 0.05)
    assert share_excluding_zero(differences) >= 0.97 * student
    if (problems, samples) == (30, 16):
        assert student > 0.9  # two pseudo-problems at -1 and +1 found 16 % of these


@pytest.mark.parametrize(("problems", "samples"), [(30, 16), (120, 4), (500, 1)])
def test_the_detectable_difference_is_found_in_four_of_five_comparisons(problems, samples):
    rng = np.random.default_rng([13, problems])
    unshifted = shifted_differences(rng, problems, samples, 0.0, runs=200)
    sizes = [paired_mean(row).detectable for row in unshifted]
    # Add a constant shift that no rate limits, to problems with the same noise.
    differences = shifted_differences(rng, problems, samples, 0.0) + np.median(sizes)
    assert share_excluding_zero(differences) == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize("problems", [5, 10, 60, 500])
def test_the_detectable_difference_of_decided_problems_is_a_share_of_flips(problems):
    size = paired_mean(np.zeros(problems)).detectable
    assert size is not None
    differences = (np.random.default_rng(14).random((2000, problems)) < size).astype(float)
    assert share_excluding_zero(differences) == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize(("problems", "level"), [(5, 0.0062), (10, 0.0382), (30, 0.0486), (500, 0.05)])
def test_in_small_sets_the_verdict_is_more_careful_than_the_paired_t_tests(problems, level):
    noise = np.random.default_rng(15).normal(size=problems)
    noise = (noise - noise.mean()) / noise.std(ddof=1) / 1000
    for change, excludes_zero in ((1.01, False), (0.99, True)):
        t = stats.t.isf(change * level / 2, problems - 1)
        interval = paired_mean(noise + t / 1000 / np.sqrt(problems)).by_problem
        assert (interval.low > 0) is excludes_zero


def test_fewer_than_five_problems_show_nothing():
    paired = paired_mean(np.ones(4))
    assert paired.by_problem.low <= 0
    assert paired.detectable is None
    assert paired_mean(np.ones(5)).by_problem.low > 0


def test_one_problem_says_nothing_and_two_say_little():
    one_problem = paired_difference([[0] * 16], [[1] * 16])
    assert (one_problem.difference, one_problem.by_problem.low, one_problem.by_problem.high) == (
        1.0,
        -1.0,
        1.0,
    )
    assert one_problem.detectable is None
    two_problems = paired_difference([[0], [0]], [[1], [1]])
    assert two_problems.by_problem.low < 0
    assert two_problems.detectable is None


def test_problems_that_all_change_alike_do_not_claim_certainty():
    interval = paired_difference([[0] * 4] * 30, [[1] * 4] * 30).by_problem
    assert 0.85 < interval.low < 0.93
    assert interval.high == 1.0


def test_swapping_the_runs_flips_the_sign_and_rows_may_differ_in_length():
    a, b = [[1, 0], [0, 0], [1]], [[1, 1, 1], [0, 1], [1]]
    forward, backward = paired_difference(a, b), paired_difference(b, a)
    assert forward.difference == -backward.difference == pytest.approx(1 / 3)
    assert forward.by_problem.low == pytest.approx(-backward.by_problem.high)
    assert forward.by_problem.high == pytest.approx(-backward.by_problem.low)
    assert forward.detectable == backward.detectable


def test_unpaired_runs_and_no_problems_are_refused():
    with pytest.raises(ValueError, match="A has 1 problems and B has 2"):
        paired_difference([[1]], [[1], [1]])
    with pytest.raises(ValueError, match="no problems"):
        paired_difference([], [])
    with pytest.raises(ValueError, match="no problems"):
        paired_mean(np.array([]))


def test_share_is_wilsons_interval():
    interval = share(10, 10)
    assert (interval.low, interval.high) == (pytest.approx(0.722467, abs=1e-6), 1.0)
    with pytest.raises(ValueError, match="11 of 10"):
        share(11, 10)


def test_a_pooled_mean_counts_every_entry_once_and_its_interval_covers() -> None:
    pooled = pooled_mean([[1.0, 0.0, 1.0], [0.0]])
    assert pooled.mean == 0.5
    rng = np.random.default_rng(3)
    covered_count = 0
    for _ in range(400):
        rates = rng.beta(2, 2, size=60)
        rows = [(rng.random(rng.integers(1, 4)) < rate).astype(float).tolist() for rate in rates]
        interval = pooled_mean(rows).by_problem
        covered_count += interval.low <= 0.5 <= interval.high
    assert covered_count >= 370  # 95 % of 400, minus three standard deviations, is 367


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
    covered_count = 0
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
        covered_count += interval.low <= 0.1 <= interval.high
    assert covered_count >= 367
    with pytest.raises(ValueError, match="A has 1 problems and B has 2"):
        pooled_difference([[1.0]], [[1.0], [0.0]])


def test_a_pooled_mean_of_equal_entries_has_an_interval_and_of_none_is_refused() -> None:
    interval = pooled_mean([[1.0]] * 10).by_problem
    assert interval.low < 1.0 == interval.high
    with pytest.raises(ValueError, match="no entries"):
        pooled_mean([[], []])

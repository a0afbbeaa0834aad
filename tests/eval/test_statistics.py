"""The statistics: known values, coverage by simulation, and sane edges."""

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
"""The standard error of a coverage of 95 % is then 0.9 points, so that 92 % is more than three below."""


BETA_GRID = np.sin(np.pi / 2 * (np.arange(20_000) + 0.5) / 20_000) ** 2
"""Quantiles of Beta(1/2, 1/2), evenly spaced, for means over the population of problems."""


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


@pytest.mark.parametrize("problems", [30, 500])
@pytest.mark.parametrize("samples", [1, 16])
def test_if_no_problem_differs_the_interval_is_the_rule_of_three(problems, samples):
    rows = [[1] * samples, [0] * samples] * (problems // 2)
    found = paired_difference(rows, rows)
    assert found.difference == 0
    assert (found.by_problem.low, found.by_problem.high) == pytest.approx((-3 / problems, 3 / problems))


@pytest.mark.parametrize(("gains", "losses"), [(1, 0), (3, 0), (4, 0), (9, 3), (30, 0), (2, 2)])
def test_each_bound_solves_its_equation_for_single_samples(gains, losses):
    """The squared distance of a bound is Student's, plus 3/P for each unit that only unseen flips explain."""
    problems = 30
    differences = np.array([1.0] * gains + [-1.0] * losses + [0.0] * (problems - gains - losses))
    found = paired_mean(differences)
    padded = np.append(differences, np.zeros(3))  # three problems that did not change
    squares = (padded**2).sum() - padded.sum() ** 2 / len(padded)
    student = 2.045230**2 * squares / (problems * (problems - 1))
    low, high = found.by_problem.low, found.by_problem.high
    if high < 1:
        assert (high - found.difference) ** 2 == pytest.approx(
            student + 3 / problems * (high - found.difference)
        )
    assert (found.difference - low) ** 2 == pytest.approx(student + 3 / problems * max(0.0, -low))
    assert (low > 0) == ((gains, losses) in {(4, 0), (30, 0)})


def tango(gains, losses, problems):
    """Tango's score interval of the difference of paired proportions, from its definition."""

    def score(difference):
        linear = (2 * problems - gains + losses) * difference - gains - losses
        constant = -losses * difference * (1 - difference)
        lost = (np.sqrt(linear**2 - 8 * problems * constant) - linear) / (4 * problems)
        variance = problems * (2 * lost + difference * (1 - difference))
        return (gains - losses - problems * difference) / np.sqrt(variance)

    middle = (gains - losses) / problems
    low = optimize.brentq(lambda x: score(x) - 1.959964, -0.9, middle - 1e-6)
    return low, optimize.brentq(lambda x: score(x) + 1.959964, middle + 1e-6, 0.9)


@pytest.mark.parametrize("problems", [30, 120, 500])
@pytest.mark.parametrize(("gains", "losses"), [(1, 0), (2, 0), (4, 0), (1, 1)])
def test_with_few_flips_the_bounds_are_within_one_flip_of_tangos(problems, gains, losses):
    differences = np.repeat([1.0, -1.0, 0.0], [gains, losses, problems - gains - losses])
    found = paired_mean(differences).by_problem
    assert (found.low, found.high) == pytest.approx(tango(gains, losses, problems), abs=1 / problems)


@given(
    st.lists(st.integers(-8, 8), min_size=2, max_size=40),
    st.sampled_from([1.0, 8.0, 64.0]),
)
def test_a_difference_is_shown_only_if_the_paired_t_test_finds_it(counts, scale):
    differences = np.clip(np.array(counts) / scale, -1, 1)
    found = paired_mean(differences)
    low, high = found.by_problem.low, found.by_problem.high
    assert -1 <= low <= found.difference <= high <= 1
    assert low < high
    if low > 0 or high < 0:
        with np.errstate(divide="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # scipy's, if all differences are equal
            assert stats.ttest_1samp(differences, 0).pvalue < 0.05


SHIFT_MEAN = {shift: np.mean(np.clip(BETA_GRID + shift, 0, 1) - BETA_GRID) for shift in (0.0, 0.05, 0.1)}


def shifted(rng, problems, samples, shift, runs=2000):
    """Differences [runs, P] of two models whose rates are U-shaped, the second better by `shift` up to 1."""
    rates = rng.beta(0.5, 0.5, (runs, problems))
    better = np.clip(rates + shift, 0, 1)
    return (rng.binomial(samples, better) - rng.binomial(samples, rates)) / samples


def covered(differences, mean):
    intervals = [paired_mean(row).by_problem for row in differences]
    return np.mean([each.low <= mean <= each.high for each in intervals])


def found_share(differences):
    intervals = [paired_mean(row).by_problem for row in differences]
    return np.mean([each.low > 0 or each.high < 0 for each in intervals])


def exactly_covered(problems, gained, lost):
    """The exact chance that the interval covers, if a problem gains 1 with chance `gained` and loses 1 with `lost`."""
    gains, losses = (counts.ravel() for counts in np.mgrid[: problems + 1, : problems + 1])
    possible = gains + losses <= problems
    counts = np.stack([gains, losses, problems - gains - losses], axis=1)[possible]
    chances = stats.multinomial.pmf(counts, problems, [gained, lost, 1 - gained - lost])
    total, mean = 0.0, gained - lost
    for (up, down, same), chance in zip(counts, chances, strict=True):
        if chance > 1e-6:
            interval = paired_mean(np.repeat([1.0, -1.0, 0.0], [up, down, same])).by_problem
            total += chance * (interval.low - 1e-9 <= mean <= interval.high + 1e-9)
    return total


@pytest.mark.parametrize("problems", [30, 60, 120, 500])
@pytest.mark.parametrize("samples", [4, 16, 64])
@pytest.mark.parametrize("shift", [0.0, 0.1])
def test_paired_intervals_cover_small_shifts(problems, samples, shift):
    rng = np.random.default_rng([9, problems, samples])
    assert covered(shifted(rng, problems, samples, shift, runs=4000), SHIFT_MEAN[shift]) >= 0.94


@pytest.mark.parametrize("problems", [30, 60, 120, 500])
@pytest.mark.parametrize("shift", [0.0, 0.05, 0.1])
def test_paired_intervals_cover_small_shifts_with_one_sample(problems, shift):
    better = np.clip(BETA_GRID + shift, 0, 1)
    gained, lost = np.mean(better * (1 - BETA_GRID)), np.mean(BETA_GRID * (1 - better))
    assert exactly_covered(problems, gained, lost) >= 0.945


@pytest.mark.parametrize("problems", [30, 60, 120, 500])
@pytest.mark.parametrize("expected", [0.1, 1, 2.9, 3.1, 4.5, 6, 9])
@pytest.mark.parametrize("gains", [1.0, 0.75, 0.5])
def test_paired_intervals_cover_rare_flips_of_decided_problems(problems, expected, gains):
    """All samples of a problem are right or all are wrong, so that their number makes no difference."""
    share = expected / problems
    assert exactly_covered(problems, share * gains, share * (1 - gains)) >= 0.945


def test_one_odd_sample_does_not_hide_that_flips_are_rare():
    """29 decided problems and one with a single sample apart: still an interval of nearly three flips."""
    differences = np.zeros(30)
    differences[0] = 1 / 16
    interval = paired_mean(differences).by_problem
    assert interval.low < -0.08
    assert interval.high > 0.08


@pytest.mark.parametrize("expected", [1, 2, 4])
def test_paired_intervals_cover_rare_flips_though_the_few_undecided_problems_differ_a_little(expected):
    """Some forty of 500 problems differ by a sample or two. They say nothing about the others, which are decided."""
    rng = np.random.default_rng([14, expected])
    rates = rng.beta(0.02, 0.02, (3000, 500))
    never = rates < 1e-3
    flipped = never & (rng.random(rates.shape) < expected / 500 / never.mean())
    after = np.where(flipped, 1.0, rates)
    differences = (rng.binomial(64, after) - rng.binomial(64, rates)) / 64
    assert 20 < np.mean((differences != 0).sum(1)) < 80
    assert covered(differences, expected / 500) >= 0.93


@pytest.mark.parametrize("samples", [1, 4, 16, 64])
@pytest.mark.parametrize("problems", [30, 120])
def test_paired_intervals_find_what_the_paired_t_test_finds(problems, samples):
    differences = shifted(np.random.default_rng([12, samples]), problems, samples, 0.1)
    student = np.mean(stats.ttest_1samp(differences, 0, axis=1).pvalue < 0.05)
    assert found_share(differences) >= 0.97 * student
    if (problems, samples) == (30, 16):
        assert student > 0.9  # two pseudo-problems at -1 and +1 found 16 % of these


@pytest.mark.parametrize(("problems", "samples"), [(30, 16), (120, 4), (500, 1)])
def test_the_detectable_difference_is_found_in_four_of_five_comparisons(problems, samples):
    rng = np.random.default_rng([13, problems])
    same = shifted(rng, problems, samples, 0.0, runs=200)
    sizes = [paired_mean(row).detectable for row in same]
    # A constant shift that no problem's rate cuts off, on problems whose noise is that of the others.
    differences = shifted(rng, problems, samples, 0.0) + np.median(sizes)
    assert found_share(differences) == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize("problems", [5, 10, 60, 500])
def test_the_detectable_difference_of_decided_problems_is_a_share_of_flips(problems):
    size = paired_mean(np.zeros(problems)).detectable
    assert size is not None
    differences = (np.random.default_rng(14).random((2000, problems)) < size).astype(float)
    assert found_share(differences) == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize(("problems", "level"), [(5, 0.0062), (10, 0.0382), (30, 0.0486), (500, 0.05)])
def test_in_small_sets_the_verdict_is_more_careful_than_the_paired_t_tests(problems, level):
    noise = np.random.default_rng(15).normal(size=problems)
    noise = (noise - noise.mean()) / noise.std(ddof=1) / 1000
    for change, shown in ((1.01, False), (0.99, True)):
        t = stats.t.isf(change * level / 2, problems - 1)
        found = paired_mean(noise + t / 1000 / np.sqrt(problems)).by_problem
        assert (found.low > 0) is shown


def test_fewer_than_five_problems_show_nothing():
    found = paired_mean(np.ones(4))
    assert found.by_problem.low <= 0
    assert found.detectable is None
    assert paired_mean(np.ones(5)).by_problem.low > 0


def test_one_problem_says_nothing_and_two_say_little():
    one = paired_difference([[0] * 16], [[1] * 16])
    assert (one.difference, one.by_problem.low, one.by_problem.high) == (1.0, -1.0, 1.0)
    assert one.detectable is None
    two = paired_difference([[0], [0]], [[1], [1]])
    assert two.by_problem.low < 0
    assert two.detectable is None


def test_problems_that_all_change_alike_do_not_claim_certainty():
    found = paired_difference([[0] * 4] * 30, [[1] * 4] * 30).by_problem
    assert 0.85 < found.low < 0.93
    assert found.high == 1.0


def test_swapping_the_runs_flips_the_sign_and_rows_may_differ_in_length():
    a, b = [[1, 0], [0, 0], [1]], [[1, 1, 1], [0, 1], [1]]
    one, other = paired_difference(a, b), paired_difference(b, a)
    assert one.difference == -other.difference == pytest.approx(1 / 3)
    assert one.by_problem.low == pytest.approx(-other.by_problem.high)
    assert one.by_problem.high == pytest.approx(-other.by_problem.low)
    assert one.detectable == other.detectable


def test_unpaired_runs_and_no_problems_are_refused():
    with pytest.raises(ValueError, match="A has 1 problems and B has 2"):
        paired_difference([[1]], [[1], [1]])
    with pytest.raises(ValueError, match="no problems"):
        paired_difference([], [])
    with pytest.raises(ValueError, match="no problems"):
        paired_mean(np.array([]))


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

"""Comparisons pair problems, find the flipped ones, and report the problems that were left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console
from support.eval.example_runs import BFCL_V3, write_run

from rstar2.errors import UserError
from rstar2.eval.compare import Incomplete, Pair, compare_runs
from rstar2.eval.settings import EvalSettings
from rstar2.eval.stored import measurements
from rstar2.eval.terminal.tables import (
    comparison_tables,
    detectable_line,
    score_differences_table,
    settings_lines,
)
from rstar2.files import write_json


def test_the_difference_is_the_mean_of_the_problems_differences(tmp_path: Path) -> None:
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", seed=1, lift=0.3)
    comparison = compare_runs(a, b)[0]
    assert comparison.difference == pytest.approx(sum(pair.b - pair.a for pair in comparison.pairs) / 30)
    assert comparison.difference == pytest.approx(comparison.b - comparison.a)
    low, high = comparison.interval
    assert low < comparison.difference < high
    assert comparison.excludes_zero == (low > 0)
    assert len(comparison.pairs) == 30
    assert comparison.changed == []


def test_a_run_compared_with_itself_shows_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    comparison = compare_runs(run, run)[0]
    assert comparison.difference == 0.0
    assert not comparison.excludes_zero
    assert comparison.flipped == []


def test_swapping_the_runs_turns_the_sign(tmp_path: Path) -> None:
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", seed=1, samples=4, lift=0.2)
    forward, backward = compare_runs(a, b)[0], compare_runs(b, a)[0]
    assert forward.difference == pytest.approx(-backward.difference)
    assert forward.interval == pytest.approx((-backward.interval[1], -backward.interval[0]))
    assert {pair.id for pair in forward.flipped} == {pair.id for pair in backward.flipped}
    assert forward.changed == ["samples"]


def test_a_comparison_at_the_size_of_aime_finds_a_gain_of_eight_points(tmp_path: Path) -> None:
    """An earlier version added pseudo-problems at ±1. With 30 problems × 16 samples, its interval was -4.9 to 15.8
    points."""
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", seed=1, lift=0.08)
    (comparison,) = compare_runs(a, b)
    assert 0.05 < comparison.difference < 0.09
    assert comparison.excludes_zero
    assert comparison.detectable is not None
    assert 0.05 < comparison.detectable < 0.1


def test_what_a_comparison_could_find_is_a_sentence_and_in_the_json(tmp_path: Path) -> None:
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", seed=1)
    (comparison,) = compare_runs(a, b)
    assert comparison.detectable is not None
    size = f"{100 * comparison.detectable:.1f} points"
    assert detectable_line(comparison).startswith(
        "aime24: with 30 problems like these, a true difference of about "
    )
    assert size in detectable_line(comparison)
    assert comparison.as_json()["detectable_difference"] == comparison.detectable
    single = [write_run(tmp_path / name, problems=1) for name in ("c", "d")]
    (comparison,) = compare_runs(*single)
    assert comparison.interval == (-1.0, 1.0)
    assert comparison.as_json()["detectable_difference"] is None
    assert detectable_line(comparison) == "aime24: 1 problem is too few to find a difference of any size"


def test_the_verdict_is_that_of_the_interval(tmp_path: Path) -> None:
    verdicts = set()
    console = Console(width=120)
    for number, lift in enumerate((0.0, 0.05, 0.5, -0.5)):
        a = write_run(tmp_path / f"a{number}", problems=12, samples=4)
        b = write_run(tmp_path / f"b{number}", problems=12, samples=4, seed=1, lift=lift)
        comparisons = compare_runs(a, b)
        low, high = comparisons[0].interval
        verdict = "B better" if low > 0 else "A better" if high < 0 else "nothing"
        with console.capture() as captured:
            console.print(*comparison_tables(comparisons, console))
        assert verdict in captured.get()
        verdicts.add(verdict)
    assert verdicts == {"B better", "A better", "nothing"}


def test_flips_are_told_by_majority_and_the_largest_first(tmp_path: Path) -> None:
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", seed=3, lift=0.4)
    flipped = compare_runs(a, b)[0].flipped
    assert flipped
    assert all((pair.a > 0.5) != (pair.b > 0.5) for pair in flipped)
    changes = [abs(pair.b - pair.a) for pair in flipped]
    assert changes == sorted(changes, reverse=True)
    assert not Pair("x", 0.5, 0.0).flipped


def test_problems_of_one_run_only_are_left_out_and_counted(tmp_path: Path) -> None:
    a, b = write_run(tmp_path / "a", problems=30), write_run(tmp_path / "b", problems=20)
    comparison = compare_runs(a, b)[0]
    assert (len(comparison.pairs), comparison.unpaired) == (20, 10)


def test_samples_that_a_later_start_made_are_no_longer_called_failed(tmp_path: Path) -> None:
    """Three of twenty samples failed. The resumed run generated two of them, and was killed."""
    run = write_run(tmp_path / "a", problems=10, samples=2)
    traces, results = (run / "aime24" / name for name in ("traces.jsonl", "results.json"))
    traces.write_text("".join(traces.read_text().splitlines(keepends=True)[:-1]))
    stored = measurements(run)[0].results
    summary = stored["summary"] | {"samples": 17}
    write_json(results, stored | {"complete": False, "missing": 3, "failed": {"gone": 3}, "summary": summary})
    incomplete = compare_runs(run, run)[0].incomplete
    assert incomplete == [Incomplete("A", 19, 1, {}), Incomplete("B", 19, 1, {})]


def test_runs_without_a_common_benchmark_or_problem_are_refused(tmp_path: Path) -> None:
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", "math500")
    with pytest.raises(UserError, match="no benchmark in common"):
        compare_runs(a, b)
    results = measurements(a)[0].results
    for row in results["per_problem"]:
        row["gold"] = "another"
    other_run = write_run(tmp_path / "c")
    write_json(other_run / "aime24" / "results.json", results)
    with pytest.raises(UserError, match="no problem in common"):
        compare_runs(a, other_run)
    with pytest.raises(UserError, match="no run at"):
        compare_runs(a, tmp_path)


def test_a_run_that_was_killed_is_measured_from_its_traces(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    complete_results = measurements(run)[0].results
    assert complete_results["summary"].pop("as_published"), "a complete run counts as published"
    (run / "aime24" / "results.json").unlink()
    results = measurements(run)[0].results
    assert results["summary"] == complete_results["summary"]
    assert results["per_problem"] == complete_results["per_problem"]
    assert results["complete"] is False
    halved = {**complete_results, "complete": False, "missing": 80}
    halved["summary"] = {**complete_results["summary"], "samples": 400, "accuracy": 0.1}
    write_json(run / "aime24" / "results.json", halved)
    results = measurements(run)[0].results
    assert (results["summary"], results["missing"]) == (complete_results["summary"], 0)
    assert results["settings"] == complete_results["settings"]


def test_a_benchmarks_own_scores_are_compared_and_so_is_what_it_makes_of_them(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", "bfcl-v3", problems=170, samples=1, categories=BFCL_V3)
    b = write_run(tmp_path / "b", "bfcl-v3", problems=170, samples=1, seed=1, lift=0.5, categories=BFCL_V3)
    (comparison,) = compare_runs(a, b)
    by_name = {score.name: score for score in comparison.scores}
    assert {*BFCL_V3, "non-live", "live", "multi-turn", "overall"} <= set(by_name)
    for run, side in ((a, "a"), (b, "b")):
        summary = measurements(run)[0].results["summary"]
        for name, score in by_name.items():
            assert getattr(score, side) == pytest.approx(summary["scores"][name]["value"])
    for score in comparison.scores:
        assert score.difference == pytest.approx(score.b - score.a)
        low, high = score.interval
        assert -1 <= low <= score.difference <= high <= 1
    overall, part = by_name["overall"], by_name["multi-turn"]
    assert overall.interval[0] > 0.1
    assert overall.interval[1] - overall.interval[0] < part.interval[1] - part.interval[0]
    console = Console(width=80)
    with console.capture() as captured:
        console.print(score_differences_table(comparison.name, comparison.scores))
    assert "overall" in captured.get()
    assert "B better" in captured.get()
    assert comparison.as_json()["scores"][0]["name"] == "simple"


def test_scores_of_problems_in_one_run_only_are_left_out(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", "bfcl-v3", problems=34, samples=1, categories=BFCL_V3)
    b = write_run(tmp_path / "b", "bfcl-v3", problems=10, samples=2, categories=BFCL_V3)
    (comparison,) = compare_runs(a, b)
    assert {score.name for score in comparison.scores if score.problems} == {
        *BFCL_V3[:10],
        "simple, all languages",
        "non-live",
    }


def test_a_killed_run_has_the_scores_that_are_made_of_others(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", "bfcl-v3", problems=34, samples=1, categories=BFCL_V3)
    complete_results = measurements(run)[0].results
    assert complete_results["summary"].pop("as_published"), "a complete run counts as published"
    (run / "bfcl-v3" / "results.json").unlink()
    results = measurements(run)[0].results
    assert "overall" in results["summary"]["scores"]
    assert results["summary"] == complete_results["summary"]
    assert results["per_problem"] == complete_results["per_problem"]


def test_two_benchmarks_of_one_run_are_compared_by_their_folders(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "eval/sft")
    write_run(run, "eval/stage1", seed=1, lift=0.5)
    (comparison,) = compare_runs(run / "eval" / "sft", run / "eval" / "stage1")
    assert comparison.name == "sft – stage1"
    assert comparison.difference > 0.2
    with pytest.raises(UserError) as error:
        compare_runs(run, run / "eval" / "stage1")
    assert "eval/sft, eval/stage1" in error.value.hint


def test_no_name_of_a_benchmark_is_broken_in_a_narrow_terminal(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "eval/training-problems")
    write_run(run, "eval/held-out-problems", seed=1, lift=0.5)
    comparisons = compare_runs(run / "eval" / "training-problems", run / "eval" / "held-out-problems")
    doubled = [*comparisons, *comparisons]
    for width, tables in ((80, 2), (200, 1)):
        console = Console(width=width, record=True, file=(tmp_path / "shown").open("w"))
        console.print(*comparison_tables(doubled, console))
        lines = console.export_text().splitlines()
        assert sum("training-problems – held-out-problems" in line for line in lines) == 2
        assert sum("problems  flipped" in line for line in lines) == tables
        assert max(map(len, lines)) <= width


def test_no_setting_is_broken_from_its_value_in_a_narrow_terminal() -> None:
    for width in range(24, 100):
        lines = settings_lines(EvalSettings().protocol(), width).splitlines()
        settings = [setting for line in lines for setting in line.removesuffix(" ·").split(" · ")]
        assert settings == [f"{key} {value}" for key, value in EvalSettings().protocol().items()]
        assert max(map(len, lines)) <= width

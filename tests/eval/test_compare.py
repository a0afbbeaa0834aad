"""Comparisons pair problems, find what flipped, and say what was left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console
from support.eval.made_runs import BFCL_V3, made_run

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
    a, b = made_run(tmp_path / "a"), made_run(tmp_path / "b", seed=1, lift=0.3)
    found = compare_runs(a, b)[0]
    assert found.difference == pytest.approx(sum(pair.b - pair.a for pair in found.pairs) / 30)
    assert found.difference == pytest.approx(found.b - found.a)
    low, high = found.interval
    assert low < found.difference < high
    assert found.excludes_zero == (low > 0)
    assert len(found.pairs) == 30
    assert found.changed == []


def test_a_run_compared_with_itself_shows_nothing(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    found = compare_runs(run, run)[0]
    assert found.difference == 0.0
    assert not found.excludes_zero
    assert found.flipped == []


def test_swapping_the_runs_turns_the_sign(tmp_path: Path) -> None:
    a, b = made_run(tmp_path / "a"), made_run(tmp_path / "b", seed=1, samples=4, lift=0.2)
    there, back = compare_runs(a, b)[0], compare_runs(b, a)[0]
    assert there.difference == pytest.approx(-back.difference)
    assert there.interval == pytest.approx((-back.interval[1], -back.interval[0]))
    assert {pair.id for pair in there.flipped} == {pair.id for pair in back.flipped}
    assert there.changed == ["samples"]


def test_a_comparison_at_the_size_of_aime_finds_a_gain_of_eight_points(tmp_path: Path) -> None:
    """30 problems × 16 samples: the interval with pseudo-problems at ±1 reached from -4.9 to 15.8 points."""
    a, b = made_run(tmp_path / "a"), made_run(tmp_path / "b", seed=1, lift=0.08)
    (found,) = compare_runs(a, b)
    assert 0.05 < found.difference < 0.09
    assert found.excludes_zero
    assert found.detectable is not None
    assert 0.05 < found.detectable < 0.1


def test_what_a_comparison_could_find_is_a_sentence_and_in_the_json(tmp_path: Path) -> None:
    a, b = made_run(tmp_path / "a"), made_run(tmp_path / "b", seed=1)
    (found,) = compare_runs(a, b)
    assert found.detectable is not None
    size = f"{100 * found.detectable:.1f} points"
    assert detectable_line(found).startswith(
        "aime24: with 30 problems like these, a true difference of about "
    )
    assert size in detectable_line(found)
    assert found.as_json()["detectable_difference"] == found.detectable
    single = [made_run(tmp_path / name, problems=1) for name in ("c", "d")]
    (found,) = compare_runs(*single)
    assert found.interval == (-1.0, 1.0)
    assert found.as_json()["detectable_difference"] is None
    assert detectable_line(found) == "aime24: 1 problem is too few to find a difference of any size"


def test_the_verdict_is_that_of_the_interval(tmp_path: Path) -> None:
    verdicts = set()
    console = Console(width=120)
    for number, lift in enumerate((0.0, 0.05, 0.5, -0.5)):
        a = made_run(tmp_path / f"a{number}", problems=12, samples=4)
        b = made_run(tmp_path / f"b{number}", problems=12, samples=4, seed=1, lift=lift)
        found = compare_runs(a, b)
        low, high = found[0].interval
        verdict = "B better" if low > 0 else "A better" if high < 0 else "nothing"
        with console.capture() as captured:
            console.print(*comparison_tables(found, console))
        assert verdict in captured.get()
        verdicts.add(verdict)
    assert verdicts == {"B better", "A better", "nothing"}


def test_flips_are_told_by_majority_and_the_largest_first(tmp_path: Path) -> None:
    a, b = made_run(tmp_path / "a"), made_run(tmp_path / "b", seed=3, lift=0.4)
    flipped = compare_runs(a, b)[0].flipped
    assert flipped
    assert all((pair.a > 0.5) != (pair.b > 0.5) for pair in flipped)
    changes = [abs(pair.b - pair.a) for pair in flipped]
    assert changes == sorted(changes, reverse=True)
    assert not Pair("x", 0.5, 0.0).flipped


def test_problems_of_one_run_only_are_left_out_and_counted(tmp_path: Path) -> None:
    a, b = made_run(tmp_path / "a", problems=30), made_run(tmp_path / "b", problems=20)
    found = compare_runs(a, b)[0]
    assert (len(found.pairs), found.unpaired) == (20, 10)


def test_samples_that_a_later_start_made_are_no_longer_called_failed(tmp_path: Path) -> None:
    """Three of twenty samples failed. The next start made two of them, and was killed."""
    run = made_run(tmp_path / "a", problems=10, samples=2)
    traces, results = (run / "aime24" / name for name in ("traces.jsonl", "results.json"))
    traces.write_text("".join(traces.read_text().splitlines(keepends=True)[:-1]))
    stored = measurements(run)[0].results
    summary = stored["summary"] | {"samples": 17}
    write_json(results, stored | {"complete": False, "missing": 3, "failed": {"gone": 3}, "summary": summary})
    found = compare_runs(run, run)[0].incomplete
    assert found == [Incomplete("A", 19, 1, {}), Incomplete("B", 19, 1, {})]


def test_runs_without_a_common_benchmark_or_problem_are_refused(tmp_path: Path) -> None:
    a, b = made_run(tmp_path / "a"), made_run(tmp_path / "b", "math500")
    with pytest.raises(UserError, match="no benchmark in common"):
        compare_runs(a, b)
    results = measurements(a)[0].results
    for row in results["per_problem"]:
        row["gold"] = "another"
    other = made_run(tmp_path / "c")
    write_json(other / "aime24" / "results.json", results)
    with pytest.raises(UserError, match="no problem in common"):
        compare_runs(a, other)
    with pytest.raises(UserError, match="no run at"):
        compare_runs(a, tmp_path)


def test_a_run_that_was_killed_is_measured_from_its_traces(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a")
    whole = measurements(run)[0].results
    assert whole["summary"].pop("as_published"), "which a part of a run is not"
    (run / "aime24" / "results.json").unlink()
    found = measurements(run)[0].results
    assert found["summary"] == whole["summary"]
    assert found["per_problem"] == whole["per_problem"]
    assert found["complete"] is False
    halved = {**whole, "complete": False, "missing": 80}
    halved["summary"] = {**whole["summary"], "samples": 400, "accuracy": 0.1}
    write_json(run / "aime24" / "results.json", halved)
    found = measurements(run)[0].results
    assert (found["summary"], found["missing"]) == (whole["summary"], 0)
    assert found["settings"] == whole["settings"]


def test_a_benchmarks_own_scores_are_compared_and_so_is_what_it_makes_of_them(tmp_path: Path) -> None:
    a = made_run(tmp_path / "a", "bfcl-v3", problems=170, samples=1, categories=BFCL_V3)
    b = made_run(tmp_path / "b", "bfcl-v3", problems=170, samples=1, seed=1, lift=0.5, categories=BFCL_V3)
    (found,) = compare_runs(a, b)
    by_name = {score.name: score for score in found.scores}
    assert {*BFCL_V3, "non-live", "live", "multi-turn", "overall"} <= set(by_name)
    for run, side in ((a, "a"), (b, "b")):
        summary = measurements(run)[0].results["summary"]
        for name, score in by_name.items():
            assert getattr(score, side) == pytest.approx(summary["scores"][name]["value"])
    for score in found.scores:
        assert score.difference == pytest.approx(score.b - score.a)
        low, high = score.interval
        assert -1 <= low <= score.difference <= high <= 1
    overall, part = by_name["overall"], by_name["multi-turn"]
    assert overall.interval[0] > 0.1
    assert overall.interval[1] - overall.interval[0] < part.interval[1] - part.interval[0]
    console = Console(width=80)
    with console.capture() as captured:
        console.print(score_differences_table(found.name, found.scores))
    assert "overall" in captured.get()
    assert "B better" in captured.get()
    assert found.as_json()["scores"][0]["name"] == "simple"


def test_scores_of_problems_in_one_run_only_are_left_out(tmp_path: Path) -> None:
    a = made_run(tmp_path / "a", "bfcl-v3", problems=34, samples=1, categories=BFCL_V3)
    b = made_run(tmp_path / "b", "bfcl-v3", problems=10, samples=2, categories=BFCL_V3)
    (found,) = compare_runs(a, b)
    assert {score.name for score in found.scores if score.problems} == {
        *BFCL_V3[:10],
        "simple, all languages",
        "non-live",
    }


def test_a_killed_run_has_the_scores_that_are_made_of_others(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", "bfcl-v3", problems=34, samples=1, categories=BFCL_V3)
    whole = measurements(run)[0].results
    assert whole["summary"].pop("as_published"), "which a part of a run is not"
    (run / "bfcl-v3" / "results.json").unlink()
    found = measurements(run)[0].results
    assert "overall" in found["summary"]["scores"]
    assert found["summary"] == whole["summary"]
    assert found["per_problem"] == whole["per_problem"]


def test_two_benchmarks_of_one_run_are_compared_by_their_folders(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", "eval/sft")
    made_run(run, "eval/stage1", seed=1, lift=0.5)
    (found,) = compare_runs(run / "eval" / "sft", run / "eval" / "stage1")
    assert found.name == "sft – stage1"
    assert found.difference > 0.2
    with pytest.raises(UserError) as refused:
        compare_runs(run, run / "eval" / "stage1")
    assert "eval/sft, eval/stage1" in refused.value.hint


def test_no_name_of_a_benchmark_is_broken_in_a_narrow_terminal(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", "eval/training-problems")
    made_run(run, "eval/held-out-problems", seed=1, lift=0.5)
    found = compare_runs(run / "eval" / "training-problems", run / "eval" / "held-out-problems")
    twice = [*found, *found]
    for width, tables in ((80, 2), (200, 1)):
        console = Console(width=width, record=True, file=(tmp_path / "shown").open("w"))
        console.print(*comparison_tables(twice, console))
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

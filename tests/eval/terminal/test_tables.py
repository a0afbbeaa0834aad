"""The table that shows the paper's numbers beside a run's numbers."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from rstar2.eval.compare import Comparison, Pair, ScoreDifference
from rstar2.eval.progress import Progress
from rstar2.eval.results import Row, summarise
from rstar2.eval.run import EvalResult
from rstar2.eval.terminal.tables import (
    comparison_tables,
    flips_table,
    paper_table,
    problems_table,
    score_differences_table,
    scores_table,
    summaries_table,
    summary_lines,
)
from rstar2.eval.terminal.views import AgreementView


def summary(accuracy: float, **scores: tuple[float, float, float]) -> dict[str, Any]:
    return {
        "as_published": True,
        "samples": 10,
        "accuracy": accuracy,
        "interval_clustered": [accuracy - 0.1, accuracy + 0.1],
        "scores": {
            name: {"value": value, "interval": [low, high], "problems": 10}
            for name, (value, low, high) in scores.items()
        },
    }


def test_the_papers_numbers_stand_beside_the_quoted_score_of_each_benchmark() -> None:
    table = paper_table(
        [
            ("ifeval", summary(0.8)),
            ("bfcl-v3", summary(0.9, overall=(0.5, 0.4, 0.6))),
            ("ifbench", summary(0.1)),
            ("arena-hard", summary(0.9)),
        ]
    )
    assert table is not None
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    lines = [" ".join(line.split()) for line in captured.get().splitlines()]
    caption = next(number for number, line in enumerate(lines) if line.startswith("difference: "))
    assert lines[1:caption] == [
        "ifeval 83.4 % 80.0 % 70.0 – 90.0 % -3.4 [-13.4, +6.6]",
        "bfcl-v3, overall 60.8 % 50.0 % 40.0 – 60.0 % -10.8 [-20.8, -0.8]",
        # Every game was left out, so there is no win rate to compare with the paper's.
        "arena-hard 86.6 % – – – –",
    ]


def test_names_are_whole_in_a_terminal_of_80_columns() -> None:
    results = [
        ("gpqa-diamond", summary(0.4)),
        ("bfcl-v3", summary(0.9, overall=(0.5, 0.4, 0.6))),
        ("arena-hard", summary(0.9, **{"win rate": (1.0, 0.9, 1.0)})),
    ]
    table = paper_table(results)
    assert table is not None
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table)
    lines = [" ".join(line.split()) for line in captured.get().splitlines()]
    caption = next(number for number, line in enumerate(lines) if line.startswith("difference: "))
    assert lines[1:caption] == [
        "gpqa-diamond 60.9 % 40.0 % 30.0 – 50.0 % -20.9 [-30.9, -10.9]",
        "bfcl-v3, overall 60.8 % 50.0 % 40.0 – 60.0 % -10.8 [-20.8, -0.8]",
        "arena-hard, win 86.6 % 100.0 % 90.0 – 100.0 % +13.4 [+3.4, +13.4]",
        "rate",
    ]


def test_there_is_no_table_where_the_paper_has_no_number() -> None:
    assert paper_table([("ifbench", summary(0.5)), ("numbers", summary(0.5))]) is None
    # The run has no samples, or it did not run the benchmark as published.
    for run_summary in ({"accuracy": None, "samples": 0}, summary(0.5) | {"as_published": False}):
        assert paper_table([("aime24", run_summary)]) is None


def test_intervals_and_percentiles_say_what_they_are() -> None:
    rows = [Row(str(number), 0, "correct", "1", "answer", 7, 0, 0, 0, "", None, None) for number in range(9)]
    lines = summary_lines(summarise({row.problem_id: [row] for row in rows}))
    assert lines["tokens, 95th percentile"] == "7"
    assert {"  95 %, over problems", "  95 %, over repeats"} <= set(lines)


def test_every_figure_whose_label_does_not_say_what_it_is_is_explained_below_the_table() -> None:
    rows = [
        Row("a", sample, "correct", "1", "answer", 7, 2, 1, 0, "boxed", None, None) for sample in range(4)
    ]
    console = Console(width=80)
    with console.capture() as captured:
        console.print(summaries_table([("made", summarise({"a": rows}))], console))
    text = captured.get()
    assert max(map(len, text.splitlines())) <= 80
    figures, _, caption = text.partition("avg@n: ")
    words = " ".join(caption.split())
    for label, note in (
        ("  95 %, over repeats", "95 %: intervals of avg@n"),
        ("maj@n", "maj@n: share of problems"),
        ("pass@4", "pass@k: share of problems"),
        ("answers read by rule boxed", "read by rule: number of answers"),
        ("samples not verified", "not verified: neither correct nor wrong"),
        ("failed turns repaired later", "failed turns: turns with a failed call"),
    ):
        assert label in figures
        assert note in words


def test_the_average_so_far_has_its_interval() -> None:
    progress = Progress(
        done=10, total=20, resumed=0, correct=9, problems_done=10, problems=20, in_flight=2, tokens=0,
        tokens_per_s=0.0, calls_per_s=0.0, accuracy=0.9, interval=(0.708, 1.0), eta_s=None, trouble=None,
        outages=[],
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=200)
    AgreementView(console, console)(progress)
    assert isinstance(console.file, io.StringIO)
    assert "avg so far 90.0 % (95 %: 70.8 – 100.0)" in console.file.getvalue()


def test_scores_are_listed_with_their_intervals() -> None:
    table = scores_table("bfcl-v3", summary(0.5, live=(0.25, 0.2, 0.3))["scores"])
    assert table.row_count == 1


def test_names_and_answers_are_shown_as_they_are_whatever_is_in_brackets() -> None:
    odd, gold = "[/INST] [b]", "[a,b]"
    row = {"id": odd, "gold": gold, "samples": 2, "correct": 1, "accuracy": 0.5, "mean_tokens": 1.0}
    row |= {"calls_per_trace": 0.0, "no_answer": 0, "truncated": 0, "could_not_verify": 0}
    flip = Pair(odd, 0.0, 1.0)
    compared = Comparison(odd, 0.0, 1.0, 1.0, (0.1, 1.0), None, [flip], 0, [], [], [])
    score = ScoreDifference(odd, 0.0, 1.0, 1.0, (0.1, 1.0), 3)
    numbers = summarise({odd: [Row(odd, 0, "wrong", "1", "answer", 1, 0, 0, 0, "", None, None)]})
    narrow, wide = Console(width=60), Console(width=200)
    tables = [
        *(summaries_table([(odd, numbers)] * count, narrow) for count in (1, 4)),
        scores_table(odd, {odd: {"value": 0.5, "interval": [0.4, 0.6], "problems": 3}}),
        problems_table(EvalResult(odd, {}, [row, {**row, "gold": None}], complete=True)),
        *(table for console in (narrow, wide) for table in comparison_tables([compared] * 2, console)),
        score_differences_table(odd, [score]),
        flips_table(compared),
    ]
    for table in tables:
        with wide.capture() as captured:
            wide.print(table)
        assert odd in captured.get()
        assert (gold in captured.get()) == (table is tables[3])

"""Tests of a benchmark's scores on the report page, and of the paper's numbers beside a run's."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from support.eval.example_runs import BFCL_V3, write_run
from support.report.browser import Browser
from support.report.report_page import click, open_report, texts

from rstar2.eval.stored import measurements
from rstar2.files import write_json

pytestmark = pytest.mark.slow


def cells(browser: Browser, heading: str) -> list[list[str]]:
    """Returns the cells of a panel's table as a list of rows. The first row is the table's head."""
    script = (
        "const panel = [...document.querySelectorAll('.scores')].find((node) => "
        "node.querySelector('h2').innerText === arguments[0]); "
        "return [...panel.querySelectorAll('tr')].map((row) => [...row.children].map((cell) => cell.innerText))"
    )
    return [[str(text) for text in row] for row in browser.run(script, heading)]


def test_scores_and_the_papers_numbers_are_tables_with_intervals_and_data(
    browser: Browser, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "night", problems=8, samples=4)
    write_run(run, "bfcl-v3", problems=85, samples=1, seed=2, categories=BFCL_V3)
    write_run(run, "arena-hard", problems=6, samples=1, categories=("draws",))
    summaries = {part.name: part.results["summary"] for part in measurements(run)}
    open_report(browser, run)

    head, *rows = cells(browser, "The paper's numbers beside this run's")
    assert head == ["benchmark", "paper", "this run", "95 %", "difference", "95 %"]
    assert [row[:2] for row in rows] == [
        ["aime24", "80.6 %"],
        ["bfcl-v3, overall", "60.8 %"],
        # This run has no win rate, so nothing stands beside the paper's.
        ["arena-hard", "86.6 %"],
    ]
    overall = summaries["bfcl-v3"]["scores"]["overall"]
    percentage = f"{100 * overall['value']:.1f} %"
    assert rows[1][2] == percentage
    assert float(rows[1][4].replace("−", "-")) == pytest.approx(100 * overall["value"] - 60.8, abs=0.051)
    assert rows[2][2:] == ["–"] * 4
    assert any(percentage in text for text in texts(browser, ".tabs button"))

    click(browser, ".tabs button", "bfcl-v3")
    browser.wait("document.querySelectorAll('.scores').length === 2")
    head, *rows = cells(browser, "Scores of bfcl-v3")
    scores = summaries["bfcl-v3"]["scores"]
    assert [(row[0], row[1], row[4]) for row in rows] == [
        (name, f"{100 * score['value']:.1f} %", str(score["problems"])) for name, score in scores.items()
    ]
    assert texts(browser, ".card.main b") == [percentage]
    assert browser.errors() == []


def test_every_plot_and_table_of_scores_has_its_data_as_csv(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "night", "bfcl-v3", problems=34, samples=1, categories=BFCL_V3)
    open_report(browser, run)
    saved_scores = dict(
        browser.run(
            "return [...document.querySelectorAll('a[download]')].map((node) => "
            "[node.download, decodeURIComponent(node.href).split(',').slice(1).join(',')])"
        )
    )
    plots = texts(browser, ".plots h2")
    assert len(plots) == 3
    assert {f"{title}.csv" for title in [*plots, *texts(browser, ".scores h2")]} <= set(saved_scores)
    traces = measurements(run)[0].results["summary"]["samples"]
    lengths = list(csv.DictReader(io.StringIO(saved_scores["Length in tokens.csv"])))
    assert sum(int(row[kind]) for row in lengths for kind in ("correct", "wrong", "other")) == traces
    problems = list(csv.DictReader(io.StringIO(saved_scores["Accuracy by problem.csv"])))
    assert [row["id"] for row in problems] == [f"set-{number:03}" for number in range(34)]


@pytest.mark.parametrize("complete", [True, False])
def test_the_number_of_problems_that_were_left_out_is_a_card(
    browser: Browser, tmp_path: Path, complete: bool
) -> None:
    run = write_run(tmp_path / "run", "own", problems=3, samples=1)
    results = json.loads((run / "own" / "results.json").read_text())
    results["summary"]["left_out"] = 2
    write_json(run / "own" / "results.json", {**results, "complete": complete})
    open_report(browser, run)
    assert "2\nproblems left out" in texts(browser, ".card")

"""Tests of the report page on a telephone. At a width of 390 pixels, no page is wider than its window."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.eval.example_runs import BFCL_V3, write_run, write_staged_run, write_unfinished_run
from support.report.browser import Browser
from support.report.report_page import await_drawing, open_report, texts

from rstar2.files import write_json
from rstar2.loop.trace import TraceWriter, read_traces

pytestmark = pytest.mark.slow

WIDTH = 390
FIND_CUT = """
  const scrolls = (node) => node && (getComputedStyle(node).overflowX === "auto" || scrolls(node.parentElement));
  return [...document.querySelectorAll(".trace math, table")].filter((node) =>
    node.getBoundingClientRect().right > innerWidth && !scrolls(node.parentElement)).map((node) => node.tagName);
"""
"""Formulas and tables that are wider than the page, and that nobody can scroll to."""


@pytest.fixture
def narrow(browser: Browser) -> Iterator[Browser]:
    browser.resize(WIDTH, 844)
    yield browser
    browser.devtools("Emulation.clearDeviceMetricsOverride")


def wide_run(folder: Path) -> Path:
    """Creates a run whose names, problems, code and formulas are long and have no spaces."""
    write_run(folder, "a_benchmark_with_a_name_of_many_letters_" * 2, problems=3, samples=2)
    write_run(folder, "another_with_a_name_of_many_letters_" * 2, problems=2, samples=1)
    write_run(folder, "bfcl-v3", problems=17, samples=1, categories=BFCL_V3)
    traces = next(folder.glob("a_*/traces.jsonl"))
    trace_list = list(read_traces(traces))
    traces.unlink()
    long = "m" * 200
    with TraceWriter(traces) as writer:
        for trace in trace_list:
            for turn in trace.turns:
                turn.text = f"$${'x+' * 200}1$$ $\\frac{{{'y+' * 90}1}}{{2}}$ {long} {turn.text}"
                for call in turn.calls:
                    call.output = long
            more = {"problem_id": long + trace.problem_id, "problem": long, "extracted": long}
            writer.write(trace.model_copy(update=more))
    results = traces.parent / "results.json"
    results.unlink()
    write_json(results, {"complete": False, "model": {"name": f"/models/{long}"}, "summary": {"samples": 0}})
    return folder


def test_in_a_wide_window_formulas_of_a_line_wrap_and_displayed_ones_scroll(
    browser: Browser, tmp_path: Path
) -> None:
    write_run(tmp_path / "night", "aime", problems=1, samples=1)
    traces = next((tmp_path / "night").glob("*/traces.jsonl"))
    [trace] = read_traces(traces)
    traces.unlink()
    long = "+".join(f"x_{{{number}}}" for number in range(120))
    trace.turns[0].text = f"$${long}$$ ${long}$ \\({long}=0\\) \\[{long}=y\\] {trace.turns[0].text}"
    with TraceWriter(traces) as writer:
        writer.write(trace)
    browser.resize(1400, 900)
    open_report(browser, tmp_path / "night")
    browser.run("for (const fold of document.querySelectorAll('details')) fold.open = true")
    formulas = browser.run(
        "return [...document.querySelectorAll('.trace math')].filter((math) => "
        "math.getAttribute('alttext').length > 400).map((math) => [math.className === 'tml-display', "
        "math.scrollWidth > math.clientWidth, math.getBoundingClientRect().height > 60])"
    )
    browser.devtools("Emulation.clearDeviceMetricsOverride")
    assert sorted(formulas) == [[False, False, True]] * 2 + [[True, True, False]] * 2


def train_run(folder: Path) -> Path:
    write_staged_run(folder)
    write_json(folder / "config.json", {"kind": "train", "config": {"model": "/models/" + "m" * 200}})
    return folder


@pytest.mark.parametrize("make", [write_run, write_staged_run, train_run, write_unfinished_run, wide_run])
def test_no_page_scrolls_sideways_on_a_telephone(
    narrow: Browser, tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    open_report(narrow, make(tmp_path / ("a_long_name_of_a_run" * 5)))
    for tab in range(max(1, len(texts(narrow, ".tabs button")))):
        narrow.run("document.querySelectorAll('.tabs button')[arguments[0]]?.click()", tab)
        narrow.run("for (const fold of document.querySelectorAll('details')) fold.open = true")
        await_drawing(narrow)
        if texts(narrow, ".row"):
            narrow.run("document.querySelector('tbody tr[tabindex]')?.click()")  # the link to its problem
            await_drawing(narrow)
        wide = narrow.run(
            "return [...document.querySelectorAll('body *')].filter((node) => "
            "node.getBoundingClientRect().right > innerWidth + 1)"
            ".map((node) => `${node.tagName}.${node.getAttribute('class')}`).slice(0, 12)"
        )
        assert narrow.run("return document.documentElement.scrollWidth") <= WIDTH, wide
        assert narrow.run(FIND_CUT) == []
    assert narrow.errors() == []


def test_wide_tables_and_formulas_show_at_which_side_there_is_more(narrow: Browser, tmp_path: Path) -> None:
    open_report(narrow, wide_run(tmp_path / "night"))
    narrow.run("for (const fold of document.querySelectorAll('details')) fold.open = true")
    shadows = narrow.run(
        "return [...document.querySelectorAll('main *')].filter((node) => node.checkVisibility() && "
        "node.scrollWidth > node.clientWidth + 1 && getComputedStyle(node).overflowX === 'auto')"
        ".map((node) => [`${node.localName}.${node.getAttribute('class') ?? ''}`, "
        "getComputedStyle(node).backgroundAttachment])"
    )
    assert {name for name, _ in shadows} >= {"math.tml-display", "div."}, "formulas, and the table in a fold"
    assert [name for name, attachment in shadows if attachment != "local, local, scroll, scroll"] == []


def test_a_link_to_the_data_stands_beside_its_title(narrow: Browser, tmp_path: Path) -> None:
    open_report(narrow, write_staged_run(tmp_path))
    await_drawing(narrow)
    tops = narrow.run(
        "const head = [...document.querySelectorAll('.panel-head')].find((node) => "
        "node.textContent.startsWith('Mean tokens') && !node.querySelector('i'));"
        "return [...head.children].map((node) => node.getBoundingClientRect().top)"
    )
    assert len(tops) == 2
    assert abs(tops[0] - tops[1]) < 8


def test_plots_in_a_fold_scroll_with_the_page(narrow: Browser, tmp_path: Path) -> None:
    open_report(narrow, write_staged_run(tmp_path))
    narrow.run("for (const fold of document.querySelectorAll('details')) fold.open = true")
    await_drawing(narrow)
    heights = narrow.run(
        "const folded = document.querySelector('details .plots').parentElement;"
        "return [folded.scrollHeight, folded.clientHeight]"
    )
    assert heights[0] > 1000
    assert heights[0] <= heights[1] + 1

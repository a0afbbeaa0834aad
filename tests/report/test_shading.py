"""Tests of traces that are shaded by entropy on the report page, and of the panel with a run's analysis."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.eval.example_runs import write_run
from support.report.browser import Browser
from support.report.report_page import click, open_report, texts

from rstar2.analysis.stored import (
    FORKING,
    REFLECTION,
    TokenEntropies,
    read_entropies,
    write_entropies,
)
from rstar2.files import write_json
from rstar2.loop.trace import Trace, TraceWriter, read_traces
from rstar2.report.shading import shaded_traces

pytestmark = pytest.mark.slow

CHART = {
    "title": "aime24: entropy after a tool reply", "x": "tokens after a tool reply", "y": "nats", "unit": "",
    "table": "entropy_around", "marks": [], "usual": "a rise at the first token",
    "series": [{"name": "ok", "points": [[-1, 0.1], [0, 0.5, 0.4, 0.6], [1, 0.2]]},
               {"name": "failed", "points": [[-1, 0.1], [0, 0.9], [1, 0.3]]}],
}  # fmt: skip
TABLE = {"name": "calls_kinds", "title": "How calls ended", "caption": "share: of all calls.",
         "columns": ["kind", "calls", "share"],
         "rows": [["NameError, in full", 3, 0.25], ["ok", 9, None]]}  # fmt: skip


def _shade(trace: Trace) -> tuple[list[int], list[int]]:
    """Splits turns into invented tokens of four letters. Returns the length and the mark of each token. The first token
    of each turn is marked."""
    characters: list[int] = []
    marks: list[int] = []
    for number, turn in enumerate(trace.turns):
        sizes = [len(turn.text[at : at + 4]) for at in range(0, len(turn.text), 4)]
        sizes = (sizes + [0] * (turn.end - turn.start))[: turn.end - turn.start]
        characters += sizes
        marks += [REFLECTION if number else FORKING, *[0] * (len(sizes) - 1)]
    return characters, marks


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("shaded") / "night", problems=4, samples=2)
    path = folder / "aime24" / "traces.jsonl"
    shaded = [_shade(trace) for trace in read_traces(path)]
    sizes = np.array([len(characters) for characters, _ in shaded])
    entropy = np.tile([0.0, 0.5, 3.0], int(sizes.sum()) // 3 + 1)[: int(sizes.sum())].astype(np.float32)
    token_entropies = TokenEntropies(
        about={"source": "model", "bytes": path.stat().st_size},
        sizes=sizes,
        entropy=entropy,
        upper=None,
        characters=np.array([each for characters, _ in shaded for each in characters], dtype=np.uint16),
        marks=np.array([each for _, marks in shaded for each in marks], dtype=np.uint8),
    )
    write_entropies(path, token_entropies)
    write_json(folder / "analysis" / "analysis.json", {"tables": [TABLE], "charts": [CHART]})
    return folder


def test_a_switch_shades_the_tokens_and_stays_on_for_the_next_trace(browser: Browser, run: Path) -> None:
    open_report(browser, run)
    trace = next(read_traces(run / "aime24" / "traces.jsonl"))
    browser.wait("document.querySelector('.shade')")
    assert texts(browser, ".tokens") == []
    click(browser, ".shade")
    assert browser.run("return document.querySelector('.shade').getAttribute('aria-pressed')") == "true"
    result = browser.run("return [...document.querySelectorAll('.tokens')].map((node) => node.textContent)")
    assert result == [turn.text[: 4 * (turn.end - turn.start)] for turn in trace.turns]
    assert browser.run("return document.querySelector('.thought').checkVisibility()") is False
    levels = browser.run(
        "return [...document.querySelectorAll('.tokens .token')].slice(0, 3)"
        ".map((node) => node.style.getPropertyValue('--level'))"
    )
    assert levels == ["0%", "39%", "95%"]
    marks = browser.run(
        "return ['.forking', '.reflection'].map((name) => document.querySelectorAll(`.tokens ${name}`).length)"
    )
    assert marks == [1, len(trace.turns) - 1]
    browser.run("document.querySelector('.trace').replaceChildren()")
    click(browser, ".row[aria-current=false]")
    browser.wait("document.querySelectorAll('.tokens').length > 0")
    click(browser, ".shade")
    assert browser.run("return document.querySelector('.shaded').hidden") is True
    assert browser.errors() == []


def test_a_trace_of_which_no_tokens_are_known_is_not_shaded(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_bytes((run / "aime24" / "traces.jsonl").read_bytes())
    token_entropies = read_entropies(run / "aime24" / "traces.jsonl")
    assert token_entropies is not None
    write_entropies(
        path,
        replace(
            token_entropies,
            sizes=np.array([0, *token_entropies.sizes[:-2], token_entropies.sizes[-2:].sum()]),
        ),
    )
    assert [shading is None for _, shading in shaded_traces(path)] == [
        True,
        *[False] * (len(token_entropies.sizes) - 1),
    ]


def test_tokens_after_an_emoji_are_shaded_where_they_stand(browser: Browser, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "emoji", problems=1, samples=1)
    path = folder / "aime24" / "traces.jsonl"
    (trace,) = read_traces(path)
    text = "\U0001f642\U0001f642 so it is"
    turn = trace.turns[0].model_copy(update={"text": text, "start": 0, "end": 3})
    with TraceWriter(tmp_path / "traces.jsonl") as writer:
        writer.write(trace.model_copy(update={"turns": [turn]}))
    path.write_bytes((tmp_path / "traces.jsonl").read_bytes())
    entry = {"source": "model", "bytes": path.stat().st_size}
    ones, sizes = np.ones(3, dtype=np.float32), np.array([2, 3, 6], dtype=np.uint16)
    write_entropies(
        path, TokenEntropies(entry, np.array([3]), ones, None, sizes, np.zeros(3, dtype=np.uint8))
    )
    open_report(browser, folder)
    click(browser, ".shade")
    assert texts(browser, ".tokens .token") == [text[:2], text[2:5], text[5:]]


def test_a_trace_without_entropies_has_no_switch(browser: Browser, tmp_path: Path) -> None:
    open_report(browser, write_run(tmp_path / "plain", problems=2, samples=1))
    browser.wait("document.querySelector('.thought')")
    assert texts(browser, ".shade") == []
    assert not any("Inside" in text for text in texts(browser, "summary"))


def test_an_analysis_of_earlier_traces_says_so(browser: Browser, run: Path, tmp_path: Path) -> None:
    stale = tmp_path / "stale"
    shutil.copytree(run, stale)
    entry = {"paths": [".."], "bytes": {"../aime24/traces.jsonl": 1}}
    write_json(stale / "analysis" / "analysis.json", {"tables": [TABLE], "charts": [CHART], "traces": entry})
    for folder, is_stale in ((run, False), (stale, True)):
        open_report(browser, folder)
        click(browser, "summary", "Inside the traces")
        assert any("of earlier traces" in text for text in texts(browser, "summary")) == is_stale
        assert any("start `rstar2 analyze` again" in text for text in texts(browser, "details p")) == is_stale


def test_the_analysis_is_a_panel_of_plots_and_tables_each_with_its_data(browser: Browser, run: Path) -> None:
    open_report(browser, run)
    click(browser, "summary", "Inside the traces")
    browser.run("document.querySelectorAll('details').forEach((node) => { node.open = true; })")
    browser.wait("document.querySelectorAll('.plots.small circle').length === 6")
    cells = browser.run(
        "return [...document.querySelectorAll('details details td')].slice(0, 6).map((node) => node.textContent)"
    )
    assert "usual: a rise at the first token" in texts(browser, ".plots.small p")
    assert "share: of all calls." in texts(browser, "details details p")
    assert cells == ["NameError, in full", "3", "25.0 %", "ok", "9", "–"]
    saved_page = browser.run(
        "return [...document.querySelectorAll('a[download]')].map((node) => "
        "[node.download, decodeURIComponent(node.href.split(',', 2)[1])])"
    )
    assert saved_page[0][0] == f"{CHART['title']}.csv"
    assert saved_page[0][1].splitlines()[:3] == [
        "line,tokens after a tool reply,nats,low,high",
        "ok,-1,0.1",
        "ok,0,0.5,0.4,0.6",
    ]
    assert saved_page[1] == ["calls_kinds.csv", 'kind,calls,share\n"NameError, in full",3,0.25\nok,9,\n']
    assert browser.errors() == []

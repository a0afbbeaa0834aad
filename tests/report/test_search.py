"""Tests of the search box of the list of traces, which finds words in the packed text of every trace."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.eval.example_runs import write_run
from support.report.browser import Browser
from support.report.report_page import open_page, open_report, search_for, texts

from rstar2.files import read_json, write_json
from rstar2.loop.trace import Trace, TraceWriter, Turn, read_traces
from rstar2.report import write_report

pytestmark = pytest.mark.slow

WATCH = """
  const original = DecompressionStream;
  window.unpackings = [];  // of each: turns of the event loop so far, what the list's foot said
  window.open = 0;
  window.mostOpen = 0;
  window.turns = 0;
  window.onUnpacking = () => {};
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => { window.turns += 1; port2.postMessage(0); };
  port2.postMessage(0);
  window.DecompressionStream = function (kind) {
    window.open += 1;
    window.mostOpen = Math.max(window.mostOpen, window.open);
    window.unpackings.push([window.turns, document.querySelector(".count")?.innerText ?? ""]);
    queueMicrotask(window.onUnpacking);
    return new original(kind);
  };
  const json = Response.prototype.json;
  Response.prototype.json = function () {
    return json.call(this).finally(() => (window.open -= 1));
  };
"""


@pytest.fixture
def watched(browser: Browser) -> Iterator[Browser]:
    """A browser whose pages count the traces that they unpack."""
    script = browser.devtools("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
    yield browser
    browser.devtools("Page.removeScriptToEvaluateOnNewDocument", **script)


def match_count(browser: Browser) -> int:
    browser.wait("!document.querySelector('.count').innerText.includes('searched')")
    return int(texts(browser, ".count")[0].split()[0].replace(",", ""))


def test_words_in_thoughts_code_input_output_and_answers_are_found(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path, problems=10, samples=4)
    open_report(browser, run)
    traces = list(read_traces(run / "aime24" / "traces.jsonl"))

    def having(words: str) -> int:
        return sum(
            words in "".join(turn.text for turn in trace.turns).lower()
            or any(
                words in call.output.lower() or words in str(call.arguments).lower() for call in trace.calls
            )
            for trace in traces
        )

    for words in ("sympy.sovle", "nameerror: name", "check 4", "perfect squares", "3 4", "\\equiv 1$"):
        search_for(browser, words.upper())
        assert match_count(browser) == having(words) > 0, words
        browser.wait("document.querySelector('.trace .part')")
    search_for(browser, "set-003")
    assert match_count(browser) == 4
    search_for(browser, "words that nobody wrote")
    assert match_count(browser) == 0
    assert texts(browser, ".trace") == ["No trace fits the filter."]
    search_for(browser, "")
    assert match_count(browser) == 40
    assert browser.errors() == []


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of 10,000 traces. Only the last one has the word "needle"."""
    run = write_run(tmp_path_factory.mktemp("large"), "math500", problems=20, samples=1)
    trace = next(read_traces(run / "math500" / "traces.jsonl"))
    write_json(run / "many" / "results.json", read_json(run / "math500" / "results.json"))
    turn = Turn(text="Some words of a thought. " * 60, start=0, end=1)
    with TraceWriter(run / "many" / "traces.jsonl") as writer:
        for sample in range(9_980):
            writer.write(_with_turn(trace, sample, turn))
        writer.write(_with_turn(trace, 9_980, turn.model_copy(update={"text": "a needle"})))
    return write_report(run)


def _with_turn(trace: Trace, sample: int, turn: Turn) -> Trace:
    return trace.model_copy(update={"sample": sample, "turns": [turn]})


def test_a_search_of_ten_thousand_traces_unpacks_one_chunk_at_a_time_and_lets_the_page_work_between(
    watched: Browser, large: Path
) -> None:
    open_page(watched, f"{large.as_uri()}#1")
    before = watched.run("return unpackings.length")
    watched.run("window.mostOpen = 0")
    search_for(watched, "needle")
    assert match_count(watched) == 1
    unpackings = watched.run("return unpackings")[before:]
    chunks = watched.run("return document.querySelectorAll('[id^=chunk-]').length")
    assert chunks > 20
    assert chunks - 1 <= len(unpackings) <= chunks + 2, "each chunk once, and the opened trace again"
    assert watched.run("return mostOpen") <= 2, "one for the search, one for the trace on the page"
    turns = [turn for turn, _ in unpackings]
    assert all(later > earlier for earlier, later in itertools.pairwise(turns)), turns
    progress = [int(text.split("searched ")[1].split()[0].replace(",", "")) for _, text in unpackings[:-2]]
    assert progress == sorted(set(progress)), progress
    assert watched.run("return document.querySelectorAll('.row').length") == 1


def test_other_words_end_a_search_that_is_under_way(watched: Browser, large: Path) -> None:
    open_page(watched, f"{large.as_uri()}#1")
    chunks = watched.run("return document.querySelectorAll('[id^=chunk-]').length")
    before = watched.run("return unpackings.length")
    # Each search except the last one is still running when the next words come.
    watched.run("""
      const input = document.querySelector(".filters input");
      const waiting = ["n", "ne", "nee", "need", "needle"];
      window.onUnpacking = () => {
        const words = waiting.shift();
        if (words === undefined) return;
        input.value = words;
        input.dispatchEvent(new Event("input"));
      };
      onUnpacking();
    """)
    watched.wait("document.querySelector('.filters input').value === 'needle'")
    assert match_count(watched) == 1
    assert watched.run("return unpackings.length") - before < 2 * chunks
    assert watched.errors() == []

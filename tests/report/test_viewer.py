"""Tests of a run's report page in a real browser without a network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.eval.example_runs import write_run, write_staged_run, write_unfinished_run
from support.report.browser import Browser
from support.report.report_page import all_tooltips, await_drawing, click, open_page, texts

from rstar2.data.problem import Problem
from rstar2.eval.methods.chat import Reply, answer_text, trace_of
from rstar2.files import write_json
from rstar2.loop.trace import Trace, TraceWriter, Turn, read_traces
from rstar2.loop.turns.tags import read_turn
from rstar2.report import write_report

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two benchmarks with its report.html. Tests only read it."""
    folder = write_run(tmp_path_factory.mktemp("run") / "night")
    write_run(folder, "math500", problems=100, samples=2, seed=1)
    write_report(folder)
    return folder


@pytest.fixture
def page(browser: Browser, run: Path) -> Browser:
    """A browser that has just opened the run's page."""
    open_page(browser, (run / "report.html").as_uri())
    return browser


def test_the_page_draws_numbers_plots_and_traces_without_an_error_or_a_request(page: Browser) -> None:
    assert page.errors() == []
    assert page.run("return performance.getEntriesByType('resource').length") == 0
    assert len(texts(page, ".tabs button")) == 2
    assert any("avg@16" in text for text in texts(page, ".card"))
    assert page.run("return document.querySelectorAll('.plots svg').length") == 3
    assert page.run("return document.querySelectorAll('.plots .wide svg .hit').length") == 30
    assert "480 of 480 traces" in texts(page, ".count")[0]


def test_the_numbers_on_the_page_are_those_of_the_traces(page: Browser, run: Path) -> None:
    traces = list(read_traces(run / "aime24" / "traces.jsonl"))
    accuracy = 100 * sum(trace.correct for trace in traces) / len(traces)
    assert f"{accuracy:.1f}" in texts(page, ".card.main b")[0]
    chips = texts(page, ".chips button")
    assert f"correct {sum(trace.correct for trace in traces)}" in chips
    assert f"failed calls {sum(trace.failed_calls > 0 for trace in traces)}" in chips


def test_thought_code_result_and_answer_look_different(page: Browser, run: Path) -> None:
    first_sample = next(
        trace
        for trace in read_traces(run / "aime24" / "traces.jsonl")
        if trace.failed_calls and trace.correct and len(trace.calls) > trace.failed_calls
    )
    page.open(f"{(run / 'report.html').as_uri()}#0/{first_sample.problem_id}/{first_sample.sample}")
    page.wait("document.body.dataset.ready && document.querySelector('.trace .answer')")
    looks = page.run(
        "return ['thought', 'code', 'result', 'answer'].map((kind) => {"
        "const style = getComputedStyle(document.querySelector('.trace .' + kind)); "
        "return [style.backgroundColor, style.borderLeftColor].join()})"
    )
    assert len(set(looks)) == 4
    labels = {label.split("\n")[0].split()[0].lower() for label in texts(page, ".trace .part .label")}
    assert {"thought", "python", "result", "answer"} <= labels
    assert "correct" in texts(page, ".trace .verdict strong")[0].lower()
    statuses = page.run("return [...document.querySelectorAll('.result')].map((n) => n.dataset.status)")
    assert statuses == [call.status for call in first_sample.calls]
    assert (
        page.run("return document.querySelectorAll('.trace .result.failed').length")
        == first_sample.failed_calls
    )
    assert [text.strip() for text in texts(page, ".trace .code pre:first-of-type")] == [
        (call.arguments or {})["code"].strip() for call in first_sample.calls
    ]


def test_a_trace_that_the_format_ended_says_why(browser: Browser, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", problems=1, samples=2)
    first, second = read_traces(folder / "aime24" / "traces.jsonl")
    with TraceWriter(folder / "aime24" / "new.jsonl") as writer:
        writer.write(first.model_copy(update={"finish": "format", "cause": "no role tool"}))
        writer.write(second.model_copy(update={"finish": "format"}))
    (folder / "aime24" / "new.jsonl").replace(folder / "aime24" / "traces.jsonl")
    page = write_report(folder).as_uri()
    for trace, end in ((first, "s · ended by the format: no role tool"), (second, "s · ended by the format")):
        open_page(browser, f"{page}#0/{trace.problem_id}/{trace.sample}")
        assert texts(browser, ".trace .facts")[0].endswith(end)


def test_filters_search_order_and_keys_choose_what_is_listed(page: Browser, run: Path) -> None:
    traces = list(read_traces(run / "aime24" / "traces.jsonl"))
    click(page, ".chips button", "wrong")
    wrong = sum(trace.verdict == "wrong" for trace in traces)
    assert f"{wrong} of 480" in texts(page, ".count")[0]
    page.wait("document.querySelector('.trace .verdict').dataset.tone === 'wrong'")
    click(page, ".chips button", "wrong")
    page.run(
        "const select = document.querySelector('.filters select'); select.value = 'tokens'; "
        "select.dispatchEvent(new Event('change'))"
    )
    longest = max(trace.tokens for trace in traces)
    assert f"{longest:,} tok" in texts(page, ".row")[0]
    page.run(
        "const input = document.querySelector('.filters input'); input.value = 'set-017'; "
        "input.dispatchEvent(new Event('input'))"
    )
    assert "16 of 480" in texts(page, ".count")[0]
    page.wait("document.querySelector('.row[aria-current=true]')")
    first = texts(page, ".row[aria-current=true]")
    page.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'j', bubbles: true}))")
    page.wait("document.querySelectorAll('.row')[1].getAttribute('aria-current') === 'true'")
    assert texts(page, ".row[aria-current=true]") != first


def test_a_bar_of_the_plot_leads_to_the_problems_traces(page: Browser) -> None:
    click(page, ".plots .wide svg .hit[data-problem='set-006']")
    assert "16 of 480" in texts(page, ".count")[0]
    assert all("set-006 " in row for row in texts(page, ".row .what"))


def test_the_other_benchmark_is_one_click_away(page: Browser) -> None:
    click(page, ".tabs button", "math500")
    assert "200 of 200 traces" in texts(page, ".count")[0]
    assert page.errors() == []


def test_right_and_wrong_differ_by_a_sign_and_stripes_too(page: Browser) -> None:
    sign = "getComputedStyle(node, '::before').content"
    signs = page.run(
        "return Object.fromEntries([...document.querySelectorAll('.row')]"
        f".map((row) => {{ const node = row.querySelector('.dot'); return [row.dataset.tone, {sign}]; }}))"
    )
    assert signs["correct"] == '"✓"'
    assert signs["wrong"] == '"✗"'
    assert len(set(signs.values())) == len(signs)
    for selector in (".chips button[data-tone=wrong]", ".trace .verdict strong"):
        assert page.run(f"const node = document.querySelector(arguments[0]); return {sign}", selector) in {
            '"✓"',
            '"✗"',
        }
    striped = page.run(
        "return [...document.querySelectorAll('.plots svg')].map((plot) => plot.querySelectorAll"
        "('[fill=\"url(#stripes)\"]').length === plot.querySelectorAll('[fill=\"var(--series-2)\"]').length)"
    )
    assert striped == [False, True, True]  # in the first chart, the rest of each bar is wrong answers


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_are_readable_in_light_and_dark(page: Browser, run: Path, theme: str) -> None:
    page.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
    open_page(page, (run / "report.html").as_uri())
    # Checks WCAG's contrast between every text and its nearest painted background, in the viewer and the cards.
    lowest = page.run("""
      const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
      const light = (color) => { const [r, g, b] = rgb(color).map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
      const behind = (node) => { while (node) { const color = getComputedStyle(node).backgroundColor; if (rgb(color).length < 4 || rgb(color)[3] === 1) return color; node = node.parentElement; } return "rgb(255,255,255)"; };
      let worst = [99, ""];
      for (const node of document.querySelectorAll(".card span, .card b, .row *, .trace *, .tabs button, td, th")) {
        if (!node.innerText?.trim() || node.children.length || !node.checkVisibility()) continue;
        const [a, b] = [light(getComputedStyle(node).color), light(behind(node))].sort((x, y) => y - x);
        const contrast = (a + 0.05) / (b + 0.05);
        if (contrast < worst[0]) worst = [contrast, node.className + ": " + node.innerText.slice(0, 40)];
      }
      return worst;
    """)  # noqa: E501
    assert lowest[0] >= 3.0, lowest


def test_markup_in_traces_stays_text(browser: Browser, tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=\"document.title='owned'\"><!-- <!-- data --> /* script */ &amp; \u2028 \ud800"
    problem = Problem("<b>x</b>", f"say {evil}", "1")
    trace = Trace(
        problem_id=problem.id,
        problem=problem.problem,
        gold="1",
        prompt_ids=[1],
        response_ids=[1],
        response_mask=[1],
        turns=[
            Turn(
                text=f"{evil.encode(errors='replace').decode()}</reason><answer>{evil[:-1]}</answer>",
                start=0,
                end=1,
            )
        ],
        finish="answer",
        verdict="wrong",
        extracted=evil[:40],
        rule="text",
    )
    write_json(tmp_path / "config.json", {"kind": "eval", "config": {"name": evil[:-1]}})
    with TraceWriter(tmp_path / "x" / "traces.jsonl") as writer:
        writer.write(trace.model_copy(update={"problem": problem.problem[:-1]}))
    browser.open(write_report(tmp_path).as_uri())
    browser.wait("document.querySelector('.trace .answer')")
    assert browser.run("return document.title") != "owned"
    assert browser.run("return document.querySelectorAll('main img').length") == 0
    assert "onerror" in texts(browser, ".trace .answer .body")[0]
    assert browser.errors() == []


def test_a_sample_that_was_asked_otherwise_shows_what_it_was_asked(browser: Browser, tmp_path: Path) -> None:
    write_run(tmp_path, problems=1, samples=1)
    (first,) = read_traces(tmp_path / "aime24" / "traces.jsonl")
    second = {"sample": 1, "problem": "(A) tin $x^2$ (B) iron", "gold": "B"}
    with TraceWriter(tmp_path / "aime24" / "traces.jsonl") as writer:
        writer.write(first.model_copy(update=second))
    page = write_report(tmp_path).as_uri()
    for sample, (text, gold) in enumerate((("Problem 0.", first.gold), ("(A) tin", "B"))):
        browser.open("about:blank")
        browser.open(f"{page}#0/{first.problem_id}/{sample}")
        browser.wait("document.body.dataset.ready && document.querySelector('.trace .problem')")
        assert texts(browser, ".trace .problem")[0].startswith(text)
        assert texts(browser, ".trace .verdict code")[1] == gold
    assert browser.run("return document.querySelectorAll('.trace .problem math').length") == 1
    assert browser.errors() == []


def test_a_chat_reply_is_shown_as_what_it_is_and_a_long_answer_by_its_beginning(
    browser: Browser, tmp_path: Path
) -> None:
    gold = "Their answer. " * 200
    answers = (
        "<think>Let me see.</think>\n\nRoses. " + "And so on. " * 100,
        "Plain words.",
        "Hm.</think>So.",
    )
    write_json(tmp_path / "config.json", {"kind": "eval", "config": {}})
    with TraceWriter(tmp_path / "arena-hard" / "traces.jsonl") as writer:
        for sample, completion in enumerate(answers):
            turn = read_turn(completion)
            reply = Reply({"role": "assistant", "content": completion}, "stop", 5, 700, written=turn)
            trace = trace_of(Problem("q", "Write a poem.", gold), sample, [reply], 3.0)
            writer.write(
                trace.model_copy(
                    update={"extracted": answer_text(completion), "verdict": "invalid", "rule": "none"}
                )
            )
    page = write_report(tmp_path).as_uri()
    kinds = [["thought", "text"], ["text"], ["thought", "text"]]
    for sample, labels in enumerate(kinds):
        open_page(browser, f"{page}#0/q/{sample}")
        result = browser.run(
            "return [...document.querySelectorAll('.part .label')].map((n) => n.textContent)"
        )
        assert result == labels
        assert texts(browser, ".trace .turn") == ["turn 1"], "no server reported its tokens"
        assert "700 tokens" in texts(browser, ".trace .facts")[0]
    open_page(browser, page)
    answer, right = texts(browser, ".trace .verdict code")
    assert all(len(text) < 110 and text.endswith("…") for text in (answer, right))
    whole = browser.run("return [...document.querySelectorAll('.trace .verdict code')].map((n) => n.title)")
    assert whole == [answer_text(answers[0]), gold]
    assert texts(browser, ".trace .verdict strong")[0].lower() == "could not verify (gold answer or scorer)"
    assert "<think>" not in texts(browser, ".trace")[0]
    assert browser.errors() == []


def test_a_malformed_address_shows_the_page_and_another_is_followed(page: Browser, run: Path) -> None:
    open_page(page, f"{(run / 'report.html').as_uri()}#50%")
    assert "480 of 480 traces" in texts(page, ".count")[0]
    page.run("location.hash = '#1/set-003/1'")
    page.wait("document.querySelector('.trace .sample').innerText.startsWith('set-003, sample 2')")
    assert "200 of 200 traces" in texts(page, ".count")[0]
    assert page.errors() == []


def test_verdicts_that_are_called_the_same_are_chosen_together(browser: Browser, tmp_path: Path) -> None:
    write_run(tmp_path, problems=1, samples=1)
    (first,) = read_traces(tmp_path / "aime24" / "traces.jsonl")
    with TraceWriter(tmp_path / "aime24" / "traces.jsonl") as writer:
        for sample, (verdict, rule) in enumerate(
            (
                ("timeout", "deadline"),
                ("unparsed", "not verified: not understood"),
                ("unparsed", "not verified: an option's letter, but the gold answer is not an option"),
            ),
            1,
        ):
            update = {"sample": sample, "verdict": verdict, "rule": rule, "extracted": "x"}
            writer.write(first.model_copy(update=update))
    open_page(browser, write_report(tmp_path).as_uri())
    assert texts(browser, ".chips button")[:3] == [
        "correct 1", "could not verify (deadline) 1", "could not verify (not understood) 2",
    ]  # fmt: skip
    click(browser, ".chips button", "could not verify (not understood) 2")
    assert "2 of 4 traces" in texts(browser, ".count")[0]


def test_plots_take_any_number_of_traces(page: Browser) -> None:
    formulas = page.run(
        "const rows = Array.from({length: 300000}, (_, n) => ({value: n % 7, verdict: 'wrong'})); "
        "return [lengthPlot(rows), toolCallPlot(rows)].map((node) => node.querySelector('h2').textContent)"
    )
    assert formulas == ["Length in tokens", "Tool calls per trace"]


def test_a_staged_run_shows_its_phases_and_charts(browser: Browser, tmp_path: Path) -> None:
    write_staged_run(tmp_path)
    open_page(browser, write_report(tmp_path).as_uri())
    assert [text.split("\t")[0].strip() for text in texts(browser, ".phases tbody tr")] == [
        "sft",
        "stage1",
        "stage2",
    ]
    titles = texts(browser, ".plots h2")
    assert {"Failed calls in correct traces", "Failed calls in correct traces in training"} <= set(titles)
    assert len(titles) == len(set(titles))
    assert "plain GRPO" in texts(browser, ".legend span")
    assert browser.run("return document.querySelectorAll('.plots.small svg circle').length") == 9 + 3 * 50
    assert browser.errors() == []


def test_a_measurement_that_no_phase_has_is_no_plot(browser: Browser, tmp_path: Path) -> None:
    write_staged_run(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    for phase in summary["phases"]:
        phase["failed_call_ratio_correct"] = None
    write_json(tmp_path / "summary.json", summary)
    open_page(browser, write_report(tmp_path).as_uri())
    titles = texts(browser, ".plots h2")
    assert "Failed calls in correct traces" not in titles
    assert "Failed calls in correct traces in training" in titles, "the plot over steps"
    assert titles.count("Mean tokens") == 1
    assert browser.errors() == []


def test_a_run_without_traces_still_opens(browser: Browser, tmp_path: Path) -> None:
    write_json(tmp_path / "config.json", {"kind": "train", "config": {"stage": 1}})
    open_page(browser, write_report(tmp_path).as_uri())
    assert browser.errors() == []


def test_many_traces_are_unpacked_and_drawn_only_as_they_are_looked_at(
    browser: Browser, tmp_path: Path
) -> None:
    write_run(tmp_path, "math500", problems=100, samples=20)
    page = write_report(tmp_path)
    # Counts the parts that the page unpacks, from its first script on.
    count = (
        "const original = DecompressionStream; window.unpacked = 0; "
        "window.DecompressionStream = function (kind) { window.unpacked += 1; return new original(kind); }"
    )
    script = browser.devtools("Page.addScriptToEvaluateOnNewDocument", source=count)
    browser.open(page.as_uri())
    browser.wait("document.body.dataset.ready && document.querySelector('.trace .part')")
    assert "2,000 of 2,000 traces" in texts(browser, ".count")[0]
    chunks = browser.run("return document.querySelectorAll('[id^=chunk-]').length")
    assert chunks > 6
    assert browser.run("return unpacked") == 3, "the head, the index and the chunk of the first trace"
    assert browser.run("return document.querySelectorAll('.row').length") < 100
    browser.run("document.querySelector('.list').scrollTop = 1e9")
    browser.wait("[...document.querySelectorAll('.row')].at(-1).offsetTop === 1999 * 46")
    browser.run("[...document.querySelectorAll('.row')].at(-1).click()")
    browser.wait("document.querySelector('.trace .problem').innerText.startsWith('Problem 99.')")
    assert browser.run("return unpacked") == 4
    assert browser.run("return document.querySelectorAll('.row').length") < 100
    browser.devtools("Page.removeScriptToEvaluateOnNewDocument", **script)


@pytest.mark.parametrize("make", [write_run, write_staged_run, write_unfinished_run])
def test_every_fold_tab_trace_and_tooltip_shows_values(
    browser: Browser, tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    folder = make(tmp_path / "run")
    write_run(folder, "math500", problems=4, samples=2, seed=1)
    open_page(browser, write_report(folder).as_uri())
    visible_texts = []
    facts = ""
    for tab in range(len(texts(browser, ".tabs button"))):
        browser.run("document.querySelectorAll('.tabs button')[arguments[0]].click()", tab)
        browser.run("for (const fold of document.querySelectorAll('details')) fold.open = true")
        await_drawing(browser)
        facts += "\n".join(texts(browser, "dl"))
        visible_texts += [*texts(browser, "body"), *(tooltips := all_tooltips(browser))]
        assert all(tooltips)
        for row in range(browser.run("return Math.min(8, document.querySelectorAll('.row').length)")):
            browser.run(
                "document.querySelector('.trace').replaceChildren(); "
                "document.querySelectorAll('.row')[arguments[0]].click()",
                row,
            )
            browser.wait("document.querySelector('.trace .problem')")
            visible_texts += texts(browser, ".trace")
    assert "settings.temperature\n0.6" in facts
    assert "Configuration of the run" in visible_texts[0]
    for text in visible_texts:
        assert not re.search(r"\[object|undefined|NaN|\bnull, |Infinity", text), text
    assert browser.errors() == []

"""Tests that the page shows the LaTeX of problems and traces as formulas. LaTeX that cannot be shown stays text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.eval.example_runs import write_run
from support.report.browser import Browser
from support.report.report_page import open_report, texts

from rstar2.loop.trace import ToolCall, TraceWriter, Turn, read_traces
from rstar2.report.formulas import with_formulas


def sources(text: str) -> list[str]:
    """Returns the parts of a text that the page tries to show as formulas."""
    rich = with_formulas(text)
    return [] if isinstance(rich, str) else [piece[0] for piece in rich if isinstance(piece, list)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"let $x^2$ be", ["$x^2$"]),
        (r"$$\sum_{i=1}^n i$$ and \(k\) and \[y\]", [r"$$\sum_{i=1}^n i$$", r"\(k\)", r"\[y\]"]),
        (r"so \boxed{\frac{1}{2}}.", [r"\boxed{\frac{1}{2}}"]),
        (r"$\boxed{3}$", [r"$\boxed{3}$"]),
        ("it costs $5 and $10", []),
        (r"\$x$ is a price", []),
        ("$ x$ has a space, $x\n\ny$ a paragraph", []),
        (r"\boxed{open", []),
        ("$" + "x" * 3000 + "$", []),
    ],
)
def test_delimited_latex_is_apart_from_the_text(text: str, expected: list[str]) -> None:
    assert sources(text) == expected
    rich = with_formulas(text)
    pieces = [rich] if isinstance(rich, str) else rich
    assert "".join(piece if isinstance(piece, str) else piece[0] for piece in pieces) == text


@pytest.mark.parametrize("piece", ["$a ", "\\(", "\\[", "\\boxed{", "\\boxed{{", "$$", "{", "\\", "$a\n"])
def test_hostile_text_is_read_once(piece: str) -> None:
    # A pattern that reads a text again from each place would not end within the test's limit.
    assert "".join(map("".join, with_formulas(piece * 60_000))) == piece * 60_000


@pytest.fixture
def page(browser: Browser, tmp_path: Path) -> Browser:
    """A browser with an open page, whose functions the tests call."""
    open_report(browser, write_run(tmp_path, problems=1, samples=1))
    return browser


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "expected_text", "rows"),
    [
        (r"$\frac{a}{2} \le 3$", "a2≤3", 0),
        (r"\(\sqrt[3]{x}\)", "x3", 0),
        (r"\boxed{\frac{1}{2}}", "12", 0),
        (r"$\begin{aligned}a&=b\\[2pt]c&=d\end{aligned}$", "a=bc=d", 2),
        (r"\[\begin{align}a&=b\\c&=d\end{align}\]", "a=bc=d", 2),
        (r"$\operatorname*{lcm}(4, 6) = \cancel{12}$", "lcm(4,6)=12", 0),
        (r"$n \equiv 3 \pmod{7}$", "n≡3(mod7)", 0),
    ],
)
def test_the_page_turns_latex_into_mathml(page: Browser, source: str, expected_text: str, rows: int) -> None:
    text, row_count = page.run(
        "const node = formulaNode(arguments[0]); "
        "return [node.textContent, node.querySelectorAll('mtr').length]",
        source,
    )
    assert re.sub(r"[\s\u2000-\u200b\u2061-\u2064]", "", text) == expected_text
    assert row_count == rows


@pytest.mark.slow
def test_what_is_no_latex_stays_text(page: Browser) -> None:
    unknown = [
        r"$\unheardof{x}$",
        r"$\frac{1$",
        r"$\begin{unheardof}a&b\\c\end{unheardof}$",
        "$" + "{" * 990 + "x" + "}" * 980 + "$",
        r"$\def\a{\a\a}\a$",
    ]
    assert page.run("return arguments[0].map(formulaNode)", unknown) == [None] * len(unknown)
    assert page.run("return textNodes(['a ', [arguments[0]], ' b'])", unknown[0]) == ["a ", unknown[0], " b"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "latex",
    [
        r"\href{javascript:alert(1)}{x}",
        r"\includegraphics{https://example.com/a.png}",
        r"\style{position:fixed;inset:0}{x}",
        r"\class{panel}{x}",
        r"\id{page}{x}",
        r"\color{red}{x}",
        r"\colorbox{red}{x}",
        r"\textcolor{red}{x}",
        r"\rule{99em}{99em}x",
        r"\rule{9999px}{9999px}x",
        r"\hspace{9999em}x",
        r"\hspace{-9999em}x",
        r"\raisebox{-999em}{x}",
        r"\kern-9999pt x",
        r"\genfrac(){999em}0ab",
        r"\def\arraystretch{9999}\begin{array}{c}x\\y\end{array}",
        r"\text{<img src=x onerror=alert(1)>}",
    ],
)
def test_a_formula_carries_no_link_colour_or_size_that_covers_the_page(page: Browser, latex: str) -> None:
    attributes, tags, box = page.run(
        "const node = formulaNode(`$${arguments[0]}$`); if (!node) return [[], [], null]; "
        "document.body.append(node); const {width, height} = node.getBoundingClientRect(); node.remove(); "
        "const all = [...node.querySelectorAll('*')]; "
        "return [all.flatMap((each) => [...each.attributes].map(({name, value}) => [name, value])), "
        "all.map((each) => each.localName), [width, height]]",
        latex,
    )
    assert not {"href", "src", "id", "mathcolor", "mathbackground"} & {name for name, _ in attributes}
    assert not {"a", "img", "script"} & set(tags)
    assert not [
        value for name, value in attributes if name != "alttext" and re.search("red|fixed|999|panel", value)
    ]
    assert box is None or (box[0] < 800 and box[1] < 200)


@pytest.mark.slow
def test_only_the_formulas_of_the_open_trace_are_drawn(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path, problems=1, samples=3)
    path = run / "aime24" / "traces.jsonl"
    first, *others = read_traces(path)
    path.unlink()
    many = Turn(text=" ".join(rf"$x_{{{number}}}$" for number in range(1000)), start=0, end=1)
    with TraceWriter(path) as writer:
        for trace in (first, *(other.model_copy(update={"turns": [many]}) for other in others)):
            writer.write(trace)
    script = browser.devtools(
        "Page.addScriptToEvaluateOnNewDocument",
        source="window.rendered = 0; addEventListener('DOMContentLoaded', () => { const render = temml.render; "
        "temml.render = (...all) => { window.rendered += 1; return render(...all); }; });",
    )
    open_report(browser, run)
    before = browser.run("return rendered")
    browser.run("document.querySelectorAll('.row')[1].click()")
    browser.wait("document.querySelectorAll('.trace .part math').length === 1000")
    assert browser.run("return rendered") - before < 1100
    browser.devtools("Page.removeScriptToEvaluateOnNewDocument", **script)


@pytest.mark.slow
def test_formulas_are_drawn_in_problems_thoughts_and_answers_and_not_in_code_or_output(
    browser: Browser, tmp_path: Path
) -> None:
    run = write_run(tmp_path, problems=1, samples=1)
    path = run / "aime24" / "traces.jsonl"
    (trace,) = read_traces(path)
    call = ToolCall(name="python", arguments={"code": "print('$x^2$')"}, status="ok", output="$x^2$")
    thought = (
        r"Let $\frac{1}{2}$ be <b>\(a<b\)</b>, $\unheardof$ and $<img src=x onerror=alert(1)>$.</reason>"
    )
    turns = [
        Turn(text=f"{thought}<tool_call>x</tool_call>", start=0, end=1, calls=[call]),
        Turn(text=r"<answer>\boxed{\frac{3}{4}}</answer>", start=1, end=2),
    ]
    path.unlink()
    with TraceWriter(path) as writer:
        writer.write(trace.model_copy(update={"problem": r"Find \[x_1^2\] for $n$.", "turns": turns}))
    open_report(browser, run)
    browser.wait("document.querySelector('.trace .answer')")
    formulas = browser.run(
        "const all = (part) => [...document.querySelectorAll(`.trace ${part} math`)]; "
        "return ['.problem', '.thought', '.answer', '.code', '.result'].map((part) => "
        "all(part).map((math) => [math.getAttribute('alttext'), math.parentNode.title, "
        "math.namespaceURI.endsWith('MathML') && math.getBoundingClientRect().width > 3]))"
    )
    sources_by_part = [[source for source, _, _ in part] for part in formulas]
    assert sources_by_part[0] == [r"\[x_1^2\]", "$n$"]
    assert sources_by_part[1][:2] == [r"$\frac{1}{2}$", r"\(a<b\)"]
    assert sources_by_part[2] == [r"\boxed{\frac{3}{4}}"]
    assert sources_by_part[3:] == [[], []]
    assert all(source == title and visible for part in formulas for source, title, visible in part)
    assert r"$\unheardof$" in texts(browser, ".trace .thought")[0]
    assert browser.run("return document.querySelectorAll('main img, .trace b').length") == 0
    box = browser.run(
        "return Math.max(...[...document.querySelectorAll('.answer math *')]"
        ".map((node) => parseFloat(getComputedStyle(node).borderTopWidth)))"
    )
    assert box >= 1
    assert browser.errors() == []

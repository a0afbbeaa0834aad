"""LaTeX in problems and traces is shown as formulas; what cannot be shown stays text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.eval.made_runs import made_run
from support.report.browser import Browser
from support.report.report_page import open_report, texts

from rstar2.loop.trace import ToolCall, TraceWriter, Turn, read_traces
from rstar2.report import formulas
from rstar2.report.formulas import with_formulas


def sources(text: str) -> list[str]:
    """The LaTeX that is shown as formulas."""
    rich = with_formulas(text)
    return [piece[0] for piece in rich if isinstance(piece, list)] if isinstance(rich, list) else []


def leaves(tree: list[Any]) -> str:
    return "".join(child if isinstance(child, str) else leaves(child) for child in tree[2:])


def tags(tree: list[Any]) -> list[str]:
    return [tree[0], *(tag for child in tree[2:] if isinstance(child, list) for tag in tags(child))]


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
        (r"$\unheardof{x}$", []),
        (r"$\frac{1$", []),
        (r"\boxed{open", []),
        (r"$\cancel{3}$", []),
        (
            r"$\begin{aligned}a&=b\\[2pt]c&=d\end{aligned}$",
            [r"$\begin{aligned}a&=b\\[2pt]c&=d\end{aligned}$"],
        ),
        (r"$\begin{unheardof}a&b\\c\end{unheardof}$", []),
        ("$" + "{" * 1500 + "}" * 1500 + "$", []),
        ("$" + "x" * 3000 + "$", []),
    ],
)
def test_delimited_latex_becomes_formulas_and_the_rest_stays_text(text: str, expected: list[str]) -> None:
    assert sources(text) == expected
    rich = with_formulas(text)
    pieces = [rich] if isinstance(rich, str) else rich
    assert "".join(piece if isinstance(piece, str) else piece[0] for piece in pieces) == text


def test_a_formula_is_a_tree_of_mathml() -> None:
    ((source, tree),) = with_formulas(r"$\frac{a}{2} \le 3$")
    assert source == r"$\frac{a}{2} \le 3$"
    assert tags(tree) == ["math", "mrow", "mfrac", "mrow", "mi", "mrow", "mn", "mo", "mn"]
    assert leaves(tree) == "a2≤3"
    ((_, rows),) = with_formulas(r"$\begin{aligned}a&=b\\[2pt]c&=d\end{aligned}$")
    assert tags(rows).count("mtr") == 2
    assert leaves(rows) == "a=bc=d"


@pytest.mark.parametrize(
    "latex",
    [
        r"\href{javascript:alert(1)}{x}",
        r"\style{position:fixed;inset:0}{x}",
        r"\class{panel}{x}",
        r"\color{red}{x}",
        r"\rule{99em}{99em}x",
        r"\hspace{9999em}x",
        r"\genfrac(){999em}0ab",
        r"\text{&#xFFFFFF;&#xD800;}x",
    ],
)
def test_a_formula_carries_no_link_style_or_size_that_covers_the_page(latex: str) -> None:
    ((_, tree),) = with_formulas(f"${latex}$")
    assert not {"href", "style", "class", "mathcolor", "mathbackground", "height"} & set(_names(tree))
    assert "99" not in json.dumps(tree)


def _names(tree: list[Any]) -> list[str]:
    inner = [name for child in tree[2:] if isinstance(child, list) for name in _names(child)]
    return [*tree[1], *inner]


@pytest.mark.parametrize("piece", ["$a ", "\\(", "\\[", "\\boxed{", "\\boxed{{", "$$", "{", "\\", "$a\n"])
def test_hostile_text_is_read_once(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A pattern that reads a text again from each place would not end within the test's limit.
    monkeypatch.setattr(formulas, "_mathml", lambda latex, display: None)
    assert with_formulas(piece * 60_000) == piece * 60_000


@pytest.mark.slow
def test_formulas_are_drawn_in_problems_thoughts_and_answers_and_not_in_code_or_output(
    browser: Browser, tmp_path: Path
) -> None:
    run = made_run(tmp_path, problems=1, samples=1)
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
    drawn = browser.run(
        "const all = (part) => [...document.querySelectorAll(`.trace ${part} math`)]; "
        "return ['.problem', '.thought', '.answer', '.code', '.result'].map((part) => "
        "all(part).map((math) => [math.getAttribute('alttext'), math.parentNode.title, "
        "math.namespaceURI.endsWith('MathML') && math.getBoundingClientRect().width > 3]))"
    )
    found = [[source for source, _, _ in part] for part in drawn]
    assert found[0] == [r"\[x_1^2\]", "$n$"]
    assert found[1][:2] == [r"$\frac{1}{2}$", r"\(a<b\)"]
    assert found[2] == [r"\boxed{\frac{3}{4}}"]
    assert found[3:] == [[], []]
    assert all(source == title and visible for part in drawn for source, title, visible in part)
    assert r"$\unheardof$" in texts(browser, ".trace .thought")[0]
    assert browser.run("return document.querySelectorAll('main img, .trace b').length") == 0
    box = browser.run("return getComputedStyle(document.querySelector('.answer menclose')).borderTopWidth")
    assert box != "0px"
    assert browser.errors() == []


@pytest.mark.slow
def test_without_the_library_latex_stays_as_it_was_written_and_the_page_says_why(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "latex2mathml.converter", None)
    forget()
    open_report(browser, made_run(tmp_path, problems=1, samples=1))
    browser.wait("document.querySelector('.trace .part')")
    assert browser.run("return document.querySelectorAll('math').length") == 0
    assert "$n$ lamps" in texts(browser, ".trace .problem")[0]
    assert "latex2mathml was not installed" in texts(browser, "main")[0]
    forget()


def forget() -> None:
    """Looks for the library again, and reads every formula again."""
    formulas.available.cache_clear()
    formulas._mathml.cache_clear()

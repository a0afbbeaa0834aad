"""LaTeX formulas are shown as a person would write them. Other text stays unchanged."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2.chat.latex import BOX_END, BOX_START, FormulaStream, readable


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        (r"$\frac{1}{2}$", "1/2"),
        (r"$\dfrac{a+b}{2c}$", "(a+b)/2c"),
        (r"\[ \frac{n(n+1)}{2} \]", "n(n+1)/2"),
        (r"\boxed{\frac{1}{2}}", f"{BOX_START}1/2{BOX_END}"),
        (r"so \boxed{3367}.", f"so {BOX_START}3367{BOX_END}."),
        (r"$x^2 + y_{10}^{n+1}$", "x² + y₁₀ⁿ⁺¹"),
        (r"\(e^{-\frac{x}{2}}\)", "e^(-x/2)"),
        (r"$\sqrt{2}$, $\sqrt[3]{x+1}$", "√2, ∛(x+1)"),
        (r"$\sum_{i=1}^n i \le 5 \cdot \pi r^2$", "∑ᵢ₌₁ⁿ i ≤ 5 · π r²"),
        (r"$a \equiv b \pmod{7}$", "a ≡ b (mod 7)"),
        (r"$60^\circ$ and $\binom{n}{k}$", "60° and C(n, k)"),
    ],
)
def test_formulas_are_written_as_by_hand(latex: str, text: str) -> None:
    assert readable(latex) == text


@pytest.mark.parametrize(
    "text",
    [
        "it costs $5 and $10",
        r"a path C:\new\table",
        "$",
        r"$\unfinished{",
        "```\nprint('\\n')\n```",
        "50% off",
    ],
)
def test_what_is_no_formula_stays(text: str) -> None:
    assert readable(text) == text


@given(
    parts=st.lists(
        st.sampled_from(
            [
                r"\frac{1}{2}",
                "$",
                r"\(",
                r"\)",
                r"\[",
                r"\]",
                r"\boxed{",
                "}",
                "x^2",
                " ",
                "5",
                "\n\n",
                "\\",
                "é",
            ]
        ),
        max_size=12,
    ),
    cuts=st.lists(st.integers(min_value=0), max_size=8),
)
def test_streamed_in_pieces_nothing_is_lost_or_said_twice(parts: list[str], cuts: list[int]) -> None:
    text = "".join(parts)
    places = sorted({0, len(text), *(place % (len(text) + 1) for place in cuts)})
    stream = FormulaStream()
    output = "".join(stream.add(text[a:b]) for a, b in itertools.pairwise(places)) + stream.end()
    if readable(text) == text:
        assert output == text


def test_a_formula_is_shown_once_it_is_whole_and_other_words_at_once() -> None:
    stream = FormulaStream()
    assert stream.add(r"the half $\fr") == "the half "
    assert stream.add(r"ac{1}{2}") == ""
    assert stream.add("$ and") == "1/2 and"
    assert stream.add(" a dollar $ or") == " a dollar $ or"
    assert stream.end() == ""

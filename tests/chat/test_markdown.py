"""Markdown in a terminal: the output does not depend on how the text is split into pieces, and formulas are not read as
markup."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from rich.console import Console

from rstar2.chat.layout import WrappedText
from rstar2.chat.markdown import MarkdownStream
from rstar2.chat.screen import Screen
from rstar2.loop.turns.codec import ChatCodec
from rstar2.terminal import READABLE, write_readably

write_readably()
BOLD, ITALIC, UNDERLINE, CODE, OFF = "\x1b[1m", "\x1b[3m", "\x1b[4m", "\x1b[36m", "\x1b[0m"


def render(*pieces: str, columns: int = 80, colored: bool = False, encoding: str = "utf-8") -> str:
    output = io.BytesIO()
    out = Console(
        file=io.TextIOWrapper(output, encoding=encoding, newline="\n", errors=READABLE),
        width=columns,
        force_terminal=True,
        color_system="standard" if colored else None,
        legacy_windows=False,
    )
    text = WrappedText(out)
    stream = MarkdownStream(out, text)
    for piece in pieces:
        stream.add(piece)
    stream.end()
    text.margin()
    out.file.flush()
    return re.sub(r"[ ]+$", "", output.getvalue().decode(), flags=re.MULTILINE)


@pytest.mark.parametrize(
    ("source", "plain"),
    [
        ("2*3*4 = 24", "2*3*4 = 24"),
        ("2 * 3 * 4, and a ** b ** c", "2 * 3 * 4, and a ** b ** c"),
        ("if a<b and c>d then", "if a<b and c>d then"),
        ("x_1*x_2 and __init__", "x_1*x_2 and __init__"),
        ("-5 is less than -4", "-5 is less than -4"),
        ("+ 5", "+ 5"),
        (r"\[ - 5 = x \]", "- 5 = x"),
        ("#1 is no heading", "#1 is no heading"),
        ("**never closed", "**never closed"),
        ("`never closed", "`never closed"),
        ("3. third\n10) tenth", "3. third\n10) tenth"),
        ("| no table", "| no table"),
        (r"$a*b$ and \(\alpha*\beta\)", "a*b and α*β"),
        ("[a link](http://a.b)", "a link (http://a.b)"),
        ('see [a *b*](https://a.b/c_(d) "Title").', "see a *b* (https://a.b/c_(d))."),
        ("[www.a.b](www.a.b)", "www.a.b"),
        ("[1, 2] and f[i](x) and [a](b) and [open", "[1, 2] and f[i](x) and [a](b) and [open"),
        ("obj.__call__ and __main__ and x__y__z", "obj.__call__ and __main__ and x__y__z"),
        ("+ sin(x)\n+ x^2\n+ 2 more", "+ sin(x)\n+ x^2\n+ 2 more"),
        ("x\n+ one\n  + `two`", "x\n• one\n  • two"),
        ("===\n\n====\n", "===\n\n===="),
        ("a\\*b", "a\\*b"),
        ("\x1b[2Jgone", "␛[2Jgone"),
    ],
)
def test_what_is_no_markup_stays_as_it_was_written(source: str, plain: str) -> None:
    assert render(source).strip() == plain


@pytest.mark.parametrize(
    ("source", "styled"),
    [
        ("so **bold** it is", f"so {BOLD}bold{OFF} it is"),
        ("*so* it is", f"{ITALIC}so{OFF} it is"),
        ("call `f(x)`.", f"call {CODE}f(x){OFF}."),
        ("``a``", f"{CODE}a{OFF}"),
        ("# Title", f"{BOLD}Title{OFF}"),
        ("__strong__, __so__", f"{BOLD}strong{OFF}, {BOLD}so{OFF}"),
        ("__two words__", f"{BOLD}two{OFF}{BOLD} words{OFF}"),
        ("[it](http://a.b)", f"{UNDERLINE}it{OFF} (http://a.b)"),
        (r"**so $\frac{1}{2}$**", f"{BOLD}so{OFF}{BOLD} 1/2{OFF}"),
    ],
)
def test_spans_have_styles(source: str, styled: str) -> None:
    assert render(source, colored=True).strip("\n") == styled


def test_lists_hang_and_quotations_are_marked() -> None:
    text = render("- one two three four\n  * five\n> said", columns=12)
    assert text == "• one two\n  three four\n  • five\n▌ said\n"


def test_a_heading_with_a_line_under_it_has_that_line() -> None:
    assert render("Title\n=====\nText", columns=12) == "Title\n════════════\nText\n"


def test_brackets_that_are_no_link_are_shown_as_they_come() -> None:
    out = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    stream = MarkdownStream(out, WrappedText(out))
    stream.add("so [1, 2] and x _y are")
    assert isinstance(out.file, io.StringIO)
    assert out.file.getvalue() == "so [1, 2] and x _y"


def test_a_program_has_a_frame_and_nothing_in_it_is_markup() -> None:
    text = render("So:\n```python\na = '$x$ **b**'\n# no title\n```\nDone.", columns=30)
    assert text.splitlines() == [
        "So:",
        "╭─ python ───────────────────╮",
        "│ a = '$x$ **b**'            │",
        "│ # no title                 │",
        "╰────────────────────────────╯",
        "Done.",
    ]


@pytest.mark.parametrize("end", ["", "\n", "\n``", "\n```"])
def test_a_program_that_is_cut_off_is_shown_whole(end: str) -> None:
    assert "│ print(1)" in render(f"```\nprint(1){end}")
    assert render(f"```\nprint(1){end}").count("╯") == 1


def test_a_table_keeps_its_comparisons_and_products() -> None:
    text = render("| n | note |\n|---|---|\n| 1 | a<b, 2*3*4 |\nafter")
    assert "a<b, 2*3*4" in text
    assert "---|" not in text
    assert text.endswith("\nafter\n")


@pytest.mark.parametrize(
    ("cell", "cell_text"),
    [("$|x|$", "|x|"), (r"$P(A \mid B)$", "P(A"), ("`a|b`", "a|b"), (r"`a\|b`", "a|b"), ("``a|`b``", "a|")],
)
def test_a_bar_in_a_formula_or_in_code_ends_no_cell(cell: str, cell_text: str) -> None:
    text = render(f"| what | value |\n|---|---|\n| {cell} | 34567 |\n| 2 | 89 |\n")
    [row] = [line for line in text.splitlines() if "34567" in line]
    assert cell_text in row
    assert "89" in text


def test_in_ascii_no_line_is_wider_than_the_terminal() -> None:
    words = "the root √2 – or “π” → α≤β… " * 6
    source = f"- {words}\n\n> {words}\n\n| {words} | é |\n|---|---|\n| → | {words} |\n\n```py\nx = '{words}'\n```\n"
    text = render(source, columns=40, encoding="ascii")
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 40
    assert {"* the root", "| the root"} <= {line[:10] for line in text.splitlines()}
    assert "\\u221a" in text


SAMPLE = (
    "# T *x*\n\nA **b c** `d` $\\frac{1}{2}$ 2*3*4\n- i *j*\n  - k\n1. l\n> q\n---\n"
    "+ two *l*\nTitle\n=====\n[m](https://n.o) __p q__ [1](2) __init__ r_s\n"
    "```py\nx = 1\n\n```\n| a | b |\n|---|---|\n| 1 | 2 |\n\n**open\n* \n\\boxed{3}."
)


@given(st.lists(st.integers(1, 9), max_size=60))
@example([1] * 200)
def test_it_does_not_matter_how_the_text_is_cut(sizes: list[int]) -> None:
    pieces, remaining = [], SAMPLE
    for size in sizes:
        pieces.append(remaining[:size])
        remaining = remaining[size:]
    assert render(*pieces, remaining, columns=30) == render(SAMPLE, columns=30)


@given(st.text("a*`#-|>~_ \n1.[]()$\\", max_size=60), st.integers(1, 5))
def test_any_text_comes_to_an_end_and_loses_no_letter_or_digit(text: str, size: int) -> None:
    assume("```" not in text and "~~~" not in text)  # After a fence, only the first word of a line is shown.
    output = render(*(text[at : at + size] for at in range(0, len(text), size)), columns=20)
    assert (output.count("a"), output.count("1")) == (text.count("a"), text.count("1"))


def test_an_answer_that_comes_token_by_token_loses_no_space(codec: ChatCodec) -> None:
    out = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    screen = Screen(codec, out, out)
    reply = "It costs $5 or  \\(6\\)</reason>\n<answer>- one\n- **two  three** `f (x)`\n\n# Four</answer>"
    for letter in reply:
        screen.tokens(codec.tokenizer.encode(letter, add_special_tokens=False))
    screen.stop()
    assert isinstance(out.file, io.StringIO)
    assert out.file.getvalue() == "It costs $5 or  6\n• one\n• two  three f (x)\n\nFour\n"

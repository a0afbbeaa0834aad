"""Tests of the filters: answers are verifiable integers, each problem occurs once, and none is close to a benchmark."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2.data.candidates import Candidates
from rstar2.data.filters import answers, measured, repeats, texts
from rstar2.data.filters.grams import (
    ContainedFilter,
    GramFilter,
    benchmark_grams,
    grams_of,
    rarest_shingles,
)
from rstar2.data.filters.near import must_be_equal, near_duplicates
from rstar2.data.filters.repeats import contradicted, duplicates
from rstar2.data.filters.settings import Near
from rstar2.data.normalize import meant_of, normalized, normalized_problem, words_of
from rstar2.data.own import own_source
from rstar2.data.problem import Problem
from rstar2.data.reading import Origin, read_source
from rstar2.data.rows import integer_answer
from rstar2.errors import UserError
from rstar2.eval.grader.grading import same_answer

BENCHMARK_PROBLEM = Problem(
    "m", "Every morning Aya goes for a nine-kilometre walk and stops at a coffee shop.", "204"
)
GRAM = 8


@pytest.mark.parametrize(
    ("text", "integer"),
    [
        ("42", "42"),
        (" 042 ", "42"),
        ("$-7$", "-7"),
        ("+3", "3"),
        ("-0", "0"),
        ("000", "0"),
        ("1,234,567", "1234567"),
        ("12,34", None),
        ("1{,}000", "1000"),
        ("1\\,000", "1000"),
        ("\\boxed{42}", "42"),
        ("\\(42\\)", "42"),
        ("42.", "42"),
        ("−42", "-42"),
        ("3.0", "3"),
        (".5", None),
        ("\\{5\\}", None),
        ("2^{10}", "1024"),
        ("1/2", None),
        ("\\frac{1}{2}", None),
        ("x + 1", None),
        ("", None),
        ("1 2", None),
        ("2.0", "2"),
        ("-2.0", "-2"),
        ("10^3", "1000"),
        ("x=5", "5"),
        ("x = -3", "-3"),
        ("12^\\circ", "12"),
        ("12°", "12"),
        ("\\dfrac{12}{1}", "12"),
        ("\\frac{84}{2}", "42"),
        ("４２", "42"),
        ("−４２", "-42"),
        ("\\sqrt{16}", "4"),
        ("5!", "120"),
        ("1e5", "100000"),
        ("42\\text{ cm}", None),
        ("\\$5", None),
        ("50\\%", None),
        ("5 \\pmod 7", None),
        ("10^{100}", None),
        ("2^{74207281}-1", None),
        ("x=1, y=2", None),
        ("n \\ge 5", None),
        ("3.5", None),
        ("(B) 15", None),
        ("٣", "3"),
    ],
)
def test_an_integer_is_what_the_grader_reads_as_one(text: str, integer: str | None) -> None:
    assert integer_answer(text) == integer


@given(value=st.integers(min_value=-(10**11), max_value=10**11))
def test_every_way_to_write_an_integer_is_the_same_answer(value: int) -> None:
    for number in (str(value), f"{value:,}", f"${value}$", f" {value}"):
        assert integer_answer(number) == str(value)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("204", ""),
        ("1,234", ""),
        ("-17", ""),
        ("\\frac{1}{2}", ""),
        ("2\\sqrt{3}", ""),
        ("x = 3", ""),
        ("proof", "unverifiable"),
        ("notfound", "unverifiable"),
        ("The limit does not exist", "unverifiable"),
        ("\\text{No solution}", "unverifiable"),
        ("no real solutions", "unverifiable"),
        ("undefined", "unverifiable"),
        ("Yes", "unverifiable"),
        ("$\\text{DNE: cannot be determined}$", "unverifiable"),
        ("Perimeter=54cm, Area=180cm²", "compound"),
        ("x=1, y=2", "compound"),
        ("3 and 5", "compound"),
        ("1; 2; 3", "compound"),
        ("x=1 \\text{ or } x=2", "compound"),
        ("(1, 2)", "compound"),
        ("6.5e27330467", "huge"),
        ("2^{74207281}-1", "huge"),
        ("10^{100}", "huge"),
        ("3.5 \\times 10^{40}", "huge"),
        ("1" * 13, "huge"),
        ("1" * 12, ""),
        ("10^3", ""),
        ("2^5", ""),
    ],
)
def test_answers_that_no_reward_can_check_are_told_apart(answer: str, reason: str) -> None:
    checks = {
        "unverifiable": answers.unverifiable,
        "compound": answers.compound,
        "huge": answers.TooLarge(12),
    }
    failed = [name for name, check in checks.items() if check(answer)]
    assert failed[:1] == ([reason] if reason else [])


def test_the_answer_filter_names_the_answer() -> None:
    batch = pa.RecordBatch.from_pylist([{"answer": "1"}, {"answer": "1/2"}])
    assert list(answers.AnswerFilter(answers.not_an_integer)(batch)) == [(1, {"answer": "1/2"})]


@pytest.mark.parametrize(
    ("text", "foreign"),
    [
        ("Find the area of the triangle.", False),
        ("Soit $f$ une fonction dérivée à l'été.", False),
        ("Let $\\alpha$ be α + β ≤ ∑ ℝ 𝔽.", False),
        ("计算三角形的面积。", True),
        ("Найдите площадь треугольника.", True),
        ("Find the area of 三角形 in the figure that is shown here.", False),
        ("1 + 1 = ?", False),
    ],
)
def test_texts_in_other_scripts_are_foreign(text: str, foreign: bool) -> None:
    batch = pa.RecordBatch.from_pylist([{"problem": text}])
    assert bool(list(texts.LanguageFilter(0.2)(batch))) is foreign


WORDS = [f"w{number}" for number in range(40)]


def shared(benchmarks: dict[str, list[Problem]], text: str, rule: str = "literal") -> dict[str, Any] | None:
    grams = GramFilter(GRAM, benchmark_grams(benchmarks, GRAM, rule == "distinctive"))
    matches = list(grams(pa.RecordBatch.from_pylist([{"problem": text}])))
    return matches[0][1] if matches else None


def _problem(text: str, name: str = "p") -> Problem:
    return Problem(name, text, "1")


@pytest.mark.parametrize(("count", "touched"), [(GRAM, True), (GRAM - 1, False)])
def test_eight_shared_words_in_a_row_are_too_many_and_seven_are_not(count: int, touched: bool) -> None:
    text = " ".join([*WORDS[30:35], *WORDS[5 : 5 + count], *WORDS[35:]])
    match = shared({"set": [_problem(" ".join(WORDS[:20]))]}, text)
    expected = {"words": " ".join(WORDS[5 : 5 + count]), "benchmark": "set", "benchmark_id": "p"}
    assert match == (expected if touched else None)


def test_case_and_punctuation_do_not_hide_a_copy() -> None:
    assert shared({"set": [BENCHMARK_PROBLEM]}, "EVERY morning, Aya goes (for a nine kilometre) walk!")


def test_a_short_measured_problem_is_matched_as_a_whole() -> None:
    near = {"set": [_problem("Find 2 + 2.")]}
    assert shared(near, "find 2+2")
    assert not shared(near, "Find 2 + 3.")
    assert not shared(near, "Someone asks you to find 2 + 2 and more")


@pytest.mark.slow
@given(text=st.text(max_size=60))
def test_nothing_is_near_no_benchmark_and_every_text_is_near_itself(text: str) -> None:
    assert not shared({}, text)
    assert bool(shared({"set": [_problem(text)]}, text)) is bool(words_of(normalized(text)))


@pytest.mark.parametrize("words", range(2, 10))
def test_a_shared_gram_is_found_wherever_it_begins(words: int) -> None:
    problem = _problem(" ".join(WORDS[:20]))
    grams = GramFilter(words, benchmark_grams({"set": [problem]}, words, False))
    cases = [(before, count) for before in range(2 * words) for count in (words - 1, words)]
    rows = [" ".join([*["x"] * before, *WORDS[5 : 5 + count], *["y"] * words]) for before, count in cases]
    words_by_row = {at: each["words"] for at, each in grams(pa.RecordBatch.from_pydict({"problem": rows}))}
    expected = " ".join(WORDS[5 : 5 + words])
    assert words_by_row == {at: expected for at, (_, count) in enumerate(cases) if count == words}


_TEXTS = st.lists(
    st.sampled_from(["a", "B", "é", ", ", "\n", "mathematics", "mathematical"]), max_size=12
).map(" ".join)


@given(benchmark=_TEXTS, texts=st.lists(_TEXTS, max_size=4), words=st.integers(min_value=2, max_value=4))
def test_the_rows_that_share_a_gram_are_found_and_no_others(
    benchmark: str, texts: list[str], words: int
) -> None:
    grams = benchmark_grams({"set": [_problem(benchmark)]}, words, False)
    batch = pa.RecordBatch.from_pydict({"problem": pa.array(texts, pa.string())})
    rows_matched = {at for at, _ in GramFilter(words, grams)(batch)}
    assert rows_matched == {
        at for at, text in enumerate(texts) if not grams.keys().isdisjoint(grams_of(text, words))
    }


TYPESET = (
    "Suppose that $\\frac{1}{2}\\left(x + y\\right) = 30$ and that $x^{2} \\le 1000$, if the angle is $60^\\circ$ and "
    "$\\sqrt{3}$ is positive. How many metres has the shorter side of the field?"
)
SPELLINGS = {
    "dfrac": TYPESET.replace("\\frac", "\\dfrac"),
    "frac12": TYPESET.replace("\\frac{1}{2}", "\\frac12"),
    "slash": TYPESET.replace("\\frac{1}{2}", "1/2"),
    "half": TYPESET.replace("\\frac{1}{2}", "½"),
    "no left": TYPESET.replace("\\left", "").replace("\\right", ""),
    "big": TYPESET.replace("\\left", "\\bigl").replace("\\right", "\\bigr"),
    "HTML": TYPESET.replace("x^{2}", "x<sup>2</sup>")
    .replace("field", '<span class="w">fi</span>eld')
    .replace("How", "<p>How"),
    "entities": TYPESET.replace(" and ", "&nbsp;and ").replace("\\le ", "&le; "),
    "zero width": "\u200b".join(TYPESET.replace("\\", "\u2063\\"))
    .replace("\\\u200b", "\\")
    .replace("e\u200b", "e\u00ad"),
    "full width": "".join(chr(ord(sign) + 0xFEE0) if sign.isdigit() else sign for sign in TYPESET),
    "delimiters": re.sub(r"\$([^$]*)\$", r"\\(\1\\)", TYPESET),
    "no delimiters": TYPESET.replace("$", ""),
    "Unicode": TYPESET.replace("\\le ", "≤")
    .replace("x^{2}", "x²")
    .replace("60^\\circ", "60°")
    .replace("\\sqrt{3}", "√3"),
    "space": TYPESET.replace(" ", "\u2003\n"),
    "doubled": TYPESET.replace("\\", "\\\\"),
    "spaced LaTeX": TYPESET.replace("= ", "\\;=\\, ").replace("\\sqrt{3}", "\\displaystyle\\sqrt 3"),
    "text": TYPESET.replace("metres", "\\text{metres}"),
    "thousands": TYPESET.replace("1000", "1{,}000"),
    "bold": TYPESET.replace("shorter", "**shorter**"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_markup_hides_no_copy(tmp_path: Path, spelling: str) -> None:
    assert SPELLINGS[spelling] != TYPESET
    rows = candidates(tmp_path, problems((TYPESET, "20"), (SPELLINGS[spelling], "20")))
    assert list(duplicates(rows)) == [(1, {"same as": "it-1"})]
    assert near(rows, tmp_path, 1.0) == {1: "it-1"}
    rows = candidates(tmp_path, problems((TYPESET, "20"), (SPELLINGS[spelling], "21")))
    assert [at for at, _ in contradicted(rows)] == [0, 1]
    benchmarks = {"set": [_problem(TYPESET)]}
    for rule in ("literal", "distinctive"):
        assert shared(benchmarks, SPELLINGS[spelling], rule), rule
    assert contained(benchmarks, SPELLINGS[spelling], 1.0)


@pytest.mark.parametrize(
    "text",
    [
        "a<b and c>d",
        "a<b>c",
        "if 1<p<2 then p>1",
        "2*x*3 and a*bc*d",
        "AT&T; x",
        "if a[b]c[d] then x",
        "a_1 and b__2",
        "\\nu \\\\ \\neg \\notin \\nabla",
        "<i and j>k",
        "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
    ],
)
def test_mathematics_is_not_taken_for_markup(text: str) -> None:
    signs = [sign for sign in text if sign.isalnum() or sign in "<>*&"]
    assert [sign for sign in normalized(text) if sign.isalnum() or sign in "<>*&"] == signs


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "\\text{",
            "\\text{{",
            "{\\bf ",
            "\\color{",
            "\\textcolor{a}",
            "[b]",
            "[/b]",
            "[color=",
            "``",
            "``a''",
        ),
        *(
            "*a",
            "_a",
            "__a ",
            "<img alt=",
            "<img ",
            '<img alt="',
            "&amp;",
            "\\n",
            "\\u00",
            "$1\\over",
            "{1\\choose",
            "-\n",
        ),
        *("\\mod{", "(\\mod ", "\\not ", "\\frac", "\\frac{", "Problem 1 ", "\\mathbb ", "{", "}", "$"),
    ],
)
def test_a_garbled_text_is_normalised_in_linear_time(piece: str) -> None:
    """An expression with quadratic time in the length of a text would exceed the test's time limit."""
    assert isinstance(normalized_problem(f"x {piece * 30_000}"), str)


@given(text=st.text(max_size=60))
def test_a_normal_form_is_found_for_every_text(text: str) -> None:
    assert isinstance(normalized(text), str)


@given(
    text=st.lists(
        st.sampled_from(
            ["\\frac", "{", "}", "1", "x", "^", "_", "\\left(", "$", "<b>", "</b>", "&lt;", "\\over", " "]
        )
    )
)
def test_broken_markup_has_a_normal_form(text: list[str]) -> None:
    assert isinstance(normalized("".join(text)), str)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("x^{2}y + a_{1}b", "x^2y + a_1b"),
        ("912,\\!673 \\pi", "912,\\\\!673 \\\\pi"),
        ("\\log_2 (x) \\! + 1", "\\\\log_2 (x) \\\\! + 1"),
        ("{x \\over yz}", "\\frac{x}{yz}"),
        ("\\frac{\\sqrt{3}+\\frac{1}{x_{12}}}{2}", "\\dfrac{\\sqrt3+\\frac1{x_{12}}}2"),
        ("a \\leq b", "a ≤ b"),
        ("2 \\cdot 3 \\div 4", "2×3÷4"),
        ("<p>Let <i>x</i> &lt; 2.</p>", "Let x < 2."),
        ("α + \\beta", "\\alpha + β"),
        ("\\mathbb{R}", "R"),
        ("1, 2, \\ldots, 9", "1, 2, ..., 9"),
        ("\\begin{align*}x &= 1\\end{align*}", "x &= 1"),
    ],
)
def test_two_spellings_have_one_meaning(one: str, other: str) -> None:
    assert meant_of(normalized(one)) == meant_of(normalized(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("△ABC, ∠ABC", r"\triangle ABC, \angle ABC"),
        ("AB ∥ CD ⊥ EF", r"AB \parallel CD \perp EF"),
        (r"\bar{AB} + \widehat{A}", r"\overline{AB} + \hat{A}"),
        (r"Let $\\frac12$.\n\nFind \"it\".", "Let $\\frac12$.\n\nFind it."),
        (r"dif\u200bficult\nfind it", "difficult\nfind it"),
        (r"find \ud83d\ude00 it", "find it"),
        ("2**3 + x**{10}", "2^3 + x^{10}"),
        (r"\textbf{\textit{find} the $x^{2}$}", "find the $x^2$"),
        (r"\textcolor{red}{find} {\color{red} the} {\bf x}", "find the x"),
        ("[latex]x[/latex] and [b][i]y[/i][/b], [color=red]z[/color]", "x and y, z"),
        (
            '<latex>x</latex>, <script type="math/tex">y</script>, <img class="a" alt="$z$" src="z.png">',
            "x, y, z",
        ),
        ("diffi<wbr>cult", "difficult"),
        ("diffi-\n   cult", "difficult"),
        ("Сompute thе sum οf ΑΒ", "Compute the sum of AB"),
        (r"a \equiv b \pmod{7}", r"a \equiv b (\bmod 7)"),
        (r"a \pmod 7", r"a \mod 7"),
        (r"\Bbb R \mathbb N", r"\mathbb{R} \Bbb{N}"),
        (r"a \not= b, a \not\in c", r"a \neq b, a \notin c"),
        (r"{n \choose k}, $n+1 \choose 2$", r"\binom{n}{k}, \binom{n+1}{2}"),
        (r"\varnothing, ∅", r"\emptyset, \emptyset"),
        (r"\vec{v} + \varphi", r"\overrightarrow{v} + \phi"),
        (r"$1\over2$", r"$\frac12$"),
        (r"\|x\|, ‖y‖", r"\Vert x\Vert, \lVert y\rVert"),
        ("``don't''", '"don\'t"'),
        ("a &amp;lt; b &amp;amp;gt; c", "a < b > c"),
        (r"\frac{1}{\sqrt 2}", r"1/\sqrt{2}"),
        ("*Find the* __value__ _of_ it", "Find the value of it"),
        ("\\n\u200beq \\sq\u2060rt2", "\\neq \\sqrt{2}"),
    ],
)
def test_rarer_spellings_have_one_meaning(one: str, other: str) -> None:
    assert meant_of(normalized(one)) == meant_of(normalized(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3\\frac12", "\\frac{31}{2}"),
        ("x^{10}", "x^1 0"),
        ("(1,234)", "(1234)"),
        ("a<b", "a>b"),
        ("f''(x)", "f(x)"),
        ("n - k", "n k"),
        ("|x|", "\\|x\\|"),
    ],
)
def test_two_meanings_have_two_normal_forms(one: str, other: str) -> None:
    assert meant_of(normalized(one)) != meant_of(normalized(other))


def contained(benchmarks: dict[str, list[Problem]], text: str, share: float = 0.8) -> dict[str, Any] | None:
    matches = list(
        ContainedFilter(share, rarest_shingles(benchmarks, share))(
            pa.RecordBatch.from_pylist([{"problem": text}])
        )
    )
    return matches[0][1] if matches else None


def test_a_text_with_most_of_a_benchmark_problem_contains_it() -> None:
    """Ten words contain eight runs of three consecutive words. With a required share of 0.75, a text may lack two of
    these runs, but not three."""
    benchmarks = {"set": [_problem(" ".join(WORDS[:10]))]}
    text = " ".join([*WORDS[20:25], *WORDS[:8], *WORDS[25:30]])
    assert contained(benchmarks, text, 0.75) == {
        "words": " ".join(WORDS[:8]), "share": 0.75, "benchmark": "set", "benchmark_id": "p",
    }  # fmt: skip
    assert contained(benchmarks, text, 0.8) is None
    assert contained(benchmarks, " ".join(WORDS[:7]), 0.75) is None


def test_what_contest_problems_share_is_not_a_copy() -> None:
    one = _problem(f"The area of the hexagon that is drawn inside a circle is m over n, {PHRASE}. Find m+n.")
    text = f"A coin is thrown until heads. Its chance is m divided by n {PHRASE}. Find m+n."
    assert shared({"a": [one]}, text)
    assert contained({"a": [one]}, text) is None
    assert contained({"a": [one]}, one.problem)


@pytest.mark.parametrize(
    ("text", "touched"),
    [
        ("Find $2 + 2 \\cdot 3$.", True),
        ("Please find $2 + 2 \\cdot 3$.", True),
        ("Quickly: find \\(2+2\\times3\\), please!", True),
        ("Find $2 - 2 \\cdot 3$.", False),
        ("Find $2 + 2 \\cdot 4$.", False),
        (
            "A teacher who likes long tasks has her class find $2 + 2 \\cdot 3$ and then the square of it.",
            False,
        ),
    ],
)
def test_a_short_problem_is_found_with_a_few_words_around_it(text: str, touched: bool) -> None:
    assert bool(contained({"set": [_problem("Find $2 + 2 \\cdot 3$.")]}, text)) is touched


@pytest.mark.parametrize("text", ["Solve.", "Compute 5!"])
def test_a_problem_of_fewer_than_three_words_is_matched_as_a_whole(text: str) -> None:
    assert contained({"set": [_problem(text)]}, text.upper())
    assert contained({"set": [_problem(text)]}, f"{text} And then more.") is None


@given(
    prefixes=st.lists(_TEXTS, min_size=1, max_size=4),
    texts=st.lists(_TEXTS, max_size=4),
    share=st.sampled_from([0.3, 0.5, 0.8, 1.0]),
)
def test_the_rows_that_contain_a_problem_are_found_and_no_others(
    prefixes: list[str], texts: list[str], share: float
) -> None:
    benchmark = {
        "set": [_problem(f"{text} {' '.join(WORDS[:8])}", str(at)) for at, text in enumerate(prefixes)]
    }
    rows = [f"{text} {' '.join(WORDS[2:8])}" for text in texts]
    rows_matched = {
        at
        for at, _ in ContainedFilter(share, rarest_shingles(benchmark, share))(
            pa.RecordBatch.from_pydict({"problem": pa.array(rows, pa.string())})
        )
    }
    shingles = [set(grams_of(problem.problem, 3)) for problem in benchmark["set"]]
    assert rows_matched == {
        at
        for at, row in enumerate(rows)
        if any(
            len(row_shingles & set(grams_of(row, 3))) / len(row_shingles) >= share - 1e-9
            for row_shingles in shingles
        )
    }


PHRASE = "where m and n are relatively prime positive integers"


def test_words_that_two_benchmark_problems_share_are_not_distinctive() -> None:
    one = _problem(f"The area of the hexagon is m over n, {PHRASE}. Find m+n.", "one")
    other = _problem(f"A coin is thrown until heads. Its chance is m divided by n {PHRASE}.", "other")
    text = f"Quite another question has the value m upon n, {PHRASE}."
    assert shared({"a": [one], "b": [other]}, text)
    assert not shared({"a": [one], "b": [other]}, text, "distinctive")
    assert shared({"a": [one], "b": [other]}, one.problem, "distinctive")


def test_one_problem_in_two_benchmarks_stays_distinctive() -> None:
    again = _problem(BENCHMARK_PROBLEM.problem.replace("coffee", "tea"), "again")
    assert shared({"a": [BENCHMARK_PROBLEM], "b": [again]}, BENCHMARK_PROBLEM.problem, "distinctive")


def candidates(tmp_path: Path, rows: Iterable[dict[str, Any]]) -> Candidates:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source, table_file = own_source(file), tmp_path / "read.arrow"
    read_source(Origin("it", source, (file,)), table_file, io.StringIO(), lambda rows: None)
    return Candidates(source.kind, [("it", table_file)])


SHORT = "Evaluate $(1+2i)6-3i$."
TOOL = {"name": "run", "parameters": {"properties": {"code": {"type": "string"}, "more": {"type": "array"}}}}


def dialogue(
    system: str = "Help.",
    user: str = "Hello?",
    arguments: object = None,
    reply: str = "{}",
    answer: str = "Done.",
) -> dict[str, Any]:
    call = {"function": {"name": "run", "arguments": arguments or {}}}
    messages = [
        {"role": "system", "content": system},
        {"role": "user", "content": user},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": reply},
        {"role": "assistant", "content": answer},
    ]
    return {"messages": messages, "tools": [TOOL]}


def test_every_message_and_call_of_a_conversation_is_searched_for_grams(tmp_path: Path) -> None:
    text = BENCHMARK_PROBLEM.problem
    half, rest = " ".join(text.split()[:6]), " ".join(text.split()[6:11])
    conversations = [
        dialogue(),
        dialogue(system=f"Know this. {text}"),
        dialogue(user=text),
        dialogue(arguments={"code": f"# {text}\nprint(1)".replace("for a", "for\na")}),
        dialogue(arguments={"more": [{"text": text}]}),
        dialogue(reply=text, answer=text),
        dialogue(answer=text),
        dialogue(user=SHORT),
        dialogue(answer=SHORT),
        dialogue(user=f"{SHORT} Do it in two ways, please."),
        dialogue(reply=half, answer=rest),
    ]
    rows = candidates(tmp_path, conversations)
    (group,) = rows.groups()
    grams = GramFilter(
        GRAM, benchmark_grams({"set": [BENCHMARK_PROBLEM, _problem(SHORT, "short")]}, GRAM, False)
    )
    matches = [(at, each["benchmark_id"]) for at, each in grams(group.read(("messages",))[1])]
    assert sorted(matches) == [*((at, "m") for at in range(1, 7)), (7, "short"), (8, "short")]


def problems(*rows: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"problem": text, "answer": answer} for text, answer in rows]


def test_repetitions_but_the_first_are_duplicates_however_they_are_set(tmp_path: Path) -> None:
    rows = candidates(
        tmp_path,
        problems(
            ("What is $1 + 1$?", "2"), ("Another?", "2"), ("what is: 1+1", "02"), ("WHAT IS \\(1+1\\).", "2")
        ),
    )
    assert list(duplicates(rows)) == [(2, {"same as": "it-1"}), (3, {"same as": "it-1"})]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("$x^2 - 5x + 6 = 0$", "$x^2 + 5x + 6 = 0$"),
        ("$12 \\cdot 4$", "$12 / 4$"),
        ("$12 + 4$", "$12 4$"),
        ("n > 3 and n < 9", "n >= 3 and n <= 9"),
        ("n \\le 9", "n \\ge 9"),
        ("3 5", "35"),
        ("f(3.5)", "f(3, 5)"),
        ("(a + b) c", "a + (b c)"),
        ("a + b c", "a b + c"),
        ("\\sqrt{x} + 1", "\\sqrt{x + 1}"),
        ("[1, 5]", "(1, 5)"),
        ("5!", "5"),
        ("f'(1)", "f(1)"),
        ("|x|", "x"),
    ],
)
@pytest.mark.parametrize("answers", [("1", "1"), ("1", "2")])
def test_problems_that_differ_in_a_sign_are_no_copies(
    tmp_path: Path, one: str, other: str, answers: tuple[str, str]
) -> None:
    rows = candidates(tmp_path, problems((f"Find {one}.", answers[0]), (f"Find {other}.", answers[1])))
    assert list(duplicates(rows)) == list(contradicted(rows)) == []


def test_a_dropped_row_has_no_duplicates(tmp_path: Path) -> None:
    rows = candidates(tmp_path, problems(("What is it?", "1"), ("What is it?", "1"), ("What is it?", "1")))
    rows.drop(np.array([0]))
    assert list(duplicates(rows)) == [(2, {"same as": "it-2"})]


def test_every_copy_of_a_contradicted_problem_is_dropped(tmp_path: Path) -> None:
    rows = candidates(
        tmp_path,
        problems(
            ("Which?", "1"), ("Who?", "7"), ("which", "2"), ("Which?", "1"), ("Who", "07"), ("Who", "$7$")
        ),
    )
    assert list(contradicted(rows)) == [(at, {"answers": ["1", "2"]}) for at in (0, 2, 3)]


def test_an_answer_that_is_written_otherwise_contradicts_nothing(tmp_path: Path) -> None:
    rows = candidates(
        tmp_path,
        problems(
            *(("Which?", answer) for answer in ("42", "42^\\circ", "x = 42", "\\(42\\)")),
            *(("Who?", answer) for answer in ("7", "x = 7", "x = 8")),
            *(("What?", answer) for answer in ("3", "a hundred")),
        ),
    )
    assert [at for at, _ in contradicted(rows)] == [4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    "others",
    [
        ["42\\text{ cm}"],
        ["42.0", "\\frac{84}{2}", "４２", "x=42"],
        ["42\\text{ cm}", "42.0"],
        ["\\boxed{42}", "forty-two"],
    ],
)
def test_answers_that_the_grader_calls_equal_contradict_nothing(tmp_path: Path, others: list[str]) -> None:
    rows = candidates(tmp_path, problems(("What is it?", "42"), *(("what is it", other) for other in others)))
    assert list(contradicted(rows)) == []


@pytest.mark.parametrize(
    ("one", "other"), [("0.5", "\\frac12"), ("\\sqrt{8}", "2\\sqrt2"), ("(1,2)", "(1, 2)")]
)
def test_equal_answers_that_are_no_integers_contradict_nothing(tmp_path: Path, one: str, other: str) -> None:
    rows = candidates(tmp_path, problems(("What is it?", one), ("What is it?", other)))
    assert list(contradicted(rows)) == []


def test_answers_in_two_units_contradict_each_other(tmp_path: Path) -> None:
    lengths = ("42", "42\\text{ cm}", "42\\text{ m}")
    rows = candidates(tmp_path, problems(*(("How long is it?", length) for length in lengths)))
    assert [at for at, _ in contradicted(rows)] == [0, 1, 2]


def test_many_spellings_of_one_answer_are_compared_with_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str]] = []

    def compare(one: str, other: str) -> bool:
        compared.append((one, other))
        return same_answer(one, other)

    monkeypatch.setattr(repeats, "same_answer", compare)
    spellings = [f"\\frac{{{number}}}{{{2 * number}}}" for number in range(1, 400)]
    assert repeats.are_equal([*spellings, "0.5", "x = 1/2"])
    assert len(compared) < 3 * len(spellings)
    assert not repeats.are_equal([*spellings, "\\frac{1}{3}"])


LONG = (
    "A farmer has a rectangular field whose length is {n} metres more than its width, and he walks along its "
    "diagonal every morning before he feeds the animals. How many square metres has the field?"
)


def near(rows: Candidates, tmp_path: Path, similarity: float = 0.8, words: int = 3) -> dict[int, str]:
    return {
        at: duplicate["near"]
        for at, duplicate in near_duplicates(
            rows, Near(similarity=similarity, words=words), tmp_path / "scratch.npy"
        )
    }


def test_a_word_more_or_less_is_a_near_duplicate_and_another_number_is_not(tmp_path: Path) -> None:
    first = LONG.format(n=7)
    texts_and_answers = problems(
        (first, "60"),
        (first.replace("every morning", "each morning"), "60"),
        (LONG.format(n=8), "60"),
        (first.replace("How many", "Exactly how many"), "61"),
        ("Something else entirely, with 7 apples in a basket.", "60"),
        (first.replace("$", "") + " Answer with a number.", "60"),
    )
    rows = candidates(tmp_path, texts_and_answers)
    assert near(rows, tmp_path) == {1: "it-1", 5: "it-1"}
    assert near(rows, tmp_path, similarity=0.999) == {}
    assert not (tmp_path / "scratch.npy").exists()


@pytest.mark.parametrize(
    "label",
    [
        *("Problem 12. ", "**Example 7.2.** ", "3. ", "(AIME 1984) ", "[Exercise 5] (10 points) ", "Task 3 "),
        *("<b>Problem 3</b><br>", "Q7) ", "Exercise 2\n"),
    ],
)
def test_a_label_hides_no_copy(tmp_path: Path, label: str) -> None:
    text = LONG.format(n=7)
    rows = candidates(tmp_path, problems((text, "60"), (label + text, "60")))
    assert near(rows, tmp_path) == {1: "it-1"}
    assert [at for at, _ in duplicates(rows)] == [1]
    assert shared({"set": [_problem(SHORT)]}, label + SHORT)
    rows = candidates(tmp_path, problems((text, "60"), (label + text, "61")))
    assert [at for at, _ in contradicted(rows)] == [0, 1]


@pytest.mark.parametrize(
    "text",
    [
        "{n} children share a basket of apples, and every child but the youngest gets an apple. Who has none?",
        "Task {n} takes an hour longer than the task before it, and the first takes none. Which task is it?",
        "{n}.5 children share a basket of apples, and every child but the youngest gets one. Who has none?",
    ],
)
def test_a_number_that_begins_a_problem_is_no_label(tmp_path: Path, text: str) -> None:
    rows = candidates(tmp_path, problems((text.format(n=3), "1"), (text.format(n=4), "1")))
    assert near(rows, tmp_path) == {}
    assert list(duplicates(rows)) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("\\frac{3}{8}", "0.375"), ("x=5", "5"), ("42\\text{ cm}", "42"), ("\\sqrt{12}", "2\\sqrt3")),
        *(("50\\%", "0.5"), ("\\$5.00", "5"), ("\\{1,2\\}", "2,1"), ("\\text{Evelyn}", "Evelyn")),
    ],
)
def test_near_duplicates_have_answers_that_the_grader_calls_equal(
    tmp_path: Path, one: str, other: str
) -> None:
    text = LONG.format(n=7)
    rows = candidates(tmp_path, problems((text, one), (f"Hello. {text}", other), (f"So: {text}", "997")))
    assert near(rows, tmp_path) == {1: "it-1"}


def test_copies_with_several_answers_are_near_those_with_the_same_answer(tmp_path: Path) -> None:
    text = LONG.format(n=7)
    answers = ("1", "2", "1.0", "3", "2.0", "3.0", "\\frac{6}{2}", "1.00")
    rows = candidates(
        tmp_path, problems(*((f"{chr(65 + at)} word. {text}", each) for at, each in enumerate(answers)))
    )
    assert near(rows, tmp_path) == {2: "it-1", 4: "it-2", 5: "it-4", 6: "it-4", 7: "it-1"}


def test_one_changed_word_in_a_short_problem_is_found_by_the_stricter_setting(tmp_path: Path) -> None:
    texts_and_answers = problems(
        ("Find the least positive integer number that is divisible by 2, 3 and 7.", "42"),
        ("Find the least positive whole number that is divisible by 2, 3 and 7.", "42"),
        ("Find the least positive integer that is divisible by 2, 3 and 14.", "42"),
        ("Find the least positive integer that is divisible by 2, 3 and 7.", "43"),
    )
    rows = candidates(tmp_path, texts_and_answers)
    assert near(rows, tmp_path) == {}
    assert near(rows, tmp_path, words=1) == {1: "it-1"}


def test_pairs_of_a_low_similarity_are_proposed_too(tmp_path: Path) -> None:
    """The 200 pairs have similarities of about 0.5. With a limit of 0.45, at most one pair in twenty may be missed."""
    rng = random.Random(4)
    pairs = []
    for _ in range(200):
        words = ["".join(rng.choices("abcdefgh", k=6)) for _ in range(40)]
        pairs += [
            (" ".join(words), "1"),
            (" ".join([*words[:30], *(f"{word}x" for word in words[30:])]), "1"),
        ]
    assert len(near(candidates(tmp_path, problems(*pairs)), tmp_path, 0.45, words=1)) >= 190


def test_near_duplicates_have_the_same_operators_however_they_are_written(tmp_path: Path) -> None:
    question = (
        "Among the real numbers that a student wrote on a sheet of paper, find the least x for which {}."
    )
    expressions = [
        ("3 - x \\le 5 \\cdot 2", ""),
        ("3 + x \\le 5 \\cdot 2", ""),
        ("3 - x \\ge 5 \\cdot 2", ""),
        ("3 - x ≤ 5 × 2", "it-1"),
        ("3 - x <= 5 * 2, a well-known number", "it-1"),
    ]
    rows = candidates(tmp_path, problems(*((question.format(text), "1") for text, _ in expressions)))
    assert near(rows, tmp_path, 0.5) == {at: name for at, (_, name) in enumerate(expressions) if name}


def test_near_duplicates_of_a_near_duplicate_are_measured_against_the_kept_one(tmp_path: Path) -> None:
    """A chain in which each row is near the next one, and the last row is far from the first one."""
    words = [f"word{chr(97 + at // 26)}{chr(97 + at % 26)}" for at in range(60)]
    chain = [" ".join(words)]
    for at in range(1, 12):
        changed = chain[-1].split()
        changed[5 * at % 60] = f"other{chr(97 + at)}"
        chain.append(" ".join(changed))
    rows = candidates(tmp_path, problems(*((text, "1") for text in chain)))
    dropped = near(rows, tmp_path)
    rows_left = [at for at in range(len(chain)) if at not in dropped]
    assert rows_left[0] == 0
    assert 1 < len(rows_left) < len(chain)
    shingles = [{tuple(text.split()[at : at + 3]) for at in range(58)} for text in chain]
    for at, name in dropped.items():
        one, other = shingles[at], shingles[int(name.removeprefix("it-")) - 1]
        assert len(one & other) / len(one | other) >= 0.8


def test_conversations_that_differ_in_a_call_are_not_near(tmp_path: Path) -> None:
    tool = {"name": "f", "parameters": {"properties": {"city": {"type": "string"}}}}

    def weather(city: str) -> dict[str, Any]:
        call = {"function": {"name": "f", "arguments": {"city": city}}}
        texts = [
            {"role": "user", "content": "The weather there?"},
            {"role": "assistant", "tool_calls": [call]},
        ]
        return {"messages": texts, "tools": [tool]}

    rows = candidates(tmp_path, [weather("Bern"), weather("Basel"), weather("Bern")])
    assert near(rows, tmp_path) == {2: "it-1"}
    assert list(duplicates(rows)) == [(2, {"same as": "it-1"})]


def test_conversations_without_words_are_near_only_where_they_are_the_same(tmp_path: Path) -> None:
    def message_of(text: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": text}]}

    rows = candidates(tmp_path, [message_of("🙂"), message_of("🎲"), message_of("🙂")])
    assert near(rows, tmp_path) == {2: "it-1"}


def run_of(tmp_path: Path, **counts: int) -> Path:
    rows = [{"id": name, "correct": correct, "samples": 16} for name, correct in counts.items()]
    (tmp_path / "run" / "it").mkdir(parents=True)
    (tmp_path / "run" / "it" / "results.json").write_text(json.dumps({"per_problem": rows}))
    return tmp_path / "run"


def batch(**columns: list[Any]) -> Any:
    return pa.RecordBatch.from_pydict(columns)


def test_agreement_asks_two_of_sixteen(tmp_path: Path) -> None:
    rates = measured.rates_of_run(run_of(tmp_path, a=2, b=1))
    rows = batch(id=["a", "b", "c"], source=["x", "x", "x"], pass_rate=[None, 1.0, 1.0])
    assert list(measured.AgreementFilter(0.125, None, rates)(rows)) == [
        (1, {"agreement": 0.0625}),
        (2, {"agreement": "not measured"}),
    ]


def test_agreement_by_the_column_of_some_sources() -> None:
    rows = batch(id=["a", "b", "c"], source=["x", "y", "y"], pass_rate=[None, 0.1, 0.2])
    assert list(measured.AgreementFilter(0.125, ("y",), None)(rows)) == [(1, {"agreement": 0.1})]


def test_pass_rates_outside_the_bounds_are_dropped_and_unmeasured_problems_kept(tmp_path: Path) -> None:
    rates = measured.rates_of_run(run_of(tmp_path, a=16, b=8, c=0))
    rows = batch(id=["a", "b", "c", "d"])
    dropped = measured.PassRateFilter(0.1, 0.9, rates)(rows)
    assert [(at, detail["correct"]) for at, detail in dropped] == [(0, 16), (2, 0)]


def test_what_is_no_evaluation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no evaluation at"):
        measured.rates_of_run(tmp_path / "absent")
    (tmp_path / "results.json").write_text('{"per_problem": [{"id": "a"}]}')
    with pytest.raises(UserError, match="does not contain results of an evaluation"):
        measured.rates_of_run(tmp_path)


@given(text=st.text(st.characters(max_codepoint=127), max_size=80))
def test_words_are_the_same_by_the_quick_way_and_by_the_expression(text: str) -> None:
    assert words_of(text) == words_of(f"{text} é")[:-1]


@given(text=st.text(st.characters(max_codepoint=127), max_size=80))
def test_copies_are_the_same_by_the_quick_way_and_by_the_expression(text: str) -> None:
    assert meant_of(text).partition("\n")[2] == meant_of(f"{text} é").partition("\n")[2].removesuffix("é")


@given(text=st.text(st.characters(max_codepoint=127), max_size=80))
def test_numbers_are_the_same_by_the_quick_way_and_by_the_expression(text: str) -> None:
    assert must_be_equal(text, True) == must_be_equal(f"{text}é", True)

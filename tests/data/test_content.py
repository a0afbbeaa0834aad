"""Tests of the content filters: what a problem asks and refers to, and a user's own patterns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.commands import rstar2

from rstar2.data.candidates import Candidates
from rstar2.data.filters import ROW_FILTERS, Inputs, content
from rstar2.data.filters.patterns import FIELDS, PatternFilter
from rstar2.data.filters.settings import Figures, FilterSettings, Pattern
from rstar2.data.mixture.prepare import _RowPass
from rstar2.data.mixture.recipe import DEFAULT_FILTERS
from rstar2.data.own import own_source
from rstar2.data.reading import Origin, read_source

ASY = '[asy]\nlabel("(A) http://x.org <b>no</b>", (0,0)); draw((0,0)--(1,1));\n[/asy]'

FIGURES = [
    "![](images/fig_3.png) Find the area of the triangle.",
    "![image](https://cdn.example/abc.png)\n\nWhat is $x$?",
    "Find $x$. \\includegraphics[scale=0.4]{p12.eps}",
    f"Find the length of the segment. {ASY}",
    "Find it. \\begin{tikzpicture}\\draw (0,0) -- (1,1);\\end{tikzpicture}",
    "In the figure, $AB = 5$. Find $BC$.",
    "The diagram below shows four circles. How many squares fit?",
    "Three rhombuses are arranged as shown. Find the area.",
    "The rectangle is divided, as shown in the figure, into nine squares. Find its area.",
    "The adjoining figure shows two chords. Find the sine of the arc.",
    "A wheel is labelled with integers, as pictured below. What is the sum?",
    "Using the graph shown, find the slope.",
    "Angles $A$ and $B$ (see Figure 2) are equal. Find $C$.",
    "The two squares shown share the same centre. Find the area.",
    "From the given diagram, determine the number of edges.",
    "The figure shows part of a magic square. Find $x$.",
    "Consider the diagram. Find $x$.",
    "Given the figure, find $x$.",
    "Find the area of the shaded region. (see image)",
    "<image 1> Find $x$.",
    "[diagram omitted] Find $x$.",
    "According to the picture, what is $x$?",
    "Figure 2 shows a square. Find its area.",
    "The figure is not drawn to scale. Find $x$.",
    "In the ﬁg\u200bure, find $x$.",
    "In <b>the</b> \\textbf{figure}, find $x$.",
]
NO_FIGURES = [
    "Sketch the figure that the points form, and find its area.",
    "A figure skater spins to her right 2250 degrees. Which way does she face?",
    "Give the speed of light to 1 significant figure.",
    "How many different figures can be made with 4 sticks?",
    "It can be shown that $n$ is even. Find $n$.",
    "The graph of $y = f(x)$ passes through $(1, 2)$. Find $f(1)$.",
    "A picture frame costs 20 dollars. How much do 5 cost?",
    "The first rows are shown below. \\[\\begin{array}{cc} 1 & 2 \\\\ 3 & 4 \\end{array}\\] Find the next.",
    "The scores are as shown: 3, 4, 5. Find the mean.",
    "Find the image of the line $y = 2x$ under the map.",
    "The table shown below gives the cost.\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\nFind $a$.",
    "Using the figures 1, 2, 3, how many three-digit numbers can be formed?",
    "In the figure skating contest there are 5 judges. How many marks are given?",
    "From the drawing, 5 of 100 tickets win. What is the chance of a ticket?",
    "A picture is shown for 3 seconds, and then a blank. How long do 5 pictures take?",
    "The three numbers shown are 2, 3 and 5. Find the sum.",
    "On a scale of 1 to 10, the answers are 3 and 4. Find the mean.",
    "He wants to see images of 5 towns. How many orders are there?",
    "A convex figure has area 4. What is its least perimeter in the figure of merit used above?",
]
PROOFS = [
    "Prove that $\\sqrt{2}$ is irrational.",
    "Let $n$ be odd. Show that $n^2 - 1$ is divisible by 8.",
    "Let $a, b > 0$ with $a + b = 1$; prove $ab \\le 1/4$.",
    "Given a triangle $ABC$, prove: its angles sum to 180 degrees.",
    "Verify that the third moment is $\\mu^3$.",
    "Prove or disprove: every even number is a sum of two primes.",
    "Suppose $f$ is continuous. Show, without using a theorem, that $f$ is bounded.",
    "**Prove that** there are infinitely many primes.",
    "Give a combinatorial proof of the identity.",
    "Let $x > 1$. \\textbf{Prove} that $x > 0$.",
    "Let $x > 1$. <b>Pr\u200bove</b> that $x > 0$.",
    "Let $x > 1$. Prоve that $x > 0$.",
]
NO_PROOFS = [
    "It can be shown that $x$ is an integer. Find $x$.",
    "One can prove that such an $n$ exists. Find the least such $n$.",
    "Show that $n^2$ is even and find the remainder of $n$ by 2.",
    "What is the least $n$ for which you can prove that $n! > 2^n$?",
    "His report card needs to show that he had 80 or more. What grade does he need?",
    "Prove that the limit exists. What is the limit?",
    "The proof of the theorem has 12 lines of 30 letters. Compute the number of letters.",
    "Compute $1 + 1$, then prove that you are right.",
    "Show that $x = 3$ is the only root, and enter $x$.",
    "In order to show that $n$ is even, two lemmas were used. Their numbers were 3 and 4.",
]
QUESTIONS = [
    "Let $f(x) = x^2$. (a) Find $f(2)$. (b) Find $f(3)$.",
    "A box has 3 balls.\n(i) How many pairs are there?\n(ii) What is the chance of a red one?",
    "1) Calculate the area. 2) Calculate the perimeter.",
    "1. Find $a$.\n2. Find $b$.",
    "a) Prove that it is even. b) Determine its last digit.",
    "For the sequence: (1) determine $a_5$; (2) is it bounded?",
    "Part A: find $x$. Part B: find $y$.",
    "Q1. Find $x$. Q2. Find $y$.",
    "\\begin{enumerate}\\item Find $x$.\\item[(b)] Find $y$.\\end{enumerate}",
    "（1）Find $x$. （2）Find $y$.",
    "\\textbf{(a)} Find $x$. \\textbf{(b)} Find $y$.",
    "<p>a. Find $x$.</p><p>b. Find $y$.</p>",
]
NO_QUESTIONS = [
    "Find all triples satisfying (a) $0 \\le A < B$, (b) there exist integers $a$ and $b$. How many are there?",
    "Find the smallest $k$ for which (1) $a_n$ is increasing (2) $a_9 = k$ are satisfied.",
    "Find $f(1) + f(2)$ if $f(a) = 1$ and $f(b) = 2$.",
    "Part A: the rope is 3 m long. Part B: it is 4 m long. Find the sum.",
    "\\begin{itemize}\\item $x$ is even.\\item $x > 2$.\\end{itemize} Find the least $x$.",
    "What is $\\tau(1) + \\tau(2)$? Is it what you expected?",
    "(a) Find $x$ if $x + 1 = 2$.",
    "The point is $(a)$ or (b). What is it?",
    "A number $n$ is (i) even and (ii) a square. What is the least $n > 1$?",
    f"Find $x$. {ASY}",
]
CHOICES = [
    "Find the curve. (A) Line (B) Circle (C) Parabola (D) Ellipse",
    "What is it? $\\textbf{(A)}\\ 3 \\qquad \\textbf{(B)}\\ 4 \\qquad \\textbf{(C)}\\ 5$",
    "What is $2 + 2$?\nA. 3\nB. 4\nC. 5\nD. 6",
    "Then $x$ equals ( ) A: 1 B: 2 C: 3 D: 4",
    "The area is (a) 12 (b) 13 (c) 14 (d) 15",
    "What is $x$? a) 1 b) 2 c) 3 d) 4",
    "What is $x$? [A] 1 [B] 2 [C] 3 [D] 4",
    "What is $x$?（A）1（B）2（C）3（D）4",
    "What is $x$? A、1 B、2 C、3 D、4",
    "What is $x$? $(\\mathrm{A})\\ 1\\ (\\mathrm{B})\\ 2\\ (\\mathrm{C})\\ 3$",
    "What is $x$? <b>(A)</b> 1 <b>(B)</b> 2 <b>(C)</b> 3",
    "Which of the following is a prime?",
    "Which one of the following is right: I, II or III?",
]
NO_CHOICES = [
    "Let $P(A) = 0.2$, $P(B) = 0.3$, $P(C) = 0.5$. Find $P(A \\cup B)$.",
    "Juice box A costs 4 dollars. Juice box B costs 5 dollars more than A. Box C costs 7.",
    "Find all $n$ with (a) $n$ even (b) $n > 2$ (c) $n < 9$ (d) $3 | n$ such that $n^2$ is least.",
    "Let $[A]$, $[B]$, $[C]$ and $[D]$ be areas with $[A] = 2[B]$. Find $[C]$.",
    "Do these steps: a) add 1 b) double it c) add 2 d) halve it. What is left of 5?",
    "Which of the numbers 1 to 9 divides 10?",
    f"Find $x$. {ASY}",
    "Triangles $(A)$, $(B)$ and $(C)$ are congruent.",
]
WITH_ANSWER = [
    ("What is $6 \\cdot 7$? Answer: 42", "42"),
    ("What is $6 \\cdot 7$? (Ans. 42)", "42"),
    ("What is $6 \\cdot 7$? The answer is $42$.", "42"),
    ("What is half of 1? **Answer:** $\\frac{1}{2}$", "\\frac12"),
    ("What is half of 1? The final answer is 0.5.", "\\frac{1}{2}"),
    ("Hint: \\boxed{096}. Find $x$.", "96"),
    ("What is it?\n#### 1,000", "1000"),
    ("Find $n$.\n\nSolution. We have $n = 6 \\cdot 7 = 42$, as $n$ is a product.", "42"),
    ("Find $n$.\n### Answer\n42", "42"),
    ("Find $x$. Ans 42", "42"),
    ("Find $x$. Answer: 42 (see the book)", "42"),
    ("Find $x$. <answer>42</answer>", "42"),
    ("Find $x$. Ａnswer: ４２", "42"),
    ("Find $x$. \\textbf{Answer:} 42", "42"),
    ("Find $x$. (Answer: $\\frac{1}{2}$)", "0.5"),
    ("Find $x$.\nSolution. We get 1/2.", "\\frac12"),
    ("What is it? Result: 42", "42"),
]
WITHOUT_ANSWER = [
    ("Tom has 42 apples and gives away none. How many has he left?", "42"),
    ("What is $\\boxed{x}$ if $x + 1 = 43$?", "42"),
    ("When a number is doubled, the result is 14. Find twice the number.", "14"),
    ("The answer is 5 more than 42. What is it?", "5"),
    ("Answer to the nearest 10. What is 12 rounded?", "10"),
    ("Express your answer as a fraction. What is 1/2?", "\\frac{1}{2}"),
    ("His answer was 41, which is wrong. What is 6 times 7?", "41"),
    ("Find $n$, if the answer is $n + 1 = 43$ for all who asked.", "42"),
    ("The final answer can be written in the form $\\frac{m}{n}$. Find $m + n$.", "3"),
    ("A solution has 42 g of salt. How much is left?", "42"),
    ("Find $n$.\n\nSolution. We have $n = 420$.", "42"),
]
LINKS = ["See https://www.desmos.com/calculator/gz8. Find it.", "www.example.com asks: what is 1 + 1?"]
NO_LINKS = ["On Amazon.com the boots cost 16 dollars. How much are two?", f"Find it. {ASY}"]
HTML = [
    "Find <i>x</i>.",
    "<p>What is 1 + 1?",
    "x<sup>2</sup> = 4",
    "If 1 &lt; x, find x.",
    "a<br/>b",
    "&nbsp;Find it.",
]
NO_HTML = [
    "Let $a<b>c$ and $d < e$.",
    "$a<b<c<d$",
    "x & y; AT&T; find it.",
    "\\begin{array} 1 & 2 \\end{array}",
    f"{ASY}",
]

FAULTY: dict[str, tuple[list[str], list[str]]] = {
    "figures": (FIGURES, NO_FIGURES),
    "proofs": (PROOFS, NO_PROOFS),
    "questions": (QUESTIONS, NO_QUESTIONS),
    "choices": (CHOICES, NO_CHOICES),
    "links": (LINKS, NO_LINKS),
    "html": (HTML, NO_HTML),
}


def dropped(name: str, *texts: str) -> list[int]:
    rows = pa.RecordBatch.from_pylist([{"problem": text, "answer": "7"} for text in texts])
    judge = ROW_FILTERS[name](Inputs(FilterSettings(), {}, {}))
    return [at for at, detail in judge(rows) if detail["text"]]


@pytest.mark.parametrize("name", FAULTY)
def test_a_filter_on_content_finds_its_faults_and_leaves_problems_that_only_look_like_them(name: str) -> None:
    bad, good = FAULTY[name]
    assert [text for at, text in enumerate(bad) if at not in dropped(name, *bad)] == []
    assert [good[at] for at in dropped(name, *good)] == []


def test_every_filter_on_content_is_tried_here() -> None:
    on_content = {
        name
        for name, make in ROW_FILTERS.items()
        if name not in ("grams", "unreadable", "agreement", "pass-rate", "solved")
        and isinstance(make(Inputs(FilterSettings(), {}, {})), content.ContentFilter)
    }
    assert on_content == FAULTY.keys()


def test_a_figure_that_is_drawn_in_code_can_be_kept() -> None:
    rows = pa.RecordBatch.from_pylist(
        [
            {"problem": text}
            for text in (f"Find it, as shown. {ASY}", "Find it, as shown.", f"{ASY} ![](a.png)")
        ]
    )
    filter_settings = FilterSettings(figures=Figures(keep_drawn=True))
    assert [at for at, _ in ROW_FILTERS["figures"](Inputs(filter_settings, {}, {}))(rows)] == [1, 2]


@pytest.mark.parametrize(("text", "answer"), WITH_ANSWER)
def test_an_answer_that_the_problem_announces_is_stated(text: str, answer: str) -> None:
    assert content.stated_answer(text, answer)


@pytest.mark.parametrize(("text", "answer"), WITHOUT_ANSWER)
def test_an_answer_that_only_occurs_in_the_problem_is_not_stated(text: str, answer: str) -> None:
    assert content.stated_answer(text, answer) is None


def test_what_is_found_stands_in_the_details_of_the_drop() -> None:
    rows = pa.RecordBatch.from_pylist([{"problem": "So:\nprove that it holds", "answer": "7"}])
    assert list(ROW_FILTERS["proofs"](Inputs(FilterSettings(), {}, {}))(rows)) == [(0, {"text": "prove"})]


@pytest.mark.parametrize("name", [*FAULTY, "stated-answer"])
def test_a_garbled_text_is_looked_through_in_linear_time(name: str) -> None:
    """A search with quadratic time in the length of a text would exceed the test's time limit."""
    pieces = (
        *(
            "\n",
            " ",
            ". ",
            "=",
            "*",
            "a",
            "....",
            "the ",
            "(a) ",
            "(A) ",
            "\n1. ",
            "A. ",
            "[asy]",
            "![",
            "\\boxed{",
        ),
        *(
            "answer: ",
            "answer **",
            "Solution ",
            "prove ",
            "shown below ",
            "the a shown",
            "http",
            "www.",
            "&lt",
            "<p ",
            "<i>",
        ),
        *("$", "|", "\\begin{asy}", "#### ", "{"),
    )
    rows = pa.RecordBatch.from_pylist([{"problem": f"x {piece * 50_000}", "answer": "7"} for piece in pieces])
    list(ROW_FILTERS[name](Inputs(FilterSettings(), {}, {}))(rows))


# ── patterns ──


def candidates(tmp_path: Path, rows: list[dict[str, Any]]) -> Candidates:
    file = tmp_path / "it.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with (tmp_path / "refused").open("w") as dropped_file:
        counts = read_source(
            Origin("it", own_source(file), (file,)), tmp_path / "it.arrow", dropped_file, lambda _: None
        )
    assert counts.refused == {}
    return Candidates(own_source(file).kind, [("it", tmp_path / "it.arrow")])


def matches(rows: Candidates, pattern: Pattern) -> dict[int, dict[str, Any]]:
    apply = _RowPass([PatternFilter.of(pattern)], "problem" if rows.kind == "problems" else "messages")
    return {number: detail for group in rows.groups() for _, (number, detail) in apply(group)[1]}


PROBLEMS = [
    {"problem": "Zoë asks: how many prime numbers are below ten, in GeoGebra?", "answer": "4"},
    {"problem": "What is 1 + 1?", "answer": "geogebra"},
    {"problem": "What is 1 + 2?", "answer": "3"},
]


def test_a_pattern_reads_the_problem_or_the_answer(tmp_path: Path) -> None:
    rows = candidates(tmp_path, PROBLEMS)
    match = {"field": "problem", "text": "e below ten, in GeoGebra?"}
    assert matches(rows, Pattern(regex="(?i)geogebra")).keys() == {0}
    assert matches(rows, Pattern(regex="(?i)geogebra"))[0]["text"].endswith(match["text"][2:])
    assert matches(rows, Pattern(regex="(?i)geogebra", fields=("answer",))).keys() == {1}
    assert matches(rows, Pattern(regex="(?i)geogebra", fields=("problem", "answer"))).keys() == {0, 1}


def test_a_pattern_reads_what_each_role_says_and_what_calls_are_given(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "calls-word"}'}}
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    messages = [
        {"role": "system", "content": "system-word"},
        {"role": "user", "content": "user-word"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "tool-word", "tool_call_id": "1"},
        {"role": "assistant", "content": "assistant-word"},
    ]
    plain = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    rows = candidates(
        tmp_path, [{"messages": plain}, {"messages": messages, "tools": tools}, {"messages": plain}]
    )
    for field in FIELDS["conversations"]:
        for other in FIELDS["conversations"]:
            rows_matched = matches(rows, Pattern(regex=f"{other}-word", fields=(field,)))
            assert rows_matched.keys() == ({1} if field == other else set()), (field, other)
    assert matches(rows, Pattern(regex="(user|assistant)-word")).keys() == {1}
    assert matches(rows, Pattern(regex="(system|tool|calls)-word")).keys() == set()
    assert matches(rows, Pattern(regex="^Hi$")).keys() == {0, 2}


def test_no_pattern_takes_exponential_time(tmp_path: Path) -> None:
    """A backtracking search would need 2^30,000 steps here."""
    rows = candidates(tmp_path, [{"problem": "a" * 30_000 + "!", "answer": "1"}])
    assert matches(rows, Pattern(regex="(a+)+$")) == {}


def own_recipe(tmp_path: Path, recipe: str) -> Path:
    (tmp_path / "problems.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in PROBLEMS))
    (tmp_path / "mine.toml").write_text(recipe)
    return tmp_path / "mine.toml"


def test_a_pattern_is_counted_by_its_name_on_the_card(tmp_path: Path) -> None:
    recipe = own_recipe(
        tmp_path,
        "filters = ['geogebra', 'duplicates']\n[sources.p]\n[patterns.geogebra]\nregex = '(?i)GEOGEBRA'\n",
    )
    out = tmp_path / "out"
    result = rstar2("data", "prepare", recipe, "--from", f"p={tmp_path / 'problems.jsonl'}", "--output", out)
    assert result.code == 0, result.stderr
    card = (out / "card.md").read_text()
    assert "| geogebra | 1 | 1 p |" in card
    assert "**geogebra** p-1: field: problem, text: " in card
    assert json.loads((out / "dropped.jsonl").read_text())["reason"] == "geogebra"


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (
            "filters = ['g']\n[patterns.g]\nregex = '(?=a)b'\n",
            "patterns.g.regex = '(?=a)b' is not a regular expression",
        ),
        ("filters = ['g']\n[patterns.g]\nregex = '(ab'\n", "missing )"),
        ("filters = ['g']\n[patterns.g]\nregex = '(x{900}){900}'\n", "patterns.g.regex"),
        ("filters = ['g']\n[patterns.g]\nregex = ''\n", "patterns.g.regex must be"),
        ("filters = ['g']\n[patterns.g]\nregexp = 'a'\n", "patterns.g.regex is missing"),
        (
            "filters = ['g']\n[patterns.g]\nregex = 'a'\nfield = 'a'\n",
            "Known keys in that table: regex, fields",
        ),
        (
            "filters = ['g']\n[patterns.g]\nregex = 'a'\nfields = ['user']\n",
            "patterns.g.fields: problems have no user",
        ),
        ("filters = ['g']\n[patterns.g]\nregex = 'a'\nfields = ['solution']\n", "patterns.g.fields"),
        ("filters = ['g']\n[patterns.g]\nregex = 'a'\nfields = []\n", "patterns.g.fields is empty"),
        ("filters = ['html']\n[patterns.g]\nregex = 'a'\n", "patterns.g is not used"),
        ("filters = ['html']\n[patterns.html]\nregex = 'a'\n", "a filter of rstar2 has the name html"),
        ("filters = ['geogbra']\n[patterns.geogebra]\nregex = 'a'\n", "did you mean geogebra?"),
    ],
)
def test_a_pattern_that_cannot_work_is_refused_before_a_row_is_read(
    tmp_path: Path, recipe: str, message: str
) -> None:
    file = own_recipe(tmp_path, f"{recipe}[sources.p]\n")
    out = tmp_path / "out"
    result = rstar2("data", "prepare", file, "--from", f"p={tmp_path / 'problems.jsonl'}", "--output", out)
    assert (result.code, message in result.stderr, "Traceback" in result.stderr) == (2, True, False), (
        result.stderr
    )
    assert not out.exists()


def test_settings_that_are_not_used_are_not_in_the_card(tmp_path: Path) -> None:
    """The card of a set from an earlier version lacks these settings. The command must still accept it as the same
    set."""
    recipe = own_recipe(tmp_path, "filters = ['figures']\n[sources.p]\n")
    words = (
        "data",
        "prepare",
        recipe,
        "--from",
        f"p={tmp_path / 'problems.jsonl'}",
        "--output",
        tmp_path / "out",
    )
    plan = json.loads(rstar2(*words, "--dry-run").stdout)
    assert not {"figures", "patterns"} & plan.keys()
    assert plan["rewrite"] == {"model": "", "shortest": 0.3, "longest": 3.0}
    changed = ("--set", "figures.keep_drawn=true", "--set", "rewrite.accepted=0")
    plan = json.loads(rstar2(*words, "--dry-run", *changed).stdout)
    assert (plan["figures"], plan["rewrite"]["accepted"]) == ({"keep_drawn": True}, 0)


def test_content_is_filtered_by_default_and_not_in_the_recipes_of_the_paper(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(
        "".join(
            f"{json.dumps({'problem': text, 'answer': '7'})}\n"
            for text in (
                "In the figure, find x.",
                "Prove that 7 is prime.",
                "What is 3 + 4? Answer: 7",
                "What is 7?",
            )
        )
    )
    result = rstar2("data", "prepare", tmp_path / "p.jsonl", "--output", tmp_path / "out")
    assert result.code == 0, result.stderr
    steps = {
        row["filter"]: row["dropped"]
        for row in json.loads((tmp_path / "out" / "card.json").read_text())["steps"]
    }
    assert {name: steps[name] for name in ("figures", "proofs", "stated-answer")} == {
        "figures": 1, "proofs": 1, "stated-answer": 1
    }  # fmt: skip
    assert not set(DEFAULT_FILTERS["conversations"]) & {*FAULTY, "stated-answer"}
    result = rstar2(
        "data", "prepare", "dapo", "--from", f"dapo={tmp_path / 'p.jsonl'}", "--output", "x", "--dry-run"
    )
    assert "proofs" not in result.stdout

r"""Measures which copies of problems the filters of `rstar2 data prepare` find, and which other problems they drop.

The copies are changed versions of problems in files: other spellings (`\dfrac` for `\frac`) or other words.
`benchmarks/data.py --copies` runs it.
"""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pyarrow as pa

from rstar2.data.benchmarks import read_problems
from rstar2.data.candidates import Candidates
from rstar2.data.filters import ROW_FILTERS, Inputs
from rstar2.data.filters.near import near_duplicates
from rstar2.data.filters.settings import FilterSettings, Grams, Near
from rstar2.data.normalize import normalized, words_of
from rstar2.data.own import own_source
from rstar2.data.problem import Problem
from rstar2.data.reading import Origin, read_source

RULES = ("literal", "distinctive", "contained")
SHORT = 8
"""Problems with fewer words than this are also reported separately."""
_FORMULA = re.compile(r"\$[^$]+\$")
_WORD = re.compile(r"(?<![\\\w<&{])[A-Za-z]{2,}(?![\w}]*[}>;])")
Change = Callable[[str, random.Random], str]


def _formulas(change: Callable[[str], str]) -> Change:
    """Return a function that changes every formula between dollar signs."""
    return lambda text, rng: _FORMULA.sub(lambda formula: change(formula.group()), text)


def _each_word(change: Callable[[str, random.Random], str], share: float) -> Change:
    """Return a function that changes a random share of the words outside formulas."""

    def changed(text: str, rng: random.Random) -> str:
        def one(word: re.Match[str]) -> str:
            return change(word.group(), rng) if rng.random() < share else word.group()

        parts = re.split(r"(\$[^$]+\$)", text)
        return "".join(part if part.startswith("$") else _WORD.sub(one, part) for part in parts)

    return changed


def _split(word: str, rng: random.Random, sign: str) -> str:
    at = rng.randrange(1, len(word))
    return word[:at] + sign + word[at:]


def _one_word(text: str, rng: random.Random) -> str:
    """Replace one random word outside formulas, neither the first nor the last."""
    spans = [formula.span() for formula in _FORMULA.finditer(text)]
    candidates = [
        word for word in _WORD.finditer(text)
        if not any(start <= word.start() < end for start, end in spans)
    ][1:-1]  # fmt: skip
    if not candidates:
        return text
    word = rng.choice(candidates)
    return text[: word.start()] + "whichever" + text[word.end() :]


SPELLINGS: dict[str, Change] = {
    r"`\dfrac`": lambda text, rng: text.replace("\\frac", "\\dfrac"),
    r"`\frac12`": lambda text, rng: re.sub(r"\\frac\{(\d)\}\{(\w)\}", r"\\frac\1\2", text),
    r"`\left(`": _formulas(lambda formula: formula.replace("(", "\\left(").replace(")", "\\right)")),
    "HTML spans": _each_word(lambda word, rng: f'<span class="t">{word}</span>', 0.3),
    "characters without width": _each_word(lambda word, rng: _split(word, rng, "\u200b"), 0.3),
    "full-width digits": lambda text, rng: re.sub(
        "[0-9]", lambda digit: chr(ord(digit.group()) + 0xFEE0), text
    ),
}
"""Changes of spelling. These hid the most copies from earlier versions of the filters, which did not normalize
texts."""


def _all_spellings(text: str, rng: random.Random) -> str:
    for name in (
        r"`\left(`",
        r"`\frac12`",
        r"`\dfrac`",
        "full-width digits",
        "characters without width",
        "HTML spans",
    ):
        text = SPELLINGS[name](text, rng)
    return text


MORE_SPELLINGS: dict[str, Change] = {
    "the six above at once": _all_spellings,
    r"`\tfrac`, `\cfrac`": lambda text, rng: text.replace("\\frac", rng.choice(["\\tfrac", "\\cfrac"])),
    "`1/2`": lambda text, rng: re.sub(r"\\frac\{(\w+)\}\{(\w+)\}", r" \1/\2 ", text),
    r"`\( \)`": _formulas(lambda formula: f"\\({formula[1:-1]}\\)"),
    "no delimiters": lambda text, rng: text.replace("$", ""),
    "`^2` for `^{2}`": lambda text, rng: re.sub(r"\^\{(\w)\}", r"^\1", text),
    "`²`, `≤`, `π`, `×`, `°`": lambda text, rng: (
        text.replace("^2", "²").replace("\\le ", "≤ ").replace("\\pi", "π")
        .replace("\\times", "×").replace("^\\circ", "°")
    ),
    "HTML entities and paragraphs": lambda text, rng: (
        "<p>" + text.replace("<", "&lt;").replace(" the ", "&nbsp;the ").replace("\n\n", "</p><p>") + "</p>"
    ),
    "soft hyphens": _each_word(lambda word, rng: _split(word, rng, "\u00ad"), 0.3),
    "doubled backslashes": lambda text, rng: text.replace("\\", "\\\\"),
    "upper case, other spaces": lambda text, rng: text.replace(" ", "\u2003").replace("find", "FIND"),
    r"`\,`, `\displaystyle`": _formulas(lambda formula: f"$\\displaystyle {formula[1:-1]}\\,$"),
    "Markdown's bold": _each_word(lambda word, rng: f"**{word}**", 0.2),
}  # fmt: skip
_LOOK_ALIKE = str.maketrans("aeocpxAEOC", "аеοсрхАЕОС")
RARER_SPELLINGS: dict[str, Change] = {
    "`△`, `∠`, `∥`, `⊥`": lambda text, rng: (
        text.replace("\\triangle", "△").replace("\\angle", "∠").replace("\\parallel", "∥").replace("\\perp", "⊥")
    ),
    r"`\bar`, `\vec`, `\varnothing`, `\Bbb`, `\Vert`": lambda text, rng: (
        text.replace("\\overline", "\\bar").replace("\\overrightarrow", "\\vec")
        .replace("\\emptyset", "\\varnothing").replace("\\mathbb", "\\Bbb").replace("\\|", "\\Vert ")
    ),
    r"`\mod` for `\bmod`, `\pmod`": lambda text, rng: re.sub(r"\\[bp]mod", r"\\mod", text),
    r"`{n \choose k}`": lambda text, rng: re.sub(r"\\d?binom\{(\w+)\}\{(\w+)\}", r"{\1 \\choose \2}", text),
    "JSON text": lambda text, rng: json.dumps(text)[1:-1],
    "`x**2`": lambda text, rng: text.replace("^", "**"),
    "fonts within fonts": _each_word(lambda word, rng: f"\\textbf{{\\textit{{{word}}}}}", 0.3),
    r"`\textcolor`, `{\color …}`": _each_word(
        lambda word, rng: rng.choice((f"\\textcolor{{red}}{{{word}}}", f"{{\\color{{red}} {word}}}")), 0.3
    ),
    "`[latex]…[/latex]`": _formulas(lambda formula: f"[latex]{formula[1:-1]}[/latex]"),
    "`<latex>`, `<script type=\"math/tex\">`": lambda text, rng: _FORMULA.sub(
        lambda formula: rng.choice(("<latex>{}</latex>", '<script type="math/tex">{}</script>')).format(
            formula.group()[1:-1]
        ),
        text,
    ),
    "`<img alt=\"…\">`": _formulas(lambda formula: f'<img alt="{formula}" src="x.png">'),
    "`[b]…[/b]`": _each_word(lambda word, rng: f"[b]{word}[/b]", 0.3),
    "`<wbr>` within words": _each_word(lambda word, rng: _split(word, rng, "<wbr>"), 0.3),
    "hyphens at line breaks": lambda text, rng: re.sub(r"(?<= [a-z]{3})(?=[a-z]{4,} )", "-\n", text),
    "Markdown's `_word_`": _each_word(lambda word, rng: f"_{word}_", 0.3),
    "Cyrillic and Greek look-alikes": _each_word(lambda word, rng: word.translate(_LOOK_ALIKE), 0.3),
    "entities escaped twice": lambda text, rng: (
        text.replace("&", "&amp;amp;").replace("<", "&amp;lt;").replace(" the ", "&amp;nbsp;the ")
    ),
}  # fmt: skip
NOT_ALIKE: dict[str, Change] = {
    "numbers in words (2 for two, 3 for three)": lambda text, rng: re.sub(
        r"\bthree\b", "3", re.sub(r"\btwo\b", "2", text)
    ),
    "`1 000`": lambda text, rng: re.sub(r"(?<=\d)(?:,|\{,\})(?=\d{3})", " ", text),
    "`ν` for v": _each_word(lambda word, rng: word.replace("v", "ν"), 0.3),
}
"""Changes of spelling that the normal form does not undo."""
WORDS: dict[str, Change] = {
    "a word in front": lambda text, rng: f"Please {text[0].lower()}{text[1:]}",
    "a sentence in front": lambda text, rng: f"Solve the following task and explain each step. {text}",
    "a label": lambda text, rng: f"{rng.choice(['Problem', 'Example'])} {rng.randrange(1, 99)}. {text}",
    "one word changed": _one_word,
}


def changed_copies(problems: Iterable[Problem], change: Change, seed: int) -> list[tuple[Problem, str]]:
    """Return the problems that the change alters, each with its changed text."""
    rng = random.Random(seed)
    copies = [(problem, change(problem.problem, rng)) for problem in problems]
    return [(problem, text) for problem, text in copies if text != problem.problem]


def measure_copies(
    benchmarks: Iterable[Path], clean: Iterable[Path], leaked: Iterable[str], folder: Path, seed: int
) -> None:
    """Print the share of copies that each rule of `grams` and each setting of `near-duplicates` finds."""
    measured = {file.stem: read_problems(file) for file in benchmarks}
    originals = [problem for problems in measured.values() for problem in problems]
    others = [problem for file in clean for problem in read_problems(file)]
    _measure_grams(measured, originals, others, frozenset(leaked), seed)
    _measure_near(originals, others, folder, seed)


def _measure_grams(
    measured: Mapping[str, list[Problem]],
    originals: list[Problem],
    others: list[Problem],
    leaked: frozenset[str],
    seed: int,
) -> None:
    filters = {
        rule: ROW_FILTERS["grams"](Inputs(FilterSettings(grams=Grams(rule=rule)), measured, {}))
        for rule in RULES
    }

    def dropped(rule: str, texts: list[str]) -> list[int]:
        return [at for at, _ in filters[rule](pa.RecordBatch.from_pydict({"problem": texts}))]

    print(f"\n| copies of {len(originals)} problems | copies | {' | '.join(RULES)} |\n|---|---|---|---|---|")
    for name, change in {**SPELLINGS, **MORE_SPELLINGS, **RARER_SPELLINGS, **NOT_ALIKE, **WORDS}.items():
        copies = changed_copies(originals, change, seed)
        for title, chosen in ((name, copies), (f"{name}, fewer than {SHORT} words", _short(copies))):
            if not chosen or (title != name and name not in WORDS):
                continue
            texts = [text for _, text in chosen]
            shares = [len(dropped(rule, texts)) / len(texts) for rule in RULES]
            print(f"| {title} | {len(texts)} | {' | '.join(f'{share:.3f}' for share in shares)} |")
    print(f"\n| {len(others)} other problems | {' | '.join(RULES)} |\n|---|---|---|---|")
    ids_dropped = {
        rule: [others[at].id for at in dropped(rule, [each.problem for each in others])] for rule in RULES
    }
    true = {rule: sum(each in leaked for each in ids) for rule, ids in ids_dropped.items()}
    clean = len(others) - sum(each.id in leaked for each in others)
    rows = {
        "dropped": [str(len(ids_dropped[rule])) for rule in RULES],
        f"known copies found, of {len(leaked)}": [str(true[rule]) for rule in RULES],
        "precision": [f"{true[rule] / max(1, len(ids_dropped[rule])):.1%}" for rule in RULES],
        "clean problems lost": [f"{(len(ids_dropped[rule]) - true[rule]) / clean:.1%}" for rule in RULES],
    }
    for title, cells in rows.items():
        print(f"| {title} | {' | '.join(cells)} |")


def _short(copies: list[tuple[Problem, str]]) -> list[tuple[Problem, str]]:
    return [each for each in copies if len(words_of(normalized(each[0].problem))) < SHORT]


_NEAR = {
    "the default": Near(),
    "`near.words=1`": Near(words=1),
    "`near.words=1 near.similarity=0.7`": Near(words=1, similarity=0.7),
}
_LENGTHS = ((0, 12), (12, 25), (25, 50), (50, 10_000))
"""Ranges of lengths in words into which problems are grouped. The upper limits are exclusive."""


def _measure_near(originals: list[Problem], others: list[Problem], folder: Path, seed: int) -> None:
    print(f"\n| near duplicates | copies | {' | '.join(_NEAR)} |\n|---|---|{'---|' * len(_NEAR)}")
    every = [*originals, *others]
    for name in ("a label", "one word changed", "a sentence in front"):
        copies = changed_copies(every, WORDS[name], seed)
        for low, high in _LENGTHS:
            chosen = [each for each in copies if low <= len(words_of(normalized(each[0].problem))) < high]
            texts = [(text, problem.answer) for problem, copy in chosen for text in (problem.problem, copy)]
            shares = [
                sum(at % 2 for at in _near(texts, settings, folder)) / max(1, len(chosen))
                for settings in _NEAR.values()
            ]
            cells = " | ".join(f"{share:.3f}" for share in shares)
            print(f"| {name}, {low} to {high - 1} words | {len(chosen)} | {cells} |")
    distinct = [(problem.problem, problem.answer) for problem in every]
    counts = " | ".join(str(len(_near(distinct, settings, folder))) for settings in _NEAR.values())
    print(f"| dropped of the problems themselves | {len(distinct)} | {counts} |", flush=True)


def _near(problems: list[tuple[str, str]], settings: Near, folder: Path) -> list[int]:
    """Return the indices of the problems that are dropped as near duplicates."""
    file, read = folder / "near.jsonl", folder / "near.arrow"
    lines = (json.dumps({"problem": text, "answer": answer}) + "\n" for text, answer in problems)
    file.write_text("".join(lines), encoding="utf-8")
    source = own_source(file)
    read_source(Origin("near", source, (file,)), read, io.StringIO(), lambda rows: None)
    rows = Candidates(source.kind, [("near", read)])
    return [at for at, _ in near_duplicates(rows, settings, folder / "near.npy")]

"""Generates arithmetic problems that are easier with Python, and tool-use conversations that solve such problems.

Held-out problems never appear in training, for any seed, because a hash of a problem's text decides whether the problem
is held out.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from rstar2.data.problem import Problem
from rstar2.errors import UserError
from rstar2.loop.formats.format import read_format
from rstar2.loop.tools.python_code_with_standard_io import NAME
from rstar2.loop.turns import tags

HELD_OUT_SHARE = 4
"""One in `HELD_OUT_SHARE` problems is held out."""

OPERANDS = range(10, 100)
"""The range of the two numbers in a problem."""

ANSWER_DIGITS = 4
"""Number of digits in every answer. With a fixed number, a tiny model copies digits over only one
distance."""

FORMAT = read_format("demo")


@dataclass(frozen=True)
class Question:
    """A problem, a program that solves the problem, and a program that fails."""

    problem: Problem
    code: str
    broken: str
    """A program that fails with an exception, like a careless first attempt."""


@dataclass(frozen=True)
class Family:
    """A family of problems that differ only in two two-digit numbers, `a` and `b`."""

    ask: str
    """A description of the quantity to find. The description contains no digits, so that the two numbers of a problem
    are easy to see."""
    expression: str
    """The Python expression for the quantity. Like `ask`, the expression has no digits."""
    imports: str = ""
    """The import statement that the expression needs."""


FAMILIES: dict[str, Family] = {
    "product": Family("a * b", "a * b"),
    "gcd": Family("the gcd of a * a * b and a * b * b", "gcd(a * a * b, a * b * b)", "from math import gcd"),
    "lcm": Family("the lcm of a and b", "lcm(a, b)", "from math import lcm"),
    "power": Family("a^b mod (a * a + b)", "pow(a, b, a * a + b)"),
    "count": Family(
        "how many n below a * b have n * n mod a above n mod b",
        "sum(n * n % a > n % b for n in range(a * b))",
    ),
    "digits": Family("the digit sum of (a * b)^(a + b)", "sum(map(int, str((a * b) ** (a + b))))"),
}


def questions(seed: int, held_out: bool) -> Iterator[Question]:
    """Yields distinct questions until none is left: held-out questions if `held_out` is set, and training questions if
    not. In each round, every family yields at most one question."""
    rng = random.Random(f"{seed}-{held_out}")
    drawn: set[str] = set()
    while len(drawn) < len(FAMILIES) * len(OPERANDS) ** 2:
        for name, family in FAMILIES.items():
            a, b = rng.choice(OPERANDS), rng.choice(OPERANDS)
            text = f"Find {family.ask}, where a = {a} and b = {b}."
            if text in drawn:
                continue
            drawn.add(text)
            if _is_held_out(text) != held_out:
                continue
            question = _question(rng, name, text, f"a = {a}\nb = {b}\n")
            if len(question.problem.answer) == ANSWER_DIGITS:
                yield question


def held_out(seed: int, count: int) -> list[Problem]:
    """Returns distinct problems that training never uses."""
    return [question.problem for question in _take(seed, held_out=True, count=count)]


def training(seed: int, count: int, skip: int = 0) -> list[Problem]:
    """Returns distinct problems for RL. The first `skip` problems are left out, because SFT conversations use them."""
    return [question.problem for question in _take(seed, held_out=False, count=skip + count)[skip:]]


def traces(seed: int, count: int, flaws: dict[str, float]) -> Iterator[list[dict[str, str]]]:
    """Yields synthetic tool-use conversations for SFT. Some of the conversations are flawed on purpose.

    `flaws` is a dict from each kind of flaw to its share: `repaired` (a failed call, then one that works), `guessed` (a
    number without a call), `wrong` (a number that differs from the tool's output), `missing` (no answer block) and
    `repeated` (two answer blocks). The remaining conversations have no flaw.
    """
    rng = random.Random(f"traces-{seed}")
    kinds, weights = [*flaws, "clean"], [*flaws.values(), 1.0 - sum(flaws.values())]
    for question in _take(seed, held_out=False, count=count):
        yield _conversation(question, rng.choices(kinds, weights)[0], rng)


def run_trusted(code: str) -> tuple[str, bool]:
    """Runs a program that this module generated. The program runs in this process, not in the judge.

    Returns the program's output, and whether the program failed.
    """
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
    except (SyntaxError, NameError) as error:
        return traceback.format_exception_only(error)[-1].strip(), True
    return out.getvalue().strip(), False


def _take(seed: int, held_out: bool, count: int) -> list[Question]:
    selected = list(islice(questions(seed, held_out), count))
    if len(selected) < count:
        message = f"there are only {len(selected)} different problems, fewer than the requested {count}"
        raise UserError(message, f"Request at most {len(selected)}.")
    return selected


def _is_held_out(text: str) -> bool:
    return hashlib.sha256(text.encode()).digest()[0] % HELD_OUT_SHARE == 0


def _question(rng: random.Random, name: str, text: str, numbers: str) -> Question:
    family = FAMILIES[name]
    output = f"print({family.expression})"
    code = f"{numbers}{family.imports}\n{output}" if family.imports else numbers + output
    answer, failed = run_trusted(code)
    assert not failed, code
    broken = [code[:-1], f"{numbers}print(result)"]
    if family.imports:
        broken.append(f"{numbers}{output}")
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Question(Problem(f"{name}-{digest}", text, answer), code, rng.choice(broken))


def _call(code: str) -> str:
    return tags.call_text(NAME, {"code": code, "input": ""})


def _answer(number: str) -> str:
    return tags.answer_text(number)


def _conversation(question: Question, kind: str, rng: random.Random) -> list[dict[str, str]]:
    messages = FORMAT.messages(question.problem.problem)

    def assistant(thought: str, rest: str) -> None:
        messages.append({"role": "assistant", "content": f"{tags.REASON}{thought}{tags.REASON_END}\n{rest}"})

    def tool(code: str) -> None:
        messages.append({"role": "tool", "content": run_trusted(code)[0]})

    if kind == "guessed":
        assistant("I know it.", _answer(str(rng.randint(1000, 9999))))
        return messages
    # Conversations with a wrong or missing answer also have failed calls, so that failed calls do not predict a wrong
    # answer.
    if kind == "repaired" or (kind in ("wrong", "missing") and rng.random() < 0.4):
        assistant("Use Python.", _call(question.broken))
        tool(question.broken)
        assistant("Fix it.", _call(question.code))
    else:
        assistant("Use Python.", _call(question.code))
    tool(question.code)
    if kind == "wrong":
        assistant("Roughly.", _answer(_other_number(question.problem.answer, rng)))
        return messages
    block = _answer(question.problem.answer)
    assistant("Done.", {"missing": "", "repeated": f"{block}\n{block}"}.get(kind, block))
    return messages


def _other_number(answer: str, rng: random.Random) -> str:
    place = rng.randrange(len(answer))
    digit = rng.choice([d for d in "123456789" if d != answer[place]])
    return answer[:place] + digit + answer[place + 1 :]

"""Problems made from nothing, with integer answers that are easier with Python, and traces about them.

Held-out problems never appear in training, whatever the seeds: a hash of the text decides the side.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import random
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from rstar2.data.problem import Problem
from rstar2.prompts import TOOL_NAME, PromptFormat

HELD_OUT_SHARE = 4
"""One text in this many is held out."""

PROMPT = PromptFormat(system="Use Python, then answer.", user="{problem}")
"""A tiny model gets few words: attention over the paper's prompt would be most of its work."""


@dataclass(frozen=True)
class Question:
    """A problem with a program that solves it and one that fails."""

    problem: Problem
    code: str
    broken: str
    """Fails with an exception, as a hasty programmer's first try would."""


def _arithmetic(rng: random.Random) -> tuple[str, str, str]:
    a, b = rng.randint(12, 99), rng.randint(12, 99)
    return f"Compute {a} * {b}.", "", f"{a}*{b}"


def _gcd(rng: random.Random) -> tuple[str, str, str]:
    base = rng.randint(2, 24)
    a, b = base * rng.randint(1, 99 // base), base * rng.randint(1, 99 // base)
    return f"Find the gcd of {a} and {b}.", "from math import gcd", f"gcd({a},{b})"


def _lcm(rng: random.Random) -> tuple[str, str, str]:
    a, b = rng.randint(4, 99), rng.randint(4, 99)
    return f"Find the lcm of {a} and {b}.", "from math import lcm", f"lcm({a},{b})"


def _power(rng: random.Random) -> tuple[str, str, str]:
    a, b, m = rng.randint(2, 40), rng.randint(5, 60), rng.randint(11, 99)
    return f"Find {a}^{b} mod {m}.", "", f"pow({a},{b},{m})"


def _count(rng: random.Random) -> tuple[str, str, str]:
    n, d = rng.randint(20, 99), rng.randint(2, 9)
    text = f"How many n from 1 to {n} have a digit sum that {d} divides?"
    return text, "", f"sum(sum(map(int,str(n)))%{d}==0 for n in range(1,{n}+1))"


def _digits(rng: random.Random) -> tuple[str, str, str]:
    a, b = rng.randint(3, 99), rng.randint(4, 40)
    return f"Find the digit sum of {a}^{b}.", "", f"sum(map(int,str({a}**{b})))"


FAMILIES: dict[str, Callable[[random.Random], tuple[str, str, str]]] = {
    "arithmetic": _arithmetic,
    "gcd": _gcd,
    "lcm": _lcm,
    "power": _power,
    "count": _count,
    "digits": _digits,
}
"""Each draws (text, import line or "", expression)."""


def questions(seed: int, held_out: bool) -> Iterator[Question]:
    """Distinct questions without end, all families in turn.

    Args:
        seed: which stream.
        held_out: which side of the split.
    """
    rng = random.Random(f"{seed}-{held_out}")
    seen: set[str] = set()
    while True:
        for family, draw in FAMILIES.items():
            text, imports, expression = draw(rng)
            if text in seen or _is_held_out(text) != held_out:
                continue
            seen.add(text)
            yield _question(rng, family, text, imports, expression)


def held_out(seed: int, count: int) -> list[Problem]:
    """Distinct problems that no training uses."""
    return [question.problem for question in islice(questions(seed, held_out=True), count)]


def training(seed: int, count: int) -> list[Problem]:
    """Distinct problems for RL."""
    return [question.problem for question in islice(questions(seed, held_out=False), count)]


def traces(seed: int, count: int, flaws: dict[str, float]) -> Iterator[list[dict[str, str]]]:
    """Synthetic tool-use conversations for SFT, part of them flawed on purpose.

    Args:
        flaws: the share of each kind: `repaired` (a call that fails, then one that works), `guessed` (a
            number without a call), `wrong` (not the number that the call gave), `missing` (no answer block),
            `repeated` (two answer blocks). The rest is clean.
    """
    rng = random.Random(f"traces-{seed}")
    kinds, weights = [*flaws, "clean"], [*flaws.values(), 1.0 - sum(flaws.values())]
    stream = questions(seed, held_out=False)
    for _ in range(count):
        yield _conversation(next(stream), rng.choices(kinds, weights)[0], rng)


def run_trusted(code: str) -> tuple[str, bool]:
    """What the judge would show for a program of this module's own making, and whether it failed."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(code, "<code>", "exec"), {"__name__": "__main__"})
    except (SyntaxError, NameError) as error:
        return traceback.format_exception_only(error)[-1].strip(), True
    return out.getvalue().strip(), False


def _is_held_out(text: str) -> bool:
    return hashlib.sha256(text.encode()).digest()[0] % HELD_OUT_SHARE == 0


def _question(rng: random.Random, family: str, text: str, imports: str, expression: str) -> Question:
    code = f"{imports}\nprint({expression})" if imports else f"print({expression})"
    answer, failed = run_trusted(code)
    assert not failed, code
    broken = [code[:-1], f"print({expression}", "print(result)"]
    if imports:
        broken.append(f"print({expression})")
    name = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Question(Problem(f"{family}-{name}", text, answer, family), code, rng.choice(broken))


def _call(code: str) -> str:
    arguments = json.dumps({"name": TOOL_NAME, "arguments": {"code": code, "input": ""}})
    return f"<tool_call>\n{arguments}\n</tool_call>"


def _conversation(question: Question, kind: str, rng: random.Random) -> list[dict[str, str]]:
    messages = PROMPT.messages(question.problem.problem)

    def say(thought: str, rest: str) -> None:
        messages.append({"role": "assistant", "content": f"<reason>{thought}</reason>\n{rest}"})

    def tool(code: str) -> None:
        messages.append({"role": "tool", "content": run_trusted(code)[0]})

    if kind == "guessed":
        say("I know it.", f"<answer>\\boxed{{{rng.randint(2, 9999)}}}</answer>")
        return messages
    # Wrong and unfinished work holds failed calls as often as right work does, so they tell nothing apart.
    if kind == "repaired" or (kind in ("wrong", "missing") and rng.random() < 0.4):
        say("Use Python.", _call(question.broken))
        tool(question.broken)
        say("Try again.", _call(question.code))
    else:
        say("Use Python.", _call(question.code))
    tool(question.code)
    answer = question.problem.answer
    if kind == "wrong":
        answer = _other_number(answer, rng)
    block = f"<answer>\\boxed{{{answer}}}</answer>"
    say("Done.", {"missing": "", "repeated": f"{block}\n{block}"}.get(kind, block))
    return messages


def _other_number(answer: str, rng: random.Random) -> str:
    place = rng.randrange(len(answer))
    digit = rng.choice([d for d in "123456789" if d != answer[place]])
    return answer[:place] + digit + answer[place + 1 :]

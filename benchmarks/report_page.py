"""How long does the page of a large evaluation take to write, how large is it, and how fast is it in a browser?

    python benchmarks/report_page.py                        500 problems × 16 samples, 6 KB of text each
    python benchmarks/report_page.py --problems 30 --samples 64

The traces are synthetic and full of formulas, with token ids and log-probabilities as an evaluation writes them. The
browser is Chromium, if there is one: RSTAR2_CHROMIUM or the first on PATH.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from rstar2.files import write_json
from rstar2.loop.trace import ToolCall, Trace, TraceWriter, Turn
from rstar2.report import write_report

# In place of this folder, which has a `support` of its own.
sys.path[0] = str(Path(__file__).resolve().parents[1] / "tests")

from support.report.browser import open_browser  # noqa: E402
from support.report.chromium import find_chromium  # noqa: E402
from support.report.report_page import open_page, texts  # noqa: E402

TOKENS_PER_BYTE = 0.3
BATCH = 64
"""Tokens of the vocabulary that the synthetic ids are drawn from, times 1,000."""


def formula(draw: random.Random) -> str:
    """One of the forms that models write, with numbers of its own so that few are equal."""
    a, b, c = (draw.randrange(2, 1000) for _ in range(3))
    return draw.choice(
        [
            rf"$x^{{{a}}} + {b}x - {c} = 0$",
            rf"\(\frac{{{a}}}{{{b}}} \cdot \sqrt{{{c}}}\)",
            rf"\[\sum_{{k=1}}^{{{a}}} \binom{{{b}}}{{k}} = 2^{{{b}}} - {c}\]",
            rf"$$\begin{{aligned}} x &= {a} + {b}y \\ y &= \frac{{{c}}}{{x}} \end{{aligned}}$$",
            rf"$\left|{a} - z\right| \le \log_{{{b}}} {c}$",
            rf"$n \equiv {a} \pmod{{{b}}}$",
        ]
    )


def paragraph(draw: random.Random, length: int) -> str:
    """Text of about this many characters, in which about every fifth word is followed by a formula."""
    words = (
        "so",
        "the",
        "value",
        "of",
        "the",
        "remaining",
        "term",
        "is",
        "then",
        "bounded",
        "by",
        "which",
        "gives",
    )
    pieces: list[str] = []
    size = 0
    while size < length:
        piece = formula(draw) if draw.random() < 0.2 else draw.choice(words)
        pieces.append(piece)
        size += len(piece) + 1
    return " ".join(pieces)


def trace(problem: str, number: int, sample: int, size: int, draw: random.Random) -> Trace:
    """A rollout with one tool call whose turns have `size` bytes of text together."""
    code = f"from sympy import *\nx = symbols('x')\nprint(solve(x**2 - {number}*x + {sample}, x))"
    output = f"[{number}/2 - sqrt({number}**2 - 4*{sample})/2, {number}/2 + sqrt({number}**2 - 4*{sample})/2]"
    call = ToolCall(name="python", arguments={"code": code}, status="ok", output=output, wall_s=0.2)
    thought = f"<reason>{paragraph(draw, size // 2)}</reason>\n<tool_call>\n{code}\n</tool_call>"
    answer = f"<reason>{paragraph(draw, size // 2)}</reason>\n<answer>\\boxed{{{sample % 3}}}</answer>"
    tokens = round(size * TOKENS_PER_BYTE)
    correct = sample % 3 == 1
    return Trace(
        problem_id=f"math-{number}",
        sample=sample,
        problem=problem,
        gold="1",
        prompt_ids=draw.choices(range(150_000), k=400),
        response_ids=draw.choices(range(150_000), k=tokens),
        response_mask=[1] * tokens,
        logprobs=[-round(draw.random(), 6) for _ in range(tokens)],
        turns=[
            Turn(text=thought, start=0, end=tokens // 2, calls=[call]),
            Turn(text=answer, start=tokens // 2, end=tokens),
        ],
        finish="answer",
        wall_s=12.5,
        verdict="correct" if correct else "wrong",
        extracted=str(sample % 3),
        rule="number",
    )


def make_run(folder: Path, problems: int, samples: int, size: int) -> None:
    """A finished evaluation of one benchmark, without the judge, model and grader that would have made it."""
    draw = random.Random(0)
    write_json(folder / "config.json", {"kind": "eval", "config": {}})
    (folder / "math500").mkdir()
    with TraceWriter(folder / "math500" / "traces.jsonl") as writer:
        for number in range(problems):
            problem = paragraph(draw, 200)
            for sample in range(samples):
                writer.write(trace(problem, number, sample, size, draw))


def show_browser(page: Path) -> None:
    """Print how long opening, filtering, searching and the longest trace take in Chromium."""
    with open_browser() as browser:
        started = time.perf_counter()
        open_page(browser, page.as_uri())
        print(f"open, until the first trace is drawn: {time.perf_counter() - started:.2f} s")
        started = time.perf_counter()
        browser.run(
            "[...document.querySelectorAll('.chips button')]"
            ".find((chip) => chip.innerText.startsWith('wrong')).click()"
        )
        print(f"filter by verdict: {time.perf_counter() - started:.3f} s, {texts(browser, '.count')[0]!r}")
        started = time.perf_counter()
        browser.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'j', bubbles: true}))")
        browser.wait("document.querySelectorAll('.row')[1].getAttribute('aria-current') === 'true'")
        browser.wait("document.querySelector('.trace .sample').innerText.includes('sample 3')")
        print(f"next trace: {time.perf_counter() - started:.3f} s")
        formulas = browser.run("return document.querySelectorAll('.trace math').length")
        print(f"formulas drawn in it: {formulas}; errors: {browser.errors()}")
        started = time.perf_counter()
        browser.run(
            "const input = document.querySelector('.filters input'); input.value = 'no trace says this'; "
            "input.dispatchEvent(new Event('input'))"
        )
        browser.wait("!document.querySelector('.count').innerText.includes('searched')")
        print(f"search in the whole text of all traces: {time.perf_counter() - started:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--size", type=int, default=6000, help="bytes of text in a trace")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        run = Path(name)
        make_run(run, options.problems, options.samples, options.size)
        traces = run / "math500" / "traces.jsonl"
        print(
            f"{options.problems * options.samples} traces, traces.jsonl {traces.stat().st_size / 1e6:.0f} MB"
        )
        started, wall = time.process_time(), time.perf_counter()
        page = write_report(run)
        print(
            f"written in {time.process_time() - started:.2f} s of processor time "
            f"({time.perf_counter() - wall:.2f} s by the clock), {page.stat().st_size / 1e6:.1f} MB"
        )
        if find_chromium():
            show_browser(page)


if __name__ == "__main__":
    main()

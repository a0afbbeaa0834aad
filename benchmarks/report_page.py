"""Measures the report page of a large evaluation: the time to write it, its size, and its speed in a browser.

    python benchmarks/report_page.py                        500 problems × 16 samples, 6 KB of text each
    python benchmarks/report_page.py --problems 30 --samples 64

The traces are synthetic and full of formulas. Like those of an evaluation, they have token ids and log-probabilities.
The browser is Chromium: the program that RSTAR2_CHROMIUM names, or the first one on PATH. Without Chromium only writing
and size are measured. The default takes a few minutes.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rstar2.files import write_json
from rstar2.loop.trace import ToolCall, Trace, TraceWriter, Turn
from rstar2.report import write_report

TOKENS_PER_BYTE = 0.3
LEAST_SAMPLES = 3
"""The script below steps from the first wrong sample to the second one, which is sample 3."""
TESTS = Path(__file__).resolve().parents[1] / "tests"
BROWSER = TESTS / "support" / "report" / "page_speed.py"
"""The script of the tests that opens, filters and searches a page in the browser."""


def formula(draw: random.Random) -> str:
    """Return a formula as models write it, with random numbers so that few formulas are equal."""
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
    """Return text of about `length` characters, in which about every fifth piece is a formula."""
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
    """Return a rollout of two turns with one tool call. The turns have about `size` bytes of text in total."""
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
    """Write the files of a finished evaluation of one benchmark, without a judge, model or grader."""
    draw = random.Random(0)
    write_json(folder / "config.json", {"kind": "eval", "config": {}})
    (folder / "math500").mkdir()
    with TraceWriter(folder / "math500" / "traces.jsonl") as writer:
        for number in range(problems):
            problem = paragraph(draw, 200)
            for sample in range(samples):
                writer.write(trace(problem, number, sample, size, draw))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--samples", type=int, default=16, help=f"per problem, at least {LEAST_SAMPLES}")
    parser.add_argument("--size", type=int, default=6000, help="bytes of text of a trace")
    options = parser.parse_args()
    if options.samples < LEAST_SAMPLES:
        parser.error(f"--samples {options.samples} is too small; give at least {LEAST_SAMPLES}")
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
            f"written in {time.process_time() - started:.2f} s of CPU time "
            f"({time.perf_counter() - wall:.2f} s of wall-clock time), {page.stat().st_size / 1e6:.1f} MB"
        )
        subprocess.run(
            [sys.executable, BROWSER, page], env={**os.environ, "PYTHONPATH": str(TESTS)}, check=True
        )


if __name__ == "__main__":
    main()

"""Benchmarks as a user writes them, for tests to name as `support.own_benchmarks:NAME`."""

from __future__ import annotations

from typing import Any

from rstar2.data.problem import Problem
from rstar2.errors import UserError
from rstar2.eval.benchmarks import Benchmark

PROBLEMS = [Problem(str(number), f"What is {number} + {number}?", str(2 * number)) for number in range(3)]


def load(files: Any, settings: Any) -> list[Problem]:
    return PROBLEMS


def any_answer(problem: Problem, answer: str) -> bool:
    return bool(answer)


def fails(problem: Problem, answer: str) -> bool:
    return bool(1 / 0)


def refuses(files: Any, settings: Any) -> list[Problem]:
    raise UserError(f"no problems in {files.data}", "Give --data.")


def raises(files: Any, settings: Any) -> list[Problem]:
    raise OSError("no such disk")


BENCHMARK = Benchmark(load=load, protocol={"samples": 1})
LENIENT = Benchmark(load=load, correct=any_answer, protocol={"samples": 1})
FAILING = Benchmark(load=load, correct=fails, protocol={"samples": 1})
REFUSING = Benchmark(load=refuses)
RAISING = Benchmark(load=raises)
EMPTY = Benchmark(load=lambda files, settings: [])
TWICE = Benchmark(load=lambda files, settings: [*PROBLEMS, PROBLEMS[1]])
TEXTS = Benchmark(load=lambda files, settings: ["What is 1 + 1?"])  # type: ignore[list-item, return-value]

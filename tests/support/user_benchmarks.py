"""Benchmarks as a user would write them. Tests name them as `support.user_benchmarks:NAME`."""

from __future__ import annotations

from typing import Any

import numpy as np

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


def says_no(problem: Problem, answer: str) -> str:
    return "no"


def numpy_true(problem: Problem, answer: str) -> Any:
    return np.float64(answer) > -1


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
NUMBER = Benchmark(load=lambda files, settings: [Problem("1", "What is 1 + 1?", 2)])  # type: ignore[arg-type]
ONE_ARGUMENT = Benchmark(load=load, correct=lambda answer: True)  # type: ignore[arg-type, misc]
NO_SETTINGS = Benchmark(load=lambda files: PROBLEMS)  # type: ignore[arg-type, misc]
NO_FUNCTION = Benchmark(load=PROBLEMS)  # type: ignore[arg-type]
WORDY = Benchmark(load=load, correct=says_no, protocol={"samples": 1})  # type: ignore[arg-type]
NUMPY = Benchmark(load=load, correct=numpy_true, protocol={"samples": 1})

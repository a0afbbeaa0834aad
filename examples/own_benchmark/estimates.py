"""A benchmark of quantities. An answer counts as correct if it is within ten percent of the true number."""

from rstar2 import Benchmark, BenchmarkFiles, EvalSettings, Problem

PROBLEMS = [
    Problem(id="bones", problem="How many bones does an adult human have?", answer="206"),
    Problem(id="keys", problem="How many keys does a piano have?", answer="88"),
    Problem(id="cards", problem="How many cards are in two decks without jokers?", answer="104"),
]


def load(files: BenchmarkFiles, settings: EvalSettings) -> list[Problem]:
    """Return the problems. `files.data` is the file that the user names with --data, or None."""
    return PROBLEMS


def within_ten_percent(problem: Problem, answer: str) -> bool:
    """Return whether an answer is correct. Leave this function out if the answer must equal that of the problem."""
    try:
        return abs(float(answer) - float(problem.answer)) <= 0.1 * float(problem.answer)
    except ValueError:
        return False


BENCHMARK = Benchmark(load=load, correct=within_ten_percent, protocol={"samples": 2, "max_tokens": 2048})

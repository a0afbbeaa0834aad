"""A benchmark: how many of each thing there are, where any answer within ten percent counts as correct."""

from rstar2 import Benchmark, BenchmarkFiles, EvalSettings, Problem

PROBLEMS = [
    Problem(id="bones", problem="How many bones does an adult human have?", answer="206"),
    Problem(id="keys", problem="How many keys does a piano have?", answer="88"),
    Problem(id="cards", problem="How many cards are in two decks without jokers?", answer="104"),
]


def load(files: BenchmarkFiles, settings: EvalSettings) -> list[Problem]:
    """The problems. `files.data` is the file that the user gave with --data, if any."""
    return PROBLEMS


def within_ten_percent(problem: Problem, answer: str) -> bool:
    """Whether an answer is correct. Leave it out if answers have to equal those of the problems."""
    try:
        return abs(float(answer) - float(problem.answer)) <= 0.1 * float(problem.answer)
    except ValueError:
        return False


BENCHMARK = Benchmark(load=load, correct=within_ten_percent, protocol={"samples": 2, "max_tokens": 2048})

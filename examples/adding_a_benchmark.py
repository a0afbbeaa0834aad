"""Adds a benchmark: writes its problems as JSON lines, and checks the file without a model.

This needs no change to rstar2: `rstar2 eval FILE.jsonl` measures a model on the file. To add a benchmark that everyone
can use by name, add a `Source` to rstar2/data/benchmarks.py (CONTRIBUTING, "A benchmark").

Run `python examples/adding_a_benchmark.py FOLDER`. Further arguments, such as `--judge URL`, go to `rstar2 eval`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from rstar2.data.benchmarks import load_benchmark

ROWS = [
    {"id": "sum", "problem": "What is the sum of the integers from 1 to 100?", "answer": "5050"},
    {"id": "roots", "problem": "Solve $x^2 = 5x - 6$. Give all solutions.", "answer": "2, 3"},
    {"id": "half", "problem": "What is the probability of heads for a fair coin?", "answer": "\\frac{1}{2}"},
]
"""`problem` and `answer` are required; a problem without `id` is named after its line."""


def main(folder: Path, *options: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")

    # A bad row raises an error here that names its file, line and field.
    problems = load_benchmark(str(file))
    print(f"{len(problems)} problems: {', '.join(problem.id for problem in problems)}")

    # The oracle gives the gold answer, except for the first of every ten problems, which it answers wrong. So 2 of 3
    # answers must be correct. Any other score means a fault in the benchmark, the judge or the grader.
    command = [sys.executable, "-m", "rstar2", "eval", str(file), "--oracle", "-n", "2", *options]
    subprocess.run([*command, "--run", str(folder / "run")], check=True, stdout=subprocess.DEVNULL)
    results = json.loads((folder / "run" / "mine" / "results.json").read_text(encoding="utf-8"))
    print(f"the oracle's accuracy: {results['summary']['accuracy']:.3f}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), *sys.argv[2:])

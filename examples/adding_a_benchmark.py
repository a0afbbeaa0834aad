"""Add a benchmark: write its problems as JSON lines, and check the file before a model sees it.

No code of rstar2 changes for this; `rstar2 eval FILE.jsonl` measures a model on it. A benchmark that should have a
name for everyone is one more `Source` in rstar2/data/benchmarks.py (CONTRIBUTING, "A benchmark").

`python examples/adding_a_benchmark.py FOLDER`; further arguments, such as `--judge URL`, go to `rstar2 eval`.
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
"""`problem` and `answer` are required; without `id` a problem is named after its line."""


def main(folder: Path, *options: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "mine.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")

    # A bad row is refused here, with its file, line and field.
    problems = load_benchmark(str(file))
    print(f"{len(problems)} problems: {', '.join(problem.id for problem in problems)}")

    # The oracle answers with the gold answer, the first of each ten problems wrong on purpose. So 2 of 3 must be
    # correct; anything else is a fault of the benchmark, the judge or the grader, and no model is needed to see it.
    command = [sys.executable, "-m", "rstar2", "eval", str(file), "--oracle", "-n", "2", *options]
    subprocess.run([*command, "--run", str(folder / "run")], check=True, stdout=subprocess.DEVNULL)
    results = json.loads((folder / "run" / "mine" / "results.json").read_text(encoding="utf-8"))
    print(f"the oracle's accuracy: {results['summary']['accuracy']:.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])

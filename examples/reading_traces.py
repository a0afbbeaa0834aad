"""Reads the traces of a run, and prints verdicts, failed calls, and one wrong rollout turn by turn.

A run of `rstar2 eval` has one trace file per benchmark. Run
`python examples/reading_traces.py RUN/BENCHMARK/traces.jsonl`.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

from rstar2 import Trace, read_traces
from rstar2.errors import UserError


def main(path: Path) -> None:
    verdicts: Counter[str] = Counter()
    statuses: Counter[str] = Counter()
    calls = failed = 0
    first_wrong: Trace | None = None
    # Traces are read one at a time, so a file may be larger than memory.
    for trace in read_traces(path):
        verdicts[trace.verdict or "not graded"] += 1
        statuses.update(call.status for call in trace.calls)
        if trace.correct:
            calls += len(trace.calls)
            failed += trace.failed_calls
        elif first_wrong is None:
            first_wrong = trace
    print("verdicts:", dict(verdicts))
    print("calls by status:", dict(statuses))
    print(f"failed calls in correct traces: {failed} of {calls}")
    if first_wrong is not None:
        print(f"\nproblem {first_wrong.problem_id}, gold {first_wrong.gold}, answer {first_wrong.extracted}:")
        for number, turn in enumerate(first_wrong.turns, 1):
            print(f"--- turn {number}, tokens {turn.start} to {turn.end}\n{turn.text}")
            for call in turn.calls:
                print(f"--- {call.name}: {call.status}\n{call.output}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/reading_traces.py RUN/BENCHMARK/traces.jsonl")
    try:
        main(Path(sys.argv[1]))
    except UserError as error:
        sys.exit(f"{error.message}. {error.hint}")

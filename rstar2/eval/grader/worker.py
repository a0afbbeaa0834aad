"""A process that grades answers: reads one JSON line per answer, and writes one JSON line per verdict.

Run as `python -m rstar2.eval.grader.worker TIMEOUT_S`. The kernel limits the CPU time of each grading with an interval
timer. The timer counts the CPU time of this process only, so a busy machine does not turn a right answer into a
timeout. The timer's signal keeps its default action, which ends the process even inside a long C call. When the process
has ended, the pool notices that the process's standard output is closed.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import traceback

from rstar2.eval.grader.grading import INTERNAL_ERROR, Verdict, grade

MEMORY_BYTES = 2 << 30
OUT_OF_MEMORY = f"not verified: too much work for {MEMORY_BYTES >> 30} GiB of memory"


def main() -> None:
    timeout_s = float(sys.argv[1])
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    grade("\\frac{\\sqrt{3}}{3}", "1/sqrt(3)")  # loads the modules that a comparison needs
    for line in sys.stdin.buffer:
        gold, pred = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, timeout_s)
        verdict = _graded(gold, pred)
        signal.setitimer(signal.ITIMER_PROF, 0)
        answer = json.dumps([verdict.verdict, verdict.extracted, verdict.rule, verdict.certificate])
        sys.stdout.buffer.write(answer.encode() + b"\n")
        sys.stdout.buffer.flush()


def _graded(gold: str | None, pred: str | None) -> Verdict:
    try:
        return grade(gold, pred)
    except MemoryError:
        return Verdict("unparsed", None, OUT_OF_MEMORY)
    except Exception:  # noqa: BLE001  an error of the grader costs one verdict, and is logged
        traceback.print_exc()
        return Verdict("unparsed", None, INTERNAL_ERROR)


if __name__ == "__main__":
    main()

"""One grading process: a JSON line in, a JSON line out, each under a CPU-time limit the kernel enforces.

Run as `python -m rstar2.eval.grader.worker TIMEOUT_S`. The interval timer counts this process's own CPU time,
so a busy machine does not turn a right answer into a timeout, and its signal keeps the default action, which
ends the process even inside a long C call. The pool learns of it from standard output, which closes.
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
    grade("\\frac{\\sqrt{3}}{3}", "1/sqrt(3)")  # loads what a real comparison needs
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
    except Exception:  # noqa: BLE001  a fault of ours costs one verdict, with its traceback in the log
        traceback.print_exc()
        return Verdict("unparsed", None, INTERNAL_ERROR)


if __name__ == "__main__":
    main()

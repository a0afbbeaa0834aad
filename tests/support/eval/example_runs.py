"""Writes runs for tests of code that reads runs. The runs look realistic, and the tests know every number in them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rstar2.data.problem import Problem
from rstar2.eval.benchmarks import with_combined
from rstar2.eval.results import Row, by_problem, problem_rows, summarise
from rstar2.files import write_json
from rstar2.loop.trace import CallStatus, ToolCall, Trace, TraceWriter, Turn
from rstar2.train.records.kept_traces import write_failed, write_step

THOUGHT = (
    "The lamps that stay lit are those whose number has an odd number of divisors, $d(n) \\equiv 1$, so I "
    "want the perfect squares. Counting them by hand up to $n$ is easy to get wrong at the ends, because "
    "both $1$ and $n$ itself may count, so I would rather check with a short program.\n"
)
CODE = """\
from sympy import divisor_count

# a lamp is lit when its number has an odd number of divisors
lit = [n for n in range(1, 10_000) if divisor_count(n) % 2]
print(f"{len(lit)=} {lit[-1]=}")
"""
BFCL_V3 = (
    *("simple", "java", "javascript", "multiple", "parallel", "parallel_multiple", "irrelevance"),
    *("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple"),
    *("live_irrelevance", "live_relevance"),
    *("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context"),
)
"""The categories of the benchmark's problems."""
BROKEN = "import sympy\nprint(sympy.sovle(x**2 - 4))\n"
TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "main.py", line 2, in <module>\n'
    "NameError: name 'x' is not defined"
)


def write_run(
    folder: Path,
    name: str = "aime24",
    problems: int = 30,
    samples: int = 16,
    seed: int = 0,
    lift: float = 0.0,
    categories: Sequence[str] = (),
) -> Path:
    """Write the folder of a finished run with one benchmark. A second call with another name adds a benchmark.

    Args:
        lift: Is added to the rate at which each problem is solved. The rates without it fall from 1.0 towards 0.05.
        categories: The problems have these categories in turn. The verdicts are recorded as scores of the category.
    """
    rng = random.Random(seed)
    benchmark_problems = [
        Problem(
            f"set-{number:03}",
            f"Problem {number}. Along a corridor hang $n$ lamps, all dark. On day $k$ a caretaker flips "
            "every $k$-th lamp. How many lamps are lit after $n$ days? Give the answer for your corridor.",
            str(100 + number),
        )
        for number in range(problems)
    ]
    record = folder / "config.json"
    stored = json.loads(record.read_text()) if record.exists() else {"kind": "eval", "config": {}}
    stored["config"].setdefault("problems", {})[name] = "made"
    write_json(record, stored)
    write_json(folder / "status.json", {"state": "finished", "at": 0, "attempt": 1})
    rows = []
    with TraceWriter(folder / name / "traces.jsonl") as writer:
        for sample in range(samples):
            for number, problem in enumerate(benchmark_problems):
                rate = min(1.0, max(0.0, 1.05 - number / problems + lift))
                trace = random_trace(problem, sample, rate, rng)
                if categories:
                    score = {categories[number % len(categories)]: [float(trace.correct)]}
                    trace = trace.model_copy(update={"scores": score})
                writer.write(trace)
                rows.append(Row.of(trace))
    groups = by_problem(rows)
    golds = {problem.id: problem.answer for problem in benchmark_problems}
    summary = summarise(groups)
    if categories:
        summary["scores"] = with_combined(name, summary["scores"])
    summary["as_published"] = True
    results = {
        "benchmark": name,
        "complete": True,
        "missing": 0,
        "summary": summary,
        "settings": {"samples": samples, "temperature": 0.6, "max_tokens": 30000, "max_turns": 30},
        "model": {"name": "made-up-14b"},
        "versions": {"rstar2": "0.1.0"},
        "per_problem": problem_rows(groups, golds),
        "timing": {"wall_s": 12.5},
    }
    write_json(folder / name / "results.json", results)
    return folder


def random_trace(problem: Problem, sample: int, rate: float, rng: random.Random) -> Trace:
    """Return a random trace with up to five tool calls. Some calls failed.

    Args:
        rate: The probability that the answer is correct.
    """
    draw = rng.random()
    verdict = "correct" if draw < rate else rng.choice(["wrong", "wrong", "wrong", "unparsed", "timeout"])
    answer = problem.answer if verdict == "correct" else str(rng.randint(200, 999))
    calls = rng.choice([0, 1, 1, 2, 2, 3, 5])
    turns: list[Turn] = []
    place = 0
    for number in range(calls):
        failed = rng.random() < (0.1 if verdict == "correct" else 0.3)
        turn = _call_turn(failed, number, place, rng)
        turns.append(turn)
        place = turn.end + 60
    truncated = verdict == "unparsed"
    text = THOUGHT * rng.randint(1, 4)
    if not truncated:
        text += f"So it is {answer}.</reason>\n<answer>\nThere are \\boxed{{{answer}}} lit lamps.\n</answer>"
    length = len(text) // 4 + int(rng.expovariate(1 / 300))
    turns.append(Turn(text=text, start=place, end=place + length))
    total = place + length
    return Trace(
        problem_id=problem.id,
        sample=sample,
        problem=problem.problem,
        gold=problem.answer,
        prompt_ids=[1] * 20,
        response_ids=[2] * total,
        response_mask=[1] * total,
        turns=turns,
        finish="max_tokens" if truncated else "answer",
        wall_s=total / 50,
        verdict=verdict,
        extracted=None if truncated else answer,
        rule={"correct": "integer", "wrong": "integer", "unparsed": "no answer"}.get(verdict, "deadline"),
    )


def _call_turn(failed: bool, number: int, place: int, rng: random.Random) -> Turn:
    code = BROKEN if failed else CODE
    status: CallStatus = rng.choice(["error", "error", "timeout"]) if failed else "ok"
    arguments = {"code": code, "input": "3 4\n" if number == 1 else ""}
    call = json.dumps({"name": "python_code_with_standard_io", "arguments": arguments})
    text = f"{THOUGHT}</reason>\n<tool_call>\n{call}\n</tool_call>"
    output = TRACEBACK if failed else f"len(lit)=99 lit[-1]=9801\ncheck {number}"
    return Turn(
        text=text,
        start=place,
        end=place + len(text) // 4,
        calls=[
            ToolCall(name="python", arguments=arguments, status=status, output=output, wall_s=rng.random())
        ],
    )


def write_staged_run(folder: Path) -> Path:
    """Write a run of two training stages, with curves, one measured benchmark and rollouts."""
    write_run(folder, "eval/sft", problems=12, samples=2)
    phases = [
        {"name": name, "accuracy": at, "interval": [at - 0.05, at + 0.05], "failed_call_ratio_correct": 0.1,
         "calls_per_trace": 1.0, "mean_tokens": 80.0, "wall_s": 30.0}
        for name, at in (("sft", 0.5), ("stage1", 0.7), ("stage2", 0.8))
    ]  # fmt: skip
    write_json(folder / "summary.json", {"seed": 1, "phases": phases})
    settings = {
        "stages": [{"steps": 20, "lr": None}, {"steps": 10}],
        "demo": {"model": {"layers": 4}},
        "tags": ["a", "b"],
    }
    write_json(folder / "config.json", {"kind": "demo", "config": settings})
    for stage, steps in (("stage1", 20), ("stage2", 10), ("plain/stage1", 20)):
        rows = [_step(number, 0.3 / number) for number in range(1, steps + 1)]
        (folder / stage).mkdir(parents=True)
        (folder / stage / "metrics-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_rollouts(folder / "stage1", steps=5, per_step=4)
    return folder


def write_rollouts(stage: Path, steps: int, per_step: int, failed: int = 2) -> None:
    """Write `per_step` rollouts for each step of a training stage, and `failed` unfinished rollouts."""
    rng = random.Random(0)
    problem = Problem("rl-001", "How many lamps are lit after $n^2$ days?", "7")
    for step in range(1, steps + 1):
        traces = [random_trace(problem, sample, 0.5, rng) for sample in range(per_step)]
        write_step(
            stage / "traces",
            step,
            [
                trace.model_copy(update={"step": step, "reward": float(trace.correct), "kept": trace.correct})
                for trace in traces
            ],
        )
    for sample in range(failed):
        failed_trace = random_trace(problem, sample, 0.0, rng)
        change = {"finish": "error", "verdict": None, "extracted": None, "rule": "", "step": 1}
        write_failed(stage / "traces", failed_trace.model_copy(update=change))


def _step(number: int, failed: float) -> dict[str, Any]:
    """Return the metrics of a step, as the trainer writes them."""
    data = {"rstar2/pass_rate": 0.5, "rstar2/failed_call_ratio_correct": failed, "rstar2/tokens": 80.0}
    return {"step": number, "data": data}


def write_unfinished_run(folder: Path) -> Path:
    """Write a run with two benchmarks: one has traces but no results yet, the other has no traces."""
    write_run(folder, problems=3, samples=1)
    (folder / "aime24" / "results.json").unlink()
    with TraceWriter(folder / "empty" / "traces.jsonl"):
        pass
    return folder

"""Rehearses a training step of the paper's size: 512 problems × 32 rollouts, with the real agent loop and a real judge.

    python benchmarks/train/rehearsal.py                   the whole step in real time: about ten minutes on two cores
    python benchmarks/train/rehearsal.py --problems 16     a small step

Only the engines are simulated. Each of the 32 engines has room for 128 rollouts, and writes scripted turns at a fixed
pace. Everything else is the code that VERL would run: the agent loop with all rollouts at once, the router in front of
the engines, the judge with its strictest isolation, the grader, and the selection of each group by Resampling on
Correct (RoC). Every rollout makes 3 to 10 calls. Some calls fail, and some take long.

Prints tables: the outcomes of the rollouts, where their time went, and the memory of each kind of process after a
quarter, a half, three quarters and all of the step.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
from omegaconf import OmegaConf
from rich.table import Table
from verl.experimental.agent_loop.agent_loop import DictConfigWrap

from rstar2.cli.common import out
from rstar2.engines.oracle import byte_codec
from rstar2.judge.service.settings import JudgeHandle
from rstar2.judge.service.start import running_judge
from rstar2.loop.formats.format import FORMAT_FILE, default_format, save_format
from rstar2.loop.tools.python_code_with_standard_io import NAME
from rstar2.loop.turns.codec import ChatCodec
from rstar2.train.group import Rollout, gives_gradient
from rstar2.train.select import Selection, SelectSettings
from rstar2.train.verl.agent_loop import RStarAgentLoop
from rstar2.train.verl.engines.router import GROUP_ENDS, SessionRouter
from rstar2.train.verl.rollout_fields import rollout_of

PROGRAMS = {
    "sum of a list": ("print(sum(range({n})))", 0.40),
    "number theory": ("import math\nprint(math.comb({n}, 5) % 1009, math.gcd({n}, 360))", 0.25),
    "search": ("print(sum(1 for a in range(1, 400) for b in range(a, 400) if (a * b) % {n} == 0))", 0.15),
    "sympy": ("from sympy import factorint\nprint(factorint({n} ** 3 + 1))", 0.08),
    "exception": ("print(({n} + 1) / ({n} - {n}))", 0.10),
    "long output": ("for k in range(2000):\n    print(k * {n})", 0.02),
}
"""Programs of the rollouts' calls with their probabilities. `n` differs from call to call."""
THOUGHT = "So the next thing to look at is the remainder. "
GOLD = "42"


@dataclass(frozen=True)
class Sizes:
    """The sizes of the step and of the engines."""

    problems: int
    rollouts: int
    engines: int
    in_flight: int
    tokens_per_s: float
    """Tokens per second of one rollout on an engine."""
    turn_tokens: int
    """Mean tokens of thought before a call."""


def turns(sizes: Sizes, problem: int, sample: int) -> Iterator[str]:
    """Yield the turns of a rollout. They are the same in every run of this script."""
    dice = random.Random(f"{problem} {sample}")
    names = list(PROGRAMS)
    for _ in range(dice.randint(3, 10)):
        code, _ = PROGRAMS[dice.choices(names, [PROGRAMS[name][1] for name in names])[0]]
        call = json.dumps({"name": NAME, "arguments": {"code": code.format(n=dice.randint(50, 5000))}})
        thought = THOUGHT * max(1, round(dice.expovariate(len(THOUGHT) / sizes.turn_tokens)))
        yield f"<reason>{thought}</reason>\n<tool_call>\n{call}\n</tool_call>"
    # A third of the problems is solved by all rollouts, a third by some, a third by few.
    right = dice.random() < (1.0, 0.6, 0.1)[problem % 3]
    yield f"<reason>{THOUGHT}</reason>\n<answer>\\boxed{{{GOLD if right else 41}}}</answer>"


@dataclass
class Script:
    """The remaining turns of a rollout, and when its last turn ended."""

    turns: Iterator[str]
    left_at: float | None = None


class Engines:
    """Simulated engines with the interface of VERL's client for rollout servers, behind rstar2's router."""

    def __init__(self, sizes: Sizes, codec: ChatCodec) -> None:
        self.sizes, self._codec = sizes, codec
        servers: dict[str, Any] = {f"engine-{number}": None for number in range(sizes.engines)}
        config = {"in_flight": sizes.in_flight, "quiet_s": 3600.0, "metrics": False}
        self._router = SessionRouter(servers, config)
        self._load_balancer = SimpleNamespace(end_session=SimpleNamespace(remote=self._ended))
        self._begun: Counter[str] = Counter()
        self._scripts: dict[str, Script] = {}
        self._ends: set[asyncio.Task[None]] = set()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.turns = self.tokens = 0

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> SimpleNamespace:
        arrived = time.monotonic()
        script = self._scripts.get(request_id)
        if script is None:
            group = request_id.partition(GROUP_ENDS)[0]
            script = self._scripts[request_id] = Script(turns(self.sizes, int(group), self._begun[group]))
            self._begun[group] += 1
        if script.left_at is not None:
            self.seconds["tools"] += arrived - script.left_at
        engine, _ = await self._router.acquire_server(request_id, prompt_ids, sampling_params)
        admitted = time.monotonic()
        ids = self._codec.tokenizer.encode(next(script.turns), add_special_tokens=False)
        ids = [*ids, self._codec.end_id][: sampling_params["max_tokens"]]
        await asyncio.sleep(len(ids) / self.sizes.tokens_per_s)
        await self._router.release_server(engine, request_id)
        self.turns, self.tokens = self.turns + 1, self.tokens + len(ids)
        script.left_at = time.monotonic()
        self.seconds["waiting for room"] += admitted - arrived
        self.seconds["engine"] += script.left_at - admitted
        return SimpleNamespace(token_ids=ids, log_probs=[0.0] * len(ids), extra_fields={})

    def _ended(self, request_id: str, tokens: int | None) -> None:
        self.seconds["grading"] -= self._scripts.pop(request_id).left_at or 0.0
        task = asyncio.ensure_future(self._router.end_session(request_id, tokens))
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)


class Memory:
    """Private memory of this process and its descendants in MiB, by kind of process, sampled during a step."""

    def __init__(self) -> None:
        self.readings: list[dict[str, float]] = []

    def read(self) -> None:
        by_kind: defaultdict[str, float] = defaultdict(float)
        this = psutil.Process()
        for process in (this, *this.children(recursive=True)):
            with suppress(psutil.Error):
                by_kind[_kind(process, this)] += process.memory_full_info().uss / (1 << 20)
        self.readings.append(by_kind)

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield each kind with its memory at four points of the step. All sandboxed programs are one kind."""
        quarters = [self.readings[len(self.readings) * quarter // 4 - 1] for quarter in (1, 2, 3, 4)]
        for kind in sorted({kind for reading in quarters for kind in reading}):
            yield (kind, *(f"{reading.get(kind, 0.0):.0f}" for reading in quarters))


_KINDS = {
    "judge.server": "judge: HTTP",
    "judge.worker": "judge: workers and programs",
    "valkey": "judge: Valkey",
    "redis": "judge: Valkey",
    "judge.service": "judge: supervisor",
}
"""Dict from a word to a kind of process. A process has the kind whose word is in its command line or in an
ancestor's."""


def _kind(process: psutil.Process, this: psutil.Process) -> str:
    if process == this:
        return "agent loop"
    for each in (process, *process.parents()):
        if each == this:
            break
        line = " ".join(each.cmdline())
        if kind := next((kind for word, kind in _KINDS.items() if word in line), None):
            return kind
    return "grader"


def agent_loop(engines: Engines, codec: ChatCodec, judge: JudgeHandle, folder: Path) -> RStarAgentLoop:
    """Create the agent loop as VERL's worker does."""
    save_format(default_format(), folder)
    config = {"actor_rollout_ref": {"rollout": {"name": "vllm", "response_length": 8192}}}
    return RStarAgentLoop(
        trainer_config=DictConfigWrap(OmegaConf.create(config)),
        server_manager=engines,
        tokenizer=codec.tokenizer,
        processor=None,
        dataset_cls=None,
        data_config=DictConfigWrap(OmegaConf.create({})),
        judge_url=judge.url,
        judge_token=judge.token,
        judge_wait_s=600.0,
        max_turns=11,
        max_bad_calls=0,
        format=str(folder / FORMAT_FILE),
        reward="paper",
        penalty={},
        seed=1,
        traces=str(folder / "traces"),
        trace_share=0.0,
        may_end_unfinished=False,
        recover=False,
    )


async def step(loop: RStarAgentLoop, engines: Engines, memory: Memory) -> tuple[list[Rollout], int, float]:
    """Run a step.

    Returns:
        All rollouts; the number of rollouts that RoC selects, not counting groups without a gradient; and the seconds
        that the selections took.
    """
    sizes = engines.sizes
    roc = Selection(SelectSettings(name="roc"))
    dice, selection_s, selected, done = np.random.default_rng(1), 0.0, 0, 0
    progress = max(1, sizes.problems * sizes.rollouts // 20)

    async def one(problem: int, sample: int) -> Rollout:
        nonlocal done
        row = {
            "raw_prompt": [{"role": "user", "content": f"What is {problem} times nothing, plus {GOLD}?"}],
            "extra_info": {"id": f"p{problem}"},
            "reward_model": {"ground_truth": GOLD},
            "uid": str(problem),
            "session_id": sample,
            "global_steps": 1,
        }
        output = await loop.run({"temperature": 1.0, "logprobs": True}, **row)
        engines.seconds["grading"] += time.monotonic()
        done += 1
        if done % progress == 0:
            memory.read()
            out.print(f"{done} rollouts, {engines.turns} turns, {engines.tokens} tokens")
        return rollout_of(output.extra_fields)

    async def group(problem: int) -> list[Rollout]:
        nonlocal selection_s, selected
        rollouts = await asyncio.gather(*(one(problem, sample) for sample in range(sizes.rollouts)))
        began = time.monotonic()
        chosen = [rollouts[at] for at in roc.choose(rollouts, sizes.rollouts // 2, dice)]
        selected += len(chosen) * gives_gradient(chosen, drop_equal_rewards=True)
        selection_s += time.monotonic() - began
        return list(rollouts)

    groups = await asyncio.gather(*(group(problem) for problem in range(sizes.problems)))
    return [rollout for members in groups for rollout in members], selected, selection_s


def report(
    engines: Engines, rollouts: list[Rollout], selected: int, selection_s: float, wall: float, cpu: float
) -> None:
    calls, failed = (sum(getattr(each, name) for each in rollouts) for name in ("calls", "failed_calls"))
    lost = sum(each.lost_calls for each in rollouts)
    table = Table("of the step", "")
    wrong = sum(each.reward == 0 for each in rollouts)
    for name, value in {
        "rollouts graded": f"{len(rollouts):,} ({len(rollouts) - wrong:,} right)",
        "selected by RoC, in groups with a gradient": f"{selected:,}",
        "calls": f"{calls:,}, {calls / wall:,.0f} a second",
        "of these failed (a tenth are meant to)": f"{failed:,}",
        "of these lost": f"{lost}",
        "turns, tokens": f"{engines.turns:,}, {engines.tokens:,}",
        "wall-clock time": f"{wall:.0f} s",
        "CPU time of the agent loop": f"{cpu:.0f} s, {1000 * cpu / len(rollouts):.0f} ms a rollout",
        "RoC's selection": f"{selection_s:.1f} s",
    }.items():
        table.add_row(name, value)
    out.print(table)
    total = sum(engines.seconds.values())
    table = Table("a rollout's time", "mean s", "share")
    for name, seconds in engines.seconds.items():
        table.add_row(name, f"{seconds / len(rollouts):.1f}", f"{seconds / total:.1%}")
    out.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", type=int, default=512)
    parser.add_argument("--rollouts", type=int, default=32, help="rollouts per problem")
    parser.add_argument("--engines", type=int, default=32)
    parser.add_argument("--in-flight", type=int, default=128, help="maximal concurrent rollouts of an engine")
    parser.add_argument("--tokens-per-s", type=float, default=40.0, help="tokens per second of one rollout")
    parser.add_argument("--turn-tokens", type=int, default=400, help="mean tokens of thought before a call")
    parser.add_argument("--workers", type=int, default=2, help="workers of the judge")
    options = parser.parse_args()
    sizes = Sizes(
        options.problems,
        options.rollouts,
        options.engines,
        options.in_flight,
        options.tokens_per_s,
        options.turn_tokens,
    )
    memory = Memory()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running_judge(folder / "judge", workers=options.workers) as judge:
            out.print(f"judge: isolation {judge.isolation}, {options.workers} workers")
            codec = byte_codec()

            async def run() -> None:
                engines = Engines(sizes, codec)
                loop = agent_loop(engines, codec, judge, folder)
                began, cpu_before = time.monotonic(), time.process_time()
                rollouts, selected, selection_s = await step(loop, engines, memory)
                wall, cpu = time.monotonic() - began, time.process_time() - cpu_before
                report(engines, rollouts, selected, selection_s, wall, cpu)

            asyncio.run(run())
            table = Table("private memory, MiB", "1/4", "1/2", "3/4", "end")
            for row in memory.rows():
                table.add_row(*row)
            out.print(table)


if __name__ == "__main__":
    main()

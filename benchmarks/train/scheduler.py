"""Compares the rollout scheduler with four others on simulated engines: which finishes a step's rollouts soonest.

    python benchmarks/train/scheduler.py       about ten minutes

Time is simulated. An engine writes one token for each of its running requests in

    fixed_s + context_s * (tokens of all running requests)

seconds, the time in which a GPU reads the weights and the KV cache. A token of a prompt that is not in the cache takes
`prefill_s`, during which nothing else runs. Like vLLM, an engine runs at most `in_flight` requests. It caches the
tokens of earlier turns until it needs the room, and then drops the least recently used ones. If running requests fill
the cache, it preempts the newest one.

By default an engine is Qwen3-14B on two H100s at the speeds of `rstar2 plan`, and a step has the paper's size: 512
problems, 32 rollouts each, 8K tokens. Rollouts of the same problem have similar lengths. The lengths of turns and the
times of tools are long-tailed.

Prints a row per scheduler and number of engines: the seconds of the step, their ratio to a lower bound, preemptions,
prefix-cache hits and waits.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import random
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from rstar2.train.scheduler.lengths import WINDOW
from rstar2.train.scheduler.metrics import Reading
from rstar2.train.scheduler.policy import Scheduler, SchedulerSettings

READ_EVERY_S = 2.0
WATERMARK = 0.01
"""Share of the cache that vLLM does not give to new requests."""


@dataclass(frozen=True)
class EngineModel:
    """The speed and size of an engine."""

    capacity: int = 630_000
    """Tokens of its KV cache."""
    in_flight: int = 128
    fixed_s: float = 0.015
    context_s: float = 61e-9
    prefill_s: float = 37e-6


@dataclass(frozen=True)
class Turn:
    """One turn of a rollout."""

    written: int
    """Tokens that the model writes."""
    reply: int
    """Tokens of the tool's reply."""
    wait_s: float
    """Seconds of the tool call; 0 after the last turn."""


@dataclass
class Rollout:
    """One rollout, its progress and its statistics."""

    name: str
    group: str
    prompt: int
    turns: list[Turn]
    budget: int
    tokens: int = 0
    turn: int = 0
    engine: str = ""
    first_wait_s: float = -1.0
    later: int = 0
    stayed: int = 0
    moved: bool = False
    hit_tokens: int = 0
    context_tokens: int = 0


class Policy(Protocol):
    """Chooses the engine of each turn, and calls `place(rollout, engine)` to start the turn there."""

    def request(self, rollout: Rollout, now: float) -> None: ...
    def turn_ended(self, rollout: Rollout, now: float) -> None: ...
    def end(self, rollout: Rollout, now: float) -> None: ...
    def read(self, engine: Engine, now: float) -> None: ...


Place = Callable[[Rollout, str], None]


@dataclass
class Request:
    """A turn on an engine."""

    rollout: Rollout
    left: float
    """Number of tokens that the request still has to write."""
    context: float
    """Number of tokens in the cache when the request starts."""
    ends_at: float = 0.0
    """The engine's step count at the request's last token."""


@dataclass
class Engine:
    """One simulated engine. `advance` moves its clock."""

    name: str
    model: EngineModel
    running: dict[str, Request] = field(default_factory=dict)
    queue: deque[Request] = field(default_factory=deque)
    cached: OrderedDict[str, float] = field(default_factory=OrderedDict)
    """Numbers of cached tokens of rollouts that wait for a tool, keyed by rollout, least recently used first."""
    now: float = 0.0
    steps: float = 0.0
    resident: float = 0.0
    """Tokens of running requests."""
    cached_tokens: float = 0.0
    """Tokens in `cached`."""
    stalled_until: float = 0.0
    preemptions: int = 0
    lost_prefixes: int = 0
    peak: float = 0.0
    busy_s: float = 0.0
    version: int = 0

    def advance(self, now: float) -> None:
        """Write tokens until the time `now`."""
        start = max(self.now, min(now, self.stalled_until))
        self.busy_s += now - self.now if self.running else 0.0
        self.now = now
        if self.running and now > start:
            self._step(self._steps_in(now - start))

    def _step(self, steps: float) -> None:
        self.steps += steps
        self.resident += steps * len(self.running)
        for_idle = self.model.capacity - self.resident
        while self.cached_tokens > max(0.0, for_idle) and self.cached:
            name, tokens = next(iter(self.cached.items()))
            gone = min(tokens, self.cached_tokens - max(0.0, for_idle))
            self.cached[name] = tokens - gone
            self.cached_tokens -= gone
            if tokens - gone < 1:
                del self.cached[name]
        self.peak = max(self.peak, self.resident)

    def _steps_in(self, seconds: float) -> float:
        a = self.model.context_s * len(self.running) / 2
        b = self.model.fixed_s + self.model.context_s * self.resident
        return seconds / b if a == 0 else (math.sqrt(b * b + 4 * a * seconds) - b) / (2 * a)

    def _seconds_of(self, steps: float) -> float:
        b = self.model.fixed_s + self.model.context_s * self.resident
        return steps * b + self.model.context_s * len(self.running) * steps * steps / 2

    def next_event(self) -> float:
        """Return the time at which a request ends or the cache is full."""
        if not self.running:
            return math.inf
        first = min(request.ends_at for request in self.running.values()) - self.steps
        full = (self.model.capacity - self.resident) / len(self.running)
        return max(self.now, self.stalled_until) + self._seconds_of(max(0.0, min(first, full)))

    def submit(self, rollout: Rollout, written: int) -> None:
        self.queue.append(Request(rollout, written, rollout.tokens))
        self.admit()

    def settle(self) -> list[Rollout]:
        """End finished requests, preempt requests that do not fit, and start waiting ones.

        Returns the rollouts whose turn ended.
        """
        ended = [each for each in self.running.values() if each.ends_at - self.steps < 1e-6]
        for request in ended:
            tokens = self._stop(request)
            self.cached[request.rollout.name] = tokens
            self.cached_tokens += tokens
        preempted = False
        while len(self.running) > 1 and self.model.capacity - self.resident < len(self.running) * 1e-6:
            newest = self.running[next(reversed(self.running))]
            newest.context = self._stop(newest)
            newest.left = newest.ends_at - self.steps
            self.queue.appendleft(newest)
            self.preemptions += 1
            preempted = True
        if not preempted:
            self.admit()
        return [request.rollout for request in ended]

    def _stop(self, request: Request) -> float:
        del self.running[request.rollout.name]
        tokens = request.context + request.left - (request.ends_at - self.steps)
        self.resident -= tokens
        return tokens

    def admit(self) -> None:
        while self.queue and len(self.running) < self.model.in_flight:
            request = self.queue[0]
            if self.running and self.resident + request.context > (1 - WATERMARK) * self.model.capacity:
                return
            self.queue.popleft()
            rollout = request.rollout
            hit = min(request.context, self.cached.pop(rollout.name, 0.0))
            self.cached_tokens -= hit
            if rollout.turn:
                before = sum(each.written + each.reply for each in rollout.turns[: rollout.turn - 1])
                known = rollout.prompt + before + rollout.turns[rollout.turn - 1].written
                rollout.hit_tokens += int(hit)
                rollout.context_tokens += known
                self.lost_prefixes += hit < known - 16 and not rollout.moved
            if rollout.first_wait_s < 0:
                rollout.first_wait_s = self.now
            stall = (request.context - hit) * self.model.prefill_s
            self.stalled_until = max(self.now, self.stalled_until) + stall
            request.ends_at = self.steps + request.left
            self.running[rollout.name] = request
            self.resident += request.context
        self._step(0.0)


MakePolicy = Callable[[dict[str, Engine], Place], Policy]


class Sessions:
    """rstar2's scheduler. `before` holds the lengths of an earlier step's rollouts, as shares of their budget."""

    def __init__(
        self, engines: dict[str, Engine], place: Place, window: int, safety: float, before: list[float]
    ) -> None:
        self._rollouts: dict[str, Rollout] = {}
        self._start = place
        in_flight = max(engine.model.in_flight for engine in engines.values())
        self.scheduler = Scheduler(self, SchedulerSettings(in_flight=in_flight, window=window, safety=safety))
        lengths = self.scheduler.lengths
        for share in before:
            lengths.ended(lengths.started(), share)
        for engine in engines.values():
            self.scheduler.add_engine(engine.name, engine.model.capacity, 0.0)

    def placed(self, session: str, engine: str) -> None:
        self._start(self._rollouts[session], engine)

    def refused(self, session: str, why: str) -> None:
        raise RuntimeError(f"{session}: {why}")

    def request(self, rollout: Rollout, now: float) -> None:
        self._rollouts[rollout.name] = rollout
        left = rollout.prompt + rollout.budget - rollout.tokens
        self.scheduler.request(rollout.name, rollout.group, rollout.tokens, left, now)

    def turn_ended(self, rollout: Rollout, now: float) -> None:
        self.scheduler.turn_ended(rollout.name, now)

    def end(self, rollout: Rollout, now: float) -> None:
        self.scheduler.end(rollout.name, rollout.tokens, now)
        del self._rollouts[rollout.name]

    def read(self, engine: Engine, now: float) -> None:
        used, size = engine.resident, engine.model.capacity
        reading = Reading(size, used / size, len(engine.running), len(engine.queue), engine.preemptions)
        self.scheduler.read(engine.name, reading, now)


class Fifo:
    """First come, first served: each rollout reserves its full length on the engine with the most free cache."""

    def __init__(self, engines: dict[str, Engine], place: Place) -> None:
        self._free = {name: float(engine.model.capacity) for name, engine in engines.items()}
        self._home: dict[str, str] = {}
        self._queue: deque[Rollout] = deque()
        self._start = place

    def request(self, rollout: Rollout, now: float) -> None:
        if rollout.name in self._home:
            self._start(rollout, self._home[rollout.name])
            return
        self._queue.append(rollout)
        self._admit()

    def _admit(self) -> None:
        while self._queue:
            rollout, name = self._queue[0], max(self._free, key=lambda each: self._free[each])
            if self._free[name] < rollout.prompt + rollout.budget:
                return
            self._queue.popleft()
            self._free[name] -= rollout.prompt + rollout.budget
            self._home[rollout.name] = name
            self._start(rollout, name)

    def turn_ended(self, rollout: Rollout, now: float) -> None: ...

    def end(self, rollout: Rollout, now: float) -> None:
        self._free[self._home.pop(rollout.name)] += rollout.prompt + rollout.budget
        self._admit()

    def read(self, engine: Engine, now: float) -> None: ...


class StaticSplit:
    """Assigns rollouts to engines in turn (round robin). A rollout stays on its engine."""

    def __init__(self, engines: dict[str, Engine], place: Place) -> None:
        self._names = itertools.cycle(engines)
        self._home: dict[str, str] = {}
        self._start = place

    def request(self, rollout: Rollout, now: float) -> None:
        if rollout.name not in self._home:
            self._home[rollout.name] = next(self._names)
        self._start(rollout, self._home[rollout.name])

    def turn_ended(self, rollout: Rollout, now: float) -> None: ...
    def end(self, rollout: Rollout, now: float) -> None: ...
    def read(self, engine: Engine, now: float) -> None: ...


class VerlsDefault:
    """VERL's own load balancer. It remembers the engines of the last 10,000 rollouts, and assigns others to the engine
    with the fewest requests in flight."""

    def __init__(self, engines: dict[str, Engine], place: Place) -> None:
        from verl.workers.rollout.router import GlobalRequestLoadBalancer

        random.seed(0)
        self._balancer = GlobalRequestLoadBalancer(dict.fromkeys(engines))
        self._start = place

    def request(self, rollout: Rollout, now: float) -> None:
        name, _ = self._balancer.acquire_server(rollout.name)
        self._start(rollout, name)

    def turn_ended(self, rollout: Rollout, now: float) -> None:
        self._balancer.release_server(rollout.engine)

    def end(self, rollout: Rollout, now: float) -> None: ...
    def read(self, engine: Engine, now: float) -> None: ...


class StickyLeastLoaded:
    """Assigns each rollout permanently to the engine with the fewest rollouts. Requests wait only in the engines."""

    def __init__(self, engines: dict[str, Engine], place: Place) -> None:
        self._count = dict.fromkeys(engines, 0)
        self._home: dict[str, str] = {}
        self._start = place

    def request(self, rollout: Rollout, now: float) -> None:
        if rollout.name not in self._home:
            name = min(self._count, key=lambda each: self._count[each])
            self._home[rollout.name] = name
            self._count[name] += 1
        self._start(rollout, self._home[rollout.name])

    def turn_ended(self, rollout: Rollout, now: float) -> None: ...

    def end(self, rollout: Rollout, now: float) -> None:
        self._count[self._home.pop(rollout.name)] -= 1

    def read(self, engine: Engine, now: float) -> None: ...


def workload(problems: int, samples: int, budget: int, seed: int) -> list[Rollout]:
    """Generate the rollouts of a step. Rollouts of the same problem share a difficulty."""
    draw = random.Random(seed)
    rollouts = []
    for problem in range(problems):
        prompt = min(2048, int(draw.lognormvariate(math.log(200), 0.6)))
        hard = draw.lognormvariate(0.0, 0.5)
        for sample in range(samples):
            left, turns = budget, []
            calls = min(9, int(draw.expovariate(1 / 3.2)))
            for number in range(calls + 1):
                written = max(20, int(draw.lognormvariate(math.log(600 * hard), 0.9)))
                reply = 0 if number == calls else max(10, int(draw.lognormvariate(math.log(80), 1.0)))
                wait_s = 0.0 if number == calls else 0.1 + min(30.0, draw.lognormvariate(math.log(0.2), 1.2))
                turns.append(Turn(min(written, left), reply, wait_s))
                left -= written + reply
                if left <= 0:
                    turns[-1] = Turn(turns[-1].written, 0, 0.0)
                    break
            rollouts.append(Rollout(f"{problem}/{sample}", str(problem), prompt, turns, budget))
    return rollouts


def bound_s(rollouts: list[Rollout], engines: int, model: EngineModel) -> tuple[float, float]:
    """Return two lower bounds of a step's seconds.

    The first bound spreads the work evenly over engines that are always full. The second is the time of the slowest
    rollout, alone on an engine.
    """
    work = longest = 0.0
    for rollout in rollouts:
        tokens, reads, alone = rollout.prompt, 0.0, 0.0
        written = sum(turn.written for turn in rollout.turns)
        prefill = (rollout.prompt + sum(turn.reply for turn in rollout.turns)) * model.prefill_s
        for turn in rollout.turns:
            reads += model.context_s * (tokens * turn.written + turn.written**2 / 2)
            tokens += turn.written + turn.reply
            alone += turn.wait_s
        work += reads + prefill + written * model.fixed_s / model.in_flight
        longest = max(longest, alone + reads + prefill + written * model.fixed_s)
    return work / engines, longest


class Simulation:
    """Simulates one policy on the rollouts of one step."""

    def __init__(
        self,
        rollouts: list[Rollout],
        engines: int,
        model: EngineModel,
        make: MakePolicy,
    ) -> None:
        self.rollouts = rollouts
        self.engines = {f"engine{number}": Engine(f"engine{number}", model) for number in range(engines)}
        self.now = 0.0
        self._events: list[tuple[float, int, str, Any, int]] = []
        self._count = itertools.count()
        self._left = len(rollouts)
        self.policy = make(self.engines, self._place)

    def run(self) -> float:
        """Run the simulation. Returns the simulated seconds until the last rollout ended."""
        started = time.perf_counter()
        for rollout in self.rollouts:
            rollout.tokens = rollout.prompt
            self.policy.request(rollout, 0.0)
        self._push(READ_EVERY_S, "read", None)
        while self._left:
            self.now, _, kind, what, version = heapq.heappop(self._events)
            if kind == "engine":
                if version == what.version:
                    self._on_engine(what)
            elif kind == "request":
                self.policy.request(what, self.now)
            else:
                for engine in self.engines.values():
                    engine.advance(self.now)
                    self.policy.read(engine, self.now)
                    self._schedule(engine)
                self._push(self.now + READ_EVERY_S, "read", None)
        self.took_s = time.perf_counter() - started
        return self.now

    def _push(self, at: float, kind: str, what: Any, version: int = 0) -> None:
        heapq.heappush(self._events, (at, next(self._count), kind, what, version))

    def _schedule(self, engine: Engine) -> None:
        engine.version += 1
        at = engine.next_event()
        if at < math.inf:
            self._push(at, "engine", engine, engine.version)

    def _place(self, rollout: Rollout, name: str) -> None:
        if rollout.turn:
            rollout.later += 1
            rollout.moved = rollout.engine != name
            rollout.stayed += not rollout.moved
        if rollout.engine and rollout.engine != name:
            old = self.engines[rollout.engine]
            old.cached_tokens -= old.cached.pop(rollout.name, 0.0)
        rollout.engine = name
        engine = self.engines[name]
        engine.advance(self.now)
        engine.submit(rollout, rollout.turns[rollout.turn].written)
        self._schedule(engine)

    def _on_engine(self, engine: Engine) -> None:
        engine.advance(self.now)
        ended = engine.settle()
        self._schedule(engine)
        for rollout in ended:
            turn = rollout.turns[rollout.turn]
            rollout.tokens += turn.written
            rollout.turn += 1
            self.policy.turn_ended(rollout, self.now)
            if rollout.turn == len(rollout.turns):
                self._left -= 1
                self.policy.end(rollout, self.now)
            else:
                rollout.tokens += turn.reply
                self._push(self.now + turn.wait_s, "request", rollout)

    def record(self, bound: float) -> dict[str, float]:
        """Return the columns of the output. `bound` is the lower bound in seconds."""
        later = sum(rollout.later for rollout in self.rollouts)
        context = sum(rollout.context_tokens for rollout in self.rollouts)
        engines = self.engines.values()
        return {
            "makespan_s": self.now,
            "of_bound": self.now / bound,
            "preemptions": sum(engine.preemptions for engine in engines),
            "lost_prefixes": sum(engine.lost_prefixes for engine in engines),
            "stayed": sum(rollout.stayed for rollout in self.rollouts) / max(1, later),
            "prefix_hits": sum(rollout.hit_tokens for rollout in self.rollouts) / max(1, context),
            "longest_wait_s": max(rollout.first_wait_s for rollout in self.rollouts),
            "peak_kv": max(engine.peak / engine.model.capacity for engine in engines),
            "simulated_in_s": self.took_s,
        }


def policies(
    window: int, safety: float, before: list[float]
) -> dict[str, Callable[[dict[str, Engine], Place], Policy]]:
    return {
        "sessions": lambda engines, place: Sessions(engines, place, window, safety, before),
        "sessions, first step": lambda engines, place: Sessions(engines, place, window, safety, []),
        "first come, full length": Fifo,
        "static split": StaticSplit,
        "VERL's default": VerlsDefault,
        "sticky least loaded": StickyLeastLoaded,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--problems", type=int, default=512)
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--budget", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--safety", type=float, default=4.0)
    parser.add_argument("--capacity", type=int, default=EngineModel.capacity)
    parser.add_argument("--only", nargs="+", help="simulate only the schedulers with these names")
    parser.add_argument("--json", action="store_true", help="print JSON instead of rows")
    options = parser.parse_args()
    model = EngineModel(capacity=options.capacity)
    earlier = workload(options.problems, options.samples, options.budget, options.seed + 1)
    before = [
        min(1.0, sum(turn.written + turn.reply for turn in rollout.turns) / options.budget)
        for rollout in earlier
    ]
    rows = []
    for engines in options.engines:
        work, longest = bound_s(
            workload(options.problems, options.samples, options.budget, options.seed), engines, model
        )
        if not options.json:
            print(f"{engines} engines: work {work:.0f} s each, longest rollout {longest:.0f} s")
        for name, make in policies(options.window, options.safety, before).items():
            if options.only and name not in options.only:
                continue
            rollouts = workload(options.problems, options.samples, options.budget, options.seed)
            simulation = Simulation(rollouts, engines, model, make)
            simulation.run()
            row = {"engines": engines, "policy": name, **simulation.record(max(work, longest))}
            rows.append(row)
            if not options.json:
                print(row)
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()

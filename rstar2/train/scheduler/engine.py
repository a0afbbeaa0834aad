"""The books of one engine: which sessions it holds, and how much of its KV cache they will need."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from rstar2.train.scheduler.lengths import HORIZONS, Floats, LengthModel
from rstar2.train.scheduler.metrics import Reading

BLOCK = 16
"""Tokens of a block of vLLM's KV cache; a session takes whole ones."""
_FRESH_S = 30.0
"""An older reading is not acted on."""
_FULL_SHARE = 0.9
"""An engine whose cache was seen so full takes no more sessions."""
_DISTRUST_S = 600.0
"""So long after a preemption every session of the engine is counted at its full length."""
_AHEAD = np.linspace(0.0, 1.0, HORIZONS)


@dataclass
class Session:
    """A rollout, from its first request for an engine to its end."""

    name: str
    group: str
    order: tuple[int, int]
    """When its group, and when it first asked: who waits is served in this order."""
    prompt: int
    """Tokens of its first request."""
    longest: int
    """Tokens that it may grow to, its prompt included."""
    tokens: int
    """At the start of its last turn."""
    news_at: float
    """When it last asked for an engine, ended a turn, or was placed."""
    number: int = -1
    """In the length model; -1 before it was placed for the first time."""
    engine: str | None = None
    asked_at: float | None = None
    """Since when it waits for an engine; None while it does not."""
    busy: bool = False
    """Whether the engine works for it."""
    mean: Floats | None = None
    """Shape (HORIZONS,): tokens it is expected to hold from now on; None where that is not known."""
    variance: Floats | None = None

    def expect(self, lengths: LengthModel) -> None:
        """Set what it is expected to hold."""
        room = max(1, self.longest - self.prompt)
        chance = lengths.lasting((self.tokens - self.prompt) / room)
        if chance is None:
            self.mean = self.variance = None
            return
        held = np.minimum(self.tokens + room * _AHEAD, self.longest) + BLOCK
        self.mean = held * chance
        self.variance = held * held * chance * (1 - chance)


@dataclass
class EngineBooks:
    """What one engine holds, and what that will need of its KV cache at most."""

    name: str
    capacity: int | None
    """Tokens; None where it is not known, and `in_flight` alone counts."""
    in_flight: int
    """Sessions that it works for at a time; where the capacity is not known, all that it is given."""
    safety: float
    """Standard deviations of what its sessions will need that are kept free."""
    sessions: dict[str, Session] = field(default_factory=dict)
    _busy: int = 0
    _full: int = 0
    _unknown: int = 0
    _mean: Floats = field(default_factory=lambda: np.zeros(HORIZONS))
    _variance: Floats = field(default_factory=lambda: np.zeros(HORIZONS))
    _idle_tokens: int = 0
    _used: int = 0
    _read_at: float = -math.inf
    _preemptions: int | None = None
    _distrusted_until: float = -math.inf

    def add(self, session: Session) -> None:
        self.sessions[session.name] = session
        session.engine = self.name
        self._count(session, 1)

    def remove(self, session: Session) -> None:
        """Take a session off the books; it must be as it was when it was added."""
        del self.sessions[session.name]
        session.engine = None
        self._count(session, -1)
        if not self.sessions:  # what was lost to rounding
            self._mean, self._variance = np.zeros(HORIZONS), np.zeros(HORIZONS)

    def _count(self, session: Session, sign: int) -> None:
        self._full += sign * blocks(session.longest)
        self._busy += sign * session.busy
        self._idle_tokens += 0 if session.busy else sign * session.tokens
        if session.mean is None or session.variance is None:
            self._unknown += sign * blocks(session.longest)
        else:
            self._mean += sign * session.mean
            self._variance += sign * session.variance

    def set_busy(self, session: Session, busy: bool) -> None:
        """Note whether the engine works for one of its sessions."""
        if session.busy != busy:
            session.busy = busy
            self._busy += 1 if busy else -1
            self._idle_tokens += -session.tokens if busy else session.tokens

    def read(self, reading: Reading, now: float) -> None:
        """Note what the engine reports."""
        self.capacity = reading.capacity or self.capacity
        if self.capacity is not None:
            self._used, self._read_at = int(reading.used_share * self.capacity), now
        if self._preemptions is not None and reading.preemptions > self._preemptions:
            self._distrusted_until = now + _DISTRUST_S
        self._preemptions = reading.preemptions

    def free(self, session: Session, now: float) -> float:
        """Tokens that are still free with one more session; negative where it does not fit.

        What the sessions will need is the most that they are expected to hold together at any time from now on, with
        `safety` standard deviations of it; their full lengths where nothing is known, and never more than these.
        """
        if self.capacity is None:
            return (self.in_flight - len(self.sessions) - 1) * float(blocks(session.longest))
        if not self.sessions:
            return self.capacity - float(blocks(session.longest))
        if self._busy >= self.in_flight:
            return -1.0
        needed = float(self._full + blocks(session.longest))
        if session.mean is not None and session.variance is not None and now >= self._distrusted_until:
            deviation = np.sqrt(np.maximum(0.0, self._variance + session.variance))
            held = self._mean + session.mean + self.safety * deviation
            needed = min(needed, self._unknown + float(held.max()))
        if now - self._read_at <= _FRESH_S:
            needed = max(needed, (self._used + self._idle_tokens + session.tokens) / _FULL_SHARE)
        return self.capacity - needed


def blocks(tokens: int) -> int:
    """Tokens in whole blocks."""
    return -(-tokens // BLOCK) * BLOCK

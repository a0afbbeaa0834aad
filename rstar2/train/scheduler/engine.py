"""The state of one engine: its sessions, and how much of its KV cache the sessions will need."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from rstar2.train.scheduler.lengths import HORIZONS, Floats, LengthModel
from rstar2.train.scheduler.metrics import Reading

BLOCK = 16
"""Number of tokens per block of vLLM's KV cache. A session takes up only whole blocks."""
_FRESH_S = 30.0
"""An engine's report about its KV cache is ignored if it is older than this many seconds."""
_FULL_SHARE = 0.9
"""An engine gets no further session if more than this share of its KV cache would then be in use."""
_DISTRUST_S = 600.0
"""For this many seconds after an engine has preempted a request, each of its sessions is assumed to reach its maximum
length."""
_AHEAD = np.linspace(0.0, 1.0, HORIZONS)


@dataclass
class Session:
    """A rollout, from its first request for an engine to its end."""

    name: str
    group: str
    order: tuple[int, int]
    """The sort key of a waiting session: the number of its group's first request, then the number of its own first
    request."""
    prompt: int
    """Number of tokens in the prompt of the session's first turn."""
    longest: int
    """Maximum number of tokens that the session can reach, including its prompt."""
    tokens: int
    """Number of tokens that the session had at the start of its last turn."""
    updated_at: float
    """The time when the session last requested an engine, ended a turn, or was placed."""
    number: int = -1
    """The session's number in the length model; -1 until the session is placed for the first time."""
    engine: str | None = None
    waiting_since: float | None = None
    """The time when the session began to wait for an engine, or None if the session does not wait."""
    busy: bool = False
    """Whether the engine is working on one of the session's turns."""
    mean: Floats | None = None
    """The expected number of tokens that the session will have in the KV cache at each horizon, of shape (HORIZONS,).
    None if lengths cannot be predicted yet."""
    variance: Floats | None = None
    """The variance of the number of tokens that the session will have in the KV cache at each horizon, of shape
    (HORIZONS,). None if lengths cannot be predicted yet."""

    def expect(self, lengths: LengthModel) -> None:
        """Calculates the session's `mean` and `variance` with the model `lengths`."""
        room = max(1, self.longest - self.prompt)
        chance = lengths.lasting((self.tokens - self.prompt) / room)
        if chance is None:
            self.mean = self.variance = None
            return
        tokens = np.minimum(self.tokens + room * _AHEAD, self.longest) + BLOCK
        self.mean = tokens * chance
        self.variance = tokens * tokens * chance * (1 - chance)


@dataclass
class EngineState:
    """The sessions of one engine, and how much of its KV cache the sessions will need."""

    name: str
    capacity: int | None
    """Number of tokens that the engine's KV cache can hold. If the number is None, the capacity is unknown, and only
    `in_flight` limits the number of sessions."""
    in_flight: int
    """Maximum number of sessions that the engine works on at the same time. If the capacity of the KV cache is unknown,
    this is also the maximum number of sessions on the engine, including the sessions that the engine is not working
    on."""
    safety: float
    """Size of the reserve that is kept free in the KV cache, in standard deviations of the number of tokens that the
    sessions need."""
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
        """Removes a session. The session's `tokens`, `longest`, `mean` and `variance` must be the same as when the
        session was added."""
        del self.sessions[session.name]
        session.engine = None
        self._count(session, -1)
        if not self.sessions:  # removes rounding errors
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
        """Sets whether the engine is working on a session."""
        if session.busy != busy:
            session.busy = busy
            self._busy += 1 if busy else -1
            self._idle_tokens += -session.tokens if busy else session.tokens

    def read(self, reading: Reading, now: float) -> None:
        """Updates the state from the engine's report about its KV cache."""
        self.capacity = reading.capacity or self.capacity
        if self.capacity is not None:
            self._used, self._read_at = int(reading.used_share * self.capacity), now
        if self._preemptions is not None and reading.preemptions > self._preemptions:
            self._distrusted_until = now + _DISTRUST_S
        self._preemptions = reading.preemptions

    def free(self, session: Session, now: float) -> float:
        """Returns how many tokens of the KV cache stay free if one more session is added. The number is negative if the
        session does not fit.

        At each horizon, the sessions need their expected number of tokens plus `safety` standard deviations. Room is
        reserved for the horizon at which the sessions need the most tokens. If lengths cannot be predicted, each
        session is assumed to reach its maximum length. No estimate is higher than the sum of the maximum lengths of all
        sessions.
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
            expected = self._mean + session.mean + self.safety * deviation
            needed = min(needed, self._unknown + float(expected.max()))
        if now - self._read_at <= _FRESH_S:
            needed = max(needed, (self._used + self._idle_tokens + session.tokens) / _FULL_SHARE)
        return self.capacity - needed


def blocks(tokens: int) -> int:
    """Rounds a number of tokens up to whole blocks."""
    return -(-tokens // BLOCK) * BLOCK

"""The rollout scheduler: admits sessions to engines in order, keeps them there, and moves them where that pays."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Protocol

from rstar2.train.scheduler.engine import EngineBooks, Session, blocks
from rstar2.train.scheduler.lengths import WINDOW, LengthModel
from rstar2.train.scheduler.metrics import Reading

_TIMES_FULLER, _AND_MORE = 2, 4
"""A session moves from an engine that has so many times the sessions of the emptiest, and so many more: writing with
few beside it is then faster by more than its tokens so far take to be read again."""


@dataclass(frozen=True)
class SchedulerSettings:
    """How the scheduler behaves; the defaults are those of training."""

    in_flight: int = 64
    """Sessions that an engine works for at a time."""
    quiet_s: float = 3600.0
    """A session without news for so long is given up: its rollout is gone, or its engine hangs. One that waits is
    refused where no other was placed or ended a turn for so long."""
    safety: float = 4.0
    """Standard deviations of what an engine's sessions will need that are kept free."""
    window: int = WINDOW
    """Rollouts from whose lengths those of others are expected; 0 expects every rollout at its full length."""


class Rollouts(Protocol):
    """What is told of the scheduler's decisions, during whichever call of it they are made."""

    def placed(self, session: str, engine: str) -> None:
        """The session's next turn may start on the engine."""

    def refused(self, session: str, why: str) -> None:
        """The session will have no engine, and is forgotten."""


class Scheduler:
    """Places the turns of sessions on engines.

    Those that wait are served strictly in order: by when their group first asked, then by when they did. None passes
    one that is too large for the room there is, so large ones wait no longer than small ones, and groups are whole
    early. An engine makes room for the first within the time that its own sessions take.
    """

    def __init__(self, rollouts: Rollouts, settings: SchedulerSettings | None = None) -> None:
        self.sessions: dict[str, Session] = {}
        """From their first request to their end."""
        self.engines: dict[str, EngineBooks] = {}
        self._settings = settings or SchedulerSettings()
        self._rollouts = rollouts
        self.lengths = LengthModel(self._settings.window)
        self._queue: list[tuple[tuple[int, int], str]] = []
        """A heap of those that wait; one that no longer waits is passed over."""
        self._groups: dict[str, list[int]] = {}
        """Of each group with a session: its place in the order, and how many sessions it has."""
        self._arrivals = 0
        self._progress_at = -math.inf

    @property
    def waiting(self) -> int:
        """Sessions that wait for an engine."""
        return sum(session.asked_at is not None for session in self.sessions.values())

    def add_engine(self, name: str, capacity: int | None, now: float) -> None:
        """Use an engine from now on; `capacity` is its KV cache in tokens, None where it is not known."""
        settings = self._settings
        self.engines[name] = EngineBooks(name, capacity, settings.in_flight, settings.safety)
        self._admit(now)

    def remove_engine(self, name: str, now: float) -> None:
        """Use an engine no more; its sessions get another with their next turn, ahead of those that came later."""
        books = self.engines.pop(name, None)
        for session in list(books.sessions.values()) if books else []:
            session.engine, session.busy = None, False
        self._admit(now)

    def read(self, engine: str, reading: Reading, now: float) -> None:
        """Note what an engine reports of its KV cache."""
        if engine in self.engines:
            self.engines[engine].read(reading, now)
            self._admit(now)

    def request(self, name: str, group: str, tokens: int, more: int, now: float) -> None:
        """Ask for an engine for a session's next turn, whose prompt has `tokens`; up to `more` follow to its end."""
        session = self.sessions.get(name) or self._new(name, group, tokens, now)
        home = self.engines.get(session.engine or "")
        if home is not None:
            home.remove(session)
        session.tokens, session.longest = tokens, max(session.longest, tokens + more)
        session.busy, session.news_at = False, now
        session.expect(self.lengths)
        if home is not None:
            self._place(session, self._better(session, home, now) or home, now)
            return
        if session.asked_at is None:
            session.asked_at = now
            heapq.heappush(self._queue, (session.order, name))
        self._admit(now)

    def turn_ended(self, name: str, now: float) -> None:
        """The engine works no longer for a session, which may ask again."""
        session = self.sessions.get(name)
        books = self.engines.get(session.engine or "") if session else None
        if session is None or books is None:
            return
        books.set_busy(session, False)
        session.news_at = self._progress_at = now
        self._admit(now)

    def end(self, name: str, tokens: int | None, now: float) -> None:
        """A session is over, with so many tokens in all; None where that is not known."""
        session = self.sessions.get(name)
        if session is None:
            return
        if session.number >= 0:
            room = max(1, session.longest - session.prompt)
            share = 1.0 if tokens is None else (tokens - session.prompt) / room
            self.lengths.ended(session.number, min(1.0, max(0.0, share)))
        self._forget(session)
        self._progress_at = now
        self._admit(now)

    def forget_places(self, now: float) -> int:
        """Let every session that is between two turns choose an engine anew; returns how many these are.

        For when the engines' KV caches were emptied, or engines were added.
        """
        idle = [each for each in self.sessions.values() if each.engine is not None and not each.busy]
        for session in idle:
            self._leave(session)
        self._admit(now)
        return len(idle)

    def tick(self, now: float) -> None:
        """Give up sessions without news, then refuse those that wait where nothing moves; call it now and then."""
        quiet_s = self._settings.quiet_s
        for session in list(self.sessions.values()):
            if session.asked_at is None and now - session.news_at > quiet_s:
                self.end(session.name, None, now)
        for session in list(self.sessions.values()):
            since = session.asked_at
            if since is not None and now - max(since, self._progress_at) > quiet_s:
                self._refuse(session, f"no engine had room, and none ended a turn, for {quiet_s:g} seconds")

    def _new(self, name: str, group: str, tokens: int, now: float) -> Session:
        place = self._groups.setdefault(group, [self._arrivals, 0])
        place[1] += 1
        session = Session(name, group, (place[0], self._arrivals), tokens, tokens, tokens, now)
        self._arrivals += 1
        self.sessions[name] = session
        return session

    def _admit(self, now: float) -> None:
        """Place those that wait, in order, until the first of them does not fit."""
        while self._queue and self.engines:
            session = self.sessions.get(self._queue[0][1])
            if session is None or session.asked_at is None or session.order != self._queue[0][0]:
                heapq.heappop(self._queue)
                continue
            session.expect(self.lengths)
            free, name = max((books.free(session, now), name) for name, books in self.engines.items())
            if free >= 0:
                heapq.heappop(self._queue)
                if session.number < 0:
                    session.number = self.lengths.started()
                self._place(session, self.engines[name], now)
                continue
            largest = max(books.capacity or math.inf for books in self.engines.values())
            if blocks(session.longest) <= largest:
                return
            self._refuse(
                session,
                f"a rollout may grow to {session.longest} tokens, and the largest engine's KV cache holds {largest}: "
                "raise hardware.tensor_parallel or engine_memory_share, or lower rollout.tokens",
            )

    def _better(self, session: Session, home: EngineBooks, now: float) -> EngineBooks | None:
        """The engine to which a session moves from one that has its KV cache; None where it stays."""
        if self._queue:
            return None
        best = min(self.engines.values(), key=lambda books: (len(books.sessions), books.name))
        if len(home.sessions) < _TIMES_FULLER * len(best.sessions) + _AND_MORE:
            return None
        return best if best.free(session, now) >= 0 else None

    def _place(self, session: Session, books: EngineBooks, now: float) -> None:
        session.asked_at, session.busy = None, True
        session.news_at = self._progress_at = now
        books.add(session)
        self._rollouts.placed(session.name, books.name)

    def _refuse(self, session: Session, why: str) -> None:
        self._forget(session)
        self._rollouts.refused(session.name, why)

    def _forget(self, session: Session) -> None:
        self._leave(session)
        del self.sessions[session.name]
        place = self._groups[session.group]
        place[1] -= 1
        if not place[1]:
            del self._groups[session.group]

    def _leave(self, session: Session) -> None:
        if session.engine is not None:
            self.engines[session.engine].remove(session)

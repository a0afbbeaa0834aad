"""The scheduler's policy: it places sessions on engines in order, keeps each session on its engine, and moves a session
if the move saves time."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Protocol

from rstar2.train.scheduler.engine import EngineState, Session, blocks
from rstar2.train.scheduler.lengths import WINDOW, LengthModel
from rstar2.train.scheduler.metrics import Reading

MIN_RATIO, MIN_EXTRA = 2, 4
"""A session moves if its engine has at least `MIN_RATIO` times as many sessions as the emptiest engine, plus
`MIN_EXTRA`. Decoding on the emptiest engine is then enough faster to pay for prefilling the session's tokens again."""


@dataclass(frozen=True)
class SchedulerSettings:
    """Settings of the scheduler. The default values are meant for training."""

    in_flight: int = 64
    """Maximum number of sessions that an engine works on at the same time."""
    quiet_s: float = 3600.0
    """A session on an engine is removed after this many seconds without an event, because its rollout has died or its
    engine hangs. A waiting session is refused if no session was placed and no turn ended for this many seconds."""
    safety: float = 4.0
    """Size of the reserve that is kept free in an engine's KV cache, in standard deviations of the number of tokens
    that the engine's sessions need."""
    window: int = WINDOW
    """Number of rollouts from which lengths are predicted. If the number is 0, every rollout is assumed to reach its
    maximum length.
    """


class Listener(Protocol):
    """The receiver of the scheduler's decisions. The scheduler calls the receiver synchronously, before the method that
    made the decision returns."""

    def placed(self, session: str, engine: str) -> None:
        """Reports that the session's next turn can start on the engine."""

    def refused(self, session: str, why: str) -> None:
        """Reports that the session gets no engine, and that the scheduler has removed the session."""


class Scheduler:
    """Places the turns of sessions on engines.

    Waiting sessions are placed strictly in order: by the first request of their group, then by their own first request.
    While the first waiting session does not fit on any engine, no other session is placed. Large sessions therefore
    wait no longer than small sessions, and groups are complete early. The first waiting session
    waits at most until one engine has no sessions left.

    Args:
        listener: the receiver of the decisions.
        settings: the settings, or None for the default settings.
    """

    def __init__(self, listener: Listener, settings: SchedulerSettings | None = None) -> None:
        self.sessions: dict[str, Session] = {}
        """All sessions from their first request to their end, keyed by name."""
        self.engines: dict[str, EngineState] = {}
        self._settings = settings or SchedulerSettings()
        self._listener = listener
        self.lengths = LengthModel(self._settings.window)
        self._queue: list[tuple[tuple[int, int], str]] = []
        """A heap of waiting sessions. The heap may also contain sessions that no longer wait, which are skipped."""
        self._groups: dict[str, list[int]] = {}
        """Dict from each group that has a session to two numbers: the number of the group's first request, and how many
        sessions the group has."""
        self._arrivals = 0
        """Number of sessions that have arrived so far."""
        self._progress_at = -math.inf
        """The time of the last event at which a session was placed, ended a turn, or ended."""

    @property
    def waiting(self) -> int:
        """Number of sessions that wait for an engine."""
        return sum(session.waiting_since is not None for session in self.sessions.values())

    def add_engine(self, name: str, capacity: int | None, now: float) -> None:
        """Adds an engine, on which sessions can be placed from now on.

        Args:
            name: the engine's name.
            capacity: number of tokens that the engine's KV cache can hold, or None if the capacity is unknown.
            now: the current time in seconds, as in all methods.
        """
        settings = self._settings
        self.engines[name] = EngineState(name, capacity, settings.in_flight, settings.safety)
        self._admit(now)

    def remove_engine(self, name: str, now: float) -> None:
        """Removes an engine. Each session of the removed engine gets another engine for its next turn, before sessions
        that came later."""
        state = self.engines.pop(name, None)
        for session in list(state.sessions.values()) if state else []:
            session.engine, session.busy = None, False
        self._admit(now)

    def read(self, engine: str, reading: Reading, now: float) -> None:
        """Updates the state of an engine from the engine's report about its KV cache."""
        if engine in self.engines:
            self.engines[engine].read(reading, now)
            self._admit(now)

    def request(self, name: str, group: str, tokens: int, more: int, now: float) -> None:
        """Requests an engine for a session's next turn.

        Args:
            name: the session.
            group: the session's group.
            tokens: number of tokens in the turn's prompt.
            more: maximum number of tokens that follow until the session ends.
            now: the time in seconds.
        """
        session = self.sessions.get(name) or self._new(name, group, tokens, now)
        home = self.engines.get(session.engine or "")
        if home is not None:
            home.remove(session)
        session.tokens, session.longest = tokens, max(session.longest, tokens + more)
        session.busy, session.updated_at = False, now
        session.expect(self.lengths)
        if home is not None:
            self._place(session, self._better(session, home, now) or home, now)
            return
        if session.waiting_since is None:
            session.waiting_since = now
            heapq.heappush(self._queue, (session.order, name))
        self._admit(now)

    def turn_ended(self, name: str, now: float) -> None:
        """Records that a session's turn has ended. The session may request another turn."""
        session = self.sessions.get(name)
        state = self.engines.get(session.engine or "") if session else None
        if session is None or state is None:
            return
        state.set_busy(session, False)
        session.updated_at = self._progress_at = now
        self._admit(now)

    def end(self, name: str, tokens: int | None, now: float) -> None:
        """Removes a session that has ended.

        Args:
            name: the session.
            tokens: the session's number of tokens, including the prompt, or None if the number is unknown.
            now: the time in seconds.
        """
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
        """Detaches every session that has no running turn from its engine, so that any engine may run the session's
        next turn. Returns the number of detached sessions.

        The method is used when the engines' KV caches were emptied, or when engines were added.
        """
        idle = [each for each in self.sessions.values() if each.engine is not None and not each.busy]
        for session in idle:
            self._leave(session)
        self._admit(now)
        return len(idle)

    def tick(self, now: float) -> None:
        """Removes or refuses the sessions for which nothing has happened for `quiet_s` seconds. The caller should call
        this method every few seconds."""
        quiet_s = self._settings.quiet_s
        for session in list(self.sessions.values()):
            if session.waiting_since is None and now - session.updated_at > quiet_s:
                self.end(session.name, None, now)
        for session in list(self.sessions.values()):
            since = session.waiting_since
            if since is not None and now - max(since, self._progress_at) > quiet_s:
                self._refuse(session, f"for {quiet_s:g} seconds, no engine had room and no turn ended")

    def _new(self, name: str, group: str, tokens: int, now: float) -> Session:
        place = self._groups.setdefault(group, [self._arrivals, 0])
        place[1] += 1
        session = Session(name, group, (place[0], self._arrivals), tokens, tokens, tokens, now)
        self._arrivals += 1
        self.sessions[name] = session
        return session

    def _admit(self, now: float) -> None:
        """Places waiting sessions in order, until the next session does not fit."""
        while self._queue and self.engines:
            session = self.sessions.get(self._queue[0][1])
            if session is None or session.waiting_since is None or session.order != self._queue[0][0]:
                heapq.heappop(self._queue)
                continue
            session.expect(self.lengths)
            free, name = max((state.free(session, now), name) for name, state in self.engines.items())
            if free >= 0:
                heapq.heappop(self._queue)
                if session.number < 0:
                    session.number = self.lengths.started()
                self._place(session, self.engines[name], now)
                continue
            largest = max(state.capacity or math.inf for state in self.engines.values())
            if blocks(session.longest) <= largest:
                return
            self._refuse(
                session,
                f"a rollout may grow to {session.longest} tokens, but the largest engine's KV cache holds {largest}: "
                "raise hardware.tensor_parallel or engine_memory_share, or lower rollout.tokens",
            )

    def _better(self, session: Session, home: EngineState, now: float) -> EngineState | None:
        """Returns the engine to which a session should move, or None if the session should stay on its engine. The
        session's tokens are in the KV cache of its engine only, so a move means that they are prefilled again."""
        if self._queue:
            return None
        best = min(self.engines.values(), key=lambda state: (len(state.sessions), state.name))
        if len(home.sessions) < MIN_RATIO * len(best.sessions) + MIN_EXTRA:
            return None
        return best if best.free(session, now) >= 0 else None

    def _place(self, session: Session, state: EngineState, now: float) -> None:
        session.waiting_since, session.busy = None, True
        session.updated_at = self._progress_at = now
        state.add(session)
        self._listener.placed(session.name, state.name)

    def _refuse(self, session: Session, why: str) -> None:
        self._forget(session)
        self._listener.refused(session.name, why)

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

"""Retries of requests to services that do not answer: the total wait, the pauses, and a record of all outages.

A run makes one `RetryPolicy` and shares it between all its requests. The policy has a `Service` for each server that
the run uses (engine, judge, judge model), and the `Service` decides whether a failed request is sent again. A restarted
server therefore costs a run only time.

A service that refuses requests because of a rate limit does not count as unreachable. For a service that limits the
rate of requests, `rstar2.flow_control` keeps fewer requests in flight, and respects the limits that the service
announces.

Restarts of child processes and of connections use only `Backoff`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rstar2.errors import Failure, RateLimited, Unavailable, UnusableAnswer
from rstar2.flow_control import Allowance, FlowControl

T = TypeVar("T")
OnWait = Callable[[str], None]
"""Called whenever a request has to wait before a retry. The argument is the reason."""

ATTEMPTS = 4
"""Default number of failures after which a request is not retried, if the service answers other requests in between."""
FIRST_ANSWER_S = 5.0
"""Default maximum number of seconds to wait for a service that has never answered. In most cases, the URL of a service
that has never answered is wrong.
"""
_NO_TIME_LEFT_S = 1e-6
"""A wait ends if fewer seconds than this are left. After a shorter sleep, the clock might show the same time as before.
"""
_LEAST_SPREAD_S = 1.0
"""If requests to a service were delayed by at least this many seconds in total, the delay is reported even without a
retry.
"""
_MAX_CAUSES = 20
"""The number of causes that are counted separately for each service. Causes beyond this number are counted together."""
_MAX_CAUSE_LENGTH = 200
_OTHER_CAUSES = "other causes"


def count_cause(counts: Counter[str], cause: str) -> None:
    """Count a failure by its cause. Causes after the first `_MAX_CAUSES` are counted together."""
    cause = cause[:_MAX_CAUSE_LENGTH]
    known = cause in counts or len(counts) < _MAX_CAUSES
    counts[cause if known else _OTHER_CAUSES] += 1


def causes_text(counts: Mapping[str, int]) -> str:
    """Returns a text that lists causes with their counts, the most frequent cause first."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return "; ".join(f"{count} × {cause}" for cause, count in ordered)


class ServiceGone(Failure):
    """A service answered no request within the time that the user allows."""

    def __init__(self, message: str, hint: str, service: Service) -> None:
        super().__init__(message, hint)
        self.service = service


class Backoff:
    """The seconds to wait after a failure. The wait doubles with each failure, from `first_s` to `longest_s`.

    Each wait is shortened by a random share of up to `jitter`, so that requests that failed together are not sent again
    together.
    """

    def __init__(self, first_s: float, longest_s: float, jitter: float = 0.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._jitter = jitter
        self._next_s = first_s

    def reset(self, *, at_once: bool = False) -> None:
        """Reset the next wait to `first_s`, or to 0 if `at_once` is true, after a request has succeeded."""
        self._next_s = 0.0 if at_once else self._first_s

    def next_s(self) -> float:
        """Returns the seconds to wait after one more failure."""
        wait_s = self._next_s
        self._next_s = min(max(2 * wait_s, self._first_s), self._longest_s)
        return wait_s * random.uniform(1.0 - self._jitter, 1.0)


@dataclass(frozen=True)
class Pauses:
    """The pauses between the attempts of one request, see `Backoff`."""

    first_s: float = 0.5
    longest_s: float = 15.0
    jitter: float = 0.5


@dataclass(frozen=True)
class Outages:
    """The total times for which one service did not answer or limited the rate of requests, and the causes of
    retries.
    """

    service: str
    away_s: float
    """Seconds from a failure to the next answer, summed over all outages."""
    retries: dict[str, int]
    """The number of retries for each cause."""
    paused_s: float = 0.0
    """Seconds for which all requests were paused after the service had refused some because of its rate limit."""
    spread_s: float = 0.0
    """Seconds for which requests were delayed because the service announced that it accepts only a few more
    requests.
    """

    @property
    def text(self) -> str:
        """The outages in one line."""
        slowed = bool(self.paused_s or self.spread_s)
        times = [f"did not answer for {self.away_s:.0f} s in total"] if self.away_s or not slowed else []
        if self.paused_s:
            times.append(f"limited the rate of requests, so requests paused for {self.paused_s:.0f} s")
        if self.spread_s:
            times.append(f"announced a rate limit, so requests waited for {self.spread_s:.0f} s")
        again = f". Requests sent again: {causes_text(self.retries)}" if self.retries else ""
        return f"the {self.service} {' and '.join(times)}{again}"

    def as_json(self) -> dict[str, Any]:
        """Returns the outages as an entry of results.json."""
        slowed = {"paused_s": self.paused_s, "spread_s": self.spread_s}
        slowdowns = {name: seconds for name, seconds in slowed.items() if seconds}
        return {"service": self.service, "away_s": self.away_s, **slowdowns, "retries": self.retries}


def _backoff(policy: RetryPolicy) -> Backoff:
    return Backoff(policy.pauses.first_s, policy.pauses.longest_s, policy.pauses.jitter)


class RetryPolicy:
    """The rules by which a run waits for services that do not answer. All requests of the run share the policy.

    Args:
        wait_s: a service counts as gone if it has answered no request for this many seconds.
        pauses: the pauses between the attempts of one request.
        attempts: a request is not retried after this many failures, if the service answers other requests in between.
            See `Service`.
        first_answer_s: maximum number of seconds to wait for a service that has never answered.
        clock: returns the time in seconds.
        sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        wait_s: float,
        pauses: Pauses = Pauses(),
        attempts: float = ATTEMPTS,
        first_answer_s: float = FIRST_ANSWER_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.wait_s = wait_s
        self.pauses = pauses
        self.attempts = attempts
        self.first_answer_s = first_answer_s
        self.clock = clock
        self.sleep = sleep
        self._services: dict[str, Service] = {}

    def service(self, name: str, longest_wait_s: float = float("inf")) -> Service:
        """Returns the service with the name `name`. All calls with the same name return the same object.

        Args:
            name: the name of the service, also in messages.
            longest_wait_s: the service counts as gone if it has answered no request for this many seconds. This limit
                has an effect only if it is lower than the policy's `wait_s`.
        """
        if name not in self._services:
            self._services[name] = Service(name, self, min(self.wait_s, longest_wait_s))
        return self._services[name]

    @property
    def trouble(self) -> str | None:
        """Why a service does not answer at the moment, or None if all services answer."""
        return next(filter(None, (service.trouble for service in self._services.values())), None)

    @property
    def outages(self) -> list[Outages]:
        """The outages so far of each service that caused a retry or a delay."""
        all_outages = [each.outages for each in self._services.values()]
        return [each for each in all_outages if each.retries or each.spread_s >= _LEAST_SPREAD_S]


class Service:
    """One service that a run uses. Decides whether a failed request to the service is sent again.

    The wait for a service is counted from the first failure after the service's last answer. If this failure is a
    timeout, the wait is counted from the start of the attempt that was too slow. For a request that was first sent
    after this failure, the wait is counted from the time at which the request was first sent. The service does not
    count as gone while an earlier request is in flight, because it may be working on that request.

    A failure counts against its request only if the service has answered other requests since the previous failure of
    the request. All failures of one outage therefore count as one failure.

    A request that the service refuses because of its rate limit is sent again any number of times, as long as the
    service answers other requests. After a refusal because of the rate limit, fewer requests are in flight, and no
    request is sent during the pause that the service asks for. The service counts as gone if the requested pause is
    longer than the rest of the wait and no earlier request is in flight.
    """

    def __init__(self, name: str, policy: RetryPolicy, wait_s: float) -> None:
        self.name = name
        self.trouble: str | None = None
        """Why the service does not answer at the moment, or None if the service answers."""
        self._policy = policy
        self._wait_s = wait_s
        self._answers = 0
        self._last_answer = float("-inf")
        self._under_way: dict[object, float] = {}
        """Start times of the attempts in flight."""
        self._away_since: float | None = None
        self._silent_since: float | None = None
        """The time from which the wait for the service is counted, or None if the service answers."""
        self._away_s = 0.0
        self._retries: Counter[str] = Counter()
        self._flow = FlowControl(policy.clock, policy.sleep)
        self._rate_pauses = _backoff(policy)
        """Pauses after the service has refused a request because of its rate limit, if the service does not say how
        long to pause.
        """

    async def call(self, attempt: Callable[[], Awaitable[T]], on_wait: OnWait | None = None) -> T:
        """Make attempts until one succeeds. Errors other than `Unavailable` are passed on.

        Raises:
            Unavailable: this request fails again and again while the service answers other requests, or the answers to
                this request cannot be used.
            ServiceGone: the service answers no request.
        """
        policy = self._policy
        began: float | None = None
        answers_before, failures = self._answers, 0  # the answers before the last failure
        backoff = _backoff(policy)
        while True:
            began_in = await self._flow.enter()
            attempt_began, key = policy.clock(), object()
            began = attempt_began if began is None else began
            self._under_way[key] = attempt_began
            pause_s, limited = 0.0, None
            try:
                result = await attempt()
            except RateLimited as error:
                self.trouble = error.message
                pause_s = error.retry_after_s
                if not pause_s and began_in == self._flow.round:
                    pause_s = self._rate_pauses.next_s()
                self._check_pause(error, pause_s, began, attempt_began)
                self._flow.refused(began_in, pause_s)
                limited = error
                count_cause(self._retries, error.cause)
            except UnusableAnswer as error:
                failures += 1
                if failures >= policy.attempts:
                    raise
                pause_s = backoff.next_s()
                count_cause(self._retries, error.cause)
            except Unavailable as error:
                others_answered, answers_before = self._answers > answers_before, self._answers
                failures += others_answered or not failures
                self._failed(error, attempt_began)
                longest_s = self._longest_pause(error, failures, began, attempt_began, others_answered)
                pause_s = min(max(backoff.next_s(), error.retry_after_s), longest_s)
                count_cause(self._retries, error.cause)
            else:
                self.answered()
                self._rate_pauses.reset()
                self._flow.answered()
                return result
            finally:
                del self._under_way[key]
                self._flow.leave()
            if on_wait is not None and self.trouble is not None:
                on_wait(self.trouble)
            if limited is not None:
                pause_s = await self._await_others(limited, pause_s, began, attempt_began)
            await policy.sleep(pause_s)

    def answered(self) -> None:
        """Record that the service has just answered."""
        now = self._policy.clock()
        if self._away_since is not None:
            self._away_s += now - self._away_since
        self._away_since, self._silent_since = None, None
        if not self._flow.pauses:
            self.trouble = None
        self._answers += 1
        self._last_answer = now

    def announced(self, allowances: Iterable[Allowance], age_s: float) -> None:
        """Record the limits that the service announced. The service determined these limits when it received a request,
        `age_s` seconds ago.
        """
        self._flow.announced(allowances, age_s)

    def retire(self) -> None:
        """Record that the service is not used any more, so `trouble` is None from now on."""
        self.trouble = None

    @property
    def outages(self) -> Outages:
        """The outages of this service so far."""
        present_s = 0.0 if self._away_since is None else self._policy.clock() - self._away_since
        return Outages(
            self.name, self._away_s + present_s, dict(self._retries), self._flow.paused_s, self._flow.spread_s
        )

    def _failed(self, error: Unavailable, attempt_began: float) -> None:
        self.trouble = error.message
        now = self._policy.clock()
        if self._away_since is None:
            self._away_since = now
        if self._silent_since is None:
            # A service that aborted a request worked on it until then.
            self._silent_since = max(attempt_began, self._last_answer) if error.timed_out else now

    async def _await_others(
        self, error: RateLimited, pause_s: float, began: float, attempt_began: float
    ) -> float:
        """While the pause is longer than the rest of the wait, wait for answers to earlier requests. Each answer
        extends the wait.

        Returns the seconds that are left of the pause. Raises what `_check_pause` raises.
        """
        policy = self._policy
        ends = policy.clock() + pause_s
        while (left_s := max(ends - policy.clock(), 0.0)) and left_s >= self._wait_left_s(began):
            self._check_pause(error, left_s, began, attempt_began)
            await policy.sleep(min(left_s, policy.pauses.first_s))
        return left_s

    def _wait_left_s(self, began: float) -> float:
        """Returns the seconds that are left of the wait for a request that began at `began`."""
        return self._wait_s - (self._policy.clock() - max(began, self._last_answer))

    def _check_pause(self, error: RateLimited, pause_s: float, began: float, attempt_began: float) -> None:
        """Raises ServiceGone if the pause is longer than the rest of the wait, and no earlier request is in flight."""
        left_s = self._wait_left_s(began)
        if pause_s < left_s or self._others_under_way(attempt_began):
            return
        message = f"the {self.name} has answered no request for {self._wait_s - left_s:.0f} seconds"
        if error.retry_after_s:
            message += f" and asks to wait another {pause_s:.0f} seconds"
        hint = (
            error.hint or "Allow a longer wait with --wait, or send fewer requests at once with --in-flight."
        )
        raise ServiceGone(f"{message}: {error.message}", hint, self) from error

    def _others_under_way(self, attempt_began: float) -> bool:
        """Whether a request that was sent before `attempt_began` is still in flight."""
        return any(earlier < attempt_began for earlier in self._under_way.values())

    def _longest_pause(
        self, error: Unavailable, failures: int, began: float, attempt_began: float, others_answered: bool
    ) -> float:
        """Returns the maximum number of seconds until the next attempt.

        Raises Unavailable or ServiceGone if there will be no other attempt.
        """
        now = self._policy.clock()
        # Another attempt would most likely take just as long.
        too_slow = error.timed_out and now - attempt_began >= self._wait_s
        if others_answered and (failures >= self._policy.attempts or too_slow or not self._wait_s):
            raise error
        allowed_s = self._wait_s if self._answers else min(self._wait_s, self._policy.first_answer_s)
        silent_since = now if self._silent_since is None else self._silent_since
        left_s = allowed_s - (now - max(began, silent_since))
        if left_s > _NO_TIME_LEFT_S:
            return left_s
        if others_answered or self._others_under_way(attempt_began):
            return self._policy.pauses.longest_s
        message = error.message
        if self._answers:
            message = f"the {self.name} has not answered for {self._wait_s:g} seconds: {message}"
        raise ServiceGone(message, error.hint, self) from error

"""The process that keeps a judge alive: starts its parts, waits until they answer, starts again what dies.

Started by `service`; it ends, with everything it started, on SIGTERM or when its standard input closes.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import redis

from rstar2.errors import Failure, RStarError, UserError
from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.embedded_redis import EmbeddedRedis
from rstar2.judge.schema import Isolation
from rstar2.judge.service.logs import log_to_stderr, tail
from rstar2.judge.service.settings import ApiSettings, Ready, ServiceSettings, WorkerSettings
from rstar2.processes import start_module, stop

START_S = 60.0
"""And a second a worker."""
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
TICK_S = 0.1
LEAVE_S = 10.0
"""How long a worker that leaves a queue of others may take to end the program it is at."""
log = logging.getLogger(__name__)


class Part:
    """One child process that must always run.

    Args:
        start: starts it.
        ended: told when it has died, before it is started again.
        process: the first one, if it was started already.
    """

    def __init__(
        self,
        start: Callable[[], subprocess.Popen[bytes]],
        ended: Callable[[], None],
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.start = start
        self.ended = ended
        self.process = process or start()
        self.started = time.monotonic()
        self.delay = 0.0
        self.again_at: float | None = None

    def tend(self) -> None:
        """Start it again if it died; ever more slowly if it dies at once.

        Raises:
            Failure: it did not start; it is tried again at a later call.
        """
        now = time.monotonic()
        if self.again_at is None and self.process.poll() is not None:
            self.delay = 0.0 if now - self.started > 5 else min(5.0, self.delay * 2 or 0.1)
            self.again_at = now + self.delay
            self.ended()
        if self.again_at is not None and now >= self.again_at:
            self.started, self.again_at = now, None
            self.process = self.start()


class Supervisor:
    """See the module."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.folder = Path(settings.folder)
        self.logs = self.folder / "logs"
        self.stopping = False
        self.embedded: EmbeddedRedis | None = None
        self.queue: Part | None = None
        """The process of `embedded`."""
        self.redis_url = self.local_url = settings.redis_url or ""
        """The queue, as workers elsewhere reach it, and as our own parts do."""
        self.restarts: Counter[str] = Counter()
        """Of parts, since Redis was last told."""
        self.workers: list[Part] = []
        self.api: Part | None = None
        self.listener: socket.socket | None = None
        """OpenSession open for the HTTP processes to come."""
        self.url = ""
        self.names: dict[int, str] = {}
        self.me = f"{socket.gethostname()}-{os.getpid()}"
        self.required: Isolation | None = None
        """The tier that clients of our HTTP process are required."""
        self.renew_at = 0.0

    def start(self) -> Ready:
        """Start every part and wait until the service answers.

        Raises:
            UserError: the port is taken, the queue does not answer or is open to anybody, a token is missing, or
                the workers of the queue do not agree on a tier.
            Failure: a part did not come up.
        """
        settings = self.settings
        self.listener = listener = self._listen() if settings.api else None
        self._start_queue()
        for number in range(settings.workers):
            self.workers.append(self._worker(number))
        if listener is not None:
            api = ApiSettings(
                redis_url=self.local_url,
                socket_fd=listener.fileno(),
                token=settings.token,
                max_queued=settings.max_queued,
            )
            fd = listener.fileno()
            self.api = Part(
                lambda: start_module("rstar2.judge.server.app", api, self.logs / "api.log", [fd]),
                lambda: self.restarts.update(["api"]),
            )
        return self._wait(START_S + settings.workers)

    def _listen(self) -> socket.socket:
        settings = self.settings
        if settings.token is not None and not settings.token.strip():
            raise UserError("the token is blank", "give another with --token, or leave it out on loopback")
        if settings.host not in LOOPBACK:
            if settings.token is None:
                raise UserError(f"listening on {settings.host} needs a token", "give one with --token")
            if settings.isolation == "none":
                raise UserError(f"isolation none is for loopback only, not {settings.host}", "use strict")
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except (OSError, OverflowError) as error:
            message = f"cannot listen on {settings.host}:{settings.port}: {error}"
            raise UserError(message, "choose another with --port, or --port 0 for any free one") from error
        listener.listen(2048)
        host = f"[{settings.host}]" if family == socket.AF_INET6 else settings.host
        self.url = f"http://{host}:{listener.getsockname()[1]}"
        return listener

    def _start_queue(self) -> None:
        if self.settings.redis_url is None:
            data = self.folder / "redis"
            # What an earlier service left there nobody waits for; its clients ask again.
            shutil.rmtree(data, ignore_errors=True)
            self.embedded = EmbeddedRedis(data, self.logs / "redis.log")
            process = self.embedded.start()
            self.queue = Part(self.embedded.restart, lambda: self.restarts.update(["redis"]), process)
            self.redis_url, self.local_url = self.embedded.url, self.embedded.local_url
            return
        try:
            with redis.Redis.from_url(self.redis_url, socket_timeout=5, socket_connect_timeout=5) as probe:
                self._check_place(probe.connection_pool.connection_kwargs)
                probe.ping()
        except (redis.RedisError, ValueError) as error:
            without_password = re.sub(r"//[^@/]*@", "//", self.redis_url)
            message = f"no Redis server answers at {without_password}: {error}"
            raise UserError(message, "check --redis, or leave it out to have one started") from error

    def _check_place(self, queue_at: Mapping[str, Any]) -> None:
        host = queue_at.get("host", "localhost")
        if host in LOOPBACK or "path" in queue_at:
            return
        if not queue_at.get("password"):
            raise UserError(
                f"the queue at {host} has no password: whoever reaches it can run programs here",
                "set one there (requirepass), and give it with --redis redis://:PASSWORD@HOST:PORT",
            )
        if self.settings.isolation == "none":
            raise UserError(f"isolation none is for loopback only, and the queue is at {host}", "use strict")

    def _worker(self, number: int) -> Part:
        host = socket.gethostname()

        def start() -> subprocess.Popen[bytes]:
            name = f"{host}-{os.getpid()}-{number}-{secrets.token_hex(3)}"
            self.names[number] = name
            settings = WorkerSettings(
                name=name,
                redis_url=self.local_url,
                folder=str(self.folder / "work" / str(number)),
                isolation=self.settings.isolation,
            )
            return start_module("rstar2.judge.worker.main", settings, self.logs / f"worker-{number}.log")

        def ended() -> None:
            self.restarts.update(["worker"])
            self._requeue_tasks_of(self.names[number])

        return Part(start, ended)

    def _requeue_tasks_of(self, name: str) -> bool:
        """Give a dead worker's programs to the others at once; if Redis is away, the front finds out."""
        try:
            with self._redis() as client:
                client.eval(*queue.remove_worker_args(name))
        except redis.RedisError as error:
            log.warning("could not bury %s: %s", name, error)
            return False
        return True

    def _wait(self, patience_s: float) -> Ready:
        deadline = time.monotonic() + patience_s
        with redis.Redis.from_url(self.redis_url, decode_responses=True, socket_timeout=5) as client:
            while time.monotonic() < deadline and not self.stopping:
                for number, part in enumerate(self.workers):
                    if part.process.poll() is not None:
                        raise self._worker_failure(number)
                states = client.hmget(queue.WORKERS, list(self.names.values()))
                if all(states):
                    # One machine, one way to start them: all have the same tier.
                    tier = json.loads(states[0])["isolation"]
                    if self.settings.api and self.required is None:
                        self._promise(client, tier)
                    if self._healthy():
                        return Ready(url=self.url, redis_url=self.redis_url, isolation=tier, pid=os.getpid())
                time.sleep(0.02)
        raise Failure(f"the judge did not answer within {patience_s:.0f} s", f"see {self.logs}")

    def _promise(self, client: redis.Redis, tier: Isolation) -> None:
        """Promise clients a tier, or go on doing so.

        Raises:
            UserError: a worker of the queue is below it.
        """
        # Imported while the workers start: it brings the sandbox with it.
        from rstar2.judge.queue import required_isolation

        self.renew_at = time.monotonic() + required_isolation.RENEW_S
        if weaker := client.eval(*required_isolation.require_args(self.me, tier)):
            raise UserError(
                f"this judge runs under {tier}, but worker {weaker} for the same queue",
                "end that worker, or start this judge with the same --isolation",
            )
        self.required = tier

    def _renew_required_isolation(self) -> None:
        if self.required is None or time.monotonic() < self.renew_at:
            return
        try:
            with self._redis() as client:
                self._promise(client, self.required)
        except redis.RedisError as error:
            log.warning("could not renew the promise of %s: %s", self.required, error)
        except UserError as error:
            log.error("%s", error.message)

    def _redis(self) -> redis.Redis:
        return redis.Redis.from_url(
            self.redis_url, decode_responses=True, socket_timeout=1, socket_connect_timeout=1
        )

    def _worker_failure(self, number: int) -> RStarError:
        log = self.logs / f"worker-{number}.log"
        said = " ".join(tail(log, 2)).strip()
        if self.workers[number].process.returncode == UserError.exit_code:
            return UserError(said, f"see {log}")
        return Failure(f"a judge worker ended while it started: {said}", f"see {log}")

    def _healthy(self) -> bool:
        if self.api is None:
            return True
        if self.api.process.poll() is not None:
            raise Failure("the judge's HTTP process ended while it started", f"see {self.logs / 'api.log'}")
        try:
            return httpx.get(f"{self.url}/health", timeout=1.0, trust_env=False).status_code == 200
        except httpx.HTTPError:
            return False

    def watch(self) -> None:
        """Keep every part running until told to stop."""
        lifeline = [] if self.settings.detached else [sys.stdin]
        while not self.stopping:
            if select.select(lifeline, [], [], TICK_S)[0]:
                return
            for part in (self.queue, *self.workers, self.api):
                if part is not None:
                    self._tend(part)
            self._tell_restarts()
            self._renew_required_isolation()

    def _tend(self, part: Part) -> None:
        try:
            part.tend()
        except Failure as error:
            log.error("%s", error.message)

    def _tell_restarts(self) -> None:
        if not self.restarts:
            return
        try:
            with self._redis() as client:
                for part, count in self.restarts.items():
                    client.hincrby(queue.RESTARTS, part, count)
        except redis.RedisError:
            return  # told at a later tick
        self.restarts.clear()

    def close(self) -> None:
        """End every part: the callers first, the queue last."""
        parts = [*((self.api,) if self.api else ()), *self.workers]
        for part in parts:
            if part.process.poll() is None:
                part.process.terminate()
        # With a queue of our own nobody will ask for what still runs.
        patience_s = LEAVE_S if self.embedded is None else 1.0
        deadline = time.monotonic() + patience_s
        for part in parts:
            stop(part.process, max(0.1, deadline - time.monotonic()))
        if self.embedded is None:
            all(self._requeue_tasks_of(name) for name in self.names.values())
            self._drop_required_isolation()
        if self.embedded is not None:
            self.embedded.stop()

    def _drop_required_isolation(self) -> None:
        if self.required is None:
            return
        from rstar2.judge.queue import required_isolation

        try:
            with self._redis() as client:
                client.hdel(required_isolation.REQUIREMENTS, self.me)
        except redis.RedisError:
            return  # it lapses by itself


def main() -> None:
    log_to_stderr()
    settings = ServiceSettings.model_validate_json(sys.stdin.readline())
    supervisor = Supervisor(settings)

    def on_signal(_signal: int, _frame: object) -> None:
        supervisor.stopping = True

    signal.signal(signal.SIGTERM, on_signal)
    try:
        try:
            ready = supervisor.start()
        except RStarError as error:
            ready = Ready(error=error.message, hint=error.hint, user_error=isinstance(error, UserError))
        print(ready.model_dump_json(), flush=True)
        # Whoever started us may close that pipe now.
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        if not ready.error:
            supervisor.watch()
    finally:
        supervisor.close()


if __name__ == "__main__":
    main()

"""The process that keeps a judge alive, see `rstar2.supervision.supervisor`; `start` starts it."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import redis

from rstar2.addresses import check_redis_url, without_password
from rstar2.errors import Failure, RStarError, UserError
from rstar2.files import no_room
from rstar2.judge.queue import requirements
from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.embedded_redis import EmbeddedRedis
from rstar2.judge.queue.redis_connection import execute, sync_client
from rstar2.judge.schema import Isolation
from rstar2.judge.server.settings import ServerSettings
from rstar2.judge.service.settings import JudgeHandle, ServiceSettings
from rstar2.judge.worker.settings import WorkerSettings
from rstar2.processes import answers, begin_module, start_module
from rstar2.supervision.logs import private_log, tail
from rstar2.supervision.part import Part, Restarts
from rstar2.supervision.settings import Event
from rstar2.supervision.supervisor import Supervisor

START_S = 180.0
"""And a second for each worker."""
POLL_S = 0.02
WRITE_EVERY_S = 0.5
"""How often a judge that starts checks whether its queue can be written to."""
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
HOST_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")
RESTARTS = Restarts(first_s=0.1, longest_s=5.0, stable_s=5.0, at_once=True)
FINISH_S = 10.0
"""How long a worker that leaves a queue shared with others may take to end the program it runs."""
END_S = 1.0
"""How long it may take if the queue ends with the judge: nobody will ask for the program's result."""
log = logging.getLogger(__name__)


class JudgeSupervisor(Supervisor):
    """One judge, or the workers of one machine for a judge elsewhere."""

    def __init__(self, settings: ServiceSettings) -> None:
        super().__init__(settings, silent=True)
        self.settings = settings
        # What such a judge runs can do all that its user can: other users of the machine must not ask it to.
        makes_token = settings.isolation == "none" and settings.token is None
        self.token = secrets.token_urlsafe(24) if makes_token else settings.token
        self.embedded: EmbeddedRedis | None = None
        self.redis_url = self.local_url = settings.redis_url or ""
        """The queue, as workers elsewhere reach it, and as our own parts do."""
        self.restarts: Counter[str] = Counter()
        """By part, of those not yet counted in Redis."""
        self.workers: list[Part] = []
        self.api: Part | None = None
        self.handle: JudgeHandle | None = None
        """The judge, once every part answers."""
        self.listener: socket.socket | None = None
        """Kept open for the HTTP processes to come."""
        self.url = ""
        self.worker_names: dict[int, str] = {}
        self.judge_name = f"{socket.gethostname()}-{os.getpid()}"
        self.required: Isolation | None = None
        """The tier that this judge requires of all workers of its queue."""
        self.renew_at = 0.0
        self.conflict = ""
        """Which part of the queue did not fit what this judge requires when that was last renewed, as it was logged."""

    def start(self) -> None:
        """Start every part and wait until the service answers, or until this process is to stop.

        Raises:
            UserError: the folder is in use, the port is taken, the queue does not answer or is open to anybody, a token
                is missing, or the workers of the queue do not agree on a tier.
            Failure: a part did not come up.
        """
        settings = self.settings
        self.claim_folder()
        self.listener = listener = self._listen() if settings.api else None
        self._start_queue()
        parts: list[Part] = []
        self.waves.append(parts)
        for number in range(settings.workers):
            self.workers.append(self._worker(number))
            parts.append(self.workers[-1])
        if listener is not None:
            server = ServerSettings(
                redis_url=self.local_url,
                socket_fd=listener.fileno(),
                token=self.token,
                hosts=settings.hosts,
                limits=settings.limits,
            )
            self.api = self._part(
                lambda: start_module(
                    "rstar2.judge.server.app", server, private_log(self.logs, "api"), [server.socket_fd]
                ),
                lambda: self.restarts.update(["api"]),
            )
            parts.append(self.api)
        self._wait(START_S + settings.workers)

    def ready(self) -> Event:
        assert self.handle is not None
        return Event(kind="ready", text=self.url, handle=self.handle.model_dump())

    def claim_folder(self) -> None:
        """Keep others out of the folder: each removes what an earlier one left in it."""
        taken = UserError(
            f"another judge, or workers of one, use the folder {self.folder}",
            "Stop them, or use another folder: set RSTAR2_STATE, or give `judge worker` a --folder.",
        )
        self.claim(self.folder / "lock", taken)

    def _part(
        self,
        start: Callable[[], subprocess.Popen[bytes]],
        on_death: Callable[[], None],
        process: subprocess.Popen[bytes] | None = None,
    ) -> Part:
        return Part(start, on_death, RESTARTS, END_S if self.embedded else FINISH_S, process)

    def _listen(self) -> socket.socket:
        settings = self.settings
        if settings.token is not None and not settings.token.strip():
            raise UserError("the token is blank", "Give another with --token, or none on loopback.")
        if settings.host not in LOOPBACK:
            if settings.token is None:
                raise UserError(f"listening on {settings.host} needs a token", "Give one with --token.")
            if settings.isolation == "none":
                raise UserError(
                    f"isolation none is for loopback only, not {settings.host}", "Use --isolation strict."
                )
        for name in settings.hosts:
            if not HOST_NAME.fullmatch(name):
                hint = "Give the name alone, such as judge.example.org, without http:// or a port."
                raise UserError(f"--allow-host {name!r} is not a host name", hint)
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except (OSError, OverflowError) as error:
            of_host = isinstance(error, socket.gaierror) or getattr(error, "errno", 0) == errno.EADDRNOTAVAIL
            hint = "Choose another with --port, or --port 0 for any free one."
            raise UserError(
                f"cannot listen on {settings.host}:{settings.port}: {error}",
                "Give an address of this machine with --host." if of_host else hint,
            ) from error
        listener.listen(2048)
        host = f"[{settings.host}]" if family == socket.AF_INET6 else settings.host
        self.url = f"http://{host}:{listener.getsockname()[1]}"
        return listener

    def _start_queue(self) -> None:
        if self.settings.redis_url is None:
            data = self.folder / "redis"
            # Nobody waits for what an earlier judge left there; its clients ask again.
            shutil.rmtree(data, ignore_errors=True)
            self.embedded = EmbeddedRedis(data, private_log(self.logs, "redis"))
            process = self.embedded.start()
            restarted = self._part(self.embedded.restart, lambda: self.restarts.update(["redis"]), process)
            self.waves.append([restarted])
            self.redis_url, self.local_url = self.embedded.url, self.embedded.local_url
            return
        check_redis_url(self.redis_url)
        server = without_password(self.redis_url)
        try:
            with sync_client(self.redis_url) as probe:
                self._check_address(probe.connection_pool.connection_kwargs)
                probe.ping()
        except (redis.AuthenticationError, redis.ResponseError) as error:
            asked = " ".join(str(error).split())
            if not probe.connection_pool.connection_kwargs.get("password"):
                asked = "it wants a password"
            raise UserError(
                f"the Redis server at {server} refuses this judge: {asked}",
                "Give its password as --redis redis://:PASSWORD@HOST:PORT, or with a user as "
                "redis://USER:PASSWORD@HOST:PORT; in a URL both are percent-encoded.",
            ) from error
        except (redis.RedisError, ValueError) as error:
            message = f"no Redis server answers at {server}: {error}"
            raise UserError(message, "Check --redis, or leave it out to start a queue here.") from error

    def _check_address(self, queue_at: Mapping[str, Any]) -> None:
        host = queue_at.get("host", "localhost")
        if host in LOOPBACK or "path" in queue_at:
            return
        if not queue_at.get("password"):
            raise UserError(
                f"the queue at {host} has no password: anyone who can reach it can run programs here",
                "Set one on that server (requirepass), and give it as --redis redis://:PASSWORD@HOST:PORT",
            )
        if self.settings.isolation == "none":
            raise UserError(
                f"isolation none is for loopback only, but the queue is at {host}", "Use --isolation strict."
            )

    def _worker(self, number: int) -> Part:
        host = socket.gethostname()

        def start() -> subprocess.Popen[bytes]:
            # Each time: it may have been removed, as by something that cleans folders for temporary files.
            work = self.folder / "work"
            work.mkdir(mode=0o700, parents=True, exist_ok=True)
            work.chmod(0o700)
            name = f"{host}-{os.getpid()}-{number}-{secrets.token_hex(3)}"
            self.worker_names[number] = name
            settings = WorkerSettings(
                name=name,
                redis_url=self.local_url,
                folder=str(work / str(number)),
                isolation=self.settings.isolation,
                preload=self.settings.preload,
            )
            return start_module(
                "rstar2.judge.worker.main", settings, private_log(self.logs, f"worker-{number}")
            )

        def on_death() -> None:
            self.restarts.update(["worker"])
            self._remove_worker(self.worker_names[number])

        return self._part(start, on_death)

    def _remove_worker(self, name: str) -> bool:
        """Give a dead worker's programs to the others at once; if Redis is away, the HTTP process does it later."""
        return self._in_redis(f"remove {name}", lambda client: execute(client, queue.remove_worker(name)))

    def _in_redis(self, what: str, act: Callable[[redis.Redis], object]) -> bool:
        """Do something in Redis, unless it is away. → whether it was done."""
        try:
            with sync_client(self.redis_url) as client:
                act(client)
        except redis.RedisError as error:
            log.warning("could not %s: %s", what, error)
            return False
        return True

    def _wait(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        trouble, write_at = "", 0.0
        with sync_client(self.redis_url) as client:
            while time.monotonic() < deadline:
                if time.monotonic() >= write_at:
                    self._check_queue_takes_writes(client)
                    write_at = time.monotonic() + WRITE_EVERY_S
                for number, part in enumerate(self.workers):
                    if part.process.poll() is not None:
                        raise self._worker_failure(number)
                try:
                    self.handle = self._handle_if_ready(client)
                except redis.RedisError as error:
                    trouble = f": {error}"
                if self.handle is not None or self.stopping(POLL_S):
                    return
        raise Failure(f"the judge did not answer within {wait_s:.0f} s{trouble}", f"See {self.logs}")

    def _check_queue_takes_writes(self, client: redis.Redis) -> None:
        """Raises Failure if Redis answers but refuses to store anything: its disk or memory is full, say.

        Workers would try to register until the time is over, and only their logs would tell why.
        """
        try:
            client.set(queue.WRITE_CHECK, "", px=1000)
        except redis.ResponseError as error:
            where = f"the judge's queue in {self.embedded.folder}" if self.embedded else "the queue"
            raise Failure(
                f"{where} cannot store anything: {error}",
                "Make room on that disk, or use a folder on another one."
                if self.embedded
                else "See the log of its Redis server.",
            ) from error
        except redis.RedisError as error:
            log.warning("the queue cannot be written to yet: %s", error)

    def _handle_if_ready(self, client: redis.Redis) -> JudgeHandle | None:
        states: list[Any] = client.hmget(queue.WORKERS, list(self.worker_names.values()))
        if not states or not states[0] or not all(states):
            return None
        # One machine, one way to start them: all have the same tier.
        tier = json.loads(states[0])["isolation"]
        if self.settings.api and self.required is None:
            self._require(client, tier)
        if not self._healthy():
            return None
        return JudgeHandle(
            url=self.url,
            token=self.token,
            redis_url=self.redis_url,
            isolation=tier,
            pid=os.getpid(),
            folder=self.settings.folder,
        )

    def _require(self, client: redis.Redis, tier: Isolation) -> None:
        """Require a tier and our version of all workers of the queue; UserError if a part of it does not fit."""
        self.renew_at = time.monotonic() + requirements.RENEW_S
        command = requirements.require(self.judge_name, tier, renew=self.required is not None)
        requirements.check_required(execute(client, command), tier)
        self.required = tier

    def _renew_requirement(self) -> None:
        tier = self.required
        if tier is None or time.monotonic() < self.renew_at:
            return
        conflict = ""
        try:
            self._in_redis(f"require {tier} again", lambda client: self._require(client, tier))
        except UserError as error:
            conflict = str(error)
            if conflict != self.conflict:
                log.error("%s. %s", error.message, error.hint)
        self.conflict = conflict

    def _worker_failure(self, number: int) -> RStarError:
        log = self.logs / f"worker-{number}.log"
        said = " ".join(tail(log, 2)).strip() or no_room(log) or "its log is empty"
        if self.workers[number].process.returncode == UserError.exit_code:
            return UserError(said, f"See {log}")
        return Failure(f"a judge worker ended while it was starting: {said}", f"See {log}")

    def _healthy(self) -> bool:
        if self.api is None:
            return True
        if self.api.process.poll() is not None:
            raise Failure("the judge's HTTP process ended while starting", f"See {self.logs / 'api.log'}")
        return answers(self.url)

    def check(self) -> None:
        self._count_restarts()
        self._renew_requirement()

    def restart_failed(self, error: RStarError) -> None:
        # It is tried again after a pause.
        log.error("%s", error.message)

    def _count_restarts(self) -> None:
        if not self.restarts:
            return
        try:
            with sync_client(self.redis_url, timeout_s=1.0) as client:
                for part, count in self.restarts.items():
                    client.hincrby(queue.RESTARTS, part, count)
        except redis.RedisError:
            return  # counted at a later check
        self.restarts.clear()

    def close(self) -> None:
        super().close()
        if self.embedded is not None:
            return
        # At the first error Redis is away: the others need not be tried.
        all(self._remove_worker(name) for name in self.worker_names.values())
        if self.required is not None:
            # If Redis is away it expires by itself.
            key = requirements.REQUIREMENTS
            self._in_redis("drop the requirement", lambda client: client.hdel(key, self.judge_name))


if __name__ == "__main__":
    JudgeSupervisor(begin_module(ServiceSettings)).run()

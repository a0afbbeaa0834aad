"""The supervisor process of a judge: starts the judge's processes and restarts processes that die.

`start.py` starts the supervisor. Code that supervisors of other services also use is in
`rstar2.supervision.supervisor`.
"""

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
"""The judge must start within this many seconds, plus one second for each worker."""
POLL_S = 0.02
WRITE_EVERY_S = 0.5
"""While a judge starts, it checks every `WRITE_EVERY_S` seconds whether its queue accepts writes."""
LOOPBACK = {"127.0.0.1", "localhost", "::1"}
HOST_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")
RESTARTS = Restarts(first_s=0.1, longest_s=5.0, stable_s=5.0, at_once=True)
FINISH_S = 10.0
"""If the queue is on an external Redis server, a worker that stops has this many seconds to finish its program."""
END_S = 1.0
"""If the queue is embedded, a worker that stops has this many seconds to finish its program.

The embedded queue ends when the judge ends, so nobody needs the program's result.
"""
log = logging.getLogger(__name__)


class JudgeSupervisor(Supervisor):
    """Supervises one judge, or workers on this machine for a judge on another machine."""

    def __init__(self, settings: ServiceSettings) -> None:
        super().__init__(settings, silent=True)
        self.settings = settings
        # Without isolation, a program can do whatever the judge's user can. Other users must not be able to run any.
        makes_token = settings.isolation == "none" and settings.token is None
        self.token = secrets.token_urlsafe(24) if makes_token else settings.token
        self.embedded: EmbeddedRedis | None = None
        self.redis_url = settings.redis_url or ""
        """The queue's URL for processes that this judge did not start, and for other machines."""
        self.local_url = self.redis_url
        """The queue's URL for the judge's own processes."""
        self.restarts: Counter[str] = Counter()
        """For each part of the judge, the number of restarts that are not yet added to the count in Redis."""
        self.workers: list[Part] = []
        self.api: Part | None = None
        self.handle: JudgeHandle | None = None
        """Describes the running judge. `handle` is None until every part of the judge answers."""
        self.listener: socket.socket | None = None
        """The listening socket of the HTTP process. The socket stays open so that a restarted HTTP process can use
        it."""
        self.url = ""
        self.worker_names: dict[int, str] = {}
        """The current name of each worker, by the worker's number. A restarted worker gets a new name."""
        self.judge_name = f"{socket.gethostname()}-{os.getpid()}"
        self.required: Isolation | None = None
        """The weakest isolation tier that this judge allows for the workers of its queue, or None before it is
        known."""
        self.renew_at = 0.0
        """Monotonic time at which this judge must renew its requirement in Redis."""
        self.conflict = ""
        """The error message if a worker or another judge conflicted with this judge's requirement when it was renewed.

        The message is empty if there was no conflict.
        """

    def start(self) -> None:
        """Start every part of the judge. Wait until the judge answers, or until this process is asked to stop.

        Raises:
            UserError: the folder or the port is in use, the queue does not answer or has no password, a token is
                missing, or a worker or judge of the queue is incompatible.
            Failure: a part of the judge did not start.
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
        """Lock the judge's folder.

        Another judge must not use the folder, because each judge removes the files of an earlier judge.
        """
        in_use = UserError(
            f"another judge, or workers of another judge, use the folder {self.folder}",
            "Stop that judge or its workers, or use another folder: set RSTAR2_STATE, or start `judge worker` "
            "with --folder.",
        )
        self.claim(self.folder / "lock", in_use)

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
            raise UserError(
                "the token is blank", "Set another with --token. On loopback, no token is needed."
            )
        if settings.host not in LOOPBACK:
            if settings.token is None:
                raise UserError(f"listening on {settings.host} needs a token", "Set one with --token.")
            if settings.isolation == "none":
                raise UserError(
                    f"isolation none is allowed only on loopback, not on {settings.host}",
                    "Use --isolation strict.",
                )
        for name in settings.hosts:
            if not HOST_NAME.fullmatch(name):
                hint = "Use only the name, such as judge.example.org, without http:// and without a port."
                raise UserError(f"--allow-host {name!r} is not a host name", hint)
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
        except (OSError, OverflowError) as error:
            is_bad_host = (
                isinstance(error, socket.gaierror) or getattr(error, "errno", 0) == errno.EADDRNOTAVAIL
            )
            port_hint = "Choose another port with --port, or any free port with --port 0."
            raise UserError(
                f"cannot listen on {settings.host}:{settings.port}: {error}",
                "Use an address of this machine with --host." if is_bad_host else port_hint,
            ) from error
        listener.listen(2048)
        host = f"[{settings.host}]" if family == socket.AF_INET6 else settings.host
        self.url = f"http://{host}:{listener.getsockname()[1]}"
        return listener

    def _start_queue(self) -> None:
        if self.settings.redis_url is None:
            data = self.folder / "redis"
            # The queue of an earlier judge is not needed: its clients repeat their requests.
            shutil.rmtree(data, ignore_errors=True)
            self.embedded = EmbeddedRedis(data, private_log(self.logs, "redis"))
            process = self.embedded.start()
            redis_part = self._part(self.embedded.restart, lambda: self.restarts.update(["redis"]), process)
            self.waves.append([redis_part])
            self.redis_url, self.local_url = self.embedded.url, self.embedded.local_url
            return
        check_redis_url(self.redis_url)
        server = without_password(self.redis_url)
        try:
            with sync_client(self.redis_url) as probe:
                self._check_address(probe.connection_pool.connection_kwargs)
                probe.ping()
        except (redis.AuthenticationError, redis.ResponseError) as error:
            reason = " ".join(str(error).split())
            if not probe.connection_pool.connection_kwargs.get("password"):
                reason = "it requires a password"
            raise UserError(
                f"the Redis server at {server} refuses this judge: {reason}",
                "Put the server's password into the URL: --redis redis://:PASSWORD@HOST:PORT. For a user with a "
                "name, use redis://USER:PASSWORD@HOST:PORT. Percent-encode USER and PASSWORD in the URL.",
            ) from error
        except (redis.RedisError, ValueError) as error:
            message = f"no Redis server answers at {server}: {error}"
            raise UserError(
                message, "Check --redis, or leave out --redis to start a queue on this machine."
            ) from error

    def _check_address(self, address: Mapping[str, Any]) -> None:
        """Raises UserError if it is not safe for this judge to use a queue on another host.

        A queue on another host must have a password, and a judge with isolation `none` must not use any queue on
        another host.
        """
        host = address.get("host", "localhost")
        if host in LOOPBACK or "path" in address:
            return
        if not address.get("password"):
            raise UserError(
                f"the queue at {host} has no password: anyone who can reach that server can run programs here",
                "Set a password on that server (requirepass), and use --redis redis://:PASSWORD@HOST:PORT.",
            )
        if self.settings.isolation == "none":
            raise UserError(
                f"isolation none is allowed only on loopback, but the queue is at {host}",
                "Use --isolation strict.",
            )

    def _worker(self, number: int) -> Part:
        host = socket.gethostname()

        def start() -> subprocess.Popen[bytes]:
            # Before each start, because a cleaner of temporary files may have removed the folder.
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
        """Give a dead worker's programs to the other workers.

        If Redis does not answer, the HTTP process removes the dead worker later.
        """
        return self._in_redis(f"remove {name}", lambda client: execute(client, queue.remove_worker(name)))

    def _in_redis(self, task: str, act: Callable[[redis.Redis], object]) -> bool:
        """Call `act` with a Redis client.

        If a command fails, log the error and return False. `task` is a verb phrase for the log message, such as "remove
        a dead worker".
        """
        try:
            with sync_client(self.redis_url) as client:
                act(client)
        except redis.RedisError as error:
            log.warning("could not %s: %s", task, error)
            return False
        return True

    def _wait(self, wait_s: float) -> None:
        deadline = time.monotonic() + wait_s
        reason, write_at = "", 0.0
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
                    reason = f": {error}"
                if self.handle is not None or self.stopping(POLL_S):
                    return
        raise Failure(f"the judge did not answer within {wait_s:.0f} s{reason}", f"See {self.logs}")

    def _check_queue_takes_writes(self, client: redis.Redis) -> None:
        """Raises Failure if Redis answers but refuses to store anything, for example because its disk is full.

        If the supervisor did not check this, the workers would try to register until the time limit, and only their
        logs would show why registering fails.
        """
        try:
            client.set(queue.WRITE_CHECK, "", px=1000)
        except redis.ResponseError as error:
            where = f"the judge's queue in {self.embedded.folder}" if self.embedded else "the queue"
            raise Failure(
                f"{where} cannot store anything: {error}",
                "Free space on that disk, or use a folder on another disk."
                if self.embedded
                else "See the log of its Redis server.",
            ) from error
        except redis.RedisError as error:
            log.warning("the queue cannot be written to yet: %s", error)

    def _handle_if_ready(self, client: redis.Redis) -> JudgeHandle | None:
        states: list[Any] = client.hmget(queue.WORKERS, list(self.worker_names.values()))
        if not states or not states[0] or not all(states):
            return None
        # All workers have the same tier, because they run on one machine and start in the same way.
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
        """Store this judge's requirement for the queue: a minimum isolation tier and a compatible protocol version.

        Raises UserError if a worker or another judge of the queue conflicts with the requirement.
        """
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
        reason = " ".join(tail(log, 2)).strip() or no_room(log) or "its log is empty"
        if self.workers[number].process.returncode == UserError.exit_code:
            return UserError(reason, f"See {log}")
        return Failure(f"a judge worker ended while it was starting: {reason}", f"See {log}")

    def _healthy(self) -> bool:
        if self.api is None:
            return True
        if self.api.process.poll() is not None:
            raise Failure(
                "the judge's HTTP process ended while it was starting", f"See {self.logs / 'api.log'}"
            )
        return answers(self.url)

    def check(self) -> None:
        self._count_restarts()
        self._renew_requirement()

    def restart_failed(self, error: RStarError) -> None:
        # The supervisor tries again after a pause.
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
        # `all` stops at the first error, because Redis is then away.
        all(self._remove_worker(name) for name in self.worker_names.values())
        if self.required is not None:
            # If Redis is away, the requirement expires by itself.
            key = requirements.REQUIREMENTS
            self._in_redis("drop the requirement", lambda client: client.hdel(key, self.judge_name))


if __name__ == "__main__":
    JudgeSupervisor(begin_module(ServiceSettings)).run()

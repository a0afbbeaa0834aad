"""A router plugin for VERL that assigns rollouts to engines with our scheduler. VERL runs the router as a Ray actor.

VERL's client calls `acquire_server` before each turn of a rollout, and `release_server` after the turn.
`acquire_server` returns when an engine has room. Our agent loop makes two more calls: `end_session` when a rollout has
ended, and `engine_failed` when the engine of a rollout has died. `rstar2.train.command` writes the router's settings to
the file that VERL's setting `rollout.router_config_path` names.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from typing import Any

import httpx
import ray
from ray.exceptions import RayActorError

from rstar2.train.scheduler.metrics import read_vllm
from rstar2.train.scheduler.policy import Scheduler, SchedulerSettings

MOST_CALLS = 1 << 20
"""Maximum number of calls that the actor handles concurrently. Every waiting rollout is one call. With Ray's default
limit of 1,000, waiting calls could block the calls that would make room for the waiting rollouts."""
READ_EVERY_S = 2.0
_HTTP_S = 5.0
_PING_S = 10.0
_FIRST_READING_S = 30.0
GROUP_ENDS = "/"
"""The separator in a request's id. The part of the id before the separator is the name of the rollout's group."""
_NO_SERVER = "No available servers in load balancer"
"""The text of an error after which VERL's asynchronous client waits and tries again."""

logger = logging.getLogger(__name__)


class SessionRouter:
    """Our scheduler, behind VERL's interface for routers (`verl.workers.rollout.router.RequestLoadBalancer`).

    Args:
        servers: dict from the `address:port` of each engine to its actor handle.
        config: dict with three settings: `in_flight` and `quiet_s` of `SchedulerSettings`, and `metrics`, which is true
            if the engines serve the path `/metrics`.
    """

    def __init__(self, servers: dict[str, Any], config: dict[str, Any]) -> None:
        self._handles: dict[str, Any] = {}
        self._waiting: dict[str, asyncio.Future[str]] = {}
        self._metrics = bool(config["metrics"])
        settings = SchedulerSettings(in_flight=int(config["in_flight"]), quiet_s=float(config["quiet_s"]))
        self._scheduler = Scheduler(self, settings)
        self._watching: asyncio.Task[None] | None = None
        self._read_once = asyncio.Event()
        self._over = 0
        self._turns: Counter[str] = Counter()
        self.add_servers(servers)

    def placed(self, session: str, engine: str) -> None:
        self._turns[engine] += 1
        future = self._waiting.pop(session, None)
        if future is not None and not future.done():
            future.set_result(engine)

    def refused(self, session: str, why: str) -> None:
        future = self._waiting.pop(session, None)
        if future is not None and not future.done():
            future.set_exception(RuntimeError(why))

    def require_acquire_fields(self) -> list[str]:
        return ["prompt_ids", "sampling_params"]

    def require_release_fields(self) -> list[str]:
        return ["request_id"]

    async def acquire_server(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> tuple[str, Any]:
        """Waits for an engine for a rollout's next turn, and returns the engine's name and handle.

        Raises:
            RuntimeError: there is no engine, the rollout does not fit into the KV cache of any engine, or the rollout
                waited `quiet_s` seconds and no engine had room.
        """
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        if self._metrics and not self._read_once.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._read_once.wait(), _FIRST_READING_S)
        group, more = request_id.partition(GROUP_ENDS)[0], int(sampling_params["max_tokens"])
        while self._handles:
            self.refused(request_id, "the rollout sent another request")
            future = self._waiting[request_id] = asyncio.get_running_loop().create_future()
            self._scheduler.request(request_id, group, len(prompt_ids), more, time.monotonic())
            engine = await future
            if engine in self._handles:  # the engine may have died in the meantime
                return engine, self._handles[engine]
        raise RuntimeError(_NO_SERVER)

    async def release_server(self, server_id: str, request_id: str) -> None:
        """Called by VERL's client when a rollout's turn has ended."""
        session = self._scheduler.sessions.get(request_id)
        if session is not None and session.engine == server_id:
            self._scheduler.turn_ended(request_id, time.monotonic())

    async def end_session(self, request_id: str, tokens: int | None) -> None:
        """Called by the agent loop when a rollout has ended.

        Args:
            request_id: the id of the rollout's requests.
            tokens: the rollout's number of tokens, including the prompt, or None if the rollout failed.
        """
        self.refused(request_id, "the rollout has ended")
        self._scheduler.end(request_id, tokens, time.monotonic())
        self._over += 1
        if not self._scheduler.sessions:
            self._report()

    async def engine_failed(self, request_id: str) -> bool:
        """Returns whether a rollout's engine is dead. If it is, the rollout should request another engine."""
        session = self._scheduler.sessions.get(request_id)
        if session is None or session.engine is None:
            return True
        return await self._drop_if_dead(session.engine)

    def add_servers(self, servers: dict[str, Any]) -> None:
        for name, handle in servers.items():
            self._handles[name] = handle
            self._scheduler.add_engine(name, None, time.monotonic())
        self._read_once.clear()

    def remove_servers(self, server_ids: list[str]) -> None:
        for name in server_ids:
            self._handles.pop(name, None)
            self._scheduler.remove_engine(name, time.monotonic())
        if not self._handles:
            for session in list(self._waiting):
                self._scheduler.end(session, None, time.monotonic())
                self.refused(session, _NO_SERVER)

    def get_all_servers(self) -> list[str]:
        return list(self._handles)

    def get_total_inflight(self) -> int:
        return sum(self._loads().values())

    def clear_sticky_cache(self) -> dict[str, Any]:
        """Called by VERL when engines were added or their KV caches were emptied."""
        cleared = self._scheduler.forget_places(time.monotonic())
        return {"cleared_entries": cleared, "server_loads": self._loads()}

    def get_status(self) -> dict[str, Any]:
        loads = self._loads()
        return {
            "servers": loads,
            "total_inflight": sum(loads.values()),
            "active_servers": len(loads),
            "registered_handles": list(self._handles),
            "sessions": len(self._scheduler.sessions),
            "waiting": self._scheduler.waiting,
            "kv_tokens": {name: state.capacity for name, state in self._scheduler.engines.items()},
        }

    def _report(self) -> None:
        """Prints the number of rollouts that have ended, and each engine's number of turns, since the last report. Ray
        forwards the output to the trainer's log."""
        engines = (
            f"{name} {self._turns[name]} turns, KV cache of {state.capacity or 'unknown'} tokens"
            for name, state in self._scheduler.engines.items()
        )
        print(f"rollout scheduler: {self._over} rollouts have ended; {'; '.join(engines)}", flush=True)
        self._over = 0
        self._turns.clear()

    def _loads(self) -> dict[str, int]:
        """Returns a dict from each engine to the number of requests that it is working on."""
        return {
            name: sum(session.busy for session in state.sessions.values())
            for name, state in self._scheduler.engines.items()
        }

    async def _watch(self) -> None:
        """Repeatedly reads the state of the engines' KV caches and calls the scheduler's `tick`, until the actor
        ends."""
        async with httpx.AsyncClient(timeout=_HTTP_S, trust_env=False) as http:
            while True:
                if self._metrics:
                    await asyncio.gather(*(self._read(http, name) for name in list(self._handles)))
                    self._read_once.set()
                self._scheduler.tick(time.monotonic())
                await asyncio.sleep(READ_EVERY_S)

    async def _read(self, http: httpx.AsyncClient, name: str) -> None:
        try:
            answer = await http.get(f"http://{name}/metrics")
            reading = read_vllm(answer.text)
        except httpx.HTTPError as error:
            logger.warning(
                "cannot read the metrics of the engine %s: %s", name, error or type(error).__name__
            )
            await self._drop_if_dead(name)
            return
        if reading is not None:
            self._scheduler.read(name, reading, time.monotonic())

    async def _drop_if_dead(self, name: str) -> bool:
        """Removes an engine if Ray reports that the engine's actor is dead. Returns whether the engine is dead."""
        handle = self._handles.get(name)
        if handle is None:
            return True
        try:
            await asyncio.wait_for(handle.__ray_ready__.remote(), _PING_S)
        except TimeoutError:
            return False
        except RayActorError as error:
            logger.warning(
                "the engine %s is dead, so its rollouts continue on other engines: %s", name, error
            )
            self.remove_servers([name])
            return True
        return False


RolloutRouter = ray.remote(num_cpus=0, max_concurrency=MOST_CALLS)(SessionRouter)
"""The class from which VERL creates the router's actor."""

"""Tests of VERL's router plugin: it waits for room, reads the engines' metrics and drops a dead engine.

Calls do not block each other.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from support.optional import needs
from support.train.verl_config import compose_config

from rstar2.train.command import ROUTER_FILE, router_yaml, stage_command
from rstar2.train.recipe_files import stage_recipe

pytestmark = [pytest.mark.slow, needs("verl")]  # Importing Ray takes seconds.

CONFIG = {"in_flight": 2, "quiet_s": 600.0, "metrics": False}
METRICS = """vllm:kv_cache_usage_perc{{engine="0"}} 0.0
vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}"}} 1.0
"""


@contextmanager
def metrics_page(blocks: int) -> Iterator[str]:
    """Serves /metrics with the number of blocks in an engine's KV cache. Yields the engine's address."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(METRICS.format(blocks=blocks).encode())

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def router(servers: dict[str, Any], **config: Any) -> Any:
    from rstar2.train.verl.engines.router import SessionRouter

    return SessionRouter(servers, {**CONFIG, **config})


async def ask(router: Any, name: str, tokens: int = 16, more: int = 144) -> str:
    engine, handle = await router.acquire_server(name, [1] * tokens, {"max_tokens": more})
    assert handle == f"handle of {engine}"
    return str(engine)


async def test_a_rollout_waits_for_the_end_of_another_not_of_its_turn() -> None:
    rstar_router = router({"a": "handle of a"})
    for name in ("g/1", "g/2"):
        assert await ask(rstar_router, name) == "a"
    third = asyncio.create_task(ask(rstar_router, "g/3"))
    await rstar_router.release_server("a", "g/1")
    for _ in range(10):
        await asyncio.sleep(0)
    assert not third.done()
    assert rstar_router.get_status()["waiting"] == 1
    await rstar_router.end_session("g/1", 40)
    assert await third == "a"
    assert rstar_router.get_total_inflight() == 2


async def test_the_trainers_log_says_where_turns_went_once_all_rollouts_are_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rstar_router = router({"a": "handle of a", "b": "handle of b"})
    at = {name: await ask(rstar_router, name) for name in ("g/1", "g/2", "g/3")}
    await rstar_router.release_server(at["g/3"], "g/3")
    at["again"] = await ask(rstar_router, "g/3")
    for name in ("g/1", "g/2"):
        await rstar_router.end_session(name, 40)
    assert capsys.readouterr().out == ""
    await rstar_router.end_session("g/3", None)
    turns = [list(at.values()).count(name) for name in "ab"]
    assert sum(turns) == 4
    assert capsys.readouterr().out == (
        f"rollout scheduler: 3 rollouts have ended; a {turns[0]} turns, KV cache of unknown tokens; "
        f"b {turns[1]} turns, KV cache of unknown tokens\n"
    )


async def test_the_room_is_what_the_engines_metrics_say(monkeypatch: pytest.MonkeyPatch) -> None:
    from rstar2.train.verl.engines import router as module

    for name in ("_HTTP_S", "_FIRST_READING_S"):
        monkeypatch.setattr(module, name, 600.0)
    with metrics_page(blocks=10) as small, metrics_page(blocks=30) as large:
        rstar_router = router(
            {small: f"handle of {small}", large: f"handle of {large}"}, metrics=True, in_flight=100
        )
        placements = [await ask(rstar_router, f"g/{number}") for number in range(4)]
        assert sorted(placements) == sorted([large, large, large, small])
        assert rstar_router.get_status()["kv_tokens"] == {small: 160, large: 480}
        with pytest.raises(RuntimeError, match=r"500 tokens.*480"):
            await ask(rstar_router, "g/huge", 100, 400)


async def test_who_waits_is_told_when_the_last_engine_goes_or_its_rollout_ends() -> None:
    rstar_router = router({"a": "handle of a"}, in_flight=1)
    await ask(rstar_router, "g/1")
    waiting = [asyncio.create_task(ask(rstar_router, f"g/{number}")) for number in (2, 3)]
    await asyncio.sleep(0)
    await rstar_router.end_session("g/2", None)
    with pytest.raises(RuntimeError, match="the rollout has ended"):
        await waiting[0]
    rstar_router.remove_servers(["a"])
    with pytest.raises(RuntimeError, match="No available servers in load balancer"):
        await waiting[1]
    with pytest.raises(RuntimeError, match="No available servers in load balancer"):
        await ask(rstar_router, "g/4")
    rstar_router.add_servers({"b": "handle of b"})
    assert await ask(rstar_router, "g/5") == "b"


async def test_cleared_places_are_chosen_anew() -> None:
    rstar_router = router({"a": "handle of a"})
    await ask(rstar_router, "g/1")
    await rstar_router.release_server("a", "g/1")
    rstar_router.add_servers({"b": "handle of b"})
    await ask(rstar_router, "g/2")
    assert rstar_router.clear_sticky_cache() == {"cleared_entries": 1, "server_loads": {"a": 0, "b": 1}}
    assert await ask(rstar_router, "g/1") == "a"


ACTORS = """
import ray, time
from rstar2.train.verl.engines.router import RolloutRouter
from verl.workers.rollout.router import get_router_handle

ray.init()

@ray.remote(num_cpus=0)
class Engine:
    def generate(self):
        return "written"

engines = {name: Engine.remote() for name in "ab"}
router = get_router_handle(engines, router_config_path="PATH")
fields = ray.get(router.require_acquire_fields.remote())
assert fields == ["prompt_ids", "sampling_params"], fields

def ask(name):
    return router.acquire_server.remote(request_id=name, prompt_ids=[1] * 300, sampling_params={"max_tokens": 100})

placed = ["g/0", "g/1"]
first = ray.get([ask(name) for name in placed])
assert {name for name, _ in first} == set("ab"), first
waiting = {ask(f"g/{number}"): f"g/{number}" for number in range(2, 1200)}
# There are more calls than Ray's default allows at once. None blocks the end of another. Ray decides their order.
while waiting:
    router.end_session.remote(placed.pop(0), 350)
    [done], _ = ray.wait(list(waiting), timeout=300)
    placed.append(waiting.pop(done))
name, handle = ray.get(done)
before, last = placed
assert ray.get(handle.generate.remote()) == "written"
assert not ray.get(router.engine_failed.remote(last))
ray.kill(handle)
deadline = time.monotonic() + 300
while not ray.get(router.engine_failed.remote(last)):
    assert time.monotonic() < deadline
router.end_session.remote(before, None)
other, handle = ray.get(ask(last), timeout=300)
assert other != name
assert ray.get(router.get_status.remote())["active_servers"] == 1
print("all well")
"""


def test_as_a_ray_actor_thousands_wait_and_a_dead_engine_is_dropped(
    ray_cluster: dict[str, str], tmp_path: Path
) -> None:
    recipe = stage_recipe(1, "laptop", ["hardware.gpus_per_node=2", "hardware.router=sessions"])
    path = tmp_path / ROUTER_FILE
    path.write_text(router_yaml(recipe).replace('"in_flight": 128', '"in_flight": 1'))
    result = subprocess.run(
        [sys.executable, "-c", ACTORS.replace("PATH", str(path))],
        env={**os.environ, **ray_cluster},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert "all well" in result.stdout, result.stderr[-3000:]


@pytest.mark.parametrize(
    ("profile", "changes", "ours_is_used"),
    [
        ("64xh100", [], True),
        ("8xh100", [], True),
        ("8xh100", ["hardware.router=verl"], False),
        ("8xh100", ["hardware.tensor_parallel=8"], False),
        ("1xh200", [], False),
        ("laptop", [], False),
    ],
)
def test_it_is_used_where_there_are_several_engines(
    profile: str, changes: list[str], ours_is_used: bool, tmp_path: Path
) -> None:
    recipe = stage_recipe(1, profile, changes)
    rollout = compose_config(
        "ppo_trainer", stage_command(recipe, tmp_path, tmp_path / "model").argv[3:]
    ).actor_rollout_ref.rollout
    assert rollout.router_config_path == (str(tmp_path / ROUTER_FILE) if ours_is_used else None)
    assert rollout.disable_log_stats is not ours_is_used


def test_only_vllm_has_metrics_to_read() -> None:
    for changes, metrics in (
        (["verl.actor_rollout_ref.rollout.name=vllm"], True),
        (["verl.actor_rollout_ref.rollout.name=rstar2_cpu"], False),
    ):
        assert json.loads(router_yaml(stage_recipe(1, None, changes)))["metrics"] is metrics
    assert json.loads(router_yaml(stage_recipe(1, "laptop", [])))["metrics"] is False
    assert json.loads(router_yaml(stage_recipe(1, "64xh100", [])))["metrics"] is True

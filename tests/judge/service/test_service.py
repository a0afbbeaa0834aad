"""Starting and ending a judge, and settings that it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from support.judge.judge_faults import status, status_when, unfinished, wait_gone
from support.judge.waiting_programs import WAIT_FOR_RELEASE, release_until
from support.process_table import descendants
from support.waiting import TIMEOUT_S, wait_until

from rstar2.errors import Failure, UserError
from rstar2.judge.client import JudgeClient, SyncJudgeClient
from rstar2.judge.client.http import JudgeError
from rstar2.judge.protocol_version import PROTOCOL
from rstar2.judge.queue import requirements
from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.embedded_redis import EmbeddedRedis
from rstar2.judge.schema import Isolation, RunRequest, RunResult
from rstar2.judge.server.settings import ServerLimits
from rstar2.judge.service.settings import ServiceSettings
from rstar2.judge.service.start import JudgeHandle, running_judge, start_service, stop_service
from rstar2.judge.service.supervisor import JudgeSupervisor


@pytest.mark.slow
def test_nothing_outlives_a_caller_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib\n"
        "from rstar2.judge.service.start import running_judge\n"
        f"with running_judge(pathlib.Path({str(tmp_path)!r}), workers=1, preload=False) as judge:\n"
        "    print(judge.pid, flush=True)\n"
        "    time.sleep(3600)\n"
    )
    caller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    supervisor = int(caller.stdout.readline())
    everyone = [supervisor, *descendants(supervisor)]
    assert len(everyone) >= 4
    caller.kill()
    caller.wait(TIMEOUT_S)
    caller.stdout.close()
    assert wait_gone(everyone, TIMEOUT_S) == []


@pytest.mark.slow
def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    with running_judge(tmp_path, workers=1, preload=False) as judge:
        parts = descendants(judge.pid)
        os.kill(judge.pid, signal.SIGKILL)
        assert wait_gone(parts, TIMEOUT_S) == []


def test_a_second_judge_in_a_folder_is_refused_and_leaves_the_first_alone(tmp_path: Path) -> None:
    first = JudgeSupervisor(ServiceSettings(folder=str(tmp_path), workers=1, port=0))
    first.claim_folder()
    redis_file = tmp_path / "redis" / "kept"
    redis_file.parent.mkdir()
    redis_file.touch()
    for api in (True, False):
        settings = ServiceSettings(folder=str(tmp_path), workers=1, port=0, api=api)
        with pytest.raises(UserError, match="another judge"):
            start_service(settings)
    assert redis_file.exists()
    first.close()
    JudgeSupervisor(ServiceSettings(folder=str(tmp_path), workers=1)).claim_folder()


@pytest.mark.slow
def test_the_status_lists_what_a_tier_does_not_enforce(tmp_path: Path) -> None:
    try:
        with running_judge(tmp_path, workers=1, isolation="landlock", preload=False) as judge:
            assert judge.isolation == "landlock"
            exceptions = status(judge)["exceptions"]
            with SyncJudgeClient(judge.url) as client:
                assert client.run(RunRequest(code="1", timeout_s=TIMEOUT_S)).isolation == "landlock"
    except Failure as error:
        pytest.skip(f"this machine gives no landlock tier: {error.message}")
    assert exceptions


def test_no_isolation_stays_on_loopback(tmp_path: Path) -> None:
    settings = ServiceSettings(folder=str(tmp_path), host="0.0.0.0", token="t", isolation="none")
    with pytest.raises(UserError, match="loopback"):
        JudgeSupervisor(settings).start()


@pytest.mark.slow
async def test_a_full_queue_is_an_answer_and_nothing_is_lost(limited_judge: JudgeHandle) -> None:
    judge = limited_judge

    async def wait_for_status(condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        return await asyncio.to_thread(status_when, judge, condition)

    before = Counter((await wait_for_status(lambda state: not unfinished(state)))["outcomes"])
    headers = {"Authorization": f"Bearer {judge.token}"}
    async with JudgeClient(judge.url, judge.token) as client:

        def begin(code: str) -> asyncio.Task[RunResult]:
            return asyncio.create_task(client.run(RunRequest(code=code, timeout_s=250)))

        endless = begin("while True: pass")
        await wait_for_status(lambda state: state["running"] == 1)
        queued = [begin("1") for _ in range(2)]
        await wait_for_status(lambda state: unfinished(state) == 3)
        async with httpx.AsyncClient(headers=headers, timeout=TIMEOUT_S, trust_env=False) as http:
            answer = await http.post(f"{judge.url}/v1/runs", json={"code": "1"})
        assert answer.status_code == 429
        assert float(answer.headers["Retry-After"]) >= 1
        late = begin("print(2)")
        endless.cancel()
        assert [(await each).outcome for each in queued] == ["ok"] * 2
        assert (await late).stdout == "2\n"
    last_status = await wait_for_status(lambda state: not unfinished(state))
    assert Counter(last_status["outcomes"]) - before == {"ok": 3}


@pytest.mark.slow
def test_more_calls_than_the_queue_holds_are_all_answered(limited_judge: JudgeHandle) -> None:
    judge = limited_judge
    before = Counter(status_when(judge, lambda state: not unfinished(state))["outcomes"])
    with SyncJudgeClient(judge.url, judge.token) as client:
        results = client.run_many([RunRequest(code=f"print({i})", timeout_s=TIMEOUT_S) for i in range(7)])
    assert [result.stdout for result in results] == [f"{i}\n" for i in range(7)]
    assert Counter(status(judge)["outcomes"]) - before == {"ok": 7}


@pytest.mark.slow
def test_a_token_is_asked_for(limited_judge: JudgeHandle) -> None:
    judge = limited_judge
    program = {"code": "1"}
    assert httpx.post(f"{judge.url}/v1/runs", json=program, timeout=TIMEOUT_S).status_code == 401
    # A worker whose heartbeat is late does not count until its next heartbeat.
    wait_until(lambda: httpx.get(f"{judge.url}/health", timeout=TIMEOUT_S).status_code == 200)
    with SyncJudgeClient(judge.url, judge.token) as client:
        assert client.run(RunRequest(code="7", timeout_s=TIMEOUT_S)).value == "7"
    with SyncJudgeClient(judge.url, "wrong") as client, pytest.raises(JudgeError, match="token"):
        client.run(RunRequest(code="7"))


@pytest.mark.slow
def test_without_isolation_a_token_is_made_and_what_is_written_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "judge"
    (folder / "work").mkdir(parents=True)
    folder.chmod(0o700)
    with running_judge(folder, workers=1, isolation="none", preload=False) as judge:
        assert judge.token
        answer = httpx.post(f"{judge.url}/v1/runs", json={"code": "1"}, timeout=TIMEOUT_S)
        assert answer.status_code == 401
        with SyncJudgeClient(judge.url, judge.token) as client:
            assert client.run(RunRequest(code="7", timeout_s=TIMEOUT_S)).value == "7"
        places = [
            folder,
            folder / "work",
            folder / "logs",
            folder / "redis",
            *(folder / "logs").glob("*.log"),
        ]
        places += (folder / "redis").rglob("*.aof*")
        assert len(places) >= 8
        shared = [path for path in places if path.stat().st_mode & 0o077]
    assert shared == []


@pytest.mark.long
def test_large_programs_have_a_budget_in_bytes_and_none_is_lost(tmp_path: Path) -> None:
    """A NUL byte takes six bytes in JSON, in which the queue stores programs."""
    budget, size, count = 12 << 20, 64 << 10, 120
    limits = ServerLimits(max_queued_bytes=budget)
    settings = ServiceSettings(folder=str(tmp_path), workers=1, limits=limits, preload=False)
    process, judge = start_service(settings)
    queue_bytes: list[int] = []
    over = threading.Event()

    def watch() -> None:
        with redis.Redis.from_url(judge.redis_url) as client:
            while not over.wait(0.02):
                queue_bytes.append(client.memory_usage(queue.TASKS, samples=0) or 0)

    def ask(code: str, wait_s: float) -> httpx.Response | None:
        """Returns None if the program was queued. It is then cancelled."""
        try:
            return httpx.post(
                f"{judge.url}/v1/runs", json={"code": code, "timeout_s": TIMEOUT_S}, timeout=wait_s
            )
        except httpx.ReadTimeout:
            return None

    try:
        with SyncJudgeClient(judge.url, judge.token) as client, ThreadPoolExecutor(3) as pool:
            watching = pool.submit(watch)
            # The worker finishes nothing before the queue is full.
            first = pool.submit(ask, WAIT_FOR_RELEASE, 2 * TIMEOUT_S)
            status_when(judge, lambda state: state["running"] == 1)
            program = RunRequest(code="print(len(input()))", stdin="\0" * size, timeout_s=TIMEOUT_S)
            running = pool.submit(client.run_many, [program] * count)
            for wait_s in (1.0, 1.0, 1.0, 10.0, 100.0):
                if (refusal := ask("1", wait_s)) is not None:
                    break
            release_until(first.done, judge.pid)
            results = running.result(TIMEOUT_S)
            over.set()
            watching.result(TIMEOUT_S)
    finally:
        over.set()
        stop_service(process)
    assert [result.stdout for result in results] == [f"{size}\n"] * count
    assert refusal is not None
    assert refusal.status_code == 429
    assert float(refusal.headers["Retry-After"]) >= 1
    assert "MiB" in refusal.json()["error"]
    # Redis needs a little more memory for each program than the program's own bytes.
    assert max(queue_bytes) < 1.5 * budget < count * 6 * size / 2


@pytest.mark.slow
def test_a_port_in_use_is_the_callers_mistake(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(UserError, match=str(port)), running_judge(tmp_path, port=port):
            pass


def test_an_absent_queue_is_the_callers_mistake(tmp_path: Path) -> None:
    url = "redis://:s3cret@127.0.0.1:1/0"
    with (
        pytest.raises(UserError, match=r"no Redis server answers at redis://127\.0\.0\.1:1/0") as error,
        running_judge(tmp_path, redis_url=url),
    ):
        pass
    assert "s3cret" not in str(error.value)


@pytest.mark.parametrize("token", [None, "", " \t"])
def test_another_address_needs_a_token(tmp_path: Path, token: str | None) -> None:
    settings = ServiceSettings(folder=str(tmp_path), host="0.0.0.0", token=token)
    with pytest.raises(UserError, match="token") as error:
        JudgeSupervisor(settings).start()
    assert "--token" in error.value.hint


@pytest.mark.parametrize(
    ("url", "isolation", "reason"),
    [("redis://192.0.2.1:6379", None, "no password"), ("redis://:p@192.0.2.1:6379", "none", "loopback")],
)
@pytest.mark.parametrize("api", [True, False], ids=["judge", "worker"])
def test_a_queue_elsewhere_needs_a_password_and_isolation(
    tmp_path: Path, url: str, isolation: Isolation | None, reason: str, api: bool
) -> None:
    settings = ServiceSettings(folder=str(tmp_path), redis_url=url, isolation=isolation, api=api)
    with pytest.raises(UserError, match=reason):
        JudgeSupervisor(settings).start()


@pytest.mark.long
def test_a_worker_below_the_judges_tier_does_not_join(tmp_path: Path, server: EmbeddedRedis) -> None:
    weak = ServiceSettings(
        folder=str(tmp_path / "weak"),
        workers=1,
        redis_url=server.url,
        isolation="none",
        api=False,
        preload=False,
    )
    with running_judge(tmp_path / "judge", workers=1, redis_url=server.url, preload=False) as judge:
        with pytest.raises(UserError, match=f"none is weaker than {judge.isolation}"):
            start_service(weak)
        assert [worker["isolation"] for worker in status(judge)["workers"]] == [judge.isolation]
    # The first judge has ended, so its requirement is gone. The next judge requires only the tier it finds.
    with (
        running_judge(
            tmp_path / "weak", workers=1, redis_url=server.url, isolation="none", preload=False
        ) as judge,
        SyncJudgeClient(judge.url, judge.token) as client,
    ):
        assert judge.isolation == "none"
        with (
            pytest.raises(UserError, match="runs under none"),
            running_judge(tmp_path / "judge", workers=1, redis_url=server.url, preload=False),
        ):
            pass
        assert client.run(RunRequest(code="1", timeout_s=TIMEOUT_S)).isolation == "none"


FUTURE_BEAT = {"at": time.time() + 3600}
"""A heartbeat with a time in the future, so that its worker never counts as silent."""


def heartbeat(isolation: str) -> dict[str, Any]:
    return {"isolation": isolation, "beat": 0, "protocol": str(PROTOCOL)}


@pytest.mark.slow
def test_a_judge_is_not_started_above_a_worker_of_its_queue(tmp_path: Path, server: EmbeddedRedis) -> None:
    with redis.Redis.from_url(server.url) as client:
        # A heartbeat far in the future: the worker counts as alive during the whole test.
        state = heartbeat("none") | {"at": time.time() + 3600}
        client.hset(queue.WORKERS, "weak", json.dumps(state))
    with (
        pytest.raises(UserError, match="worker weak runs under none on the same queue"),
        running_judge(tmp_path, workers=1, redis_url=server.url, preload=False),
    ):
        pass


def test_what_a_killed_judge_required_expires(server: EmbeddedRedis) -> None:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        state = heartbeat("landlock")
        refusal = ["isolation", "judge judge", "strict"]
        assert client.execute_command(*requirements.require("judge", "strict")) == []
        assert client.execute_command(*requirements.register("weak", state)) == refusal
        late = json.loads(client.hget(requirements.REQUIREMENTS, "judge")) | {"till": time.time() - 1}
        client.hset(requirements.REQUIREMENTS, "judge", json.dumps(late))
        assert client.execute_command(*requirements.register("weak", state)) == []
        refusal = ["isolation", "worker weak", "landlock"]
        assert client.execute_command(*requirements.require("judge", "strict")) == refusal
        client.hset(queue.WORKERS, "weak", json.dumps(state | {"at": time.time() - 60}))
        assert client.execute_command(*requirements.require("judge", "strict")) == []


@pytest.mark.slow
def test_a_running_judge_goes_on_requiring_its_tier_beside_a_worker_that_does_not_fit(
    tmp_path: Path, server: EmbeddedRedis
) -> None:
    with (
        redis.Redis.from_url(server.url, decode_responses=True) as client,
        running_judge(tmp_path, workers=1, redis_url=server.url, preload=False) as judge,
    ):

        def valid_till() -> float:
            [text] = client.hvals(requirements.REQUIREMENTS)
            return float(json.loads(text)["till"])

        def is_renewed() -> bool:
            # A worker of version 0.1.0 lives on the queue.
            state = {"isolation": judge.isolation, "beat": time.monotonic_ns()} | FUTURE_BEAT
            client.hset(queue.WORKERS, "older", json.dumps(state))
            return "worker older speaks an older version" in log.read_text() and valid_till() > before

        log, before = tmp_path / "logs" / "supervisor.log", valid_till()
        wait_until(is_renewed)
        assert "Update rstar2 for the machine of worker older" in log.read_text()


REGISTER_0_1 = """
local now = tonumber(redis.call('TIME')[1])
local known = redis.call('HGETALL', KEYS[1])
for i = 1, #known, 2 do
  local requirement = cjson.decode(known[i + 1])
  if requirement.till < now then
    redis.call('HDEL', KEYS[1], known[i])
  elseif string.find(ARGV[1], requirement.tier, 1, true) then
    return requirement.tier
  end
end
redis.call('HSET', KEYS[2], ARGV[2], ARGV[3])
return ''
"""
"""The script with which workers of version 0.1.0 register."""
REQUIRE_0_1 = """
local now = tonumber(redis.call('TIME')[1])
redis.call('HSET', KEYS[1], ARGV[2], cjson.encode({tier = ARGV[3], till = now + tonumber(ARGV[4])}))
return ''
"""
"""The writes of the script with which a judge of version 0.1.0 requires a tier. The script writes only if no worker has
a weaker tier."""


@pytest.mark.parametrize("isolation", ["strict", "landlock", "none"])
def test_workers_and_judges_of_version_0_1_cannot_join_a_judge(server: EmbeddedRedis, isolation: str) -> None:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        keys = ("rstar2:judge:required_isolation", "rstar2:judge:workers")
        stronger = {"strict": "", "landlock": "strict", "none": "landlock strict"}[isolation]
        join = (REGISTER_0_1, 2, *keys, stronger, "older", json.dumps({"isolation": isolation, "at": 0}))
        assert client.eval(*join) == ""
        client.delete(queue.WORKERS)
        assert client.execute_command(*requirements.require("judge", "landlock")) == []
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            client.eval(*join)
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            client.eval(REQUIRE_0_1, 2, *keys, "", "older", isolation, 15)
        assert not client.exists(queue.WORKERS)


def test_nothing_joins_a_judge_of_version_0_1(server: EmbeddedRedis) -> None:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        keys = ("rstar2:judge:required_isolation", "rstar2:judge:workers")
        conflict = ["protocol", "judge older", ""]
        client.eval(REQUIRE_0_1, 2, *keys, "", "older", "landlock", 15)
        assert client.execute_command(*requirements.register("w", heartbeat("strict"))) == conflict
        assert client.execute_command(*requirements.require("judge", "strict")) == conflict
        client.eval(REQUIRE_0_1, 2, *keys, "", "older", "landlock", -1)
        assert client.execute_command(*requirements.register("w", heartbeat("strict"))) == []
        assert client.execute_command(*requirements.require("judge", "strict")) == []


def test_what_no_part_of_a_judge_wrote_is_no_requirement_and_no_worker(server: EmbeddedRedis) -> None:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        for number, text in enumerate(("", "[]", "{}", '{"at": "now", "till": "now", "tier": 1}')):
            client.hset(requirements.REQUIREMENTS, f"broken{number}", text)
            client.hset(queue.WORKERS, f"broken{number}", text)
        assert client.execute_command(*requirements.require("judge", "strict")) == []
        assert client.execute_command(*requirements.register("w", heartbeat("strict"))) == []
        assert client.hkeys(requirements.REQUIREMENTS) == ["judge"]


def test_a_worker_that_speaks_another_version_does_not_join(server: EmbeddedRedis) -> None:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        client.execute_command(*requirements.require("judge", "landlock"))

        def refusal(**changes: str) -> str:
            reply = client.execute_command(*requirements.register("w", heartbeat("strict") | changes))
            with pytest.raises(UserError) as error:
                requirements.check_registered(reply, "strict")
            return str(error.value)

        # Change the judge's version, since the worker's version is fixed.
        required = json.loads(client.hget(requirements.REQUIREMENTS, "judge"))
        for judge_version, version_text, remedy in (
            (f"{PROTOCOL.major + 1}.2", f"version {PROTOCOL.major + 1}.2", "this machine"),
            ("0.9", "version 0.9", "the judge's machine"),
            ("", "an older version", "the judge's machine"),
        ):
            client.hset(
                requirements.REQUIREMENTS, "judge", json.dumps(required | {"protocol": judge_version})
            )
            message = refusal()
            assert f"judge judge speaks {version_text}" in message
            assert f"this worker speaks version {PROTOCOL}" in message
            assert f"Update rstar2 for {remedy}" in message
        assert client.hgetall(queue.WORKERS) == {}
        client.hset(
            requirements.REQUIREMENTS, "judge", json.dumps(required | {"protocol": f"{PROTOCOL.major}.99"})
        )
        requirements.check_registered(
            client.execute_command(*requirements.register("w", heartbeat("strict"))), "strict"
        )


@pytest.mark.parametrize("part", ["worker", "judge"])
def test_a_judge_does_not_start_beside_what_speaks_another_version(server: EmbeddedRedis, part: str) -> None:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        if part == "worker":
            state = heartbeat("strict") | {"protocol": "9.0", "at": time.time()}
            client.hset(queue.WORKERS, "other", json.dumps(state))
        else:
            state = {"tier": "strict", "protocol": "9.0", "till": time.time() + 3600}
            client.hset(requirements.REQUIREMENTS, "other", json.dumps(state))
        reply = client.execute_command(*requirements.require("judge", "strict"))
        assert client.hget(requirements.REQUIREMENTS, "judge") is None
    with pytest.raises(
        UserError, match=rf"{part} other speaks version 9\.0 .* this judge speaks version {PROTOCOL}"
    ):
        requirements.check_required(reply, "strict")

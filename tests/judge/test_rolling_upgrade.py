"""Clients, HTTP processes and workers of this version and of a simulated next version share one queue."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.judge.next_version import Version, next_major_version, next_version, this_version
from support.judge.parts import Parts
from support.waiting import TIMEOUT_S, wait_until

from rstar2.errors import UserError
from rstar2.judge.protocol_version import HEADER, PROTOCOL
from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.embedded_redis import EmbeddedRedis
from rstar2.judge.worker.settings import WorkerSettings
from rstar2.processes import answers

NEXT = f"{PROTOCOL.major + 1}.0"
pytestmark = pytest.mark.slow

# A user of the next version also uses that version's new field.
CLIENT = f"""
import asyncio, json, sys
from rstar2.judge.client import JudgeClient
from rstar2.judge.client.session import JudgeSession
from rstar2.judge.schema import CellRequest, RunRequest, SessionRequest

def new(kind): return {{"added_later": "asked for"}} if "added_later" in kind.model_fields else {{}}
def program(code): return RunRequest(code=code, timeout_s={TIMEOUT_S}, **new(RunRequest))
def cell(code): return CellRequest(code=code, timeout_s={TIMEOUT_S}, **new(CellRequest))
"""
EACH_KIND = (
    CLIENT
    + """
async def main(url):
    async with JudgeClient(url) as client:
        workers = (await client.health())["workers"]
        endless = asyncio.create_task(client.run(program("while True: pass")))
        results = client.run_many([program(f"print({n})") for n in range(10)] + [program("print('x' * 5000)")])
        await asyncio.sleep(0)
        endless.cancel()
        printed = [(result.outcome, result.stdout) for result in await results]
        async with JudgeSession(client, SessionRequest(**new(SessionRequest))) as session:
            cells = [(await session.run(cell(code))).value for code in ("x = 41", "x + 1", "x + 2")]
    print(json.dumps({"workers": workers, "printed": printed, "cells": cells}))

asyncio.run(main(sys.argv[1]))
"""
)
LOAD = (
    CLIENT
    + """
async def main(url):
    loop, done = asyncio.get_running_loop(), 0
    ended = loop.run_in_executor(None, sys.stdin.read)
    async with JudgeClient(url) as client:
        while not ended.done():
            numbers = range(done, done + 20)
            results = await client.run_many([program(f"import time; time.sleep(0.02); print({n})") for n in numbers])
            for number, result in zip(numbers, results):
                assert (result.outcome, result.stdout) == ("ok", f"{number}\\n"), (number, result)
            done += len(results)
            print(done, flush=True)

asyncio.run(main(sys.argv[1]))
"""
)
INCOMPATIBLE_CALLS = (
    CLIENT
    + """
from rstar2.judge.client.http import IncompatibleJudge

async def main(url):
    async with JudgeClient(url) as client:
        for asked in (client.run(program("1")), JudgeSession(client).__aenter__()):
            try: await asked
            except IncompatibleJudge as error: print(error.message)

asyncio.run(main(sys.argv[1]))
"""
)
REQUIRE = """
import sys, redis
from rstar2.judge.queue import requirements
with redis.Redis.from_url(sys.argv[1], decode_responses=True) as client:
    reply = client.execute_command(*requirements.require(sys.argv[2], "landlock"))
    requirements.check_required(reply, "landlock")
"""


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Version, Version]:
    return this_version(), next_version(tmp_path_factory.mktemp("next"))


@pytest.fixture
def judge(server: EmbeddedRedis, tmp_path: Path) -> Iterator[Parts]:
    parts = Parts(server.url, tmp_path)
    yield parts
    parts.close()


def finished(process: subprocess.Popen[str]) -> str:
    """Wait for a program that must succeed. Returns its output."""
    output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    return output


def test_every_combination_of_versions_answers_every_call(
    judge: Parts, versions: tuple[Version, Version]
) -> None:
    urls = []
    for version in versions:
        listener, url = judge.listen()
        judge.serve(version, listener)
        urls.append(url)
        # The judges of both versions accept each other's requirements.
        finished(version.python(REQUIRE, judge.redis_url, version.name))
    for of_worker in versions:
        worker = judge.work(of_worker)
        for url in urls:
            wait_until(lambda url=url: answers(url))
        users = {(user.name, url): user.python(EACH_KIND, url) for url in urls for user in versions}
        for user_and_url, process in users.items():
            report: dict[str, Any] = json.loads(finished(process))
            outputs = [["ok", f"{number}\n"] for number in range(10)] + [["ok", "x" * 5000 + "\n"]]
            expected = {"workers": 1, "printed": outputs, "cells": [None, "42", "43"]}
            assert report == expected, (user_and_url, of_worker)
        for url in urls:
            # A batch from a client that knows the next version's field.
            runs = [{"code": f"print({number})", "added_later": "asked for"} for number in range(3)]
            headers = {HEADER: f"{PROTOCOL.major}.99"}
            answer = httpx.post(
                f"{url}/v1/runs/batch", json={"runs": runs}, headers=headers, timeout=TIMEOUT_S
            )
            assert [result["stdout"] for result in answer.json()["results"]] == ["0\n", "1\n", "2\n"]
        wait_until(lambda: not judge.client.xlen(queue.TASKS))
        judge.leave(worker)


@contextmanager
def loaded(users: tuple[Version, ...], url: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Simulate users who run programs continuously. At the end of the block they finish their last programs."""
    processes = [user.python(LOAD, url) for user in users]
    try:
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait(TIMEOUT_S)


def test_an_upgrade_under_load_and_back_loses_no_call_and_runs_none_twice(
    judge: Parts, versions: tuple[Version, Version]
) -> None:
    old, new = versions
    listener, url = judge.listen()
    server, worker = judge.serve(old, listener), judge.work(old)
    with loaded(versions, url) as users:

        def work_goes_on() -> None:
            """Wait until every user has all results of programs that were sent after this call."""
            for _ in range(3):
                for user in users:
                    assert user.stdout is not None
                    assert user.stdout.readline(), "the simulated user ended"

        work_goes_on()
        for version in (new, old):
            leaving, worker = worker, judge.work(version)
            judge.leave(leaving)
            work_goes_on()
            server.kill()
            server.wait(TIMEOUT_S)
            server = judge.serve(version, listener)
            work_goes_on()
        counts = [int(finished(user).split()[-1]) for user in users]
    assert judge.client.hgetall(queue.OUTCOMES) == {"ok": str(sum(counts))}


def test_parts_of_the_next_major_version_are_refused_in_a_sentence(judge: Parts, tmp_path: Path) -> None:
    this, next_major = this_version(), next_major_version(tmp_path / "other")
    finished(this.python(REQUIRE, judge.redis_url, "this judge"))
    settings = WorkerSettings(
        name="other", redis_url=judge.redis_url, folder=str(tmp_path), isolation=None, preload=False
    )
    log = tmp_path / "other.log"
    worker = next_major.start("rstar2.judge.worker.main", settings, log)
    judge.processes.append(worker)
    assert worker.wait(TIMEOUT_S) == UserError.exit_code
    refusal, hint = log.read_text().splitlines()[-2:]
    assert (
        refusal
        == f"judge this judge speaks version {PROTOCOL} of the judge's protocol, and this worker speaks version {NEXT}"
    )
    assert hint.startswith("Update rstar2 for the judge's machine")
    listener, url = judge.listen()
    judge.serve(this, listener)
    messages = finished(next_major.python(INCOMPATIBLE_CALLS, url)).splitlines()
    assert (
        messages
        == [
            f"the judge at {url} speaks version {PROTOCOL} of the judge's protocol, "
            f"and this client speaks version {NEXT}"
        ]
        * 2
    )

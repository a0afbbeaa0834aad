"""Starting, surviving and ending."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from rstar2.errors import UserError
from rstar2.judge.client import JudgeError, SyncJudgeClient
from rstar2.judge.schema import RunRequest
from rstar2.judge.service import running_judge


def children(pid: int) -> list[int]:
    """All descendants of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *children(child)]
    return found


def alive(pids: list[int]) -> list[int]:
    left = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            continue
        if state != "Z":
            left.append(pid)
    return left


def wait_gone(pids: list[int], seconds: float) -> list[int]:
    deadline = time.monotonic() + seconds
    while (left := alive(pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def test_killed_workers_lose_nothing(tmp_path: Path) -> None:
    with running_judge(tmp_path) as judge, SyncJudgeClient(judge.url) as client:
        status = httpx.get(f"{judge.url}/status").json()
        victim = status["workers"][0]["pid"]
        killer = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -9 {victim}"])
        code = "import time; time.sleep(0.05); print({})"
        results = client.run_many([RunRequest(code=code.format(i)) for i in range(30)])
        killer.wait(5)
        assert [result.stdout for result in results] == [f"{i}\n" for i in range(30)]
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            workers = httpx.get(f"{judge.url}/status").json()["workers"]
            if len(workers) == 2 and victim not in [worker["pid"] for worker in workers]:
                break
            time.sleep(0.05)
        assert len(workers) == 2
        assert victim not in [worker["pid"] for worker in workers]


def test_nothing_outlives_a_caller_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib\n"
        "from rstar2.judge.service import running_judge\n"
        f"with running_judge(pathlib.Path({str(tmp_path)!r})) as judge:\n"
        "    print(judge.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    caller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert caller.stdout is not None
    supervisor = int(caller.stdout.readline())
    everyone = [supervisor, *children(supervisor)]
    assert len(everyone) >= 5
    caller.kill()
    caller.wait(10)
    caller.stdout.close()
    assert wait_gone(everyone, 15) == []


def test_nothing_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    with running_judge(tmp_path) as judge:
        parts = children(judge.pid)
        os.kill(judge.pid, signal.SIGKILL)
        assert wait_gone(parts, 10) == []


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    with running_judge(tmp_path, workers=1, token="s3cret") as judge:
        assert httpx.post(f"{judge.url}/v1/runs", json={"code": "1"}).status_code == 401
        assert httpx.get(f"{judge.url}/health").status_code == 200
        with SyncJudgeClient(judge.url, "s3cret") as client:
            assert client.run(RunRequest(code="7")).value == "7"
        with SyncJudgeClient(judge.url, "wrong") as client, pytest.raises(JudgeError, match="token"):
            client.run(RunRequest(code="7"))


def test_a_port_in_use_is_the_callers_mistake(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=str(port)), running_judge(tmp_path, port=port):
            pass


def test_an_absent_queue_is_the_callers_mistake(tmp_path: Path) -> None:
    url = "redis://127.0.0.1:1/0"
    with pytest.raises(UserError, match="no Redis server answers"), running_judge(tmp_path, redis_url=url):
        pass


def test_another_address_needs_a_token(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="token"), running_judge(tmp_path, host="0.0.0.0"):
        pass

"""Folders are removed in the background by one process, however many threads move folders away."""

from __future__ import annotations

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.waiting import TIMEOUT_S, wait_until

from rstar2.judge.sandbox.host.removal import Removal

THREADS = 8


def test_threads_that_take_folders_share_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen
    processes: list[subprocess.Popen[bytes]] = []
    running_beside: list[int] = []

    def start_slowly(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        running_beside.append(sum(process.poll() is None for process in processes))
        process = start(*args, **options)
        processes.append(process)
        # Long enough for every other thread to arrive here too, if no lock stops it.
        time.sleep(0.2)
        return process

    monkeypatch.setattr(subprocess, "Popen", start_slowly)
    removal = Removal(tmp_path)

    def take_folders(number: int) -> None:
        for count in range(4):
            path = tmp_path / f"session{number}-{count}"
            (path / "a").mkdir(parents=True)
            removal.take(path, wait=count % 2 == 0)

    with ThreadPoolExecutor(THREADS) as threads:
        for future in [threads.submit(take_folders, number) for number in range(THREADS)]:
            future.result(TIMEOUT_S)

    def is_all_removed() -> bool:
        removal.sweep()
        return not any((tmp_path / "removed").iterdir())

    wait_until(is_all_removed)
    removal.close()
    assert set(running_beside) == {0}
    assert all(process.poll() is not None for process in processes)

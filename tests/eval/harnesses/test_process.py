"""A harness's program: requests and replies as lines of JSON, and programs that fail or die."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from rstar2.errors import Failure
from rstar2.eval.harnesses.environment import Harness
from rstar2.eval.harnesses.process import HarnessProcess, Refused, once, started

WORKER = """
import os, sys, time

class Worker:
    def __init__(self, word):
        print("printed to standard output, where replies go")
        self.word = word
        if word == "bad":
            raise ValueError("no such word")

    def say(self, times):
        return self.word * times

    def leave(self):
        sys.exit(3)

    def hang(self):
        time.sleep(3600)

    def die(self):
        print("out of memory", file=sys.stderr, flush=True)
        os._exit(9)
"""


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """A harness whose environment is the one that runs the tests, so that nothing needs to be installed."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    toy_harness = Harness("toy", ("toy",), (), ("json",))
    toy_harness.python.parent.mkdir(parents=True)
    os.symlink(sys.executable, toy_harness.python)
    (tmp_path / "toy_worker.py").write_text(WORKER)
    return toy_harness


def running(
    harness: Harness, tmp_path: Path, word: str = "ab"
) -> AbstractAsyncContextManager[HarnessProcess]:
    return started(harness, "toy_worker", {"word": word}, tmp_path / "log", env={"PYTHONPATH": str(tmp_path)})


async def test_many_requests_at_once_get_their_own_answers(harness: Harness, tmp_path: Path) -> None:
    async with running(harness, tmp_path) as process:
        requests = [process.ask("say", times=times) for times in range(50)]
        assert await asyncio.gather(*requests) == ["ab" * times for times in range(50)]
    assert "printed to standard output" in (tmp_path / "log").read_text()


async def test_what_the_harness_raises_fails_that_request_alone(harness: Harness, tmp_path: Path) -> None:
    async with running(harness, tmp_path) as process:
        with pytest.raises(Refused, match="TypeError"):
            await process.ask("say", times=None)
        with pytest.raises(Refused, match="SystemExit: 3"):
            await process.ask("leave")
        assert await process.ask("say", times=1) == "ab"


async def test_a_program_that_does_not_answer_is_given_up(harness: Harness, tmp_path: Path) -> None:
    async with running(harness, tmp_path) as process:
        with pytest.raises(Failure, match="has not answered 'hang' for 2 seconds"):
            await process.ask("hang", within=2)
        assert await process.ask("say", times=1) == "ab"
        process._process.kill()


async def test_a_program_may_take_longer_while_it_is_active(harness: Harness, tmp_path: Path) -> None:
    active = iter(range(3))
    async with running(harness, tmp_path) as process:
        with pytest.raises(Failure, match="has not answered 'hang'"):
            await process.ask("hang", within=0.05, activity=lambda: next(active, None))
        process._process.kill()
    assert list(active) == []


async def test_a_program_that_dies_is_said_with_its_last_words(harness: Harness, tmp_path: Path) -> None:
    async with running(harness, tmp_path) as process:
        with pytest.raises(Failure, match="out of memory"):
            await process.ask("die")
        with pytest.raises(Failure, match="out of memory"):
            await process.ask("say", times=1)


async def test_a_program_that_does_not_start_is_said(harness: Harness, tmp_path: Path) -> None:
    with pytest.raises(Failure, match="did not start: ValueError: no such word") as caught:
        async with running(harness, tmp_path, "bad"):
            pass
    assert f"remove {harness.folder}, then run: rstar2 eval setup toy" in caught.value.hint


def test_what_is_asked_once_fails_with_the_end_of_its_log(harness: Harness) -> None:
    with pytest.raises(
        Failure, match="did not start: ModuleNotFoundError: No module named 'no_such'"
    ) as caught:
        once(harness, "no_such", {}, "entries")
    assert caught.value.hint.startswith("Its log ended with:\n")
    *log, remedy = caught.value.hint.splitlines()
    assert log[-1] == "ModuleNotFoundError: No module named 'no_such'"
    assert remedy == f"If its files are damaged, remove {harness.folder}, then run: rstar2 eval setup toy"

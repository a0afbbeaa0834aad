"""Tests of the check that runs real programs on a judge, to test its token and the tools and limits of a format."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from support.waiting import TIMEOUT_S

from rstar2.errors import RStarError, UserError
from rstar2.eval.settings import JudgeChoice
from rstar2.judge.client import JudgeClient
from rstar2.judge.client.http import AccessRefused, JudgeError, WrongToken
from rstar2.judge.client.session import JudgeSession
from rstar2.judge.schema import RunRequest, RunResult
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.formats.format import Format, default_format, read_format
from rstar2.loop.judge_check import JudgeReport, check_judge, require, try_judge
from rstar2.loop.tool import ToolLimits
from rstar2.train.recipe_files import stage_recipes
from rstar2.train.start_checks import check_judge_place, check_programs

pytestmark = pytest.mark.slow

AMPLE = ToolLimits(seconds=TIMEOUT_S)


def with_limits(fmt: Format, limits: ToolLimits) -> Format:
    return fmt.model_copy(update={"limits": limits})


@pytest.mark.parametrize("token", [None, "another"])
def test_a_wrong_token_is_found_though_health_answers(token_judge: JudgeHandle, token: str | None) -> None:
    async def health() -> dict[str, Any]:
        async with JudgeClient(token_judge.url, token) as client:
            return await client.health()

    assert asyncio.run(health())["status"] == "ok"
    for fmt in (None, default_format()):
        with pytest.raises(UserError, match="refused the token") as excinfo:
            check_judge(token_judge.url, token, fmt)
        assert "judge.json" in excinfo.value.hint


def test_programs_run_with_every_tool_of_a_format(token_judge: JudgeHandle) -> None:
    both = with_limits(read_format("release"), AMPLE)
    assert len(both.tool_names) == 2
    report = check_judge(token_judge.url, token_judge.token, both, ("json", "no_such_package", "sympy"))
    assert report.isolation == token_judge.isolation
    assert report.missing == {"no_such_package": "ModuleNotFoundError: No module named 'no_such_package'"}


def test_programs_run_under_the_formats_limits(
    token_judge: JudgeHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[RunRequest] = []
    run = JudgeClient.run

    async def record_request(client: JudgeClient, request: RunRequest) -> RunResult:
        requests.append(request)
        return await run(client, request)

    monkeypatch.setattr(JudgeClient, "run", record_request)
    limits = ToolLimits(seconds=TIMEOUT_S, memory_mb=333)
    check_judge(token_judge.url, token_judge.token, with_limits(default_format(), limits), ("json",))
    assert {(each.timeout_s, each.memory_mb) for each in requests} == {(TIMEOUT_S, 333)}
    assert "import json" in {each.code for each in requests}

    async def too_slow(client: JudgeClient, request: RunRequest) -> RunResult:
        return (await run(client, request)).model_copy(update={"outcome": "timeout"})

    monkeypatch.setattr(JudgeClient, "run", too_slow)
    with pytest.raises(
        UserError, match="with the tool python_code_with_standard_io ended with the status timeout"
    ):
        check_judge(token_judge.url, token_judge.token, with_limits(default_format(), limits), ("json",))


def test_a_judge_that_answers_but_runs_nothing_is_named(
    judge: JudgeHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost_result(*_: Any) -> RunResult:
        return RunResult(id="1", outcome="lost", stderr="no worker took the program")

    monkeypatch.setattr(JudgeClient, "run", lost_result)
    for fmt in (None, default_format()):
        with pytest.raises(
            UserError, match=r"answers, but a program .* ended with the status lost: .*no worker took"
        ):
            check_judge(judge.url, None, fmt)


def test_a_judge_that_is_not_there_is_one_message() -> None:
    with pytest.raises(UserError, match=r"no judge answers at http://127\.0\.0\.1:9"):
        check_judge("http://127.0.0.1:9", None)


def test_training_takes_a_judge_that_does_not_answer_for_an_outage() -> None:
    for check in (
        lambda: try_judge("http://127.0.0.1:9", None),
        lambda: check_programs(stage_recipes([1], None, []), ("http://127.0.0.1:9", None), default_format()),
    ):
        with pytest.raises(JudgeError, match=r"no judge answers at http://127\.0\.0\.1:9") as excinfo:
            check()
        assert excinfo.value.exit_code == 1


@pytest.mark.parametrize(("status", "code"), [(200, 2), (404, 2), (403, 2), (429, 1), (503, 1)])
def test_training_tells_another_server_from_a_judge_that_is_not_ready(status: int, code: int) -> None:
    with answering(status) as url, pytest.raises(RStarError) as excinfo:
        try_judge(url, None)
    assert excinfo.value.exit_code == code


@contextmanager
def answering(status: int) -> Iterator[str]:
    """A server that answers every request with one status, as a proxy in front of a judge may."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()

        do_POST = do_DELETE = do_GET

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


@pytest.fixture
def proxy() -> Iterator[str]:
    with answering(403) as url:
        yield url


async def test_a_session_is_refused_as_a_program_is(token_judge: JudgeHandle, proxy: str) -> None:
    async with JudgeClient(token_judge.url, "another") as client:
        with pytest.raises(WrongToken, match=f"the judge at {token_judge.url} refused the token"):
            await JudgeSession(client).__aenter__()
    async with JudgeClient(proxy) as client:
        for request in (JudgeSession(client).__aenter__(), client.health()):
            with pytest.raises(AccessRefused, match="HTTP 403"):
                await request


def test_what_a_recipe_needs_is_required() -> None:
    require(JudgeReport("strict"), "http://judge", "landlock")
    require(JudgeReport("none"), "http://judge", None)
    with pytest.raises(UserError, match=r"isolation landlock, but the recipe's judge.isolation is strict"):
        require(JudgeReport("landlock"), "http://judge", "strict")
    with pytest.raises(UserError, match="cannot import sympy"):
        require(JudgeReport("strict", {"sympy": "ModuleNotFoundError"}), "http://judge", None)


def test_training_requires_what_any_of_its_stages_needs(token_judge: JudgeHandle, tmp_path: Path) -> None:
    address, fmt = (token_judge.url, token_judge.token), with_limits(default_format(), AMPLE)
    check_programs(stage_recipes([1], None, []), address, fmt)
    recipes = stage_recipes([1, 2], None, ['stage2.judge.packages=["json", "no_such_package"]'])
    with pytest.raises(UserError, match="cannot import no_such_package") as excinfo:
        check_programs(recipes, address, fmt)
    assert "judge.packages" in excinfo.value.hint
    with pytest.raises(UserError, match="refused the token"):
        check_programs(recipes, (token_judge.url, "another"), fmt)


@pytest.mark.parametrize("url", ["http://localhost:8088", "http://127.0.0.1:8088", "http://[::1]:8088"])
def test_several_nodes_are_given_no_judge_that_each_takes_for_its_own(url: str) -> None:
    several = stage_recipes([1], "64xh100", [])
    with pytest.raises(UserError, match=f"{url.replace('[', '.').replace(']', '.')} means the node itself"):
        check_judge_place(several, JudgeChoice(url))
    with pytest.raises(UserError, match="a judge that all nodes can reach"):
        check_judge_place(several, JudgeChoice())
    check_judge_place(several, JudgeChoice("http://10.0.0.7:8088"))
    check_judge_place(stage_recipes([1], "8xh100", []), JudgeChoice(url))

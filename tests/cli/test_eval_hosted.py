"""Tests of `rstar2 eval` with a hosted model over real HTTP, and with a real judge."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from support.servers.public_endpoint import ANSWER, NO_TEMPERATURE, Body, PublicEndpoint, Reply
from support.terminal import terminal
from support.waiting import wait_until
from typer.testing import CliRunner

from rstar2.cli import app
from rstar2.errors import UserError
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.tools.python_code_with_standard_io import NAME


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "two.jsonl"
    path.write_text("".join(json.dumps({"problem": f"Compute {n}.", "answer": "42"}) + "\n" for n in (1, 2)))
    return path


def _eval(*words: object) -> Result:
    return CliRunner().invoke(app, ["eval", *map(str, words)], env={"COLUMNS": "200"})


def _results(run: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((run / "two" / "results.json").read_text())
    return results


def test_request_fields_tools_in_the_text_and_fields_left_out_are_in_the_results(
    problems: Path, tmp_path: Path, judge: JudgeHandle
) -> None:
    call = json.dumps({"name": NAME, "arguments": {"code": "print(6 * 7)"}})

    def answer(body: Body) -> str:
        replies = [each["content"] for each in body["messages"] if "<tool_response>" in each["content"]]
        return ANSWER if replies else f"<tool_call>\n{call}\n</tool_call>"

    endpoint = PublicEndpoint("/api/v1")
    endpoint.models = None
    endpoint.checks = NO_TEMPERATURE
    endpoint.answer = answer
    run = tmp_path / "run"
    with endpoint.serving():
        words = [problems, "--url", endpoint.url, "--api", "chat", "--model-name", "m", "-n", 1, "--run", run]
        words += ["--tools-in-text", "--request-body", "reasoning.effort=low", "--judge", judge.url]
        result = _eval(*words)
    assert result.exit_code == 0, result.output
    assert result.output.count("the results are not exact:\n- token counts and budgets: ") == 1
    message = (
        "results are not exact: requests to the model no longer send `temperature`, "
        "so the server's default applies."
    )
    assert message in result.output
    assert "accepts it. Reason: the server at" in result.output
    results = _results(run)
    assert results["summary"]["accuracy"] == 1.0
    assert results["summary"]["calls_per_trace"] == 1.0
    assert results["model"]["request_body"] == {"reasoning": {"effort": "low"}}
    assert list(results["fields_left_out"]) == ["temperature"]
    assert all(body["reasoning"] == {"effort": "low"} and "tools" not in body for body in endpoint.requests)
    assert "temperature" not in endpoint.requests[-1]
    assert "<tool_response>\n42" in endpoint.requests[-1]["messages"][-1]["content"]


def test_what_earlier_starts_met_stays_in_the_results(problems: Path, tmp_path: Path) -> None:
    endpoint = PublicEndpoint()
    run = tmp_path / "run"
    capped = {"error": {"message": "max_tokens must be less than or equal to 4096"}}

    def caps(body: Body) -> Reply | None:
        return NO_TEMPERATURE(body) or (Reply(capped, 400) if body["max_tokens"] > 4096 else None)

    with endpoint.serving():
        words = [problems, "--url", endpoint.url, "--api", "chat", "--no-tools", "--run", run]
        endpoint.checks = caps
        result = _eval(*words, "-n", 1)
        assert result.exit_code == 0, result.output
        assert (
            "replies of the model end after 4,096 tokens, the maximum that its server allows."
            in result.output
        )
        first = _results(run)
        endpoint.checks = lambda body: None
        again = _eval(*words, "-n", 2)
        assert again.exit_code == 0, again.output
    assert list(first["reply_cap"]) == ["4096"]
    second = _results(run)
    assert second["summary"]["samples"] == 2 * first["summary"]["samples"]
    assert {name: second[name] for name in ("fields_left_out", "reply_cap")} == {
        name: first[name] for name in ("fields_left_out", "reply_cap")
    }


class _Three:
    """A rate that allows only three requests."""

    def __init__(self) -> None:
        self._left = 3

    def allows(self) -> bool:
        self._left -= 1
        return self._left >= 0


def test_what_a_start_met_that_was_killed_stays_in_the_results(
    problems: Path, tmp_path: Path, judge: JudgeHandle
) -> None:
    endpoint = PublicEndpoint()
    run = tmp_path / "run"
    words = [problems, "--api", "chat", "--no-tools", "--run", run, "--in-flight", 1, "--judge", judge.url]
    capped = {"error": {"message": "max_tokens must be less than or equal to 4096"}}
    endpoint.checks = lambda body: (
        NO_TEMPERATURE(body) or (Reply(capped, 400) if body["max_tokens"] > 4096 else None)
    )
    endpoint.rate = _Three()
    endpoint.limited = lambda: Reply({"error": {"message": "later"}}, 429, {"Retry-After": "100"})
    with endpoint.serving():
        words += ["--url", endpoint.url, "-n", 1]
        with terminal("eval", *map(str, words)) as screen:
            # The first sample took three requests. The second sample waits.
            wait_until(lambda: endpoint.rejected_count)
            os.kill(screen.pid, signal.SIGKILL)
        assert not (run / "two" / "results.json").exists()
        endpoint.rate, endpoint.checks = None, lambda body: None
        result = _eval(*words)
    assert result.exit_code == 0, result.output
    results = _results(run)
    assert results["summary"]["samples"] == 2
    assert list(results["fields_left_out"]) == ["temperature"]
    assert list(results["reply_cap"]) == ["4096"]
    assert "no longer send" not in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--no-tools"], "are for --api chat"),
        (["--api", "chat", "--no-tools", "--tools-in-text"], "exclude each other"),
        (["--request-body", "effort"], "is not key=value"),
    ],
)
def test_options_that_do_not_fit_are_one_clear_message(
    problems: Path, words: list[str], message: str
) -> None:
    result = _eval(problems, "--url", "http://127.0.0.1:9", *words)
    assert isinstance(result.exception, UserError)
    assert message in result.exception.message

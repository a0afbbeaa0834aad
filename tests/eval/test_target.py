"""A measured model has a name that distinguishes it from others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.servers.chat_api import ChatEndpoint, solves
from support.servers.chat_standin import ChatStandIn
from support.servers.vllm_standin import StandIn, serving
from support.waiting import TIMEOUT_S

from rstar2.errors import UserError
from rstar2.eval.target import Target, open_target, reach_judge_model, reach_server
from rstar2.files import write_json
from rstar2.loop.formats.format import FORMAT_FILE, default_format, save_format
from rstar2.loop.turns.choose import MODELS_OWN, FormatChoice
from rstar2.processes import free_port
from rstar2.retry import RetryPolicy


def test_a_run_s_model_that_a_server_names_by_its_folder_has_the_run_s_name(
    tokenizer: Any, tmp_path: Path
) -> None:
    write_json(tmp_path / "demo" / "config.json", {"kind": "demo", "config": {}})
    folder = tmp_path / "demo" / "stage3" / "model"
    tokenizer.save_pretrained(folder)
    standin = StandIn(lambda prompt: [], names=(str(folder),))
    standin.root = str(folder)
    with serving(standin):
        target = Target(None, standin.url, None, False)
        opened_target = open_target(target, [], 1, reach_server(target, RetryPolicy(TIMEOUT_S)))
    assert opened_target.identity["name"] == "demo-stage3"


def test_the_results_name_the_format_and_that_it_was_forced(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    save_format(default_format(), tmp_path)
    standin = StandIn(lambda prompt: [])
    standin.root = str(tmp_path)

    def identity(choice: FormatChoice) -> dict[str, Any]:
        target = Target(None, standin.url, format=choice)
        return open_target(target, [], 1, reach_server(target, RetryPolicy(TIMEOUT_S))).identity

    with serving(standin):
        models_format, same_format = identity(MODELS_OWN), identity(FormatChoice("rstar2"))
        forced_format = identity(FormatChoice("demo", forced=True))
        with pytest.raises(UserError, match="has its own format"):
            identity(FormatChoice("demo"))
    identities = (models_format, same_format, forced_format)
    assert [each["format"] for each in identities] == [FORMAT_FILE, "rstar2", "demo, forced"]
    assert models_format["format_sha256"] == same_format["format_sha256"] != forced_format["format_sha256"]


def test_a_model_behind_a_chat_endpoint_says_in_the_results_what_is_not_exact() -> None:
    with serving(ChatEndpoint(solves)) as endpoint:
        target = Target(url=f"{endpoint.url}/v1", api="chat")
        opened_target = open_target(target, [], 1, reach_server(target, RetryPolicy(TIMEOUT_S)))
    assert (opened_target.identity["name"], opened_target.identity["api"]) == ("scripted", "chat")
    assert "four bytes of text count as a token" in opened_target.identity["inexact"][0]
    sentence = "and a top_k of 0 are not sent: the server's own defaults apply to them"
    assert sentence in opened_target.left_to_server
    for wrong in ({"model": "m"}, {"format": FormatChoice("release")}, {"url": None, "oracle": True}):
        with pytest.raises(UserError, match="--api chat measures a model on a server"):
            Target(**{"url": "http://x", "api": "chat", **wrong})


def test_a_server_with_a_key_is_measured_and_without_it_the_option_is_named(
    tokenizer: Any, tmp_path: Path
) -> None:
    tokenizer.save_pretrained(tmp_path)
    standin = StandIn(lambda prompt: [])
    standin.root, standin.key = str(tmp_path), "secret"
    with serving(standin):
        target = Target(url=standin.url, api_key="secret")
        opened_target = open_target(target, [], 1, reach_server(target, RetryPolicy(TIMEOUT_S)))
        with pytest.raises(UserError, match="HTTP 401") as error:
            reach_server(Target(url=standin.url), RetryPolicy(TIMEOUT_S))
    assert "--api-key" in error.value.hint
    assert opened_target.server is not None
    assert opened_target.server.key == "secret"


def test_what_a_chat_server_decides_is_said_unless_it_takes_every_value() -> None:
    server = ChatStandIn(lambda body: "fine")
    with serving(server):
        for owned_by, is_reported in (("openai", True), ("vllm", False)):
            server.owned_by = owned_by
            target = Target(url=server.url)
            opened_target = open_target(
                target, [], 1, reach_server(target, RetryPolicy(TIMEOUT_S), tokenizer=False)
            )
            assert bool(opened_target.left_to_server) == is_reported
            assert opened_target.identity == {"name": "scripted", "format": "the server's chat template"}


def test_the_model_that_grades_has_a_name_in_the_settings_or_is_refused_before_anything_is_asked() -> None:
    with serving(ChatStandIn(lambda body: "fine")) as server:
        assert reach_judge_model(server.url, None, RetryPolicy(TIMEOUT_S)) == "scripted"
        assert reach_judge_model(f"{server.url}/without-a-list", "named", RetryPolicy(TIMEOUT_S)) == "named"
    with serving(ChatStandIn(lambda body: "fine", names=("a", "b"))) as server:
        with pytest.raises(UserError, match=r"the judge model at .* serves 2 models: a, b") as several:
            reach_judge_model(server.url, None, RetryPolicy(TIMEOUT_S))
        assert "--judge-model-name" in several.value.hint
    away = f"http://127.0.0.1:{free_port()}"
    for name in (None, "named"):
        with pytest.raises(UserError, match=f"no judge model answers at {away}"):
            reach_judge_model(away, name, RetryPolicy(0.2))

"""The agent over HTTP with the public `openai` client. A scripted engine writes code and a real judge runs it."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.optional import needs
from support.servers import openai_client as openai
from support.servers.scripted_agent import QUESTION, make_model, scripted, serve_agent
from support.servers.serving import serve_app
from support.servers.vllm_standin import StandIn, serving
from support.waiting import TIMEOUT_S, wait_until

from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.agent import Limits
from rstar2.loop.turns.choose import codec_for, load_codec
from rstar2.loop.turns.codec import ChatCodec
from rstar2.loop.turns.template import TemplateCodec
from rstar2.serve.openai import agent as agent_module
from rstar2.serve.openai.agent import Agent, StopTexts, conversation
from rstar2.serve.openai.answers import Usage
from rstar2.serve.openai.requests import ChatRequest
from rstar2.serve.plan import AgentServerSettings

pytestmark = [needs("torch"), pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "model"
    make_model(path)
    return path


@pytest.fixture(scope="module")
def codec(folder: Path) -> ChatCodec:
    return load_codec(folder)


@pytest.fixture(scope="module")
def standin(folder: Path, codec: ChatCodec) -> Iterator[StandIn]:
    standin = scripted(folder, codec)
    with serving(standin):
        yield standin


@pytest.fixture(scope="module")
def url(standin: StandIn, folder: Path, judge: JudgeHandle) -> Iterator[str]:
    with serve_agent(standin.url, folder, judge) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="secret", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


MESSAGES = [{"role": "user", "content": QUESTION}]
REQUEST: dict[str, Any] = {"model": "scripted", "messages": MESSAGES}


def test_the_answer_is_content_and_how_it_was_found_is_reasoning(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**REQUEST)
    choice = answer.choices[0]
    message = choice.message.model_extra or {}
    assert (choice.message.content, choice.finish_reason) == ("\\boxed{42}", "stop")
    reasoning = message["reasoning_content"]
    order = [
        reasoning.index(part) for part in ("I multiply.", "print(6 * 7)", "```text\n42\n```", "It is 42.")
    ]
    assert order == sorted(order)
    assert choice.message.tool_calls is None
    [run] = message["executed_tools"]
    assert (run["name"], run["status"]) == ("python_code_with_standard_io", "ok")
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 10


def test_a_stream_gives_the_same_as_it_is_found(client: openai.OpenAI, standin: StandIn) -> None:
    message = client.chat.completions.create(**REQUEST).choices[0].message
    chunks = list(
        client.chat.completions.create(**REQUEST, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[-1].usage is not None
    choices = [chunk.choices[0] for chunk in chunks[:-1]]
    deltas = [choice.delta.model_extra or {} for choice in choices]
    assert "".join(choice.delta.content or "" for choice in choices).strip() == message.content
    streamed = "".join(delta.get("reasoning_content", "") for delta in deltas)
    assert streamed.strip() == (message.model_extra or {})["reasoning_content"]
    assert sum("executed_tools" in delta for delta in deltas) == 1
    assert choices[-1].finish_reason == "stop"
    assert len(choices) > 5


def test_earlier_answers_and_a_system_text_are_shown_to_the_model(
    client: openai.OpenAI, standin: StandIn, codec: ChatCodec
) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 1 + 1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "And 6 * 7?"},
    ]
    standin.requests.clear()
    client.chat.completions.create(model="scripted", messages=messages)
    prompt_text = codec.tokenizer.decode(standin.requests[0]["prompt"])
    assert "And 6 * 7?" in prompt_text
    assert "Be brief." in prompt_text
    # The demo's format says `one_question`.
    assert codec.format.one_question
    assert "1 + 1" not in prompt_text


def test_a_greeting_of_the_chat_program_is_not_the_first_question(codec: ChatCodec) -> None:
    chat_format = codec.format.model_copy(update={"one_question": False, "user": "Solve: {problem}"})
    agent = Agent(None, codec_for(codec.tokenizer, chat_format), None, Limits(), "x")  # type: ignore[arg-type]
    messages = [{"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "1 + 1?"}]
    assert conversation(agent, messages) == [{"role": "user", "content": "Solve: 1 + 1?"}]


def test_a_client_that_sends_token_ids_is_told_what_this_server_is(url: str) -> None:
    body = {"model": "scripted", "prompt": [1, 2], "max_tokens": 1}
    headers = {"Authorization": "Bearer secret"}
    answer = httpx.post(
        f"{url}/v1/completions", json=body, headers=headers, trust_env=False, timeout=TIMEOUT_S
    )
    assert answer.status_code == 404
    assert "without --with-tools" in answer.json()["error"]["message"]


def test_a_token_limit_is_said(client: openai.OpenAI) -> None:
    assert client.chat.completions.create(**REQUEST, max_tokens=3).choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "runs its own tools"),
        ({"n": 2}, "n 2 is not supported by the agent"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "last message"),
        ({"model": "other"}, "does not exist"),
        ({"top_logprobs": 2}, "top_logprobs 2 is not supported"),
        ({"stop": ""}, "is empty"),
        ({"stop": {"a": 1}}, "neither a text nor a list of texts"),
        ({"stop": 5}, "stop: 5 is neither a text nor a list of texts"),
        ({"stop": ["a", 5]}, "neither a text nor a list of texts"),
        ({"extra_body": {"stream_options": "x"}}, 'stream_options: "x" is not an object'),
        ({"max_tokens": 0}, "max_tokens: 0 has to be greater than or equal to 1"),
        ({"extra_body": {"seed": "one"}}, 'seed: "one" is not a whole number'),
        ({"extra_body": {"messages": None}}, "messages is missing"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]}, "needs its text"),
        (
            {"response_format": {"type": "json_object"}},
            "for structured output, use a server without --with-tools",
        ),
        ({"extra_body": {"options": {"temperature": 0}}}, r"options\.temperature is not supported"),
        ({"extra_body": {"options": "fast"}}, "not an object"),
        ({"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}, "enable_thinking is not supp"),
        ({"reasoning_effort": "low"}, "reasoning_effort is not supported"),
        ({"functions": [{"name": "f"}]}, "runs its own tools"),
        ({"messages": [{"role": "tool", "content": "4", "tool_call_id": "1"}, *MESSAGES]}, "the role tool"),
        ({"frequency_penalty": 1.0}, r"frequency_penalty 1\.0 is not supported"),
        ({"temperature": 9}, "temperature"),
        ({"extra_body": {"top_k": 10**19}}, "top_k"),
        ({"extra_body": {"colour": 1}}, "colour is not supported"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text"),
        ({"extra_body": {"return_token_ids": True}}, "return_token_ids true is not supported"),
        (
            {"messages": [{"role": "user", "content": "1 + " * 4000}], "stream": True},
            "maximum context length",
        ),
        ({"messages": [{"role": "user", "content": "1 + " * 400_000}]}, "maximum context length"),
    ],
)
def test_what_it_does_not_have_is_refused(client: openai.OpenAI, more: dict[str, Any], message: str) -> None:
    with pytest.raises(openai.APIStatusError, match=message) as error:
        client.chat.completions.create(**{**REQUEST, **more})
    assert isinstance(error.value.body, dict)
    assert set(error.value.body) == {"message", "type", "param", "code"}
    assert error.value.body["type"] == "invalid_request_error"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_the_format_ended_is_cut_off(
    client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    monkeypatch.setattr(TemplateCodec, "bridge", lambda *_: None)
    answer: Any = client.chat.completions.create(**REQUEST, stream=stream)
    *_, last = answer if stream else [answer]
    assert last.choices[0].finish_reason == "length"


def test_a_refused_field_is_named_and_values_that_change_nothing_are_not_refused(
    client: openai.OpenAI,
) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**REQUEST, n=2)
    assert error.value.param == "n"
    neutral: dict[str, Any] = {
        "n": 1,
        "stop": [],
        "logprobs": False,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": "none",
        "parallel_tool_calls": False,
        "metadata": {"chat_id": "1"},
        "store": False,
        "prediction": {"type": "content", "content": "x"},
        "verbosity": "medium",
        "response_format": {"type": "text"},
        "service_tier": "auto",
        "user": "me",
    }
    more = {
        "ignore_eos": False,
        "options": {"num_ctx": 4096, "temperature": None},
        "chat_template_kwargs": {},
    }
    answer = client.chat.completions.create(**REQUEST, **neutral, extra_body=more)
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("stop", "content"),
    [
        ("{42}", "\\boxed"),
        (["nowhere", "xed"], "\\bo"),
        # The thought, the program and the result contain these texts, but the answer does not.
        (["multiply", "print", "It is"], "\\boxed{42}"),
        # The answer ends with the beginning of the stop text.
        ("}!", "\\boxed{42}"),
    ],
)
def test_the_answer_ends_before_a_stop_text_that_thoughts_and_programs_may_hold(
    client: openai.OpenAI, stop: Any, content: str, stream: bool
) -> None:
    request: dict[str, Any] = {**REQUEST, "stop": stop}
    if stream:
        chunks = list(client.chat.completions.create(**request, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        finish = chunks[-1].choices[0].finish_reason
    else:
        [choice] = client.chat.completions.create(**request).choices
        text, finish = choice.message.content, choice.finish_reason
    assert (text, finish) == (content, "stop")


async def test_a_stop_text_ends_the_rollout_of_a_model_that_would_go_on(
    codec: ChatCodec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine writes the turn token by token. The agent cancels it as soon as the answer contains the stop text."""
    turn = codec.turn("So.</reason>\n<answer>one two three four</answer>")
    streamed_ids: list[int] = []
    generation_ended = asyncio.Event()

    class Endless:
        name = "endless"

        async def generate(self, prompt: list[int], sampling: Any, on_tokens: Any = None) -> Any:
            try:
                for token in turn:
                    streamed_ids.append(token)
                    on_tokens([token])
                    await asyncio.sleep(0)
                await asyncio.Event().wait()
            finally:
                generation_ended.set()

    class NoTools:
        @asynccontextmanager
        async def opened(self) -> AsyncIterator[None]:
            yield

    agent = Agent(Endless(), codec, NoTools(), Limits(), "x")  # type: ignore[arg-type]
    body = ChatRequest(messages=MESSAGES, stop=["three"])
    parts: list[Any] = []
    result = await agent_module._answer(agent, body, [1, 2], parts.append)
    assert generation_ended.is_set()
    assert "".join(part.content for part in parts) == "one two "
    assert (result.finish, result.usage) == ("stop", Usage(2, len(streamed_ids)))
    assert len(streamed_ids) < len(turn)


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3), st.data())
def test_stop_texts_are_met_however_the_text_is_cut(text: str, stops: list[str], data: Any) -> None:
    reader, passed_text, remaining = StopTexts(stops), "", text
    while remaining:
        size = data.draw(st.integers(1, len(remaining)))
        passed_text, remaining = passed_text + reader.add(remaining[:size]), remaining[size:]
        # The withheld text is shorter than the longest stop text.
        assert reader.reached or len(text) - len(remaining) - len(passed_text) < max(
            map(len, stops), default=1
        )
    passed_text += reader.end()
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    assert reader.reached == bool(ends)
    assert passed_text == (text[: min(ends)[1]] if ends else text)


KEY = {"Authorization": "Bearer secret"}
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("content", "headers", "message"),
    [
        (rb'{"messages": [{"role": "user", "content": "\ud800"}], "stream": true}', JSON, "surrogate"),
        (rb'{"messages": [{"role": "user", "content": "a"}], "model": "\ud800"}', JSON, "surrogate"),
        (b"{", {}, "Content-Type: application/json"),
        (
            b'{"messages": []}',
            {"Content-Type": "application/x-www-form-urlencoded"},
            "Content-Type: application/json",
        ),
        (b"[]", JSON, "not read as a JSON object"),
        (b"", JSON, "not read as a JSON object"),
        (b"{", JSON, "the body is not JSON ("),
    ],
)
def test_a_body_that_is_no_json_or_no_unicode_gets_openais_error_shape(
    url: str, content: bytes, headers: dict[str, str], message: str
) -> None:
    answer = httpx.post(
        f"{url}/v1/chat/completions",
        content=content,
        headers={**KEY, **headers},
        trust_env=False,
        timeout=TIMEOUT_S,
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["param"]) == (400, "invalid_request_error", None)
    assert message in error["message"]


def test_an_unknown_path_gets_openais_error_shape(url: str) -> None:
    answer = httpx.get(f"{url}/v1/nowhere", headers=KEY, trust_env=False, timeout=TIMEOUT_S)
    assert (answer.status_code, answer.json()["error"]["message"]) == (404, "Not Found")


@pytest.mark.parametrize("stream", [True, False])
def test_a_defect_of_the_server_is_an_error_in_openais_shape(
    url: str, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rstar2.serve.openai.agent.rollout", None)
    answer = httpx.post(
        f"{url}/v1/chat/completions",
        json={**REQUEST, "stream": stream},
        headers=KEY,
        trust_env=False,
        timeout=TIMEOUT_S,
    )
    if stream:
        *_, event, end = answer.text.strip().split("\n\n")
        assert end == "data: [DONE]"
        error = json.loads(event.removeprefix("data: "))["error"]
    else:
        assert answer.status_code == 500
        error = answer.json()["error"]
    assert error["type"] == "server_error"


@pytest.mark.parametrize(
    ("authorization", "status"),
    [("Bearer secret", 200), ("bearer secret", 200), ("secret", 401), ("Basic secret", 401)],
)
def test_the_keys_scheme_is_read_in_any_case(url: str, authorization: str, status: int) -> None:
    headers = {"Authorization": authorization}
    answer = httpx.get(f"{url}/v1/models", headers=headers, trust_env=False, timeout=TIMEOUT_S)
    assert answer.status_code == status


@pytest.fixture(scope="module")
def local(folder: Path, judge: JudgeHandle) -> Iterator[tuple[str, Any]]:
    """The URL of an agent that runs its model in its own process, and the engine of this model."""
    from rstar2.serve.openai.agent_server import create_app, open_model

    settings = AgentServerSettings(
        engine_url=None, model=str(folder), max_model_len=400, host="127.0.0.1", port=1
    )
    model = open_model(settings)
    with serve_app(create_app(settings, model, (judge.url, judge.token))) as url:
        yield url, model.engine


def test_a_model_in_the_same_process_answers_within_its_limits(local: tuple[str, Any], folder: Path) -> None:
    url, engine = local
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        [card] = client.models.list().data
        more = card.model_extra or {}
        assert (card.id, more["root"], more["max_model_len"]) == (str(folder), str(folder), 400)
        request: dict[str, Any] = {**REQUEST, "model": card.id, "temperature": 0, "max_tokens": 12}
        answer = client.chat.completions.create(**request)
        chunks = list(client.chat.completions.create(**request, stream=True))
        with pytest.raises(openai.BadRequestError, match="maximum context length is 400 tokens"):
            client.chat.completions.create(
                **{**request, "messages": [{"role": "user", "content": "1 + " * 400}]}
            )
    assert answer.usage is not None
    # Random weights do not end an answer this soon.
    assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 12)
    fields = ("reasoning_content", "content")
    text = "".join(str((answer.choices[0].message.model_dump())[name] or "") for name in fields)
    deltas = [chunk.choices[0].delta.model_dump() for chunk in chunks]
    assert "".join(delta.get(name) or "" for name in fields for delta in deltas).strip() == text.strip()
    assert httpx.get(f"{url}/health", trust_env=False, timeout=TIMEOUT_S).status_code == 200
    assert not engine._rows


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_disconnects_frees_its_place(
    local: tuple[str, Any], stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, engine = local
    stepped, go, step = threading.Event(), threading.Event(), engine._step

    def paused_step() -> None:
        stepped.set()
        assert go.wait(TIMEOUT_S)
        step()

    monkeypatch.setattr(engine, "_step", paused_step)
    body = {"messages": REQUEST["messages"], "stream": stream}
    async with httpx.AsyncClient(trust_env=False, timeout=None) as http:
        pending_request = asyncio.create_task(http.post(f"{url}/v1/chat/completions", json=body))
        assert await asyncio.to_thread(stepped.wait, TIMEOUT_S)
        [row] = engine._rows
        pending_request.cancel()
        await asyncio.gather(pending_request, return_exceptions=True)
    await asyncio.to_thread(wait_until, row.future.cancelled)
    go.set()
    await asyncio.to_thread(wait_until, lambda: not engine._rows)
    assert len(row.token_ids) <= 3


def test_while_a_long_text_is_encoded_others_are_answered(
    local: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, _ = local
    encoding, go, encode = threading.Event(), threading.Event(), agent_module._prompt

    def paused_encode(*arguments: Any) -> list[int]:
        encoding.set()
        assert go.wait(TIMEOUT_S)
        return encode(*arguments)

    monkeypatch.setattr(agent_module, "_prompt", paused_encode)
    answers: list[httpx.Response] = []

    def ask() -> None:
        body = {"messages": REQUEST["messages"], "max_tokens": 1}
        path = f"{url}/v1/chat/completions"
        answers.append(httpx.post(path, json=body, trust_env=False, timeout=TIMEOUT_S))

    request_thread = threading.Thread(target=ask)
    request_thread.start()
    try:
        assert encoding.wait(TIMEOUT_S)
        assert httpx.get(f"{url}/v1/models", trust_env=False, timeout=TIMEOUT_S).status_code == 200
    finally:
        go.set()
        request_thread.join(TIMEOUT_S)
    assert answers[0].status_code == 200


def test_without_the_key_nothing_is_run(url: str, standin: StandIn) -> None:
    standin.requests.clear()
    for key in ({}, {"Authorization": "Bearer wrong"}):
        answer = httpx.post(
            f"{url}/v1/chat/completions", json=REQUEST, headers=key, trust_env=False, timeout=TIMEOUT_S
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert standin.requests == []


def test_an_engine_that_is_away_is_said_so_and_so_is_one_that_does_not_answer(
    url: str, client: openai.OpenAI, standin: StandIn
) -> None:
    standin.busy_answers, standin.healthy = 1, False
    try:
        with pytest.raises(openai.InternalServerError) as error:
            client.chat.completions.create(**REQUEST)
        assert error.value.status_code == 503
        assert httpx.get(f"{url}/health", trust_env=False, timeout=TIMEOUT_S).status_code == 503
    finally:
        standin.busy_answers, standin.healthy = 0, True
    assert httpx.get(f"{url}/health", trust_env=False, timeout=TIMEOUT_S).status_code == 200


def test_one_model_is_named_by_its_id_and_another_is_not_there(client: openai.OpenAI) -> None:
    [card] = client.models.list().data
    assert client.models.retrieve(card.id) == card
    with pytest.raises(openai.NotFoundError, match="`other` does not exist; this server has `scripted`"):
        client.models.retrieve("other")


def test_a_named_model_is_asked_for_by_that_name_and_one_in_a_folder_by_its_path(
    folder: Path, judge: JudgeHandle, local: tuple[str, Any]
) -> None:
    with serve_agent(None, folder, judge, key=None, name="demo", max_model_len=400) as url:
        for base, name in ((url, "demo"), (local[0], str(folder))):
            with openai.OpenAI(
                base_url=f"{base}/v1", api_key="x", max_retries=0, timeout=TIMEOUT_S
            ) as client:
                card = client.models.retrieve(name)
                assert (card.id, (card.model_extra or {})["root"]) == (name, str(folder))
                answer = client.chat.completions.create(model=name, messages=MESSAGES, max_tokens=2)
                assert answer.model == name


ORIGIN = "http://localhost:3000"


def test_web_pages_may_ask_if_their_origin_is_named(
    standin: StandIn, folder: Path, judge: JudgeHandle
) -> None:
    with serve_agent(standin.url, folder, judge, origins=[ORIGIN]) as url:
        path = f"{url}/v1/chat/completions"
        with httpx.Client(trust_env=False, timeout=TIMEOUT_S) as http:

            def allowed_origin(origin: str, **more: Any) -> str | None:
                headers = {"Origin": origin, **more.pop("headers", {})}
                return http.request(url=path, headers=headers, **more).headers.get(
                    "access-control-allow-origin"
                )

            # A browser sends this preflight request before it sends a key or JSON.
            preflight_headers = {
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization,content-type",
            }
            assert allowed_origin(ORIGIN, method="OPTIONS", headers=preflight_headers) == ORIGIN
            assert allowed_origin("http://elsewhere", method="OPTIONS", headers=preflight_headers) is None
            assert allowed_origin(ORIGIN, method="POST", headers=KEY, json=REQUEST) == ORIGIN
            # A page can also read the reason for a refusal.
            assert allowed_origin(ORIGIN, method="POST", json=REQUEST) == ORIGIN


def test_without_an_origin_no_web_page_may_ask(url: str) -> None:
    headers = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    path = f"{url}/v1/chat/completions"
    preflight = httpx.options(path, headers=headers, trust_env=False, timeout=TIMEOUT_S)
    assert preflight.status_code >= 400
    response = httpx.post(
        path, json=REQUEST, headers={**KEY, "Origin": ORIGIN}, trust_env=False, timeout=TIMEOUT_S
    )
    assert "access-control-allow-origin" not in {**preflight.headers, **response.headers}
    # A browser sends a plain text body without a preflight request. The server refuses it.
    plain = httpx.post(
        path,
        content=json.dumps(REQUEST),
        headers={**KEY, "Content-Type": "text/plain"},
        trust_env=False,
        timeout=TIMEOUT_S,
    )
    assert plain.status_code == 400


def test_its_context_is_the_models(client: openai.OpenAI, standin: StandIn) -> None:
    [card] = client.models.list().data
    assert (card.model_extra or {})["max_model_len"] == standin.max_model_len


def test_an_engine_that_fails_in_a_stream_is_an_error_in_it(client: openai.OpenAI, standin: StandIn) -> None:
    standin.cut_after = 2
    try:
        with pytest.raises(openai.APIError, match="broke"):
            list(client.chat.completions.create(**REQUEST, stream=True))
    finally:
        standin.cut_after = None


def test_the_python_of_the_page_runs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
    [code] = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    code = code.replace("http://127.0.0.1:8000", url).replace('api_key="none"', 'api_key="secret"')
    exec(compile(code, "serve.md", "exec"), {})
    output = capsys.readouterr().out
    assert "print(6 * 7)" in output
    assert output.endswith("\\boxed{42}")

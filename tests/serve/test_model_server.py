"""The transformers engine over HTTP, asked by the public `openai` client and by our own."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.optional import needs
from support.servers import openai_client as openai
from support.servers.serving import served
from support.waiting import TIMEOUT_S, wait_until

from rstar2.data import builtin
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.engines.vllm import VLLMEngine
from rstar2.errors import UserError
from rstar2.loop.engine import Sampling
from rstar2.loop.formats.format import ours
from rstar2.loop.turns.choose import FormatChoice, load_codec

pytestmark = [needs("torch"), pytest.mark.slow]
CONTEXT = 512
PROMPT = [5, 9, 300, 41]
JSON = {"Content-Type": "application/json"}
ASKED = {"messages": [{"role": "user", "content": "1?"}]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from rstar2.engines.hf import HFEngine
    from rstar2.serve.openai.turns import Model

    folder = tmp_path_factory.mktemp("tiny") / "model"
    make_tiny_model(
        folder, TinyModel(layers=2, context=CONTEXT), builtin.traces(1, 60, {}), builtin.FORMAT, 3
    )
    codec = load_codec(folder)
    engine = HFEngine(folder, [codec.end_id], max_batch=64, threads=1)
    yield Model(engine, codec, "tiny")
    asyncio.run(engine.aclose())


@pytest.fixture(scope="module")
def url(model: Any) -> Iterator[str]:
    from fastapi import FastAPI

    from rstar2.serve.openai.answers import model_list
    from rstar2.serve.openai.completions import completions_router
    from rstar2.serve.openai.errors import add_errors

    app = FastAPI()
    add_errors(app)
    app.include_router(completions_router(model))
    app.get("/v1/models")(lambda: model_list("tiny", str(model.engine.name), CONTEXT))
    with served(app) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S) as client:
        yield client


@pytest.fixture
async def many(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S
    ) as client:
        yield client


async def test_our_own_client_gets_what_the_engine_says(url: str, model: Any) -> None:
    engine = VLLMEngine(url)
    sampling = Sampling(temperature=0.7, top_k=20, max_tokens=16, seed=7)
    pieces: list[int] = []
    try:
        said = await engine.generate(PROMPT, sampling)
        streamed = await engine.generate(PROMPT, sampling, pieces.extend)
    finally:
        await engine.aclose()
    direct = await model.engine.generate(PROMPT, sampling)
    assert said.token_ids == streamed.token_ids == pieces == direct.token_ids
    assert said.logprobs == pytest.approx(direct.logprobs, abs=1e-5)
    assert streamed.logprobs == pytest.approx(direct.logprobs, abs=1e-5)


async def test_64_streaming_clients_each_get_their_own_answer_whole(many: openai.AsyncOpenAI) -> None:
    def asked(i: int) -> dict[str, Any]:
        return {"model": "tiny", "prompt": [i, 2 * i, 7], "max_tokens": 4 + i % 9, "seed": i}

    async def stream(i: int) -> str:
        pieces = await many.completions.create(**asked(i), stream=True)
        return "".join([piece.choices[0].text async for piece in pieces])

    together = await asyncio.gather(*(stream(i) for i in range(64)))
    alone = [(await many.completions.create(**asked(i))).choices[0].text for i in range(64)]
    assert together == alone
    assert len(set(together)) > 50


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_frees_its_place(
    url: str, model: Any, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped, go, step = threading.Event(), threading.Event(), model.engine._step

    def held_step() -> None:
        stepped.set()
        assert go.wait(TIMEOUT_S)
        step()

    monkeypatch.setattr(model.engine, "_step", held_step)
    body = {"prompt": PROMPT, "max_tokens": CONTEXT - 10, "stream": stream, "ignore_eos": True}
    async with httpx.AsyncClient(trust_env=False, timeout=None) as http:
        asking = asyncio.create_task(http.post(f"{url}/v1/completions", json=body))
        assert await asyncio.to_thread(stepped.wait, TIMEOUT_S)
        [row] = model.engine._rows
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await asyncio.to_thread(wait_until, row.future.cancelled)
    go.set()
    await asyncio.to_thread(wait_until, lambda: not model.engine._rows)
    assert len(row.token_ids) <= 3


def test_choices_of_one_seed_differ_and_come_again(client: openai.OpenAI) -> None:
    def ask() -> list[str]:
        answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=12, n=3, seed=5)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(PROMPT)
        return [choice.text for choice in answer.choices]

    first = ask()
    assert ask() == first
    assert len(set(first)) == 3


def test_logprobs_name_the_likeliest_and_the_token_itself(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=4, temperature=0, logprobs=3)
    found = answer.choices[0].logprobs
    assert found is not None
    for token, value, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert top[token] == pytest.approx(value)
        assert max(top.values()) == pytest.approx(value)


@pytest.mark.parametrize("stream", [True, False])
def test_a_stop_text_ends_the_answer_before_it(client: openai.OpenAI, stream: bool) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 40, "seed": 3}
    whole = client.completions.create(**asked).choices[0].text
    middle = len(whole) // 2
    stop = whole[middle : middle + 3]
    answer = client.completions.create(**asked, stop=["never said", stop], stream=stream)
    if stream:
        pieces = [piece.choices[0] for piece in answer]
        text, finish = "".join(piece.text for piece in pieces), pieces[-1].finish_reason
    else:
        text, finish = answer.choices[0].text, answer.choices[0].finish_reason
    assert text == whole[: whole.index(stop)]
    assert finish == "stop"


def test_a_conversation_is_answered_with_its_tokens_and_their_count(
    client: openai.OpenAI, model: Any
) -> None:
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "What is 2 + 2?"}]}]
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=messages,
            max_tokens=6,
            logprobs=True,
            top_logprobs=2,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    usage = chunks[-1].usage
    prompt = model.codec.prompt([{"role": "user", "content": "What is 2 + 2?"}], [])
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), 6)
    given = [
        token
        for chunk in chunks[:-1]
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content or []
    ]
    assert len(given) == 6
    assert all(len(token.top_logprobs) == 2 for token in given)


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("completions", {"prompt": PROMPT, "temperature": 9}, 400, "temperature"),
        ("completions", {"prompt": PROMPT, "top_k": 10**19}, 400, "top_k"),
        ("completions", {"prompt": PROMPT, "max_tokens": 5000}, 400, "maximum context length is 512"),
        ("completions", {"prompt": [99999]}, 400, "token id"),
        ("completions", {"prompt": []}, 400, "empty"),
        ("completions", {"prompt": PROMPT, "best_of": 3}, 400, "best_of is not supported"),
        ("completions", {"prompt": PROMPT, "colour": 1}, 400, "colour"),
        ("completions", {"prompt": PROMPT, "model": "other"}, 404, "does not exist"),
        ("chat/completions", {"messages": []}, 400, "messages"),
        ("chat/completions", {"messages": [{"content": "x"}]}, 400, "role"),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            400,
            "text",
        ),
        ("completions", {"prompt": ["a", [1]]}, 400, "none of the types"),
        ("completions", {"prompt": "a" * 1_000_000}, 400, "maximum context length is 512"),
        ("chat/completions", {"messages": [{"role": "user", "content": "a" * 1_000_000}]}, 400, "maximum"),
        ("chat/completions", {**ASKED, "tools": [{"function": {"name": 1}}]}, 400, "each tool is"),
        ("nowhere", {}, 404, "Not Found"),
    ],
)
def test_a_bad_request_gets_openais_error_shape(
    url: str, path: str, body: dict[str, Any], status: int, said: str
) -> None:
    answer = httpx.post(f"{url}/v1/{path}", json=body, trust_env=False, timeout=TIMEOUT_S)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert said in error["message"]
    assert error["param"] is None or "." not in error["param"]


@pytest.mark.parametrize(
    "path_and_body",
    [
        ("completions", rb'{"prompt": "a\ud800b"}'),
        ("completions", rb'{"prompt": "a", "model": "\ud800"}'),
        ("completions", rb'{"prompt": "a", "stop": ["\udc00"]}'),
        ("chat/completions", rb'{"messages": [{"role": "user", "content": "\ud800"}], "stream": true}'),
    ],
)
def test_text_that_is_no_unicode_is_refused(url: str, path_and_body: tuple[str, bytes]) -> None:
    path, body = path_and_body
    answer = httpx.post(f"{url}/v1/{path}", content=body, headers=JSON, trust_env=False, timeout=TIMEOUT_S)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, None)
    assert "surrogate" in answer.json()["error"]["message"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_fault_of_ours_is_answered_in_the_same_shape(
    url: str, model: Any, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.engine, "steps", None)
    body = {"prompt": PROMPT, "stream": stream}
    answer = httpx.post(f"{url}/v1/completions", json=body, trust_env=False, timeout=TIMEOUT_S)
    if stream:
        [event, end] = answer.text.strip().split("\n\n")
        assert end == "data: [DONE]"
        error = json.loads(event.removeprefix("data: "))["error"]
    else:
        assert answer.status_code == 500
        error = answer.json()["error"]
    assert error["type"] == "server_error"


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ({}, "valid dictionary"),
        (JSON, "the body is not JSON"),
    ],
)
def test_a_body_that_is_no_json_gets_the_same_shape(url: str, headers: dict[str, str], said: str) -> None:
    answer = httpx.post(
        f"{url}/v1/completions", content=b"{", headers=headers, trust_env=False, timeout=TIMEOUT_S
    )
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", None)
    assert said in error["message"]


def test_while_a_long_text_is_turned_into_tokens_others_are_answered(
    url: str, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, encode = threading.Event(), threading.Event(), model.codec.tokenizer.encode

    def held(text: str, **how: Any) -> Any:
        begun.set()
        assert go.wait(TIMEOUT_S)
        return encode(text, **how)

    monkeypatch.setattr(model.codec.tokenizer, "encode", held)
    answers: list[httpx.Response] = []

    def ask() -> None:
        body = {"prompt": "long", "max_tokens": 1}
        answers.append(httpx.post(f"{url}/v1/completions", json=body, trust_env=False, timeout=TIMEOUT_S))

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        assert begun.wait(TIMEOUT_S)
        assert httpx.get(f"{url}/v1/models", trust_env=False, timeout=TIMEOUT_S).status_code == 200
    finally:
        go.set()
        asking.join(TIMEOUT_S)
    assert answers[0].status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_the_places_of_tokens_are_those_in_the_text(
    client: openai.OpenAI, model: Any, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rstar2.engines.hf import Step

    ids = model.codec.tokenizer.encode("a\u221a\U0001f600b")

    async def scripted(*_: object, **__: object) -> AsyncIterator[Step]:
        for token in ids:
            yield Step(token, -0.5, ())

    monkeypatch.setattr(model.engine, "steps", scripted)
    answer = client.completions.create(
        model="tiny", prompt=PROMPT, max_tokens=len(ids), logprobs=0, stream=stream
    )
    choices = [piece.choices[0] for piece in answer] if stream else [answer.choices[0]]
    assert "".join(choice.text for choice in choices) == "a\u221a\U0001f600b"
    places = [place for choice in choices for place in choice.logprobs.text_offset]
    assert len(ids) > 4, "a character of several tokens"
    assert (places[0], places[-1]) == (0, 3)
    assert places == sorted(places)


def test_a_call_without_arguments_can_be_sent_back(client: openai.OpenAI) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "now", "arguments": ""}}
    messages: list[Any] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ]
    answer = client.chat.completions.create(model="tiny", messages=messages, max_tokens=2)
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


@pytest.mark.parametrize(
    ("sent", "status"),
    [("Bearer secret", 200), ("bearer secret", 200), ("secret", 401), ("Basic secret", 401)],
)
def test_a_key_is_sent_with_its_scheme_however_that_is_written(sent: str, status: int) -> None:
    from fastapi import FastAPI

    from rstar2.serve.openai.errors import require_key

    app = FastAPI()
    require_key(app, "secret")
    app.get("/v1/models")(lambda: {})
    with served(app) as url:
        answer = httpx.get(
            f"{url}/v1/models", headers={"Authorization": sent}, trust_env=False, timeout=TIMEOUT_S
        )
    assert answer.status_code == status


CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"one {CALL} two {CALL}", "one  two ", 2),
        ("a < b and <tool_callers", "a < b and <tool_callers", 0),
        (f"cut {CALL[:-12]}", "cut ", 1),
        ("<tool_call>{no json}</tool_call>!", "<tool_call>{no json}</tool_call>!", 0),
        ('<tool_call>{"name": "add"}', '<tool_call>{"name": "add"}', 0),
        (f"the <tool_call> tag: {CALL}", "the <tool_call> tag: ", 1),
        (f"as <tool_call>{{name}} {CALL}", "as <tool_call>{name} ", 1),
        ("<tool_call> and </tool_call> tags", "<tool_call> and </tool_call> tags", 0),
        ("<tool_call> {", "<tool_call> {", 0),
    ],
)
def test_calls_are_parted_from_content_however_they_arrive(
    size: int, text: str, content: str, calls: int
) -> None:
    from rstar2.serve.openai.tool_calls import ToolCallSplitter

    splitter = ToolCallSplitter()
    shown = "".join(splitter.add(text[at : at + size]) for at in range(0, len(text), size)) + splitter.end()
    assert shown == content
    assert [call["function"]["name"] for call in splitter.calls] == ["add"] * calls


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_is_what_clients_know_as_one(
    client: openai.OpenAI, model: Any, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rstar2.engines.hf import Step

    async def scripted(*_: object, **__: object) -> AsyncIterator[Step]:
        for token in [*model.codec.tokenizer.encode(f"so {CALL}"), model.codec.end_id]:
            yield Step(token, -0.5, ())

    monkeypatch.setattr(model.engine, "steps", scripted)
    # The demo's own template shows no tools of clients.
    monkeypatch.setattr(
        model.codec, "format", model.codec.format.model_copy(update={"template": ours().template})
    )
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "1?"}],
        "tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}],
    }
    if stream:
        choices = [chunk.choices[0] for chunk in client.chat.completions.create(**asked, stream=True)]
        [call] = [call for choice in choices for call in choice.delta.tool_calls or []]
        content = "".join(choice.delta.content or "" for choice in choices)
        finish = choices[-1].finish_reason
    else:
        choice = client.chat.completions.create(**asked).choices[0]
        [call] = choice.message.tool_calls
        content, finish = choice.message.content, choice.finish_reason
    assert (call.function.name, call.function.arguments) == ("add", '{"a": 1}')
    assert (content, finish) == ("so ", "tool_calls")


def test_tools_that_the_template_drops_are_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="drops the tools"):
        client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "1?"}],
            tools=[{"type": "function", "function": {"name": "add", "parameters": {}}}],
        )


def test_greedy_ids_and_logprobs_are_those_of_a_plain_forward_pass(client: openai.OpenAI, model: Any) -> None:
    import torch

    answer = client.completions.create(
        model="tiny",
        prompt=PROMPT,
        max_tokens=24,
        temperature=0,
        logprobs=0,
        extra_body={"return_token_ids": True, "ignore_eos": True},
    ).choices[0]
    said = answer.token_ids  # type: ignore[attr-defined]
    with torch.no_grad():
        logits = model.engine.model(torch.tensor([PROMPT + said])).logits[0, len(PROMPT) - 1 : -1]
    every = torch.log_softmax(logits.float(), -1)
    assert said == every.argmax(-1).tolist()
    expected = [float(every[at, token]) for at, token in enumerate(said)]
    assert answer.logprobs is not None
    assert answer.logprobs.token_logprobs == pytest.approx(expected, abs=1e-4)


def test_the_folder_is_named_for_clients_that_need_the_tokenizer(url: str, model: Any) -> None:
    [card] = httpx.get(f"{url}/v1/models", trust_env=False, timeout=TIMEOUT_S).json()["data"]
    assert Path(card["root"]).is_dir()
    assert card["max_model_len"] == CONTEXT


def test_a_template_without_tools_is_served_and_a_format_that_is_named_is_kept_to(
    model: Any, tmp_path: Path
) -> None:
    from rstar2.loop.turns.choose import load_chat_codec

    model.codec.tokenizer.save_pretrained(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    assert load_chat_codec(tmp_path, FormatChoice()).source == "no-tools"
    with pytest.raises(UserError, match="drops the tool"):
        load_chat_codec(tmp_path, FormatChoice("own"))

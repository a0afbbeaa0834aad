"""A chat endpoint behind the agent loop: messages become turns, and turns become messages again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers.chat_api import ChatEndpoint, solves
from support.servers.vllm_standin import serving
from support.tools import SharedTools
from support.turns import user_turn

from rstar2.engines.chat_api import _TurnText, open_chat_api
from rstar2.engines.completions import Choice, read_completion
from rstar2.engines.text_tokens import BYTES, TextTokenizer, messages_of, text_codec
from rstar2.loop.agent import Limits, rollout
from rstar2.loop.engine import EngineError, Sampling
from rstar2.loop.tools.python_code_with_standard_io import NAME, python_code_with_standard_io
from rstar2.loop.trace import ToolCall


class Prints42(SharedTools):
    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        return ToolCall(name=name, arguments=arguments, status="ok", output="42 <|im_end|> π")


async def test_thought_calls_and_replies_go_through_the_endpoint_and_back() -> None:
    with serving(ChatEndpoint(solves, key="secret")) as endpoint:
        served_model = await open_chat_api(endpoint.url, None, "secret")
        codec = served_model.codec
        streamed_ids: list[int] = []
        trace = await rollout(
            codec.prompt(codec.format.messages("Compute 6 * 7.")),
            engine=served_model.engine,
            tools=Prints42(),
            codec=codec,
            limits=Limits(),
            sampling=Sampling(seed=3),
            on_tokens=streamed_ids.extend,
        )
        await served_model.engine.aclose()
    call = {"name": NAME, "arguments": {"code": "print(6 * 7)"}}
    assert trace.finish == "answer"
    assert [turn.text for turn in trace.turns] == [
        f"<think>I √ ask Python.</think>\n\n<tool_call>\n{json.dumps(call)}\n</tool_call>",
        "<think>It says so.</think>\nThe answer is \\boxed{42 < |im_end|> π}.",
    ]
    assert streamed_ids == [
        token for token, mask in zip(trace.response_ids, trace.response_mask, strict=True) if mask
    ]
    first, second = endpoint.requests
    assert first["messages"] == [{"role": "user", "content": "Compute 6 * 7."}]
    assert first["tools"] == [python_code_with_standard_io.schema]
    _, call_message, reply = second["messages"]
    assert (call_message["content"], json.loads(call_message["tool_calls"][0]["function"]["arguments"])) == (
        None,
        call["arguments"],
    )
    assert reply == {
        "role": "tool", "tool_call_id": call_message["tool_calls"][0]["id"], "content": "42 < |im_end|> π",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("owned_by", "expected_values"), [("vllm", (0, 0.0, 1.0)), ("openai", (None, None, None))]
)
async def test_values_that_are_off_are_sent_where_the_endpoint_is_known_to_take_them(
    owned_by: str, expected_values: tuple[float | None, ...]
) -> None:
    endpoint = ChatEndpoint(solves)
    endpoint.owned_by = owned_by
    with serving(endpoint):
        served_model = await open_chat_api(endpoint.url, None, None)
        prompt = served_model.codec.prompt(served_model.codec.format.messages("Hello."))
        await served_model.engine.generate(prompt, Sampling(max_tokens=99))
        await served_model.engine.aclose()
    (request,) = endpoint.requests
    assert tuple(request.get(name) for name in ("top_k", "min_p", "repetition_penalty")) == expected_values


@pytest.mark.parametrize("arguments", ["{not JSON", "", '{"code": "a"} x'])
async def test_arguments_that_are_no_json_are_a_failed_call_and_are_sent_back(arguments: str) -> None:
    def model(messages: list[dict[str, Any]]) -> dict[str, Any]:
        return {"content": "sorry"} if messages[-1]["role"] == "tool" else {"calls": [(NAME, arguments)]}

    with serving(ChatEndpoint(model)) as endpoint:
        served_model = await open_chat_api(endpoint.url, "scripted", None)
        codec = served_model.codec
        trace = await rollout(
            codec.prompt(codec.format.messages("x")),
            engine=served_model.engine,
            tools=Prints42(),
            codec=codec,
            limits=Limits(),
            sampling=Sampling(),
        )
        await served_model.engine.aclose()
    assert [call.status for call in trace.calls] == ["invalid_arguments" if not arguments else "parse_error"]
    function = endpoint.requests[-1]["messages"][1]["tool_calls"][0]["function"]
    assert arguments in json.dumps(json.loads(function["arguments"])).replace('\\"', '"')


async def test_a_wrong_key_is_the_endpoints_own_message_and_length_is_a_cut() -> None:
    with serving(ChatEndpoint(lambda _: {"content": "long", "finish": "length"}, key="secret")) as endpoint:
        prompt = text_codec(NAME).prompt([{"role": "user", "content": "x"}])
        for key in ("wrong", "secret"):
            served_model = await open_chat_api(endpoint.url, None, key)
            if key == "wrong":
                with pytest.raises(EngineError, match="HTTP 401: Incorrect API key"):
                    await served_model.engine.generate(prompt, Sampling())
            else:
                assert (await served_model.engine.generate(prompt, Sampling())).finish == "length"
            await served_model.engine.aclose()


def _piece(call: dict[str, Any]) -> Choice:
    choice = read_completion({"choices": [{"delta": {"tool_calls": [call]}}]}).choice
    assert choice is not None
    return choice


@pytest.mark.parametrize("index", [{}, {"index": 0}])
def test_calls_are_told_apart_by_their_ids_where_all_have_one_index(index: dict[str, int]) -> None:
    text_parts: list[str] = []
    turn = _TurnText(text_parts.append)
    for name, value in (("add", 1), ("sub", 2)):
        first_piece = {**index, "id": f"call_{name}", "function": {"name": name, "arguments": '{"a": '}}
        turn.add(_piece(first_piece))
        # Some servers give every piece a different id.
        second_piece = {**index, "id": f"piece_{name}", "function": {"arguments": f"{value}}}"}}
        turn.add(_piece(second_piece))
    turn.end()
    calls = [
        json.loads(part.partition("</tool_call>")[0]) for part in "".join(text_parts).split("<tool_call>")[1:]
    ]
    assert calls == [{"name": "add", "arguments": {"a": 1}}, {"name": "sub", "arguments": {"a": 2}}]


@given(text=st.text(max_size=60))
def test_text_survives_its_ids_and_counts_by_bytes(text: str) -> None:
    tokenizer = TextTokenizer()
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) == -(-len(text.encode()) // BYTES) or "<|im_" in text


@given(
    texts=st.lists(
        st.text(max_size=20).filter(lambda text: "<tool_call>" not in text), min_size=1, max_size=4
    )
)
def test_a_conversation_is_read_again_from_its_ids(texts: list[str]) -> None:
    codec = text_codec(NAME)
    ids = codec.prompt([{"role": "user", "content": texts[0]}])
    for text in texts[1:]:
        ids += codec.turn("yes") + user_turn(codec, text)
    expected = [{"role": "user", "content": texts[0]}]
    for text in texts[1:]:
        expected += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": text}]
    assert messages_of(ids) == expected


def test_a_turn_that_only_mentions_the_tag_is_sent_back_as_text() -> None:
    codec = text_codec(NAME)
    ids = codec.prompt([{"role": "user", "content": "?"}])
    ids += codec.turn("I used the <tool_call> tag.") + user_turn(codec, "Why?")
    assert messages_of(ids)[1] == {"role": "assistant", "content": "I used the <tool_call> tag."}

"""The objects of OpenAI's API: their exact bytes, and their fields as the `openai` client reads them."""

from __future__ import annotations

import json

from rstar2.serve.openai.answers import ChatAnswer, Usage, error_body, model_card, model_list

ANSWER = ChatAnswer("m", "chatcmpl-1", 5)
USAGE = Usage(3, 4)


def test_a_whole_answer() -> None:
    from openai.types.chat import ChatCompletion

    answer = ANSWER.whole({"role": "assistant", "content": "42"}, "stop", USAGE)
    assert json.dumps(answer) == (
        '{"id": "chatcmpl-1", "object": "chat.completion", "created": 5, "model": "m", "choices": [{"index": 0, '
        '"message": {"role": "assistant", "content": "42"}, "logprobs": null, "finish_reason": "stop"}], '
        '"usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}'
    )
    completion = ChatCompletion.model_validate(answer)
    assert (completion.choices[0].message.content, completion.usage and completion.usage.total_tokens) == (
        "42",
        7,
    )


def test_the_chunks_of_a_stream() -> None:
    from openai.types.chat import ChatCompletionChunk

    head = '{"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 5, "model": "m", "choices": ['
    chunks = [ANSWER.chunk({"content": "4"}), ANSWER.chunk({}, "length"), ANSWER.usage_chunk(USAGE)]
    assert [json.dumps(chunk) for chunk in chunks] == [
        head + '{"index": 0, "delta": {"content": "4"}, "finish_reason": null}]}',
        head + '{"index": 0, "delta": {}, "finish_reason": "length"}]}',
        head + '], "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}',
    ]
    *choices, last = [ChatCompletionChunk.model_validate(chunk) for chunk in chunks]
    assert [choice.choices[0].finish_reason for choice in choices] == [None, "length"]
    assert last.usage is not None
    assert last.usage.completion_tokens == 4


def test_each_answer_has_an_id_of_its_own() -> None:
    first, second = ChatAnswer("m"), ChatAnswer("m")
    assert first.id != second.id
    assert first.id.startswith("chatcmpl-")


def test_errors_and_models() -> None:
    from openai.types.model import Model

    assert json.dumps(error_body("no", 404, "model", "model_not_found")) == (
        '{"error": {"message": "no", "type": "invalid_request_error", "param": "model", "code": "model_not_found"}}'
    )
    assert error_body("broken", 503)["error"]["type"] == "server_error"
    [card] = model_list(model_card("m", "/models/m", 512))["data"]
    assert (Model.model_validate(card).id, card["root"], card["max_model_len"]) == ("m", "/models/m", 512)

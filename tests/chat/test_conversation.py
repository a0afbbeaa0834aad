"""A chat stores the model's token ids unchanged, and shows only complete characters and complete calls."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tools import SharedTools
from support.turns import user_turn
from support.waiting import TIMEOUT_S

from rstar2.chat.answer import Usage
from rstar2.chat.conversation import AnswerRepeats, ContextFull, Conversation
from rstar2.chat.repetition import (
    LONGEST_PATTERN,
    REPEATED,
    REPEATED_DIGITS,
    RepetitionLimit,
    repeats,
)
from rstar2.loop.agent import Limits
from rstar2.loop.engine import EngineError, Generation, OnTokens, Sampling, TokenCount
from rstar2.loop.tools.python_code_with_standard_io import NAME as TOOL_NAME
from rstar2.loop.trace import CallStatus, ToolCall
from rstar2.loop.turns.choose import codec_for
from rstar2.loop.turns.codec import ChatCodec
from rstar2.loop.turns.stream import Piece, TagSplitter, TextStream
from rstar2.loop.turns.tags import begins_object, find_calls, inside_call, without_tags
from rstar2.loop.turns.template import END_OF_TURN


def _pieces(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(place % (len(text) + 1) for place in cuts)})
    return [text[start:end] for start, end in itertools.pairwise(places)]


def _merge_texts(pieces: list[Piece]) -> list[Piece]:
    """Returns the pieces with neighbouring texts merged."""
    joined: list[Piece] = []
    for piece in pieces:
        if joined and joined[-1].kind == piece.kind != "call":
            piece = Piece(piece.kind, joined.pop().content + piece.content)
        joined.append(piece)
    return joined


TAGGED = st.lists(
    st.sampled_from(
        ["<tool_call>", "</tool_call>", "</reason>", "<answer>", "<tool", "a < b", "{}", "{", '"', "<", "\n"]
    ),
    max_size=8,
).map("".join)


@given(text=TAGGED, cuts=st.lists(st.integers(min_value=0), max_size=20))
def test_however_the_text_is_cut_the_same_words_and_calls_are_shown(text: str, cuts: list[int]) -> None:
    whole_splitter, cut_splitter = TagSplitter(), TagSplitter()
    expected = whole_splitter.add(text) + whole_splitter.end()
    pieces = [piece for part in _pieces(text, cuts) for piece in cut_splitter.add(part)] + cut_splitter.end()
    assert _merge_texts(pieces) == _merge_texts(expected)


def test_a_call_is_shown_once_it_is_whole_and_words_as_soon_as_they_are_no_tag() -> None:
    splitter = TagSplitter()
    assert splitter.add("so a < b<tool_") == [Piece("thought", "so a < b")]
    assert splitter.add('call>{"name"') == []
    assert splitter.add(": 1}</tool_call>\nand") == [Piece("call", '{"name": 1}'), Piece("text", "\nand")]
    assert splitter.add("<tool_call>") == splitter.add(" {") == splitter.add('"left open') == []
    assert splitter.end() == [Piece("call", ' {"left open')]
    assert splitter.add("next turn") == [Piece("thought", "next turn")]


def test_tags_are_left_out_and_say_what_is_thought_and_what_is_not() -> None:
    splitter = TagSplitter()
    pieces = splitter.add("I see.</reason>\n<answer>4</answer> <b> <reason>more") + splitter.end()
    assert _merge_texts(pieces) == [
        Piece("thought", "I see."),
        Piece("text", "\n4 <b> "),
        Piece("thought", "more"),
    ]
    assert splitter.add('<tool_call>{"</reason>"}</tool_call>') == [Piece("call", '{"</reason>"}')]


def test_a_tag_that_is_only_mentioned_is_shown_as_text() -> None:
    splitter = TagSplitter()
    assert splitter.add("I wrote <tool_call>") == [Piece("thought", "I wrote ")]
    pieces = splitter.add(" once.</reason>4") + splitter.end()
    assert _merge_texts(pieces) == [Piece("thought", "<tool_call> once."), Piece("text", "4")]
    assert _merge_texts(splitter.add("<tool_call>") + splitter.end()) == [Piece("thought", "<tool_call>")]
    text_with_tags = "I use <tool_call> and </tool_call>, say <tool_call>{name}</tool_call>."
    assert _merge_texts(splitter.add(f"{text_with_tags}</reason>4") + splitter.end()) == [
        Piece("thought", text_with_tags),
        Piece("text", "4"),
    ]


@given(text=TAGGED)
def test_calls_are_shown_where_whole_turns_are_found_to_have_objects(text: str) -> None:
    splitter = TagSplitter()
    shown_calls = [piece.content for piece in splitter.add(text) + splitter.end() if piece.kind == "call"]
    bodies = [call[0][slice(*inside_call(call[0]))] for call in find_calls(text)]
    assert shown_calls == [body for body in bodies if begins_object(body)]


def test_a_body_that_is_no_call_is_shown_without_the_tags_in_it() -> None:
    garbage = '<tool_call>x</answer> < <tool_call>{"name": <tool_response>1</tool_response></reason>'
    assert without_tags(garbage) == 'x < {"name": 1'
    splitter = TagSplitter()
    assert _merge_texts(splitter.add("a<tool_response>b</tool_response>c") + splitter.end()) == [
        Piece("thought", "a"),
        Piece("text", "bc"),
    ]


CODE = 'print("a\\tb 😀 π")\nx = {"y": 1}\n'


@pytest.mark.parametrize("ascii_only", [True, False])
def test_code_is_given_while_a_call_is_written_and_never_half_a_character(ascii_only: bool) -> None:
    body = json.dumps({"name": TOOL_NAME, "arguments": {"code": CODE}}, ensure_ascii=ascii_only)
    splitter = TagSplitter()
    code_pieces: list[str] = []
    for character in f"<tool_call>{body}":
        for piece in splitter.add(character):
            assert piece.kind == "code"
            code_pieces.append(piece.content)
    assert "".join(code_pieces) == CODE
    assert len(code_pieces) > 20
    assert splitter.add("</tool_call>") == [Piece("call", body)]


def test_a_turn_that_does_not_begin_in_a_thought_is_text() -> None:
    splitter = TagSplitter(thinking=False)
    assert splitter.add("<think>hm</think>yes ") == [Piece("thought", "hm"), Piece("text", "yes ")]
    splitter.end()
    assert splitter.add("plain ") == [Piece("text", "plain ")]


@given(
    text=st.text(alphabet=st.sampled_from("aπ√→ 😀\n字é"), max_size=40),
    sizes=st.lists(st.integers(min_value=1, max_value=7), min_size=1),
)
def test_streamed_tokens_show_the_text_and_never_half_a_character(
    codec: ChatCodec, text: str, sizes: list[int]
) -> None:
    ids = codec.tokenizer.encode(text)
    stream = TextStream(codec.decode)
    parts = []
    for size in itertools.cycle(sizes):
        if not ids:
            break
        parts.append(stream.add(ids[:size]))
        ids = ids[size:]
    assert "".join(parts) == text
    assert not any("\ufffd" in part for part in parts)


class Writer:
    """An engine that writes the given turns, one after another."""

    def __init__(self, *turns: list[int]) -> None:
        self.turns = list(turns)
        self.prompts: list[list[int]] = []
        self.seeds: list[int | None] = []

    @property
    def name(self) -> str:
        return "writer"

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        self.prompts.append(list(prompt_ids))
        self.seeds.append(sampling.seed)
        if not self.turns:
            raise EngineError("gone")
        token_ids = self.turns.pop(0)[: sampling.max_tokens]
        return Generation(token_ids, None, "length" if len(token_ids) == sampling.max_tokens else "stop")

    async def aclose(self) -> None:
        pass


class Silent(Writer):
    """An engine that accepts a request and never writes a token."""

    def __init__(self) -> None:
        super().__init__()
        self.asking = asyncio.Event()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        self.asking.set()
        await asyncio.Event().wait()
        raise AssertionError("it waits for ever")


class NoTools(SharedTools):
    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        raise AssertionError("nothing asked for a tool")


def _chat(codec: ChatCodec, writer: Writer, max_tokens: int = 100) -> Conversation:
    return Conversation(writer, codec, NoTools(), Limits(max_tokens=max_tokens), Sampling(seed=3))


def _spelled(codec: ChatCodec, text: str) -> list[int]:
    """Returns token ids of single bytes that decode to `text`. No tokenizer would encode the text like this."""
    return [token for letter in text for token in codec.tokenizer.encode(letter)] + [codec.end_id]


async def test_what_the_model_wrote_is_never_encoded_again(codec: ChatCodec) -> None:
    answer = "the answer is <answer>4</answer>"
    spelled = _spelled(codec, answer)
    assert spelled != codec.tokenizer.encode(answer + END_OF_TURN)
    writer = Writer(spelled, spelled)
    chat = _chat(codec, writer)
    await chat.ask("2 + 2?")
    await chat.ask("Sure?")
    first = codec.prompt(codec.format.messages("2 + 2?"))
    assert writer.prompts == [first, first + spelled + user_turn(codec, "Sure?")]
    assert chat.history == writer.prompts[1] + spelled


async def test_an_answer_cut_by_its_budget_is_closed_before_the_next_question(codec: ChatCodec) -> None:
    writer = Writer(_spelled(codec, "a long answer"), _spelled(codec, "short"))
    chat = _chat(codec, writer, max_tokens=4)
    trace = await chat.ask("x")
    assert trace.finish == "max_tokens"
    assert chat.history == trace.prompt_ids + trace.response_ids + [codec.end_id]


async def test_a_failed_answer_leaves_the_conversation_as_it_was(codec: ChatCodec) -> None:
    chat = _chat(codec, Writer(_spelled(codec, "yes")))
    await chat.ask("x")
    before = list(chat.history)
    with pytest.raises(EngineError):
        await chat.ask("y")
    assert chat.history == before


async def test_a_question_that_the_context_has_no_room_for_is_refused_and_forgotten(codec: ChatCodec) -> None:
    chat = _chat(codec, Writer(_spelled(codec, "yes"), []))
    await chat.ask("x")
    before = list(chat.history)
    # The result of an engine whose context is filled by the prompt alone.
    chat.limits = Limits(max_tokens=0)
    with pytest.raises(ContextFull, match=r"has \d+ tokens: the model's context is full"):
        await chat.ask("y")
    assert chat.history == before


async def test_a_reset_begins_anew_and_each_answer_draws_anew(codec: ChatCodec) -> None:
    writer = Writer(*[_spelled(codec, "yes")] * 3)
    chat = _chat(codec, writer)
    await chat.ask("x")
    await chat.ask("x")
    await chat.reset()
    await chat.ask("x")
    assert writer.prompts[2] == writer.prompts[0]
    assert len(set(writer.seeds)) == 3


async def test_a_model_of_one_question_gets_each_as_the_first(codec: ChatCodec) -> None:
    single = codec_for(codec.tokenizer, codec.format.model_copy(update={"one_question": True}))
    writer = Writer(*[_spelled(codec, "yes")] * 2)
    chat = _chat(single, writer)
    await chat.ask("x")
    await chat.ask("y")
    assert writer.prompts == [single.prompt(single.format.messages(text)) for text in ("x", "y")]
    assert len(set(writer.seeds)) == 2


async def test_an_answer_that_is_stopped_is_kept_as_far_as_it_came(codec: ChatCodec) -> None:
    words = codec.tokenizer.encode("one two three four five six seven")
    writer = Endless(words, list(range(300, 400)))
    chat = _chat(codec, writer)
    streamed_ids: list[int] = []

    def stop_after_words(token_ids: list[int]) -> None:
        streamed_ids.extend(token_ids)
        if len(streamed_ids) == len(words):
            answer_task.cancel()

    answer_task = asyncio.ensure_future(chat.ask("x", stop_after_words))
    trace = await answer_task
    assert trace.finish == "stopped"
    assert trace.response_ids[: len(words)] == words
    assert trace.turns[-1].text.startswith("one two three four five six seven")
    assert chat.history == [*trace.prompt_ids, *trace.response_ids, codec.end_id]
    assert not chat.timed_out


async def test_an_answer_that_is_out_of_time_is_kept_too(codec: ChatCodec) -> None:
    chat = _chat(codec, Endless([], list(range(300, 400))))
    chat.seconds = 0.2
    trace = await chat.ask("x")
    assert trace.finish == "stopped"
    assert chat.timed_out
    assert chat.answers == [trace]


async def test_a_question_that_is_taken_back_and_asked_again_is_the_next_sample(codec: ChatCodec) -> None:
    writer = Writer(*[_spelled(codec, text) for text in ("a", "b", "c")])
    chat = _chat(codec, writer)
    first = await chat.ask("x")
    second = await chat.ask("y")
    assert chat.take_back() is second
    assert chat.history == first.prompt_ids + first.response_ids
    repeated = await chat.ask("y", instead_of=second)
    assert writer.prompts[2] == writer.prompts[1]
    assert [(trace.problem_id, trace.sample) for trace in (first, second, repeated)] == [
        ("1", 0),
        ("2", 0),
        ("2", 1),
    ]


@pytest.mark.parametrize("how", ["fails", "is stopped before its first token"])
async def test_an_answer_comes_back_if_the_one_in_its_place(codec: ChatCodec, how: str) -> None:
    chat = _chat(codec, Writer(_spelled(codec, "a")))
    first = await chat.ask("x")
    before = chat.history
    assert chat.take_back() is first
    if how == "fails":
        with pytest.raises(EngineError):
            await chat.ask("x", instead_of=first)
    else:
        chat.engine = silent = Silent()
        asking = asyncio.ensure_future(chat.ask("x", instead_of=first))
        await silent.asking.wait()
        asking.cancel()
        assert (await asking).response_ids == []
    assert chat.answers == [first]
    assert chat.history == before


async def test_a_kept_conversation_continues_from_its_last_answer(codec: ChatCodec) -> None:
    writer = Writer(*[_spelled(codec, text) for text in "abcdef"])
    chat = _chat(codec, writer)
    first = await chat.ask("x")
    wrong = await chat.ask("y")
    chat.take_back()
    right = await chat.ask("y", instead_of=wrong)
    resumed_chat = _chat(codec, writer)
    await resumed_chat.resume([first, wrong, right])
    assert resumed_chat.answers == [first, right]
    assert (await resumed_chat.ask("z")).problem_id == "3"
    assert writer.prompts[-1] == chat.history + user_turn(codec, "z")
    await resumed_chat.resume([first, right, (await _chat(codec, writer).ask("new"))])
    assert [trace.problem for trace in resumed_chat.answers] == ["new"]


async def test_a_system_text_opens_a_conversation(codec: ChatCodec) -> None:
    writer = Writer(_spelled(codec, "yes"))
    chat = _chat(codec, writer)
    chat.system = "Be brief."
    await chat.ask("x")
    user = codec.format.messages("x")
    assert writer.prompts == [codec.prompt([{"role": "system", "content": "Be brief."}, *user])]


@pytest.mark.parametrize("has_system_field", [True, False], ids=["named", "by an earlier version"])
async def test_a_kept_chat_keeps_its_system_text_when_it_is_rendered_anew(
    codec: ChatCodec, monkeypatch: pytest.MonkeyPatch, has_system_field: bool
) -> None:
    monkeypatch.setattr(codec, "bridge", lambda *args: None)
    writer = Writer(*[_spelled(codec, text) for text in "abc"])
    chat = _chat(codec, writer)
    chat.system = "Be brief."
    traces = [await chat.ask("x"), await chat.ask("y")]
    if not has_system_field:
        traces = [trace.model_copy(update={"system": None}) for trace in traces]
    resumed_chat = _chat(codec, writer)
    resumed_chat.system = None if has_system_field else "Be brief."
    assert await resumed_chat.resume(traces) == (
        "this chat has the system text: Be brief." if has_system_field else ""
    )
    assert (resumed_chat.answers, resumed_chat.system) == (traces, "Be brief.")
    assert (await resumed_chat.ask("z")).system == "Be brief."
    assert "Be brief." in codec.decode(writer.prompts[-1])


async def test_a_kept_chat_without_a_system_text_gets_none_later(codec: ChatCodec) -> None:
    writer = Writer(*[_spelled(codec, text) for text in "ab"])
    first = await _chat(codec, writer).ask("x")
    resumed_chat = _chat(codec, writer)
    resumed_chat.system = "Be brief."
    assert await resumed_chat.resume([first]) == "this chat has no system text"
    assert (await resumed_chat.ask("y")).system is None


class LoggingTools(SharedTools):
    """Tools that log when they are opened, run and closed."""

    def __init__(self, status: CallStatus = "ok") -> None:
        self.status = status
        self.log: list[str] = []

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Self]:
        self.log.append("opened")
        yield self
        self.log.append("closed")

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        self.log.append("ran")
        return ToolCall(name=name, arguments=arguments, status=self.status, output="")


@pytest.mark.parametrize("status", ["ok", "lost"])
async def test_tools_last_over_a_conversation_unless_a_call_is_lost(
    codec: ChatCodec, status: CallStatus
) -> None:
    call = {"name": TOOL_NAME, "arguments": {"code": "1"}}
    turns = [_spelled(codec, f"<tool_call>{json.dumps(call)}</tool_call>"), _spelled(codec, "yes")]
    tools = LoggingTools(status)
    chat = _chat(codec, Writer(*turns, *turns))
    chat.tools, chat.limits = tools, Limits(max_tokens=1000)
    await chat.ask("x")
    await chat.ask("y")
    await chat.reset()
    one_use = ["opened", "ran", "closed"]
    assert tools.log == (["opened", "ran", "ran", "closed"] if status == "ok" else one_use + one_use)


class Endless(Writer):
    """An engine that writes tokens until it is stopped."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        assert on_tokens is not None
        self.on_tokens = on_tokens
        for token in itertools.chain(self.turns[0], itertools.cycle(self.turns[1])):
            on_tokens([token])
            await asyncio.sleep(0)
        raise AssertionError("endless")


class CountedThenEndless(Endless):
    """An engine whose first turn calls a tool and has 3 tokens by the server's count. The second turn is endless."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        if len(self.turns) == 2:
            return await super().generate(prompt_ids, sampling, on_tokens)
        call = self.turns.pop(0)
        assert on_tokens is not None
        on_tokens(call)
        return Generation(call, None, "stop", TokenCount(3, None, prompt=5))


async def test_the_counts_of_a_stopped_answer_are_never_negative(codec: ChatCodec) -> None:
    call = {"name": TOOL_NAME, "arguments": {"code": "1"}}
    calling = _spelled(codec, f"<tool_call>{json.dumps(call)}</tool_call>")
    words = codec.tokenizer.encode("one two three four five six seven")
    chat = _chat(codec, CountedThenEndless(calling, words, list(range(300, 400))), max_tokens=1000)
    chat.tools, chat.seconds = LoggingTools(), 0.5
    trace = await chat.ask("x")
    assert trace.finish == "stopped"
    usage, second = Usage.of(trace), trace.turns[1]
    assert usage.prompt_tokens == 5
    assert usage.tokens == 3 + second.end - second.start
    assert usage.tool_tokens == second.start - trace.turns[0].end > 0


@pytest.mark.parametrize("pattern", [[7], [7, 8, 9], list(range(LONGEST_PATTERN))], ids=len)
async def test_an_answer_that_repeats_itself_is_stopped_and_forgotten(
    codec: ChatCodec, pattern: list[int]
) -> None:
    chat = _chat(codec, Endless([1, 2, 3], pattern))
    streamed_ids: list[int] = []
    with pytest.raises(
        AnswerRepeats, match=r"the answer repeated itself .*\nAsk again, or write the problem"
    ):
        await asyncio.wait_for(chat.ask("x", streamed_ids.extend), TIMEOUT_S)
    assert streamed_ids[:3] == [1, 2, 3]
    assert len(streamed_ids) <= 3 + REPEATED_DIGITS.tokens_of(len(pattern))
    assert chat.history == []


async def test_tokens_that_come_after_an_answer_was_stopped_are_not_shown(codec: ChatCodec) -> None:
    """An engine's thread notices the stop only at its next step."""
    writer = Endless([], [1])
    streamed_ids: list[int] = []
    with pytest.raises(AnswerRepeats):
        await asyncio.wait_for(_chat(codec, writer).ask("x", streamed_ids.extend), TIMEOUT_S)
    before = list(streamed_ids)
    writer.on_tokens([2])
    assert streamed_ids == before


def test_one_word_nearly_always_repeats_and_one_digit_does_not(codec: ChatCodec) -> None:
    word, other_word, digit_0, digit_1 = (codec.tokenizer.encode(character)[0] for character in "ab01")
    assert repeats([word] * 30 + [digit_0] + [word] * 20 + [digit_1, other_word] + [word] * 30, codec)
    assert not repeats([word, word, other_word] * 40 + [digit_0] + [word, word, other_word] * 2, codec)
    assert not repeats([digit_0] * 30 + [digit_1] + [digit_0] * 20 + [word, digit_1] + [digit_0] * 30, codec)


def test_what_is_written_often_enough_repeats_and_digits_may_do_so_longer(codec: ChatCodec) -> None:
    word, digit, *sentence = codec.tokenizer.encode("a" + "0" + "the answer is what the answer is")
    assert len(sentence) > 8
    limit: RepetitionLimit
    for pattern, limit in (([word], REPEATED), ([digit], REPEATED_DIGITS), (sentence, REPEATED)):
        size = limit.tokens_of(len(pattern))
        repeated = (pattern * size)[-size:]
        assert repeats([1, 2, *repeated], codec)
        assert not repeats([1, 2, *repeated[1:]], codec)
    assert not repeats(list(range(LONGEST_PATTERN + 1)) * 2 * REPEATED_DIGITS.times, codec)

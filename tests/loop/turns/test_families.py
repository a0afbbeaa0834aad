"""Tests of model families. Each renders and reads turns in its own syntax, and all verbs get the same token ids."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

pytest.importorskip("renderers")

from support.family_tokenizers import TOKENS, family_tokenizer

from rstar2.analysis.kinds import KINDS, PROSE
from rstar2.analysis.tokens import TokenReader
from rstar2.chat.conversation import Conversation
from rstar2.chat.repl import Repl
from rstar2.chat.screen import Screen
from rstar2.engines.pool import RetryingEngine
from rstar2.errors import UserError
from rstar2.eval.final_answer import benchmark_part, part_to_grade
from rstar2.eval.grader import grade
from rstar2.eval.grader.reading_rules import ReadingRule
from rstar2.eval.methods.chat import EngineChat
from rstar2.install import install_command
from rstar2.loop.agent import Limits, answer_messages, rollout
from rstar2.loop.engine import Generation, OnTokens, Sampling
from rstar2.loop.formats.families import FAMILIES
from rstar2.loop.formats.format import read_format
from rstar2.loop.tools.python_code_with_standard_io import NAME
from rstar2.loop.trace import ToolCall, Trace, Turn
from rstar2.loop.turns import families
from rstar2.loop.turns.choose import codec_for
from rstar2.loop.turns.codec import ChatCodec
from rstar2.report.segments import turn_parts
from rstar2.retry import RetryPolicy
from rstar2.train.group import Rollout

CODE = "print(\"6\" * 7, 'π')\nx = {'a': [1]}  # <b>"
ANSWER = "It is \\boxed{42}."


@dataclass(frozen=True)
class Syntax:
    """The text that a model of a family writes after its generation prompt."""

    think: str
    """A thought with the text that ends it. `{}` is the thought. Empty if the family has no thoughts."""
    call: str
    """One call with the code `{}`."""
    cut: str
    """A call that was cut off."""
    broken: str
    """A call that cannot be read. Empty if the family reads such text as an answer."""
    around: str = "{}"
    """The text around all calls of a turn."""


def _json(code: str) -> str:
    return json.dumps({"name": NAME, "arguments": {"code": code}}, ensure_ascii=False)


_XML = f"<tool_call>\n<function={NAME}>\n<parameter=code>\n{{}}\n</parameter>\n</function>\n</tool_call>"
_GLM = f"<tool_call>{NAME}\n<arg_key>code</arg_key>\n<arg_value>{{}}</arg_value>\n</tool_call>"
_GLM5 = f"<tool_call>{NAME}<arg_key>code</arg_key><arg_value>{{}}</arg_value></tool_call>"
SYNTAX = {
    "qwen3": Syntax("<think>\n{}\n</think>\n\n", "<tool_call>\n{}\n</tool_call>", '<tool_call>\n{"name": "',
                    "<tool_call>\n{oops\n</tool_call>"),
    "qwen3.5": Syntax("{}\n</think>\n\n", _XML, f"<tool_call>\n<function={NAME}>\n<parameter=code>\n1",
                      "<tool_call>\noops\n</tool_call>"),
    "nemotron-3": Syntax("{}\n</think>\n", _XML, f"<tool_call>\n<function={NAME}>\n<parameter=code>\n1",
                         "<tool_call>\noops\n</tool_call>", "{}\n"),
    "glm-4.5": Syntax("\n<think>{}</think>\n", _GLM, f"<tool_call>{NAME}\n<arg_key>code</arg_key>",
                      "<tool_call>\n</tool_call>"),
    "glm-5": Syntax("{}</think>", _GLM5, f"<tool_call>{NAME}<arg_key>code</arg_key>", "<tool_call></tool_call>"),
    "minimax-m2": Syntax(
        "{}\n</think>\n\n", f'<invoke name="{NAME}">\n<parameter name="code">{{}}</parameter>\n</invoke>',
        f'<minimax:tool_call>\n<invoke name="{NAME}">\n<parameter name="code">1',
        "<minimax:tool_call>\n</minimax:tool_call>", "\n<minimax:tool_call>\n{}\n</minimax:tool_call>",
    ),
    "llama-3": Syntax("", "{}", f'{{"name": "{NAME}", "parameters": {{"code"', ""),
}  # fmt: skip


def _calls(family: str, *codes: str) -> str:
    """Returns the calls of a turn in a family's own syntax."""
    syntax = SYNTAX[family]
    if family == "llama-3":
        return json.dumps({"name": NAME, "parameters": {"code": codes[0]}}, ensure_ascii=False)
    call_texts = [syntax.call.replace("{}", _json(code) if family == "qwen3" else code) for code in codes]
    return syntax.around.replace("{}", "\n".join(call_texts))


def _turn(family: str, thought: str, rest: str) -> str:
    return SYNTAX[family].think.replace("{}", thought) + rest


@pytest.fixture(scope="module", params=TOKENS)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def codec(family: str) -> ChatCodec:
    return codec_for(family_tokenizer(family), read_format(family, ""), family)


def _encode(codec: ChatCodec, text: str, end: int | None = None) -> list[int]:
    return [*codec.tokenizer.encode(text, add_special_tokens=False), *([] if end is None else [end])]


def _parse(codec: ChatCodec, text: str) -> Any:
    return codec.parse(_encode(codec, text, codec.end_id), codec.prompt(codec.format.messages("?")))


def test_parallel_calls_come_back_in_their_order(family: str, codec: ChatCodec) -> None:
    codes = [CODE] if FAMILIES[family].one_call else [CODE, "print(2)"]
    turn = _parse(codec, _turn(family, "I ask.", _calls(family, *codes)))
    assert [(call.name, call.arguments) for call in turn.calls] == [(NAME, {"code": code}) for code in codes]
    assert turn.thought.strip() == ("I ask." if SYNTAX[family].think else "")
    assert turn.visible_text.strip() == ""
    assert [part.kind for part in turn.parts] == ["thought"] * bool(SYNTAX[family].think) + ["call"] * len(
        codes
    )
    for part, code in zip((part for part in turn.parts if part.kind == "call"), codes, strict=True):
        part_text = turn.text[part.start : part.end]
        assert (
            code if family not in ("qwen3", "llama-3") else json.dumps(code, ensure_ascii=False)
        ) in part_text


def test_broken_and_cut_calls_are_refused_and_never_run(family: str, codec: ChatCodec) -> None:
    syntax = SYNTAX[family]
    for broken_call in filter(None, (syntax.broken, syntax.cut)):
        turn = _parse(codec, _turn(family, "I ask.", broken_call))
        if family == "llama-3":
            assert (turn.calls, turn.visible_text.strip()) == ((), broken_call), (
                "the family reads text that is no call as an answer"
            )
            continue
        assert not [call for call in turn.calls if not call.fault and call.name == NAME and call.arguments]


def test_a_call_inside_a_thought_is_not_run(family: str, codec: ChatCodec) -> None:
    if not SYNTAX[family].think:
        pytest.skip("the family has no thoughts")
    parsed_turn = _parse(codec, _turn(family, f"I could write {_calls(family, 'print(1)')} here.", ANSWER))
    if family.startswith("glm"):
        assert parsed_turn.thought.strip() == "I could write"
        assert [call.arguments for call in parsed_turn.calls] == [{"code": "print(1)"}], (
            "a call ends the thought, as in vLLM"
        )
        return
    assert parsed_turn.calls == ()
    assert parsed_turn.visible_text.strip() == ANSWER
    assert "print(1)" in parsed_turn.thought


class Scripted:
    """Writes turns one after the other."""

    name = "scripted"

    def __init__(self, turns: Sequence[list[int]]) -> None:
        self._turns = list(turns)
        self.asked: list[list[int]] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        self.asked.append(list(prompt_ids))
        ids = self._turns.pop(0)
        if on_tokens is not None:
            for token in ids:
                on_tokens([token])
        return Generation(ids, [0.0] * len(ids), "stop")

    async def aclose(self) -> None:
        return


class Echo:
    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        return ToolCall(name=name, arguments=arguments, status="ok", output="42 <|im_end|> π")


class Tools:
    def opened(self) -> Any:
        @contextlib.asynccontextmanager
        async def opened() -> Any:
            yield Echo()

        return opened()


def _calling_end(codec: ChatCodec) -> int:
    """Returns the token with which a model ends a turn with calls."""
    observation = codec.tokenizer.convert_tokens_to_ids("<|observation|>")
    return observation if observation in codec.stop_ids else codec.end_id


def test_rollouts_and_sft_have_the_same_ids(family: str, codec: ChatCodec) -> None:
    first = _encode(codec, _turn(family, "I ask.", _calls(family, CODE)), _calling_end(codec))
    last = _encode(codec, _turn(family, "I see.", ANSWER), codec.end_id)
    messages: list[dict[str, Any]] = [*codec.format.messages("What is 6 times 7?")]
    engine = Scripted([first, last])
    trace = asyncio.run(
        rollout(
            codec.prompt(messages),
            engine=engine,
            tools=Echo(),
            codec=codec,
            limits=Limits(4, 4096),
            sampling=Sampling(),
        )
    )
    assert (trace.finish, len(trace.calls), trace.failed_calls) == ("answer", 1, 0)
    sample = codec.training_sample([*messages, *answer_messages(trace)], None)
    assert sample.input_ids.tolist() == [*trace.prompt_ids, *trace.response_ids]
    assert sample.loss_mask.tolist() == [0] * len(trace.prompt_ids) + trace.response_mask
    assert engine.asked[1] == [*trace.prompt_ids, *first, *codec.bridge(trace.prompt_ids, first, [
        {"role": "tool", "name": NAME, "content": trace.calls[0].output}])]  # fmt: skip


@pytest.mark.parametrize("fault", ["none", "raises"])
def test_a_family_that_cannot_lead_on_ends_the_rollout_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    codec = codec_for(family_tokenizer("qwen3"), read_format("qwen3", ""), "qwen3")

    def bridge(*args: Any, **options: Any) -> None:
        if fault == "raises":
            raise KeyError("no such role")

    monkeypatch.setattr(codec._renderer, "bridge_to_next_turn", bridge)  # type: ignore[attr-defined]
    asks = _encode(codec, _turn("qwen3", "I ask.", _calls("qwen3", CODE)), codec.end_id)
    prompt, engine = codec.prompt(codec.format.messages("?")), Scripted([asks])
    trace = asyncio.run(
        rollout(prompt, engine=engine, tools=Echo(), codec=codec, limits=Limits(4, 4096), sampling=Sampling())
    )
    assert (trace.finish, len(trace.calls), trace.response_ids) == ("format", 1, asks)
    assert ("no such role" if fault == "raises" else "cannot continue") in trace.cause
    err = io.StringIO()
    Screen(codec, Console(file=io.StringIO()), Console(file=err)).end(trace)
    assert err.getvalue() == f"the answer was cut off: {trace.cause}\n"
    trace = trace.model_copy(update={"reward": 0.0})
    assert (Rollout.from_trace(trace).format_end, Rollout.from_trace(trace).truncated) == (True, False)
    with pytest.raises(UserError, match="cannot continue"):
        codec.tool_turn(["4"])


def _final(codec: ChatCodec, text: str) -> Trace:
    """Returns a rollout of one turn, as it is read back from a file."""
    prompt = codec.prompt(codec.format.messages("?"))
    trace = asyncio.run(
        rollout(
            prompt,
            engine=Scripted([_encode(codec, text, codec.end_id)]),
            tools=Echo(),
            codec=codec,
            limits=Limits(1, 4096),
            sampling=Sampling(),
        )
    )
    return Trace.model_validate_json(trace.model_copy(update={"gold": "42"}).model_dump_json())


def _harmony(*blocks: tuple[str, str]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>{channel}<|message|>{text}<|end|>" for channel, text in blocks
    )


@pytest.mark.parametrize(
    ("content", "thought"),
    [("Plan.So it is \\boxed{42}", "I see. I check."), ("Plan.\n\nSo it is \\boxed{42}", "I see.\nI check.")],
    ids=["joined as it is", "joined by white space"],
)
def test_what_a_turn_says_in_two_places_is_read_from_both(content: str, thought: str) -> None:
    """The library returns two channels of gpt-oss in this form."""
    codec = codec_for(family_tokenizer("qwen3"), read_format("qwen3", ""), "qwen3")
    text = _harmony(
        ("analysis", "I see."),
        ("analysis", " I check."),
        ("commentary", "Plan."),
        ("final", "So it is \\boxed{42}"),
    )
    message = SimpleNamespace(content=content, reasoning_content=thought, tool_calls=[])
    turn = codec._parsed(_encode(codec, text), message)  # type: ignore[attr-defined]
    assert [(part.kind, turn.text[part.start : part.end].strip()) for part in turn.parts] == [
        ("thought", "I see."), ("thought", "I check."), ("text", "Plan."), ("text", "So it is \\boxed{42}")
    ]  # fmt: skip
    own_text = Turn.read(replace(turn, tagged=False), 0, 1).own_text
    assert own_text == "Plan.So it is \\boxed{42}"


def test_what_a_turn_says_between_calls_is_not_looked_for_in_them() -> None:
    codec = codec_for(family_tokenizer("qwen3"), read_format("qwen3", ""), "qwen3")
    call = _calls("qwen3", "So it is")
    text = f"Plan.{call}So it is \\boxed{{42}}{call}So."
    message = SimpleNamespace(
        content="Plan.So it is \\boxed{42}So.",
        reasoning_content=None,
        tool_calls=[SimpleNamespace(token_span=None, raw=call, status="ok", name=NAME, arguments={})] * 2,
    )
    turn = codec._parsed(_encode(codec, text), message)  # type: ignore[attr-defined]
    assert [turn.text[part.start : part.end] for part in turn.parts] == [
        "Plan.", "So it is \\boxed{42}", "So.", call, call
    ]  # fmt: skip


def test_what_a_turn_says_is_graded_though_its_text_does_not_have_it() -> None:
    codec = codec_for(family_tokenizer("qwen3"), read_format("qwen3", ""), "qwen3")
    message = SimpleNamespace(content="Σ \\boxed{42}", reasoning_content="Ω", tool_calls=[])
    turn = codec._parsed(_encode(codec, "it is \\boxed{4 2}"), message)  # type: ignore[attr-defined]
    turn_again = Turn.model_validate_json(Turn.read(replace(turn, tagged=False), 0, 1).model_dump_json())
    assert (turn.visible_text, turn_again.own_text) == ("Σ \\boxed{42}", "Σ \\boxed{42}")
    assert (turn.thought, turn_again.text_of("thought")) == ("Ω", "Ω")


def test_a_format_that_cannot_lead_on_leaves_a_chat_that_can_be_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codec = codec_for(family_tokenizer("qwen3"), read_format("qwen3", ""), "qwen3")
    asks = _encode(codec, _turn("qwen3", "I ask.", _calls("qwen3", CODE)), codec.end_id)
    last = _encode(codec, _turn("qwen3", "I see.", ANSWER), codec.end_id)

    def bridge(*args: Any, **options: Any) -> None:
        raise KeyError("no such role")

    def chat(*turns: list[int]) -> Conversation:
        return Conversation(Scripted(turns), codec, Tools(), Limits(4, 4096), Sampling())

    monkeypatch.setattr(codec._renderer, "bridge_to_next_turn", bridge)  # type: ignore[attr-defined]

    async def run() -> None:
        before = chat(asks, last)
        conversation_after = await before.ask("What is 6 times 7?")
        assert conversation_after.finish == "format"
        await before.reset()
        edited = await before.ask("And 42?")
        conversation_again = chat()
        await conversation_again.resume([conversation_after, edited])
        assert conversation_again.answers == [edited]

    asyncio.run(run())


def test_after_a_format_that_cannot_lead_on_a_person_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    codec = codec_for(family_tokenizer("qwen3"), read_format("qwen3", ""), "qwen3")
    asks = _encode(codec, _turn("qwen3", "I ask.", _calls("qwen3", CODE)), codec.end_id)
    renderer = codec._renderer  # type: ignore[attr-defined]
    monkeypatch.setattr(renderer, "bridge_to_next_turn", lambda *args, **options: None)
    consoles = (Console(), Console(stderr=True))
    with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
        chat = Conversation(Scripted([asks]), codec, Tools(), Limits(4, 4096), Sampling())
        Repl(runner, stack, chat, consoles, ("a model", "isolation"))._obey("What is 6 times 7?")
    assert "ask this question again with /retry" in capsys.readouterr().err


def test_prompts_of_gpt_oss_are_the_same_on_each_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests cannot download the vocabulary, so the family's renderer is not created."""
    from renderers import base

    calls_made: list[Any] = []
    tokenizer = family_tokenizer("qwen3")
    monkeypatch.setattr(base, "create_renderer", lambda tokenizer, config: calls_made.append(config))
    families._renderer(tokenizer, "gpt-oss", {})
    families._renderer(tokenizer, "gpt-oss", {"conversation_start_date": "2025-01-02"})
    assert [config.conversation_start_date for config in calls_made] == ["2024-07-26", "2025-01-02"]


@pytest.mark.parametrize("date", ["strftime_now('%Y-%m-%d')", "date_string"])
def test_a_template_that_writes_a_date_writes_that_of_the_family(date: str) -> None:
    tokenizer = family_tokenizer("qwen3")
    date_text = "2024-07-26" if date.startswith("strftime") else "26 Jul 2024"
    ids = tokenizer.encode(f"Today: {date_text}", add_special_tokens=False)
    renderer = SimpleNamespace(render=lambda *messages, **options: SimpleNamespace(token_ids=ids))
    assert families._writes_as(renderer, tokenizer, f"Today: {{{{ {date} }}}}")


RULES: tuple[ReadingRule, ...] = ("paper", "boxed", "release", "lenient")
CALLS_END_THOUGHTS = ("glm-4.5", "glm-5")
"""Families whose parsers recognize a call inside a thought."""


def test_a_call_in_a_thought_that_is_not_run_costs_no_reward(family: str, codec: ChatCodec) -> None:
    if not SYNTAX[family].think or family in CALLS_END_THOUGHTS:
        pytest.skip("its calls are read everywhere")
    thought = f"I could write {_calls(family, CODE)} and <answer>\\boxed{{7}}</answer> here."
    trace = _final(codec, _turn(family, thought, f"<answer>{ANSWER}</answer>"))
    assert (trace.finish, trace.calls, trace.turns[-1].calls_not_run) == ("answer", [], 0)
    assert [rule for rule in RULES if grade("42", part_to_grade(trace, rule)).correct] == list(RULES)
    assert benchmark_part(trace)[1] == "paper"
    scored = Rollout.from_trace(trace.model_copy(update={"reward": 1.0}))
    assert (trace.answer_blocks, scored.closed_blocks, scored.void_turns) == (1, 1, 0)


def test_an_answer_in_a_thought_alone_is_graded_but_is_no_answer_block(family: str, codec: ChatCodec) -> None:
    if not SYNTAX[family].think:
        pytest.skip("it has no thoughts")
    trace = _final(codec, _turn(family, f"<answer>{ANSWER}</answer>", ""))
    assert grade("42", part_to_grade(trace, "boxed")).correct
    scored = Rollout.from_trace(trace.model_copy(update={"reward": 1.0}))
    assert (trace.answer_blocks, scored.closed_blocks, scored.void_turns) == (0, 0, 0)


def test_a_box_in_a_thought_that_the_budget_cut_off_counts_in_evaluations_but_not_under_the_papers_rule(
    family: str, codec: ChatCodec
) -> None:
    before, _, end = SYNTAX[family].think.partition("{}")
    if not end:
        pytest.skip("it has no thoughts")
    cut_turn = _final(codec, f"{before}It is {ANSWER}, and then")
    trace = cut_turn.model_copy(update={"finish": "max_tokens"})
    assert [part.kind for part in trace.turns[-1].read_parts()] == ["thought"]
    part, rule = benchmark_part(trace)
    assert (grade("42", part).correct, rule) == (True, "boxed")
    assert [rule for rule in RULES if grade("42", part_to_grade(trace, rule)).correct] == [
        "release",
        "lenient",
    ]


def test_a_turn_that_waits_for_a_tool_is_not_finished(family: str, codec: ChatCodec) -> None:
    trace = _final(codec, _turn(family, f"It is {ANSWER}", _calls(family, CODE)))
    assert (trace.finish, part_to_grade(trace, "paper"), part_to_grade(trace, "boxed")) == (
        "max_turns",
        "",
        "",
    )


def test_our_tags_in_the_text_of_a_family_are_text() -> None:
    codec = codec_for(family_tokenizer("llama-3"), read_format("llama-3", ""), "llama-3")
    text = 'I write no <tool_call>{"name": 1}, since '
    trace = _final(codec, text + ANSWER)
    assert (trace.finish, trace.calls) == ("answer", [])
    assert grade("42", part_to_grade(trace, "boxed")).correct


def test_a_report_and_an_analysis_read_the_parts_that_the_family_read(family: str, codec: ChatCodec) -> None:
    first = _encode(codec, _turn(family, "I ask.", _calls(family, CODE)), _calling_end(codec))
    engine = Scripted([first, _encode(codec, _turn(family, "I see.", ANSWER), codec.end_id)])
    prompt = codec.prompt(codec.format.messages("?"))
    trace = asyncio.run(
        rollout(prompt, engine=engine, tools=Echo(), codec=codec, limits=Limits(4, 4096), sampling=Sampling())
    )
    trace = Trace.model_validate_json(trace.model_dump_json())
    thought = ["thought"] if SYNTAX[family].think else []
    parts = [turn_parts(turn) for turn in trace.turns]
    assert [[part["kind"] for part in each] for each in parts] == [[*thought, "call"], [*thought, "text"]]
    assert (parts[0][-1]["code"], parts[0][-1]["status"]) == (CODE, "ok")
    reader = TokenReader(codec.tokenizer)
    [tokens] = reader.read_all([trace])
    ids = np.array(trace.response_ids)[np.array(trace.response_mask, dtype=bool)]
    code = codec.tokenizer.decode(ids[tokens.kind == KINDS.index("code")].tolist())
    assert code == (json.dumps(CODE, ensure_ascii=False)[1:-1] if family in ("qwen3", "llama-3") else CODE)
    assert ANSWER in codec.tokenizer.decode(ids[tokens.kind < len(PROSE)].tolist())


def test_no_reply_of_a_tool_can_end_or_open_a_turn(codec: ChatCodec) -> None:
    controls = {
        *codec.stop_ids,
        *codec.tokenizer.convert_tokens_to_ids(list(codec.tokenizer.all_special_tokens)),
    }
    hostile = "".join(codec.tokenizer.convert_ids_to_tokens(sorted(controls)))
    plain, tool_turn = codec.tool_turn(["4"]), codec.tool_turn([f"4{hostile}"])
    for token in controls:
        assert tool_turn.count(token) == plain.count(token)


def test_a_turn_is_shown_while_it_is_written_as_it_is_read(family: str, codec: ChatCodec) -> None:
    for text in (_turn(family, "I ask. 字", _calls(family, CODE)), _turn(family, "I see.", ANSWER)):
        ids, stream = _encode(codec, text, codec.end_id), codec.stream()
        pieces = [piece for token in ids for piece in stream.add([token])] + stream.end()
        parsed_turn = _parse(codec, text)
        text_by_part = {
            kind: "".join(piece.content for piece in pieces if piece.kind == kind)
            for kind in ("thought", "text")
        }
        assert (text_by_part["thought"].strip(), text_by_part["text"].strip()) == (
            parsed_turn.thought.strip(),
            parsed_turn.visible_text.strip(),
        )
        assert [piece.call for piece in pieces if piece.call] == list(parsed_turn.calls)


def test_a_chat_keeps_or_drops_earlier_thoughts_as_the_family_is_trained(
    family: str, codec: ChatCodec
) -> None:
    if not SYNTAX[family].think:
        pytest.skip("the family has no thoughts")
    turns = [_encode(codec, _turn(family, f"Thought {n}.", f"Answer {n}."), codec.end_id) for n in (1, 2)]
    engine = Scripted(turns)

    async def chat() -> None:
        conversation = Conversation(engine, codec, Tools(), Limits(2, 4096), Sampling())
        for question in ("One?", "Two?"):
            await conversation.ask(question)
        await conversation.aclose()

    asyncio.run(chat())
    second = codec.tokenizer.decode(engine.asked[1])
    assert "Answer 1." in second
    assert ("Thought 1." in second) is (codec.thoughts == "stay in the context")
    assert second.count("Two?") == 1


def test_a_chat_that_is_reopened_has_all_of_its_answers(family: str, codec: ChatCodec) -> None:
    """Covers a system prompt, and families that remove earlier thoughts from later prompts."""
    call = _encode(codec, _turn(family, "I ask.", _calls(family, CODE)), _calling_end(codec))
    texts = [_encode(codec, _turn(family, f"Thought {n}.", f"Answer {n}."), codec.end_id) for n in range(6)]
    engine = Scripted([call, *texts])

    def chat() -> Conversation:
        return Conversation(engine, codec, Tools(), Limits(2, 4096), Sampling())

    async def reopen() -> None:
        first = chat()
        first.system = "Be brief."
        one, two, withdrawn = [await first.ask(question) for question in ("One?", "Two?", "Wrong?")]
        first.take_back()
        three = await first.ask("Three?")
        first.take_back()
        again = await first.ask("Three?", instead_of=three)
        stored_turns = [
            Trace.model_validate_json(each.model_dump_json()) for each in (one, two, withdrawn, three, again)
        ]
        second = chat()
        await second.resume(stored_turns)
        assert second.answers == [one, two, again]
        assert second._begin("Four?", None).prompt_ids == first._begin("Four?", None).prompt_ids
        assert "Be brief." in codec.tokenizer.decode(second._begin("Four?", None).prompt_ids)
        await second.resume([*stored_turns, await chat().ask("Another?")])
        assert [trace.problem for trace in second.answers] == ["Another?"]

    asyncio.run(reopen())


COUNT_TOOL = {
    "type": "function",
    "function": {
        "name": "count",
        "description": "Count.",
        "parameters": {
            "type": "object",
            "properties": {
                "to": {"type": "integer", "description": "n"},
                "label": {"type": "string", "description": "l"},
            },
            "required": ["to"],
        },
    },
}


def test_a_benchmark_gets_calls_of_its_own_tools_with_the_types_that_it_declared(
    family: str, codec: ChatCodec
) -> None:
    calling: Any = {
        "role": "assistant",
        "content": "",
        "reasoning_content": "I count.",
        "tool_calls": [
            {"type": "function", "function": {"name": "count", "arguments": '{"to": 3, "label": "4"}'}}
        ],
    }
    question: Any = {"role": "user", "content": "Count to 3."}
    sample = codec.training_sample([question, calling], [COUNT_TOOL])
    start = sample.loss_mask.index(1)
    engine = Scripted(
        [sample.input_ids[start:].tolist(), _encode(codec, _turn(family, "Done.", ANSWER), codec.end_id)]
    )

    async def ask() -> tuple[Any, Any]:
        chat = EngineChat(RetryingEngine(engine, RetryPolicy(1.0).service("engine"), 60.0), codec)
        first = await chat.reply([question], Sampling(), [COUNT_TOOL])
        reply = {"role": "tool", "name": "count", "content": "1 2 3"}
        return first, await chat.reply([question, first.message, reply], Sampling(), [COUNT_TOOL])

    first, second = asyncio.run(ask())
    [call] = first.message["tool_calls"]
    assert (first.finish, call["function"]["name"]) == ("tool_calls", "count")
    assert json.loads(call["function"]["arguments"]) == {"to": 3, "label": "4"}
    assert second.text == ANSWER
    assert second.message.get("reasoning_content") == ("Done." if SYNTAX[family].think else None)


def test_a_tokenizer_without_a_familys_tokens_is_refused() -> None:
    with pytest.raises(UserError, match=r"cannot be used with the format glm-5"):
        codec_for(family_tokenizer("qwen3"), read_format("glm-5", ""), "glm-5")


def test_families_are_those_of_the_library_and_have_its_names() -> None:
    from renderers.configs import _config_class_for

    for name in FAMILIES:
        assert _config_class_for(name).model_fields["name"].default == name


QWEN3 = r"""
{%- if tools %}{{- HEADER }}{% for tool in tools %}{{- '\n' + (tool | tojson) }}{% endfor %}{{- FOOTER }}{% endif -%}
{%- set asked = namespace(last=0) %}
{%- for message in messages if message.role == 'user' %}{% set asked.last = messages.index(message) %}{% endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > asked.last %}
            {{- '<think>\n' + (message.reasoning_content | default('')) + '\n</think>\n\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls %}
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- (call.function.arguments | tojson) + '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{% endif %}"""


def _qwen3_template() -> str:
    """Returns a chat template with the same output as Qwen3's."""
    tokenizer = family_tokenizer("qwen3")
    renderer = families._renderer(tokenizer, "qwen3", {})
    text = tokenizer.decode(
        renderer.render([{"role": "user", "content": "?"}], tools=[families._PROBE_TOOL]).token_ids
    )
    header, _, rest = text.partition('\n{"type"')
    footer = rest[rest.index("\n</tools>") : rest.index("<|im_start|>user")]
    return QWEN3.replace("HEADER", json.dumps(header)).replace("FOOTER", json.dumps(footer))


def test_a_models_family_is_the_one_that_writes_as_its_chat_template_does() -> None:
    tokenizer, template = family_tokenizer("qwen3"), _qwen3_template()
    assert families.family_of(tokenizer, template, ["qwen3"]) == ("qwen3", {})
    assert families.family_of(tokenizer, template, ["llama"]) is None
    assert families.family_of(tokenizer, template.replace("</think>\\n", "</think>"), ["qwen3"]) is None


def test_a_model_whose_tokenizer_lacks_a_familys_tokens_is_not_of_it() -> None:
    assert (
        families.family_of(family_tokenizer("qwen3"), _qwen3_template(), ["glm_moe_dsa", "deepseek_v4"])
        is None
    )


def test_without_the_library_a_model_of_a_family_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, template = family_tokenizer("qwen3"), _qwen3_template()
    monkeypatch.setitem(sys.modules, "renderers.base", None)
    with pytest.raises(UserError, match="need the package renderers") as excinfo:
        families.family_of(tokenizer, template, ["qwen3"])
    assert excinfo.value.hint == f"Install it: {install_command('eval')}"
    assert families.family_of(tokenizer, template, ["gpt2"]) is None


def test_without_a_network_a_model_is_refused_whose_vocabulary_is_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If it were accepted, the model would have a different format than with a network."""
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(tmp_path / "none"))
    monkeypatch.setenv("TIKTOKEN_RS_CACHE_DIR", str(tmp_path))
    with pytest.raises(
        UserError, match="format gpt-oss, whose vocabulary is downloaded at first use"
    ) as excinfo:
        families.family_of(family_tokenizer("qwen3"), _qwen3_template(), ["gpt_oss"])
    assert "TIKTOKEN_ENCODINGS_BASE" in str(excinfo.value.hint)


def test_a_template_whose_calls_our_tags_do_not_read_is_refused() -> None:
    template = _qwen3_template().replace(
        """{"name": "' + call.function.name + '", "arguments": """, "<function=' + call.function.name + '>"
    )
    with pytest.raises(UserError, match="writes tool calls in a syntax that this format cannot read"):
        codec_for(family_tokenizer("qwen3"), read_format("own", template), "own")
    assert codec_for(family_tokenizer("qwen3"), read_format("listed-tools", template), "listed-tools")


def _loses_a_call(message: Any) -> None:
    message.tool_calls = message.tool_calls[:1]


def _loses_a_thought(message: Any) -> None:
    message.reasoning_content = None


def _shortens_a_thought(message: Any) -> None:
    message.reasoning_content = message.reasoning_content.partition("<")[0]


def _takes_a_thought_for_an_answer(message: Any) -> None:
    message.content, message.reasoning_content = f"{message.reasoning_content}{message.content}", None


def _loses_an_answer(message: Any) -> None:
    message.content = ""


@pytest.mark.parametrize(
    ("loses", "message"),
    [
        (_loses_a_call, "tool calls cannot be read back"),
        (_loses_a_thought, "a turn cannot be read back"),
        (_shortens_a_thought, "a turn cannot be read back"),
        (_takes_a_thought_for_an_answer, "a turn cannot be read back"),
        (_loses_an_answer, "a turn cannot be read back"),
    ],
)
def test_a_renderer_that_loses_a_part_of_a_turn_is_refused(
    loses: Callable[[Any], None], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = families.FamilyCodec._parsed

    def losing(self: Any, ids: list[int], parsed_message: Any) -> Any:
        loses(parsed_message)
        return parse(self, ids, parsed_message)

    monkeypatch.setattr(families.FamilyCodec, "_parsed", losing)
    with pytest.raises(UserError, match=message):
        codec_for(family_tokenizer("qwen3.5"), read_format("qwen3.5", ""), "qwen3.5")


def test_an_option_of_the_family_is_set_as_a_variable_and_one_that_it_has_not_is_refused() -> None:
    codec = codec_for(family_tokenizer("qwen3"), read_format("qwen3", ""))
    quick = codec.with_variables({"enable_thinking": False})
    question = [{"role": "user", "content": "1 + 1?"}]
    thinks, does_not = (codec.tokenizer.decode(each.prompt(question)) for each in (codec, quick))
    assert does_not.startswith(thinks)
    assert "</think>" in does_not.removeprefix(thinks)
    assert quick.with_variables({}).source == quick.source
    with pytest.raises(UserError, match="colour is not supported"):
        codec.with_variables({"colour": "red"})

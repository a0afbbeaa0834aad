"""Tests that SFT teaches, in every format, the form that its prompts request. Training begins where generation
begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.family_tokenizers import TOKENS, family_tokenizer
from support.source_rows import ROWS

from rstar2.data.sources import sources
from rstar2.data.taught import FormCounts, as_taught, count_form
from rstar2.eval.grader import grade
from rstar2.loop.formats import format as formats
from rstar2.loop.formats.format import default_format, read_format
from rstar2.loop.turns.choose import codec_for
from rstar2.loop.turns.codec import ChatCodec
from rstar2.loop.turns.demands import format_texts
from rstar2.train.conversations import encode

SHIPPED = sorted(file.stem for file in Path(formats.__file__).parent.glob("*.toml"))
CONVERSATIONS = [name for name in ROWS if sources()[name].kind == "conversations"]
BMI = {"type": "function", "function": {"name": "bmi", "parameters": {"type": "object", "properties": {}}}}
CHAT = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hello!"}]
VALUE: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "The BMI for 70 kg and 1.75 m?"},
        {
            "role": "assistant",
            "content": "I compute it.",
            "tool_calls": [{"function": {"name": "bmi", "arguments": '{"kg": 70}'}}],
        },
        {"role": "tool", "content": '{"bmi": 22.86}', "tool_call_id": "call_1"},
        {"role": "assistant", "content": "Your BMI is 22.86."},
        {"role": "user", "content": "Thanks!"},
        {"role": "assistant", "content": "Welcome."},
    ],
    "tools": [BMI],
}
FOLLOWING = [
    {"role": "user", "content": "6 · 7?"},
    {"role": "assistant", "content": "<reason>I multiply.</reason>\n<answer>\\boxed{42}</answer>"},
]
RESTRAINT = {"messages": CHAT, "tools": [BMI]}
ASKING = [{"role": "system", "content": "Put your answer inside <answer>."}, *CHAT]


def row_of(source: str) -> dict[str, Any]:
    return sources()[source].read(ROWS[source])


def every_row() -> list[dict[str, Any]]:
    rows = [row_of(name) for name in CONVERSATIONS]
    rows += [VALUE, RESTRAINT, {"messages": CHAT}, {"messages": FOLLOWING}, {"messages": ASKING}]
    return [{**row, "answer_form": form} for row in rows for form in (False, True)]


def codec_of(format_name: str, tokenizer: Any) -> ChatCodec:
    own_format = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if tools %}{{ tools | tojson }}{% endif %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return codec_for(tokenizer, read_format(format_name, own_format), format_name)


def check_begins_as_generation_does(codec: ChatCodec, row: dict[str, Any]) -> int:
    """Checks that the tokens before each learned turn equal the prompt that a rollout gets at this position.

    Returns the number of learned turns.
    """
    conversation, sample = as_taught(row, codec.texts), encode(row, codec)
    ids, mask = sample.input_ids.tolist(), sample.loss_mask.tolist()
    starts = [at for at, is_learned in enumerate(mask) if is_learned and not (at and mask[at - 1])]
    places = [at for at, message in enumerate(conversation.messages) if message["role"] == "assistant"]
    # SFT does not learn turns whose thought later prompts leave out.
    places = places[len(places) - len(starts) :]
    before: list[int] | None = None
    for number, (place, start) in enumerate(zip(places, starts, strict=True)):
        if before is None:
            before = codec.prompt(conversation.messages[:place], conversation.tools or [])
        assert ids[:start] == before
        end = mask.index(0, start) if 0 in mask[start:] else len(mask)
        following = places[number + 1] if number + 1 < len(places) else place + 1
        between = codec.bridge(before, ids[start:end], conversation.messages[place + 1 : following])
        before = None if between is None else [*before, *ids[start:end], *between]
    return len(starts)


@pytest.mark.parametrize("format_name", SHIPPED)
def test_every_taught_turn_begins_where_generation_begins(format_name: str, tokenizer: Any) -> None:
    codec = codec_of(format_name, tokenizer)
    turn_counts = [check_begins_as_generation_does(codec, row) for row in every_row()]
    answers = [sum(message["role"] == "assistant" for message in row["messages"]) for row in every_row()]
    assert turn_counts == answers


@pytest.mark.parametrize("family", TOKENS)
def test_so_it_does_in_every_family(family: str) -> None:
    codec = codec_for(family_tokenizer(family), read_format(family, ""), family)
    assert all(check_begins_as_generation_does(codec, row) for row in every_row())
    sample = encode({"messages": CHAT}, codec)
    text = codec.tokenizer.decode(sample.input_ids[sample.loss_mask.index(1) :].tolist())
    assert "Hello!" in text
    assert "?" not in text, "a missing thought is empty"


@pytest.mark.parametrize("format_name", SHIPPED)
def test_no_converted_row_is_asked_for_what_it_does_not_do(format_name: str, tokenizer: Any) -> None:
    codec = codec_of(format_name, tokenizer)
    for source in CONVERSATIONS:
        for form in (False, True):
            counts = count_form({**row_of(source), "answer_form": form}, codec.texts)
            assert counts.compliant_turns == counts.demanded_turns, (source, form)


def test_a_row_outside_the_form_is_shown_no_system_text_but_its_tools(codec: ChatCodec) -> None:
    for row in (RESTRAINT, {"messages": CHAT}, row_of("glaive-v2"), row_of("tulu3")):
        text = codec.tokenizer.decode(encode(row, codec).input_ids.tolist())
        assert "<answer>" not in text
        assert ("# Tools" in text) == bool(row.get("tools") not in (None, "[]"))
        assert count_form(row, codec.texts).demanded_turns == 0


def test_a_row_in_the_form_is_shown_what_a_rollout_is_shown_and_ends_as_it_is_rewarded(
    codec: ChatCodec,
) -> None:
    row = {**row_of("magicoder"), "answer_form": True}
    sample = encode(row, codec)
    prompt = codec.prompt(codec.format.messages(ROWS["magicoder"]["problem"]))
    assert sample.input_ids[: len(prompt)].tolist() == prompt
    text = codec.tokenizer.decode(sample.input_ids[len(prompt) :].tolist())
    assert text.startswith("A loop does it:</reason>\n<tool_call>\n{")

    value = as_taught({**VALUE, "answer_form": True}, codec.texts)
    system, question = codec.format.messages(VALUE["messages"][0]["content"])[:-1], value.messages[0]
    assert not system
    assert question["content"].startswith("The BMI for 70 kg and 1.75 m?\n\nSolve the problem")
    final, chat = value.messages[3]["content"], value.messages[5]["content"]
    assert final == "<reason>Your BMI is 22.86.</reason>\n<answer>\\boxed{22.86}</answer>"
    assert grade("22.86", final).correct
    assert chat == "<reason></reason>\n<answer>Welcome.</answer>"
    assert value.messages[4]["content"] == "Thanks!", "the prompt asks for no box if the answer has none"
    counts = count_form({**VALUE, "answer_form": True}, codec.texts)
    assert counts == FormCounts(1, 0, 3, 3, 3), "the last answer has no box"
    ending = {"messages": VALUE["messages"][:4], "tools": [BMI], "answer_form": True}
    assert count_form(ending, codec.texts) == FormCounts(1, 1, 2, 2, 2)


def test_a_format_that_asks_for_a_box_only_gets_one_behind_the_reply(tokenizer: Any) -> None:
    codec = codec_of("own", tokenizer)
    row = {**VALUE, "answer_form": True}
    messages = as_taught(row, codec.texts).messages
    assert [each["content"] for each in messages if each["role"] == "assistant"] == [
        "I compute it.",
        "Your BMI is 22.86.\n\n\\boxed{22.86}",
        "Welcome.",
    ]
    boxed = {"role": "assistant", "content": "So \\boxed{42}."}
    messages = as_taught({"messages": [CHAT[0], boxed], "answer_form": True}, codec.texts).messages
    assert messages[-1] == boxed


def test_a_template_that_asks_for_a_thought_but_opens_none_gets_it_written(tokenizer: Any) -> None:
    plain = default_format().template.replace("assistant\\n<reason>' }}", "assistant\\n' }}")
    codec = codec_for(tokenizer, default_format().model_copy(update={"template": plain}))
    row = {**VALUE, "answer_form": True}
    assert (
        as_taught(row, codec.texts).messages[3]["content"].startswith("<reason>Your BMI is 22.86.</reason>\n")
    )
    counts = count_form(row, codec.texts)
    assert counts.demanded_turns == counts.compliant_turns == 3


def test_tools_are_listed_in_the_system_text_of_a_format_that_lists_them_there(tokenizer: Any) -> None:
    codec = codec_of("listed-tools", tokenizer)
    rows_messages = [{"role": "system", "content": "Be brief."}, *VALUE["messages"]]
    for messages in (VALUE["messages"], rows_messages):
        conversation = as_taught({**VALUE, "messages": messages}, codec.texts)
        system = conversation.messages[0]["content"]
        assert '"name": "bmi"' in system
        assert conversation.tools == []
    assert system.startswith("Be brief.\n\n# Tools")
    assert as_taught({"messages": CHAT}, codec.texts).messages == CHAT


def test_data_that_follows_the_format_keeps_its_system_text(codec: ChatCodec) -> None:
    assert as_taught({"messages": FOLLOWING}, codec.texts).messages == FOLLOWING
    text = codec.tokenizer.decode(encode({"messages": FOLLOWING}, codec).input_ids.tolist())
    assert "your answer inside <answer>" in text
    assert count_form({"messages": FOLLOWING}, codec.texts) == FormCounts(1, 1, 1, 1, 1)
    unfinished = [FOLLOWING[0], {"role": "assistant", "content": "<reason>I multiply.</reason>\n42"}]
    assert as_taught({"messages": unfinished}, codec.texts).messages[0] == {"role": "system", "content": ""}


def test_a_system_text_of_ones_own_that_the_turns_ignore_is_counted(codec: ChatCodec) -> None:
    assert count_form({"messages": ASKING}, codec.texts) == FormCounts(1, 0, 1, 1, 0)
    asking = [{"role": "user", "content": "6 · 7? Give it in \\boxed{}."}, CHAT[1]]
    assert count_form({"messages": asking}, codec.texts) == FormCounts(1, 0, 1, 1, 0)


def test_the_wording_is_the_same_with_and_without_a_tokenizer(codec: ChatCodec) -> None:
    assert format_texts(default_format()) == codec.texts


THOUGHTS = [
    {"role": "assistant", "content": "<think>I know it.</think>\n<answer>\\boxed{21}</answer>"},
    {"role": "assistant", "content": " <reason>I know it.</reason> <answer>\\boxed{21}</answer>"},
    {"role": "assistant", "content": "I know it.</reason>\n<answer>\\boxed{21}</answer>"},
    {"role": "assistant", "content": "<seed:think>I know it.</seed:think><answer>\\boxed{21}</answer>"},
    {"role": "assistant", "content": "<answer>\\boxed{21}</answer>", "reasoning_content": "I know it."},
]
PROSE = [
    "Use the HTML tag <answer> here.",
    "Write <answer>x</answer> around it.",
    "End it with </think> or `</reason>`, please.",
    "A <think> tag opens a thought; </think> closes it.",
    "Call it as <tool_call>x</tool_call>.",
]


def learned_text(codec: ChatCodec, row: dict[str, Any]) -> str:
    sample = encode(row, codec)
    return str(codec.tokenizer.decode(sample.input_ids[sample.loss_mask.index(1) :].tolist()))


@pytest.mark.parametrize("turn", THOUGHTS)
def test_a_thought_of_any_form_becomes_the_formats_own(codec: ChatCodec, turn: dict[str, Any]) -> None:
    row = {"messages": [CHAT[0], turn]}
    assert learned_text(codec, row) == "I know it.</reason>\n<answer>\\boxed{21}</answer><|im_end|>"
    assert count_form(row, codec.texts) == FormCounts(1, 1, 1, 1, 1)


@pytest.mark.parametrize("family", ["qwen3", "qwen3.5"])
@pytest.mark.parametrize("turn", THOUGHTS)
def test_so_it_does_in_a_family_that_thinks(family: str, turn: dict[str, Any]) -> None:
    codec = codec_for(family_tokenizer(family), read_format(family, ""), family)
    text = learned_text(codec, {"messages": [CHAT[0], turn]}).removeprefix("<think>\n")
    assert text == "I know it.\n</think>\n\n\\boxed{21}<|im_end|>"


@pytest.mark.parametrize("prose", PROSE)
def test_tags_that_prose_mentions_stay_in_the_text(codec: ChatCodec, prose: str) -> None:
    row = {"messages": [CHAT[0], {"role": "assistant", "content": prose}]}
    assert learned_text(codec, row).replace("< ", "<").startswith(f"</reason>\n{prose}")
    assert count_form(row, codec.texts).demanded_turns == 0
    qwen = codec_for(family_tokenizer("qwen3"), read_format("qwen3", ""), "qwen3")
    # Tags that are tokens of the family are broken up.
    assert prose in learned_text(qwen, row).replace("< ", "<")


def test_a_thought_without_a_place_is_counted(tokenizer: Any) -> None:
    codec = codec_of("no-tools", tokenizer)
    tagged, separate = {"messages": [CHAT[0], THOUGHTS[0]]}, {"messages": [CHAT[0], THOUGHTS[4]]}
    assert "I know it." in learned_text(codec, tagged), "a text is taught as it is"
    assert [count_form(row, codec.texts).lost_thoughts for row in (tagged, separate)] == [0, 1]
    llama = codec_for(family_tokenizer("llama-3"), read_format("llama-3", ""), "llama-3")
    assert [count_form(row, llama.texts).lost_thoughts for row in (tagged, separate)] == [1, 1]


def test_a_thought_that_is_asked_for_in_another_tag_is_not_kept(codec: ChatCodec, tokenizer: Any) -> None:
    system = {"role": "system", "content": "Think in <think></think> first."}
    plain, thinking = [system, *CHAT], [system, CHAT[0], THOUGHTS[0]]
    for messages in (plain, thinking):
        assert count_form({"messages": messages}, codec.texts) == FormCounts(
            1, int(messages is thinking), 1, 1, 0
        )
    free = codec_of("no-tools", tokenizer)
    separate = [system, CHAT[0], {**CHAT[1], "reasoning_content": "I greet."}]
    assert "<think>I greet.</think>\nHello!" in learned_text(free, {"messages": separate})
    counts = [count_form({"messages": each}, free.texts) for each in (plain, separate)]
    assert [each.compliant_turns for each in counts] == [0, 1]


def test_a_question_about_a_tag_does_not_ask_for_it(codec: ChatCodec) -> None:
    for question in ("Explain the HTML <answer> element in 2 words.", "Which model are you? <think>"):
        messages = [{"role": "system", "content": ""}, {"role": "user", "content": question}, CHAT[1]]
        assert count_form({"messages": messages}, codec.texts).demanded_turns == 0


def test_a_conversation_that_leaves_the_form_is_counted(codec: ChatCodec) -> None:
    row = {"messages": [*FOLLOWING, *CHAT]}
    assert as_taught(row, codec.texts).messages[0] == {"role": "system", "content": ""}
    assert count_form(row, codec.texts) == FormCounts(1, 0, 2, mixed=1)
    assert count_form({**row, "answer_form": True}, codec.texts) == FormCounts(1, 0, 2, 2, 2)


def test_turns_that_a_family_does_not_teach_are_counted_apart() -> None:
    codec = codec_for(family_tokenizer("qwen3.5"), read_format("qwen3.5", ""), "qwen3.5")
    row = {"messages": [*CHAT, *CHAT, *CHAT]}
    mask = encode(row, codec).loss_mask.tolist()
    counts = count_form(row, codec.texts)
    assert (counts.turns, counts.unlearnt_turns) == (1, 2)
    assert sum(b > a for a, b in zip([0, *mask], mask, strict=False)) == counts.turns


def test_calls_that_no_rollout_runs_in_one_turn_become_turns(tokenizer: Any) -> None:
    def call(city: str) -> dict[str, Any]:
        return {"id": city, "function": {"name": "f", "arguments": f'{{"x": "{city}"}}'}}

    def reply(city: str) -> dict[str, Any]:
        return {"role": "tool", "content": f"in {city}", "tool_call_id": city}

    two = {"role": "assistant", "content": "Both.", "tool_calls": [call("a"), call("b")]}
    texts = codec_of("release", tokenizer).texts
    split = as_taught({"messages": [CHAT[0], two, reply("b"), reply("a"), CHAT[1]]}, texts).messages
    turns = [each for each in split if each["role"] in ("assistant", "tool")]
    assert [(each.get("content") or "", len(each.get("tool_calls") or [])) for each in turns] == [
        ("Both.", 1),
        ("in a", 0),
        ("", 1),
        ("in b", 0),
        ("Hello!", 0),
    ]
    last = as_taught({"messages": [CHAT[0], two]}, texts).messages[-1]
    assert [each["id"] for each in last["tool_calls"]] == ["a"]
    llama = codec_for(family_tokenizer("llama-3"), read_format("llama-3", ""), "llama-3")
    row = {"messages": [CHAT[0], two, reply("a"), reply("b"), CHAT[1]], "tools": [BMI]}
    assert sum(encode(row, llama).loss_mask.tolist()) > 0


@pytest.mark.parametrize("format_name", ["rstar2", "no-tools"])
def test_a_trace_of_another_format_is_taught_in_this_ones_form(format_name: str, tokenizer: Any) -> None:
    codec = codec_of(format_name, tokenizer)
    text = "<think>\nSix sevens are 42.\n</think>\n\nSo it is \\boxed{42}, the sixth."
    messages = [{"role": "user", "content": "6 · 7?"}, {"role": "assistant", "content": text}]
    row = {
        "messages": messages,
        "tools": [],
        "tokens": {"codec": "another", "input_ids": [], "loss_mask": []},
    }
    question, turn = as_taught(row, codec.texts).messages
    assert question["content"] == codec.format.user.replace("{problem}", "6 · 7?")
    assert (
        turn["content"]
        == {
            "rstar2": "<reason>Six sevens are 42.</reason>\n<answer>So it is \\boxed{42}, the sixth.</answer>",
            "no-tools": "So it is \\boxed{42}, the sixth.",
        }[format_name]
    )
    counts = count_form(row, codec.texts)
    assert (counts.rewarded_endings, counts.lost_thoughts) == (1, int(format_name == "no-tools"))

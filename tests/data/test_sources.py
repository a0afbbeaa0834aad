"""Tests of every source of the recipe on rows of its real schema: rows that are read, and messages of refused rows."""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.source_rows import ROWS, TOOLACE_SYSTEM, WEATHER, glaive_chat

from rstar2.data import reading
from rstar2.data.candidates import Candidates, schema_of
from rstar2.data.own import own_source
from rstar2.data.reading import Origin, ReadCounts, read_source
from rstar2.data.rows import SCHEMAS
from rstar2.data.source import Source
from rstar2.data.sources import sources
from rstar2.errors import UserError
from rstar2.loop.tools.python_code_with_standard_io import NAME as TOOL_NAME

CALLS = ("toolace", "apigen-mt", "glaive-v2", "glaive-sharegpt")
"""Sources of function calls. The rows of these sources in `ROWS` have the same content."""


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_files(source: Source, *files: Path, name: str = "it") -> tuple[list[dict[str, Any]], ReadCounts]:
    """Returns the candidates of files, and the counts."""
    part = files[0].with_name("part.arrow")
    counts = read_source(Origin(name, source, files), part, io.StringIO(), lambda rows: None)
    rows = Candidates(source.kind, [(name, part)])
    tables = [table for _, table in rows.batches(schema_of(source.kind).names, rows.live_numbers())]
    all_rows: list[dict[str, Any]] = pa.concat_tables(tables).to_pylist() if tables else []
    return all_rows, counts


def one(tmp_path: Path, name: str, row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row's candidate, without the columns that only the preparation uses."""
    rows, counts = read_files(sources()[name], lines(tmp_path / "rows.jsonl", row), name=name)
    assert not counts.refused, counts.examples
    (candidate,) = rows
    return {key: value for key, value in candidate.items() if key in SCHEMAS[sources()[name].kind].names}


def refusal(tmp_path: Path, name: str, row: dict[str, Any]) -> tuple[str, str]:
    """Returns the reason and the detail with which a row is refused. Checks that a good row in the same file is
    read."""
    rows, counts = read_files(sources()[name], lines(tmp_path / "rows.jsonl", ROWS[name], row), name=name)
    assert [row_read["id"] for row_read in rows] == [f"{name}-{ROWS[name].get('id', 1)}"]
    assert counts.read == 2
    (example,) = counts.examples
    assert example["place"] == f"{tmp_path / 'rows.jsonl'}, row 2"
    return example["reason"], example["detail"]


def changed(name: str, **columns: Any) -> dict[str, Any]:
    return {**copy.deepcopy(ROWS[name]), **columns}


def test_every_source_has_a_row_here() -> None:
    assert set(ROWS) == set(sources())


@pytest.mark.parametrize(
    ("name", "problem", "answer", "rate"),
    [
        ("dapo", "What is $6\\cdot 7$?", "42", None),
        ("openmathreasoning", "Find the least prime above 90.", "97", 0.65625),
        ("project-euler", "Sum the multiples of 3 or 5 below 1000.", "233168", None),
    ],
)
def test_a_problem_is_read(tmp_path: Path, name: str, problem: str, answer: str, rate: float | None) -> None:
    source = sources()[name]
    assert one(tmp_path, name, ROWS[name]) == {
        "id": f"{name}-1",
        "problem": problem,
        "answer": answer,
        "pass_rate": rate,
        "source": name,
        "family": "math",
        "licence": source.licence,
    }


@pytest.mark.parametrize("name", CALLS)
def test_function_calls_become_messages_with_tools(tmp_path: Path, name: str) -> None:
    row = one(tmp_path, name, ROWS[name])
    system = [("system", "You are a travel agent.")] if name == "apigen-mt" else []
    messages = [(message["role"], message["content"]) for message in row["messages"]]
    replies = [text for role, text in messages if role == "tool"]
    assert messages == [
        *system,
        ("user", "Will it rain in Zürich?"),
        ("assistant", None),
        ("tool", replies[0]),
        ("assistant", "Yes, take an umbrella."),
    ]
    assert json.dumps({"rain": True}) in replies[0]
    calling, reply = row["messages"][-3], row["messages"][-2]
    (call,) = calling["tool_calls"]
    assert (call["id"], call["type"], call["function"]["name"]) == ("call_1", "function", "get_weather")
    assert json.loads(call["function"]["arguments"]) == {"city": "Zürich", "days": 2}
    assert reply["tool_call_id"] == "call_1"
    (tool,) = json.loads(row["tools"])
    assert tool["function"]["parameters"] == {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer", "description": "How many."}},
        "required": ["city"],
    }
    jsonschema_rs.validate(tool["function"]["parameters"], json.loads(call["function"]["arguments"]))


def test_code_becomes_a_call_of_the_python_tool(tmp_path: Path) -> None:
    row = one(tmp_path, "magicoder", ROWS["magicoder"])
    user, assistant = row["messages"]
    assert (user["role"], user["content"]) == ("user", "Print the squares below ten.")
    assert assistant["content"] == "A loop does it:"
    (call,) = assistant["tool_calls"]
    assert call["function"]["name"] == TOOL_NAME
    code = "for n in range(10):\n    print(n * n)"
    assert json.loads(call["function"]["arguments"]) == {"code": code, "input": ""}


def test_the_other_form_of_magicoder_is_read_too(tmp_path: Path) -> None:
    row = {"instruction": "Print 1.", "response": "```python\nprint(1)\n```"}
    (call,) = one(tmp_path, "magicoder", row)["messages"][1]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["code"] == "print(1)"


def test_instructions_and_chats_are_read(tmp_path: Path) -> None:
    texts = [each["content"] for each in one(tmp_path, "tulu3", ROWS["tulu3"])["messages"]]
    assert texts == ["Answer in three words.", "Just like this."]
    chat = one(tmp_path, "llama-nemotron", ROWS["llama-nemotron"])
    assert [each["content"] for each in chat["messages"]] == ["Hello?", "Hello! What can I do for you?"]
    assert (chat["licence"], chat["family"], chat["tools"]) == ("odc-by", "chat", "[]")


def test_dapos_raw_form_loses_the_words_around_the_problem(tmp_path: Path) -> None:
    text = (
        "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
        "$Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is $1+1$?\n\n"
        'Remember to put your answer on its own line after "Answer:".'
    )
    row = changed("dapo", prompt=[{"role": "user", "content": text}])
    assert one(tmp_path, "dapo", row)["problem"] == "What is $1+1$?"


# Every column that a source needs, with a value of a wrong type.
NEEDED = [
    (name, column, 7 if isinstance(ROWS[name][column], list | dict) else ["x"])
    for name, source in sources().items()
    for column in next(form for form in source.columns if set(form) <= set(ROWS[name]))
]


@pytest.mark.parametrize(("name", "column", "_"), NEEDED)
def test_a_missing_or_renamed_column_is_named(tmp_path: Path, name: str, column: str, _: object) -> None:
    row = copy.deepcopy(ROWS[name])
    row["other"] = row.pop(column)
    with pytest.raises(UserError) as excinfo:
        read_files(sources()[name], lines(tmp_path / "rows.jsonl", row), name=name)
    assert f"{name}: {tmp_path / 'rows.jsonl'} has no column" in excinfo.value.message
    assert column in excinfo.value.message.partition("it has")[0]
    assert "other" in excinfo.value.message.partition("it has")[2]
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.Table.from_pylist([row]), file)
    with pytest.raises(UserError, match=f"has no column .*{column}"):
        read_files(sources()[name], file, name=name)


@pytest.mark.parametrize(("name", "column", "wrong"), NEEDED)
def test_a_null_a_wrong_type_and_an_empty_value_are_counted(
    tmp_path: Path, name: str, column: str, wrong: object
) -> None:
    empty: object = [] if isinstance(ROWS[name][column], list) else {} if column == "reward_model" else " "
    if (name, column) in (("apigen-mt", "system"), ("magicoder", "lang"), ("llama-nemotron", "reasoning")):
        return  # a system text may be left out; the others choose rows, below
    for value in (None, wrong, empty):
        if (name, column, value) == ("openmathreasoning", "expected_answer", None):
            assert refusal(tmp_path, name, changed(name, expected_answer=None))[0] == "no answer"
            continue
        reason, detail = refusal(tmp_path, name, changed(name, **{column: value}))
        assert reason == "malformed"
        assert detail


@pytest.mark.parametrize("name", sorted(ROWS))
def test_unicode_is_kept_and_half_a_surrogate_pair_refused(tmp_path: Path, name: str) -> None:
    row = json.loads(
        json.dumps(ROWS[name], ensure_ascii=False).replace("Zürich", "京都 🗾").replace("Hello?", "你好?")
    )
    text = json.dumps(one(tmp_path, name, row), ensure_ascii=False)
    assert (name in CALLS) is ("京都 🗾" in text)
    texts = {
        **{
            each: {"problem": "What is \ud800?"}
            for each in ("openmathreasoning", "project-euler", "magicoder")
        },
        "dapo": {"prompt": "What is \ud800?"},
        "toolace": {
            "conversations": [{"from": "user", "value": "\ud800"}, *ROWS["toolace"]["conversations"][1:]]
        },
        "apigen-mt": {"system": "\ud800"},
        "glaive-v2": {"chat": glaive_chat(("USER", "\ud800"), ("ASSISTANT", "No."))},
        "glaive-sharegpt": {
            "conversations": [{"from": "human", "value": "\ud800"}, {"from": "gpt", "value": "No."}]
        },
        "tulu3": {"messages": [{"role": "user", "content": "\ud800"}, {"role": "assistant", "content": "!"}]},
        "llama-nemotron": {"output": "\ud800"},
    }
    reason, detail = refusal(tmp_path, name, changed(name, **texts[name]))
    assert reason == "malformed"
    assert "surrogate" in detail


def with_turns(name: str, *turns: tuple[str, str]) -> dict[str, Any]:
    """Returns a conversation of user, call, reply and assistant, in the source's format."""
    if name == "glaive-v2":
        speakers = {
            "user": "USER",
            "assistant": "ASSISTANT",
            "reply": "FUNCTION RESPONSE",
            "call": "ASSISTANT",
        }
        texts = [
            (speakers[speaker], f"<functioncall> {text}" if speaker == "call" else text)
            for speaker, text in turns
        ]
        return changed(name, chat=glaive_chat(*texts))
    sharegpt = {"user": "human", "assistant": "gpt", "reply": "observation", "call": "function_call"}
    roles = {
        "toolace": {"user": "user", "assistant": "assistant", "reply": "tool", "call": "assistant"},
        "apigen-mt": sharegpt,
        "glaive-sharegpt": sharegpt,
    }[name]
    return changed(name, conversations=[{"from": roles[speaker], "value": text} for speaker, text in turns])


CALL = {
    "toolace": '[get_weather(city="Bern")]',
    "apigen-mt": '{"name": "get_weather", "arguments": {"city": "Bern"}}',
    "glaive-v2": '{"name": "get_weather", "arguments": \'{"city": "Bern"}\'}',
    "glaive-sharegpt": '{"name": "get_weather", "arguments": {"city": "Bern"}}',
}
BROKEN = {
    "toolace": '[get_weather(city="Bern, days=[1)]',
    "apigen-mt": '{"name": "get_weather", "arguments": {"city": }',
    "glaive-v2": '{"name": "get_weather", "arguments": \'{"city": Bern}\'}',
    "glaive-sharegpt": '{"name": "get_weather", "arguments": {"city": }',
}
MISFIT = {
    "toolace": '[get_weather(city="Bern", days="two")]',
    "apigen-mt": '{"name": "get_weather", "arguments": {"city": "Bern", "days": "two"}}',
    "glaive-v2": '{"name": "get_weather", "arguments": \'{"city": "Bern", "days": "two"}\'}',
    "glaive-sharegpt": '{"name": "get_weather", "arguments": {"city": "Bern", "days": "two"}}',
}
UNKNOWN = {name: text.replace("get_weather", "get_time") for name, text in CALL.items()}


@pytest.mark.parametrize("name", CALLS)
def test_a_conversation_may_end_with_a_call(tmp_path: Path, name: str) -> None:
    row = one(tmp_path, name, with_turns(name, ("user", "Rain?"), ("call", CALL[name])))
    (call,) = row["messages"][-1]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Bern"}


@pytest.mark.parametrize("name", CALLS)
def test_what_follows_the_last_answer_is_left_out(tmp_path: Path, name: str) -> None:
    turns = [("user", "Rain?"), ("assistant", "Where?"), ("user", "Bern.")]
    roles = [each["role"] for each in one(tmp_path, name, with_turns(name, *turns))["messages"]]
    assert roles[-2:] == ["user", "assistant"]


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("calls", "message"), [(BROKEN, ""), (MISFIT, "integer"), (UNKNOWN, "get_time is not one of the tools")]
)
def test_a_call_that_does_not_fit_its_tool_is_refused(
    tmp_path: Path, name: str, calls: dict[str, str], message: str
) -> None:
    reason, detail = refusal(tmp_path, name, with_turns(name, ("user", "Rain?"), ("call", calls[name])))
    assert reason == "bad call"
    assert message in detail


def test_parallel_calls_get_a_reply_each(tmp_path: Path) -> None:
    calls = '[get_weather(city="Bern"), get_weather(city="Basel, BS", days=3)]'
    replies = json.dumps([{"rain": True}, {"rain": False}])
    turns = [("user", "Rain?"), ("call", calls), ("reply", replies), ("assistant", "In Bern.")]
    messages = one(tmp_path, "toolace", with_turns("toolace", *turns))["messages"]
    arguments = [json.loads(each["function"]["arguments"]) for each in messages[1]["tool_calls"]]
    assert arguments == [{"city": "Bern"}, {"city": "Basel, BS", "days": 3}]
    assert [(each["tool_call_id"], each["content"]) for each in messages[2:4]] == [
        ("call_1", '{"rain": true}'),
        ("call_2", '{"rain": false}'),
    ]
    reason, detail = refusal(
        tmp_path, "toolace", with_turns("toolace", *turns[:2], ("reply", "[1]"), turns[3])
    )
    assert (reason, detail) == ("malformed", "the number of replies is not the number of calls (2)")


def test_parallel_calls_of_the_other_forms(tmp_path: Path) -> None:
    twice = json.dumps([{"name": "get_weather", "arguments": {"city": city}} for city in ("Bern", "Basel")])
    row = one(tmp_path, "apigen-mt", with_turns("apigen-mt", ("user", "Rain?"), ("call", twice)))
    assert len(row["messages"][-1]["tool_calls"]) == 2
    call = CALL["glaive-v2"]
    row = one(
        tmp_path,
        "glaive-v2",
        with_turns("glaive-v2", ("user", "?"), ("call", f"{call} <functioncall> {call}")),
    )
    assert [each["id"] for each in row["messages"][-1]["tool_calls"]] == ["call_1", "call_2"]


@pytest.mark.parametrize(
    ("name", "without"),
    [
        ("toolace", {"system": "You have no functions."}),
        (
            "glaive-v2",
            {"system": "SYSTEM: You are a helpful assistant, with no access to external functions."},
        ),
        ("apigen-mt", {"tools": "[]"}),
        ("glaive-sharegpt", {"tools": "[]"}),
    ],
)
def test_a_system_prompt_without_tools(tmp_path: Path, name: str, without: dict[str, str]) -> None:
    plain = {**with_turns(name, ("user", "Hi"), ("assistant", "Hello!")), **without}
    assert one(tmp_path, name, plain)["tools"] == "[]"
    calling = {**with_turns(name, ("user", "Rain?"), ("call", CALL[name])), **without}
    reason, detail = refusal(tmp_path, name, calling)
    assert (reason, detail) == ("bad call", "get_weather is not one of the tools (there are none)")


@pytest.mark.parametrize(
    ("turns", "message"),
    [
        ([("user", "Rain?")], "no assistant message"),
        ([("assistant", "Hello!")], "no assistant message that answers a user"),
        ([("user", "?"), ("reply", "{}"), ("assistant", "!")], "reply"),
        ([("user", "?"), ("call", "CALL"), ("user", "And?"), ("assistant", "!")], "a call has no reply"),
    ],
)
@pytest.mark.parametrize("name", CALLS)
def test_turns_that_do_not_follow_are_refused(
    tmp_path: Path, name: str, turns: list[tuple[str, str]], message: str
) -> None:
    call_turns = [(speaker, text.replace("CALL", CALL[name])) for speaker, text in turns]
    reason, detail = refusal(tmp_path, name, with_turns(name, *call_turns))
    assert reason == "malformed"
    assert message in detail or "the number of replies is not" in detail


@pytest.mark.parametrize("name", ["toolace", "glaive-v2"])
def test_a_conversation_that_the_assistant_begins_is_refused_as_sft_would(tmp_path: Path, name: str) -> None:
    row = with_turns(name, ("assistant", "Hello!"), ("user", "Hi."), ("assistant", "What now?"))
    assert refusal(tmp_path, name, row) == ("malformed", "the first message is the assistant's")


@pytest.mark.parametrize(
    ("value", "arguments"),
    [
        ("a=1, b=2.5", {"a": 1, "b": 2.5}),
        ('a="it\'s (not) [so], {simple}"', {"a": "it's (not) [so], {simple}"}),
        ("a=[1, {'b': (2, 3)}], c=true, d=None", {"a": [1, {"b": [2, 3]}], "c": True, "d": None}),
        ('a="say \\"hi\\", then", b={}', {"a": 'say "hi", then', "b": {}}),
        ("", {}),
    ],
)
def test_arguments_as_toolace_writes_them(tmp_path: Path, value: str, arguments: dict[str, Any]) -> None:
    system = TOOLACE_SYSTEM.replace(
        json.dumps([WEATHER]), json.dumps([{"name": "My Tool", "description": ""}])
    )
    turns = [{"from": "user", "value": "?"}, {"from": "assistant", "value": f"[My Tool({value})]"}]
    row = changed("toolace", system=system, conversations=turns)
    (call,) = one(tmp_path, "toolace", row)["messages"][-1]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == arguments


@pytest.mark.parametrize(
    ("name", "columns", "reason"),
    [
        ("magicoder", {"lang": "rust"}, "not Python"),
        ("magicoder", {"solution": "No code at all."}, "no code"),
        ("magicoder", {"solution": "```bash\nls\n```"}, "not Python"),
        ("llama-nemotron", {"reasoning": "on"}, "reasoning"),
        ("llama-nemotron", {"category": "code"}, "not chat"),
        ("openmathreasoning", {"problem_type": "converted_proof"}, "converted proof"),
        ("openmathreasoning", {"problem_type": "no_answer_extracted"}, "no answer extracted"),
        ("openmathreasoning", {"problem_type": "is_binary"}, "problem type"),
        ("openmathreasoning", {"expected_answer": ""}, "no answer"),
        ("openmathreasoning", {"pass_rate_72b_tir": "most"}, "malformed"),
    ],
)
def test_rows_that_the_recipe_does_not_take_are_counted_by_reason(
    tmp_path: Path, name: str, columns: dict[str, Any], reason: str
) -> None:
    assert refusal(tmp_path, name, changed(name, **columns))[0] == reason


def test_parquet_and_several_files_of_one_source_are_read(tmp_path: Path) -> None:
    rows = [changed("dapo", prompt=f"What is {n} plus {n}?") for n in range(5)]
    pq.write_table(pa.Table.from_pylist(rows[:3]), tmp_path / "a.parquet")
    lines(tmp_path / "b.jsonl", *rows[3:])
    rows_read, counts = read_files(
        sources()["dapo"], tmp_path / "a.parquet", tmp_path / "b.jsonl", name="dapo"
    )
    assert [row["id"] for row in rows_read] == [f"dapo-{number}" for number in range(1, 6)]
    assert counts.read == 5


def test_rows_are_numbered_through_the_pieces_and_files_of_a_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [changed("dapo", prompt=f"What is {n} plus {n}?") for n in range(5)]
    first = lines(tmp_path / "a.jsonl", *rows[:3])
    first.write_bytes(b"\n" + first.read_bytes().rstrip())
    monkeypatch.setattr(reading, "PIECE_BYTES", first.stat().st_size // 2)
    rows_read, counts = read_files(
        sources()["dapo"], first, lines(tmp_path / "b.jsonl", *rows[3:]), name="dapo"
    )
    # A line without a row counts as one.
    assert [row["id"] for row in rows_read] == [f"dapo-{number}" for number in range(2, 7)]
    assert counts.read == 5


def test_own_files_say_by_their_columns_what_they_hold(tmp_path: Path) -> None:
    problems = lines(
        tmp_path / "p.jsonl", {"id": "x", "problem": "What is 1+1?", "answer": 2, "pass_rate": 0.5}
    )
    (row,), _ = read_files(own_source(problems), problems, name="p")
    assert (row["id"], row["answer"], row["pass_rate"]) == ("p-x", "2", 0.5)
    call = {"function": {"name": "get_weather", "arguments": '{"city": "Bern"}'}}
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    conversations = lines(tmp_path / "c.jsonl", {"messages": messages, "tools": [WEATHER]})
    (row,), _ = read_files(own_source(conversations), conversations, name="c")
    assert row["messages"][1]["tool_calls"][0]["id"] == "call_1"
    with pytest.raises(UserError, match="no column `problem` or `messages`; it has text"):
        own_source(lines(tmp_path / "other.jsonl", {"text": "x"}))


def conversation(*messages: dict[str, Any], **columns: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "?"}, *messages], "tools": [WEATHER], **columns}


def calling(*calls: tuple[str | None, str], **more: Any) -> dict[str, Any]:
    """Returns a message that calls the tool with these ids and cities."""
    call_fields = [
        {"id": name, "function": {"name": "get_weather", "arguments": {"city": city}}} for name, city in calls
    ]
    return {"role": "assistant", "tool_calls": call_fields, **more}


def with_arguments(text: str) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"function": {"name": "get_weather", "arguments": text}}]}


def reply(content: Any, name: str | None = None) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": name}


FINAL_ANSWER = {"role": "assistant", "content": "Now I know."}


def read_own(tmp_path: Path, row: dict[str, Any]) -> dict[str, Any] | tuple[str, str]:
    """Returns a row of a user's own file as it is read, or the reason why it is refused."""
    file = lines(tmp_path / "own.jsonl", row)
    rows, counts = read_files(own_source(file), file)
    return rows[0] if rows else (counts.examples[0]["reason"], counts.examples[0]["detail"])


def test_replies_are_matched_to_parallel_calls_by_their_ids(tmp_path: Path) -> None:
    row = read_own(
        tmp_path,
        conversation(
            calling(("a", "Bern"), ("b", "Basel")),
            reply("in Basel", "b"),
            reply("in Bern", "a"),
            FINAL_ANSWER,
        ),
    )
    assert isinstance(row, dict)
    assert [(each["content"], each["tool_call_id"]) for each in row["messages"][2:4]] == [
        ("in Bern", "call_1"),
        ("in Basel", "call_2"),
    ]


@pytest.mark.parametrize(
    ("calls", "replies", "message"),
    [
        (
            [("a", "Bern")],
            [reply("sun", "b")],
            "a tool's reply names the call 'b', but this call is not waiting for a reply",
        ),
        (
            [(None, "Bern")],
            [reply("sun", "b")],
            "a tool's reply names the call 'b', but this call is not waiting for a reply",
        ),
        ([("a", "Bern"), ("a", "Basel")], [reply("sun", "a")] * 2, "two calls have the id 'a'"),
        (
            [("a", "Bern"), ("b", "Basel")],
            [reply("sun", "a")] * 2,
            "a tool's reply names the call 'a', but this call is not waiting for a reply",
        ),
        ([("a", "Bern")], [reply(None, "a")], "a tool's reply is null"),
    ],
)
def test_replies_that_fit_no_call_are_refused(
    tmp_path: Path, calls: list[tuple[str | None, str]], replies: list[dict[str, Any]], message: str
) -> None:
    assert read_own(tmp_path, conversation(calling(*calls), *replies, FINAL_ANSWER)) == ("malformed", message)


@pytest.mark.parametrize(
    ("message", "reason", "expected"),
    [
        (calling((None, "Bern"), content=[{"type": "text", "text": "!"}]), "malformed", "is not text"),
        (calling((None, "\ud800")), "malformed", "surrogate"),
        (with_arguments('{"city": "Bern", "x": NaN}'), "malformed", "a call contains NaN or an infinity"),
        (with_arguments('{"x": ' + "[" * 9999 + "]" * 9999 + "}"), "malformed", "nested too deeply"),
        (with_arguments('{"x": ' + "[" * 500 + "]" * 500 + "}"), "bad call", "Recursion limit"),
    ],
)
def test_one_bad_call_refuses_its_row_alone(
    tmp_path: Path, message: dict[str, Any], reason: str, expected: str
) -> None:
    result = read_own(tmp_path, conversation(message))
    assert isinstance(result, tuple), result
    assert result[0] == reason
    assert expected in result[1]


def test_half_a_surrogate_pair_that_a_detail_quotes_is_escaped(tmp_path: Path) -> None:
    bad = "[get_weather(city=\ud800)]"
    _, detail = refusal(tmp_path, "toolace", with_turns("toolace", ("user", "Rain?"), ("call", bad)))
    assert "\\ud800" in detail
    assert "not Python" in refusal(tmp_path, "magicoder", changed("magicoder", lang="\ud800"))[0]
    assert "surrogate" in refusal(tmp_path, "llama-nemotron", changed("llama-nemotron", license="\ud800"))[1]


@pytest.mark.parametrize(
    ("parameter", "value", "fits"),
    [
        ({"type": "str", "pattern": "^[A-Z]"}, "bern", False),
        ({"const": 3}, 4, False),
        ({"oneOf": [{"type": "int"}, {"type": "dict"}]}, "x", False),
        ({"type": "list", "maxItems": 1, "items": {"type": "float"}}, [1, 2], False),
        ({"$ref": "#/$defs/small"}, 10, False),
        ({"$ref": "#/$defs/small"}, 2, True),
        ({"type": "dict", "additionalProperties": False}, {"x": 1}, False),
        ({"type": "int", "maximum": "ten", "required": True, "pattern": 7}, 11, True),
    ],
)
def test_calls_are_held_to_every_keyword_of_the_schema(
    tmp_path: Path, parameter: dict[str, Any], value: Any, fits: bool
) -> None:
    tool = {"name": "f", "parameters": {"properties": {"x": parameter}, "$defs": {"small": {"maximum": 5}}}}
    turn = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"x": value}}}]}
    row = read_own(tmp_path, conversation(turn, tools=[tool]))
    assert isinstance(row, dict) is fits, row
    if isinstance(row, dict):
        return
    assert row[0] == "bad call"


def test_a_schema_of_another_document_is_not_fetched(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    parameters = {"properties": {"x": {"$ref": (tmp_path / "other.json").as_uri()}}}
    turn = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}
    row = read_own(tmp_path, conversation(turn, tools=[{"name": "f", "parameters": parameters}]))
    assert isinstance(row, tuple), row
    assert "not JSON Schema" in row[1]


def test_tools_and_calls_in_columns_of_parquet_keep_their_keys_apart(tmp_path: Path) -> None:
    tools = [WEATHER, {"name": "price", "parameters": {"properties": {"ticker": {"type": "string"}}}}]
    price = {"function": {"name": "price", "arguments": {"ticker": "X"}}}
    both = [*calling((None, "Bern"))["tool_calls"], price]
    row = conversation({"role": "assistant", "tool_calls": both}, tools=tools)
    file = tmp_path / "own.parquet"
    pq.write_table(pa.Table.from_pylist([row]), file)
    (row_read,), _ = read_files(own_source(file), file)
    calls = [json.loads(each["function"]["arguments"]) for each in row_read["messages"][1]["tool_calls"]]
    assert calls == [{"city": "Bern"}, {"ticker": "X"}]
    properties = [set(each["function"]["parameters"]["properties"]) for each in json.loads(row_read["tools"])]
    assert properties == [{"city", "days"}, {"ticker"}]


def test_calls_count_in_a_conversations_length(tmp_path: Path) -> None:
    result = read_own(tmp_path, conversation(calling((None, "x" * 5000))))
    assert isinstance(result, dict)
    assert result["characters"] > 5000


@pytest.mark.parametrize(
    ("rate", "rate_read"),
    [
        (0, 0.0),
        (1.0, 1.0),
        (float("nan"), None),
        (None, None),
        (65.6, "the pass rate is 65.6, not from 0 to 1"),
        (-0.1, "the pass rate is -0.1, not from 0 to 1"),
    ],
)
def test_a_pass_rate_is_a_share(tmp_path: Path, rate: float | None, rate_read: float | str | None) -> None:
    result = read_own(tmp_path, {"problem": "What is it?", "answer": 2, "pass_rate": rate})
    assert (result["pass_rate"] if isinstance(result, dict) else result[1]) == rate_read
    row = changed("openmathreasoning", pass_rate_72b_tir=str(rate))
    if isinstance(rate_read, str):
        assert refusal(tmp_path, "openmathreasoning", row) == ("malformed", rate_read)
    else:
        assert one(tmp_path, "openmathreasoning", row)["pass_rate"] == rate_read


def test_rows_with_the_same_id_are_refused(tmp_path: Path) -> None:
    def rows(*names: str | None) -> list[dict[str, Any]]:
        fields = [{"problem": f"What is {at}?", "answer": at} for at in range(len(names))]
        return [row if name is None else {**row, "id": name} for name, row in zip(names, fields, strict=True)]

    for names, twice in ((("a", "b", "a"), "a"), (("2", None), "2")):
        file = lines(tmp_path / "own.jsonl", *rows(*names))
        with pytest.raises(UserError, match=rf"two rows of .*own\.jsonl have the id '{twice}'"):
            read_files(own_source(file), file)
    first, second = lines(tmp_path / "1.jsonl", *rows("1")), lines(tmp_path / "2.jsonl", *rows("1"))
    with pytest.raises(UserError, match=r"two rows of .*1.jsonl, .*2.jsonl have the id '1'"):
        read_files(sources()["project-euler"], first, second, name="project-euler")


def test_a_prepared_set_can_be_read_again(tmp_path: Path) -> None:
    row = one(tmp_path, "toolace", ROWS["toolace"])
    file = tmp_path / "again.parquet"
    pq.write_table(pa.Table.from_pylist([row], schema=SCHEMAS["conversations"]), file)
    (again,), _ = read_files(own_source(file), file, name="again")
    assert (again["messages"], again["tools"]) == (row["messages"], row["tools"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"prompt": "x", "reward_model": {}}\n{"prompt"\n', "line 2: not JSON"),
        (b'{"prompt": "x", "reward_model": {}}\n[1]\n', "line 2: not a JSON object, but list"),
        (b"", "no rows"),
        ('{"prompt": "x", "reward_model": {}}'.encode("utf-16"), "UTF-16 or UTF-32, not UTF-8"),
        ('{"prompt": "x", "reward_model": {}}'.encode("utf-16-be"), "UTF-16 or UTF-32, not UTF-8"),
        (b"\xe9", "line 1: not JSON"),
        (b'{"prompt": "x", "reward_model": {}}\n{"prompt": ' + b"[" * 100_000, "line 2: not JSON"),
        (b'{"prompt": "x", "reward_model": {}}\n{"other": "\xff"}\n', "line 2: not JSON"),
        (b'{"prompt": "x", "reward_model": {}}\n{}{}\n\n', "line 2: not JSON"),
    ],
)
def test_a_damaged_file_is_refused_as_a_whole(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_files(sources()["dapo"], file)


def test_what_is_no_parquet_and_what_is_neither_is_refused(tmp_path: Path) -> None:
    for name, message in (
        ("x.parquet", "cannot read .*x.parquet"),
        ("x.csv", "neither .json, .jsonl nor .parquet"),
    ):
        (tmp_path / name).write_text("a,b")
        with pytest.raises(UserError, match=message):
            read_files(sources()["dapo"], tmp_path / name)
    with pytest.raises(UserError, match=r"absent.jsonl: No such file"):
        read_files(sources()["dapo"], tmp_path / "absent.jsonl")


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("before", ["", "\ufeff", " \n"])
def test_a_json_file_that_holds_a_list_is_read(tmp_path: Path, indent: int | None, before: str) -> None:
    rows = [changed("dapo", prompt=f"What is {n} plus {n}, Zürich?", more=[n]) for n in range(5)]
    file = tmp_path / "data.json"
    file.write_text(before + json.dumps(rows, indent=indent, ensure_ascii=False), encoding="utf-8")
    rows_read, counts = read_files(sources()["dapo"], file, name="dapo")
    assert [row["id"] for row in rows_read] == [f"dapo-{number}" for number in range(1, 6)]
    assert rows_read[4]["problem"] == "What is 4 plus 4, Zürich?"
    assert counts.read == 5


def test_the_rows_of_a_json_list_are_numbered_through_its_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [changed("dapo", prompt=f"What is {n} plus {n}?") for n in range(7)]
    rows[5]["reward_model"] = None
    file = tmp_path / "data.json"
    file.write_text(json.dumps(rows))
    monkeypatch.setattr(reading, "PIECE_BYTES", file.stat().st_size // 3)
    rows_read, counts = read_files(sources()["dapo"], file, name="dapo")
    assert [row["id"] for row in rows_read] == [f"dapo-{number}" for number in (1, 2, 3, 4, 5, 7)]
    assert [example["place"] for example in counts.examples] == [f"{file}, row 6"]


def test_json_lines_in_a_json_file_and_what_only_python_reads_in_a_list(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    lines(file, ROWS["dapo"], ROWS["dapo"])
    assert read_files(sources()["dapo"], file)[1].read == 2
    file.write_text(json.dumps([{**ROWS["dapo"], "loss": float("nan")}, changed("dapo", prompt="\ud800")]))
    rows_read, counts = read_files(sources()["dapo"], file)
    assert (len(rows_read), counts.refused) == (1, {"malformed": 1})
    file.write_text(json.dumps([ROWS["dapo"]]), encoding="utf-16")
    with pytest.raises(UserError, match="UTF-16 or UTF-32, not UTF-8"):
        read_files(sources()["dapo"], file)


def test_a_row_that_only_python_reads_leaves_the_others_of_its_list_as_they_are(tmp_path: Path) -> None:
    rows = [changed("dapo", prompt=f"What is {n} plus {n}?", more=[n, {"deep": "]"}]) for n in range(5)]
    rows[2]["loss"] = float("inf")
    for indent in (None, 3):
        file = tmp_path / "data.json"
        file.write_text(json.dumps(rows, indent=indent))
        listed_rows = [bytes(each) for each in reading._listed_rows(file) or ()]
        assert [json.loads(each) for each in listed_rows] == rows
        assert all(each in file.read_bytes() for each in listed_rows), "the texts are parts of the file"
        assert read_files(sources()["dapo"], file)[1].read == 5
    for broken in ("[NaN,]", "[NaN", "[NaN]]", "[NaN 1]"):
        file.write_text(broken)
        with pytest.raises(UserError, match="is not JSON"):
            read_files(sources()["dapo"], file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('[{"prompt": "x", "reward_model": {}}, {"prompt"', "is not JSON"),
        ('[{"prompt": "x", "reward_model": {}}, 7]', "row 2: not a JSON object, but int"),
        ("[7]", "row 1: not a JSON object, but int"),
        ("[]", "no rows"),
        ("", "no rows"),
        ('{"data": [\n1]}', "line 1: not JSON"),
        ('[{"prompt": "x"}]', "has no column reward_model"),
    ],
)
def test_a_json_file_that_holds_no_rows_is_refused_as_a_whole(
    tmp_path: Path, content: str, message: str
) -> None:
    file = tmp_path / "data.json"
    file.write_text(content)
    with pytest.raises(UserError, match=message):
        read_files(sources()["dapo"], file)


def test_a_json_list_of_ones_own_says_by_its_keys_what_it_holds(tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    file.write_text(json.dumps([{"problem": "What is 1+1?", "answer": 2}]))
    (row,), _ = read_files(own_source(file), file)
    assert row["answer"] == "2"
    file.write_text("[]")
    with pytest.raises(UserError, match="it has no rows"):
        own_source(file)


def toolace(system: str, *turns: tuple[str, str]) -> dict[str, Any]:
    all_turns = turns or (("user", "Rain?"), ("assistant", '[get_weather(city="Bern")]'))
    return {
        "system": system,
        "conversations": [{"from": speaker, "value": text} for speaker, text in all_turns],
    }


TOOLACE_INSTRUCTIONS = (
    "You are an expert in composing functions. You are given a question and a set of possible functions. "
    "\nBased on the question, you will need to make one or more function/tool calls to achieve the purpose. \nIf none "
    "of the functions can be used, point it out. If the given question lacks the parameters required by the function, "
    "also point it out. \nYou should only return the function call in tools call sections.{date}Here is a list of "
    "functions in JSON format that you can invoke:\n{tools}. \nShould you decide to return the function call(s). \nPut "
    "it in the format of [func1(params_name=params_value, params_name2=params_value2...), func2(params)]\n\nNO other "
    "text MUST be included. \n{rest}"
)


@pytest.mark.parametrize(
    ("date", "rest", "system"),
    [
        (" ", "", None),
        ("\nThe current time is 2024-03-02 09:30:00.", "", "The current time is 2024-03-02 09:30:00."),
        ("\nToday is 2024-03-02, Saturday.\n", "", "Today is 2024-03-02, Saturday."),
        (" ", "Answer in French.", "Answer in French."),
        ("\nToday is Saturday.\n", "Answer in French.", "Today is Saturday.\n\nAnswer in French."),
    ],
)
def test_toolaces_system_text_loses_its_functions_and_the_words_about_their_form_alone(
    tmp_path: Path, date: str, rest: str, system: str | None
) -> None:
    text = TOOLACE_INSTRUCTIONS.format(date=date, tools=json.dumps([WEATHER]), rest=rest)
    row = one(tmp_path, "toolace", toolace(text))
    system_texts = [each["content"] for each in row["messages"] if each["role"] == "system"]
    assert system_texts == ([system] if system else [])
    assert len(json.loads(row["tools"])) == 1


def test_the_sentence_before_toolaces_functions_is_not_left_without_them(tmp_path: Path) -> None:
    for before, system in (
        ("You may call these functions:", []),
        ("Be brief. The tools that you have are:\n", ["Be brief."]),
        ("You are a pirate.\nFunctions: ", ["You are a pirate."]),
    ):
        row = one(tmp_path, "toolace", toolace(f"{before} {json.dumps([WEATHER])}."))
        assert [each["content"] for each in row["messages"] if each["role"] == "system"] == system


@pytest.mark.parametrize(
    "tools",
    [
        "- name: get_weather\n  description: The weather.\n  parameters:\n    city: str",
        "get_weather(city: str): the weather of a city",
        "<function><name>get_weather</name></function>",
    ],
)
def test_functions_in_a_form_other_than_json_are_the_reason(tmp_path: Path, tools: str) -> None:
    text = TOOLACE_INSTRUCTIONS.format(date=" ", tools=tools, rest="").replace("in JSON format ", "")
    reason, detail = refusal(tmp_path, "toolace", toolace(text, ("user", "Hi"), ("assistant", "Hello!")))
    assert reason == "unreadable tools"
    assert tools[:10] in detail


@pytest.mark.parametrize(
    "system",
    [
        "Tools:\n```yaml\n- name: get_weather\n```",
        "<tools>\n<tool name='get_weather'/>\n</tools>",
        "Here are the APIs you may use: get_weather(city: str) - gets the weather",
        "You may call def get_weather(city): ...",
        "You have access to tools. get_weather: the weather.",
    ],
)
@pytest.mark.parametrize("name", ["toolace", "glaive-v2"])
def test_a_row_is_refused_if_its_system_text_speaks_of_tools_and_none_is_read(
    tmp_path: Path, name: str, system: str
) -> None:
    row = {**with_turns(name, ("user", "Hi"), ("assistant", "Hello!")), "system": system}
    reason, detail = refusal(tmp_path, name, row)
    assert reason == "unreadable tools"
    assert system[:6] in detail


@pytest.mark.parametrize(
    ("system", "count"),
    [
        (f"Functions: {json.dumps(WEATHER)}", 1),
        (f"Functions:\n{json.dumps(WEATHER)}\n{json.dumps({**WEATHER, 'name': 'other'})}", 2),
        (json.dumps({"tools": [WEATHER]}), 1),
        (json.dumps({"functions": [{"type": "function", "function": WEATHER}]}, indent=1), 1),
        (f'{{"user": "Ada"}}\nYour tools:\n[{json.dumps(WEATHER)}]', 1),
    ],
)
def test_functions_of_toolace_in_any_json_are_read(tmp_path: Path, system: str, count: int) -> None:
    row = one(tmp_path, "toolace", toolace(system))
    assert len(json.loads(row["tools"])) == count
    system_texts = [each["content"] for each in row["messages"] if each["role"] == "system"]
    assert system_texts == (['{"user": "Ada"}'] if "Ada" in system else [])


@pytest.mark.parametrize(
    "form", ["<func1(params_name=params_value)>", "func1 with its params", "（func1(a=b)）"]
)
def test_the_sentence_about_the_form_of_calls_is_not_left_in_another_form(tmp_path: Path, form: str) -> None:
    start = TOOLACE_INSTRUCTIONS.partition("Should")[0].format(date=" ", tools=json.dumps([WEATHER]))
    text = f"{start}Should you decide to return the function call(s), put it in the format of {form}\n"
    assert refusal(tmp_path, "toolace", toolace(text))[0] == "another call format"


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "get_weather", "arguments": {"city": "Bern"}}',
        '{ "name": "get_weather", "arguments": \'{"city": "Bern"}\' }',
        'functioncall {"name": "get_weather"}',
        '<tool_call>{"name": "get_weather"}</tool_call>',
        '(get_weather(city="Bern"))',
        '［get_weather（city＝"Bern"）］',
        '[ get_weather: city="Bern" ]',
        'I will use get_weather (city="Bern") now.',
        '[GetWeather(city="Bern")] now',
        "I call get_weather().",
    ],
)
@pytest.mark.parametrize("name", CALLS)
def test_what_looks_like_a_call_is_not_taught_as_prose(tmp_path: Path, name: str, text: str) -> None:
    row = with_turns(name, ("user", "Rain?"), ("assistant", text))
    reason, detail = refusal(tmp_path, name, row)
    assert reason == "bad call"
    assert "a call" in detail


@pytest.mark.parametrize(
    "text", ["get_weather (the function) needs a city.", "f(x) = 2 and [a(1), b(2)]", '{"rain": 1}']
)
@pytest.mark.parametrize("name", CALLS)
def test_what_only_names_a_tool_stays_prose(tmp_path: Path, name: str, text: str) -> None:
    row = one(tmp_path, name, with_turns(name, ("user", "Rain?"), ("assistant", f"So: {text}")))
    assert row["messages"][-1]["content"] == f"So: {text}"


def test_another_form_of_calls_that_the_system_text_asks_for_is_refused(tmp_path: Path) -> None:
    text = f"Functions: {json.dumps([WEATHER])} Reply with [func(name=value)] alone, please."
    assert refusal(tmp_path, "toolace", toolace(text))[0] == "another call format"


@pytest.mark.parametrize("after", [".", ". ", ";", "\n", " \n."])
def test_signs_after_a_call_do_not_make_it_prose(tmp_path: Path, after: str) -> None:
    row = toolace(TOOLACE_SYSTEM, ("user", "Rain?"), ("assistant", f'[get_weather(city="Bern")]{after}'))
    (call,) = one(tmp_path, "toolace", row)["messages"][-1]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Bern"}


@pytest.mark.parametrize(
    "text",
    [
        'Sure: [get_weather(city="Bern")]',
        '[get_weather(city="Bern")] That is all.',
        '```\n[get_weather(city="Bern")]\n```',
        'get_weather(city="Bern")',
        '[get_weather (city="Bern")] then',
    ],
)
def test_a_call_with_words_around_it_is_not_taught_as_prose(tmp_path: Path, text: str) -> None:
    row = toolace(TOOLACE_SYSTEM, ("user", "Rain?"), ("assistant", text))
    reason, detail = refusal(tmp_path, "toolace", row)
    assert reason == "bad call"
    assert "around" in detail or "without brackets" in detail


@pytest.mark.parametrize("text", ["[1] It will rain (in Bern).", "See [the page](http://x.org)."])
def test_prose_in_brackets_stays_prose(tmp_path: Path, text: str) -> None:
    row = one(tmp_path, "toolace", toolace(TOOLACE_SYSTEM, ("user", "Rain?"), ("assistant", text)))
    assert row["messages"][-1]["content"] == text


@pytest.mark.parametrize(
    ("system", "texts"),
    [
        ("SYSTEM: You are a helpful assistant, with no access to external functions.\n\n\n", []),
        (
            "SYSTEM: You are a pirate, with no access to external functions.",
            ["You are a pirate, with no access to"],
        ),
        (
            "SYSTEM: You are a helpful assistant with access to the following functions. Use them if required -\n"
            f"{json.dumps(WEATHER)}\n{json.dumps({**WEATHER, 'name': 'other'})}\nAnswer in French.",
            ["Answer in French."],
        ),
        (
            f"SYSTEM: You are a helpful assistant with access to these functions -\n{json.dumps(WEATHER)}",
            [],
        ),
        (
            f"SYSTEM: Talk like a pirate. Call these functions:\n{json.dumps(WEATHER)}",
            ["Talk like a pirate."],
        ),
    ],
)
def test_glaives_system_text_loses_its_functions_and_its_usual_words_alone(
    tmp_path: Path, system: str, texts: list[str]
) -> None:
    row = changed("glaive-v2", system=system, chat=glaive_chat(("USER", "Hi"), ("ASSISTANT", "Hello!")))
    messages = one(tmp_path, "glaive-v2", row)["messages"]
    system_texts = [each["content"] for each in messages if each["role"] == "system"]
    assert len(system_texts) == len(texts)
    assert all(text.startswith(words) for text, words in zip(system_texts, texts, strict=True))


def code_of(tmp_path: Path, solution: str) -> tuple[str | None, str]:
    """Converts a solution to a call. Returns the text before the call, and the code of the call."""
    message = one(tmp_path, "magicoder", changed("magicoder", solution=solution))["messages"][-1]
    (call,) = message["tool_calls"]
    return message["content"], json.loads(call["function"]["arguments"])["code"]


@pytest.mark.parametrize(
    ("solution", "code"),
    [
        (
            "1. So:\n\n   ```python\n   for n in range(2):\n       print(n)\n   ```",
            "for n in range(2):\n    print(n)",
        ),
        ("\t```python\n\tprint(1)\n\t```", "print(1)"),
        ("   ```python\n   if 1:\n\n     print(1)\n ```", "if 1:\n\n  print(1)"),
        ('```python\ns = "```"\nprint(s)\n```', 's = "```"\nprint(s)'),
        ("````python\ns = 1\n````", "s = 1"),
        ("~~~py\ns = 1\n~~~", "s = 1"),
        ("```python\r\ns = 1\r\nt = 2\r\n```\r\n", "s = 1\r\nt = 2"),
    ],
)
def test_a_block_of_code_is_read_as_markdown_has_it(tmp_path: Path, solution: str, code: str) -> None:
    assert code_of(tmp_path, solution)[1] == code


@pytest.mark.parametrize(
    ("solution", "reason", "message"),
    [
        ("```python\nprint(1)\n```\nOr:\n```python\nprint(2)\n```", "several blocks", "2 blocks"),
        ("```python\nprint(1)\n```\nIt prints:\n```\n1\n```", "several blocks", "2 blocks"),
        ("```python\nprint(1)", "no code", "not closed"),
        ("```python\n\n```", "no code", "empty"),
        ("```python\nname = input('Name: ')\nprint(name)\n```", "reads input", "input"),
        ("```python\nimport sys\nfor line in sys.stdin:\n    print(line)\n```", "reads input", "stdin"),
        ("```python\nfrom sys import stdin\nprint(stdin.read())\n```", "reads input", "stdin"),
        (
            "```python\nfrom sys import argv, stdin, stdout\nprint(stdin.read())\n```",
            "reads input",
            "sys.stdin",
        ),
        ("```python\nfrom sys import *\nprint(stdin.read())\n```", "reads input", "sys.stdin"),
        ("```python\nimport sys as q\nq.stdin.read()\n```", "reads input", "line 2 reads sys.stdin"),
        (
            "```python\nimport fileinput\nfor l in fileinput.input():\n    pass\n```",
            "reads input",
            "fileinput",
        ),
        ("```python\nprint(open(0).read())\n```", "reads input", "open(0)"),
        ("```python\nprint(open(file=0).read())\n```", "reads input", "open(0)"),
        ("```python\nprint(open('/dev/stdin').read())\n```", "reads input", "/dev/stdin"),
        ("```python\nimport os\nos.read(0, 5)\n```", "reads input", "os.read(0)"),
        ("```python\nf = input\nf()\n```", "reads input", "input"),
        ("```python\nprint(list(map(int, iter(input, ''))))\n```", "reads input", "input"),
        ("```python\ndef f(input):\n    return input\nf(1)\ng = input\n```", "reads input", "input"),
        ("```python\nimport builtins as b\nb.input()\n```", "reads input", "builtins.input"),
        ("```python\nfrom getpass import getpass as g\ng()\n```", "reads input", "getpass.getpass"),
        ("```python\nprint 'hello'\n```", "not Python", "does not compile"),
        ("```python\nx = 'a\\x00'\n\x00\n```", "not Python", "does not compile"),
    ],
)
def test_code_that_would_not_run_as_it_is_taught_is_refused_with_the_reason(
    tmp_path: Path, solution: str, reason: str, message: str
) -> None:
    reason_given, detail = refusal(tmp_path, "magicoder", changed("magicoder", solution=solution))
    assert reason_given == reason
    assert message in detail


@pytest.mark.parametrize(
    "code",
    [
        "def double(input):\n    return 2 * input  # input() is not called\nprint(double(2))",
        "input = [1, 2]\nprint(sum(input), [input for input in input])",
        "import sys\nprint(sys.argv, file=sys.stdout)\nself.input = open('0').read(0)",
        "from os import path as stdin\nprint(stdin.join('a', 'b'))",
        "print('sys.stdin and input() are named only')",
    ],
)
def test_code_that_only_names_input_is_read(tmp_path: Path, code: str) -> None:
    assert code_of(tmp_path, f"```python\n{code}\n```")[1] == code


def test_a_problem_whose_label_is_no_persons_answer_is_refused_as_that(tmp_path: Path) -> None:
    row = changed("openmathreasoning", problem_type="no_answer_extracted")
    reason, detail = refusal(tmp_path, "openmathreasoning", row)
    assert reason == "no answer extracted"
    assert "vote" in detail
    assert "97" in detail
    for empty in (None, ""):
        row = changed("openmathreasoning", problem_type="no_answer_extracted", expected_answer=empty)
        assert refusal(tmp_path, "openmathreasoning", row)[0] == "no answer extracted"
    for rate in ("n/a", None, ""):
        row = changed("openmathreasoning", pass_rate_72b_tir=rate)
        assert one(tmp_path, "openmathreasoning", row)["pass_rate"] is None


WRAPPER = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\n{problem}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)


def test_dapos_wrapper_is_taken_off_a_prompt_that_is_text_too(tmp_path: Path) -> None:
    text = WRAPPER.format(problem="What is $1+1$?\n\nAnswer in base 2.")
    row = one(tmp_path, "dapo", changed("dapo", prompt=text))
    assert row["problem"] == "What is $1+1$?\n\nAnswer in base 2."


@pytest.mark.parametrize(
    ("prompt", "reason", "message"),
    [
        (
            WRAPPER.format(problem="What?").replace("step by step", "slowly"),
            "unknown wrapper",
            "Solve the following",
        ),
        (
            WRAPPER.format(problem="What?").replace("own line", "last line"),
            "unknown wrapper",
            "Remember to put",
        ),
        (
            "What?\nPlease reason step by step, and put your final answer within \\boxed{}.",
            "unknown wrapper",
            "step",
        ),
        ("What? Put your final answer within $\\boxed{}$.", "unknown wrapper", "boxed"),
        (
            "What? Let's think step by step and output the final answer within \\boxed{}.",
            "unknown wrapper",
            "step",
        ),
        ("Please solve the following math problem: What?", "unknown wrapper", "solve the following"),
        ("Solve this problem. What?", "unknown wrapper", "Solve this"),
        ("What? Reply in <answer></answer>.", "unknown wrapper", "<answer>"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "b"}], "malformed", "2 messages"),
        ([{"role": "user"}], "malformed", "prompt"),
    ],
)
def test_a_prompt_that_cannot_be_unwrapped_is_refused_with_the_reason(
    tmp_path: Path, prompt: Any, reason: str, message: str
) -> None:
    reason_given, detail = refusal(tmp_path, "dapo", changed("dapo", prompt=prompt))
    assert reason_given == reason
    assert message in detail


@pytest.mark.parametrize(
    "problem",
    [
        r"Fill in: $3 + \boxed{\ } = 5$. What is the number in the box?",
        "A frog climbs a stair step by step. Express your final answer as an integer.",
        "Ann must solve the following equation: $x + 1 = 2$. What is $x$?",
    ],
)
def test_words_of_a_problem_are_no_wrapper(tmp_path: Path, problem: str) -> None:
    assert one(tmp_path, "dapo", changed("dapo", prompt=problem))["problem"] == problem


@pytest.mark.parametrize(
    "thought",
    [
        "<think></think>",
        "<think>\n\n</think>\n\n",
        "<think> </think>",
        "<thinking></thinking>",
        "<seed:think>\n</seed:think>\n",
    ],
)
def test_an_empty_thought_is_taken_off_an_answer(tmp_path: Path, thought: str) -> None:
    row = one(tmp_path, "llama-nemotron", changed("llama-nemotron", output=f"{thought}Hello!"))
    assert row["messages"][-1]["content"] == "Hello!"
    before = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": f"{thought}Hi!"},
        {"role": "user", "content": "What is <think>?"},
    ]
    row = one(tmp_path, "llama-nemotron", changed("llama-nemotron", input=before))
    assert [each["content"] for each in row["messages"][:3]] == ["Hi", "Hi!", "What is <think>?"]


@pytest.mark.parametrize(
    "output",
    [
        "<thinking>Well.</thinking>Hello!",
        "<think>Well.</think>Hello!",
        "Well.</think>Hello!",
        "<think>Hello!",
    ],
)
def test_an_answer_with_a_thought_is_refused_as_reasoning(tmp_path: Path, output: str) -> None:
    reason, detail = refusal(tmp_path, "llama-nemotron", changed("llama-nemotron", output=output))
    assert (reason, "although reasoning is off" in detail) == ("reasoning", True)


def test_nemotrons_own_system_text_is_kept_but_for_its_switch(tmp_path: Path) -> None:
    row = one(tmp_path, "llama-nemotron", changed("llama-nemotron", system_prompt="Talk like a pirate."))
    assert [each["content"] for each in row["messages"]][:2] == ["Talk like a pirate.", "Hello?"]
    assert one(tmp_path, "llama-nemotron", ROWS["llama-nemotron"])["messages"][0]["content"] == "Hello?"
    user = {"role": "user", "content": "Hi"}
    for text, rest in (
        ("detailed thinking off", []),
        ("Detailed thinking off.\n\nTalk like a pirate.", ["Talk like a pirate."]),
        ("Talk like a pirate.\ndetailed thinking off", ["Talk like a pirate."]),
    ):
        as_message = changed(
            "llama-nemotron", input=[{"role": "system", "content": text}, user], system_prompt=text
        )
        for row in (as_message, changed("llama-nemotron", input=[user], system_prompt=text)):
            texts = [each["content"] for each in one(tmp_path, "llama-nemotron", row)["messages"]]
            assert texts[:-1] == [*rest, "Hi"]
    on = changed("llama-nemotron", system_prompt="detailed thinking on")
    assert refusal(tmp_path, "llama-nemotron", on)[0] == "reasoning"


def test_a_message_of_white_space_is_refused_as_empty(tmp_path: Path) -> None:
    assert read_own(tmp_path, conversation({"role": "assistant", "content": " \n"})) == (
        "malformed",
        "a message of the assistant is empty",
    )

"""What training starts from is checked before anything is made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.optional import needs

from rstar2.data.parquet import read_rows, write_parquet
from rstar2.errors import UserError
from rstar2.train.plan import (
    SftPlan,
    check_model,
    plan_sft,
    read_conversations,
    with_our_template,
    write_conversations,
)
from rstar2.train.recipe import sft_recipe

GOOD = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"messages": []}, "row 2: no messages"),
        ({"messages": [{"role": "user", "content": "?"}]}, "row 2: no assistant message"),
        ({"messages": [{"role": "robot", "content": "?"}]}, "row 2: message 1 has role 'robot'"),
        ({"messages": [{"role": "user", "content": 3}]}, "row 2: message 1 has no text content"),
        ({"messages": [{"role": "assistant", "content": None}]}, "row 2: message 1 has no text content"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"name": "f"}]}]},
            "row 2: message 1 has tool_calls",
        ),
        ({"messages": ["hello"]}, "row 2: message 1 is no object"),
        ({}, "row 2: no messages"),
        ([], "line 2: not a JSON object"),
    ],
)
def test_a_bad_conversation_is_named(tmp_path: Path, row: object, said: str) -> None:
    with pytest.raises(UserError) as caught:
        read_conversations(lines(tmp_path / "x.jsonl", {"messages": GOOD}, row))
    assert said in caught.value.message


def test_long_conversations_are_counted_at_the_start_and_dropped_or_cut(
    tmp_path: Path, tokenizer: Any
) -> None:
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    long = [GOOD[0], {"role": "assistant", "content": "so " * 200}]
    data = lines(tmp_path / "x.jsonl", {"messages": GOOD}, {"messages": long}, {"messages": GOOD})

    def planned(*changes: str) -> SftPlan:
        return plan_sft(sft_recipe(None, ["max_tokens=100", "batch=2", *changes]), tmp_path, data)

    dropped, cut = planned(), planned("too_long=cut")
    assert (dropped.too_long, cut.too_long) == (1, 1)
    assert [len(plan.conversations) for plan in (dropped, cut)] == [2, 3]
    assert planned("max_tokens=2000").too_long == 0
    with pytest.raises(UserError, match="has 2 conversations of at most 100 tokens, a batch needs 3"):
        planned("batch=3")


def test_a_malformed_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"messages": GOOD}) + "\n{nope\n")
    with pytest.raises(UserError, match="line 2: not JSON"):
        read_conversations(path)


def test_conversations_survive_the_way_to_parquet(tmp_path: Path) -> None:
    rows = read_conversations(lines(tmp_path / "x.jsonl", {"messages": GOOD}))
    thoughtful = [GOOD[0], {"role": "assistant", "content": "<reason></reason>\n!"}]
    for _ in range(2):
        write_conversations(tmp_path / "x.parquet", rows)
        rows = read_conversations(tmp_path / "x.parquet")
        assert [[dict(m) for m in row["messages"]] for row in rows] == [thoughtful]


def test_calls_of_openais_form_are_written_as_the_model_will_write_them(tmp_path: Path) -> None:
    arguments = {"code": "print(1)", "input": ""}
    calls = [{"id": "1", "type": "function", "function": {"name": "run", "arguments": json.dumps(arguments)}}]
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "content": "1", "tool_call_id": "1"},
        {"role": "assistant", "content": "<reason>so</reason>\n1", "tool_calls": None},
    ]
    rows = read_conversations(lines(tmp_path / "x.jsonl", {"messages": messages}))
    write_conversations(tmp_path / "x.parquet", rows)
    [row] = read_rows(tmp_path / "x.parquet", "messages")
    first, last = row["messages"][1]["content"], row["messages"][3]["content"]
    call = json.dumps({"name": "run", "arguments": arguments})
    assert first == f"<reason></reason>\n<tool_call>\n{call}\n</tool_call>"
    assert last == "<reason>so</reason>\n1"


def test_rl_data_that_is_json_names_the_command_that_prepares_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="RL trains on parquet") as refused:
        read_rows(tmp_path / "mine.jsonl", "prompt")
    assert f"rstar2 data prepare {tmp_path / 'mine.jsonl'}" in refused.value.hint


@pytest.mark.slow
@needs("verl")
def test_sft_learns_all_that_the_model_will_have_to_write(tmp_path: Path) -> None:
    """VERL masks the generation prompt; what comes after it, and only that, must be learnt."""
    from omegaconf import OmegaConf
    from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset

    from rstar2.data import builtin
    from rstar2.demo.tiny import TinyModel, make_tiny_model
    from rstar2.prompts import load_codec

    make_tiny_model(tmp_path / "model", TinyModel(layers=1), builtin.traces(1, 50, {}), builtin.PROMPT, 1)
    codec = load_codec(tmp_path / "model")
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "<tool_call>x</tool_call>"},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "<reason>Seen.</reason>\nThe answer is 4."},
    ]
    data = tmp_path / "x.parquet"
    write_conversations(data, read_conversations(lines(tmp_path / "x.jsonl", {"messages": messages})))
    rows = MultiTurnSFTDataset(str(data), codec.tokenizer, OmegaConf.create({"pad_mode": "no_padding"}))
    ids, mask = rows[0]["input_ids"].tolist(), rows[0]["loss_mask"].tolist()
    learnt = codec.tokenizer.decode([token for token, counts in zip(ids, mask, strict=True) if counts])
    assert (
        learnt
        == "</reason>\n<tool_call>x</tool_call><|im_end|>\nSeen.</reason>\nThe answer is 4.<|im_end|>\n"
    )
    prompt = codec.prompt(messages[:2])
    assert ids[: len(prompt)] == prompt, "a rollout's prompt must be what SFT showed"
    turn = codec.tool_turn(["4"])
    assert any(ids[i : i + len(turn) - 1] == turn[1:] for i in range(len(ids))), (
        "tool output must look the same"
    )


@pytest.mark.parametrize("content", [b"", b"not parquet at all"])
def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(content)
    with pytest.raises(UserError, match="cannot read"):
        read_rows(path, "prompt")


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_parquet(path, [{"other": 1}])
    with pytest.raises(UserError, match="no column prompt"):
        read_rows(path, "prompt")


@pytest.mark.parametrize("present", [[], ["config.json"], ["config.json", "model.safetensors"]])
def test_a_model_folder_without_its_parts_is_refused(tmp_path: Path, present: list[str]) -> None:
    for name in present:
        (tmp_path / name).write_text("{}")
    with pytest.raises(UserError) as caught:
        check_model(tmp_path)
    missing = ["config.json", "weights", "tokenizer"][len(present)]
    assert missing in caught.value.message


@needs("torch")
def test_the_copy_for_sft_has_our_template_and_the_models_weights(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    from rstar2.data import builtin
    from rstar2.demo.tiny import TinyModel, make_tiny_model
    from rstar2.prompts import CHAT_TEMPLATE

    model = tmp_path / "model"
    make_tiny_model(model, TinyModel(layers=1), builtin.traces(1, 50, {}), builtin.PROMPT, 1)
    base = with_our_template(model, tmp_path / "base")
    assert AutoTokenizer.from_pretrained(base).chat_template == CHAT_TEMPLATE
    assert (base / "model.safetensors").resolve() == (model / "model.safetensors").resolve()
    assert (base / "rstar2_prompt.json").read_text() == (model / "rstar2_prompt.json").read_text()

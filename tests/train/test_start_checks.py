"""Tests of the checks of models and data before training writes anything."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
import weakref
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.optional import needs
from support.waiting import TIMEOUT_S

from rstar2.cli.sft import split_lines, survey_lines
from rstar2.data.parquet import read_rows, write_parquet
from rstar2.errors import UserError
from rstar2.loop.formats.format import FORMAT_FILE, default_format, read_format, save_format
from rstar2.loop.turns.choose import codec_for, load_codec
from rstar2.loop.turns.codec import ChatCodec, Encoded
from rstar2.train.conversations import encode, read_conversations
from rstar2.train.encoding import STORE, batch_of, taught_codec, write_batches
from rstar2.train.recipe_files import sft_recipe
from rstar2.train.start_checks import (
    SftPlan,
    check_model,
    plan_sft,
    rl_format,
    with_format,
)
from rstar2.train.survey import SAMPLED_CONVERSATIONS, survey

BAD_CALL = {"function": {"name": "f", "arguments": '{"x": "\\ud83d"}'}}
GOOD = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]


def lines(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"messages": GOOD[::-1]}, "row 2: begins with an assistant message"),
        ({"messages": GOOD, "tools": "{"}, "row 2: tools is not a list of schemas"),
        ({"messages": []}, "row 2: no messages"),
        ({"messages": [{"role": "user", "content": "?"}]}, "row 2: no assistant message"),
        ({"messages": [{"role": "robot", "content": "?"}]}, "row 2: message 1 has role 'robot'"),
        ({"messages": [{"role": ["x"], "content": "?"}]}, "row 2: message 1 has role ['x']"),
        ({"messages": [GOOD[0], {**GOOD[1], "content": "\ud83d"}]}, "row 2: holds half a surrogate pair"),
        ({"messages": GOOD, "tools": '[{"name": "\\ud83d"}]'}, "row 2: holds half a surrogate pair"),
        (
            {"messages": [GOOD[0], {"role": "assistant", "tool_calls": [BAD_CALL]}]},
            "row 2: holds half a surrogate pair",
        ),
        ({"messages": [{"role": "user", "content": 3}]}, "row 2: message 1 has no text content"),
        ({"messages": [{"role": "assistant", "content": None}]}, "row 2: message 1 has no text content"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"name": "f"}]}]},
            "row 2: message 1 has tool_calls",
        ),
        ({"messages": ["hello"]}, "row 2: message 1 is not an object"),
        ({"messages": GOOD, "answer_form": "yes"}, "row 2: answer_form is 'yes', not true or false"),
        ({}, "row 2: no messages"),
        ([], "line 2: not a JSON object"),
    ],
)
def test_a_bad_conversation_is_named(tmp_path: Path, row: object, message: str) -> None:
    with pytest.raises(UserError) as excinfo:
        list(read_conversations(lines(tmp_path / "x.jsonl", {"messages": GOOD}, row)))
    assert message in excinfo.value.message


def test_long_conversations_are_counted_at_the_start_and_dropped_or_cut(
    tmp_path: Path, tokenizer: Any
) -> None:
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    long = [GOOD[0], {"role": "assistant", "content": "so " * 200}]
    data = lines(tmp_path / "x.jsonl", {"messages": GOOD}, {"messages": long}, {"messages": GOOD})

    def plan_of(*changes: str) -> SftPlan:
        return plan_sft(sft_recipe("laptop", ["max_tokens=100", "batch=2", *changes]), tmp_path, data)

    dropped, with_cut = plan_of(), plan_of("too_long=cut")
    assert (dropped.split.too_long, with_cut.split.too_long) == (1, 1)
    assert [len(plan.split.train) for plan in (dropped, with_cut)] == [2, 3]
    assert plan_of("max_tokens=2000").split.too_long == 0
    question = [{"role": "user", "content": "so " * 200}, GOOD[-1]]
    data = lines(tmp_path / "y.jsonl", {"messages": GOOD}, {"messages": question}, {"messages": GOOD})
    with_cut = plan_of("too_long=cut")
    assert (
        with_cut.split.too_long,
        with_cut.split.cut_to_nothing,
        len(with_cut.split.train),
    ) == (1, 1, 2)
    with pytest.raises(UserError, match="has 2 conversations of at most 100 tokens, but a batch needs 3"):
        plan_of("batch=3")


def test_the_lengths_of_a_sample_are_those_that_sft_would_see(tmp_path: Path, tokenizer: Any) -> None:
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    turns = [[GOOD[0], {"role": "assistant", "content": "so " * words}] for words in range(1, 601)]
    rows = [{"messages": messages} for messages in turns]
    data = lines(tmp_path / "x.jsonl", *rows)

    def mean_and_longest(*changes: str) -> tuple[float, int]:
        recipe = sft_recipe("laptop", ["batch=2", "max_tokens=2000", "validation.share=0", *changes])
        surveyed = survey(recipe, tmp_path, data)
        sample = surveyed.lengths
        assert surveyed.estimate is not None
        assert surveyed.estimate.sampled <= SAMPLED_CONVERSATIONS < surveyed.conversations == len(rows)
        plan = plan_sft(recipe, tmp_path, data)
        every = plan.split.lengths.tolist()
        assert surveyed.estimate.train == pytest.approx(len(every), rel=0.02)
        assert surveyed.estimate.too_long == pytest.approx(plan.split.too_long, abs=6)
        encoded = survey(recipe, tmp_path, data)
        assert encoded.split is not None
        assert (encoded.lengths, encoded.split.too_long) == (every, plan.split.too_long)
        shutil.rmtree(tmp_path / STORE)
        assert set(sample) <= set(every)
        assert sum(sample) / len(sample) == pytest.approx(sum(every) / len(every), rel=0.02)
        assert max(sample) >= 0.98 * max(every)
        return sum(sample) / len(sample), max(sample)

    whole, dropped, with_cut = (
        mean_and_longest(),
        mean_and_longest("max_tokens=700"),
        mean_and_longest("max_tokens=700", "too_long=cut"),
    )
    assert dropped[0] < with_cut[0] < whole[0]
    assert with_cut[1] == 700
    assert survey(sft_recipe(None, ["max_tokens=2"]), tmp_path, data).lengths == []


def test_a_dry_run_holds_few_conversations_and_says_what_becomes_of_them(
    tmp_path: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    rows = [
        {"messages": [{"role": "user", "content": f"{number}?"}, GOOD[1]]}
        for number in range(2 * SAMPLED_CONVERSATIONS)
    ]
    data = lines(tmp_path / "x.jsonl", *rows)
    recipe = sft_recipe("laptop", ["batch=2", "max_tokens=100", "validation.share=0.1"])
    alive = weakref.WeakSet[Row]()
    most = 0

    def watched(path: Path) -> Iterator[dict[str, Any]]:
        nonlocal most
        for row in read_conversations(path):
            alive.add(each := Row(row))
            most = max(most, len(alive))
            yield each

    monkeypatch.setattr("rstar2.train.survey.read_conversations", watched)
    surveyed = survey(recipe, tmp_path, data)
    assert most <= SAMPLED_CONVERSATIONS + 3
    assert list(survey_lines(surveyed, recipe)) == [
        "about 461 conversations to train on; the loss is measured on about 51 others, held out",
        "these are estimates from 256 of 512 conversations: SFT encodes all of them when it starts",
    ]
    plan = plan_sft(recipe, tmp_path, data)
    assert list(survey_lines(survey(recipe, tmp_path, data), recipe)) == list(split_lines(plan.split, recipe))
    [unknown] = survey_lines(survey(recipe, tmp_path / "elsewhere", data), recipe)
    assert unknown.startswith("512 conversations; how many are too long or held out is unknown: ")
    with pytest.raises(UserError, match="has 512 conversations, but a batch needs 513"):
        survey(sft_recipe("laptop", ["batch=513"]), tmp_path / "elsewhere", data)


class Row(dict[str, Any]):
    """A row to which a weak reference can point."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def test_a_malformed_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"messages": GOOD}) + "\n{nope\n")
    with pytest.raises(UserError, match="line 2: not JSON"):
        list(read_conversations(path))


def sample_texts(codec: ChatCodec, *messages: dict[str, Any], **more: Any) -> tuple[str, str]:
    """Returns the whole text of a conversation as SFT trains on it, and the part that is learned."""
    row = encode({"messages": list(messages), **more}, codec)
    assert len(row.input_ids) == len(row.loss_mask)
    learned = [token for token, counts in zip(row.input_ids, row.loss_mask, strict=True) if counts]
    return tuple(codec.tokenizer.decode(ids) for ids in (row.input_ids.tolist(), learned))


def test_chat_is_taught_as_it_is_from_where_generation_begins(codec: ChatCodec) -> None:
    whole, learned = sample_texts(codec, *GOOD)
    assert learned == "</reason>\n!<|im_end|>"
    assert whole == (
        "<|im_start|>system\n<|im_end|>\n<|im_start|>user\n?<|im_end|>\n"
        "<|im_start|>assistant\n<reason></reason>\n!<|im_end|>"
    ), "the prompt has no tools and no system text that the answer does not follow"


def test_data_that_contradicts_its_system_text_or_the_reward_is_named_at_the_start(
    tmp_path: Path, tokenizer: Any
) -> None:
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    conversation = [{"role": "system", "content": "Answer inside <answer>."}, *GOOD]
    form = {"role": "assistant", "content": "<reason>so</reason>\n<answer>\\boxed{1}</answer>"}
    recipe = sft_recipe("laptop", ["batch=1"])

    def warnings_for(*rows: Any) -> list[str]:
        data = lines(tmp_path / "x.jsonl", *rows)
        assert survey(recipe, tmp_path, data).estimate is not None
        before = survey(recipe, tmp_path, data).form
        at_the_start = list(plan_sft(recipe, tmp_path, data).split.data.form.warnings())
        assert before == at_the_start
        assert survey(recipe, tmp_path, data).split is not None
        return at_the_start

    assert warnings_for({"messages": [GOOD[0], form]}, {"messages": GOOD}) == []
    (both,) = warnings_for({"messages": [GOOD[0], form]}, {"messages": GOOD}, {"messages": conversation})
    assert both.startswith(
        "1 of 2 turns does not keep the form that their own system text or question asks for"
    )
    assert "the first in conversation 3" in both
    (mixed,) = warnings_for({"messages": [GOOD[0], form, *GOOD]}, {"messages": [GOOD[0], form]})
    assert mixed.startswith(
        "1 of 2 conversations has some turns in the format's form and some turns in another"
    )
    (never,) = warnings_for({"messages": GOOD})
    assert never.startswith(
        "none of the 1 conversations ends in the form that RL rewards, \\boxed{} inside <answer>"
    )
    assert "--set answer_form=0.5" in never


def test_a_thought_is_taught_after_the_generation_prompt(codec: ChatCodec) -> None:
    whole, learned = sample_texts(codec, GOOD[0], {"role": "assistant", "content": "<reason>so</reason>\n!"})
    assert learned == "so</reason>\n!<|im_end|>"
    assert whole.endswith("<|im_start|>assistant\n<reason>so</reason>\n!<|im_end|>")


ARGUMENTS = {"code": "print('π')", "input": ""}
CALLS = [{"id": "1", "type": "function", "function": {"name": "run", "arguments": json.dumps(ARGUMENTS)}}]
CALLING = [
    {"role": "user", "content": "?"},
    {"role": "assistant", "content": None, "tool_calls": CALLS},
    {"role": "tool", "content": "π", "tool_call_id": "1"},
    {"role": "assistant", "content": "<reason>so</reason>\n<answer>1</answer>", "tool_calls": None},
]


def test_calls_of_openais_form_are_taught_as_the_model_will_write_them(codec: ChatCodec) -> None:
    whole, learned = sample_texts(codec, *CALLING)
    call = json.dumps({"name": "run", "arguments": ARGUMENTS}, ensure_ascii=False)
    assert (
        learned
        == f"</reason>\n<tool_call>\n{call}\n</tool_call><|im_end|>so</reason>\n<answer>1</answer><|im_end|>"
    )
    assert default_format().tool_names[0] in whole, (
        "the prompt of a conversation with calls has the format's tools"
    )
    row_tools = [{"type": "function", "function": {"name": "run", "parameters": {}}}]
    for tools in (row_tools, json.dumps(row_tools)):
        whole, _ = sample_texts(codec, *CALLING, tools=tools)
        assert '"name": "run", "parameters"' in whole
        assert default_format().tool_names[0] not in whole


def test_what_sft_shows_is_what_a_rollout_shows(codec: ChatCodec) -> None:
    row = encode({"messages": CALLING}, codec)
    ids = row.input_ids.tolist()
    prompt, reply = codec.prompt(CALLING[:1]), codec.tool_turn(["π"])
    assert ids[: len(prompt)] == prompt
    assert [token for token, counts in zip(ids, row.loss_mask, strict=True) if not counts] == prompt + reply


def test_a_format_without_a_generation_prompt_of_its_own_teaches_all_that_is_written(tokenizer: Any) -> None:
    plain = default_format().template.replace("assistant\\n<reason>' }}", "assistant\\n' }}")
    codec = codec_for(tokenizer, default_format().model_copy(update={"template": plain}))
    _, learned = sample_texts(codec, *CALLING)
    assert learned.startswith("<tool_call>\n")
    assert learned.endswith("<|im_end|><reason>so</reason>\n<answer>1</answer><|im_end|>")


def test_rl_data_that_is_json_names_the_command_that_prepares_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="RL trains on parquet") as excinfo:
        read_rows(tmp_path / "mine.jsonl", "prompt")
    assert f"rstar2 data prepare {tmp_path / 'mine.jsonl'}" in excinfo.value.hint


@pytest.mark.slow
@needs("verl")
def test_verls_trainer_gets_the_same_ids_and_mask(tmp_path: Path, codec: ChatCodec) -> None:
    from rstar2.train.verl.sft_dataset import EncodedConversations

    rows = [encode({"messages": messages}, codec) for messages in [CALLING, GOOD] * 700]
    write_batches(tmp_path / "x.arrow", map(batch_of, (rows[:3], rows[3:])))
    numbers = [2, 3, 0, *range(4, len(rows))]
    np.save(tmp_path / "x.npy", numbers)
    most = len(encode({"messages": CALLING}, codec).input_ids) - 1
    conversations = EncodedConversations(str(tmp_path / "x.npy"), {"max_length": most})
    for dataset in (conversations, pickle.loads(pickle.dumps(conversations))):
        assert len(dataset) == len(numbers)
        for item, number in zip(dataset, numbers, strict=True):
            row = rows[number].cut(most)
            for name, expected in (("input_ids", row.input_ids), ("loss_mask", row.loss_mask)):
                assert item[name].dtype == torch_int64()
                assert item[name].tolist() == expected.tolist()
            assert item["position_ids"].tolist() == list(range(len(row.input_ids)))
    with pytest.raises(IndexError):
        conversations[len(numbers)]


def torch_int64() -> Any:
    import torch

    return torch.int64


_RANK = """
import sys
from rstar2.train.verl.sft_dataset import EncodedConversations


def own_bytes() -> int:
    # Pages of a mapped file are the file cache's.
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) << 10 for line in file if line.startswith("Anonymous:"))


rows = EncodedConversations(sys.argv[1], {"max_length": 4000})
# What torch makes for its first tensors is there before.
tokens = sum(len(rows[number]["input_ids"]) for number in range(100))
before = own_bytes()
tokens += sum(len(rows[number]["input_ids"]) for number in range(100, len(rows)))
print(tokens, own_bytes() - before)
"""


@pytest.mark.slow
@needs("verl")
def test_a_rank_holds_the_conversations_in_memory_that_all_ranks_share(tmp_path: Path) -> None:
    tokens = 4000
    row = Encoded(array("i", range(tokens)), array("b", [1] * tokens))
    write_batches(tmp_path / "x.arrow", (batch_of([row] * 500) for _ in range(10)))
    np.save(tmp_path / "x.npy", np.arange(5000))
    assert (tmp_path / "x.arrow").stat().st_size < 5.2 * 5000 * tokens
    result = subprocess.run(
        [sys.executable, "-c", _RANK, str(tmp_path / "x.npy")],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=True,
    )  # fmt: skip
    token_count, added_bytes = map(int, result.stdout.split())
    assert token_count == 5000 * tokens
    assert added_bytes < 0.5 * token_count, "Python lists would take 113 bytes per token"


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


@pytest.mark.parametrize("present", [[], ["config.json"]])
def test_a_model_folder_without_its_parts_is_refused(tmp_path: Path, present: list[str]) -> None:
    for name in present:
        (tmp_path / name).write_text("{}")
    with pytest.raises(UserError) as excinfo:
        check_model(tmp_path)
    missing = ["config.json", "weights"][len(present)]
    assert missing in excinfo.value.message


@pytest.fixture
def model(tmp_path: Path, tokenizer: Any) -> Path:
    """Creates a folder with a tokenizer that has a chat template, and with an empty weights file."""
    folder = tmp_path / "model"
    tokenizer.save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text("weights")
    return folder


TEMPLATE = """\
{%- if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}
{%- for message in messages -%}
<|im_start|>{{ message.role }}: {{ message.content }}<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant: {% endif -%}
"""


def test_sft_teaches_our_format_and_rl_keeps_the_models_own(model: Path) -> None:
    assert taught_codec(None, model).format == default_format()
    assert rl_format(None, model) == read_format("own", TEMPLATE)
    assert rl_format("rstar2", model) == default_format()
    assert taught_codec("own", model).format.template == TEMPLATE


def test_the_format_travels_in_the_models_folder(model: Path, tmp_path: Path) -> None:
    fmt = default_format().model_copy(update={"user": "Q: {problem}"})
    base = with_format(model, fmt, tmp_path / "base")
    assert load_codec(base).format == fmt
    assert (base / "model.safetensors").resolve() == (model / "model.safetensors").resolve()
    assert (base / "chat_template.jinja").read_text() == fmt.template
    assert with_format(base, fmt, tmp_path / "other") == base, (
        "a model that already has the format is not copied"
    )
    assert taught_codec(None, base).format == rl_format(None, base) == fmt


def test_rl_refuses_another_format_than_the_models(model: Path, tmp_path: Path) -> None:
    base = with_format(model, default_format(), tmp_path / "base")
    with pytest.raises(UserError) as excinfo:
        rl_format("release", base)
    assert (
        f"the recipe's format release is not the format of {base}; they differ in: " in excinfo.value.message
    )
    assert rl_format("", base) == default_format()
    assert "layout, limits.characters" in excinfo.value.message


def test_rl_may_give_calls_more_time_than_the_models_format(model: Path, tmp_path: Path) -> None:
    base = with_format(model, default_format(), tmp_path / "base")
    slower = default_format().model_copy(
        update={"limits": default_format().limits.model_copy(update={"seconds": 60.0})}
    )
    (tmp_path / "slower.json").write_text(slower.model_dump_json())
    fmt = rl_format(str(tmp_path / "slower.json"), base)
    assert fmt.limits.seconds == 60
    assert load_codec(with_format(base, fmt, tmp_path / "copy")).format == slower


def test_a_format_file_and_a_chat_template_that_disagree_are_refused(model: Path) -> None:
    save_format(default_format(), model)
    with pytest.raises(
        UserError, match="the chat template of the tokenizer differs from the one in"
    ) as excinfo:
        load_codec(model)
    assert FORMAT_FILE in excinfo.value.hint

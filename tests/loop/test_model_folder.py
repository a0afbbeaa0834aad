"""Tests that a model also ends its turns in programs that know nothing of rstar2's formats, such as transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.optional import needs
from support.overfitted_model import OverfittedModel, overfitted_model

from rstar2.data import builtin
from rstar2.demo.tiny import END_OF_TEXT, MARKUP, TinyModel, make_base_model
from rstar2.loop.formats.format import FORMAT_FILE
from rstar2.loop.model_folder import ends_turns, generation_config, write_format
from rstar2.loop.turns.choose import codec_for, load_codec, load_tokenizer
from rstar2.loop.turns.template import END_OF_TURN
from rstar2.train.start_checks import with_format

pytestmark = needs("torch")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "base"
    size = TinyModel(vocab=512, hidden=32, layers=1, heads=2)
    make_base_model(folder, size, builtin.traces(1, 20, {}), builtin.FORMAT.template, seed=1)
    return folder


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def overfitted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OverfittedModel:
    return overfitted_model(tmp_path_factory.mktemp("taught") / "model", tied=request.param)


def _generated(folder: Path, problem: str) -> str:
    """Returns the text that transformers alone generates from a folder, including special tokens."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": problem}], add_generation_prompt=True, return_tensors="pt"
    )
    output_ids = model.generate(**prompt, max_new_tokens=120)[0, prompt["input_ids"].shape[1] :]
    return str(tokenizer.decode(output_ids))


def test_transformers_stops_at_the_end_of_a_turn(overfitted: OverfittedModel, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(overfitted.folder, folder)
    # The folder has only the chat template, as earlier versions exported it.
    (folder / "chat_template.jinja").write_text(overfitted.codec.format.template)
    text = _generated(folder, overfitted.problem)
    assert text.startswith(f"{overfitted.turn}{END_OF_TURN}\n")
    assert "<tool_response>" in text, "with the base model's files, the model invents the tool's output"
    write_format(codec_for(load_tokenizer(folder), builtin.FORMAT), folder, folder)
    assert _generated(folder, overfitted.problem) == f"{overfitted.turn}{END_OF_TURN}"


def test_config_generation_config_and_tokenizer_end_text_at_the_end_of_a_turn(
    base: Path, tmp_path: Path
) -> None:
    plain = load_tokenizer(base)
    end, end_of_text = plain.convert_tokens_to_ids([END_OF_TURN, END_OF_TEXT])
    before = json.loads((base / "generation_config.json").read_text())
    assert (before["eos_token_id"], before["max_new_tokens"]) == (end_of_text, 2048)
    folder = with_format(base, builtin.FORMAT, tmp_path / "base")
    config = json.loads((folder / "config.json").read_text())
    assert (config["eos_token_id"], config["pad_token_id"]) == (end, end_of_text)
    after = json.loads((folder / "generation_config.json").read_text())
    assert after["eos_token_id"] == [end, end_of_text], "the base model's end token still ends a turn"
    assert after["pad_token_id"] == end_of_text
    assert after["do_sample"] is False
    assert "max_new_tokens" not in after
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.eos_token, tokenizer.pad_token, tokenizer.bos_token) == (END_OF_TURN, END_OF_TEXT, None)
    text = f"a {END_OF_TURN} <tool_call> π"
    assert tokenizer.encode(text) == plain.encode(text)
    assert (base / "generation_config.json").read_text() == json.dumps(before, indent=2) + "\n"


def test_the_base_model_has_the_traits_that_the_docs_list(tmp_path: Path) -> None:
    """Checks the traits in the order of docs/fidelity.md, section "The demo", for a model of the demo's size."""
    from safetensors.torch import load_file

    def values(name: str) -> dict[str, Any]:
        return dict(json.loads((tmp_path / name).read_text()))

    size = TinyModel()
    make_base_model(tmp_path, size, builtin.traces(1, 60, {}), builtin.FORMAT.template, seed=1)
    config, generation, tokenizer = (
        values("config.json"),
        values("generation_config.json"),
        load_tokenizer(tmp_path),
    )
    end = tokenizer.convert_tokens_to_ids(END_OF_TEXT)
    codec = codec_for(tokenizer, builtin.FORMAT)
    # The end-of-text token.
    assert config["eos_token_id"] == generation["eos_token_id"] == tokenizer.eos_token_id == end
    assert codec.end_id != end
    assert (generation["do_sample"], generation["max_new_tokens"]) == (False, 2048)
    assert tokenizer.chat_template not in (None, builtin.FORMAT.template)
    assert not (tmp_path / FORMAT_FILE).exists()
    # The padding token; there is no begin-of-text token.
    assert (tokenizer.pad_token_id, tokenizer.bos_token) == (end, None)
    assert tokenizer.encode("a")[0] != end
    # The tags are single tokens.
    for tag in MARKUP:
        (token,) = tokenizer.encode(tag)
        assert token not in tokenizer.all_special_ids
    # Rows of the embedding, weights, and the last layer.
    index = values("model.safetensors.index.json")["weight_map"]
    files = set(index.values())
    assert len(files) > 1
    weights = {name: each for file in files for name, each in load_file(tmp_path / file).items()}
    assert set(weights) == set(index)
    assert {str(each.dtype) for each in weights.values()} == {"torch.bfloat16"}
    assert config["dtype"] == "bfloat16"
    embedding = weights["model.embed_tokens.weight"]
    assert len(embedding) == config["vocab_size"] > len(tokenizer)
    assert len(embedding) % 128 == 0
    assert config["tie_word_embeddings"] is True
    assert "lm_head.weight" not in weights
    # Text is normalized before it is encoded.
    assert tokenizer.encode("e\u0301") == tokenizer.encode("\u00e9")
    assert tokenizer.tokenize("2048") == list("2048")
    # These values differ.
    assert (config["max_position_embeddings"], config["rope_parameters"]["rope_theta"]) == (1024, 100)
    assert config["head_dim"] == config["hidden_size"] // config["num_attention_heads"]
    assert float(embedding.float().std()) == pytest.approx(0.06, rel=0.02)


def test_a_second_time_changes_nothing(base: Path, tmp_path: Path) -> None:
    folder = with_format(base, builtin.FORMAT, tmp_path / "base")
    names = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json")
    once = [(folder / name).read_text() for name in names]
    write_format(load_codec(folder), folder, folder)
    assert [(folder / name).read_text() for name in names] == once


@pytest.mark.parametrize(
    ("config", "generation", "ends"),
    [
        ({"eos_token_id": [5, 6]}, {"eos_token_id": 6}, [2, 6, 5]),
        ({"eos_token_id": 0}, None, [2, 0]),
        ({}, {"eos_token_id": [0, 2]}, [2, 0]),
        ({"text_config": {"eos_token_id": 9}}, {}, [2]),
    ],
)
def test_all_that_ended_text_before_still_does(
    base: Path, tmp_path: Path, config: dict[str, Any], generation: dict[str, Any] | None, ends: list[int]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**config, "max_length": 20}))
    if generation is not None:
        values = {**generation, "top_p": 0.8, "max_length": 99, "_from_model_config": True}
        (tmp_path / "generation_config.json").write_text(json.dumps(values))
    codec = codec_for(load_tokenizer(base), builtin.FORMAT)
    assert generation_config(codec, tmp_path)["eos_token_id"] == ends
    write_format(codec, tmp_path, tmp_path)
    saved_config = json.loads((tmp_path / "generation_config.json").read_text())
    assert saved_config.get("top_p") == (None if generation is None else 0.8)
    assert not {"max_length", "_from_model_config"} & set(saved_config)
    after = json.loads((tmp_path / "config.json").read_text())
    assert after["eos_token_id"] == 2
    assert "max_length" not in after
    assert "text_config" not in config or after["text_config"]["eos_token_id"] == 2


@pytest.mark.parametrize(
    ("text_end", "pad", "becomes"),
    [
        (END_OF_TEXT, None, END_OF_TEXT),
        (END_OF_TEXT, END_OF_TURN, END_OF_TEXT),
        # In Llama-3-Instruct no other token ends a text.
        (END_OF_TURN, None, None),
    ],
)
def test_padding_becomes_the_former_end_of_text_where_that_is_another_token(
    base: Path, tmp_path: Path, text_end: str, pad: str | None, becomes: str | None
) -> None:
    tokenizer = load_tokenizer(base)
    tokenizer.eos_token, tokenizer.pad_token = text_end, pad
    write_format(codec_for(tokenizer, builtin.FORMAT), base, tmp_path)
    assert load_tokenizer(tmp_path).pad_token == becomes


def test_a_legacy_file_of_tokens_does_not_bring_the_old_end_back(base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "model")
    (tmp_path / "model" / "special_tokens_map.json").write_text(json.dumps({"eos_token": END_OF_TEXT}))
    folder = with_format(tmp_path / "model", builtin.FORMAT, tmp_path / "base")
    assert load_tokenizer(folder).eos_token == END_OF_TURN


def test_whether_a_plain_server_ends_turns(base: Path, tmp_path: Path) -> None:
    assert not ends_turns(codec_for(load_tokenizer(base), builtin.FORMAT), base)
    folder = with_format(base, builtin.FORMAT, tmp_path / "base")
    codec = load_codec(folder)
    assert ends_turns(codec, folder)
    values = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**values, "max_new_tokens": 2048}))
    assert not ends_turns(codec, folder), "the answer is not compared if the turn is longer"

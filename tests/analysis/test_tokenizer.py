"""A tokenizer that is loaded from its file alone decodes tokens as transformers does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rstar2.analysis.tokenizer import file_tokenizer
from rstar2.errors import UserError
from rstar2.loop.turns.choose import load_tokenizer


@pytest.fixture
def folder(tokenizer: Any, tmp_path: Path) -> Path:
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_texts_ids_and_special_tokens_are_those_of_transformers(folder: Path) -> None:
    from_file, from_transformers = file_tokenizer(folder), load_tokenizer(folder)
    assert from_file is not None
    assert {token for token, added in from_file.added_tokens_decoder.items() if added.special}
    assert {token: str(added) for token, added in from_file.added_tokens_decoder.items()} == {
        token: str(added) for token, added in from_transformers.added_tokens_decoder.items()
    }
    text = " Let us see : 日本語 🙂 don't , √π.<|im_end|>\n"
    ids = from_file.encode(text, add_special_tokens=False)
    assert ids == from_transformers.encode(text, add_special_tokens=False)
    for skip in (True, False):
        assert from_file.decode(ids, skip_special_tokens=skip) == from_transformers.decode(
            ids, skip_special_tokens=skip
        )
        for token in range(len(from_transformers)):
            assert from_file.decode([token], skip_special_tokens=skip) == from_transformers.decode(
                [token], skip_special_tokens=skip
            )


@pytest.mark.parametrize(
    "changed",
    [
        {"tokenizer_class": "Qwen2Tokenizer"},
        {"clean_up_tokenization_spaces": True},
        {"extra_special_tokens": ["<extra>"]},
        {"extra_special_tokens": {"image_token": "<image>"}},
        {"added_tokens_decoder": {"0": {"content": "<|endoftext|>", "special": False}}},
        {"eos_token": "word"},
        {"bos_token": {"content": "<|im_start|>", "lstrip": True}},
    ],
)
def test_what_transformers_would_read_otherwise_is_left_to_it(
    folder: Path, changed: dict[str, object]
) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    assert file_tokenizer(folder) is None


def test_a_damaged_file_is_named_and_a_missing_one_is_left_to_transformers(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"model": ')
    with pytest.raises(UserError, match=f"cannot load a tokenizer from {folder}"):
        file_tokenizer(folder)
    (folder / "tokenizer.json").unlink()
    assert file_tokenizer(folder) is None

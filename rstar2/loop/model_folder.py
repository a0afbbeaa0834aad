"""Makes a model's folder say what its format says, for programs that know no formats, such as transformers and vLLM.

A base model's files end its text with `<|endoftext|>`, after at most 2,048 tokens, say. A model that was taught to end
its turns with another token would run on past that, and invent the replies of tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rstar2.files import read_json, write_json
from rstar2.loop.formats.format import save_format
from rstar2.loop.turns.codec import ChatCodec

GENERATION_CONFIG = "generation_config.json"
_LENGTHS = ("max_length", "max_new_tokens")
"""Limits on what is generated, which a caller decides."""


def write_format(codec: ChatCodec, model: Path, folder: Path) -> None:
    """Write to `folder` the files in which a model depends on its format; the weights stay where they are.

    These are the format's own file, the tokenizer with the format's chat template, and the token that ends a turn in
    tokenizer, config.json and generation_config.json. The last two are copied from the folder `model`, which may be
    the same one, with that changed. The codec's tokenizer is changed too.

    Padding becomes the token that ended text before. If the base model's text already ended with the end of a turn,
    as in Llama-3-Instruct, padding stays as it was: perhaps none, or that same token.
    """
    save_format(codec.format, folder)
    tokenizer = codec.tokenizer
    text_end, pad = tokenizer.eos_token, tokenizer.pad_token_id
    tokenizer.chat_template = codec.format.template or None
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(codec.end_id)
    if pad in (None, codec.end_id) and text_end not in (None, tokenizer.eos_token):
        # A trainer that ignores padding would otherwise ignore the ends of turns.
        tokenizer.pad_token = text_end
    tokenizer.save_pretrained(folder)
    config = read_json(model / "config.json")
    if config is None:
        return
    write_json(folder / GENERATION_CONFIG, generation_config(codec, model))
    for part in (config, config.get("text_config")):
        if part is not None:
            _drop_lengths(part)
            part["eos_token_id"] = codec.end_id
            part["pad_token_id"] = tokenizer.pad_token_id
    write_json(folder / "config.json", config)


def ends_turns(codec: ChatCodec, model: Path) -> bool:
    """Whether a plain server ends a model's text where its format ends a turn, however long the turn is."""
    values = read_json(model / GENERATION_CONFIG) or {}
    limited = any(values.get(name) is not None for name in _LENGTHS)
    return not limited and set(codec.stop_ids) <= {codec.tokenizer.eos_token_id, *_ends(values)}


def generation_config(codec: ChatCodec, model: Path) -> dict[str, Any]:
    """A model's generation_config.json, with the end of a turn first of the tokens that end its text."""
    config, values = (read_json(model / name) for name in ("config.json", GENERATION_CONFIG))
    values = dict(values or {})
    ends = list(dict.fromkeys([*codec.stop_ids, *_ends(values), *_ends(config)]))
    _drop_lengths(values)
    # transformers reads it as: these values were made from config.json alone. That is no longer so.
    values.pop("_from_model_config", None)
    return {**values, "eos_token_id": ends, "pad_token_id": codec.tokenizer.pad_token_id}


def _ends(values: Mapping[str, Any] | None) -> list[int]:
    ids = (values or {}).get("eos_token_id")
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


def _drop_lengths(values: dict[str, Any]) -> None:
    for name in _LENGTHS:
        values.pop(name, None)

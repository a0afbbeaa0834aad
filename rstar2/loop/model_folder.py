"""Writes a model's format into those files of the model's folder that transformers and vLLM read.

The configuration of a base model ends generation at `<|endoftext|>`, and may limit generation to 2,048 tokens, for
example. If the model was trained to end its turns with another token, generation would continue past that token, and
the model would invent the replies of its tools.
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
"""Keys that limit the length of generation. They are removed, because the caller decides the length."""


def write_format(codec: ChatCodec, model: Path, folder: Path) -> None:
    """Write to `folder` the files of a model that depend on the model's format. Weights are not copied.

    The files are the format file, the tokenizer with the format's chat template, config.json and
    generation_config.json. The tokenizer and both JSON files name the token that ends a turn. The two JSON files are
    changed copies of the files in the folder `model`. `model` and `folder` may be the same folder. The tokenizer of
    `codec` is changed in place.

    The base model's end-of-text token becomes the padding token. This is done only if the model has no padding token or
    pads with its end-of-turn token, and if its end-of-text token is not its end-of-turn token. Otherwise, as in
    Llama-3-Instruct, the padding token is unchanged.
    """
    save_format(codec.format, folder)
    tokenizer = codec.tokenizer
    text_end, pad = tokenizer.eos_token, tokenizer.pad_token_id
    tokenizer.chat_template = codec.format.template or None
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(codec.end_id)
    if pad in (None, codec.end_id) and text_end not in (None, tokenizer.eos_token):
        # If padding were the end-of-turn token, a trainer that masks padding would also mask the ends of turns.
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
    """Whether a server that knows no format stops at the end of a turn, and does not cut off long turns."""
    values = read_json(model / GENERATION_CONFIG) or {}
    limited = any(values.get(name) is not None for name in _LENGTHS)
    return not limited and set(codec.stop_ids) <= {codec.tokenizer.eos_token_id, *_ends(values)}


def generation_config(codec: ChatCodec, model: Path) -> dict[str, Any]:
    """Returns the contents of a model's generation_config.json, with the end-of-turn token as the first end token."""
    config, values = (read_json(model / name) for name in ("config.json", GENERATION_CONFIG))
    values = dict(values or {})
    ends = list(dict.fromkeys([*codec.stop_ids, *_ends(values), *_ends(config)]))
    _drop_lengths(values)
    # This key tells transformers that all values come from config.json, which is no longer true.
    values.pop("_from_model_config", None)
    return {**values, "eos_token_id": ends, "pad_token_id": codec.tokenizer.pad_token_id}


def _ends(values: Mapping[str, Any] | None) -> list[int]:
    ids = (values or {}).get("eos_token_id")
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


def _drop_lengths(values: dict[str, Any]) -> None:
    for name in _LENGTHS:
        values.pop(name, None)

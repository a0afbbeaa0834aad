"""A tokenizer that reads only a model folder's tokenizer.json.

The tokenizer of this module loads in milliseconds. A tokenizer of transformers takes seconds to load, because
transformers imports torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rstar2.files import read_json
from rstar2.loop.turns.choose import no_tokenizer

_PLAIN_CLASS = "TokenizersBackend"
"""Name of the class in transformers that uses tokenizer.json unchanged."""
_SPECIAL_TOKENS = ("additional_special_tokens", "extra_special_tokens")
"""Keys of tokenizer_config.json that list special tokens. Keys such as eos_token name a single special token."""


class FileTokenizer:
    """The tokenizer of a tokenizer.json.

    `FileTokenizer` has the methods of transformers' tokenizers that `TokenReader` uses.
    """

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.name_or_path = str(folder)

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        """Maps the id of each added token to the token (`tokenizers.AddedToken`)."""
        return dict(self._tokenizer.get_added_tokens_decoder())

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens))


def file_tokenizer(folder: Path) -> FileTokenizer | None:
    """The tokenizer of a model folder. The result is None if transformers would not treat tokens exactly as
    tokenizer.json says.

    A tokenizer is returned for models that transformers 5 saved with its generic class, such as the demo's model.

    Raises:
        UserError: a file is damaged.
    """
    config = read_json(folder / "tokenizer_config.json") or {}
    if config.get("tokenizer_class") != _PLAIN_CLASS or not (folder / "tokenizer.json").is_file():
        return None
    if config.get("clean_up_tokenization_spaces") or config.get("added_tokens_decoder"):
        return None
    try:
        tokenizer = FileTokenizer(folder)
    # For damaged files, the library raises plain exceptions.
    except Exception as error:
        raise no_tokenizer(folder, str(error)) from error
    special = [str(token.content) for token in tokenizer.added_tokens_decoder.values() if token.special]
    lists = [config.get(name) or [] for name in _SPECIAL_TOKENS]
    named = [*(value for name, value in config.items() if name.endswith("_token")), *itertools.chain(*lists)]
    return tokenizer if all(token in special for token in named if token is not None) else None

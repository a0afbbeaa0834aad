"""The row schema of prepared data. All sources of problems (for RL) have the same columns, and so do all sources of
conversations (for SFT).

Rows contain no instructions for the prompt, no rollouts and no token ids. A training stage adds the instructions,
rollouts and token ids when the stage starts.

| column | problems and conversations |
|---|---|
| `id` | `SOURCE-NAME`; NAME is the row's own id or its number in the source |
| `source` | the source's name |
| `family` | the subject that the row teaches: math, function-calls, code, instructions, chat |
| `licence` | the licence that the source states |

Problems also have these columns:

| column | problems |
|---|---|
| `problem` | the text |
| `answer` | the answer; a whole number is written in plain digits |
| `pass_rate` | the share of a strong model's samples that gave this answer, or null |

Conversations also have these columns:

| column | conversations |
|---|---|
| `messages` | in the form of OpenAI's API, with `tool_calls` and `tool_call_id` |
| `tools` | the JSON text of the list of the tools' schemas |
| `answer_form` | whether SFT teaches the conversation in the form that RL rewards, see `rstar2.data.taught` |

Conversations from a model's own rollouts also have the column `TOKENS`. Their turns contain the model's unchanged text,
calls included.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rstar2.eval.grader.grading import whole_number

Kind = Literal["problems", "conversations"]

_CALL = pa.struct(
    [
        ("id", pa.string()),
        ("type", pa.string()),
        ("function", pa.struct([("name", pa.string()), ("arguments", pa.string())])),
    ]
)
_MESSAGE = pa.struct(
    [
        ("role", pa.string()),
        ("content", pa.string()),
        ("tool_calls", pa.list_(_CALL)),
        ("tool_call_id", pa.string()),
    ]
)
_ABOUT = [("source", pa.string()), ("family", pa.string()), ("licence", pa.string())]
SCHEMAS: dict[Kind, Any] = {
    "problems": pa.schema(
        [
            ("id", pa.string()),
            ("problem", pa.string()),
            ("answer", pa.string()),
            ("pass_rate", pa.float64()),
            *_ABOUT,
        ]
    ),
    "conversations": pa.schema(
        [
            ("id", pa.string()),
            ("messages", pa.list_(_MESSAGE)),
            ("tools", pa.string()),
            ("answer_form", pa.bool_()),
            *_ABOUT,
        ]
    ),
}

LATER_COLUMNS = frozenset({"answer_form"})
"""Columns that prepared sets of earlier versions do not have."""

TOKENS = pa.field(
    "tokens",
    pa.struct(
        [
            ("codec", pa.string()),
            ("input_ids", pa.list_(pa.int32())),
            ("loss_mask", pa.list_(pa.int8())),
        ]
    ),
)
"""The column of token ids in conversations from a model's own rollouts. `loss_mask` is 1 for tokens that the model
wrote.

SFT uses the token ids if the digest of SFT's codec equals `codec`. If the codec has another digest, SFT encodes the
messages.
"""

_SPEAKERS = ("user", "assistant")
_INTEGER = re.compile(r"[+-]?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)")
_AROUND_INTEGER = re.compile(r"\\boxed|\\[()\[\]]|[${}]")
_DIGIT = re.compile(r"\d")
_MAX_INTEGER_CHARS = 100
"""Maximum length, in characters, of an answer that the grader reads as a whole number. A longer answer counts as a
whole number only if it is written in plain digits."""
_WORD = re.compile(r"\w")


as_json = json.JSONEncoder(ensure_ascii=False).encode
"""Returns the JSON text of a value, on one line."""
_strict = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class Refused(Exception):
    """A row cannot be used. `reason` is a short text for counting, and `detail` says what is wrong with this row."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


def parsed(text: str | bytes) -> Any:
    """Parse JSON. Strings may contain line breaks. Raises ValueError if the text is not JSON.

    msgspec is used first, because it is faster. If msgspec fails, for example because of NaN or a lone surrogate, the
    standard library decides whether the text is JSON.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError):
        return json.loads(text, strict=False)


def strict_json(value: Any, name: str) -> str:
    """Returns the JSON text of a value.

    Raises:
        Refused: the value contains NaN, an infinity or half a surrogate pair, which JSON cannot express.
    """
    try:
        text = _strict(value)
    except ValueError as error:
        raise Refused(
            "malformed", f"{name} contains NaN or an infinity, which JSON cannot express"
        ) from error
    return unicode_text(text, name)


def text_of(row: Mapping[str, Any], column: str) -> str:
    """Returns the text in a column of a row. A number is converted to text.

    Raises:
        Refused: the value is null, empty, neither text nor a number, or not valid Unicode.
    """
    value = row.get(column)
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(int(value) if isinstance(value, float) and value.is_integer() else value)
    if value is None:
        raise Refused("malformed", f"{column} is null")
    if not isinstance(value, str):
        raise Refused("malformed", f"{column} is {type(value).__name__}, not text")
    if not value.strip():
        raise Refused("malformed", f"{column} is empty")
    return unicode_text(value, column)


def unicode_text(value: str, name: str) -> str:
    """Returns the unchanged text, after a check that it can be written to a file.

    Raises:
        Refused: the text contains half a surrogate pair.
    """
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Refused("malformed", f"{name} contains half a surrogate pair") from error
    return value


def list_of(row: Mapping[str, Any], column: str) -> list[Any]:
    """Returns the list in a column of a row.

    Raises:
        Refused: the value is null, empty or not a list.
    """
    value = row.get(column)
    if not isinstance(value, list) or not value:
        what = "null" if value is None else "empty" if value == [] else f"{type(value).__name__}, not a list"
        raise Refused("malformed", f"{column} is {what}")
    return value


def problem_row(text: str, answer: str, pass_rate: float | None = None) -> dict[str, Any]:
    """Returns the columns `problem`, `answer` and `pass_rate` of a problem. A pass rate of NaN means that the pass rate
    was not measured.

    Raises:
        Refused: the problem contains no words, or the rate is not between 0 and 1.
    """
    if not _WORD.search(text):
        raise Refused("malformed", "the problem has no words")
    if isinstance(pass_rate, float) and math.isnan(pass_rate):
        pass_rate = None
    if pass_rate is not None and not 0 <= pass_rate <= 1:
        raise Refused("malformed", f"the pass rate is {pass_rate}, not from 0 to 1")
    plain = integer_answer(answer)
    return {"problem": text, "answer": answer.strip() if plain is None else plain, "pass_rate": pass_rate}


def integer_answer(text: str) -> str | None:
    r"""Returns the plain digits of an answer that the grader reads as a whole number, such as 1,000, 2.0 or 12^\circ.

    Returns None if the grader does not read the answer as a whole number.
    """
    bare = (
        _AROUND_INTEGER.sub("", text).replace("\\,", ",").replace("−", "-").strip().removesuffix(".").strip()
    )
    if not _INTEGER.fullmatch(bare):
        return _read_by_the_grader(text) if len(text) <= _MAX_INTEGER_CHARS and _DIGIT.search(text) else None
    digits = bare.lstrip("+-").replace(",", "").lstrip("0") or "0"
    return f"-{digits}" if bare.startswith("-") and digits != "0" else digits


@lru_cache(maxsize=1 << 16)
def _read_by_the_grader(text: str) -> str | None:
    number = whole_number(text)
    return None if number is None else str(number)


def key_of(text: str) -> int:
    """Returns a 64-bit hash of a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def texts_of(batch: Any) -> list[str]:
    """Returns the text of each row: the problem, or the messages of user and assistant without calls."""
    if "problem" in batch.schema.names:
        problems: list[str] = batch.column("problem").to_pylist()
        return problems
    messages = batch.column("messages")
    # The array is not a constant of this module, because creating the first array imports pandas.
    has_speaker = pc.is_in(messages.values.field("role"), value_set=pa.array(_SPEAKERS))
    before = np.concatenate([[0], np.cumsum(has_speaker.to_numpy(zero_copy_only=False))])
    contents = messages.values.field("content").filter(has_speaker).fill_null("")
    offsets = pa.array(before[messages.offsets.to_numpy()], type=pa.int32())
    texts: list[str] = pc.binary_join(pa.ListArray.from_arrays(offsets, contents), "\n").to_pylist()
    return texts

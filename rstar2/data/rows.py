"""The row schema of prepared data: problems for RL, and conversations for SFT, whatever source they come from.

A row holds no words of a prompt, no rollouts and no token ids: a stage adds those when it starts.

| column | problems and conversations |
|---|---|
| `id` | `SOURCE-NAME`, where NAME is the row's own id or its number in the source |
| `source` | the source's name |
| `family` | what the row teaches: math, function-calls, code, instructions, chat |
| `licence` | as its source states it |

A problem has `problem`, `answer` (a whole number is written plainly) and `pass_rate`, the share of a strong model's
tries that gave this answer, if the source knows it. A conversation has `messages` as OpenAI's API writes them, with
`tool_calls` and `tool_call_id`; `tools`, the JSON text of the list of the tools' schemas; and `answer_form`: whether
SFT teaches it in the form that RL rewards, see `rstar2.data.taught`. Conversations that a model wrote have `TOKENS`
too; their turns are texts as the model wrote them, calls included.
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
"""Columns that sets of earlier versions do not have."""

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
"""A further column of conversations that a model wrote: its own token ids, and which of them it wrote. They are trained
on by a codec of this digest; any other encodes the messages."""

_SPEAKERS = ("user", "assistant")
_INTEGER = re.compile(r"[+-]?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)")
_AROUND_INTEGER = re.compile(r"\\boxed|\\[()\[\]]|[${}]")
_DIGIT = re.compile(r"\d")
_MAX_INTEGER_CHARS = 100
"""Longer answers are read as whole numbers only if they are plain digits."""
_WORD = re.compile(r"\w")


as_json = json.JSONEncoder(ensure_ascii=False).encode
"""JSON text of a value, on one line."""
_strict = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


class Refused(Exception):
    """A row that is not read: `reason` is counted, `detail` says what is wrong with this one."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


def parsed(text: str | bytes) -> Any:
    """Returns the value of JSON, in which texts may have line breaks. Raises ValueError if it is not JSON.

    What msgspec, the quicker reader, does not take, such as NaN or half a surrogate pair, the standard library decides.
    """
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError):
        return json.loads(text, strict=False)


def strict_json(value: Any, name: str) -> str:
    """Returns the JSON text of a value.

    Raises:
        Refused: the value holds NaN, an infinity or half a surrogate pair, which JSON lacks.
    """
    try:
        text = _strict(value)
    except ValueError as error:
        raise Refused("malformed", f"{name} holds NaN or an infinity, which JSON lacks") from error
    return unicode_text(text, name)


def text_of(row: Mapping[str, Any], column: str) -> str:
    """Returns a column's text, or the text of its number.

    Raises:
        Refused: the column is null, empty, neither text nor a number, or not Unicode.
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
    """Returns the text itself.

    Raises:
        Refused: the text holds half a surrogate pair, which no file can.
    """
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise Refused("malformed", f"{name} holds half a surrogate pair") from error
    return value


def list_of(row: Mapping[str, Any], column: str) -> list[Any]:
    """Returns a column's list.

    Raises:
        Refused: the column is null, empty or no list.
    """
    value = row.get(column)
    if not isinstance(value, list) or not value:
        what = "null" if value is None else "empty" if value == [] else f"{type(value).__name__}, not a list"
        raise Refused("malformed", f"{column} is {what}")
    return value


def problem_row(text: str, answer: str, pass_rate: float | None = None) -> dict[str, Any]:
    """Returns the columns of a problem that its source decides. A rate that is NaN was not measured.

    Raises:
        Refused: the text has no words, or the rate is no share.
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
    r"""Returns the answer in plain digits if the grader reads it as a whole number, such as 1,000, 2.0 or 12^\circ."""
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
    """64 bits that stand for a text."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def texts_of(batch: Any) -> list[str]:
    """What each row of a batch says: the problem; or what user and assistant say, without the calls."""
    if "problem" in batch.schema.names:
        problems: list[str] = batch.column("problem").to_pylist()
        return problems
    messages = batch.column("messages")
    # Not made when this module is imported: the first array imports pandas.
    said = pc.is_in(messages.values.field("role"), value_set=pa.array(_SPEAKERS))
    before = np.concatenate([[0], np.cumsum(said.to_numpy(zero_copy_only=False))])
    contents = messages.values.field("content").filter(said).fill_null("")
    offsets = pa.array(before[messages.offsets.to_numpy()], type=pa.int32())
    texts: list[str] = pc.binary_join(pa.ListArray.from_arrays(offsets, contents), "\n").to_pylist()
    return texts

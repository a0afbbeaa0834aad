"""Reading JSON lines that somebody else wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rstar2.errors import UserError


def read_objects(
    path: Path, hint: str, *, decimals_as_text: bool = False
) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON Lines file (jsonlines.org), each with the number of its line; blank lines are skipped.

    Args:
        hint: what to do about a file that is not as it should be.
        decimals_as_text: give a number with a decimal point as text, with the digits it was written with.

    Raises:
        UserError: it cannot be read, is not UTF-8, or a line is not one JSON object.
    """
    try:
        # Not splitlines(): JSON allows in its strings what that takes for the end of a line.
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            lines = list(file)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", hint) from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}", hint) from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, parse_float=str if decimals_as_text else float, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number}: not JSON: {error}", hint) from error
        if not isinstance(value, dict):
            kind = type(value).__name__
            raise UserError(f"{path}, line {number}: not a JSON object but {kind}", hint)
        yield number, value


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not a JSON value")

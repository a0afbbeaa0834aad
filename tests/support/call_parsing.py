"""Reads the calls in a turn of rstar2's formats."""

from __future__ import annotations

from typing import Any

from rstar2.loop.agent import checked_calls
from rstar2.loop.formats.format import Format
from rstar2.loop.trace import ToolCall
from rstar2.loop.turns.tags import read_turn


def parse_calls(text: str, fmt: Format) -> list[ToolCall | tuple[str, dict[str, Any]]]:
    """Return the calls in a text that the agent loop runs or rejects."""
    return checked_calls(read_turn(text, closed_only=fmt.closed_calls_only).calls, fmt)

"""The public `openai` client, imported when a test first uses it, which takes half a second."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    # pytest asks every module that a test file names for attributes of its own.
    if not name[0].isupper():
        raise AttributeError(name)
    import openai

    return getattr(openai, name)

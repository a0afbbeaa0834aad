"""The public `openai` client, imported when a test first uses it, which takes half a second."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    # pytest looks up its own attributes in every module that a test file imports.
    if not name[0].isupper():
        raise AttributeError(name)
    import openai

    return getattr(openai, name)

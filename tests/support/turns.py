"""Builds the tokens between two turns of a model, when a person asks the next question."""

from __future__ import annotations

from rstar2.loop.turns.codec import ChatCodec


def user_turn(codec: ChatCodec, text: str) -> list[int]:
    """Return the token ids between an answer and the next turn. They contain a person's next question."""
    bridge = codec.bridge([], [], [{"role": "user", "content": text}])
    assert bridge is not None
    return bridge

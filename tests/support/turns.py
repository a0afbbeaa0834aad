"""The text between two turns of a model, with a person's next question."""

from __future__ import annotations

from rstar2.loop.turns.codec import ChatCodec


def user_turn(codec: ChatCodec, text: str) -> list[int]:
    """Return the token ids between an answer and the next turn, with a person's next question."""
    bridge = codec.bridge([], [], [{"role": "user", "content": text}])
    assert bridge is not None
    return bridge

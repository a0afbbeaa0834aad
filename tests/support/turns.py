"""What a person writes between two turns of a model."""

from __future__ import annotations

from rstar2.loop.turns.codec import ChatCodec


def user_turn(codec: ChatCodec, text: str) -> list[int]:
    """Token ids between an answer and the next turn, when a person asks more."""
    bridge = codec.bridge([], [], [{"role": "user", "content": text}])
    assert bridge is not None
    return bridge

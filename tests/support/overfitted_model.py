"""A tiny model that has memorized one conversation with a tool call, in the folder of a base model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.data import builtin
from rstar2.demo.tiny import TinyModel, make_base_model
from rstar2.loop.turns.choose import codec_for, load_tokenizer
from rstar2.loop.turns.codec import ChatCodec
from rstar2.loop.turns.tags import CLOSE
from rstar2.train.conversations import encode

STEPS = 150
"""The maximal number of optimizer steps. About twenty are enough."""
LOW = 0.02
"""The mean loss per token at which greedy decoding reproduces the conversation."""

SIMILAR = "Find a * b, where a = {n} and b = 77."
"""Problems for which the model of `failing_model` writes calls. It is trained on one of them."""


@dataclass(frozen=True)
class OverfittedModel:
    """A trained model. Its folder has the base model's files, so its turns end with the base model's token."""

    folder: Path
    codec: ChatCodec
    problem: str
    turn: str
    """The text of the model's first turn."""


def overfitted_model(
    folder: Path,
    tied: bool = True,
    messages: list[dict[str, str]] | None = None,
    low: float = LOW,
    context: int = 256,
) -> OverfittedModel:
    """Create a base model and overfit it on one conversation, including the tool output.

    Args:
        messages: The conversation; by default the first built-in one with a tool call.
        low: The mean loss per token at which training ends. If it is about 0.1 or more, rollouts at temperature 1
            differ.
    """
    import torch
    from transformers import AutoModelForCausalLM

    size = TinyModel(vocab=512, hidden=64, layers=2, heads=2, context=context, tied=tied)
    make_base_model(folder, size, builtin.traces(1, 60, {}), builtin.FORMAT.template, seed=1)
    codec = codec_for(load_tokenizer(folder), builtin.FORMAT)
    messages = messages or _with_a_call()
    ids = torch.tensor([list(encode({"messages": messages}, codec).input_ids)])
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        loss = model(input_ids=ids, labels=ids).loss
        if loss < low:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < low
    for old in folder.glob("model*.safetensors*"):
        old.unlink()
    model.save_pretrained(folder)
    turn = messages[1]["content"].removeprefix(codec.turn_start)
    return OverfittedModel(folder, codec, messages[0]["content"], turn)


def failing_model(folder: Path) -> None:
    """Create a model in the demo's format whose rollouts differ and begin with a failing call."""
    from rstar2.train.start_checks import with_format

    [repaired] = builtin.traces(1, 1, {"repaired": 1.0})
    assert repaired[0]["content"] == SIMILAR.format(n=79)
    overfitted_model(folder.parent / "taught", messages=repaired, low=0.15, context=1024)
    with_format(folder.parent / "taught", builtin.FORMAT, folder)


def _with_a_call() -> list[dict[str, str]]:
    return next(messages for messages in builtin.traces(1, 60, {}) if CLOSE in messages[1]["content"])

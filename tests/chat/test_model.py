"""A chat needs exactly one way to name its model."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from rstar2.chat.model import ModelChoice, open_model
from rstar2.errors import UserError
from rstar2.machine import GIB

NAMING: dict[str, Any] = {"run": Path(), "model": "m", "url": "http://127.0.0.1:1", "api": "chat"}
VALID_CHOICES = [{"run"}, {"model"}, {"url"}, {"url", "run"}, {"url", "model"}, {"url", "api"}]
"""Each set has the options of one valid command. If a URL is given too, a run or a model only names the tokenizer."""


@pytest.mark.parametrize(
    "options",
    [set(names) for count in range(5) for names in itertools.combinations(NAMING, count)],
    ids=lambda options: "+".join(sorted(options)) or "nothing",
)
def test_every_other_combination_is_refused_with_what_to_give(options: set[str]) -> None:
    naming = {name: NAMING[name] for name in options}
    if options in VALID_CHOICES:
        ModelChoice(**naming)
        return
    with pytest.raises(UserError) as error:
        ModelChoice(**naming)
    assert error.value.hint


async def test_a_model_that_memory_does_not_hold_is_refused_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(
        '{"num_attention_heads": 8, "hidden_size": 512, "num_hidden_layers": 4, "max_position_embeddings": 4096}'
    )
    (tmp_path / "model.safetensors").write_bytes(bytes(1 << 20))
    monkeypatch.setattr("rstar2.serve.hardware.memory_bytes", lambda: (64 * GIB, 3 * GIB // 2))
    with pytest.raises(UserError, match=r"1\.5 GiB of memory are free"):
        await open_model(ModelChoice(model=str(tmp_path)), lambda _: None)

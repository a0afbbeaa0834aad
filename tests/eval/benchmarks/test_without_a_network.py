"""Without a network, a benchmark names the fields that a file in place of the download must have."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2.errors import UserError
from rstar2.eval.benchmarks import BenchmarkFiles, find
from rstar2.eval.settings import EvalSettings


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("aime24", ["problem", "answer"]),
        ("ifeval", ["key", "prompt", "instruction_id_list", "kwargs"]),
        (
            "gpqa-diamond",
            ["Question", "Correct Answer", "Incorrect Answer 3", "CSV", "accept the terms"],
        ),
    ],
)
def test_the_fields_of_a_file_in_place_of_the_hub_are_named(
    name: str, fields: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(UserError, match="cannot load") as caught:
        find(name).load(BenchmarkFiles(), EvalSettings())
    assert "--data FILE.jsonl" in caught.value.hint
    assert [field for field in fields if field not in caught.value.hint] == []
    assert ("problem" in caught.value.hint.split("--data")[1]) == (name == "aime24")

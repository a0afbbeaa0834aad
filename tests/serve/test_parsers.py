"""vLLM reads the turns of a served model with the parsers that belong to the model's format."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("renderers")

from support.family_tokenizers import family_tokenizer

from rstar2.files import write_json
from rstar2.loop.formats.families import FAMILIES, TAG_PARSERS
from rstar2.loop.formats.format import ours, read_format, save_format
from rstar2.loop.turns.choose import MODELS_OWN
from rstar2.serve.vllm import VLLM, ServeSettings, parsers_of, vllm_command


def _model(folder: Path, family: str) -> Path:
    family_tokenizer(family).save_pretrained(folder)
    write_json(folder / "config.json", {"model_type": "qwen3"})
    write_json(folder / "generation_config.json", {})
    save_format(read_format(family, ""), folder)
    return folder


@pytest.mark.parametrize("family", ["qwen3", "qwen3.5", "glm-4.5", "llama-3", "minimax-m2", "nemotron-3"])
def test_vllm_gets_the_parsers_of_the_family(family: str, tmp_path: Path) -> None:
    model = str(_model(tmp_path / "model", family))
    parsers = parsers_of(model, MODELS_OWN)
    assert parsers == (FAMILIES[family].tool_parser, FAMILIES[family].reasoning_parser)
    command, _ = vllm_command(VLLM("python", "vllm", "0.26.0"), ServeSettings(model, parsers=parsers))
    assert command[command.index("--tool-call-parser") + 1] == FAMILIES[family].tool_parser
    assert ("--reasoning-parser" in command) is (family != "llama-3")


def test_turns_in_our_tags_are_read_as_hermes_ones(tmp_path: Path) -> None:
    assert ours().parsers == TAG_PARSERS
    command, _ = vllm_command(VLLM("python", "vllm", "0.26.0"), ServeSettings("m"))
    assert command[command.index("--tool-call-parser") + 1] == "hermes"
    assert "--reasoning-parser" not in command
    assert parsers_of("owner/that-is-not-here", MODELS_OWN) == TAG_PARSERS

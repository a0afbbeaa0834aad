"""Model families whose turns the library `renderers` writes and parses. The names of the families are those of the
library.

A family can be used as a format. The family sets the chat template and the syntax of thoughts and tool calls.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True)
class Family:
    """Facts about a model family that the library `renderers` does not provide."""

    model_types: tuple[str, ...]
    """The values of `model_type` in the config.json of the family's models."""
    tool_parser: str | None = None
    """vLLM's parser for the family's tool calls. The value is None if no parser of vLLM is known to fit the family."""
    reasoning_parser: str | None = None
    """vLLM's parser for the family's thoughts. The value is None if vLLM has no parser for the family's thoughts."""
    one_call: bool = False
    """Whether the family's chat template allows only one call per turn."""
    needs_network: bool = False
    """Whether the family's vocabulary is downloaded at first use."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the library `renderers` that rstar2 sets to other values than the library's defaults."""


class Parsers(NamedTuple):
    """Names of vLLM's parsers for the turns of a format. A name is None if no parser fits."""

    tool_calls: str | None
    reasoning: str | None


TAG_PARSERS = Parsers("hermes", None)
"""vLLM's parsers for turns in rstar2's tags."""
NO_PARSERS = Parsers(None, None)
_QWEN_XML = ("qwen3_coder", "qwen3")
_QWEN35 = ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next")
_NEMOTRON = ("nemotron_h",)
_LAGUNA = (("laguna",), "poolside_v1", "poolside_v1")
PROMPT_DATE = datetime.date(2024, 7, 26)
"""The date for prompts that contain a date. The date is fixed, so that prompts do not change from day to day.

The date is the default of Llama's chat template.
"""
FAMILIES: dict[str, Family] = {
    "qwen3": Family(("qwen3", "qwen3_moe"), "hermes", "qwen3"),
    "qwen3.5": Family(_QWEN35, *_QWEN_XML),
    "qwen3.6": Family(_QWEN35, *_QWEN_XML),
    "qwen3.8": Family((*_QWEN35, "qwen3_8", "qwen3_8_text"), *_QWEN_XML),
    "glm-4.5": Family(("glm4_moe",), "glm45", "glm45"),
    "glm-5": Family(("glm_moe_dsa", "glm4_moe_lite"), "glm47", "glm45"),
    "glm-5.1": Family(("glm_moe_dsa",), "glm47", "glm45"),
    "glm-5.3": Family(("glm_moe_dsa",), "glm47", "glm45"),
    "llama-3": Family(("llama",), "llama3_json", one_call=True),
    "minimax-m2": Family(("minimax_m2", "minimax"), "minimax_m2", "minimax_m2"),
    "nemotron-3": Family(_NEMOTRON, "qwen3_coder", "nemotron_v3"),
    "nemotron-3-ultra": Family(_NEMOTRON, "qwen3_coder", "nemotron_v3"),
    "nemotron-3.5": Family(_NEMOTRON, "qwen3_coder", "nemotron_v3"),
    "deepseek-v3": Family(("deepseek_v3",), "deepseek_v3"),
    "deepseek-r1": Family(("deepseek_v3",), "deepseek_v3", "deepseek_r1"),
    "deepseek-v4": Family(("deepseek_v4",), "deepseek_v4", "deepseek_v4"),
    "kimi-k2": Family(("kimi_k2",), "kimi_k2", "kimi_k2"),
    "gpt-oss": Family(
        ("gpt_oss",),
        "openai",
        "openai_gptoss",
        needs_network=True,
        options={"conversation_start_date": PROMPT_DATE.isoformat()},
    ),
    "gemma4": Family(("gemma4", "gemma4_text"), "gemma4", "gemma4"),
    "hy3": Family(("hy_v3",), "hy_v3", "hy_v3"),
    "laguna-xs.2": Family(*_LAGUNA),
    "laguna-m.1": Family(*_LAGUNA),
    "laguna-xs-2.1": Family(*_LAGUNA),
    "laguna-s-2.1": Family(*_LAGUNA),
}
"""The supported families, keyed by name.

Two kinds of families of the library are left out: families that differ from another family only in images, and families
whose tokenizer is code that comes with the model.
"""

"""Reads what an engine reports of its KV cache from the text of vLLM's /metrics."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SAMPLE = re.compile(r"^vllm:(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Reading:
    """An engine's KV cache at a moment."""

    capacity: int | None
    """Tokens; None where the engine does not say."""
    used_share: float
    """By requests that run; what is only kept for later turns does not count."""
    running: int
    waiting: int
    """Requests."""
    preemptions: int
    """Requests thrown out for want of room, since the engine started."""


def read_vllm(text: str) -> Reading | None:
    """The reading in vLLM's Prometheus text; None where it has none, because `disable_log_stats` is on.

    With data parallelism inside of an engine, shares are the largest and counts are summed.
    """
    values: dict[str, list[float]] = {}
    capacity = 0
    for sample in _SAMPLE.finditer(text):
        values.setdefault(sample["name"], []).append(float(sample["value"]))
        if sample["name"] == "cache_config_info":
            labels = dict(_LABEL.findall(sample["labels"] or ""))
            blocks, size = labels.get("num_gpu_blocks", ""), labels.get("block_size", "")
            capacity += int(blocks) * int(size) if blocks.isdigit() and size.isdigit() else 0
    if "kv_cache_usage_perc" not in values:
        return None
    return Reading(
        capacity=capacity or None,
        used_share=max(values["kv_cache_usage_perc"]),
        running=int(sum(values.get("num_requests_running", [0]))),
        waiting=int(sum(values.get("num_requests_waiting", [0]))),
        preemptions=int(sum(values.get("num_preemptions_total", [0]))),
    )

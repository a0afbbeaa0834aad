"""Reads the state of an engine's KV cache from vLLM's page /metrics."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SAMPLE = re.compile(r"^vllm:(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Reading:
    """The state of an engine's KV cache."""

    capacity: int | None
    """Number of tokens that the KV cache can hold, or None if the engine does not report this number."""
    used_share: float
    """The share of the KV cache that running requests use. Blocks that are only cached for later turns are not counted
    as used."""
    running: int
    """Number of requests that the engine is running."""
    waiting: int
    """Number of requests that wait in the engine."""
    preemptions: int
    """Number of requests that were preempted since the engine started, because the cache was full."""


def read_vllm(text: str) -> Reading | None:
    """Reads vLLM's metrics in Prometheus' text format. Returns None if the metrics are missing (`disable_log_stats`).

    If an engine uses data parallelism, the metrics of its replicas are combined: `used_share` is the largest share of
    any replica, and each count is the sum over the replicas.
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

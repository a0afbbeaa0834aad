"""Asks a server for its load, for `rstar2 serve status`."""

from __future__ import annotations

from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from rstar2.processes import answers
from rstar2.serve.settings import ServerHandle

_FIGURES = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_cache",
}
"""Maps the name of each vLLM metric to a key in the result of `figures`."""
_TIMEOUT_S = 5.0


def figures(server: ServerHandle) -> dict[str, Any]:
    """Returns the server's `state`, and the load of its engines.

    The load is the number of `running` and of `waiting` requests over all engines, and `kv_cache`: the share of the
    fullest engine's KV cache that is in use. A figure is None if no engine reports it.
    """
    if server.error or server.loading:
        state = "gave up" if server.error else "loading"
    else:
        state = "answers" if answers(server.url) else "does not answer"
    values: dict[str, list[float]] = {name: [] for name in _FIGURES.values()}
    for url in server.engines if state == "answers" else []:
        for name, value in _metrics(url):
            values[name].append(value)
    running, waiting = (int(sum(values[name])) if values[name] else None for name in ("running", "waiting"))
    return {
        "state": state,
        "running": running,
        "waiting": waiting,
        "kv_cache": max(values["kv_cache"], default=None),
    }


def _metrics(url: str) -> list[tuple[str, float]]:
    try:
        response = httpx.get(f"{url}/metrics", timeout=_TIMEOUT_S, trust_env=False)
    except httpx.TransportError:
        return []
    if response.status_code != httpx.codes.OK:
        return []
    families = text_string_to_metric_families(response.text)
    samples = [sample for family in families for sample in family.samples]
    return [(_FIGURES[sample.name], sample.value) for sample in samples if sample.name in _FIGURES]

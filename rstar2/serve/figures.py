"""Asks a server what it does at the moment, for `rstar2 serve status`."""

from __future__ import annotations

from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from rstar2.processes import answers
from rstar2.serve.settings import ServerHandle

_WANTED = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_cache",
}
_ASK_S = 5.0


def figures(server: ServerHandle) -> dict[str, Any]:
    """`state`, and of its engines: `running` and `waiting` requests, the largest share of a `kv_cache` in use.

    None where the engine does not say.
    """
    if server.error or server.loading:
        state = "gave up" if server.error else "loading"
    else:
        state = "answers" if answers(server.url) else "does not answer"
    sums: dict[str, list[float]] = {name: [] for name in _WANTED.values()}
    for url in server.engines if state == "answers" else []:
        for name, value in _metrics(url):
            sums[name].append(value)
    running, waiting = (int(sum(sums[name])) if sums[name] else None for name in ("running", "waiting"))
    return {
        "state": state,
        "running": running,
        "waiting": waiting,
        "kv_cache": max(sums["kv_cache"], default=None),
    }


def _metrics(url: str) -> list[tuple[str, float]]:
    try:
        answer = httpx.get(f"{url}/metrics", timeout=_ASK_S, trust_env=False)
    except httpx.TransportError:
        return []
    if answer.status_code != httpx.codes.OK:
        return []
    families = text_string_to_metric_families(answer.text)
    samples = [sample for family in families for sample in family.samples]
    return [(_WANTED[sample.name], sample.value) for sample in samples if sample.name in _WANTED]

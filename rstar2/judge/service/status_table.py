"""The table that `rstar2 judge status` shows."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from rstar2.judge.queue.liveness import STALE_S


def dashboard(url: str, status: dict[str, Any]) -> RenderableType:
    """One status of `/status` as text and a table."""
    isolation = status["isolation"] or "unknown"
    lines = [
        f"judge at [bold]{escape(url)}[/], isolation [bold]{isolation}[/], {status['num_workers']} workers",
        f"{status['queue']} queued, {status['running']} running, {status['rate']:.0f} programs a second",
        f"queue {_times(status['queue_time'])}; run {_times(status['run_time'])} (last 2000 programs)",
        f"outcomes: {_counts(status['outcomes'])}; restarts: {_counts(status['restarts'])}",
        *(f"[yellow]not enforced: {escape(sentence)}[/]" for sentence in status["exceptions"]),
    ]
    return Group(*lines, _workers(status["workers"]))


def _times(found: dict[str, float]) -> str:
    return f"p50 {found['p50_ms']:.1f} ms, p99 {found['p99_ms']:.1f} ms" if found else "no times yet"


def _counts(found: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in found.items()) or "none yet"


def _workers(workers: list[dict[str, Any]]) -> Table:
    table = Table("worker", "pid", "isolation", "done", "mean ms", "running s", "heartbeat")
    for worker in workers:
        table.add_row(
            escape(worker["name"]),
            str(worker["pid"]),
            worker["isolation"],
            str(worker["done"]),
            f"{1000 * worker['mean_s']:.1f}",
            f"{worker['running_s']:.1f}",
            f"{worker['age_s']:.1f} s ago",
            style="red" if worker["age_s"] > STALE_S else None,
        )
    return table

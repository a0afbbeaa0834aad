"""Draws the rows of each source up to its count in the mixture. The same seed draws the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rstar2.data.candidates import Candidates
from rstar2.data.mixture.card import DrawCounts, Step
from rstar2.data.mixture.recipe import MixturePlan
from rstar2.data.reading import ReadCounts
from rstar2.errors import UserError


def draw(
    rows: Candidates, plan: MixturePlan, counts: Mapping[str, ReadCounts], dropped: list[Step]
) -> dict[str, DrawCounts]:
    """Reduce each source to its count by dropping random rows. A source with fewer rows than its count stays unchanged.

    Raises:
        UserError: a source has fewer rows than its minimum, or no rows are left.
    """
    drawn = {}
    keys: Any = None
    for at, (name, settings) in enumerate(plan.recipe.sources.items()):
        first, end = int(rows.starts[at]), int(rows.starts[at + 1])
        left = first + np.flatnonzero(rows.alive[first:end])
        needed = settings.minimum or 0
        if len(left) < needed:
            reasons = {
                **counts[name].refused,
                **{step.filter: step.by_source.get(name, 0) for step in dropped},
            }
            listed = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
            raise UserError(
                f"too few rows: the mixture needs at least {needed} rows of {name}, but only {len(left)} of "
                f"{counts[name].read} are left",
                f"Dropped: {listed or 'none'}. Lower the minimum with --set sources.{name}.minimum={len(left) or 1}, "
                "or add rows.",
            )
        if settings.count is not None and settings.count < len(left):
            keys = rows.keys("key") if keys is None else keys
            order = np.lexsort((left, _mixed(keys[left], plan.recipe.seed)))
            rows.drop(left[order[settings.count :]])
        drawn[name] = DrawCounts(len(left), int(rows.alive[first:end].sum()), settings.count)
    if not rows.alive.any():
        listed = ", ".join(f"{step.dropped} {step.filter}" for step in dropped if step.dropped)
        raise UserError(
            f"no rows of {plan.name} are left: {f'dropped {listed}' if listed else 'none was usable'}",
            "Use other data, or other filters.",
        )
    return drawn


def _mixed(keys: Any, seed: int) -> Any:
    """Returns a pseudo-random number for each key and the seed (splitmix64)."""
    mixed = keys + np.uint64(seed % 2**63 * 0x9E3779B97F4A7C15 % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))

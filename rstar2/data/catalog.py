"""Lists the data sources that the recipe knows: what each is for, where it is, and its licence.

Sizes are those the paper (arXiv 2508.20722) or the sets themselves give; a licence that was not checked is
marked so. Texts of the MAA's and other contests stay their owners', whatever a copy on the hub says.
"""

from __future__ import annotations

from dataclasses import dataclass

from rstar2.data.benchmarks import BUILTIN, SOURCES, Source
from rstar2.data.source import Source as TrainingSource
from rstar2.data.sources import sources


@dataclass(frozen=True)
class Card:
    """One data source."""

    name: str
    use: str
    """evaluation, SFT, or the stages of RL."""
    hub: str
    """Hub id with config and split; empty for what is made here or not on the hub."""
    columns: str
    """The columns that are read."""
    rows: str
    licence: str
    verb: str
    """The verb that reads it."""
    gated: bool = False
    """Whether its terms must be accepted on the hub first."""
    kept: str = ""
    """What the paper takes of it."""
    download: str = ""
    """How much is read of the hub."""
    disk: str = ""
    """How much disk its preparation needs."""

    @property
    def needs_hub(self) -> bool:
        return bool(self.hub)


def cards() -> list[Card]:
    """Every source."""
    made = Card(
        BUILTIN, "demo: RL, SFT, evaluation", "", "", "any number, by seed", "MIT, made here", "demo, eval"
    )
    benchmarks = [_card(name, source) for name, source in SOURCES.items()]
    return [made, *(_training(name, source) for name, source in sources().items()), *benchmarks]


def _card(name: str, source: Source) -> Card:
    hub = f"{source.hub_id} ({', '.join([*filter(None, source.configs), source.split])})"
    return Card(
        name, "evaluation", hub, ", ".join(source.columns), source.rows, source.licence, "eval", source.gated
    )


def _training(name: str, source: TrainingSource) -> Card:
    stage = "RL, stages 1 to 3" if source.kind == "problems" else f"SFT: {source.family}"
    return Card(
        name,
        stage,
        ", ".join(map(str, source.hub)),
        " or ".join(", ".join(form) for form in source.columns),
        source.rows,
        source.licence,
        "data prepare",
        source.gated,
        source.paper,
        source.download,
        source.disk,
    )

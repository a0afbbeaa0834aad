"""The catalogue of data sources and benchmarks: the use, the location and the licence of each.

Sizes are from the paper (arXiv 2508.20722) or from the sets themselves. A licence that was not checked is marked
`not checked`. Problems from contests, such as those of the MAA, belong to their owners, even if a copy on the hub has a
licence.
"""

from __future__ import annotations

from dataclasses import dataclass

from rstar2.data.benchmarks import BUILTIN, SOURCES, Source
from rstar2.data.source import Source as TrainingSource
from rstar2.data.sources import sources


@dataclass(frozen=True)
class Card:
    """An entry of the catalogue: a data source or a benchmark."""

    name: str
    use: str
    """The use of the source: evaluation, SFT, or the stages of RL."""
    hub: str
    """Hub id with config and split. Empty if the source is generated or is not on the hub."""
    columns: str
    """The columns of the source that are read."""
    rows: str
    licence: str
    verb: str
    """The command of rstar2 that reads the source."""
    gated: bool = False
    """Whether the user must first accept the source's terms on the hub."""
    kept: str = ""
    """The part of the source that the paper uses."""
    download: str = ""
    """The amount of data that is downloaded."""
    disk: str = ""
    """The disk space that a preparation needs."""

    @property
    def needs_hub(self) -> bool:
        return bool(self.hub)


def cards() -> list[Card]:
    """Returns the catalogue: the generated problems, the training sources, and the benchmarks."""
    builtin = Card(
        BUILTIN, "demo: RL, SFT, evaluation", "", "", "any number, by seed", "MIT, made here", "demo, eval"
    )
    benchmarks = [_card(name, source) for name, source in SOURCES.items()]
    return [builtin, *(_training(name, source) for name, source in sources().items()), *benchmarks]


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

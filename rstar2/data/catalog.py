"""Lists the data sources that the recipe knows: what each is for, where it is, and its licence.

Sizes are those the paper (arXiv 2508.20722) or the sets themselves give; a licence that was not checked is
marked so. Texts of the MAA's and other contests stay their owners', whatever a copy on the hub says.
"""

from __future__ import annotations

from dataclasses import dataclass

from rstar2.data.benchmarks import BUILTIN, SOURCES, Source
from rstar2.data.prepare import DAPO, DAPO_NAME


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
    """The verb that reads it; empty where none does yet."""

    @property
    def needs_hub(self) -> bool:
        return bool(self.hub)


_RECIPE = (
    Card(
        "openmathreasoning",
        "RL: 93K AoPS problems before filters",
        "nvidia/OpenMathReasoning (default, cot)",
        "problem, expected_answer",
        "93K",
        "CC-BY-4.0",
        "",
    ),
    Card("project-euler", "RL", "", "", "937", "not checked", ""),
    Card("toolace", "SFT: function calls", "", "", "11K", "not checked", ""),
    Card("apigen-mt", "SFT: function calls", "", "", "5K", "not checked", ""),
    Card("glaive-v2", "SFT: function calls", "", "", "101K", "not checked", ""),
    Card("magicoder", "SFT: code, rewritten as JSON calls", "", "", "48K", "not checked", ""),
    Card("tulu3", "SFT: following instructions", "", "", "30K", "not checked", ""),
    Card("llama-nemotron", "SFT: chat", "", "", "27K", "not checked", ""),
)


def cards() -> list[Card]:
    """Every source, those that a verb reads first."""
    made = Card(
        BUILTIN, "demo: RL, SFT, evaluation", "", "", "any number, by seed", "MIT, made here", "demo, eval"
    )
    dapo = _card(DAPO_NAME, DAPO, "RL, stages 1 to 3", "data prepare")
    benchmarks = [_card(name, source, "evaluation", "eval") for name, source in SOURCES.items()]
    return [made, dapo, *benchmarks, *_RECIPE]


def _card(name: str, source: Source, use: str, verb: str) -> Card:
    hub = f"{source.hub_id} ({', '.join([*filter(None, source.configs), source.split])})"
    return Card(name, use, hub, ", ".join(source.columns), source.rows, source.licence, verb)

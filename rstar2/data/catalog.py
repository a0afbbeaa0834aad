"""Lists the data sources that the recipe knows: what each is for, where it is, and its licence.

Sizes are those the paper (arXiv 2508.20722) or the sets themselves give; a licence that was not checked is
marked so. Texts of the MAA's and other contests stay their owners', whatever a copy on the hub says.
"""

from __future__ import annotations

from dataclasses import dataclass

from rstar2.data.benchmarks import BUILTIN, SOURCES

UNCHECKED = "see its hub page"


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


DAPO = Card(
    "dapo",
    "RL, stages 1 to 3",
    "open-r1/DAPO-Math-17k-Processed (en, train)",
    "prompt, reward_model.ground_truth",
    "17K",
    UNCHECKED,
    "data prepare",
)

_BENCHMARKS = {
    "aime24": ("30", "none stated; texts MAA"),
    "aime25": ("30", f"{UNCHECKED}; texts MAA"),
    "math500": ("500", "MIT"),
    "hmmt25": ("30", "CC-BY-NC-SA-4.0"),
    "amc23": ("40", f"{UNCHECKED}; texts MAA"),
    "gsm8k": ("1319", "MIT"),
    "gpqa-diamond": ("198", "gated: accept its terms on the hub"),
}
"""Rows and licence of each benchmark."""

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
    return [made, DAPO, *(_benchmark(name) for name in SOURCES), *_RECIPE]


def _benchmark(name: str) -> Card:
    source = SOURCES[name]
    rows, licence = _BENCHMARKS[name]
    configs = [config for config in source.configs if config]
    place = ", ".join([*configs, source.split])
    columns = ", ".join([source.problem, source.answer, *source.more_columns])
    return Card(name, "evaluation", f"{source.hub_id} ({place})", columns, rows, licence, "eval")

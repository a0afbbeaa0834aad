"""The data card of a prepared set: its sources, the dropped rows with reasons, the result, and the paper's numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rstar2.data.mixture.form import AnswerForm
from rstar2.data.mixture.recipe import MixturePlan
from rstar2.data.mixture.rewrite import Rewritten
from rstar2.data.reading import ReadCounts
from rstar2.data.rows import Kind
from rstar2.data.source import Source
from rstar2.errors import UserError
from rstar2.files import write_json, write_text
from rstar2.terminal import percent

CARD = "card.json"
FORM_COLUMNS = {
    "suitable": "conversations that can be in the answer form",
    "marked": "conversations in the answer form",
    "rewarded_endings": "conversations that end with a boxed value",
    "turns": "turns",
    "demanded_turns": "turns whose prompt asks for a form",
    "compliant_turns": "turns that have this form",
    "mixed": "conversations in which only some turns have the form that the format asks for",
}
"""The columns of the card's table about the answer form. The keys are names of counts in `AnswerForm.card`, and the
values are the titles of the columns."""


@dataclass(frozen=True)
class Step:
    """How many rows a filter dropped."""

    filter: str
    dropped: int
    by_source: dict[str, int]


@dataclass(frozen=True)
class DrawCounts:
    """How many rows of a source remain after the filters, and how many of these rows were drawn."""

    left: int
    taken: int
    target: int | None = None
    """The source's `count` in the recipe. None if all rows are taken."""

    @property
    def missing(self) -> int:
        """Number of rows by which the source falls short of the target."""
        return max((self.target or 0) - self.taken, 0)


@dataclass(frozen=True)
class Card:
    """The facts about a prepared set. All values can be written as JSON."""

    name: str
    kind: Kind
    config: dict[str, Any]
    sources: dict[str, dict[str, Any]]
    """The facts about each source, keyed by the source's name.

    The keys are `family`, `licence`, `paper`, `inputs`, `read`, `refused`, `dropped`, `left`, `taken`, `target`,
    `missing` (the number of rows by which the source falls short of the target) and `note`. `target` is None if all
    rows are taken. Conversations also have `form`, see `AnswerForm.card`.
    """
    steps: list[dict[str, Any]]
    """One entry per filter, in order: `filter`, `dropped` and `by_source`."""
    examples: list[dict[str, Any]]
    """Examples of dropped rows: `reason`, `id` or `place`, `text`, `detail`."""
    shared: list[dict[str, Any]]
    """Words that rows share with benchmarks, the most frequent first: `words`, `benchmark`, `benchmark_id`, `rows`."""
    rows: int
    sha256: str
    """SHA-256 of data.parquet."""
    tokens: dict[str, Any] = field(default_factory=dict)
    """Lengths of the rows in tokens. Empty if no tokenizer was chosen.

    The keys are the tokenizer's `name`, the number of `counted` rows, `mean`, `most`, `limit`, the share `over` of rows
    above the limit, and a `histogram` of [upper bound, rows].
    """

    @property
    def checked(self) -> bool:
        """Whether rows were compared with benchmarks, and dropped if they shared words with a benchmark."""
        return bool(self.config["against"]) and "grams" in self.config["recipe"]["filters"]

    @classmethod
    def load(cls, folder: Path) -> Card:
        """Read the card of a prepared folder. Raises UserError if the folder has no card."""
        try:
            return cls(**json.loads((folder / CARD).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise UserError(
                f"there is no prepared data at {folder}",
                "Use a folder that `rstar2 data prepare` wrote.",
            ) from error


def make_card(
    plan: MixturePlan,
    config: dict[str, Any],
    counts: Mapping[str, ReadCounts],
    steps: list[Step],
    drawn: Mapping[str, DrawCounts],
    rewritten: Mapping[str, Rewritten],
    examples: list[dict[str, Any]],
    shared: list[dict[str, Any]],
    digest: str,
    form: AnswerForm | None,
) -> Card:
    sources = {}
    for origin in plan.origins:
        name, read = origin.name, counts[origin.name]
        sources[name] = {
            "family": origin.source.family,
            "licence": origin.source.licence,
            "paper": origin.source.paper,
            "inputs": read.hub or config["inputs"][name],
            "read": read.read,
            "refused": dict(sorted(read.refused.items())),
            "dropped": {step.filter: step.by_source[name] for step in steps if name in step.by_source},
            **asdict(drawn[name]),
            "missing": drawn[name].missing,
            "note": _note(origin.source, plan.recipe.rewrite.model, rewritten.get(name)),
            **({} if form is None else {"form": form.card(name)}),
        }
    rows = sum(each.taken for each in drawn.values())
    listed = [asdict(step) for step in steps]
    return Card(plan.name, plan.kind, config, sources, listed, examples, shared, rows, digest)


def _note(source: Source, model: str, rewritten: Rewritten | None) -> str:
    notes = []
    if rewritten is not None:
        unchanged = _listed(rewritten.unchanged)
        notes.append(
            f"{rewritten.taken:,} {rewritten.what} rewritten by {model}; left unchanged: {unchanged}"
        )
    elif source.rewritten:
        notes.append(f"not rewritten; in the paper, o4-mini rewrote the {source.rewritten}")
    if source.left_out:
        notes.append(f"left out of the rows: {source.left_out}")
    return "; ".join(notes)


def write_card(card: Card, folder: Path) -> None:
    """Write card.md, and then card.json. If card.json exists, the set is complete."""
    write_text(folder / "card.md", as_markdown(card))
    write_json(folder / CARD, asdict(card))


def as_markdown(card: Card) -> str:
    parts = [
        f"# {card.name}: {card.rows:,} {card.kind}",
        _sources(card),
        "## Rows that filters dropped, in order",
        _table(
            ["filter", "dropped", "by source"],
            [[each["filter"], f"{each['dropped']:,}", _listed(each["by_source"])] for each in card.steps],
        ),
        *_forms(card),
        *_contamination(card),
        *_lengths(card),
        "## Examples of dropped rows",
        *(_example(each) for each in card.examples),
        "## Settings",
        f"```json\n{json.dumps(card.config, indent=1, ensure_ascii=False)}\n```",
        f"`data.parquet`: SHA-256 {card.sha256}",
    ]
    return "\n\n".join(parts) + "\n"


def _sources(card: Card) -> str:
    rows = [
        [
            name,
            each["family"],
            f"{each['read']:,}",
            _listed(each["refused"]),
            f"{each['left']:,}",
            f"{each['taken']:,}",
            each["paper"] or "–",
            each["licence"],
        ]
        for name, each in card.sources.items()
    ]
    heads = [
        *("source", "family", "rows read", "unusable rows", "rows after the filters", "rows taken"),
        *("used by the paper", "licence"),
    ]
    notes = [
        f"- {name}: {each['missing']:,} rows short of the {each['target']:,} in the recipe"
        for name, each in card.sources.items()
        if each.get("missing")
    ]
    notes += [f"- {name}: {each['note']}" for name, each in card.sources.items() if each["note"]]
    inputs = [
        f"- {name}: {place.get('file') or place.get('hub')}, {_version(place)}"
        for name, each in card.sources.items()
        for place in each["inputs"]
    ]
    if not card.checked:
        notes.append("- The rows were not compared with any benchmark.")
    return "\n".join([_table(heads, rows), "", *notes, *inputs])


def _version(place: Mapping[str, Any]) -> str:
    """Returns the version of a file or of a data set on the hub."""
    if "revision" in place:
        return f"revision {place['revision']}"
    return f"SHA-256 {place.get('sha256', 'not known')}"


def _forms(card: Card) -> list[str]:
    """Returns the section about the answer form: for each source, the numbers of conversations and turns in this
    form."""
    rows = [
        [name, percent(form["share"], 0), *(f"{form[key]:,}" for key in FORM_COLUMNS)]
        for name, each in card.sources.items()
        if (form := each.get("form"))
    ]
    if not rows:
        return []
    return [
        "## Form of the answers",
        "In SFT, conversations in the answer form get the format's system text. The others keep their own system text, "
        "or have none. The format for these counts is rstar2.",
        _table(["source", "share", *FORM_COLUMNS.values()], rows),
    ]


def _contamination(card: Card) -> list[str]:
    if not card.shared:
        return []
    rows = [
        [str(each["rows"]), each["words"], f"{each['benchmark']}, {each['benchmark_id']}"]
        for each in card.shared
    ]
    return [
        "## Words that rows share with benchmarks",
        "These are the most frequent ones. `dropped.jsonl` lists the shared words of every dropped row.",
        _table(["rows", "words", "benchmark, problem"], rows),
    ]


def _lengths(card: Card) -> list[str]:
    if not card.tokens:
        return []
    tokens = card.tokens
    rows = [[f"≤ {bound:,}", f"{count:,}"] for bound, count in tokens["histogram"]]
    return [
        f"## Tokens per row, with the tokenizer {tokens['name']}",
        f"{tokens['counted']:,} rows were counted. The mean is {tokens['mean']:,.0f} tokens, and the longest row has "
        f"{tokens['most']:,}. {percent(tokens['over'])} of the rows have more than {tokens['limit']:,}.",
        _table(["tokens", "rows"], rows),
    ]


def _example(each: dict[str, Any]) -> str:
    details = ", ".join(f"{key}: {value}" for key, value in each["detail"].items())
    text = " ".join(each.get("text", "").split())
    return f"- **{each['reason']}** {each.get('id') or each['place']}: {details}" + (
        f"\n  > {text}" if text else ""
    )


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "–"


def _table(heads: list[str], rows: list[list[str]]) -> str:
    cells = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells)

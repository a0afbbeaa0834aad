"""The data card: what went in, what was dropped and why, what came out, and how the paper's numbers compare."""

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

CARD = "card.json"
FORM_COLUMNS = {
    "suitable": "can be in the answer form",
    "marked": "are",
    "rewarded_endings": "end with a boxed value",
    "turns": "turns",
    "demanded_turns": "turns that are asked for a form",
    "compliant_turns": "turns that keep it",
    "mixed": "conversations of which only some turns keep the format's form",
}
"""The counts of `FormCounts` and `AnswerForm.card` that the card shows, with the heads of their columns."""


@dataclass(frozen=True)
class Step:
    """What a filter dropped."""

    filter: str
    dropped: int
    by_source: dict[str, int]


@dataclass(frozen=True)
class Taken:
    """What is left of a source after the filters, and how many rows of it were drawn."""

    left: int
    taken: int
    target: int | None = None
    """The mixture's count for the source; None if it takes all rows."""

    @property
    def missing(self) -> int:
        """How many rows fewer than the target were taken."""
        return max((self.target or 0) - self.taken, 0)


@dataclass(frozen=True)
class Card:
    """The facts of a prepared set; JSON-able."""

    name: str
    kind: Kind
    config: dict[str, Any]
    sources: dict[str, dict[str, Any]]
    """By name: `family`, `licences`, `paper`, `inputs`, `read`, `refused`, `dropped`, `left`, `taken`,
    `target` (None if all rows are taken), `missing` (rows fewer than the target), `note`; of conversations, `form`, see
    `AnswerForm.card`."""
    steps: list[dict[str, Any]]
    """In order: `filter`, `dropped` and `by_source`."""
    examples: list[dict[str, Any]]
    """Dropped rows: `reason`, `id` or `place`, `text`, `detail`."""
    shared: list[dict[str, Any]]
    """What rows share with benchmarks, the most frequent first: `words`, `benchmark`, `benchmark_id`, `rows`."""
    rows: int
    sha256: str
    """Of data.parquet."""
    tokens: dict[str, Any] = field(default_factory=dict)
    """Where a tokenizer was given: its `name`, the `counted` rows, `mean`, `most`, `limit`, `over` and a `histogram` of
    [up to, rows]."""

    @property
    def checked(self) -> bool:
        """Whether rows that share words with a benchmark were dropped."""
        return bool(self.config["against"]) and "grams" in self.config["recipe"]["filters"]

    @classmethod
    def load(cls, folder: Path) -> Card:
        """The card of a prepared folder; a UserError where there is none."""
        try:
            return cls(**json.loads((folder / CARD).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise UserError(
                f"no prepared data at {folder}", "`rstar2 data prepare` makes such a folder."
            ) from error


def make_card(
    plan: MixturePlan,
    config: dict[str, Any],
    counts: Mapping[str, ReadCounts],
    steps: list[Step],
    taken: Mapping[str, Taken],
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
            **asdict(taken[name]),
            "missing": taken[name].missing,
            "note": _note(origin.source, plan.recipe.rewrite.model, rewritten.get(name)),
            **({} if form is None else {"form": form.card(name)}),
        }
    rows = sum(each.taken for each in taken.values())
    listed = [asdict(step) for step in steps]
    return Card(plan.name, plan.kind, config, sources, listed, examples, shared, rows, digest)


def _note(source: Source, model: str, rewritten: Rewritten | None) -> str:
    notes = []
    if rewritten is not None:
        unchanged = _listed(rewritten.kept)
        notes.append(
            f"{rewritten.taken:,} {rewritten.what} rewritten by {model}; left unchanged: {unchanged}"
        )
    elif source.rewritten:
        notes.append(f"not rewritten: the paper had o4-mini rewrite its {source.rewritten}")
    if source.left_out:
        notes.append(f"left out of its rows: {source.left_out}")
    return "; ".join(notes)


def write_card(card: Card, folder: Path) -> None:
    """Write card.md, then card.json, whose presence says that the set is whole."""
    write_text(folder / "card.md", as_markdown(card))
    write_json(folder / CARD, asdict(card))


def as_markdown(card: Card) -> str:
    parts = [
        f"# {card.name}: {card.rows:,} {card.kind}",
        _sources(card),
        "## What was dropped, in order",
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
    heads = ["source", "family", "read", "refused", "left by the filters", "taken", "the paper", "licence"]
    notes = [
        f"- {name}: {each['missing']:,} rows fewer than the {each['target']:,} that the mixture asks for"
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
        notes.append("- Not checked against any benchmark.")
    return "\n".join([_table(heads, rows), "", *notes, *inputs])


def _version(place: Mapping[str, Any]) -> str:
    """Which version of a file or of a set on the hub was read."""
    if "revision" in place:
        return f"revision {place['revision']}"
    return f"SHA-256 {place.get('sha256', 'not known')}"


def _forms(card: Card) -> list[str]:
    """How many conversations of each source are taught in the form that RL rewards, and which turns keep their form."""
    rows = [
        [name, f"{form['share']:.0%}", *(f"{form[key]:,}" for key in FORM_COLUMNS)]
        for name, each in card.sources.items()
        if (form := each.get("form"))
    ]
    if not rows:
        return []
    return [
        "## The form of answers",
        "In SFT the conversations in the answer form follow the format's system text. The others have their own system "
        "text or none. Counted in the format rstar2.",
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
        "The most frequent; `dropped.jsonl` names them for every row.",
        _table(["rows", "words", "benchmark, problem"], rows),
    ]


def _lengths(card: Card) -> list[str]:
    if not card.tokens:
        return []
    about = card.tokens
    rows = [[f"≤ {upto:,}", f"{count:,}"] for upto, count in about["histogram"]]
    return [
        f"## Tokens, by {about['name']}",
        f"{about['counted']:,} rows counted: mean {about['mean']:,.0f}, longest {about['most']:,}; "
        f"{about['over']:.1%} have more than {about['limit']:,}.",
        _table(["tokens", "rows"], rows),
    ]


def _example(each: dict[str, Any]) -> str:
    found = ", ".join(f"{key}: {value}" for key, value in each["detail"].items())
    text = " ".join(each.get("text", "").split())
    return f"- **{each['reason']}** {each.get('id') or each['place']}: {found}" + (
        f"\n  > {text}" if text else ""
    )


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "–"


def _table(heads: list[str], rows: list[list[str]]) -> str:
    cells = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in cells)

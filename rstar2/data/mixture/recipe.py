"""A mixture's recipe: which sources, which filters in which order, how many rows of each source."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from rstar2.config import Strict, merged, read_toml, recipes_folder, resolve
from rstar2.data.benchmarks import NAMES as BENCHMARKS
from rstar2.data.benchmarks import fingerprint, load_benchmark
from rstar2.data.filters import NAMES, OF_PROBLEMS, Inputs
from rstar2.data.filters.measured import rates_of_run
from rstar2.data.filters.settings import FilterSettings
from rstar2.data.mixture.rewrite import Rewrite, check_server
from rstar2.data.own import own_source
from rstar2.data.reading import Origin
from rstar2.data.rows import Kind
from rstar2.data.sources import sources
from rstar2.errors import UserError
from rstar2.runs import json_digest

DEFAULT_FILTERS: dict[Kind, tuple[str, ...]] = {
    "problems": (
        *("unverifiable", "compound", "contradicted", "huge", "integer"),
        *("language", "length", "duplicates", "near-duplicates", "grams"),
    ),
    "conversations": ("length", "duplicates", "grams"),
}
"""Where sources are named, and no recipe."""
_OWN = (".jsonl", ".parquet")


class SourceSettings(Strict):
    """What is taken of a source."""

    count: int | None = Field(None, ge=1)
    """So many rows, drawn at random from those that the filters leave; None for all of them."""


class MixtureRecipe(FilterSettings):
    """A mixture, whole."""

    sources: dict[str, SourceSettings] = Field(min_length=1)
    """By name, in the order in which they are read: of two copies the first is kept."""
    filters: tuple[str, ...]
    """By name, in order."""
    seed: int = 1
    """Draws the rows where a source has more than its `count`."""
    rewrite: Rewrite = Rewrite()
    """The model that rewrites some sources' answers or prompts."""


@dataclass(frozen=True)
class MixturePlan:
    """A mixture with everything that decides its bytes."""

    name: str
    recipe: MixtureRecipe
    kind: Kind
    origins: list[Origin]
    inputs: Inputs
    rewriter: str = ""
    """The URL of the server with the model that rewrites."""

    def config(self) -> dict[str, Any]:
        """What was resolved, for the card; another one makes another set."""
        with ThreadPoolExecutor() as pool:
            inputs = list(pool.map(Origin.identity, self.origins))
        return {
            "recipe": self.recipe.model_dump(mode="json"),
            "inputs": {origin.name: found for origin, found in zip(self.origins, inputs, strict=True)},
            "against": {name: fingerprint(problems) for name, problems in self.inputs.benchmarks.items()},
            "measured": {name: json_digest(rates, 16) for name, rates in self.inputs.rates.items()},
        }


def mixtures() -> dict[str, Path]:
    """The shipped recipes of mixtures, by name."""
    return {file.stem: file for file in sorted((recipes_folder() / "data").glob("*.toml"))}


def plan_mixture(
    wanted: list[str],
    given: list[str],
    changes: Mapping[str, Any],
    also: list[str],
    overrides: list[str],
    rewriter: str = "",
) -> MixturePlan:
    """What to prepare, checked as far as it can be before a row is read.

    Args:
        wanted: one recipe, by name or .toml file; or sources, by name or as files of one's own.
        given: `NAME=FILE`: rows of a source or problems of a benchmark in place of the hub.
        changes: keys that are put on top of those of the recipe, table by table.
        also: filters that come last where the recipe does not name them.
        overrides: `a.b=c`, what a user typed after `--set`.
        rewriter: the server with the model `rewrite.model`, where it is to rewrite.

    Raises:
        UserError: an unknown name or key, a file that cannot be read, sources of two kinds, or a filter that has
            nothing to work on.
    """
    values, name, own = _values(wanted)
    values = merged(values, dict(changes))
    values["filters"] = [*values.get("filters", ()), *(f for f in also if f not in values.get("filters", ()))]
    recipe = resolve(MixtureRecipe, values, overrides, f"the mixture {name}")
    files = _given(given, recipe, own)
    origins = [_origin(each, files.get(each, ()), own) for each in recipe.sources]
    kind = _one_kind({origin.source.kind: origin.name for origin in origins})
    _check_filters(recipe, kind)
    _check_rewriter(recipe.rewrite, rewriter, origins)
    benchmarks = {
        each: load_benchmark(each, next(iter(files.get(each, ())), None)) for each in recipe.against
    }
    return MixturePlan(name, recipe, kind, origins, Inputs(recipe, benchmarks, _rates(recipe)), rewriter)


def _values(wanted: list[str]) -> tuple[dict[str, Any], str, dict[str, Path]]:
    """The recipe's values, its name, and the user's own files among the sources."""
    shipped = mixtures()
    if len(wanted) == 1 and (wanted[0] in shipped or wanted[0].endswith(".toml")):
        path = shipped.get(wanted[0], Path(wanted[0]))
        return read_toml(path), path.stem, {}
    own = {Path(each).stem: Path(each) for each in wanted if each.endswith(_OWN)}
    names = [Path(each).stem if each.endswith(_OWN) else each for each in wanted]
    if len(set(names)) < len(names) or set(own) & sources().keys():
        twice = next((each for each in names if names.count(each) > 1 or each in sources()), "")
        raise UserError(
            f"two sources are called {twice}", "Give each source once, or rename one of the files."
        )
    unknown = [each for each in names if each not in own and each not in sources()]
    if unknown:
        _refuse_unknown(unknown[0], shipped)
    kinds = {(own_source(own[each]) if each in own else sources()[each]).kind: each for each in names}
    kind = _one_kind(kinds)
    return {"sources": {each: {} for each in names}, "filters": DEFAULT_FILTERS[kind]}, "+".join(names), own


def _refuse_unknown(name: str, shipped: Iterable[str]) -> None:
    known = [*shipped, *sources()]
    near = difflib.get_close_matches(name, known, n=1)
    raise UserError(
        f"unknown source: {name}" + (f"; did you mean {near[0]}?" if near else ""),
        f"Known: {', '.join(dict.fromkeys(known))}; or a .jsonl or .parquet file of your own, or a .toml recipe.",
    )


def _given(given: list[str], recipe: MixtureRecipe, own: Mapping[str, Path]) -> dict[str, tuple[Path, ...]]:
    """The files of `--from`, by source or benchmark."""
    files: dict[str, tuple[Path, ...]] = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not equals or not path:
            raise UserError(f"--from {each}: not of the form NAME=FILE", "Example: --from dapo=dapo.jsonl.")
        if name not in recipe.sources and name not in recipe.against:
            used = ", ".join([*recipe.sources, *recipe.against])
            raise UserError(f"--from {each}: {name} is not in the mixture", f"It uses {used}.")
        if name in recipe.against and name not in BENCHMARKS:
            raise UserError(
                f"--from {each}: {name} is already a file", "To use another file, give it to --against."
            )
        files[name] = (*files.get(name, ()), Path(path))
    return files


def _origin(name: str, files: tuple[Path, ...], own: Mapping[str, Path]) -> Origin:
    if name in own:
        return Origin(name, own_source(own[name]), (own[name],))
    if name in sources():
        source = sources()[name]
        if not files and not source.hub:
            raise UserError(f"{name}: {source.missing}", "The file is JSON lines or parquet.")
        return Origin(name, source, files)
    if len(files) == 1:
        # A recipe's own name for a file that the user gives.
        return Origin(name, own_source(files[0]), files)
    raise UserError(
        f"the recipe's source {name} is unknown", f"Give its file: --from {name}=FILE (.jsonl or .parquet)."
    )


def _one_kind(names: Mapping[Kind, str]) -> Kind:
    """The kind of all sources, given a source of each kind; a UserError where there are two."""
    if len(names) > 1:
        one, other = names.values()
        raise UserError(
            f"{one} and {other} hold rows of two kinds, {' and '.join(names)}",
            "Prepare each kind separately.",
        )
    return next(iter(names))


def _check_filters(recipe: MixtureRecipe, kind: Kind) -> None:
    for name in recipe.filters:
        if name not in NAMES:
            near = difflib.get_close_matches(name, NAMES, n=1)
            raise UserError(
                f"unknown filter: {name}" + (f"; did you mean {near[0]}?" if near else ""),
                f"Known: {', '.join(NAMES)}.",
            )
        if kind == "conversations" and name in OF_PROBLEMS:
            raise UserError(f"the filter {name} is for problems, not for conversations", "Leave it out.")
        if recipe.filters.count(name) > 1:
            raise UserError(f"the filter {name} is named twice", "Name it once.")
        if name in ("pass-rate", "solved") and not recipe.measured.run:
            raise UserError(f"the filter {name} needs an evaluation", "Give its folder with --measured RUN.")


def _check_rewriter(settings: Rewrite, url: str, origins: Iterable[Origin]) -> None:
    if bool(url) != bool(settings.model):
        raise UserError(
            "rewriting needs both a server and a model",
            "Give both --rewrite URL and --model NAME (or the key rewrite.model).",
        )
    if not url:
        return
    if not any(origin.source.rewritten for origin in origins):
        known = ", ".join(name for name, source in sources().items() if source.rewritten)
        raise UserError("--rewrite does not apply to any of these sources", f"It applies to {known}.")
    check_server(url, settings.model)


def _rates(recipe: MixtureRecipe) -> dict[str, Any]:
    runs = {recipe.measured.run} if {"pass-rate", "solved"} & set(recipe.filters) else set()
    if "agreement" in recipe.filters and recipe.agreement.by != "pass_rate":
        runs.add(recipe.agreement.by)
    return {run: rates_of_run(Path(run)) for run in sorted(runs)}

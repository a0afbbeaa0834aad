"""A mixture's recipe: which sources, which filters in which order, how many rows of each source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from rstar2.config import Strict, merged, read_toml, recipes_folder, resolve
from rstar2.data.benchmarks import NAMES as BENCHMARKS
from rstar2.data.benchmarks import SOURCES as ON_THE_HUB
from rstar2.data.benchmarks import fingerprint, load_benchmark
from rstar2.data.filters import NAMES, OF_PROBLEMS, Inputs
from rstar2.data.filters.measured import Rates, rates_of_run
from rstar2.data.filters.patterns import FIELDS, check_regex
from rstar2.data.filters.settings import FilterSettings
from rstar2.data.mixture.rewrite import Rewrite
from rstar2.data.own import own_source
from rstar2.data.problem import Problem
from rstar2.data.reading import Origin
from rstar2.data.rows import Kind
from rstar2.data.source import Source
from rstar2.data.sources import sources
from rstar2.data.users import load_source, source_name
from rstar2.errors import UserError, did_you_mean
from rstar2.plugins import is_reference
from rstar2.runs import json_digest

DEFAULT_FILTERS: dict[Kind, tuple[str, ...]] = {
    "problems": (
        *("unverifiable", "compound", "contradicted", "huge", "integer"),
        *("figures", "proofs", "questions", "choices", "stated-answer", "links"),
        *("language", "length", "duplicates", "near-duplicates", "grams"),
    ),
    "conversations": ("length", "duplicates", "grams"),
}
"""Where sources are named, and no recipe."""
DEFAULT_ANSWER_FORM = 0.5
"""The share of conversations in the form that RL rewards, if sources are named, and no recipe. Of a user's own files it
is 0."""
_OWN = (".json", ".jsonl", ".parquet")


class SourceSettings(Strict):
    """What is taken of a source."""

    count: int | None = Field(None, ge=1)
    """The number of rows to draw at random from those that the filters leave. If fewer are left, all of them are
    taken, and the card says so. None for all rows."""
    minimum: int | None = Field(None, ge=1)
    """The preparation fails if the filters leave fewer rows than this, which is at most `count`. None for no such
    limit."""
    answer_form: float | None = Field(None, ge=0, le=1)
    """The share of conversations that SFT teaches in the form that RL rewards. None for the mixture's."""
    object: str | None = None
    """`module:object` of the user's module that has the source; None for a source of the package or a file."""

    @model_serializer(mode="wrap")
    def _without_unset_keys(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out all but `count` if it is not set, as in the cards of sets that earlier versions made."""
        values: dict[str, Any] = serialize(self)
        return {key: value for key, value in values.items() if key == "count" or value is not None}


class MixtureRecipe(FilterSettings):
    """A mixture, whole."""

    sources: dict[str, SourceSettings] = Field(min_length=1)
    """By name, in the order in which they are read: of two copies the first is kept."""
    filters: tuple[str, ...]
    """By name, in order."""
    seed: int = 1
    """Draws the rows where a source has more than its `count`, and those that are taught in the answer form."""
    answer_form: float | None = Field(None, ge=0, le=1)
    """The share that SFT teaches in the form that RL rewards, among the conversations that can be taught in it. None
    for none of them."""
    rewrite: Rewrite = Rewrite()
    """The model that rewrites some sources' answers or prompts."""

    def unset_keys(self) -> set[str]:
        return super().unset_keys() | ({"answer_form"} if self.answer_form is None else set())

    def answer_shares(self) -> dict[str, float]:
        """The share of each source's conversations that SFT teaches in the form that RL rewards."""
        shared = self.answer_form or 0.0
        return {
            name: shared if each.answer_form is None else each.answer_form
            for name, each in self.sources.items()
        }


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
            inputs = list(pool.map(lambda origin: origin.identity(), self.origins))
        return {
            "recipe": self.recipe.model_dump(mode="json"),
            "inputs": {origin.name: found for origin, found in zip(self.origins, inputs, strict=True)},
            "against": {name: fingerprint(problems) for name, problems in self.inputs.benchmarks.items()},
            "measured": {name: json_digest(rates, 16) for name, rates in self.inputs.rates.items()},
        }


def mixtures() -> dict[str, Path]:
    """The shipped recipes of mixtures, by name."""
    return {file.stem: file for file in sorted((recipes_folder() / "data").glob("*.toml"))}


@dataclass(frozen=True)
class MixtureRequest:
    """What a user asks to have prepared."""

    sources: list[str]
    """One recipe, by name or .toml file; or sources, by name, as files of one's own, or as `module:object`."""
    files: list[str] = field(default_factory=list)
    """`NAME=FILE`: rows of a source or problems of a benchmark in place of the hub."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Keys that are put on top of those of the recipe, table by table."""
    filters: list[str] = field(default_factory=list)
    """Filters that come last if the recipe does not name them."""
    overrides: list[str] = field(default_factory=list)
    """`a.b=c`, what the user typed after `--set`."""
    rewriter: str = ""
    """URL of the server with the model `rewrite.model`; empty if nothing is to be rewritten."""


def plan_mixture(
    request: MixtureRequest,
    offline: bool = False,
    answer_fault: Callable[[str], str | None] | None = None,
) -> MixturePlan:
    """What to prepare, checked as far as it can be before a row is read.

    Args:
        offline: leave out the benchmarks that are on the hub, because the plan is shown and not carried out.
        answer_fault: see `Inputs`. With it, problems that no output can be graded correct against are dropped last.

    Raises:
        UserError: an unknown name or key, a file that cannot be read, sources of two kinds, or a filter that has
            nothing to work on.
    """
    values, name, own, folders = _values(request.sources)
    values = merged(values, dict(request.changes))
    named = values.get("filters", ())
    values["filters"] = [*named, *(each for each in request.filters if each not in named)]
    recipe = resolve(MixtureRecipe, values, request.overrides, f"the mixture {name}")
    files = _given(request.files, recipe, own)
    users = {
        each: load_source(settings.object, folders)
        for each, settings in recipe.sources.items()
        if settings.object is not None
    }
    if taken := next((each for each in users if each in sources()), None):
        raise UserError(f"a source of rstar2 is called {taken}", "Give yours another name in the recipe.")
    origins = [_origin(each, files.get(each, ()), own, users) for each in recipe.sources]
    kind = _one_kind({origin.source.kind: origin.name for origin in origins})
    _check_filters(recipe, kind)
    if kind == "problems" and any(recipe.answer_shares().values()):
        raise UserError("answer_form is for conversations, not for problems", "Leave it out.")
    _check_rewriter(recipe.rewrite, request.rewriter, origins)
    benchmarks = {
        each: _benchmark(each, files.get(each, ()))
        for each in recipe.against
        if not (offline and each in ON_THE_HUB and each not in files)
    }
    inputs = Inputs(recipe, benchmarks, _rates(recipe), answer_fault)
    return MixturePlan(name, recipe, kind, origins, inputs, request.rewriter)


def _benchmark(name: str, files: tuple[Path, ...]) -> list[Problem]:
    """The problems of a benchmark, or of the files in its place; ids of several files begin with the file's name."""
    option = f"--from {name}=FILE.jsonl"
    if len(files) < 2:
        return load_benchmark(name, next(iter(files), None), option=option)
    return [
        replace(problem, id=f"{file.name}: {problem.id}")
        for file in files
        for problem in load_benchmark(name, file, option=option)
    ]


def _values(wanted: list[str]) -> tuple[dict[str, Any], str, dict[str, Path], list[Path]]:
    """The recipe's values, its name, the user's own files among the sources, and folders with the user's modules."""
    shipped = mixtures()
    if len(wanted) == 1 and (wanted[0] in shipped or wanted[0].endswith(".toml")):
        path = shipped.get(wanted[0], Path(wanted[0]))
        return read_toml(path), path.stem, {}, [path.parent]
    # A name may be a mixture's and a source's.
    mixtures_only = shipped.keys() - sources().keys()
    mixture = next((each for each in wanted if each in mixtures_only or each.endswith(".toml")), None)
    if mixture is not None:
        raise UserError(
            f"{mixture} is a mixture, which cannot be combined with other sources",
            "Name it alone, or name its sources; or copy its file and add to that.",
        )
    names = [_name_of(each) for each in wanted]
    users = {name: each for name, each in zip(names, wanted, strict=True) if is_reference(each)}
    own = {name: Path(each) for name, each in zip(names, wanted, strict=True) if each.endswith(_OWN)}
    if len(set(names)) < len(names) or (own.keys() | users.keys()) & sources().keys():
        twice = next((each for each in names if names.count(each) > 1 or each in sources()), "")
        raise UserError(
            f"two sources are called {twice}", "Give each source once, or rename one of the files."
        )
    unknown = [each for each in names if each not in {**own, **users, **sources()}]
    if unknown:
        _refuse_unknown(unknown[0], shipped)
    every = {
        **sources(),
        **{name: own_source(file) for name, file in own.items()},
        **{name: load_source(reference) for name, reference in users.items()},
    }
    kind = _one_kind({every[each].kind: each for each in names})
    settings: dict[str, dict[str, Any]] = {
        each: {"object": users[each]} if each in users else {} for each in names
    }
    values: dict[str, Any] = {"sources": settings, "filters": DEFAULT_FILTERS[kind]}
    if kind == "conversations" and own.keys() < set(names):
        # What is in a user's own file is taught as it is, unless the user says otherwise.
        values["answer_form"] = DEFAULT_ANSWER_FORM
        for each in own:
            settings[each]["answer_form"] = 0.0
    return values, "+".join(names), own, []


def _name_of(source: str) -> str:
    """The name in a mixture of a source that the user named, gave as a file, or as `module:object`.

    It has no points, which stand between names in the key of a setting.
    """
    if is_reference(source):
        return source_name(source)
    return Path(source).stem.replace(".", "-") if source.endswith(_OWN) else source


def _refuse_unknown(name: str, shipped: Iterable[str]) -> None:
    known = [*shipped, *sources()]
    raise UserError(
        f"unknown source: {name}{did_you_mean(name, known)}",
        f"Known: {', '.join(dict.fromkeys(known))}; or a .json, .jsonl or .parquet file of your own, "
        "module:object for a source of your own, or a .toml recipe.",
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
        if name in own or (name in recipe.against and name not in BENCHMARKS):
            option = "as a source" if name in own else "to --against"
            raise UserError(
                f"--from {each}: {name} is already a file", f"To use another file, give it {option}."
            )
        files[name] = (*files.get(name, ()), Path(path))
    return files


def _origin(
    name: str, files: tuple[Path, ...], own: Mapping[str, Path], users: Mapping[str, Source]
) -> Origin:
    if name in own:
        return Origin(name, own_source(own[name]), (own[name],))
    known = {**sources(), **users}
    if name in known:
        source = known[name]
        if not files and not source.hub:
            missing = source.missing or f"Give its file: --from {name}=FILE."
            raise UserError(f"{name}: {missing}", "The file is JSON lines, a JSON list or parquet.")
        return Origin(name, source, files)
    if len(files) == 1:
        # A recipe's own name for a file that the user gives.
        return Origin(name, own_source(files[0]), files)
    raise UserError(
        f"the recipe's source {name} is unknown{did_you_mean(name, known)}",
        f"Give its file: --from {name}=FILE (.json, .jsonl or .parquet).",
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
    known = (*NAMES, *recipe.patterns)
    for name in recipe.filters:
        if name not in known:
            raise UserError(
                f"unknown filter: {name}{did_you_mean(name, known)}",
                f"Known: {', '.join(known)}. [patterns.{name}] with a regex makes a filter of your own.",
            )
        if kind == "conversations" and name in OF_PROBLEMS:
            raise UserError(f"the filter {name} is for problems, not for conversations", "Leave it out.")
        if recipe.filters.count(name) > 1:
            raise UserError(f"the filter {name} is named twice", "Name it once.")
        if name in ("pass-rate", "solved") and not recipe.measured.run:
            raise UserError(f"the filter {name} needs an evaluation", "Give its folder with --measured RUN.")
    if recipe.measured.run and not {"pass-rate", "solved"} & set(recipe.filters):
        raise UserError(
            f"no filter uses the evaluation {recipe.measured.run}",
            "Add --pass-rate MIN..MAX or --exclude-solved, or leave out --measured.",
        )
    _check_patterns(recipe, kind)
    _check_settings(recipe)


def _check_patterns(recipe: MixtureRecipe, kind: Kind) -> None:
    """Raises UserError if a pattern is not used, takes another filter's name, is no expression, or reads nothing."""
    for name, pattern in recipe.patterns.items():
        key = f"patterns.{name}"
        if name in NAMES:
            raise UserError(f"{key}: a filter of rstar2 is called {name}", "Give the pattern another name.")
        if name not in recipe.filters:
            raise UserError(
                f"{key} is not used: `filters` does not name {name}",
                f'Add "{name}" to `filters` at the place where it is to run, or leave the pattern out.',
            )
        check_regex(key, pattern.regex)
        known = FIELDS[kind]
        for each in pattern.fields if pattern.fields is not None else known:
            if each not in known:
                raise UserError(
                    f"{key}.fields: {kind} have no {each}", f"A pattern can read {', '.join(known)}."
                )
        if pattern.fields == ():
            raise UserError(f"{key}.fields is empty", f"Name some of {', '.join(known)}, or leave it out.")


def _check_settings(recipe: MixtureRecipe) -> None:
    """Raise UserError if two settings exclude each other."""
    for name, source in recipe.sources.items():
        if source.count is not None and source.minimum is not None and source.minimum > source.count:
            raise UserError(
                f"sources.{name}.minimum = {source.minimum} is greater than sources.{name}.count = {source.count}",
                f"Lower the minimum: --set sources.{name}.minimum={source.count}.",
            )
    for name, bounds in (("length", recipe.length), ("measured", recipe.measured)):
        if bounds.least > bounds.most:
            raise UserError(
                f"{name}.least = {bounds.least} is greater than {name}.most = {bounds.most}", "Exchange them."
            )
    unknown = set(recipe.agreement.sources or ()) - recipe.sources.keys()
    if unknown and "agreement" in recipe.filters:
        raise UserError(
            f"agreement.sources: {min(unknown)} is not in the mixture",
            f"It uses {', '.join(recipe.sources)}.",
        )


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


def _rates(recipe: MixtureRecipe) -> dict[str, Rates]:
    """What the runs that filters use measured, by run; a UserError where one measured other sources."""
    agreement, run = recipe.agreement, recipe.measured.run
    rates: dict[str, Rates] = {}
    if "agreement" in recipe.filters and agreement.by != "pass_rate":
        rates[agreement.by] = rates_of_run(Path(agreement.by))
        for source in agreement.sources or recipe.sources:
            _check_measured(agreement.by, rates[agreement.by], [source])
    if run:
        rates[run] = rates_of_run(Path(run))
        # Problems that were not sampled pass these filters.
        _check_measured(run, rates[run], list(recipe.sources))
    return dict(sorted(rates.items()))


def _check_measured(run: str, rates: Rates, sources: list[str]) -> None:
    """A UserError where a run measured no problem of any of these sources."""
    if not any(name.startswith(tuple(f"{source}-" for source in sources)) for name in rates):
        raise UserError(
            f"the evaluation at {run} has no problem of {' or '.join(sources)}",
            "Give a run over these sources as `data prepare` wrote them; agreement.sources names those that need it.",
        )

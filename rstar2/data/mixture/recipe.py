"""The recipe of a mixture: its sources, the order of its filters, and the number of rows of each source."""

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
"""The default filters for each kind of rows. They apply if the user names sources instead of a recipe."""
DEFAULT_ANSWER_FORM = 0.5
"""The default share of conversations that SFT teaches in the answer form. It applies if the user names sources instead
of a recipe.

For the user's own files, the share is 0.
"""
_FILE_SUFFIXES = (".json", ".jsonl", ".parquet")


class SourceSettings(Strict):
    """Settings of one source in a mixture."""

    count: int | None = Field(None, ge=1)
    """The number of rows to draw at random from the rows that remain after the filters.

    If fewer rows remain, all of them are taken, and the data card says so. If None, all rows are taken.
    """
    minimum: int | None = Field(None, ge=1)
    """The minimum number of rows that must remain after the filters. The minimum must not be greater than `count`. If
    fewer rows remain, the preparation fails. If None, the source has no minimum."""
    answer_form: float | None = Field(None, ge=0, le=1)
    """The share of conversations that SFT teaches in the answer form (the form that RL rewards). If None, the share of
    the mixture is used."""
    object: str | None = None
    """`module:object` of a source in a user's module. None if the source is shipped with rstar2 or is a file."""

    @model_serializer(mode="wrap")
    def _without_unset_keys(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out all unset keys except `count`, as in cards of earlier versions."""
        values: dict[str, Any] = serialize(self)
        return {key: value for key, value in values.items() if key == "count" or value is not None}


class MixtureRecipe(FilterSettings):
    """The complete recipe of a mixture."""

    sources: dict[str, SourceSettings] = Field(min_length=1)
    """Dict from the name of each source to its settings. Sources are read in this order, and the filter `duplicates`
    keeps the first copy of a row."""
    filters: tuple[str, ...]
    """The names of the filters, in the order in which they run."""
    seed: int = 1
    """Seed for drawing rows from a source with more than `count` rows, and for drawing rows for the answer form."""
    answer_form: float | None = Field(None, ge=0, le=1)
    """The share of conversations that SFT teaches in the answer form (the form that RL rewards). It is a share of those
    conversations that can be taught in this form. If None, no conversation is taught in this form."""
    rewrite: Rewrite = Rewrite()
    """The model that rewrites the answers or prompts of some sources."""

    def unset_keys(self) -> set[str]:
        return super().unset_keys() | ({"answer_form"} if self.answer_form is None else set())

    def answer_shares(self) -> dict[str, float]:
        """Returns a dict from each source to the share of its conversations that SFT teaches in the answer form."""
        shared = self.answer_form or 0.0
        return {
            name: shared if each.answer_form is None else each.answer_form
            for name, each in self.sources.items()
        }


@dataclass(frozen=True)
class MixturePlan:
    """A recipe together with its sources, benchmarks and measured pass rates. A plan determines every byte of the
    output."""

    name: str
    recipe: MixtureRecipe
    kind: Kind
    origins: list[Origin]
    inputs: Inputs
    rewriter: str = ""
    """The URL of the server whose model rewrites texts. Empty if nothing is rewritten."""

    def config(self) -> dict[str, Any]:
        """Returns the resolved recipe and the digests of all inputs, for the card.

        Mixtures with equal configs make equal sets.
        """
        with ThreadPoolExecutor() as pool:
            inputs = list(pool.map(lambda origin: origin.identity(), self.origins))
        return {
            "recipe": self.recipe.model_dump(mode="json"),
            "inputs": {origin.name: each for origin, each in zip(self.origins, inputs, strict=True)},
            "against": {name: fingerprint(problems) for name, problems in self.inputs.benchmarks.items()},
            "measured": {name: json_digest(rates, 16) for name, rates in self.inputs.rates.items()},
        }


def mixtures() -> dict[str, Path]:
    """Returns the files of the shipped mixtures, keyed by the mixture's name."""
    return {file.stem: file for file in sorted((recipes_folder() / "data").glob("*.toml"))}


@dataclass(frozen=True)
class MixtureRequest:
    """A user's request to prepare a mixture."""

    sources: list[str]
    """Either one recipe, by name or as a .toml file, or any number of sources. A source is a name, a file of the user,
    or `module:object`."""
    files: list[str] = field(default_factory=list)
    """`NAME=FILE` for each source or benchmark that is read from a file, not from the hub."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Values that replace the recipe's values. A value that is a table is merged with the recipe's table."""
    filters: list[str] = field(default_factory=list)
    """Filters to append if the recipe does not contain them."""
    overrides: list[str] = field(default_factory=list)
    """Overrides of the form `a.b=c`, from the option `--set`."""
    rewriter: str = ""
    """URL of the server with the model `rewrite.model`. Empty if nothing is rewritten."""


def plan_mixture(
    request: MixtureRequest,
    offline: bool = False,
    answer_fault: Callable[[str], str | None] | None = None,
) -> MixturePlan:
    """Make the plan of a mixture, and check it as far as possible before rows are read.

    Args:
        request: the mixture that the user wants.
        offline: leave out benchmarks on the hub, because the plan is only printed.
        answer_fault: see `Inputs`. If `answer_fault` is set, the preparation also drops problems whose answer the
            grader cannot read.

    Raises:
        UserError: a name or key is unknown, a file cannot be read, the sources have different kinds of rows, or a
            filter does not apply to the sources.
    """
    values, name, user_files, folders = _values(request.sources)
    values = merged(values, dict(request.changes))
    filters = values.get("filters", ())
    values["filters"] = [*filters, *(each for each in request.filters if each not in filters)]
    recipe = resolve(MixtureRecipe, values, request.overrides, f"the mixture {name}")
    files = _files_by_name(request.files, recipe, user_files)
    users = {
        each: load_source(settings.object, folders)
        for each, settings in recipe.sources.items()
        if settings.object is not None
    }
    if duplicate := next((each for each in users if each in sources()), None):
        raise UserError(
            f"the recipe's source {duplicate} has the name of a source of rstar2",
            "Rename the source in the recipe.",
        )
    origins = [_origin(each, files.get(each, ()), user_files, users) for each in recipe.sources]
    kind = _one_kind({origin.source.kind: origin.name for origin in origins})
    _check_filters(recipe, kind)
    if kind == "problems" and any(recipe.answer_shares().values()):
        raise UserError(
            "answer_form applies to conversations, not to problems", "Leave answer_form out of the recipe."
        )
    _check_rewriter(recipe.rewrite, request.rewriter, origins)
    benchmarks = {
        each: _benchmark(each, files.get(each, ()))
        for each in recipe.against
        if not (offline and each in ON_THE_HUB and each not in files)
    }
    inputs = Inputs(recipe, benchmarks, _rates(recipe), answer_fault)
    return MixturePlan(name, recipe, kind, origins, inputs, request.rewriter)


def _benchmark(name: str, files: tuple[Path, ...]) -> list[Problem]:
    """Returns the problems of a benchmark, or of the files that replace it.

    If there are several files, the id of each problem begins with the name of its file.
    """
    option = f"--from {name}=FILE.jsonl"
    if len(files) < 2:
        return load_benchmark(name, next(iter(files), None), option=option)
    return [
        replace(problem, id=f"{file.name}: {problem.id}")
        for file in files
        for problem in load_benchmark(name, file, option=option)
    ]


def _values(requested: list[str]) -> tuple[dict[str, Any], str, dict[str, Path], list[Path]]:
    """Returns the recipe's values, its name, the user's files (keyed by source), and the folders of user modules."""
    shipped = mixtures()
    if len(requested) == 1 and (requested[0] in shipped or requested[0].endswith(".toml")):
        path = shipped.get(requested[0], Path(requested[0]))
        return read_toml(path), path.stem, {}, [path.parent]
    # A mixture and a source may have the same name.
    mixtures_only = shipped.keys() - sources().keys()
    mixture = next((each for each in requested if each in mixtures_only or each.endswith(".toml")), None)
    if mixture is not None:
        raise UserError(
            f"{mixture} is a mixture, which cannot be combined with other sources",
            "Name only the mixture, or name its sources, or copy its file and add sources to the copy.",
        )
    names = [_name_of(each) for each in requested]
    users = {name: each for name, each in zip(names, requested, strict=True) if is_reference(each)}
    user_files = {
        name: Path(each) for name, each in zip(names, requested, strict=True) if each.endswith(_FILE_SUFFIXES)
    }
    if len(set(names)) < len(names) or (user_files.keys() | users.keys()) & sources().keys():
        duplicate = next((each for each in names if names.count(each) > 1 or each in sources()), "")
        raise UserError(
            f"two sources have the name {duplicate}", "Name each source once, or rename one of the files."
        )
    unknown = [each for each in names if each not in {**user_files, **users, **sources()}]
    if unknown:
        _refuse_unknown(unknown[0], shipped)
    every = {
        **sources(),
        **{name: own_source(file) for name, file in user_files.items()},
        **{name: load_source(reference) for name, reference in users.items()},
    }
    kind = _one_kind({every[each].kind: each for each in names})
    settings: dict[str, dict[str, Any]] = {
        each: {"object": users[each]} if each in users else {} for each in names
    }
    values: dict[str, Any] = {"sources": settings, "filters": DEFAULT_FILTERS[kind]}
    if kind == "conversations" and user_files.keys() < set(names):
        # Rows of the user's files are taught unchanged by default.
        values["answer_form"] = DEFAULT_ANSWER_FORM
        for each in user_files:
            settings[each]["answer_form"] = 0.0
    return values, "+".join(names), user_files, []


def _name_of(source: str) -> str:
    """Returns the name that a source has in a mixture. `source` is a name, a file, or `module:object`.

    Dots in a file's name become hyphens, because dots separate the parts of a setting's key.
    """
    if is_reference(source):
        return source_name(source)
    return Path(source).stem.replace(".", "-") if source.endswith(_FILE_SUFFIXES) else source


def _refuse_unknown(name: str, shipped: Iterable[str]) -> None:
    known = [*shipped, *sources()]
    raise UserError(
        f"unknown source: {name}{did_you_mean(name, known)}",
        f"Known: {', '.join(dict.fromkeys(known))}. You can also name a .json, .jsonl or .parquet file, "
        "module:object for a source in a module of yours, or a .toml recipe.",
    )


def _files_by_name(
    options: list[str], recipe: MixtureRecipe, user_files: Mapping[str, Path]
) -> dict[str, tuple[Path, ...]]:
    """Returns the files of the options `--from`, keyed by source or benchmark."""
    files: dict[str, tuple[Path, ...]] = {}
    for each in options:
        name, equals, path = each.partition("=")
        if not equals or not path:
            raise UserError(f"--from {each}: not of the form NAME=FILE", "Example: --from dapo=dapo.jsonl.")
        if name not in recipe.sources and name not in recipe.against:
            used = ", ".join([*recipe.sources, *recipe.against])
            raise UserError(f"--from {each}: {name} is not in the mixture", f"The mixture uses {used}.")
        if name in user_files or (name in recipe.against and name not in BENCHMARKS):
            place = "as the source" if name in user_files else "in --against"
            raise UserError(
                f"--from {each}: {name} already names a file", f"To use another file, pass it {place}."
            )
        files[name] = (*files.get(name, ()), Path(path))
    return files


def _origin(
    name: str, files: tuple[Path, ...], user_files: Mapping[str, Path], users: Mapping[str, Source]
) -> Origin:
    if name in user_files:
        return Origin(name, own_source(user_files[name]), (user_files[name],))
    known = {**sources(), **users}
    if name in known:
        source = known[name]
        if not files and not source.hub:
            missing = source.missing or f"name its file with --from {name}=FILE"
            raise UserError(
                f"{name}: {missing}", "The format of the file is JSON Lines, a JSON list or parquet."
            )
        return Origin(name, source, files)
    if len(files) == 1:
        # The recipe uses a name of its own for a file of the user.
        return Origin(name, own_source(files[0]), files)
    raise UserError(
        f"the recipe's source {name} is unknown{did_you_mean(name, known)}",
        f"Name its file with --from {name}=FILE (.json, .jsonl or .parquet).",
    )


def _one_kind(names: Mapping[Kind, str]) -> Kind:
    """Returns the kind of rows that all sources have. `names` is a dict from each kind to the name of one source.

    Raises UserError if there are two kinds.
    """
    if len(names) > 1:
        one, other = names.values()
        raise UserError(
            f"{one} and {other} have different kinds of rows, {' and '.join(names)}",
            "Prepare each kind separately.",
        )
    return next(iter(names))


def _check_filters(recipe: MixtureRecipe, kind: Kind) -> None:
    known = (*NAMES, *recipe.patterns)
    for name in recipe.filters:
        if name not in known:
            raise UserError(
                f"unknown filter: {name}{did_you_mean(name, known)}",
                f"Known: {', '.join(known)}. A table [patterns.{name}] with a regex defines a new filter.",
            )
        if kind == "conversations" and name in OF_PROBLEMS:
            raise UserError(
                f"the filter {name} applies to problems, not to conversations",
                f"Remove {name} from the filters.",
            )
        if recipe.filters.count(name) > 1:
            raise UserError(f"the filter {name} is listed twice", "List it once.")
        if name in ("pass-rate", "solved") and not recipe.measured.run:
            raise UserError(
                f"the filter {name} needs an evaluation",
                "Name the folder of an evaluation with --measured RUN.",
            )
    if recipe.measured.run and not {"pass-rate", "solved"} & set(recipe.filters):
        raise UserError(
            f"no filter uses the evaluation {recipe.measured.run}",
            "Add --pass-rate MIN..MAX or --exclude-solved, or leave out --measured.",
        )
    _check_patterns(recipe, kind)
    _check_settings(recipe)


def _check_patterns(recipe: MixtureRecipe, kind: Kind) -> None:
    """Raise UserError if a pattern is unused, has the name of another filter, is invalid, or searches no field."""
    for name, pattern in recipe.patterns.items():
        key = f"patterns.{name}"
        if name in NAMES:
            raise UserError(f"{key}: a filter of rstar2 has the name {name}", "Rename the pattern.")
        if name not in recipe.filters:
            raise UserError(
                f"{key} is not used, because `filters` does not contain {name}",
                f'Add "{name}" to `filters` at the position where it should run, or remove the pattern.',
            )
        check_regex(key, pattern.regex)
        known = FIELDS[kind]
        for each in pattern.fields if pattern.fields is not None else known:
            if each not in known:
                raise UserError(
                    f"{key}.fields: {kind} have no {each}", f"A pattern can read {', '.join(known)}."
                )
        if pattern.fields == ():
            raise UserError(
                f"{key}.fields is empty", f"List some of {', '.join(known)}, or leave `fields` out."
            )


def _check_settings(recipe: MixtureRecipe) -> None:
    """Raise UserError if two settings contradict each other."""
    for name, source in recipe.sources.items():
        if source.count is not None and source.minimum is not None and source.minimum > source.count:
            raise UserError(
                f"sources.{name}.minimum = {source.minimum} is greater than sources.{name}.count = {source.count}",
                f"Lower the minimum: --set sources.{name}.minimum={source.count}.",
            )
    for name, bounds in (("length", recipe.length), ("measured", recipe.measured)):
        if bounds.least > bounds.most:
            raise UserError(
                f"{name}.least = {bounds.least} is greater than {name}.most = {bounds.most}",
                "Swap the two values.",
            )
    unknown = set(recipe.agreement.sources or ()) - recipe.sources.keys()
    if unknown and "agreement" in recipe.filters:
        raise UserError(
            f"agreement.sources: {min(unknown)} is not in the mixture",
            f"The mixture uses {', '.join(recipe.sources)}.",
        )


def _check_rewriter(settings: Rewrite, url: str, origins: Iterable[Origin]) -> None:
    if bool(url) != bool(settings.model):
        raise UserError(
            "rewriting needs both a server and a model",
            "Use both --rewrite URL and --model NAME (or the recipe key rewrite.model).",
        )
    if not url:
        return
    if not any(origin.source.rewritten for origin in origins):
        known = ", ".join(name for name, source in sources().items() if source.rewritten)
        raise UserError("--rewrite does not apply to any of these sources", f"--rewrite applies to {known}.")


def _rates(recipe: MixtureRecipe) -> dict[str, Rates]:
    """Returns the measured pass rates of each evaluation run that a filter uses.

    Raises UserError if an evaluation run did not measure the sources to which the filter applies.
    """
    agreement, run = recipe.agreement, recipe.measured.run
    rates: dict[str, Rates] = {}
    if "agreement" in recipe.filters and agreement.by != "pass_rate":
        rates[agreement.by] = rates_of_run(Path(agreement.by))
        for source in agreement.sources or recipe.sources:
            _check_measured(agreement.by, rates[agreement.by], [source])
    if run:
        rates[run] = rates_of_run(Path(run))
        # One measured source is enough, because problems without a measurement pass these filters.
        _check_measured(run, rates[run], list(recipe.sources))
    return dict(sorted(rates.items()))


def _check_measured(run: str, rates: Rates, sources: list[str]) -> None:
    """Raise UserError if an evaluation run measured none of the problems of these sources."""
    if not any(name.startswith(tuple(f"{source}-" for source in sources)) for name in rates):
        raise UserError(
            f"the evaluation at {run} has no problem of {' or '.join(sources)}",
            "Use a run over the rows that `data prepare` wrote for these sources. `agreement.sources` limits the "
            "filter `agreement` to some sources.",
        )

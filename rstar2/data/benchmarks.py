"""Loads benchmarks by name, from the hub or from files.

The hub ids are the ones that other evaluations commonly use. If a data set no longer has the expected columns, an error
names the missing columns. The loader does not guess other columns. Without a network, a JSON Lines file with `problem`,
`answer` and optionally `id` can replace a benchmark on the hub.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from rstar2.data.parquet import PREPARED, read_rows
from rstar2.data.problem import Problem
from rstar2.errors import UserError, did_you_mean
from rstar2.files import read_objects

BUILTIN = "builtin"
BUILTIN_COUNT = 200
_FORMAT_HINT = 'Each line is an object such as {"problem": "What is 1+1?", "answer": "2"}. "id" is optional.'
_OPTION = "--data FILE.jsonl"
"""The option of `rstar2 eval` that names a file to read instead of the data set on the hub."""
UNCHECKED = "see its hub page"


@dataclass(frozen=True)
class Source:
    """The location of a benchmark on the hub, and the columns that are read."""

    hub_id: str
    split: str
    rows: str
    licence: str
    problem: str = "problem"
    """The name of the column with the problem."""
    answer: str = "answer"
    """The name of the column with the gold answer."""
    id: str | None = None
    """The name of the column with the id. If None, the row number is the id."""
    configs: tuple[str | None, ...] = (None,)
    """The configs of the data set, in the order in which they are read."""
    make: Callable[[Mapping[str, Any], Source], tuple[str, str]] | None = None
    """Converts a row to (problem, answer). None if the columns `problem` and `answer` can be used unchanged."""
    more_columns: tuple[str, ...] = ()
    """Further columns that `make` reads."""
    gated: bool = False
    """Whether the user must first accept the benchmark's terms on the hub."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns from which the problem and its answer are read."""
        return self.problem, self.answer, *self.more_columns


def _gsm8k(row: Mapping[str, Any], source: Source) -> tuple[str, str]:
    """Read a row of GSM8K. The gold answer follows `####` at the end of the solution. Commas in long numbers are
    removed."""
    return row[source.problem], str(row[source.answer]).rpartition("####")[2].strip().replace(",", "")


def _gpqa(row: Mapping[str, Any], source: Source) -> tuple[str, str]:
    """Read a row of GPQA.

    The order of the four choices is derived from the texts of the question and the choices, so the order is the same in
    every run.
    """
    choices = [row[source.answer], *(row[column] for column in source.more_columns)]
    question = str(row[source.problem]).strip()
    order = sorted(
        range(len(choices)),
        key=lambda at: hashlib.sha256(f"{at}\0{choices[at]}\0{question}".encode()).digest(),
    )
    letters = "ABCD"
    listed = "\n".join(
        f"({letter}) {str(choices[at]).strip()}" for letter, at in zip(letters, order, strict=True)
    )
    return f"{question}\n\n{listed}\n\nAnswer with the letter of the right choice.", letters[order.index(0)]


SOURCES = {
    "aime24": Source("HuggingFaceH4/aime_2024", "train", "30", "none stated; texts MAA", id="id"),
    "aime25": Source(
        "opencompass/AIME2025",
        "test",
        "30",
        f"{UNCHECKED}; texts MAA",
        problem="question",
        configs=("AIME2025-I", "AIME2025-II"),
    ),
    "math500": Source("HuggingFaceH4/MATH-500", "test", "500", "MIT", id="unique_id"),
    "hmmt25": Source("MathArena/hmmt_feb_2025", "train", "30", "CC-BY-NC-SA-4.0", id="problem_idx"),
    "amc23": Source("knoveleng/AMC-23", "train", "40", f"{UNCHECKED}; texts MAA"),
    "gsm8k": Source(
        "openai/gsm8k", "test", "1,319", "MIT", problem="question", configs=("main",), make=_gsm8k
    ),
    "gpqa-diamond": Source(
        "Idavidrein/gpqa",
        "train",
        "198",
        "terms on the hub",
        problem="Question",
        answer="Correct Answer",
        configs=("gpqa_diamond",),
        make=_gpqa,
        more_columns=("Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3"),
        gated=True,
    ),
}

NAMES = (*SOURCES, BUILTIN)


def load_benchmark(
    name: str, data: Path | None = None, seed: int = 0, option: str = _OPTION
) -> list[Problem]:
    """Load the problems of a benchmark, in their original order.

    Args:
        name: one of `NAMES`, a JSON Lines file, a parquet file, or a prepared folder.
        data: a JSON Lines file to read instead of the data set on the hub.
        seed: seed of the generated problems of the benchmark `builtin`.
        option: the command-line option that sets `data`, for error messages.

    Raises:
        UserError: the name is unknown, a row is wrong, or the data cannot be loaded.
    """
    if data is not None and name not in NAMES:
        raise UserError(
            f"unknown benchmark: {name}{did_you_mean(name, NAMES)}",
            f"--data works only with these benchmarks: {', '.join(NAMES)}. You can also name the file as the "
            "benchmark.",
        )
    if data is not None:
        return read_problems(data)
    if name == BUILTIN:
        from rstar2.data.builtin import held_out

        return held_out(seed, BUILTIN_COUNT)
    if name in SOURCES:
        return _distinct(_from_hub(name, SOURCES[name], option))
    if name.endswith(".parquet"):
        return _of_parquet(Path(name))
    if name.endswith(".jsonl") or Path(name).is_file():
        return read_problems(Path(name))
    if (Path(name) / PREPARED).is_file():
        return _of_parquet(Path(name) / PREPARED)
    raise UserError(
        f"unknown benchmark: {name}{did_you_mean(name, NAMES)}",
        f"Use one of {', '.join(NAMES)}, or a .jsonl or .parquet file.",
    )


def read_problems(path: Path) -> list[Problem]:
    """Read problems from a JSON Lines file. The id of a row without `id` is its line number.

    Raises:
        UserError: the file cannot be read, it contains no problems, or a field is wrong.
    """
    rows = read_objects(path, _FORMAT_HINT, decimals_as_text=True)
    placed = ((f"{path}, line {number}", row, str(number)) for number, row in rows)
    problems = _distinct((where, _from_fields(where, row, number)) for where, row, number in placed)
    if not problems:
        raise UserError(f"{path} contains no problems", _FORMAT_HINT)
    return problems


def _of_parquet(file: Path) -> list[Problem]:
    placed = ((f"{file}, row {at}", row, str(at)) for at, row in enumerate(read_rows(file, "problem"), 1))
    return _distinct((where, _from_fields(where, row, number)) for where, row, number in placed)


def fingerprint(problems: Iterable[Problem]) -> str:
    """Returns a digest of the ids, texts and answers of problems. Two runs with the same digest measured the same
    problems."""
    digest = hashlib.sha256()
    for problem in problems:
        _add(digest, problem)
    return _short(digest)


def begins_with(problems: Iterable[Problem], fingerprint_of_first: str) -> bool:
    """Whether `fingerprint_of_first` is the fingerprint of the first n problems, for some n."""
    digest = hashlib.sha256()
    for problem in problems:
        _add(digest, problem)
        if _short(digest) == fingerprint_of_first:
            return True
    return False


def _add(digest: hashlib._Hash, problem: Problem) -> None:
    digest.update(json.dumps(astuple(problem)).encode())


def _short(digest: hashlib._Hash) -> str:
    return digest.hexdigest()[:16]


def _from_fields(where: str, row: dict[str, Any], number: str) -> Problem:
    name = _text(where, row, "id") if "id" in row else number
    return Problem(id=name, problem=_text(where, row, "problem"), answer=_text(where, row, "answer"))


def _text(where: str, row: Mapping[str, Any], field: str) -> str:
    """Returns a field as text. Raises UserError if the field is missing, empty, or neither a string nor a number."""
    if field not in row:
        fields = ", ".join(row) or "no fields"
        raise UserError(f'{where}: no field "{field}"', f"The row has {fields}. {_FORMAT_HINT}")
    value = row[field]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        quoted = json.dumps(value, default=str)[:60]
        raise UserError(f'{where}: field "{field}" is not text: {quoted}', _FORMAT_HINT)
    text = str(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f'{where}: field "{field}" contains half a surrogate pair', "Correct the text."
        ) from error
    if not text.strip():
        raise UserError(f'{where}: field "{field}" is empty', "Every row needs a problem and an answer.")
    return text


def _distinct(placed: Iterable[tuple[str, Problem]]) -> list[Problem]:
    """Takes (place, problem) pairs and returns the problems. Raises UserError if two problems have the same id."""
    first: dict[str, str] = {}
    problems = []
    for place, problem in placed:
        if problem.id in first:
            raise UserError(
                f'{place}: field "id": {problem.id!r} is already used at {first[problem.id]}',
                "Give each row its own id, or leave out all ids to use the line numbers as ids.",
            )
        first[problem.id] = place
        problems.append(problem)
    return problems


def _from_hub(name: str, source: Source, option: str) -> Iterator[tuple[str, Problem]]:
    for config in source.configs:
        rows = load_hub(name, source, config, option=option)
        missing = {*source.columns, *filter(None, [source.id])} - set(rows.column_names)
        if missing:
            raise UserError(
                f"{name}: {source.hub_id} has no column {', '.join(sorted(missing))}",
                f"It has {', '.join(rows.column_names)}. Use a file with the problems instead: {option}.",
            )
        for index, row in enumerate(rows):
            place = f"{source.hub_id}{f' ({config})' if config else ''}, row {index}"
            yield place, _from_row(place, row, source, f"{config}-{index}" if config else str(index))


def _from_row(place: str, row: Mapping[str, Any], source: Source, number: str) -> Problem:
    for column in source.columns:
        _text(place, row, column)
    if source.make is not None:
        text, answer = source.make(row, source)
    else:
        text, answer = str(row[source.problem]), _text(place, row, source.answer)
    name = _text(place, row, source.id) if source.id else number
    return Problem(id=name, problem=text, answer=answer)


def load_hub(
    name: str, source: Source, config: str | None, file_hint: str = _FORMAT_HINT, option: str = _OPTION
) -> Any:
    """Load the rows of one config of a source, from the hub or its local cache, as a `datasets.Dataset`.

    Args:
        name: the name of the benchmark, for messages.
        source: the location of the benchmark on the hub.
        config: the config to load.
        file_hint: for error messages, a sentence about the format of a file that can replace the hub.
        option: the command-line option that names a file to replace the hub, for error messages.

    Raises:
        UserError: the rows cannot be loaded.
    """
    import datasets
    from huggingface_hub import constants

    from rstar2.data import hub

    try:
        if not constants.HF_HUB_OFFLINE:
            # This request fails fast. Without a network, `datasets` would retry for half a minute.
            hub.set_info(source.hub_id)
        return datasets.load_dataset(source.hub_id, config, split=source.split)
    # If the hub cannot be reached, its libraries raise OSError or one of many types of their own.
    except Exception as error:
        instead = f"use a file with the problems: {option}. {file_hint}"
        raise hub.refusal(name, source.hub_id, source.gated, instead, error) from error

"""Prepares a mixture: reads its sources, drops what its filters find, draws what its counts ask, writes the set.

```
OUTPUT/
  data.parquet     the rows, in the order of the sources; see rstar2.data.rows
  dropped.jsonl    every unusable or filtered row: its id or place, the reason, and what was found
  card.md          the data card, and card.json with the same facts
  .work/           finished steps, while the preparation is under way
```
A step's file is named after everything that decides its content, and appears by rename: a killed preparation
continues after its last finished step, and one with another setting uses the steps that it has in common.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import groupby, repeat
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import rstar2
from rstar2.data.candidates import Candidates, Drop, Group, Numbers
from rstar2.data.filters import SET_FILTERS, RowFilter, row_filter
from rstar2.data.hub import check_disk, size_text
from rstar2.data.mixture.card import CARD, Card, make_card, write_card
from rstar2.data.mixture.draw import draw
from rstar2.data.mixture.dropped import MOST_GRAMS, DroppedRows
from rstar2.data.mixture.form import AnswerForm
from rstar2.data.mixture.recipe import MixturePlan
from rstar2.data.mixture.rewrite import WAIT_S, Rewriter, Rewritten, Texts, check_server
from rstar2.data.parquet import PREPARED
from rstar2.data.reading import Origin, ReadCounts, hub_demand, read_source, sha256
from rstar2.data.rows import SCHEMAS, TOKENS, Kind, as_json
from rstar2.data.taught import ANSWER_FORM
from rstar2.data.workers import ahead, mapped, start_server
from rstar2.errors import Failure, UserError
from rstar2.files import whole_file, whole_path, write_json
from rstar2.retry import RetryPolicy
from rstar2.runs import changed_keys, locked

DROPPED = "dropped.jsonl"
_WORK = ".work"
_OURS = (_WORK, PREPARED, DROPPED, "card.", f".{PREPARED}.", f".{DROPPED}.", ".card.")
"""How names begin of what a preparation that was killed may have left beside `.work`."""
_BATCH = 8192
_LARGE = 1 << 26
"""Of inputs, in bytes: from here on the processes that read are made ready while the inputs' hashes are computed."""
CountTokens = Callable[[Path, Kind], dict[str, Any]]
"""Counts the tokens of a written set, for `Card.tokens`."""


class Progress(Protocol):
    """Shows the steps of a preparation. A step is known by its title; its rows are counted while it runs."""

    def start(self, title: str) -> None: ...

    def rows(self, count: int) -> None: ...

    def finish(self, text: str) -> None: ...


def prepare(
    plan: MixturePlan, output: Path, progress: Progress, count_tokens: CountTokens | None = None
) -> Card:
    """Write the prepared set to the folder `output`, or continue with what is there of it.

    Raises:
        UserError: a source cannot be read, nothing is left, a count cannot be met, or the folder cannot be used or
            holds another set.
        Failure: the disk is full, or a process died.
    """
    if sum(origin.size() for origin in plan.origins) > _LARGE:
        # Where it cannot be started now, the first step that needs it says so.
        with contextlib.suppress(OSError):
            start_server()
    config = json.loads(json.dumps(plan.config()))
    work = output / _WORK
    try:
        done = _done(output, config)
        if done is None:
            if plan.rewriter:
                check_server(plan.rewriter, plan.recipe.rewrite.model)
            work.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot use {output}: {error.strerror}", "Give another folder with --output."
        ) from error
    try:
        if done is not None:
            return done if count_tokens is None else _with_tokens(done, output, progress, count_tokens)
        with locked(work):
            for torn in (*output.glob(".*.part"), *work.glob(".*.part")):
                torn.unlink()
            try:
                card = _Preparation(plan, config, output, work, progress, count_tokens).run()
            except UserError:
                _remove_empty(output, work)
                raise
        shutil.rmtree(work)
        return card
    except OSError as error:
        raise Failure(
            f"cannot write to {output}: {os.strerror(error.errno) if error.errno else error}",
            "Make room, then start the same command again: it continues after the last finished step.",
        ) from error


def _done(output: Path, config: dict[str, Any]) -> Card | None:
    """The card of the set that is there already; a UserError where it is another one, or something else."""
    if output.exists() and not output.is_dir():
        raise UserError(f"{output} is a file, not a folder", "Give a folder with --output.")
    if (output / CARD).exists():
        card = Card.load(output)
        changed = changed_keys(card.config, config)
        if changed:
            raise UserError(
                f"{output} holds a different set; these keys differ: {', '.join(changed)}",
                "Give another folder with --output.",
            )
        if not (output / PREPARED).exists() or sha256(output / PREPARED) != card.sha256:
            raise UserError(
                f"{output / PREPARED} is missing or was changed since it was prepared",
                f"Remove {output} and start the same command again, or give another folder with --output.",
            )
        # A kill may have come before it was removed.
        shutil.rmtree(output / _WORK, ignore_errors=True)
        return card
    found = [each.name for each in output.iterdir()] if output.exists() else []
    others = [name for name in found if _WORK not in found or not name.startswith(_OURS)]
    if others:
        raise UserError(f"{output} is not empty: {others[0]}", "Give an empty or new folder with --output.")
    return None


def _with_tokens(card: Card, output: Path, progress: Progress, count_tokens: CountTokens | None) -> Card:
    """The card with the lengths of the written set, where they are to be counted; the file of the card is written."""
    if count_tokens is not None:
        progress.start("count tokens")
        card = replace(card, tokens=count_tokens(output / PREPARED, card.kind))
        progress.finish(f"{card.tokens['counted']} rows")
    write_card(card, output)
    return card


def _remove_empty(output: Path, work: Path) -> None:
    """Leave nothing of a preparation that was refused before its first step was finished."""
    if not [each for each in work.iterdir() if each.name != ".lock"]:
        shutil.rmtree(work)
        if not any(output.iterdir()):
            output.rmdir()


class _Preparation:
    def __init__(
        self,
        plan: MixturePlan,
        config: dict[str, Any],
        output: Path,
        work: Path,
        progress: Progress,
        count_tokens: CountTokens | None,
    ) -> None:
        self._plan = plan
        self._config = config
        self._output = output
        self._work = work
        self._progress = progress
        self._count_tokens = count_tokens
        self._digest = hashlib.sha256(rstar2.__version__.encode())

    def run(self) -> Card:
        self._check_hub()
        files, counts = [], {}
        for origin in self._plan.origins:
            file, counts[origin.name] = self._read(origin)
            files.append((origin.name, file))
        rows = Candidates(self._plan.kind, files)
        filters = list(self._plan.recipe.filters)
        reads_answers = self._plan.inputs.answer_fault is not None
        if rows.kind == "problems" and reads_answers and "unreadable" not in filters:
            # Last, since it takes longer than other filters of answers. Without it such rows would cost rollouts.
            filters.append("unreadable")
        steps = [self._filter(rows, names) for names in _together(filters)]
        dropped = [counted for step in steps for counted in step.count(rows)]
        taken = draw(rows, self._plan, counts, dropped)
        texts, rewritten = self._rewrite(rows)
        recipe = self._plan.recipe
        form = AnswerForm(self._answer_shares(), recipe.seed) if rows.kind == "conversations" else None
        self._progress.start("write")
        # Parquet is written by compiled code, which leaves this process's other thread time for the dropped rows.
        with ThreadPoolExecutor(1) as pool:
            dropped_rows = pool.submit(self._write_dropped, rows, steps)
            digest = self._write_data(rows, texts, form)
        dropped_rows.result()
        self._progress.finish(f"{int(rows.alive.sum())} rows")
        card = make_card(
            self._plan,
            self._config,
            counts,
            dropped,
            taken,
            rewritten,
            _examples(rows, steps, counts),
            _shared(steps),
            digest,
            form,
        )
        return _with_tokens(card, self._output, self._progress, self._count_tokens)

    def _named(self, *parts: object) -> str:
        """A name that stands for the parts and for all steps before."""
        self._digest.update(json.dumps(parts, sort_keys=True, default=str).encode())
        return self._digest.hexdigest()[:16]

    def _candidates_file(self, origin: Origin) -> Path:
        """The file of a source's candidates. Beside it are its counts and its refused rows."""
        parts = [rstar2.__version__, origin.name, self._config["inputs"][origin.name]]
        return self._work / f"read-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}.arrow"

    def _check_hub(self) -> None:
        """Before a row is read: check that each set on the hub can be read, and that the disk has room for them."""
        unread = [
            each
            for each in self._plan.origins
            if not each.files and not self._candidates_file(each).with_suffix(".json").exists()
        ]
        if not unread:
            return
        self._progress.start("find the files on the hub")
        demands = {each.name: hub_demand(each) for each in unread}
        check_disk(list(demands.values()), self._output)
        listed = ", ".join(f"{size_text(each.read)} of {name}" for name, each in demands.items())
        self._progress.finish(f"to read: {listed}")

    def _read(self, origin: Origin) -> tuple[Path, ReadCounts]:
        """A source's candidates and counts, and the rows refused beside them."""
        file = self._candidates_file(origin)
        self._digest.update(file.stem.removeprefix("read-").encode())
        record = file.with_suffix(".json")
        self._progress.start(f"read {origin.name}")
        if not record.exists():
            with whole_path(file) as part, whole_file(file.with_suffix(".refused")) as refused:
                counts = read_source(origin, part, refused, self._progress.rows)
            write_json(record, asdict(counts))
        counts = ReadCounts(**json.loads(record.read_text(encoding="utf-8")))
        self._progress.finish(f"{counts.read} rows, {counts.read - sum(counts.refused.values())} usable")
        return file, counts

    def _filter(self, rows: Candidates, names: Sequence[str]) -> DroppedRows:
        """Drop what one filter, or several that judge each row by itself, find."""
        recipe = self._plan.recipe
        settings = recipe.model_dump(
            mode="json", exclude={"sources", "filters", "seed", "rewrite", "answer_form"}
        )
        name = self._named(names, settings, self._config["against"], self._config["measured"])
        step = DroppedRows(names, self._work / f"filter-{name}.parquet")
        self._progress.start(", ".join(names))
        if not step.file.exists():
            with whole_path(step.file) as part:
                step.write(part, self._found(rows, names))
        dropped = step.numbers()
        rows.drop(dropped)
        self._progress.finish(f"{len(dropped)} dropped, {int(rows.alive.sum())} left")
        return step

    def _found(self, rows: Candidates, names: Sequence[str]) -> Iterator[tuple[int, Drop]]:
        inputs = self._plan.inputs
        if names[0] in SET_FILTERS:
            judge = SET_FILTERS[names[0]](inputs)
            for drop in judge(rows, self._work / "scratch.npy"):
                yield 0, drop
            return
        judges = [row_filter(name, inputs) for name in names]
        columns = {column for judge in judges for column in judge.columns}
        apply = _RowPass(judges, "problem" if rows.kind == "problems" else "messages")
        # Numbers are judged in less time than it takes to send them to another process.
        for read, found in (map if columns <= {"characters"} else mapped)(apply, rows.groups()):
            self._progress.rows(read)
            yield from found

    def _rewrite(self, rows: Candidates) -> tuple[dict[str, Texts], dict[str, Rewritten]]:
        """Have a model rewrite what is left of some sources. → by source, the texts and what became of them."""
        texts, rewritten = {}, {}
        settings, retries = self._plan.recipe.rewrite, RetryPolicy(WAIT_S)
        rewriter = Rewriter(self._plan.rewriter, settings, retries)
        for at, origin in enumerate(self._plan.origins if settings.model else ()):
            what = origin.source.rewritten
            if what is None:
                continue
            numbers = int(rows.starts[at]) + np.flatnonzero(rows.alive[rows.starts[at] : rows.starts[at + 1]])
            # Row numbers stand for the same rows as long as the same inputs were read.
            of_texts = settings.model_dump(mode="json", exclude={"accepted"})
            name = self._named("rewrite", origin.name, of_texts)
            found = texts[origin.name] = Texts(self._work / f"rewrite-{name}.jsonl")
            self._progress.start(f"rewrite the {what} of {origin.name}")
            rewriter.rewrite(rows, numbers, what, found, self._progress.rows)
            done = rewritten[origin.name] = found.count(what, numbers)
            waited = [outages.text for outages in retries.outages]
            self._progress.finish("; ".join([f"{done.taken} of {len(numbers)} taken", *waited]))
        return texts, rewritten

    def _answer_shares(self) -> dict[str, float]:
        """The share of each source that is taught as RL rewards; 0 if a model's own token ids are trained on."""
        shares = self._plan.recipe.answer_shares()
        return shares | {each.name: 0.0 for each in self._plan.origins if each.source.token_ids}

    def _write_data(self, rows: Candidates, texts: dict[str, Texts], form: AnswerForm | None) -> str:
        """Write the chosen rows, some of them with new texts, conversations marked by `form`. → the file's SHA-256."""
        token_ids = any(origin.source.token_ids for origin in self._plan.origins)
        schema = pa.schema([*SCHEMAS[rows.kind], *([TOKENS] if token_ids else [])])
        file = self._output / PREPARED
        with whole_path(file) as part, pq.ParquetWriter(part, schema, compression="zstd") as writer:
            waiting: list[Any] = []
            batches = ahead(rows.batches(schema.names, rows.live_numbers()))
            marks = repeat(None) if form is None else form.marks(rows)
            for (numbers, table), column in zip(batches, marks, strict=form is not None):
                source = rows.source_of(int(numbers[0]))
                if source in texts:
                    table = self._with(texts[source], source, numbers, table)
                if column is not None:
                    table = table.set_column(schema.get_field_index(ANSWER_FORM), ANSWER_FORM, column)
                waiting.append(table)
                self._progress.rows(len(numbers))
                if sum(each.num_rows for each in waiting) >= _BATCH:
                    writer.write_table(pa.concat_tables(waiting))
                    waiting = []
            if waiting:
                writer.write_table(pa.concat_tables(waiting))
        return sha256(file)

    def _with(self, texts: Texts, source: str, numbers: Numbers, table: Any) -> Any:
        what = next(each.source.rewritten for each in self._plan.origins if each.name == source)
        assert what is not None
        found = table.to_pylist()
        for number, row in zip(numbers.tolist(), found, strict=True):
            texts.put(number, what, row["messages"])
        return pa.Table.from_pylist(found, schema=table.schema)

    def _write_dropped(self, rows: Candidates, steps: Sequence[DroppedRows]) -> None:
        with whole_file(self._output / DROPPED) as file:
            for name, read in zip(rows.names, rows.files, strict=True):
                with read.with_suffix(".refused").open(encoding="utf-8") as refused:
                    for line in refused:
                        row = {"source": name, **json.loads(line)}
                        file.write(as_json(row) + "\n")
            for step in steps:
                for row in step.detailed(rows):
                    file.write(as_json(row) + "\n")


def _examples(
    rows: Candidates, steps: Sequence[DroppedRows], counts: dict[str, ReadCounts]
) -> list[dict[str, Any]]:
    """A few refused or dropped rows of each reason."""
    refused = [
        {"reason": each["reason"], "place": each["place"], "detail": {"what": each["detail"]}}
        for count in counts.values()
        for each in count.examples
    ]
    return refused + [example for step in steps for example in step.examples(rows)]


def _shared(steps: Sequence[DroppedRows]) -> list[dict[str, Any]]:
    """The benchmark problems that rows share words with, and by which words: those of the most rows first."""
    found: Counter[str] = Counter()
    for step in steps:
        found += step.shared_grams()
    return [{**json.loads(detail), "rows": rows} for detail, rows in found.most_common(MOST_GRAMS)]


def _together(filters: Sequence[str]) -> Iterator[list[str]]:
    """Filters that follow each other and judge rows by themselves run in one pass; each other one by itself."""
    for by_row, group in groupby(filters, lambda name: name not in SET_FILTERS):
        names = list(group)
        yield from [names] if by_row else [[name] for name in names]


@dataclass(frozen=True)
class _RowPass:
    """Applies filters to a row group, in the process that reads it: a row is dropped by the first that finds it."""

    judges: Sequence[RowFilter]
    text: str
    """The column that `text` stands for."""

    def __call__(self, group: Group) -> tuple[int, list[tuple[int, Drop]]]:
        columns = {self.text if name == "text" else name for judge in self.judges for name in judge.columns}
        numbers, batch = group.read(sorted(columns))
        read = batch.num_rows
        found: list[tuple[int, Drop]] = []
        for which, judge in enumerate(self.judges):
            drops = dict(judge(batch))
            found += [(which, (int(numbers[at]), detail)) for at, detail in drops.items()]
            if drops:
                keep = np.ones(batch.num_rows, dtype=np.bool_)
                keep[list(drops)] = False
                numbers, batch = numbers[keep], batch.filter(pa.array(keep))
        return read, sorted(found, key=lambda each: each[1][0])

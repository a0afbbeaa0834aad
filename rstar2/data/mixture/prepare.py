"""Prepares a mixture: reads its sources, runs its filters, draws rows up to the counts, and writes the set.

```
OUTPUT/
  data.parquet     the rows, in the order of the sources; see rstar2.data.rows
  dropped.jsonl    every unusable or filtered row, with its id or place, the reason and details
  card.md          the data card; card.json has the same facts
  .work/           files of finished steps, until the preparation ends
```
The name of a step's file is a digest of everything that determines the file's content, and the file is written
atomically. Therefore a killed preparation continues after its last finished step. If a setting changed, steps that do
not depend on that setting are reused.
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
from rstar2.terminal import counted

DROPPED = "dropped.jsonl"
_WORK = ".work"
_OUTPUT_PREFIXES = (_WORK, PREPARED, DROPPED, "card.", f".{PREPARED}.", f".{DROPPED}.", ".card.")
"""Prefixes of the names of files that a killed preparation may have left in the output folder."""
_BATCH = 8192
_LARGE = 1 << 26
"""If the inputs have at least this many bytes, the reader processes start while the hashes of the inputs are still
being computed."""
CountTokens = Callable[[Path, Kind], dict[str, Any]]
"""Counts the tokens of a written set, for `Card.tokens`."""


class Progress(Protocol):
    """Shows the progress of a preparation: the title of each step, and the number of processed rows while the step
    runs."""

    def start(self, title: str) -> None: ...

    def rows(self, count: int) -> None: ...

    def finish(self, text: str) -> None: ...


def prepare(
    plan: MixturePlan, output: Path, progress: Progress, count_tokens: CountTokens | None = None
) -> Card:
    """Write the prepared set to the folder `output`, or continue an interrupted preparation in this folder.

    Raises:
        UserError: a source cannot be read, no rows are left, a source has fewer rows than its minimum, or the folder
            cannot be used or contains another set.
        Failure: the disk is full, or a process died.
    """
    if sum(origin.size() for origin in plan.origins) > _LARGE:
        # If the server cannot start, the first step that needs it reports the error.
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
            f"cannot use {output}: {error.strerror}", "Choose another folder with --output."
        ) from error
    try:
        if done is not None:
            return done if count_tokens is None else _with_tokens(done, output, progress, count_tokens)
        with locked(work):
            for partial in (*output.glob(".*.part"), *work.glob(".*.part")):
                partial.unlink()
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
            "Free disk space and run the same command again. The preparation continues after the last finished step.",
        ) from error


def _done(output: Path, config: dict[str, Any]) -> Card | None:
    """Returns the card if the folder already contains the complete set, and None if it does not.

    Raises UserError if the folder contains another set or other files.
    """
    if output.exists() and not output.is_dir():
        raise UserError(f"{output} is a file, not a folder", "Choose a folder with --output.")
    if (output / CARD).exists():
        card = Card.load(output)
        changed = changed_keys(card.config, config)
        if changed:
            raise UserError(
                f"{output} contains a different set; these keys differ: {', '.join(changed)}",
                "Choose another folder with --output.",
            )
        if not (output / PREPARED).exists() or sha256(output / PREPARED) != card.sha256:
            raise UserError(
                f"{output / PREPARED} is missing or was changed since it was prepared",
                f"Remove {output} and run the same command again, or choose another folder with --output.",
            )
        # An earlier preparation may have been killed before it removed this folder.
        shutil.rmtree(output / _WORK, ignore_errors=True)
        return card
    names = [each.name for each in output.iterdir()] if output.exists() else []
    others = [name for name in names if _WORK not in names or not name.startswith(_OUTPUT_PREFIXES)]
    if others:
        raise UserError(
            f"{output} is not empty: it contains {others[0]}",
            "Choose an empty or new folder with --output.",
        )
    return None


def _with_tokens(card: Card, output: Path, progress: Progress, count_tokens: CountTokens | None) -> Card:
    """Count the tokens of the written set if `count_tokens` is set, and write the card.

    Returns the card that was written.
    """
    if count_tokens is not None:
        progress.start("count tokens")
        card = replace(card, tokens=count_tokens(output / PREPARED, card.kind))
        progress.finish(counted(card.tokens["counted"], "row"))
    write_card(card, output)
    return card


def _remove_empty(output: Path, work: Path) -> None:
    """Remove the folders of a preparation that failed before it finished its first step."""
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
            # Rollouts on such rows would be wasted. This filter is last because it is slower than others.
            filters.append("unreadable")
        steps = [self._filter(rows, names) for names in _together(filters)]
        dropped = [counted for step in steps for counted in step.count(rows)]
        drawn = draw(rows, self._plan, counts, dropped)
        texts, rewritten = self._rewrite(rows)
        recipe = self._plan.recipe
        form = AnswerForm(self._answer_shares(), recipe.seed) if rows.kind == "conversations" else None
        self._progress.start("write")
        # Compiled code writes parquet without the interpreter lock, so a thread can write the dropped rows meanwhile.
        with ThreadPoolExecutor(1) as pool:
            dropped_rows = pool.submit(self._write_dropped, rows, steps)
            digest = self._write_data(rows, texts, form)
        dropped_rows.result()
        self._progress.finish(counted(int(rows.alive.sum()), "row"))
        card = make_card(
            self._plan,
            self._config,
            counts,
            dropped,
            drawn,
            rewritten,
            _examples(rows, steps, counts),
            _shared(steps),
            digest,
            form,
        )
        return _with_tokens(card, self._output, self._progress, self._count_tokens)

    def _named(self, *parts: object) -> str:
        """Returns a digest of `parts` and of the parts of all earlier steps."""
        self._digest.update(json.dumps(parts, sort_keys=True, default=str).encode())
        return self._digest.hexdigest()[:16]

    def _candidates_file(self, origin: Origin) -> Path:
        """Returns the file of a source's candidates.

        Files with the counts and the refused rows of the source are beside the file of candidates.
        """
        parts = [rstar2.__version__, origin.name, self._config["inputs"][origin.name]]
        return self._work / f"read-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]}.arrow"

    def _check_hub(self) -> None:
        """Check before reading that each set on the hub can be read, and that there is enough disk space."""
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
        """Read a source. Returns the file of the source's candidates, and the counts of its rows."""
        file = self._candidates_file(origin)
        self._digest.update(file.stem.removeprefix("read-").encode())
        record = file.with_suffix(".json")
        self._progress.start(f"read {origin.name}")
        if not record.exists():
            with whole_path(file) as part, whole_file(file.with_suffix(".refused")) as refused:
                counts = read_source(origin, part, refused, self._progress.rows)
            write_json(record, asdict(counts))
        counts = ReadCounts(**json.loads(record.read_text(encoding="utf-8")))
        usable = counts.read - sum(counts.refused.values())
        self._progress.finish(f"{counted(counts.read, 'row')}, {usable:,} usable")
        return file, counts

    def _filter(self, rows: Candidates, names: Sequence[str]) -> DroppedRows:
        """Run the filters of one step, and drop the rows that the filters reject."""
        recipe = self._plan.recipe
        settings = recipe.model_dump(
            mode="json", exclude={"sources", "filters", "seed", "rewrite", "answer_form"}
        )
        name = self._named(names, settings, self._config["against"], self._config["measured"])
        step = DroppedRows(names, self._work / f"filter-{name}.parquet")
        self._progress.start(", ".join(names))
        if not step.file.exists():
            with whole_path(step.file) as part:
                step.write(part, self._drops(rows, names))
        dropped = step.numbers()
        rows.drop(dropped)
        self._progress.finish(f"{len(dropped):,} dropped, {int(rows.alive.sum()):,} left")
        return step

    def _drops(self, rows: Candidates, names: Sequence[str]) -> Iterator[tuple[int, Drop]]:
        """Yields a pair for each row to drop: the index of the filter and the `Drop`."""
        inputs = self._plan.inputs
        if names[0] in SET_FILTERS:
            judge = SET_FILTERS[names[0]](inputs)
            for drop in judge(rows, self._work / "scratch.npy"):
                yield 0, drop
            return
        judges = [row_filter(name, inputs) for name in names]
        columns = {column for judge in judges for column in judge.columns}
        apply = _RowPass(judges, "problem" if rows.kind == "problems" else "messages")
        # Judging numbers takes less time than sending them to another process.
        for row_count, drops in (map if columns <= {"characters"} else mapped)(apply, rows.groups()):
            self._progress.rows(row_count)
            yield from drops

    def _rewrite(self, rows: Candidates) -> tuple[dict[str, Texts], dict[str, Rewritten]]:
        """Let a model rewrite the remaining rows of some sources.

        Returns two dicts, keyed by source: the new texts, and the numbers of rewritten rows.
        """
        texts, rewritten = {}, {}
        settings, retries = self._plan.recipe.rewrite, RetryPolicy(WAIT_S)
        rewriter = Rewriter(self._plan.rewriter, settings, retries)
        for at, origin in enumerate(self._plan.origins if settings.model else ()):
            what = origin.source.rewritten
            if what is None:
                continue
            numbers = int(rows.starts[at]) + np.flatnonzero(rows.alive[rows.starts[at] : rows.starts[at + 1]])
            # The file can use row numbers, because its name depends on the inputs that were read.
            of_texts = settings.model_dump(mode="json", exclude={"accepted"})
            name = self._named("rewrite", origin.name, of_texts)
            new_texts = texts[origin.name] = Texts(self._work / f"rewrite-{name}.jsonl")
            self._progress.start(f"rewrite the {what} of {origin.name}")
            rewriter.rewrite(rows, numbers, what, new_texts, self._progress.rows)
            done = rewritten[origin.name] = new_texts.count(what, numbers)
            waited = [outages.text for outages in retries.outages]
            self._progress.finish("; ".join([f"{done.taken:,} of {len(numbers):,} taken", *waited]))
        return texts, rewritten

    def _answer_shares(self) -> dict[str, float]:
        """Returns, for each source, the share of conversations to mark for the answer form.

        The share is 0 for a source whose rows have a model's token ids.
        """
        shares = self._plan.recipe.answer_shares()
        return shares | {each.name: 0.0 for each in self._plan.origins if each.source.token_ids}

    def _write_data(self, rows: Candidates, texts: dict[str, Texts], form: AnswerForm | None) -> str:
        """Write the remaining rows with their rewritten texts and marks. Returns the SHA-256 of the file."""
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
                    table = self._with_new_texts(texts[source], source, numbers, table)
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

    def _with_new_texts(self, texts: Texts, source: str, numbers: Numbers, table: Any) -> Any:
        what = next(each.source.rewritten for each in self._plan.origins if each.name == source)
        assert what is not None
        listed = table.to_pylist()
        for number, row in zip(numbers.tolist(), listed, strict=True):
            texts.put(number, what, row["messages"])
        return pa.Table.from_pylist(listed, schema=table.schema)

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
    """Returns a few refused or dropped rows for each reason."""
    refused = [
        {"reason": each["reason"], "place": each["place"], "detail": {"what": each["detail"]}}
        for count in counts.values()
        for each in count.examples
    ]
    return refused + [example for step in steps for example in step.examples(rows)]


def _shared(steps: Sequence[DroppedRows]) -> list[dict[str, Any]]:
    """Returns the words that rows share with benchmark problems, the most frequent first."""
    counts: Counter[str] = Counter()
    for step in steps:
        counts += step.shared_grams()
    return [{**json.loads(detail), "rows": rows} for detail, rows in counts.most_common(MOST_GRAMS)]


def _together(filters: Sequence[str]) -> Iterator[list[str]]:
    """Yields the filters of each step.

    Consecutive row filters run in one step, and each set filter runs in a step of its own.
    """
    for by_row, group in groupby(filters, lambda name: name not in SET_FILTERS):
        names = list(group)
        yield from [names] if by_row else [[name] for name in names]


@dataclass(frozen=True)
class _RowPass:
    """Applies row filters to a record batch, in the process that reads the batch.

    The first filter that rejects a row drops the row.
    """

    judges: Sequence[RowFilter]
    text: str
    """The column that a filter reads if its `columns` contain `text`."""

    def __call__(self, group: Group) -> tuple[int, list[tuple[int, Drop]]]:
        """Returns the number of judged rows, and an (index of the filter, drop) pair for each dropped row.

        The pairs are sorted by row number.
        """
        columns = {self.text if name == "text" else name for judge in self.judges for name in judge.columns}
        numbers, batch = group.read(sorted(columns))
        row_count = batch.num_rows
        drops: list[tuple[int, Drop]] = []
        for which, judge in enumerate(self.judges):
            details = dict(judge(batch))
            drops += [(which, (int(numbers[at]), detail)) for at, detail in details.items()]
            if details:
                keep = np.ones(batch.num_rows, dtype=np.bool_)
                keep[list(details)] = False
                numbers, batch = numbers[keep], batch.filter(pa.array(keep))
        return row_count, sorted(drops, key=lambda each: each[1][0])

"""Analyses the traces of files and runs, and writes the result.

```
OUTPUT/
  analysis.json      what the report page shows: the short tables, and the charts; and which traces they are of
  TABLE.csv          every table, those that charts are drawn from among them
  CHART.svg          every chart
```
The entropy of each token goes beside the traces (`rstar2.analysis.stored`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from rstar2.analysis import behaviour, calls, server, uncertainty
from rstar2.analysis.entropy import kept_surprisal
from rstar2.analysis.figures import draw
from rstar2.analysis.sources import TraceSet, file_sizes, find_sets, recorded
from rstar2.analysis.stored import TokenEntropies, as_stored, concatenated, read_entropies, write_entropies
from rstar2.analysis.tables import Chart, Row, Table, interval, number, write_csv
from rstar2.analysis.tokenizer import file_tokenizer
from rstar2.analysis.tokens import TokenReader
from rstar2.engines.models import ask_served, local_model, server_tokenizer
from rstar2.engines.openai_server import Served
from rstar2.engines.vllm import VLLMEngine
from rstar2.errors import Failure, UserError, as_user_error
from rstar2.eval.target import model_hash
from rstar2.files import write_json
from rstar2.loop.trace import Trace, read_traces
from rstar2.loop.turns.choose import load_tokenizer
from rstar2.retry import OnWait, Outages, RetryPolicy

WINDOW = 2048
"""Traces in memory at a time."""
SOURCES = {
    "model": "exact",
    "server": "lower bound",
    "kept": "as sampled",
}
"""What is said of the entropies by where they come from."""

OnProgress = Callable[[str, int], None]
"""Gets a set's label and how many of its traces are done."""


@dataclass(frozen=True)
class EntropySource:
    """Where entropies come from. Without any, each set's own model in its run, else what its traces kept."""

    model: str | None = None
    """Computes them, as `find_model` takes it; with `url` only its tokenizer is used."""
    url: str | None = None
    """A vLLM server that gives bounds."""
    model_name: str | None = None
    """Which of the server's models."""
    temperature: float = 1.0
    key: str | None = None
    """The server's API key."""


@dataclass(frozen=True)
class Analysis:
    """The tables of all sets, one below the other, and what to draw."""

    tables: list[Table]
    charts: list[Chart]
    paths: list[Path]
    """What was analysed."""
    sizes: dict[Path, int]
    """Of each file of traces, the bytes that were read of it."""
    outages: list[Outages]
    """How long the server was away, if it was."""

    def write(self, folder: Path) -> None:
        """Write it all; a Failure where that is not possible."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_csv(folder, self.tables)
            draw(self.charts, folder)
            short = [table.record() for table in self.tables if table.shown != "file" and table.rows]
            about = recorded(folder, self.paths, self.sizes)
            write_json(folder / "analysis.json", {"tables": short, "charts": self.charts, "traces": about})
        except OSError as error:
            raise Failure(f"cannot write {folder}: {error.strerror or error}", "Use --output.") from error


def analyze(paths: list[Path], source: EntropySource, on_progress: OnProgress) -> Analysis:
    """Analyse the traces of runs and files.

    Raises:
        UserError: a path holds no traces, or the model is none or did not write them, or no server answers with it.
        Failure: the server stops answering or gives no log-probabilities, or a file cannot be written.
    """
    if source.model_name and source.url is None:
        raise UserError("--model-name names a model on a server", "Give the server with --url.")
    if source.url is not None and source.temperature != 1.0:
        raise UserError(
            "--temperature changes nothing in what a server returns, which is at temperature 1",
            "Leave it out, or compute the entropies here: --model without --url.",
        )
    sets = find_sets(paths)
    sizes = file_sizes(sets)
    retries = RetryPolicy(server.WAIT_S)
    measured = _measured(sets, source, retries, on_progress)
    for path in paths:
        if not any(one.finished for one in measured if one.set.files[0].is_relative_to(path)):
            raise UserError(f"no finished traces in {path}", "Those of samples that failed are not analysed.")
    with_entropy = [one for one in measured if one.kind]
    if (source.model or source.url) and not with_entropy:
        named = ", ".join(map(str, paths))
        raise UserError(
            f"no trace in {named} has token ids, without which there is no entropy",
            "Servers asked by chat messages return none. Without --model and --url, calls and behaviour are analysed.",
        )
    entropy_tables = uncertainty.tables(
        [one.uncertainty for one in with_entropy],
        {one.set.label: one.entropies.said() for one in with_entropy},
    )
    steps = _entropy_steps(with_entropy)
    call_tables = calls.tables([one.calls for one in measured])
    behaviour_tables = behaviour.tables([one.behaviour for one in measured])
    return Analysis(
        tables=[*entropy_tables, _arms(with_entropy), steps, *call_tables, *behaviour_tables],
        charts=[
            *uncertainty.charts([one.uncertainty for one in with_entropy], entropy_tables[-1]),
            *uncertainty.step_charts([one.uncertainty for one in with_entropy], steps, entropy_tables[-2]),
            *calls.charts([one.calls for one in measured], call_tables[-1]),
            *behaviour.charts([one.behaviour for one in measured], behaviour_tables[-1]),
        ],
        paths=paths,
        sizes=sizes,
        outages=retries.outages,
    )


def _measured(
    sets: list[TraceSet], source: EntropySource, retries: RetryPolicy, on_progress: OnProgress
) -> list[_Set]:
    models = _Models()
    measured = []
    for each in sets:
        one = _Set(each, _Entropies(each, source, models, retries))
        one.run(on_progress)
        measured.append(one)
    return measured


class _Models:
    """Loads a model when it is first needed and keeps the last one: several sets may be of the same."""

    def __init__(self) -> None:
        self.digest = functools.cache(model_hash)
        self._folder: Path | None = None
        self._loaded: Any = None

    def load(self, folder: Path) -> Any:
        from rstar2.analysis import forward

        if folder != self._folder:
            self._loaded = None  # before the next one takes memory
            self._loaded, self._folder = forward.load_model(folder), folder
        return self._loaded


class _Entropies:
    """Computes the entropies of a set's traces from one source."""

    def __init__(
        self, traces: TraceSet, source: EntropySource, models: _Models, retries: RetryPolicy
    ) -> None:
        self.on_wait: OnWait | None = None
        """Gets the reason when a request waits for the server."""
        self._source = source
        self._models = models
        self._retries = retries
        self.about: dict[str, Any] = {"source": "", "temperature": source.temperature}
        folder: Path | None = None
        self._tokenizer: Any = None
        self._served = ""
        self._wrote = traces.model_sha256
        if source.url is not None:
            served = _served(source.url, source.model_name, source.key)
            self._served = served.model
            self.about |= {"source": "server", "url": source.url, "model": served.model, "root": served.root}
            if source.model is None:
                self._tokenizer = server_tokenizer(source.url, served)
            else:
                self._tokenizer = load_tokenizer(local_model(source.model))
        elif source.model is not None or traces.model is not None:
            folder = local_model(source.model) if source.model is not None else traces.model
            assert folder is not None
            self.about |= {"source": "model", "model": str(folder.resolve()), "sha256": models.digest(folder)}
        elif traces.tokenizer is not None:
            self.about["source"] = "kept"
            folder = traces.tokenizer
        self._folder = folder
        if folder is not None:
            self._tokenizer = file_tokenizer(folder) or load_tokenizer(folder)
        self.reader = TokenReader(self._tokenizer) if self._tokenizer is not None else None

    def said(self) -> str:
        """What the entropies are, and whether the model is known to be the one that wrote the traces."""
        exact = SOURCES[self.about["source"]]
        if self.about["source"] != "model" or self._wrote == self.about["sha256"]:
            return exact
        if self._wrote is not None:
            return "of another model"
        return exact if self._source.model is None else f"{exact}, model not checked"

    def compute(self, traces: list[Trace], on_done: Callable[[int], None]) -> list[tuple[Any, Any]] | None:
        """For each trace the entropies and their upper bounds, or None; None where the traces kept nothing.

        They are rounded as they are stored, so that the next analysis, which reads them, has the same results. A
        trace without token ids, since servers that are asked by chat messages return none, has no entropies.
        """
        known = [trace for trace in traces if trace.response_ids]
        on_done(len(traces) - len(known))
        found = self._compute(known, on_done)
        if found is None:
            return None
        empty = np.zeros(0, dtype=np.float32)
        nothing = (empty, empty if self.about["source"] == "server" else None)
        rest = ((as_stored(entropy), None if upper is None else as_stored(upper)) for entropy, upper in found)
        return [next(rest) if trace.response_ids else nothing for trace in traces]

    def _compute(self, traces: list[Trace], on_done: Callable[[int], None]) -> list[tuple[Any, Any]] | None:
        if self.about["source"] == "model":
            from rstar2.analysis import forward

            assert self._folder is not None
            model = self._models.load(self._folder)
            found = forward.entropies(model, traces, self._source.temperature, on_done)
            return [(each, None) for each in found]
        if self.about["source"] == "server":
            assert self._source.url is not None
            asked = server.BoundsServer(
                self._source.url,
                self._served,
                len(self._tokenizer),
                self._retries,
                self._source.key,
                self.on_wait,
            )
            return list(asked.bounds(traces, on_done))
        kept = [kept_surprisal(trace) for trace in traces]
        on_done(len(traces))
        return None if any(each is None for each in kept) else [(each, None) for each in kept]


def _served(url: str, name: str | None, key: str | None) -> Served:
    """The server's model; UserError where it does not answer, or not with that model."""

    async def asked() -> Served:
        async with contextlib.aclosing(VLLMEngine(url, name, key=key)) as engine:
            return await ask_served(engine)

    with as_user_error():
        return asyncio.run(asked())


class _Set:
    """One set of traces on its way through the analysis."""

    def __init__(self, traces: TraceSet, entropies: _Entropies) -> None:
        self.set = traces
        self.entropies = entropies
        self.kind = str(entropies.about["source"])
        self.uncertainty = uncertainty.Uncertainty(traces.label)
        self.calls = calls.Calls(traces.label)
        self.behaviour = behaviour.Behaviour(traces.label)
        self.finished = 0
        """Traces without those of samples that failed."""
        self._done = 0

    def run(self, on_progress: OnProgress) -> None:
        def on_done(traces: int) -> None:
            self._done += traces
            on_progress(self.set.label, self._done)

        self.entropies.on_wait = lambda trouble: on_progress(
            f"{self.set.label}, waiting ({trouble})", self._done
        )
        files = [(path, self._file(path, on_done)) for path in self.set.files]
        if not any(held.sizes.any() for _, held in files):
            self.kind = ""
        if not self.kind:
            return
        marks = self.uncertainty.marks
        start = 0
        for path, held in files:
            end = start + len(held.sizes)
            held.marks = concatenated(marks[start:end], np.uint8)
            start = end
            try:
                write_entropies(path, held)
            except OSError as error:
                raise Failure(
                    f"cannot write beside {path}: {error.strerror or error}",
                    "Free disk space, or use --output.",
                ) from error

    def _file(self, path: Path, on_done: Callable[[int], None]) -> TokenEntropies:
        """Take in the traces of a file; entropies that were stored from the same source are not computed again."""
        about = {**self.entropies.about, "bytes": path.stat().st_size}
        stored = read_entropies(path) if self.kind else None
        stored = stored if stored is not None and stored.about == about else None
        rows: list[tuple[Any, Any]] = []
        characters: list[Any] = []
        traces = (trace for trace in read_traces(path) if trace.finish != "error")
        for window in _windows(traces):
            self.finished += len(window)
            for trace in window:
                self.calls.add(trace)
                self.behaviour.add(trace)
            if self.entropies.reader is None or not self.kind:
                on_done(len(window))
                continue
            tokens = self.entropies.reader.read_all(window)
            found = _held(stored, len(rows), len(window)) or self.entropies.compute(window, on_done)
            if found is None:
                self.kind = ""
                continue
            for trace, written, (entropy, upper) in zip(window, tokens, found, strict=True):
                self.uncertainty.add(trace, written, entropy, upper)
                characters.append(written.characters)
            rows += found
        bounded = bool(rows) and rows[0][1] is not None
        return TokenEntropies(
            about=about,
            sizes=np.array([len(entropy) for entropy, _ in rows], dtype=np.int64),
            entropy=concatenated([entropy for entropy, _ in rows], np.float32),
            upper=concatenated([upper for _, upper in rows], np.float32) if bounded else None,
            characters=concatenated(characters, np.uint16),
            marks=np.zeros(0, dtype=np.uint8),
        )


def _windows(traces: Iterator[Trace]) -> Iterator[list[Trace]]:
    while window := list(islice(traces, WINDOW)):
        yield window


def _held(stored: TokenEntropies | None, start: int, count: int) -> list[tuple[Any, Any]] | None:
    if stored is None:
        return None
    entropy = stored.split(stored.entropy)[start : start + count]
    upper = [None] * count if stored.upper is None else stored.split(stored.upper)[start : start + count]
    return list(zip(entropy, upper, strict=True))


def _entropy_steps(sets: list[_Set]) -> Table:
    rows: list[Row] = [
        (one.set.label, step, each.count, *interval(each))
        for one in sets
        for step, each in one.uncertainty.steps().items()
    ]
    columns = ("traces of", "step", "tokens", "mean", "low", "high")
    return Table("entropy_steps", "Entropy by training step", columns, rows, shown="file")


def _arms(sets: list[_Set]) -> Table:
    """What a set and the set of the same name in another arm show, side by side, and their difference."""
    rows: list[Row] = []
    for place, a in enumerate(sets):
        for b in (one for one in sets[place + 1 :] if one.set.name == a.set.name and one.kind == a.kind):
            ours, theirs = a.uncertainty.compared(), b.uncertainty.compared()
            for name in (name for name in ours if name in theirs):
                difference = theirs[name].minus_independent(ours[name])
                values = (ours[name].value, theirs[name].value, difference.value, difference.half)
                rows.append((a.set.label, b.set.label, *name, *map(number, values)))
    columns = ("first", "second", "what", "first tokens", "in first", "in second", "difference", "±")
    return Table("entropy_arms", "Two runs side by side", columns, rows)

"""Analyses the traces of files and runs, and writes the result.

```
OUTPUT/
  analysis.json      the short tables and the charts for the report page, and the files of traces that were analysed
  TABLE.csv          every table, including the data of the charts
  CHART.svg          every chart
```
The entropy of each token is stored beside the traces (`rstar2.analysis.stored`).
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
from rstar2.analysis.entropy import stored_surprisal
from rstar2.analysis.figures import draw
from rstar2.analysis.sources import TraceSet, file_sizes, find_sets, recorded
from rstar2.analysis.stored import TokenEntropies, as_stored, concatenated, read_entropies, write_entropies
from rstar2.analysis.tables import INTERVAL, INTERVAL_NOTE, Chart, Row, Table, interval, number, write_csv
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
"""Number of traces in memory at a time."""
SOURCES = {
    "model": "exact",
    "server": "lower bound",
    "kept": "as sampled",
}
"""Dict from each source of entropies to its text in the column "source" of a table."""

OnProgress = Callable[[str, int], None]
"""Called with the label of a trace set and the number of its traces analysed so far."""


@dataclass(frozen=True)
class EntropySource:
    """The source of entropies.

    If neither `model` nor `url` is given, the model that generated a set's traces computes their entropies, provided
    that the set's run contains this model. If the run does not contain this model, the log-probabilities in the traces
    are used.
    """

    model: str | None = None
    """The model that computes entropies: a folder, a run or a hub id, as for `find_model`. If `url` is given, only the
    tokenizer of this model is used.
    """
    url: str | None = None
    """URL of a vLLM server. Bounds of the entropies are computed from the server's answers."""
    model_name: str | None = None
    """Name of the model on the server. If the server has only one model, the name may be None."""
    temperature: float = 1.0
    """Temperature of the distributions whose entropies are computed."""
    key: str | None = None
    """The server's API key."""


@dataclass(frozen=True)
class Analysis:
    """The tables and charts of all sets of traces."""

    tables: list[Table]
    """Each table covers all sets."""
    charts: list[Chart]
    paths: list[Path]
    """The runs and files that were analysed."""
    sizes: dict[Path, int]
    """Size of each file of traces, in bytes, when it was read."""
    outages: list[Outages]
    """For each service that was unreachable, the duration of the outage and the causes of the retries."""

    def write(self, folder: Path) -> None:
        """Write the tables and charts to a folder. Raises Failure if a file cannot be written."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_csv(folder, self.tables)
            draw(self.charts, folder)
            short = [table.record() for table in self.tables if table.output == "page" and table.rows]
            about = recorded(folder, self.paths, self.sizes)
            write_json(folder / "analysis.json", {"tables": short, "charts": self.charts, "traces": about})
        except OSError as error:
            raise Failure(
                f"cannot write {folder}: {error.strerror or error}", "Name another folder with --output."
            ) from error


def analyze(paths: list[Path], source: EntropySource, on_progress: OnProgress) -> Analysis:
    """Analyse the traces of runs and files.

    Raises:
        UserError: a path has no traces; the model does not exist, or its tokenizer differs from the traces' tokenizer;
            or no server with that model answers.
        Failure: the server stops answering or returns no log-probabilities, or a file cannot be written.
    """
    if source.model_name and source.url is None:
        raise UserError("--model-name names a model on a server, but there is no --url", "Add --url URL.")
    if source.url is not None and source.temperature != 1.0:
        raise UserError(
            f"--temperature {source.temperature:g} has no effect with --url: servers return probabilities at "
            "temperature 1",
            "Leave out --temperature, or compute the entropies here with --model and without --url.",
        )
    sets = find_sets(paths)
    sizes = file_sizes(sets)
    retries = RetryPolicy(server.WAIT_S)
    measured = _measured(sets, source, retries, on_progress)
    for path in paths:
        if not any(one.finished for one in measured if one.set.files[0].is_relative_to(path)):
            raise UserError(f"no finished traces in {path}", "Traces of failed samples are not analysed.")
    with_entropy = [one for one in measured if one.kind]
    if (source.model or source.url) and not with_entropy:
        raise UserError(
            f"no trace in {', '.join(map(str, paths))} has token ids, which are needed for entropies",
            "Servers return no token ids over a chat API. To analyse calls and behaviour, leave out --model and --url.",
        )
    entropy_tables = uncertainty.tables(
        [one.uncertainty for one in with_entropy],
        {one.set.label: one.entropies.source_text() for one in with_entropy},
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
    """Loads models when they are needed. The model that was loaded last is cached, because several sets may have the
    same model.
    """

    def __init__(self) -> None:
        self.digest = functools.cache(model_hash)
        self._folder: Path | None = None
        self._loaded: Any = None

    def load(self, folder: Path) -> Any:
        from rstar2.analysis import forward

        if folder != self._folder:
            self._loaded = None  # free its memory before the next model is loaded
            self._loaded, self._folder = forward.load_model(folder), folder
        return self._loaded


class _Entropies:
    """Computes the entropies of a set's traces from one source."""

    def __init__(
        self, traces: TraceSet, source: EntropySource, models: _Models, retries: RetryPolicy
    ) -> None:
        self.on_wait: OnWait | None = None
        """Called when a request waits for the server. The argument is the reason."""
        self._source = source
        self._models = models
        self._retries = retries
        self.about: dict[str, Any] = {"source": "", "temperature": source.temperature}
        folder: Path | None = None
        self._tokenizer: Any = None
        self._served = ""
        self._model_of_traces = traces.model_sha256
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

    def source_text(self) -> str:
        """Returns the text of the column "source" for these entropies.

        The text also says if a model other than the traces' own computed the entropies, or if this was not checked.
        """
        text = SOURCES[self.about["source"]]
        if self.about["source"] != "model" or self._model_of_traces == self.about["sha256"]:
            return text
        if self._model_of_traces is not None:
            return "of another model"
        return text if self._source.model is None else f"{text}, model not checked"

    def compute(self, traces: list[Trace], on_done: Callable[[int], None]) -> list[tuple[Any, Any]] | None:
        """Compute the entropies of traces.

        Entropies are rounded to the precision of the stored file, so that a later analysis of the stored entropies has
        the same results. A trace without token ids has no entropies. Traces that were generated over a chat API have no
        token ids.

        Returns:
            For each trace, the entropies of its M generated tokens, shape (M,), and the upper bounds of these
            entropies, shape (M,) or None. The result is None if entropies should come from the traces'
            log-probabilities and a trace has no log-probabilities.
        """
        with_ids = [trace for trace in traces if trace.response_ids]
        on_done(len(traces) - len(with_ids))
        computed = self._compute(with_ids, on_done)
        if computed is None:
            return None
        empty = np.zeros(0, dtype=np.float32)
        no_tokens = (empty, empty if self.about["source"] == "server" else None)
        rest = (
            (as_stored(entropy), None if upper is None else as_stored(upper)) for entropy, upper in computed
        )
        return [next(rest) if trace.response_ids else no_tokens for trace in traces]

    def _compute(self, traces: list[Trace], on_done: Callable[[int], None]) -> list[tuple[Any, Any]] | None:
        if self.about["source"] == "model":
            from rstar2.analysis import forward

            assert self._folder is not None
            model = self._models.load(self._folder)
            exact = forward.entropies(model, traces, self._source.temperature, on_done)
            return [(each, None) for each in exact]
        if self.about["source"] == "server":
            assert self._source.url is not None
            bounds_server = server.BoundsServer(
                self._source.url,
                self._served,
                len(self._tokenizer),
                self._retries,
                self._source.key,
                self.on_wait,
            )
            return list(bounds_server.bounds(traces, on_done))
        surprisals = [stored_surprisal(trace) for trace in traces]
        on_done(len(traces))
        return None if any(each is None for each in surprisals) else [(each, None) for each in surprisals]


def _served(url: str, name: str | None, key: str | None) -> Served:
    """Returns the description of the model `name` on the server at `url`. Raises UserError if the server does not
    answer or does not have the model.
    """

    async def ask() -> Served:
        async with contextlib.aclosing(VLLMEngine(url, name, key=key)) as engine:
            return await ask_served(engine)

    with as_user_error():
        return asyncio.run(ask())


class _Set:
    """The analysis of one set of traces."""

    def __init__(self, traces: TraceSet, entropies: _Entropies) -> None:
        self.set = traces
        self.entropies = entropies
        self.kind = str(entropies.about["source"])
        self.uncertainty = uncertainty.Uncertainty(traces.label)
        self.calls = calls.Calls(traces.label)
        self.behaviour = behaviour.Behaviour(traces.label)
        self.finished = 0
        """Number of traces, not counting the traces of failed samples."""
        self._done = 0

    def run(self, on_progress: OnProgress) -> None:
        def on_done(traces: int) -> None:
            self._done += traces
            on_progress(self.set.label, self._done)

        self.entropies.on_wait = lambda trouble: on_progress(
            f"{self.set.label}, waiting ({trouble})", self._done
        )
        files = [(path, self._analyse_file(path, on_done)) for path in self.set.files]
        if not any(entropies.sizes.any() for _, entropies in files):
            self.kind = ""
        if not self.kind:
            return
        marks = self.uncertainty.marks
        start = 0
        for path, entropies in files:
            end = start + len(entropies.sizes)
            entropies.marks = concatenated(marks[start:end], np.uint8)
            start = end
            try:
                write_entropies(path, entropies)
            except OSError as error:
                raise Failure(
                    f"cannot write the entropies beside {path}: {error.strerror or error}",
                    "Make the folder writable and free disk space. Or copy the traces to another folder.",
                ) from error

    def _analyse_file(self, path: Path, on_done: Callable[[int], None]) -> TokenEntropies:
        """Add the traces of a file to the tables. Stored entropies are reused if they come from the same source."""
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
            computed = _stored_rows(stored, len(rows), len(window)) or self.entropies.compute(window, on_done)
            if computed is None:
                self.kind = ""
                continue
            for trace, written, (entropy, upper) in zip(window, tokens, computed, strict=True):
                self.uncertainty.add(trace, written, entropy, upper)
                characters.append(written.characters)
            rows += computed
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


def _stored_rows(stored: TokenEntropies | None, start: int, count: int) -> list[tuple[Any, Any]] | None:
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
    return Table(
        "entropy_steps",
        "Entropy by training step, in nats",
        f"mean: over all tokens of the step. {INTERVAL_NOTE}",
        ("traces of", "step", "tokens", "mean", *INTERVAL),
        rows,
        output="file",
    )


def _arms(sets: list[_Set]) -> Table:
    """Compares each pair of trace sets with the same name and different arms (`TraceSet.arm`). A row has the value in
    each of the two sets, and their difference.
    """
    rows: list[Row] = []
    for place, a in enumerate(sets):
        for b in (one for one in sets[place + 1 :] if one.set.name == a.set.name and one.kind == a.kind):
            values_a, values_b = a.uncertainty.compared(), b.uncertainty.compared()
            for name in (name for name in values_a if name in values_b):
                difference = values_b[name].minus_independent(values_a[name])
                values = (values_a[name].value, values_b[name].value, difference.value, difference.half)
                rows.append((a.set.label, b.set.label, *name, *map(number, values)))
    return Table(
        "entropy_arms",
        "Entropy of two runs side by side, in nats",
        "A, B: the value in traces A and in traces B. ±: half the width of the 95 % interval of the difference, "
        "clustered by problem.",
        ("traces A", "traces B", "what", "first tokens", "A", "B", "B - A", "±"),
        rows,
        {"first tokens": "the number of tokens after a reply over which the mean is taken"},
    )

"""Makes conversations for SFT of a run's traces: those that are correct and clean (rejection sampling).

A trace is read as a source's row (`rstar2.data.source`), so that what is left out is counted by reason on the data
card, and the rest is filtered, compared with benchmarks and written as every other set is. Which traces of a problem
are taken is decided before, over all of them: those that RoC's penalty likes best.

Of a run, only traces are taken from which a model may learn: a training run's own rollouts, and an evaluation's traces
of the user's own problems. Traces of held-out problems and of benchmarks are left out, unless their folder or file is
named.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from rstar2.config import resolve
from rstar2.data.benchmarks import load_benchmark
from rstar2.data.filters import Inputs
from rstar2.data.mixture.recipe import DEFAULT_FILTERS, MixturePlan, MixtureRecipe
from rstar2.data.reading import Origin
from rstar2.data.rows import Refused
from rstar2.data.source import Row, Source
from rstar2.engines.models import find_model
from rstar2.errors import UserError, first_few
from rstar2.eval.benchmarks import known_names
from rstar2.files import read_json
from rstar2.loop.trace import Trace, Turn, read_traces
from rstar2.loop.turns import tags
from rstar2.loop.turns.choose import load_codec
from rstar2.loop.turns.codec import ChatCodec, Message
from rstar2.loop.turns.template import TemplateCodec
from rstar2.runs import load_config
from rstar2.train.choose import HELD_OUT
from rstar2.train.group import Rollout
from rstar2.train.select.roc import penalty

_NEEDED = ("problem_id", "prompt_ids", "response_ids", "response_mask", "turns", "finish")
_TRAINING = ("sft", "train", "demo")
"""Kinds of runs that train a model."""
_OTHERS = tuple(name for name in Trace.model_fields if name not in (*_NEEDED, "logprobs"))


@dataclass(frozen=True)
class Selection:
    """Which traces become conversations."""

    per_problem: int = 4
    """At most this many traces of a problem: those with the least penalty (`rstar2.train.select.roc`), of equal ones
    the shortest."""
    failed_calls: int = 0
    """At most this many failed calls in a trace."""


@dataclass(frozen=True)
class RunTraces:
    """The files of traces below a folder, or one file."""

    files: tuple[Path, ...]
    """Those that are read."""
    measured: dict[Path, str]
    """Files with traces of problems that a model is measured on, and which these are. They are left out, or among
    `files` because they were named."""

    def warnings(self) -> Iterator[str]:
        """What is left out, and what is taken although a model is measured on it."""
        for what in dict.fromkeys(self.measured.values()):
            folders = [str(file.parent) for file, of in self.measured.items() if of == what]
            if set(self.files) & {file for file, of in self.measured.items() if of == what}:
                yield f"these are traces of {what}: a model that learns from them cannot be measured on it"
            else:
                yield f"left out are the traces of {what}: {first_few(folders)}"


def traces_of(run: Path) -> RunTraces:
    """The traces of an evaluation or a training run, of a folder in one, or in a file.

    Raises UserError if there are none, or only such as are left out.
    """
    if run.is_file():
        return RunTraces((run,), {run: what} if (what := _measured_by(run)) else {})
    everything = [*sorted(run.glob("**/traces.jsonl")), *sorted(run.glob("**/traces/step-*.jsonl"))]
    if not everything:
        raise UserError(
            f"{run} has no traces",
            "Give the folder of an evaluation, or of a training run that keeps traces (traces_per_step).",
        )
    left_out = {file: what for file in everything if (what := _measured_by(file, below=run))}
    files = tuple(file for file in everything if file not in left_out)
    if not files:
        raise UserError(
            f"{run} has only traces of {first_few([*dict.fromkeys(left_out.values())])}, which a model is measured on",
            "Give an evaluation of training problems (`rstar2 eval data/rl/data.parquet …`), or a training run that "
            f"keeps traces (traces_per_step). To take them all the same, name their folder, such as "
            f"{next(iter(left_out)).parent}.",
        )
    named = {file: what for file in files if (what := _measured_by(file))}
    return RunTraces(files, {**left_out, **named})


def _measured_by(file: Path, below: Path | None = None) -> str:
    """The problems of a file of traces if a model is measured on them, for people; empty otherwise.

    With `below`, only runs count that are in this folder, or are it.
    """
    absolute = file.resolve()
    for folder in absolute.parents:
        if (folder / "config.json").is_file() and (folder / "status.json").is_file():
            kind, _ = load_config(folder)
            inside = absolute.relative_to(folder).parts
            if kind in _TRAINING and not {"eval", HELD_OUT}.isdisjoint(inside[:-1]):
                return f"the held-out problems of {folder.name}"
            if kind not in _TRAINING and inside[0] in known_names():
                return f"the benchmark {inside[0]}"
        if below is not None and folder == below.resolve():
            break
    return ""


def plan_traces(
    run: Path,
    selection: Selection,
    model: str | None = None,
    against: Sequence[str] = (),
    overrides: Sequence[str] = (),
) -> MixturePlan:
    """What to prepare from the traces of an evaluation, an SFT or a training run.

    Args:
        run: its folder, a folder in it, or a file of traces.
        model: the model that wrote them, whose tokenizer and format they have. By default the one that the run names.
        against: benchmarks, by name or file, that no conversation may share words with.
        overrides: `a.b=c`, keys of the mixture's recipe.

    Raises:
        UserError: there are no traces, they are damaged, or the model's tokenizer is not here.
    """
    files = traces_of(run).files
    codec_of = find_model(model) if model is not None else _model_of(run, files)
    if codec_of is None:
        raise UserError(f"no model at {model}", "Give the folder of the model that wrote the traces.")
    name = run.resolve().stem.replace(".", "-")
    values = {"sources": {name: {}}, "filters": DEFAULT_FILTERS["conversations"], "against": tuple(against)}
    recipe = resolve(MixtureRecipe, values, list(overrides), "the traces' mixture")
    codec = load_codec(codec_of)
    reader = _TraceReader(codec_of, codec.digest, selection, frozenset(_chosen(files, selection)))
    source = Source(
        kind="conversations",
        family="own traces",
        licence="the model's, and that of its problems",
        columns=(_NEEDED,),
        more=_OTHERS,
        read=reader,
        token_ids=True,
    )
    origin = _TraceOrigin(name, source, files, {**asdict(selection), "codec": codec.digest})
    benchmarks = {each: load_benchmark(each) for each in recipe.against}
    return MixturePlan(f"traces of {name}", recipe, "conversations", [origin], Inputs(recipe, benchmarks, {}))


@dataclass(frozen=True)
class _TraceOrigin(Origin):
    """Traces and how they are selected, which decides what is read of them."""

    selection: dict[str, Any] = field(default_factory=dict)

    def identity(self) -> list[dict[str, Any]]:
        return [{**place, "selection": self.selection} for place in super().identity()]


def _model_of(run: Path, files: Sequence[Path]) -> Path:
    """The model that wrote a run's traces: that of the results beside them, or the one that the run trains."""
    hint = "Name it with --model: the folder of the model that wrote the traces."
    folder = run if run.is_dir() else run.parent
    for results in (file.with_name("results.json") for file in files):
        named = (read_json(results) or {}).get("model") or {}
        if isinstance(named.get("path"), str) and Path(named["path"]).is_dir():
            return Path(named["path"])
    for parent in (folder, *folder.resolve().parents):
        if not (parent / "config.json").is_file() or not (parent / "status.json").is_file():
            continue
        kind, config = load_config(parent)
        for each in (parent / "base", Path(str(config.get("model") or ""))):
            if kind in ("sft", "train", "demo") and (each / "config.json").is_file():
                return each
        break
    raise UserError(f"{run} does not name the model that wrote its traces, or it is not here any more", hint)


def _chosen(files: Sequence[Path], selection: Selection) -> Iterator[str]:
    """The keys of the traces that are taken, of those that may be."""
    ranked: dict[str, list[tuple[float, int, int, str]]] = defaultdict(list)
    seen: set[tuple[str, bytes]] = set()
    for file in files:
        for trace in read_traces(file):
            if _fault(trace, selection) is not None:
                continue
            written = (trace.problem_id, array("q", trace.response_ids).tobytes())
            if written not in seen:
                seen.add(written)
                rollout = Rollout.from_trace(trace.model_copy(update={"reward": 1.0}))
                ranked[trace.problem_id].append(
                    (penalty(rollout), trace.tokens, trace.sample, key_of_trace(trace))
                )
    for traces in ranked.values():
        yield from (key for *_, key in sorted(traces)[: selection.per_problem])


def key_of_trace(trace: Trace) -> str:
    """A name for a trace among all of a run, whose steps may sample a problem under the same numbers."""
    written = hashlib.sha256(array("q", trace.response_ids).tobytes()).hexdigest()
    return f"{trace.problem_id}-{trace.sample}-{written[:8]}"


def _fault(trace: Trace, selection: Selection) -> tuple[str, str] | None:
    """Why a trace is not learnt from, as reason and detail; None if it may be."""
    if not trace.correct:
        return "not correct", f"verdict {trace.verdict}"
    if trace.finish != "answer":
        return "cut off", f"it ended by {trace.finish}"
    if trace.lost_calls or any(turn.calls_not_run for turn in trace.turns):
        return "lost call", f"{trace.lost_calls} calls were lost to the judge"
    if trace.failed_calls > selection.failed_calls:
        return "failed calls", f"{trace.failed_calls} of {len(trace.calls)} calls failed"
    if trace.paper_correct is False:
        return "answer not in the format", f"read by {trace.read_by or 'another rule'}"
    if not trace.response_ids:
        return "no token ids", "the server that wrote it gave none"
    return None


@dataclass(frozen=True)
class _TraceReader:
    """Reads a trace as a conversation, in whatever process."""

    model: Path
    codec: str
    """The digest of the model's codec."""
    selection: Selection
    chosen: frozenset[str]

    def __call__(self, row: Row) -> dict[str, Any]:
        trace = Trace.model_validate(dict(row))
        if fault := _fault(trace, self.selection):
            raise Refused(*fault)
        key = key_of_trace(trace)
        if key not in self.chosen:
            most = self.selection.per_problem
            raise Refused("others of its problem are taken", f"the same text, or {most} with less penalty")
        return {"id": key, **conversation_columns(trace, _loaded(self.model))}


@lru_cache(maxsize=1)
def _loaded(model: Path) -> ChatCodec:
    return load_codec(model)


def conversation_columns(trace: Trace, codec: ChatCodec) -> dict[str, Any]:
    """The columns of a conversation that a model wrote: texts as it wrote them, and its own token ids.

    The question is the problem alone: every format puts its own text around it (`rstar2.data.taught`). Refused if the
    trace was written in another format than the codec's.
    """
    if codec.prompt(codec.format.messages(trace.problem)) != trace.prompt_ids:
        raise Refused("another format", "its prompt is not what the model's format makes of the problem")
    messages: list[Message] = [{"role": "user", "content": trace.problem}]
    tools = codec.format.shown_tools or []
    ids = [*trace.prompt_ids, *trace.response_ids]
    mask = [*[0] * len(trace.prompt_ids), *trace.response_mask]
    for turn in trace.turns:
        messages.append(_message(turn, trace, codec, tools))
        messages += [{"role": "tool", "content": call.output} for call in turn.calls]
    if ids[-1] not in codec.stop_ids:  # a server may leave it out
        ids.append(codec.end_id)
        mask.append(1)
    return {
        "messages": messages,
        "tools": json.dumps(tools, ensure_ascii=False),
        "tokens": {"codec": codec.digest, "input_ids": ids, "loss_mask": mask},
    }


def _message(turn: Turn, trace: Trace, codec: ChatCodec, tools: list[Message]) -> Message:
    if isinstance(codec, TemplateCodec):
        return {"role": "assistant", "content": codec.turn_start + turn.text}
    before = [*trace.prompt_ids, *trace.response_ids[: turn.start]]
    message = codec.message(trace.response_ids[turn.start : turn.end], before, tools)[0]
    if thought := message.pop("reasoning_content", ""):
        message["content"] = tags.thought_first(thought, message["content"])
    return message

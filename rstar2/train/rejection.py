"""Rejection sampling: makes SFT conversations from the correct and clean traces of a run.

Traces are read like the rows of any other data source (`rstar2.data.source`). The resulting conversations are filtered,
compared with benchmarks and written like the conversations of other sources. For each reason to leave out a trace, the
data card says how many traces were left out for this reason. A first pass over all traces chooses the best traces of
each problem: the traces with the lowest penalty p_total of Resampling on Correct (RoC).

Only traces that a model may learn from are used: rollouts of a training run, and traces of an evaluation on the user's
own problems. Traces of held-out problems and of benchmarks are left out, unless the user names their folder or file.
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
_OPTIONAL = tuple(name for name in Trace.model_fields if name not in (*_NEEDED, "logprobs"))


@dataclass(frozen=True)
class Selection:
    """The limits that decide which traces become conversations."""

    per_problem: int = 4
    """Maximum number of traces per problem. The traces with the lowest penalty are used (`rstar2.train.select.roc`).
    Among traces with the same penalty, the shortest traces are used."""
    failed_calls: int = 0
    """Maximum number of failed calls in a trace."""


@dataclass(frozen=True)
class RunTraces:
    """The trace files of a run."""

    files: tuple[Path, ...]
    """The trace files from which conversations are made."""
    measured: dict[Path, str]
    """Dict from each file with traces of evaluation problems to a name for these problems. Files that the user named
    are also in `files`. No conversations are made from the other files."""

    def warnings(self) -> Iterator[str]:
        """Yields a warning for each set of evaluation problems."""
        for problems in dict.fromkeys(self.measured.values()):
            files = [file for file, name in self.measured.items() if name == problems]
            if set(self.files) & set(files):
                yield (
                    f"these are traces of {problems}: a model that learns from these traces cannot be measured on "
                    "these problems"
                )
            else:
                yield f"traces of {problems} are left out: {first_few([str(file.parent) for file in files])}"


def traces_of(run: Path) -> RunTraces:
    """Finds the trace files of a run.

    Args:
        run: the folder of an evaluation or a training run, a folder in it, or a trace file.

    Raises:
        UserError: the run has no traces, or all of its traces are left out.
    """
    if run.is_file():
        return RunTraces((run,), {run: problems} if (problems := _measured_by(run)) else {})
    all_files = [*sorted(run.glob("**/traces.jsonl")), *sorted(run.glob("**/traces/step-*.jsonl"))]
    if not all_files:
        raise UserError(
            f"{run} has no traces",
            "Give the folder of an evaluation, or of a training run that keeps traces (traces_per_step).",
        )
    left_out = {file: problems for file in all_files if (problems := _measured_by(file, below=run))}
    files = tuple(file for file in all_files if file not in left_out)
    if not files:
        raise UserError(
            f"{run} has only traces of {first_few([*dict.fromkeys(left_out.values())])}, which models are evaluated on",
            "Give an evaluation of training problems (`rstar2 eval data/rl/data.parquet …`), or a training run that "
            f"keeps traces (traces_per_step). To use these traces anyway, name their folder, such as "
            f"{next(iter(left_out)).parent}.",
        )
    named = {file: problems for file in files if (problems := _measured_by(file))}
    return RunTraces(files, {**left_out, **named})


def _measured_by(file: Path, below: Path | None = None) -> str:
    """Returns a name for the problems of a trace file if models are evaluated on these problems, and an empty text
    otherwise.

    Args:
        below: the topmost parent folder in which to search for the file's run; if None, all parent folders are
            searched.
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
    """Plans the preparation of SFT conversations from the traces of an evaluation or a training run.

    Args:
        run: the folder of the run, a folder in it, or a trace file.
        model: the model that wrote the traces. The conversations are read with the tokenizer and the format of `model`.
            By default, the model that the run names is used.
        against: names or files of benchmarks. A conversation that shares words with a benchmark's problem is left out.
        overrides: texts of the form `a.b=c` that change keys of the mixture's recipe.

    Raises:
        UserError: the run has no traces, its traces are damaged, or the model's tokenizer cannot be found.
    """
    files = traces_of(run).files
    model_folder = find_model(model) if model is not None else _model_of(run, files)
    if model_folder is None:
        raise UserError(f"no model at {model}", "Give the folder of the model that wrote the traces.")
    name = run.resolve().stem.replace(".", "-")
    values = {"sources": {name: {}}, "filters": DEFAULT_FILTERS["conversations"], "against": tuple(against)}
    recipe = resolve(MixtureRecipe, values, list(overrides), "the traces' mixture")
    codec = load_codec(model_folder)
    reader = _TraceReader(model_folder, codec.digest, selection, frozenset(_chosen(files, selection)))
    source = Source(
        kind="conversations",
        family="own traces",
        licence="the model's, and that of its problems",
        columns=(_NEEDED,),
        more=_OPTIONAL,
        read=reader,
        token_ids=True,
    )
    origin = _TraceOrigin(name, source, files, {**asdict(selection), "codec": codec.digest})
    benchmarks = {each: load_benchmark(each) for each in recipe.against}
    return MixturePlan(f"traces of {name}", recipe, "conversations", [origin], Inputs(recipe, benchmarks, {}))


@dataclass(frozen=True)
class _TraceOrigin(Origin):
    """The origin of conversations from traces. The identity of the origin includes the selection, because the selection
    decides which traces are read."""

    selection: dict[str, Any] = field(default_factory=dict)

    def identity(self) -> list[dict[str, Any]]:
        return [{**place, "selection": self.selection} for place in super().identity()]


def _model_of(run: Path, files: Sequence[Path]) -> Path:
    """Returns the model that wrote a run's traces: the model that is named in the results beside the traces, or else
    the model that the run trains."""
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
    raise UserError(
        f"{run} does not name the model that wrote its traces, or that model does not exist", hint
    )


def _chosen(files: Sequence[Path], selection: Selection) -> Iterator[str]:
    """Yields the keys of the traces that become conversations."""
    ranked: dict[str, list[tuple[float, int, int, str]]] = defaultdict(list)
    earlier: set[tuple[str, bytes]] = set()
    for file in files:
        for trace in read_traces(file):
            if _fault(trace, selection) is not None:
                continue
            answer = (trace.problem_id, array("q", trace.response_ids).tobytes())
            if answer not in earlier:
                earlier.add(answer)
                rollout = Rollout.from_trace(trace.model_copy(update={"reward": 1.0}))
                ranked[trace.problem_id].append(
                    (penalty(rollout), trace.tokens, trace.sample, key_of_trace(trace))
                )
    for traces in ranked.values():
        yield from (key for *_, key in sorted(traces)[: selection.per_problem])


def key_of_trace(trace: Trace) -> str:
    """Returns a name for a trace. The name is unique within the run.

    The name depends on the trace's tokens, because several steps may sample the same problem with the same sample
    numbers.
    """
    written = hashlib.sha256(array("q", trace.response_ids).tobytes()).hexdigest()
    return f"{trace.problem_id}-{trace.sample}-{written[:8]}"


def _fault(trace: Trace, selection: Selection) -> tuple[str, str] | None:
    """Returns the reason why a trace is left out, and a detail. Returns None if the trace can be used."""
    if not trace.correct:
        return "not correct", f"verdict {trace.verdict}"
    if trace.finish != "answer":
        return "cut off", f"it ended by {trace.finish}"
    if trace.lost_calls or any(turn.calls_not_run for turn in trace.turns):
        return "lost call", f"the judge lost {trace.lost_calls} calls"
    if trace.failed_calls > selection.failed_calls:
        return "failed calls", f"{trace.failed_calls} of {len(trace.calls)} calls failed"
    if trace.paper_correct is False:
        return "answer not in the format", f"read by {trace.read_by or 'another rule'}"
    if not trace.response_ids:
        return "no token ids", "the server that wrote the trace gave no token ids"
    return None


@dataclass(frozen=True)
class _TraceReader:
    """Reads a trace as a conversation. A reader can be sent to other processes."""

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
            limit = self.selection.per_problem
            raise Refused(
                "others of its problem are taken",
                f"another trace has the same text, or {limit} traces have a lower penalty or fewer tokens",
            )
        return {"id": key, **conversation_columns(trace, _loaded(self.model))}


@lru_cache(maxsize=1)
def _loaded(model: Path) -> ChatCodec:
    return load_codec(model)


def conversation_columns(trace: Trace, codec: ChatCodec) -> dict[str, Any]:
    """Returns the columns of a conversation with the texts and the token ids that a model wrote.

    The first message contains only the problem, because every format puts its own text around the problem
    (`rstar2.data.taught`). Raises Refused if the trace has another format than the codec.
    """
    if codec.prompt(codec.format.messages(trace.problem)) != trace.prompt_ids:
        raise Refused(
            "another format", "its prompt is not the prompt that the model's format gives for the problem"
        )
    messages: list[Message] = [{"role": "user", "content": trace.problem}]
    tools = codec.format.template_tools or []
    ids = [*trace.prompt_ids, *trace.response_ids]
    mask = [*[0] * len(trace.prompt_ids), *trace.response_mask]
    for turn in trace.turns:
        messages.append(_message(turn, trace, codec, tools))
        messages += [{"role": "tool", "content": call.output} for call in turn.calls]
    if ids[-1] not in codec.stop_ids:  # a server may leave out the end token
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

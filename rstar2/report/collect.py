"""Reads the content of a report: the benchmark results, stages and charts of a run, or the card of prepared data."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from rstar2.analysis.sources import has_changed
from rstar2.eval.stored import Measurement, measurements
from rstar2.files import read_json
from rstar2.loop.trace import Trace
from rstar2.report.shading import Shading, shaded_traces
from rstar2.runs import load_config

_TRAINING_KINDS = ("demo", "train")
"""Kinds of runs with metrics of training steps."""
_CURVES = (
    ("failed", "Failed calls in correct traces in training", "failed calls", "share"),
    ("pass_rate", "Pass rate in training", "pass rate", "share"),
    ("tokens", "Mean tokens in training", "tokens", "tokens"),
)
_MOST_OF_STEPS = 600
_MOST_FAILED = 60
"""Maximum numbers of traces that the page shows from one stage: `_MOST_OF_STEPS` traces of its steps, and
`_MOST_FAILED` traces of rollouts that the engine could not finish."""
_SHAPE = (("layers", "layers"), ("hidden", "wide"), ("vocab", "tokens in the vocabulary"))
"""Pairs of a key of the demo's model and the words after its value on the page, as in "2 layers"."""

Chart = dict[str, Any]
"""A JSON-able chart: `title`, `x` and `y` (labels of the axes), `unit` (a "share" is drawn in percent), `marks` (a list
of [x, text]), and `series` (a list of objects with `name` and `points`). A point is [x, y] or [x, y, low, high]."""


@dataclass(frozen=True)
class StageTraces:
    """The traces that one stage of training stored."""

    name: str
    """Name on the page, such as "training, stage 1"."""
    folder: Path
    """The folder of the traces, written by `rstar2.train.records.kept_traces`."""

    def selected(self) -> Iterator[tuple[Trace, Shading | None]]:
        """The traces for the page, with their shading: the first few of each step, then some of failed rollouts.

        At most 660 traces are selected. If there are more than 600 steps, some steps are skipped.

        Raises:
            UserError: a file is damaged.
        """
        steps = sorted(self.folder.glob("step-*.jsonl"))
        stride = -(-len(steps) // _MOST_OF_STEPS) or 1
        steps = steps[::stride]
        for path in steps:
            yield from islice(shaded_traces(path), _MOST_OF_STEPS // len(steps))
        files = sorted(self.folder.glob("failed-*.jsonl"))
        failed = (shaded for path in files for shaded in shaded_traces(path))
        yield from islice(failed, _MOST_FAILED)


@dataclass(frozen=True)
class RunPage:
    """The content of the report page of a run."""

    folder: Path
    title: str
    """Name of the run's folder."""
    kind: str
    """Kind of the run, from config.json."""
    config: dict[str, Any]
    """The value of the key `config` in the run's config.json."""
    models: list[str]
    """The measured models. For a training run, the model that the training started from."""
    sections: list[Measurement]
    """One measurement per folder with a traces.jsonl, named after the folder's path in the run's folder. The
    measurements are in the order in which the user named the benchmarks."""
    stage_traces: list[StageTraces]
    """The stored traces of training, with one item for each stage that has stored traces."""
    summary: dict[str, Any] | None
    """Content of summary.json, with the numbers of each phase under `phases`. `summary` is None if the run has only one
    stage."""
    charts: list[Chart]
    training: dict[str, Any] | None
    """The steps of training: `charts`, `alarms` and `decisions` (texts), and `columns` and `rows` of all
    measurements."""
    analysis: dict[str, Any] | None
    """Result of `rstar2 analyze`: `tables` and `charts`, and `stale`, which says whether the traces have changed since
    the analysis."""
    card: dict[str, Any] | None = None
    """Content of card.json of prepared data."""
    chosen: str = ""
    """A sentence about the step whose model SFT returned. The sentence is empty until SFT has returned a model."""


def collect(run: Path) -> RunPage:
    """Read the folder of a run or of prepared data.

    Raises:
        UserError: the folder is neither a run nor prepared data, or a file in it is damaged.
    """
    if (run / "card.json").exists():
        return _prepared(run)
    kind, config = load_config(run)
    names = list(config.get("problems") or ())
    sections = sorted(
        measurements(run), key=lambda each: names.index(each.name) if each.name in names else len(names)
    )
    return RunPage(
        folder=run,
        title=run.resolve().name,
        kind=kind,
        config=config,
        models=_models(kind, config, sections),
        sections=sections,
        stage_traces=stage_traces(run),
        summary=read_json(run / "summary.json"),
        charts=_training_charts(run)
        if kind in _TRAINING_KINDS
        else _sft_charts(run)
        if kind == "sft"
        else [],
        training=_training(run) if kind in _TRAINING_KINDS else None,
        chosen=_chosen(run) if kind == "sft" else "",
        analysis=_analysis(run / "analysis"),
    )


def _prepared(folder: Path) -> RunPage:
    from rstar2.data.mixture.card import Card

    card = Card.load(folder)
    title = f"{folder.resolve().name}: {card.name}"
    return RunPage(
        folder=folder,
        title=title,
        kind="data",
        config=card.config,
        models=[],
        sections=[],
        stage_traces=[],
        summary=None,
        charts=[],
        training=None,
        analysis=None,
        card=asdict(card),
    )


def _models(kind: str, config: dict[str, Any], sections: list[Measurement]) -> list[str]:
    if kind == "demo":
        model = config.get("demo", {}).get("model", {})
        shape = ", ".join(f"{model[key]} {name}" for key, name in _SHAPE if key in model)
        return [f"trained from random weights{shape and f': {shape}'}"]
    if kind in ("train", "sft"):
        return [f"trained from {config['model']}"] if config.get("model") else []
    names = [section.results.get("model", {}).get("name") for section in sections]
    return [name for name in dict.fromkeys(names) if name]


def _analysis(folder: Path) -> dict[str, Any] | None:
    analysis = read_json(folder / "analysis.json")
    if analysis is None:
        return None
    about = analysis.pop("traces", None)  # earlier versions did not write it
    return {**analysis, "stale": about is not None and has_changed(folder, about)}


def _training_charts(run: Path) -> list[Chart]:
    """Charts of the metrics of training steps, averaged over several steps. The list is empty if the run has no
    metrics.

    The charts show the metrics of figure 4 of the rStar2-Agent paper (arXiv 2508.20722). If the run also trained with
    plain GRPO, each chart has a second line.
    """
    from rstar2.train.recipe import STAGES
    from rstar2.train.records.curves import curve
    from rstar2.train.records.steps import step_metrics

    arms = {"GRPO-RoC": curve(run).smoothed(), "plain GRPO": curve(run / "plain").smoothed()}
    arms = {name: arm for name, arm in arms.items() if arm.steps}
    if len(arms) == 1:
        arms = {"this run": next(iter(arms.values()))}
    # One arm may have fewer steps than the other.
    longest = max(run, run / "plain", key=lambda root: len(curve(root).steps))
    names = [f"stage {number}" for number in STAGES if step_metrics(longest / f"stage{number}")]
    marks = list(zip(curve(longest).starts, names, strict=True))
    charts: list[Chart] = []
    for field, title, label, unit in _CURVES:
        lines = {
            name: [
                (step, value)
                for step, value in zip(arm.steps, getattr(arm, field), strict=True)
                if math.isfinite(value)
            ]
            for name, arm in arms.items()
        }
        series = [{"name": name, "points": points} for name, points in lines.items() if points]
        if series:
            about = {"title": title, "x": "steps", "y": label, "unit": unit, "marks": marks}
            charts.append({**about, "series": series})
    return charts


def _sft_charts(run: Path) -> list[Chart]:
    """Charts of an SFT's loss and of its other measurements, by step.

    The step whose model SFT chose is marked in each chart.
    """
    from rstar2.train.choose import measured_curves, measurements, read_choice
    from rstar2.train.records.steps import SFT_METRIC, sft_metrics

    choice = read_choice(run)
    marks = [(choice.step, "chosen")] if choice else []
    losses = [(step, float(row[SFT_METRIC])) for step, row in sft_metrics(run).items()]
    finite = [point for point in losses if math.isfinite(point[1])]
    curves = [("loss", finite), *measured_curves(measurements(run))]
    return [
        {
            "title": name.capitalize(),
            "x": "steps",
            "y": name,
            "unit": "share" if name.startswith(("accuracy", "pass@k")) else "number",
            "marks": marks,
            "series": [{"name": "this run", "points": points}],
        }
        for name, points in curves
        if points
    ]


def _chosen(run: Path) -> str:
    from rstar2.train.choose import read_choice

    choice = read_choice(run)
    return f"The model is that of {choice.text}." if choice else ""


def _training(run: Path) -> dict[str, Any] | None:
    """Every measurement of the steps of a run, as in `rstar2 watch`. The result is None if the run has no step yet."""
    from rstar2.train.decision import read_decision
    from rstar2.train.records.alarms import read_alarms
    from rstar2.train.records.panels import PANELS
    from rstar2.train.records.steps import COLUMNS, run_steps

    steps = run_steps(run)
    if not steps:
        return None
    stages = sorted({step.stage for step in steps})
    marks = [
        (next(step.number for step in steps if step.stage == stage), f"stage {stage}") for stage in stages
    ]
    charts: list[Chart] = [
        {
            "title": panel.title,
            "usual": panel.usual,
            "x": "steps",
            "y": panel.y,
            "unit": panel.unit,
            "marks": marks,
            "series": [{"name": name, "points": points} for name, points in panel.curves(steps)],
        }
        for panel in PANELS
    ]
    rows = [
        [step.number, step.stage, step.stage_step, *(_cell(step.values[column.name]) for column in COLUMNS)]
        for step in steps
    ]
    return {
        "charts": [chart for chart in charts if chart["series"]],
        "alarms": [
            f"stage {stage}, step {step}: {alarm.text}"
            for stage in stages
            for step, alarms in read_alarms(run / f"stage{stage}").items()
            for alarm in alarms
        ],
        "decisions": [
            f"stage {stage}, step {decision.step}: {decision.text}"
            for stage in stages
            if (decision := read_decision(run / f"stage{stage}")) is not None
        ],
        "columns": ["step", "stage", "stage_step", *(column.name for column in COLUMNS)],
        "rows": rows,
    }


def _cell(value: float | None) -> float | str | None:
    """A measurement as JSON, which has neither NaN nor infinities. NaN and infinities become texts."""
    return value if value is None or math.isfinite(value) else str(value)


def stage_traces(run: Path) -> list[StageTraces]:
    """The stages of a run whose traces were stored, in order. Stages under plain GRPO come last."""
    stages = []
    for prefix, folder in (("", run), ("plain GRPO ", run / "plain")):
        for stage in sorted(folder.glob("stage[0-9]")):
            number = re.sub(r"\D", "", stage.name)
            if any((stage / "traces").glob("*.jsonl")):
                stages.append(StageTraces(f"{prefix}training, stage {number}", stage / "traces"))
    return stages
